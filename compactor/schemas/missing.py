"""Which columns and nested fields one schema has and another one lacks. Pure."""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa

from compactor.model.arrow_types import value_type

NAMED_MAX = 10
"""Columns that a sentence names."""

_NEAR_NAMES_MAX = 200
"""Names among which a similar one is looked for, at most: each comparison costs the length of the names."""


def missing_fields(held: Iterable[pa.Field], wanted: Iterable[pa.Field], within: str = "") -> Iterator[str]:
    """The dotted names of fields of `wanted` that `held` lacks, in order. Of a missing struct its own name only."""
    kinds: Mapping[str, pa.DataType] = {field.name: field.type for field in held}
    for field in wanted:
        name = f"{within}{field.name}"
        if field.name not in kinds:
            yield name
            continue
        has, wants = _items(kinds[field.name]), _items(field.type)
        if pa.types.is_struct(has) and pa.types.is_struct(wants):
            yield from missing_fields(has, wants, f"{name}.")


def _items(kind: pa.DataType) -> pa.DataType:
    """The type of a list's items, or of a map's; any other type unchanged."""
    kind = value_type(kind)
    while pa.types.is_nested(kind) and not pa.types.is_struct(kind) and not pa.types.is_union(kind):
        kind = value_type(kind.item_type if pa.types.is_map(kind) else kind.value_type)
    return kind


def named(names: Collection[str]) -> str:
    """The names in a sentence; of many, the first ones and how many more."""
    first = ", ".join(map(repr, list(names)[:NAMED_MAX]))
    return first if len(names) <= NAMED_MAX else f"{first} and {len(names) - NAMED_MAX:,} more"


def near_name(name: str, names: Collection[str]) -> str | None:
    """The name that was probably meant; None: none is similar."""
    folded = {each.casefold(): each for each in names} if len(names) <= _NEAR_NAMES_MAX else {}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return folded[near[0]] if near else None
