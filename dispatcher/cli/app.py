"""The command line: its verbs, each with the function that does it. A verb's module is loaded when it is called."""

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from inspect import Parameter, Signature, getdoc, signature
from typing import Annotated, Any, cast, get_type_hints

import typer
from typer.core import CompletionItem, TyperGroup  # type: ignore[attr-defined]
from typer.main import get_command

from compactor.model.errors import EXIT_INVALID
from compactor.model.machine import this_release
from dispatcher.cli.output import write_lines
from dispatcher.clients import dependencies_of

VERBS = {
    "demo": "demo:demo",
    "dispatch": "dispatch:dispatch",
    "submit": "job_runs:submit",
    "compact": "compact:compact_table",
    "plan": "plan:plan",
    "status": "job_runs:status",
    "history": "history:history",
    "watch": "job_runs:watch",
    "cancel": "job_runs:cancel",
    "retry": "job_runs:retry",
    "pause": "job_runs:pause",
    "resume": "job_runs:resume",
    "schema": "events:schema",
    "archive": "archive:archive",
    "redrive": "redrive:redrive",
    "rehash": "audit:rehash",
    "publish": "publish:publish_tables",
    "gc": "gc:gc",
    "clusters": "clusters:clusters",
    "health": "health:health",
    "serve": "serve:serve",
    "ingest": "ingest:ingest",
    "prices": "clusters:prices",
    "warm": "archive:warm",
}
"""The functions that do the verbs, as `module:function` of this package, in the order of the help."""

GROUPS = {
    "debug": ("Look into what is stored.", {"log": "debug:show_log"}),
    "events": ("Events of job runs.", {"publish": "events:publish"}),
    "keeper": (
        "Has tables compacted by their policies, and does what time demands.",
        {"run": "keeper:keep", "plan": "keeper:plan", "log": "keeper:log"},
    ),
    "privacy": ("What may still hold the values of a deleted key.", {"prove": "audit:prove_key"}),
    "report": (
        "How far tables are behind.",
        {"tables": "report:tables"},
    ),
    "table": (
        "Tables and their deltas.",
        {
            "create": "table:create",
            "append": "table:append",
            "import": "import_table:import_table",
            "retract": "table:retract",
            "show": "table:show",
            "log": "table:log",
            "scan": "table:scan",
            "list": "tables:list_tables",
            "schema": "tables:schema",
            "set": "table_properties:set_properties",
            "get": "table_properties:get_properties",
            "new-version": "tables:new_version",
            "release": "tables:release",
            "deprecate": "tables:deprecate",
            "files": "tables:files",
            "drop": "drop:drop",
            "restore": "drop:restore",
            "lookup": "audit:lookup",
            "verify": "audit:verify_table",
        },
    ),
}
"""The help and the verbs of each group."""

OWN_VERBS = {"keeper": "run"}
"""The verb that a group's name alone means: `lithify keeper --once` is `lithify keeper run --once`."""


class _Verbs(Mapping[str, Any]):
    """Commands by verb, each made when it is asked for; of a group also its groups."""

    def __init__(self, functions: Mapping[str, str], groups: Mapping[str, tuple[str, Mapping[str, str]]]) -> None:
        self._functions, self._groups = functions, groups
        self._made: dict[str, Any] = {}

    def __getitem__(self, verb: str) -> Any:  # noqa: ANN401  (typer does not publish the type of commands)
        if verb not in self._made:
            self._made[verb] = self._group(verb) if verb in self._groups else self._command(verb)
        return self._made[verb]

    def __iter__(self) -> Iterator[str]:
        yield from self._functions
        yield from self._groups

    def __len__(self) -> int:
        return len(self._functions) + len(self._groups)

    def __contains__(self, verb: object) -> bool:
        return verb in self._functions or verb in self._groups

    def _group(self, verb: str) -> TyperGroup:
        text, functions = self._groups[verb]
        return _Group(name=verb, commands=cast("Any", _Verbs(functions, {})), help=text)

    def _command(self, verb: str) -> Any:  # noqa: ANN401
        module, function = self._functions[verb].split(":")
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        does = getattr(import_module(f"dispatcher.cli.{module}"), function)
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        # typer keeps the line breaks of a docstring, which are those of the source.
        text = "\n\n".join(" ".join(each.split()) for each in (getdoc(does) or "").split("\n\n"))
        alone.command(verb, help=text, context_settings=getattr(does, "context_settings", None))(
            _with_single_options(does)
        )
        return get_command(alone)


class _Group(TyperGroup):
    """A group of verbs. Its names are listed without loading a verb; its help loads them all."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        return list(self.commands)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(verb) for verb in self.commands if verb.startswith(incomplete)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        own = OWN_VERBS.get(self.name or "")
        if own is not None and not (args and (args[0] in self.commands or args[0] in ctx.help_option_names)):
            return super().parse_args(ctx, [own, *args])
        if not args and not ctx.resilient_parsing:
            ctx.get_help()  # on a terminal, or in a pipe, it is written by asking for it
            raise typer.Exit(EXIT_INVALID)
        return super().parse_args(ctx, args)


class _Lithify(_Group):
    def __init__(self, *, commands: Any, **attributes: Any) -> None:  # noqa: ANN401
        super().__init__(commands=cast("Any", _Verbs(VERBS, GROUPS)), **attributes)


def _with_single_options(does: Callable[..., None]) -> Callable[..., None]:
    """The same verb, with an option for each field of a parameter that is a dataclass: a lake, or a state. Options that
    may be left out stand before `--output`, or last. `dependencies` are those of the process."""
    own = signature(does, eval_str=True).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)}
    if not groups:
        return does
    is_given = groups.pop("dependencies", None) is not None
    single = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)] if is_given else []
    later: list[Parameter] = []
    for name, each in own.items():
        if name == "dependencies":
            continue
        if name not in groups:
            single += [*(later if name == "output" else []), each]
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for option in fields(groups[name]):
            default = Parameter.empty if option.default is MISSING else option.default
            parameter = Parameter(option.name, Parameter.KEYWORD_ONLY, annotation=hints[option.name], default=default)
            (single if option.default is MISSING else later).append(parameter)
    single += later if "output" not in own else []
    single = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in single]

    def verb(**given: Any) -> None:  # noqa: ANN401
        if is_given:
            given["dependencies"] = dependencies_of(given.pop("context"))
        for name, group in groups.items():
            given[name] = group(**{option.name: given.pop(option.name) for option in fields(group)})
        does(**given)

    verb.__doc__, verb.__signature__ = does.__doc__, Signature(single)  # type: ignore[attr-defined]
    verb.__annotations__ = {each.name: each.annotation for each in single}
    return verb


app = typer.Typer(
    name="lithify",
    cls=_Lithify,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def lithify(
    version: Annotated[bool, typer.Option("--version", "-V", help="Show which release this is, and exit.")] = False,
) -> None:
    """Compacts data lake tables: upserts and deletes are applied through a durable key index, on Spark or without."""
    if version:
        write_lines([f"lithify {this_release()}"])
        raise typer.Exit
