"""How deep columns may be nested: what every format can read back, in every file that a compaction writes."""

from collections.abc import Iterator

import pyarrow as pa

from compactor.model.errors import refuse_if

NESTING_MAX = 40
"""Most lists, maps and structs inside each other, a map being a list of structs. Arrow IPC reads 63 levels, Parquet 98,
of which a list takes two."""


def refuse_deep_nesting(name: str, schema: pa.Schema) -> None:
    """Raises `Invalid`, with every reason, if columns of `name` are nested deeper than NESTING_MAX."""
    refuse_if(deep_columns(name, schema))


def deep_columns(name: str, schema: pa.Schema) -> list[str]:
    """A reason for each column that is nested deeper than NESTING_MAX."""
    return [
        f"column {field.name!r} of {name} is nested deeper than {NESTING_MAX} levels of lists, maps (two levels each) "
        "and structs: store the value as text, or flatten it"
        for field in schema
        if _is_deep(field.type)
    ]


def _is_deep(kind: pa.DataType) -> bool:
    """Not by recursion: a type may be deeper than Python's stack."""
    found = [(kind, 0)]
    while found:
        each, depth = found.pop()
        if depth > NESTING_MAX:
            return True
        found += ((inner, depth + 1) for inner in _inner_types(each))
    return False


def _inner_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    if isinstance(kind, pa.BaseExtensionType):
        yield kind.storage_type
    elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        yield kind.value_type
    else:
        yield from (kind.field(number).type for number in range(kind.num_fields))
