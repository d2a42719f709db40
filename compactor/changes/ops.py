"""Feeds of flat rows: a column says what each row does, and the others are the row. So are the files of AWS DMS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from compactor.catalog.feed import Feed, FeedFormat
from compactor.changes.change_batch import ChangeBatch, Refusals, mask_of
from compactor.model.errors import Invalid
from compactor.tabular.whole_numbers import has_great_floats, type_of_texts

OPERATION_COLUMN = "op"
DMS_COLUMN = "Op"
DMS_NULL = "NULL"
"""What DMS writes for null in CSV, without quotes (`CsvNullValue`)."""


def changes_of_rows(rows: pa.Table, feed: Feed, source_name: str) -> ChangeBatch:
    """Raises `Invalid`, with the rows, for values of the column that the feed does not name."""
    column = feed.column or OPERATION_COLUMN
    if column not in rows.column_names:
        raise Invalid(
            f"{source_name} has no column {column!r}, which says what each row does: name it in the feed, as in "
            '{"format": "ops", "column": "operation"}'
        )
    said = rows.column(column).cast(pa.string())
    try:
        words = pc.utf8_lower(said)
    except pa.ArrowInvalid as error:
        raise Invalid(f"{source_name}: column {column!r} holds text that is not UTF-8: {error}") from error
    upserts, deletes, skips = (
        mask_of(pc.is_in(words, pa.array([each.lower() for each in given], pa.string())))
        for given in (feed.upserts, feed.deletes, feed.skips)
    )
    unknown = ~(upserts | deletes | skips)
    refused = Refusals(source_name)
    for word in pc.unique(said.filter(pa.array(unknown))).to_pylist():
        of_word = unknown & (mask_of(pc.equal(said, word)) if word is not None else mask_of(pc.is_null(said)))
        refused.add(of_word, f"{column} is {word!r}, which is neither an upsert nor a delete")
    refused.raise_if_any()
    places = np.flatnonzero(~skips)
    kept = rows.drop_columns([column])
    kept = kept if len(places) == rows.num_rows else kept.take(places)
    return ChangeBatch(source_name, kept, deletes[places], places)


def changes_of_dms(rows: pa.Table, source_name: str) -> ChangeBatch:
    """Rows of a file of DMS. Without the column `Op` it is of the full load: every row is an upsert."""
    named = next((name for name in rows.column_names if name.casefold() == DMS_COLUMN.casefold()), None)
    if named is None:
        return ChangeBatch(source_name, rows, np.zeros(rows.num_rows, np.bool_), np.arange(rows.num_rows))
    return changes_of_rows(
        rows, Feed(format=FeedFormat.OPS, column=named, upserts=("I", "U"), deletes=("D",), skips=()), source_name
    )


def read_dms_csv(body: bytes, schema: pa.Schema | None, source_name: str) -> pa.Table:
    """The rows of a CSV file of DMS, which has a header only with `AddColumnName`. `schema`: of the table, its columns
    in the order of the source's. Raises `Invalid`."""
    with pa.input_stream(pa.py_buffer(body)) as stream:
        first = _first_row(stream, source_name)
    names = [] if schema is None else list(schema.names)
    known = {name.casefold(): name for name in names}
    has_header = first is not None and (first[0] == DMS_COLUMN or {each.casefold() for each in first} <= known.keys())
    if first is None:
        wanted = None
    elif has_header:
        wanted = [known.get(each.casefold(), each) for each in first]
    elif not names:
        raise Invalid(
            f"{source_name} does not begin with a column {DMS_COLUMN}, so its first line may be a header or a row: "
            "declare the table's schema, in the order of the source's columns"
        )
    elif len(first) in (len(names), len(names) + 1):
        wanted = names if len(first) == len(names) else [DMS_COLUMN, *names]
    else:
        raise Invalid(
            f"{source_name} has {len(first)} columns and no header, and the table's schema has {len(names)}: declare "
            "the columns in the order of the source's, or set AddColumnName=true in DMS"
        )
    types = {DMS_COLUMN: pa.string(), **({} if schema is None else {each.name: each.type for each in schema})}
    try:
        rows = _parsed(body, wanted, has_header, types)
        great = [name for name in rows.column_names if name not in types and has_great_floats(rows.column(name))]
        if great:
            texts = _parsed(body, wanted, has_header, dict.fromkeys(great, pa.string()), great)
            rows = _parsed(
                body, wanted, has_header, types | {name: type_of_texts([texts.column(name)]) for name in great}
            )
        texts = [
            each.name for each in rows.schema if _is_text_or_bytes(each.type) and rows.column(each.name).null_count
        ]
        if texts:
            whole = _parsed(
                body, wanted, has_header, {name: rows.schema.field(name).type for name in texts}, texts, [DMS_NULL]
            )
            for name in texts:
                rows = rows.set_column(rows.column_names.index(name), name, whole.column(name))
        return rows
    except pa.ArrowInvalid as error:
        raise Invalid(f"{source_name} is no CSV of these columns: {error}") from error


def _parsed(
    body: bytes,
    names: Sequence[str] | None,
    has_header: bool,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str] | None = None,
    nulls: Sequence[str] = (DMS_NULL, ""),
) -> pa.Table:
    return pv.read_csv(
        pa.py_buffer(body),
        read_options=pv.ReadOptions(column_names=names, skip_rows=int(has_header)),
        parse_options=pv.ParseOptions(newlines_in_values=True),
        convert_options=pv.ConvertOptions(
            column_types=types,
            include_columns=columns,
            null_values=nulls,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    """Types in which no value is empty text, and `NULL` alone is null."""
    return any(
        is_one(kind)
        for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _first_row(stream: pa.NativeFile, source_name: str) -> Sequence[str] | None:
    """The fields of the first row, as text; None: there is none."""
    block = stream.read(1 << 20)
    if not block.strip():
        return None
    try:
        first = pv.read_csv(
            pa.py_buffer(block[: block.rfind(b"\n") + 1] or block),
            read_options=pv.ReadOptions(autogenerate_column_names=True),
            parse_options=pv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip"),
        ).slice(0, 1)
    except pa.ArrowInvalid as error:
        raise Invalid(f"{source_name} is no CSV: {error}") from error
    return [str(first.column(at)[0].as_py()) for at in range(first.num_columns)]
