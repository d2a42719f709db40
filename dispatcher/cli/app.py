"""The command line as a whole: which verbs there are. What they do is in the modules beside this one."""

from __future__ import annotations

import typer

from dispatcher.cli.audit import lookup, rehash, verify_table
from dispatcher.cli.compact import compact_table
from dispatcher.cli.demo import demo
from dispatcher.cli.dispatch import dispatch, redrive
from dispatcher.cli.gc import gc
from dispatcher.cli.job_runs import cancel, plan, status, submit, watch
from dispatcher.cli.schema import schema
from dispatcher.cli.table import table_app

app = typer.Typer(
    name="lithify",
    help="Compacts data lake tables: applies every upsert and delete through a durable primary key index, on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(demo)
app.command()(dispatch)
app.command()(submit)
app.command("compact")(compact_table)
app.command()(plan)
app.command()(status)
app.command()(watch)
app.command()(cancel)
app.command()(schema)
app.command()(redrive)
app.command()(rehash)
app.command()(gc)
table_app.command()(lookup)
table_app.command("verify")(verify_table)
app.add_typer(table_app, name="table")
