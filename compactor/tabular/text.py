"""CSV, TSV and JSON lines: text, plain or gzipped, whose types are declared by the caller or inferred from all rows.

An inferred type does not depend on blocks: it is the first of PyArrow's inference order that fits every value of the
column, not only those of the first block; but whole numbers that do not fit int64 are no floats (`whole_numbers`). In
CSV an empty field is null and `""` is empty text; a header row is required.
"""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa
from pyarrow import csv
from pyarrow import json as arrow_json

from compactor.model.arrow_types import decoded_type
from compactor.model.errors import Invalid
from compactor.model.files import RowGroupSize
from compactor.schemas.cast import cast_column
from compactor.schemas.unify import refuse_repeated_columns, unify_types
from compactor.storage.ranges import Span
from compactor.tabular.formats import FileMeasure, FileOutline, Source, wanted_columns
from compactor.tabular.json_depth import refuse_deep_lines
from compactor.tabular.whole_numbers import WHOLE, has_great_floats, type_of_texts, types_in_json

BLOCK_BYTES = 8 * 1024 * 1024
"""Bytes parsed at a time, which is also the longest row that can be read."""

TEXT_PIECE_BYTES = 64 * 1024 * 1024
"""Bytes of a piece of plain text that is read by itself, at most."""

_GZIP_MAGIC = b"\x1f\x8b"
_MARKS = (_GZIP_MAGIC, b"\xef\xbb\xbf")
"""Bytes that have a meaning at the beginning of a text: gzip's, and UTF-8's byte order mark."""


@contextmanager
def open_text(source: Source, span: Span | None = None) -> Iterator[pa.NativeFile]:
    """The text, uncompressed: gzip is recognised by its first bytes, not by the file's name. `span`: the bytes of plain
    text; None: all."""
    with source.open() as opened:
        if span is not None:
            yield opened.get_stream(span.start, span.end - span.start)
            return
        magic = opened.read(len(_GZIP_MAGIC))
        opened.seek(0)
        if magic != _GZIP_MAGIC:
            yield opened
            return
        with pa.CompressedInputStream(opened, "gzip") as text:
            yield text


def _beginning(source: Source) -> Source:
    """The first two blocks of a text, uncompressed: the first one's last row ends in the second one. Read by itself,
    because PyArrow's parser reads many blocks ahead."""
    with open_text(source) as text:
        return replace(source, body=text.read_buffer(2 * BLOCK_BYTES))


# ------------------------------------------------------------------------------------------------ CSV and TSV

_CSV_INFERENCE_ORDER = (
    pa.null(),
    pa.int64(),
    pa.bool_(),
    pa.float64(),
    pa.date32(),
    pa.time32("s"),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.timestamp("s", "UTC"),
    pa.timestamp("ns", "UTC"),
    pa.string(),
    pa.binary(),
)
_CSV_MISFIT = re.compile(r"In CSV column #(\d+): .*conversion error")
_QUOTE = b'"'


class Csv:
    """Delimited text with a header row. See `TabularFormat`."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema:
        return self.measure(source, schema).schema

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        header = self._header(source)
        wanted = wanted_columns(source, header, columns)
        declared = _declared(header, schema)
        # Without any requested column the parser would return all of them.
        options = _convert_options(self._parsed(source, header, declared, wanted), wanted or header.names[:1])
        with open_text(source) as text:
            table = csv.read_csv(
                text, read_options=_csv_read(), parse_options=self._parse_options(header), convert_options=options
            )
        return _as_declared(table.select(wanted), declared)

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None, span: Span | None = None
    ) -> Iterator[pa.RecordBatch]:
        """`span`: of a piece; None: all rows."""
        header = self._header(source)
        wanted = wanted_columns(source, header, columns)
        declared = _declared(header, schema)
        options = _convert_options(self._parsed(source, header, declared, wanted), wanted or header.names[:1])
        with open_text(source, span) as text:
            for batch in self._parsed_batches(text, header, options, begins_inside=span is not None and span.start > 0):
                yield from _as_declared(pa.Table.from_batches([batch]).select(wanted), declared).to_batches()

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        header = self._header(source)
        declared = _declared(header, schema)
        kinds, pieces = self._infer(source, header, declared)
        fields = [(name, declared.get(name, arrow_type)) for name, arrow_type in zip(header.names, kinds, strict=True)]
        return _measured(source, pieces, pa.schema(fields))

    def outline(self, source: Source, schema: pa.Schema | None) -> FileOutline:
        start = _beginning(source)
        header = self._header(start)
        declared = _declared(header, schema)
        # A column of one block may not fit its declared type: the session reports that after reading the whole file.
        inferred, _ = self._infer(start, header, {}, blocks_max=1)
        kinds = {name: declared.get(name, kind) for name, kind in zip(header.names, inferred, strict=True)}
        whole = len(declared) == len(header) or start.open().size() <= BLOCK_BYTES
        return FileOutline(pa.schema(list(kinds.items())), whole)

    def _header(self, source: Source) -> pa.Schema:
        """The column names, with the types of the first block."""
        parse_options = csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        options = _convert_options({}, None)
        with (
            open_text(source) as text,
            csv.open_csv(
                text, read_options=_csv_read(), parse_options=parse_options, convert_options=options
            ) as reader,
        ):
            refuse_repeated_columns(source.file.uri, reader.schema)
            return reader.schema

    def _parse_options(self, header: pa.Schema) -> csv.ParseOptions:
        """In a file of one column an empty line is a null; otherwise it is not a row."""
        several = len(header.names) > 1
        return csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True, ignore_empty_lines=several)

    def _parsed_batches(
        self, text: pa.NativeFile, header: pa.Schema, options: csv.ConvertOptions, *, begins_inside: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """`begins_inside`: the text is a piece without the header."""
        read_options = _csv_read(header.names if begins_inside else None)
        with csv.open_csv(
            text, read_options=read_options, parse_options=self._parse_options(header), convert_options=options
        ) as reader:
            yield from reader

    def _parsed(
        self, source: Source, header: pa.Schema, declared: Mapping[str, pa.DataType], wanted: Sequence[str]
    ) -> dict[str, pa.DataType]:
        """The types to parse these columns as; they are inferred if not all are declared."""
        if all(name in declared for name in wanted):
            return {name: _csv_type(arrow_type) for name, arrow_type in declared.items()}
        return dict(zip(header.names, self._infer(source, header, declared)[0], strict=True))

    def _infer(
        self, source: Source, first: pa.Schema, declared: Mapping[str, pa.DataType], blocks_max: int | None = None
    ) -> tuple[list[pa.DataType], list[RowGroupSize]]:
        """The type of each column as parsed, and the pieces; only of the first blocks, if a number of them is given.
        If a value does not fit a column's type, the next type is tried.

        `first` has the types to begin with. It takes one pass over the file if the types of the first block fit, at
        most one more for each column and type, and one more if floats may be whole numbers.
        """
        kinds = [_csv_type(declared.get(field.name, field.type)) for field in first]
        while True:
            options = _convert_options(dict(zip(first.names, kinds, strict=True)), None)
            pieces, great = list[RowGroupSize](), set[str]()
            try:
                for span, text in _pieces(source, first.names):
                    rows = 0
                    batches = self._parsed_batches(text, first, options, begins_inside=span.start > 0)
                    for batch in islice(batches, blocks_max):
                        rows += batch.num_rows
                        undeclared = (name for name in first.names if name not in declared and name not in great)
                        great |= {name for name in undeclared if has_great_floats(batch.column(name))}
                    pieces.append(RowGroupSize(rows=rows, size_bytes=span.length))
                    if blocks_max is not None:
                        break  # the first blocks are in the first piece
                for name in great:
                    kinds[first.names.index(name)] = self._type_by_texts(source, first, name, blocks_max)
                return kinds, pieces
            except pa.ArrowInvalid as error:
                misfit = _CSV_MISFIT.search(str(error))
                position = int(misfit[1]) if misfit is not None else -1
                if misfit is None or first.names[position] in declared or kinds[position] == pa.binary():
                    raise
                kinds[position] = _CSV_INFERENCE_ORDER[_CSV_INFERENCE_ORDER.index(kinds[position]) + 1]

    def _type_by_texts(self, source: Source, first: pa.Schema, name: str, blocks_max: int | None) -> pa.DataType:
        options = _convert_options({name: pa.string()}, [name])
        with open_text(source) as text:
            batches = islice(self._parsed_batches(text, first, options), blocks_max)
            return type_of_texts(batch.column(0) for batch in batches)


def _pieces(source: Source, names: Sequence[str]) -> Iterator[tuple[Span, pa.NativeFile]]:
    """The text, opened, in pieces of whole rows, each with its bytes in the file. Below a header of one line a row of
    plain text ends at each end of line as long as there are no quotes, so what follows the first quote is one piece."""
    is_one_line = not any("\n" in name for name in names)
    with source.open() as opened:
        start, end = 0, int(opened.size())
        while is_one_line and end - start > TEXT_PIECE_BYTES:
            text = opened.read_at(TEXT_PIECE_BYTES, start)
            length = text.rfind(b"\n") + 1
            rows_start = text.find(b"\n") + 1 if start == 0 else 0
            is_marked = text.startswith(_GZIP_MAGIC if start == 0 else _MARKS)
            if length == 0 or is_marked or text.find(_QUOTE, rows_start) >= 0:
                break
            yield Span(start, start + length), pa.BufferReader(pa.py_buffer(text).slice(0, length))
            start += length
        if start:
            yield Span(start, end), opened.get_stream(start, end - start)
    if not start:
        with open_text(source) as whole:
            yield Span(0, end), whole


def _fits_one_block(source: Source) -> bool:
    """Whether the file has one block only; for gzipped text this is not known."""
    return not _is_gzip(source) and _size_bytes(source) <= BLOCK_BYTES


def _is_gzip(source: Source) -> bool:
    with source.open() as opened:
        return bool(opened.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC)


def _csv_read(names: Sequence[str] | None = None) -> csv.ReadOptions:
    """`names`: of the columns of text without a header."""
    return csv.ReadOptions(block_size=BLOCK_BYTES, column_names=names)


def _convert_options(parsed: Mapping[str, pa.DataType], columns: Sequence[str] | None) -> csv.ConvertOptions:
    return csv.ConvertOptions(
        column_types=dict(parsed),
        include_columns=None if columns is None else list(columns),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _csv_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type to parse as, if PyArrow's CSV parser does not support `arrow_type`."""
    arrow_type = decoded_type(arrow_type)
    if pa.types.is_float16(arrow_type):
        return pa.float32()
    if arrow_type == pa.string_view() or (pa.types.is_decimal(arrow_type) and not pa.types.is_decimal128(arrow_type)):
        return pa.string()
    return arrow_type


def _declared(present: pa.Schema, schema: pa.Schema | None) -> dict[str, pa.DataType]:
    """The declared types of the columns that the file has."""
    if schema is None:
        return {}
    names = set(present.names)
    return {field.name: field.type for field in schema if field.name in names}


def _as_declared(table: pa.Table, declared: Mapping[str, pa.DataType]) -> pa.Table:
    for position, name in enumerate(table.schema.names):
        if name in declared and table.column(position).type != declared[name]:
            table = table.set_column(position, name, cast_column(table.column(position), declared[name]))
    return table


def _measured(source: Source, pieces: Sequence[RowGroupSize], schema: pa.Schema) -> FileMeasure:
    """Gzipped text, and text of one piece, has no pieces that can be read by themselves."""
    are_apart = len(pieces) > 1 and not _is_gzip(source)
    rows = sum(piece.rows for piece in pieces)
    return FileMeasure(rows, _size_bytes(source), schema, row_groups=tuple(pieces) if are_apart else ())


def _size_bytes(source: Source) -> int:
    with source.open() as opened:
        return int(opened.size())


# ------------------------------------------------------------------------------------------------- JSON lines


class JsonLines:
    """One JSON object per line. See `TabularFormat`; every declared column is returned, null if no line has it."""

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema:
        return self.measure(source, schema).schema

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        found = _infer_json(source, schema)
        inferred = found.schema
        wanted = wanted_columns(source, inferred, columns)
        needed = _needed(inferred, wanted)
        is_parsed = found.only_block is not None and found.only_block.schema.equals(needed)
        tables = [found.only_block] if is_parsed else [needed.empty_table(), *_json_tables(source, needed)]
        # Without columns, tables would lose their row count when they are concatenated.
        return _as_declared(pa.concat_tables(tables).select(wanted), _types(_declared_and_found(schema, inferred)))

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None, span: Span | None = None
    ) -> Iterator[pa.RecordBatch]:
        """`span`: of a piece, which has the declared columns only; None: all rows."""
        inferred = _infer_json(source, schema).schema if span is None else _parsed_as(schema)
        wanted, declared = wanted_columns(source, inferred, columns), _types(_declared_and_found(schema, inferred))
        for table in _json_tables(source, _needed(inferred, wanted), span):
            for batch in _as_declared(table, declared).to_batches():
                yield batch.select(wanted)

    def outline(self, source: Source, schema: pa.Schema | None) -> FileOutline:
        """The outline of the first block. Later lines may have further columns."""
        found = _infer_json(source, schema, blocks_max=1)
        return FileOutline(_declared_and_found(schema, found.schema), _fits_one_block(source))

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        found = _infer_json(source, schema)
        measured = _measured(source, found.pieces, _declared_and_found(schema, found.schema))
        return replace(measured, unnamed=found.unnamed if measured.rows else frozenset())


def _types(schema: pa.Schema | None) -> dict[str, pa.DataType]:
    return {} if schema is None else {field.name: field.type for field in schema}


@dataclass(frozen=True)
class _InferredJson:
    """The schema that fits every line, and the pieces of whole lines.

    Attributes:
        only_block: the rows of text that is one block, as they were parsed to infer the schema
        unnamed: declared columns without a value, which the first block does not name"""

    schema: pa.Schema
    pieces: Sequence[RowGroupSize]
    only_block: pa.Table | None
    unnamed: frozenset[str]


def _infer_json(source: Source, schema: pa.Schema | None, blocks_max: int | None = None) -> _InferredJson:
    """Of the whole text, or only of the first `blocks_max` blocks, if given."""
    parsed = _parsed_as(schema)
    kinds = dict(zip(parsed.names, parsed.types, strict=True))
    declared = frozenset(parsed.names)
    only_block: pa.Table | None = None
    unnamed: Sequence[str] = parsed.names
    pieces: list[RowGroupSize] = []
    for number, (size_bytes, lines) in enumerate(islice(_blocks_of_lines(source), blocks_max)):
        if number == 0 and lines.lstrip()[:1] == b"[":
            raise Invalid(
                f"{source.file.uri} cannot be read as json: it is an array; write an object a line, "
                "as `jq -c '.[]'` does"
            )
        table = arrow_json.read_json(
            pa.BufferReader(lines),
            read_options=_json_read_options(lines),
            parse_options=arrow_json.ParseOptions(explicit_schema=parsed, unexpected_field_behavior="infer"),
        )
        if not pieces or pieces[-1].size_bytes + size_bytes > TEXT_PIECE_BYTES:
            pieces.append(RowGroupSize(rows=0, size_bytes=0))
        last = pieces.pop()
        pieces.append(RowGroupSize(rows=last.rows + table.num_rows, size_bytes=last.size_bytes + size_bytes))
        only_block = table if number == 0 else None
        unnamed = without_value(table, unnamed)
        if number == 0:
            unnamed = [name for name in unnamed if not is_named(name, lines)]
        found = dict(zip(table.schema.names, table.schema.types, strict=True))
        great = [name for name in found if name not in declared and has_great_floats(table.column(name))]
        found |= types_in_json(source.file.uri, lines, {name: found[name] for name in great}) if great else {}
        for name, kind in found.items():
            before = kinds.get(name, pa.null())
            after = promote_json(before, kind)
            if after is None:
                raise Invalid(f"{source.file.uri} has values of {before} and of {kind} in column {name!r}")
            kinds[name] = after
    return _InferredJson(pa.schema(list(kinds.items())), pieces, only_block, frozenset(unnamed))


def without_value(rows: pa.Table, columns: Iterable[str]) -> list[str]:
    """Those of the columns that are null in every row."""
    present = set(rows.column_names)
    return [name for name in columns if name in present and rows.column(name).null_count == rows.num_rows > 0]


def is_named(name: str, lines: bytes) -> bool:
    """Whether JSON lines have a member of this name, unless it has other escapes: so ask of one without a value."""
    return any(json.dumps(name, ensure_ascii=escaped).encode() in lines for escaped in (False, True))


def _parsed_as(schema: pa.Schema | None) -> pa.Schema:
    """The declared columns as they are parsed."""
    return pa.schema([(name, _json_type(name, arrow_type)) for name, arrow_type in _types(schema).items()])


def _declared_and_found(schema: pa.Schema | None, found: pa.Schema) -> pa.Schema:
    """The columns as declared, with what else the lines have: further columns, and further members of structs."""
    declared = _types(schema)
    fields = [field.with_type(_with_found(declared.get(field.name, field.type), field.type)) for field in found]
    return pa.schema(fields)


def _with_found(declared: pa.DataType, found: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(declared) and pa.types.is_struct(found):
        names = {field.name for field in declared}
        known = [field.with_type(_with_found(field.type, found.field(field.name).type)) for field in declared]
        return pa.struct([*known, *(field for field in found if field.name not in names)])
    if hasattr(declared, "value_type") and pa.types.is_list(found):
        item = _with_found(declared.value_type, found.value_type)
        return declared if item == declared.value_type else pa.list_(item)
    return declared


def _needed(inferred: pa.Schema, wanted: Sequence[str]) -> pa.Schema:
    """The columns to parse. Without any the parser would lose the number of lines."""
    return pa.schema([inferred.field(name) for name in wanted] or [pa.field("", pa.null())])


def _json_tables(source: Source, needed: pa.Schema, span: Span | None = None) -> Iterator[pa.Table]:
    options = arrow_json.ParseOptions(explicit_schema=needed, unexpected_field_behavior="ignore")
    for _, lines in _blocks_of_lines(source, span):
        yield arrow_json.read_json(
            pa.BufferReader(lines), read_options=_json_read_options(lines), parse_options=options
        )


def _json_read_options(lines: bytes) -> arrow_json.ReadOptions:
    return arrow_json.ReadOptions(block_size=len(lines) + 1, use_threads=False)


def _blocks_of_lines(source: Source, span: Span | None = None) -> Iterator[tuple[int, bytes]]:
    """The text in blocks of whole lines; a JSON value contains no newline. Blank ones are left out: each block has its
    bytes in the text, with those of the blank ones before it."""
    rest, size_bytes = io.BytesIO(), 0
    with open_text(source, span) as text:
        while piece := text.read(BLOCK_BYTES):
            end = piece.rfind(b"\n") + 1
            if end == 0:
                rest.write(piece)
                continue
            lines = rest.getvalue() + piece[:end]
            rest = io.BytesIO()
            rest.write(piece[end:])
            size_bytes += len(lines)
            if lines.strip():
                refuse_deep_lines(source.file.uri, lines)
                yield size_bytes, lines
                size_bytes = 0
    if rest.getvalue().strip():
        refuse_deep_lines(source.file.uri, rest.getvalue())
        yield size_bytes + len(rest.getvalue()), rest.getvalue()


def promote_json(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Promotes as PyArrow's parser does within a block: whole numbers to others, dates to text. None: it does not."""
    if first != second and {first, second} <= {pa.int64(), WHOLE, pa.float64()}:
        return pa.float64() if pa.float64() in (first, second) else WHOLE
    if pa.string() in (first, second) and any(pa.types.is_timestamp(arrow_type) for arrow_type in (first, second)):
        return pa.string()
    if pa.types.is_list(first) and pa.types.is_list(second):
        item = promote_json(first.value_type, second.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        members = {field.name: field.type for field in first}
        for field in second:
            arrow_type = promote_json(members.get(field.name, pa.null()), field.type)
            if arrow_type is None:
                return None
            members[field.name] = arrow_type
        return pa.struct(list(members.items()))
    return unify_types(first, second)


def _json_type(name: str, arrow_type: pa.DataType) -> pa.DataType:
    """The type to parse as, if PyArrow's JSON parser does not support `arrow_type`. `name` is for the error."""
    arrow_type = decoded_type(arrow_type)
    if pa.types.is_struct(arrow_type):
        return pa.struct([(field.name, _json_type(name, field.type)) for field in arrow_type])
    if pa.types.is_nested(arrow_type) and hasattr(arrow_type, "value_type"):
        return pa.list_(_json_type(name, arrow_type.value_type))
    if (
        pa.types.is_nested(arrow_type)
        or isinstance(arrow_type, pa.BaseExtensionType)
        or pa.types.is_fixed_size_binary(arrow_type)
    ):
        raise Invalid(f"column {name!r} is declared as {arrow_type}, which JSON lines cannot store")
    for is_one, parsed in _JSON_PARSES:
        if is_one(arrow_type):
            return parsed
    return arrow_type


_JSON_PARSES: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_date, pa.string()),
    (pa.types.is_time, pa.string()),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_duration, pa.int64()),
)
