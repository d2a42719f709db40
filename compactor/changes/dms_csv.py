"""CSV files of AWS DMS, which have a header only with `AddColumnName`, and else the columns in the source's order."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from compactor.changes.change_batch import ROWS_SHOWN_MAX
from compactor.changes.conversion import converted
from compactor.changes.ops import DMS_COLUMN, DMS_DELETES, DMS_UPSERTS
from compactor.model.errors import Invalid
from compactor.tabular.whole_numbers import has_great_floats, type_of_texts

_NULL = "NULL"
"""The text that DMS writes for null, without quotes (`CsvNullValue`)."""

_WHERE = re.compile(r"^In CSV column #\d+: (Row #\d+: )?")

_OPERATIONS = (*DMS_UPSERTS, *DMS_DELETES)

_FIRST_BYTES = 1 << 20
"""Bytes in which the first row is looked for first."""

_BLOCK_BYTES_MAX = (1 << 31) - 1
"""Bytes that Arrow parses at a time, at most."""

_LARGER = 8
"""How many times as many bytes are taken for a row that is longer."""


@dataclass(frozen=True)
class DmsTexts:
    """The rows of a file of which a value is not of its column's type. As texts, or bytes where some are no text;
    `types`: of all columns."""

    rows: pa.Table
    types: Mapping[str, pa.DataType]

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)

    def take(self, numbers: object) -> Self:
        return replace(self, rows=self.rows.take(numbers))

    def as_written(self) -> list[dict[str, str | None]]:
        """Of each row its texts, by column."""
        return [
            {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in row.items()}
            for row in self.rows.to_pylist()
        ]

    def converted(self, source_name: str) -> pa.Table:
        """Raises `ChangesRefused` with the rows of values that are not of their column's type."""
        rows, numbers = self.rows, np.arange(self.num_rows)
        for at, name in enumerate(rows.column_names):
            convert = partial(_converted, name=name, kind=self.types[name])
            rows = rows.set_column(at, name, converted(rows.column(at), convert, numbers, source_name))
        return rows


@dataclass(frozen=True)
class _Columns:
    """names: of all columns; None: they are numbered, since there is no row; has_header: of their own names"""

    names: Sequence[str] | None
    has_header: bool


def read_dms_csv(
    body: bytes, schema: pa.Schema | None, source_name: str, without: Collection[str] = ()
) -> pa.Table | DmsTexts:
    """The rows of a file.

    Args:
        schema: of the table, its columns in the order of the source's
        without: columns of it that the source may lack

    Raises `Invalid` for a file that does not have these columns."""
    columns = _columns_of(body, [] if schema is None else list(schema.names), source_name, without)
    types = {DMS_COLUMN: pa.string(), **({} if schema is None else {each.name: each.type for each in schema})}
    try:
        return _typed(body, columns, types)
    except pa.ArrowInvalid as error:
        wrong = Invalid(f"{source_name} is no CSV of these columns: {error}")
        if columns.names is None or not types.keys() >= {*columns.names}:
            raise wrong from error
        return _texts(body, columns, types, wrong)


def _typed(body: bytes, columns: _Columns, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Raises what Arrow raises."""
    rows = _parsed(body, columns, types)
    great = [name for name in rows.column_names if name not in types and has_great_floats(rows.column(name))]
    if great:
        texts = _parsed(body, columns, dict.fromkeys(great, pa.string()), great)
        rows = _parsed(body, columns, {**types, **{name: type_of_texts([texts.column(name)]) for name in great}})
    texts = [each.name for each in rows.schema if _may_be_empty(each.type) and rows.column(each.name).null_count]
    if texts:
        whole = _parsed(body, columns, {name: rows.schema.field(name).type for name in texts}, texts, [_NULL])
        for name in texts:
            rows = rows.set_column(rows.column_names.index(name), name, whole.column(name))
    return rows


def _texts(body: bytes, columns: _Columns, types: Mapping[str, pa.DataType], wrong: Invalid) -> DmsTexts:
    """Raises `wrong` for rows that have not as many columns, with their numbers."""
    by_number: dict[int, pv.InvalidRow] = {}

    def skip(row: pv.InvalidRow) -> str:
        by_number[row.number] = row
        return "skip"

    try:
        rows = _parsed(body, columns, dict.fromkeys(types, pa.binary()), nulls=[_NULL], on_other_rows=skip)
    except pa.ArrowInvalid:
        raise wrong from None
    others = list(by_number.values())
    if others:
        numbers = ", ".join(f"{each.number - int(columns.has_header):,}" for each in others[:ROWS_SHOWN_MAX])
        more = f" and {len(others) - ROWS_SHOWN_MAX:,} more" if len(others) > ROWS_SHOWN_MAX else ""
        what = f"row {numbers}{more}: {others[0].actual_columns} columns, and not {others[0].expected_columns}"
        raise Invalid(f"{wrong}; {what}")
    for at, name in enumerate(rows.column_names):
        with suppress(pa.ArrowInvalid):
            rows = rows.set_column(at, name, rows.column(at).cast(pa.string()))
    return DmsTexts(rows, types)


def _converted(texts: pa.ChunkedArray, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """As the column of a file is read. Raises `Invalid` for a value that is not of this type."""
    if not len(texts):
        return pa.chunked_array([], kind)
    sink = pa.BufferOutputStream()
    try:
        if pa.types.is_string(kind):
            return texts.cast(kind)
        if not _may_be_empty(kind):
            texts = texts.cast(pa.string())
            texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
        pv.write_csv(pa.table({name: texts}), sink, pv.WriteOptions(include_header=False, quoting_style="all_valid"))
        rows = _read_csv(
            sink.getvalue(),
            pv.ReadOptions(column_names=[name]),
            pv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            pv.ConvertOptions(
                column_types={name: kind}, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        said = _WHERE.sub("", str(error))
        raise Invalid(f"column {name!r} is declared as {kind}, and cannot be read as that: {said}") from error
    return rows.column(0)


def _columns_of(body: bytes, names: Sequence[str], source_name: str, without: Collection[str]) -> _Columns:
    """`names`: of the table's schema. Raises `Invalid` if the file's columns cannot be told from its first line."""
    first = _first_row(body, source_name)
    if first is None:
        return _Columns(None, has_header=False)
    known = {name.casefold(): name for name in names}
    if first[0] == DMS_COLUMN or {each.casefold() for each in first} <= known.keys():
        return _Columns([known.get(each.casefold(), each) for each in first], has_header=True)
    if not names:
        raise Invalid(
            f"{source_name} does not begin with a column {DMS_COLUMN}, so its first line may be a header or a row: "
            "declare the table's schema, in the order of the source's columns"
        )
    left = [name for name in names if name not in without]
    with_operation = {len(left) + 1: [DMS_COLUMN, *left], len(names) + 1: [DMS_COLUMN, *names]}
    without_operation: Mapping[int, Sequence[str]] = {len(left): left, len(names): names}
    found: Sequence[str] | None = with_operation.get(len(first))
    if len(first) in without_operation and len(first) != len(names) + 1 and not _are_operations(body, first):
        found = without_operation[len(first)]
    if found is not None:
        return _Columns(found, has_header=False)
    if len(first) in without_operation:
        raise Invalid(
            f"{source_name} has {len(first)} columns, as many as the table's schema, and the first one holds "
            f"{', '.join(_OPERATIONS)} alone, as {DMS_COLUMN} does: name a column that the source has dropped in the "
            "feed's `without`, or set AddColumnName=true in DMS"
        )
    raise Invalid(
        f"{source_name} has {len(first)} columns and no header, and the table's schema has {len(names)}: declare "
        "the columns in the order of the source's, or set AddColumnName=true in DMS"
    )


def _are_operations(body: bytes, first: Sequence[str]) -> bool:
    """Whether the first column holds operations alone, and so may be `Op`, although a column is missing then."""
    if first[0] not in _OPERATIONS:
        return False
    names = [str(number) for number in range(len(first))]
    try:
        values = _parsed(body, _Columns(names, has_header=False), {"0": pa.string()}, names[:1], nulls=[]).column(0)
    except pa.ArrowInvalid:
        return False
    return pc.all(pc.is_in(values, pa.array(_OPERATIONS))).as_py() is not False


def _parsed(
    body: bytes,
    columns: _Columns,
    types: Mapping[str, pa.DataType],
    only: Sequence[str] | None = None,
    nulls: Sequence[str] = (_NULL, ""),
    on_other_rows: object = None,
) -> pa.Table:
    has_one = columns.names is not None and len(columns.names) == 1  # of which an empty line is a row
    return _read_csv(
        pa.py_buffer(body.lstrip(b"\r\n") if columns.has_header else body),
        pv.ReadOptions(
            column_names=columns.names, skip_rows=int(columns.has_header), use_threads=on_other_rows is None
        ),
        pv.ParseOptions(newlines_in_values=True, ignore_empty_lines=not has_one, invalid_row_handler=on_other_rows),
        pv.ConvertOptions(
            column_types=types,
            include_columns=only,
            null_values=nulls,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _may_be_empty(kind: pa.DataType) -> bool:
    """Types in which no value is empty text, and `NULL` alone is null."""
    return any(
        is_one(kind)
        for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _first_row(body: bytes, source_name: str) -> Sequence[str] | None:
    """The fields of the first row, as text; None: there is none."""
    size_bytes = min(len(body), _FIRST_BYTES)
    while True:
        start = body[:size_bytes]
        if not start.strip():
            return None
        try:
            first = pv.read_csv(
                # Arrow finds the columns in rows of the first block that have an end.
                pa.py_buffer(start + b"\n" if size_bytes == len(body) else start[: start.rfind(b"\n") + 1]),
                pv.ReadOptions(autogenerate_column_names=True, block_size=size_bytes + 1),
                pv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip"),
            ).slice(0, 1)
            break
        except pa.ArrowInvalid as error:
            if size_bytes == len(body) or size_bytes * _LARGER > _BLOCK_BYTES_MAX:
                raise Invalid(f"{source_name} is no CSV: {error}") from error
            size_bytes = min(len(body), size_bytes * _LARGER)
    values = [first.column(at)[0].as_py() for at in range(first.num_columns)]
    return [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in values]


def _read_csv(
    text: pa.Buffer, read_options: pv.ReadOptions, parse_options: pv.ParseOptions, convert_options: pv.ConvertOptions
) -> pa.Table:
    """Rows of any length. Arrow needs the end of a row in the block after the one in which it begins: for longer rows
    the blocks are made larger, and threads have fewer of them."""
    while True:
        try:
            return pv.read_csv(text, read_options, parse_options, convert_options)
        except pa.ArrowInvalid as error:
            larger = min(read_options.block_size * _LARGER, _BLOCK_BYTES_MAX)
            if "straddling" not in str(error) or larger == read_options.block_size:
                raise
            read_options.block_size = larger
