"""The page of the Python API: each name of `lithify`, with its signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

import lithify
from compactor.model.document import Document
from tests.pages.docstrings import markdown, paragraph, returned, signature, type_name

FUNCTIONS = ("compact",)
CLASSES = ("DeltaCatalog", "Table", "Scan", "Delta", "JobRunResult", "SessionResult")
ERRORS = ("LithifyError", "Invalid", "Conflict", "Unavailable", "Denied", "Fenced", "Corrupt")

FOR_LITHIFY: Mapping[str, frozenset[str]] = {
    "DeltaCatalog": frozenset(
        {"create_table_like", "definition_even_dropped", "for_one_run", "table_even_dropped", "table_like"}
    ),
    "Table": frozenset(
        {
            *("check_takes_deltas", "each_partition", "known_schema", "look_up"),
            *("partitions_even_dropped", "read_again", "refresh", "stream", "streams_kept"),
        }
    ),
}
"""Public members that its own modules call; users have no use for them."""


def python_api() -> Iterator[str]:
    for name in FUNCTIONS:
        yield from (f"## {name}", "", "```python", *signature(name, getattr(lithify, name)), "```")
        yield from (*markdown(getattr(lithify, name).__doc__ or ""), "")
    for name in CLASSES:
        yield from (*_class(name, getattr(lithify, name)), "")
    yield from ("## Errors", "", "All are `LithifyError`. Their kind says what to do.", "")
    yield from ("| error | meaning |", "|---|---|")
    yield from (f"| `{name}` | {paragraph(getattr(lithify, name).__doc__)} |" for name in ERRORS)


def _class(name: str, of: type) -> Iterator[str]:
    members = _members(name, of)
    properties = {each: member for each, member in members.items() if isinstance(member, property)}
    yield from (f"## {name}", *markdown(of.__doc__ or ""))
    explained = [f"- `{each}`: {paragraph(found.__doc__)}" for each, found in properties.items() if found.__doc__]
    yield from ("", *explained) if explained else ()
    fields = [*_fields(of), *(f"{each}: {returned(found.fget)}" for each, found in properties.items())]
    yield from ("", "```python", *fields, "```") if fields else ()
    for each, member in members.items():
        if inspect.isfunction(member):
            yield from ("", f"### {name}.{each}", "", "```python", *signature(each, member), "```")
            yield from markdown(inspect.getdoc(getattr(of, each)) or "")


def _fields(of: type) -> Iterator[str]:
    """`name: type` of each field of a model or of a dataclass."""
    if issubclass(of, BaseModel):
        yield from (f"{name}: {type_name(info.annotation)}" for name, info in of.model_fields.items())
    elif hasattr(of, "__dataclass_fields__"):
        yield from (f"{name}: {type_name(kind)}" for name, kind in of.__annotations__.items() if name[0] != "_")


def _members(name: str, of: type) -> dict[str, object]:
    """Properties and functions that users call: those that make an object first, then in the order of the source."""
    hidden = FOR_LITHIFY.get(name, frozenset())
    ours = [base for base in of.__mro__ if base.__module__.startswith("compactor.") and base is not Document]
    names = dict.fromkeys(
        each for base in reversed(ours) for each in vars(base) if each[0] != "_" and each not in hidden
    )
    found = {each: inspect.getattr_static(of, each) for each in names if each not in hidden}
    makers = {each: member.__func__ for each, member in found.items() if isinstance(member, staticmethod | classmethod)}
    return {**makers, **{each: member for each, member in found.items() if each not in makers}}
