"""One feed of many tables: each change goes to its own."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.changes.change_batch import Int64s, Refusals, mask_of
from compactor.changes.conversion import refuse_wrong_text
from compactor.changes.json_lines import lines_of, read_events
from compactor.changes.sources import FeedSource
from compactor.model.errors import Invalid

_PAYLOAD, _SOURCE = "payload", "source"


def parse_paths(table_of: str | Sequence[str]) -> list[str]:
    """The fields that name a change's table: of `source.schema.source.table` they are `source.schema` and
    `source.table`; of `database.table`, `database` and `table`. Raises `Invalid` without one."""
    if not isinstance(table_of, str):
        paths = [str(each) for each in table_of]
    else:
        paths = []
        words = iter(table_of.split("."))
        for word in words:
            inner = next(words, None) if word == _SOURCE else None
            paths.append(word if inner is None else f"{word}.{inner}")
    if not paths or not all(paths):
        raise Invalid("table_of names no field: write, for example, source.schema.source.table, or database.table")
    return paths


def parts_by_table(source: FeedSource, paths: Sequence[str], tables: Mapping[str, str | None]) -> dict[str, FeedSource]:
    """By table id, what the source has of it, in its order.

    Args:
        tables: ids of tables by the names that the feed has for them, such as `shop.orders`; None: what is left out

    Raises `Invalid`, with the rows, for changes of a table that is not among them."""
    lines: list[bytes] = []
    content = source.rows_or_text()
    if isinstance(content, pa.Table):
        names = _names_of_rows(content, paths, source.source_name)
    else:
        lines = lines_of(content)
        names = _names_of_events(lines, paths, source.source_name)
    refuse_wrong_text(pa.table({".".join(paths): names}), source.source_name)
    refused = Refusals(source.source_name)
    found: dict[str, FeedSource] = {}
    by_table: dict[str, list[str]] = {}
    for name in pc.unique(names).to_pylist():
        if name is not None and name not in tables:
            refused.add(mask_of(pc.equal(names, name)), f"it is of {name}, which is not among tables")
        elif name is not None and (table_id := tables[name]) is not None:
            by_table.setdefault(table_id, []).append(name)
    refused.raise_if_any()
    for table_id, known_as in by_table.items():
        of_table = mask_of(pc.is_in(names, pa.array(known_as)))
        if isinstance(content, pa.Table):
            what = f"the rows of {', '.join(known_as)} in {source.source_name}"
            rows = content.filter(pa.array(of_table)).drop_columns([each for each in paths if "." not in each])
            found[table_id] = FeedSource(what, rows)
        else:
            what = f"{source.source_name} (changes of {', '.join(known_as)})"
            # Lines of others are left empty, so that errors count as the file does.
            of_it = (line if is_of_it else b"" for line, is_of_it in zip(lines, of_table.tolist(), strict=True))
            found[table_id] = FeedSource(what, b"\n".join(of_it))
    return found


def _names_of_rows(rows: pa.Table, paths: Sequence[str], source_name: str) -> pa.ChunkedArray:
    """text (rows,)."""
    if rows.num_rows == 0:
        return pa.chunked_array([[]], pa.string())
    missing = [path for path in paths if path not in rows.column_names]
    if missing:
        raise Invalid(f"{source_name} has no column {missing[0]!r}, which says which table a change is of")
    return _joined([rows.column(path).cast(pa.string()) for path in paths], np.arange(rows.num_rows), source_name)


def _names_of_events(lines: Sequence[bytes], paths: Sequence[str], source_name: str) -> pa.ChunkedArray:
    """text (lines,): null of a line without an event."""
    numbers = np.array([at for at, line in enumerate(lines) if line], np.int64)
    if len(numbers) == 0:
        return pa.chunked_array([pa.nulls(len(lines), pa.string())])
    named = _named_fields(paths)
    explicit = pa.schema([*named, pa.field(_PAYLOAD, pa.struct(named))])
    events = read_events([line for line in lines if line], numbers, explicit, source_name, only_these=True)
    columns = []
    for path in paths:
        plain = _field(events, path.split("."))
        columns.append(pc.coalesce(plain, _field(events, [_PAYLOAD, *path.split(".")])))
    joined = _joined(columns, numbers, source_name)
    at = np.full(len(lines), -1, np.int64)
    at[numbers] = np.arange(len(numbers))
    return joined.take(pa.array(at, mask=at < 0))


def _named_fields(paths: Sequence[str]) -> list[pa.Field]:
    plain = [pa.field(path, pa.string()) for path in paths if "." not in path]
    of_source = [pa.field(path.split(".", 1)[1], pa.string()) for path in paths if "." in path]
    return [*plain, pa.field(_SOURCE, pa.struct(of_source))] if of_source else plain


def _field(events: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    values = events.column(names[0])
    for name in names[1:]:
        values = pc.struct_field(values, name)
    return values


def _joined(columns: Sequence[pa.ChunkedArray], numbers: Int64s, source_name: str) -> pa.ChunkedArray:
    refused = Refusals(source_name)
    unnamed = np.zeros(len(numbers), np.bool_)
    for column in columns:
        unnamed |= mask_of(pc.is_null(column))
    refused.add(numbers[unnamed].tolist(), "it does not say which table it is of")
    refused.raise_if_any()
    return pc.binary_join_element_wise(*columns, pa.scalar("."))
