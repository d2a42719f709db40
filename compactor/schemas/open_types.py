"""The types and columns of *open files*: compacted files that other engines read as a scan of Lithify does.

Each type is mapped to one that all read alike, without changing a value; what has none is refused. Pure.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from types import MappingProxyType

import pyarrow as pa

from compactor.model.arrow_types import value_type
from compactor.schemas.unify import unify_types

_PLAIN: Mapping[pa.DataType, pa.DataType] = MappingProxyType(
    {
        pa.uint8(): pa.int32(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
        pa.time32("s"): pa.time64("us"),
        pa.time32("ms"): pa.time64("us"),
        pa.time64("ns"): pa.time64("us"),
        pa.string_view(): pa.string(),
        pa.binary_view(): pa.binary(),
    }
)

_DECIMAL_DIGITS_MAX = 38

_FIELD_ID = b"PARQUET:field_id"
_FIELD_IDS = 2**31 - 1 - 200
"""Field ids that a column may have: Iceberg reserves the 200 greatest ones of 31 bits."""

_NOT_FOR_DELTA = frozenset(" ,;{}()\n\t=")
"""Characters that Delta Lake refuses in names of columns."""


@dataclass(frozen=True)
class OpenTable:
    """What decides whether a table's columns can be published."""

    partition_keys: Sequence[str]
    primary_keys: Collection[str]
    sort_keys: Collection[str]
    for_delta: bool


def open_type(kind: pa.DataType) -> pa.DataType | None:
    """The type that an open file has for a column; None: there is none. Of type null, itself: it is left out."""
    kind = value_type(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind):
        # PyIceberg reads no other zone; the instants are the same.
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return _open_decimal(kind)
    if pa.types.is_nested(kind):
        return _open_nested(kind)
    if pa.types.is_duration(kind) or kind == pa.month_day_nano_interval():
        return None
    return kind


def open_schema(schema: pa.Schema) -> pa.Schema:
    """Of rows in open files. Columns of type null are left out; `reasons_against` names those without an open type."""
    fields = [
        pa.field(field.name, open_type(field.type) or field.type)
        for field in schema
        if not pa.types.is_null(value_type(field.type))
    ]
    return pa.schema(fields)


def open_file_schema(schema: pa.Schema, partition_keys: Sequence[str]) -> pa.Schema:
    """Of a file with rows of an open schema: every field has its id, and the partition's values come last."""
    columns = [field for field in schema if field.name not in partition_keys]
    columns += [pa.field(key, pa.string()) for key in partition_keys]
    return pa.schema([_with_ids(field, field.name) for field in columns])


def field_id(name: str) -> int:
    """The id of a column or nested field, from its dotted name: the same in every file, without a stored list."""
    return int.from_bytes(sha1(name.encode()).digest()[:4], "big") % (_FIELD_IDS - 1) + 1


def widens_to_open(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether values of the one type are values of the other one in an open file."""
    as_open = open_type(narrow)
    return as_open is not None and unify_types(wide, as_open) == wide


def reasons_against(schema: pa.Schema, table: OpenTable) -> Iterator[str]:
    """Why the columns cannot be read by other engines as a scan reads them: every reason, a sentence each."""
    for field in schema:
        yield from _wrong_types(field, field.name)
        yield from _wrong_key(field, table)
    yield from _wrong_partition_columns(schema, table.partition_keys)
    names = set(schema.names)
    columns = [*schema, *(pa.field(key, pa.string()) for key in table.partition_keys if key not in names)]
    yield from _alike(columns, "")
    if table.for_delta:
        yield from _wrong_names(columns)
    yield from _equal_ids(columns)


# -- types


def _open_decimal(kind: pa.DataType) -> pa.DataType | None:
    if kind.precision > _DECIMAL_DIGITS_MAX or not 0 <= kind.scale <= kind.precision:
        return None
    return pa.decimal128(kind.precision, kind.scale)


def _open_nested(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_map(kind):
        key, item = open_type(kind.key_type), open_type(kind.item_type)
        return None if key is None or item is None or _is_null(key) or _is_null(item) else pa.map_(key, item)
    if pa.types.is_struct(kind):
        fields = [(field.name, open_type(field.type)) for field in kind]
        if not fields or any(each is None or _is_null(each) for _, each in fields):
            return None
        return pa.struct([pa.field(name, each) for name, each in fields])
    if pa.types.is_union(kind):
        return None
    item = open_type(kind.value_type)
    if item is None or _is_null(item):
        return None
    is_large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    return pa.large_list(pa.field("element", item)) if is_large else pa.list_(pa.field("element", item))


def _is_null(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind))


def _children(field: pa.Field, name: str) -> list[tuple[pa.Field, str]]:
    """Nested fields with their dotted names, which do not depend on how a writer calls the items of lists."""
    kind = field.type
    if pa.types.is_map(kind):
        return [(kind.key_field, f"{name}.key"), (kind.item_field, f"{name}.value")]
    if pa.types.is_struct(kind):
        return [(child, f"{name}.{child.name}") for child in kind]
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return [(kind.value_field, f"{name}.element")]
    return []


def _with_ids(field: pa.Field, name: str) -> pa.Field:
    kind = field.type
    children = [_with_ids(child, child_name) for child, child_name in _children(field, name)]
    if pa.types.is_map(kind):
        kind = pa.map_(*children)
    elif pa.types.is_struct(kind):
        kind = pa.struct(children)
    elif children:
        kind = pa.large_list(children[0]) if pa.types.is_large_list(kind) else pa.list_(children[0])
    return field.with_type(kind).with_metadata({_FIELD_ID: str(field_id(name)).encode()})


# -- reasons


def _wrong_types(field: pa.Field, name: str) -> Iterator[str]:
    field = field.with_type(value_type(field.type))
    children = _children(field, name)
    if open_type(field.type) is not None:
        return
    if children:
        yield from (reason for child, child_name in children for reason in _wrong_types(child, child_name))
        if all(open_type(child.type) is not None for child, _ in children):
            yield f"column {name!r} is {field.type}: give its items a type other than null, or leave it out"
    elif pa.types.is_decimal(field.type):
        yield (
            f"column {name!r} is {field.type}: other engines read decimals of up to {_DECIMAL_DIGITS_MAX} digits, of "
            "which none is before the first or after the last; write it as text"
        )
    elif pa.types.is_duration(field.type):
        yield f"column {name!r} is {field.type}, a type that other engines do not have: write it as an integer"
    else:
        yield f"column {name!r} is {field.type}, a type that other engines do not have: write it as text"


def _wrong_key(field: pa.Field, table: OpenTable) -> Iterator[str]:
    kind = value_type(field.type)
    if field.name in table.primary_keys and (kind == pa.uint64() or _is_null(kind)):
        yield (
            f"primary key column {field.name!r} is {kind}: other engines read it as another type, whose values have "
            "other key digests; write it as int64 or text"
        )
    as_open = open_type(kind)
    if field.name in table.sort_keys and as_open is not None and unify_types(as_open, kind) != as_open:
        yield (
            f"sort key column {field.name!r} is {kind}: other engines read it as {as_open}, which is not wider, so the "
            f"index would hold other values; write it as {as_open}"
        )


def _wrong_partition_columns(schema: pa.Schema, partition_keys: Sequence[str]) -> Iterator[str]:
    for field in schema:
        kind = value_type(field.type)
        if field.name in partition_keys and kind not in (pa.string(), pa.large_string(), pa.string_view()):
            yield (
                f"column {field.name!r} is {kind} and has the name of a partition key: published files have the "
                "partition's value there, as text; rename the column, or write it as text"
            )


def _alike(columns: Sequence[pa.Field], within: str) -> Iterator[str]:
    names = Counter(field.name.casefold() for field in columns)
    for folded, count in names.items():
        if count > 1:
            equal = [f"{within}{field.name}" for field in columns if field.name.casefold() == folded]
            yield f"columns {' and '.join(map(repr, equal))} differ in case alone: some engines take them for one"
    for field in columns:
        kind = value_type(field.type)
        if pa.types.is_struct(kind):
            yield from _alike(list(kind), f"{within}{field.name}.")


def _names(columns: Sequence[pa.Field]) -> Iterator[tuple[str, str]]:
    """The dotted name of every field, and its own name."""
    pending = [(field, field.name) for field in columns]
    while pending:
        field, name = pending.pop(0)
        yield name, field.name
        pending += _children(field.with_type(value_type(field.type)), name)


def _wrong_names(columns: Sequence[pa.Field]) -> Iterator[str]:
    for name, own in _names(columns):
        if _NOT_FOR_DELTA.intersection(own):
            yield f"Delta Lake does not take the column name {name!r}: rename it, without spaces and ,;{{}}()="


def _equal_ids(columns: Sequence[pa.Field]) -> Iterator[str]:
    known: dict[int, str] = {}
    for name, _ in _names(columns):
        other = known.setdefault(field_id(name), name)
        if other != name:
            yield f"columns {other!r} and {name!r} have the same field id {field_id(name)}: rename one of them"
