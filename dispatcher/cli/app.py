"""The command line: its verbs, which the modules beside this one implement."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compactor.model.release import this_release
from dispatcher.cli import tables
from dispatcher.cli.archive import archive
from dispatcher.cli.audit import lookup, rehash, verify_table
from dispatcher.cli.clusters import clusters
from dispatcher.cli.compact import compact_table
from dispatcher.cli.debug import debug_app
from dispatcher.cli.demo import demo
from dispatcher.cli.dispatch import dispatch
from dispatcher.cli.drop import drop
from dispatcher.cli.events import events_app
from dispatcher.cli.gc import gc
from dispatcher.cli.health import health
from dispatcher.cli.history import clean, history
from dispatcher.cli.job_runs import cancel, retry, status, submit
from dispatcher.cli.output import write_lines
from dispatcher.cli.pause import pause, resume
from dispatcher.cli.plan import plan
from dispatcher.cli.privacy import privacy_app
from dispatcher.cli.publish import publish_tables
from dispatcher.cli.redrive import redrive
from dispatcher.cli.report import report_app
from dispatcher.cli.restore import restore
from dispatcher.cli.schema import schema
from dispatcher.cli.stream_versions import deprecate, new_version, release
from dispatcher.cli.table import table_app
from dispatcher.cli.table_properties import get_properties, set_properties
from dispatcher.cli.tables import files, list_tables
from dispatcher.cli.watch import watch
from dispatcher.clients import show_help


class Interrupted(Exception):
    """Ctrl-C ended a verb. typer would turn `KeyboardInterrupt` into the exit code of a verb that ended normally."""


class _Verbs(TyperGroup):
    def invoke(self, ctx: Any) -> object:  # noqa: ANN401  (typer does not publish the type)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error


app = typer.Typer(
    name="lithify",
    cls=_Verbs,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def lithify(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Show which release this is, and exit.")] = False,
) -> None:
    """Compacts data lake tables: applies every upsert and delete through a durable primary key index, on Spark."""
    if version:
        write_lines([f"lithify {this_release()}"])
        raise typer.Exit
    show_help(context)


app.command()(demo)
app.command()(dispatch)
app.command()(submit)
app.command("compact")(compact_table)
app.command()(plan)
app.command()(status)
app.command()(history)
app.command()(watch)
app.command()(cancel)
app.command()(retry)
app.command()(pause)
app.command()(resume)
app.command()(schema)
app.command()(archive)
app.command()(redrive)
app.command()(rehash)
app.command("publish")(publish_tables)
app.command()(gc)
app.command()(clean)
app.command()(clusters)
app.command()(health)
table_app.command("list")(list_tables)
table_app.command("schema")(tables.schema)
table_app.command("set")(set_properties)
table_app.command("get")(get_properties)
table_app.command("new-version")(new_version)
table_app.command()(release)
table_app.command()(deprecate)
table_app.command()(files)
table_app.command()(drop)
table_app.command()(restore)
table_app.command()(lookup)
table_app.command("verify")(verify_table)
app.add_typer(debug_app, name="debug")
app.add_typer(events_app, name="events")
app.add_typer(privacy_app, name="privacy")
app.add_typer(report_app, name="report")
app.add_typer(table_app, name="table")
