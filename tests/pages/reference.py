"""What pages say of models and docstrings, as Markdown lines: options, verbs, events, exit codes, the Python API."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from compactor.api import compact
from compactor.catalog.properties import TableProperties
from compactor.model import errors
from dispatcher.cli.app import app
from dispatcher.intake.instruction import InstructionDocument
from dispatcher.options.service_options import OptionField, option_fields
from dispatcher.records.job_run_events import ALL_EVENT_TYPES
from dispatcher.scheduling.limits import Limits
from tests.pages import paper_figures
from tests.pages.docstrings import markdown, paragraph, signature, type_name
from tests.pages.python_api import python_api
from tests.pages.sources import DOCS

FROM_DISPATCH = "dispatch"
"""The verb whose options have a page of their own."""


def model_table(what: str, model: type[BaseModel]) -> Iterator[str]:
    """A row a field, in the model's order."""
    yield f"| {what} | meaning |"
    yield "|---|---|"
    for field, info in model.model_fields.items():
        required = "required: " if info.is_required() else ""
        yield f"| `{field}` | {required}{_cell(info.description or '')} |"


def options() -> Iterator[str]:
    for group, found in groupby(option_fields(), lambda each: each.group):
        yield from (f"## {group}", "", "| option | meaning | takes | default |", "|---|---|---|---|")
        for each in found:
            yield f"| `{each.flag}` | {_cell(each.option.help)} | {_takes(each)} | {_default(each)} |"
        yield ""
    yield from ("## Limits", "", *(inspect.getdoc(Limits) or "").splitlines(), "")
    yield from ("| field | meaning | default |", "|---|---|---|")
    for share, limits in Limits.model_fields.items():
        yield f"| `{share}` | {_cell(limits.description or '')} | |"
        for name, info in type(limits.default).model_fields.items():
            default = "none" if info.default is None else f"`{info.default}`"
            yield f"| `{share}.{name}` | {_cell(info.description or '')} | {default} |"


def _takes(of: OptionField) -> str:
    if of.choices:
        return ", ".join(f"`{choice}`" for choice in of.choices)
    kind = {int: "whole number", float: "number", bool: "-"}.get(of.value_type, "text")
    bounds = [f"{word} {value:,g}" for word, value in (("from", of.option.minimum), ("to", of.option.maximum)) if value]
    return " ".join([kind, *bounds]) + (", repeatable" if of.is_repeatable else "")


def _default(of: OptionField) -> str:
    if of.option.is_required:
        return "**required**"
    return "" if of.default in (None, (), False) else f"`{of.default}`"


def verbs() -> Iterator[str]:
    """A section for each verb, groups before their verbs, with its arguments and options."""
    for name, verb in _verbs(typer.main.get_command(app), "lithify"):
        yield from ("", f"{'#' * len(name.split())} {name}", "", paragraph(verb.help or ""))
        if name == f"lithify {FROM_DISPATCH}":
            yield from ("", "Its options: [Options](options.md).")
        elif isinstance(verb, TyperCommand):
            yield from _parameters(name, verb)


def _verbs(command: object, name: str) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Each verb and group of verbs below a group."""
    if not isinstance(command, TyperGroup):
        return
    context = typer.Context(command, info_name=name)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        if isinstance(found, TyperCommand | TyperGroup) and not found.hidden:
            yield f"{name} {each}", found
            yield from _verbs(found, f"{name} {each}")


def verb_options() -> set[str]:
    """Every option of every verb."""
    return {
        option
        for _, verb in _verbs(typer.main.get_command(app), "lithify")
        for parameter in verb.params
        if isinstance(parameter, TyperOption)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


def _parameters(name: str, verb: TyperCommand) -> Iterator[str]:
    of_dispatch = {each.name for each in option_fields()} if name == "lithify plan" else set()
    shown = [
        each
        for each in verb.params
        if isinstance(each, TyperArgument | TyperOption) and not each.hidden and each.name not in {"help", *of_dispatch}
    ]
    if shown:
        yield from ("", "| takes | meaning |", "|---|---|")
    for each in shown:
        yield f"| {_written(each)} | {_cell(_meaning(each))} |"
    if of_dispatch:
        yield from ("", "And what `lithify dispatch` takes of clusters and cores: [Options](options.md).")


def _written(parameter: TyperArgument | TyperOption) -> str:
    if isinstance(parameter, TyperArgument):
        name = (parameter.metavar or parameter.name or "").upper()
        return f"`{name}`" + ("" if parameter.required else " (optional)")
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    taken = parameter.type_descriptor.annotation
    choices: Iterable[object] = get_args(taken) if str(get_origin(taken)) == str(Literal) else ()
    if isinstance(taken, type) and issubclass(taken, StrEnum):
        choices = taken
    if choices:
        names += ": " + ", ".join(f"`{choice}`" for choice in choices)
    return names + (" (required)" if parameter.required else "")


def _meaning(parameter: TyperArgument | TyperOption) -> str:
    text, default = parameter.help or "", parameter.default
    shown = not (default in (None, (), [], False, "") or callable(default) or parameter.required)
    return f"{text} Default: `{getattr(default, 'value', default)}`." if shown else text


def compact_call() -> Iterator[str]:
    yield from ("```python", *signature("compact", compact), "```", "")
    yield "What each means: [Python API](../reference/python.md)."


def events() -> Iterator[str]:
    for name, model in sorted(ALL_EVENT_TYPES.items()):
        severities = model.severities or (model.severity,)
        yield from ("", f"## {name}", "", f"Severity: {' or '.join(severities)}.")
        yield from markdown(vars(model).get("__doc__") or "")
        if model.model_fields:
            yield from ("", "| field of `data` | type |", "|---|---|")
        for field, info in model.model_fields.items():
            yield f"| `{field}` | {_type_name(info.annotation)}{'' if info.is_required() else ', may be missing'} |"


def _type_name(annotation: object) -> str:
    shown = type_name(annotation)
    for python, plain in (("str", "text"), ("int", "whole number"), ("float", "number"), ("bool", "true or false")):
        shown = re.sub(rf"\b{python}\b", plain, shown)
    shown = re.sub(r"tuple\[(.*), \.\.\.\]", r"list of \1", shown)
    return _cell(shown.replace(" | None", " or null"))


def codes() -> Iterator[str]:
    yield "| code | meaning |"
    yield "|---|---|"
    yield "| 0 | Done, also if there was nothing to do. |"
    body = ast.parse(inspect.getsource(errors)).body
    for named, documented in pairwise(body):
        if isinstance(named, ast.Assign) and isinstance(documented, ast.Expr) and "EXIT_" in ast.unparse(named):
            yield f"| {ast.literal_eval(named.value)} | {_cell(paragraph(ast.literal_eval(documented.value)))} |"


def decisions() -> Iterator[str]:
    yield "| | decision | date |"
    yield "|---|---|---|"
    for page in sorted(DOCS.joinpath("decisions").glob("0*.md"), reverse=True):
        text = page.read_text()
        title, day = re.search(r"^# (.+)$", text, re.M), re.search(r"^Status: \w+, (\S+)$", text, re.M)
        if title is None or day is None:
            raise ValueError(f"{page.name} has no title, or no line `Status: accepted, 2026-01-31`")
        yield f"| {page.name[:4]} | [{title[1]}]({page.name}) | {day[1]} |"


def _cell(text: str) -> str:
    return paragraph(text).replace("|", "\\|")


GENERATED: Mapping[str, Callable[[], Iterable[str]]] = {
    "instruction": lambda: model_table("field", InstructionDocument),
    "properties": lambda: model_table("property", TableProperties),
    "options": options,
    "verbs": verbs,
    "compact": compact_call,
    "events": events,
    "exit_codes": codes,
    "decisions": decisions,
    "python_api": python_api,
    "paper_points": paper_figures.points_table,
    "paper_results": paper_figures.results_table,
    "paper_buckets": paper_figures.buckets_table,
    "paper_efficiency": paper_figures.efficiency_table,
    "paper_by_vcpus": paper_figures.vcpus_table,
}
"""The lines of each place but for those of `tests/infra/templates.py`, which need the CDK."""
