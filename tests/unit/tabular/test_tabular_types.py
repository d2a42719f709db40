"""Every Arrow type through every format that can hold it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from compactor.model.errors import Invalid
from compactor.model.files import DataFile
from compactor.model.names import ContentType
from compactor.reading.pieces import ReadColumns, ScanFile, plan_pieces
from compactor.schemas.cast import cast_array, plain_table
from compactor.storage.location import StoreLocation, parse_location
from compactor.tabular import (
    TabularFile,
    TabularWriter,
    measure,
    read_batches,
    read_schema,
    read_table,
)

D = Decimal
DAYS = [date(2020, 1, 1), None, date(1960, 2, 29)]
NANOSECONDS = [1_600_000_000_123_456_789, None, -5]


def _coarse(unit: str) -> list[int | None]:
    per_unit = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
    return [None if value is None else value // per_unit for value in NANOSECONDS]


PLAIN: dict[str, pa.Array] = {
    "bool": pa.array([True, None, False]),
    **{
        f"int{bits}": pa.array([-(2 ** (bits - 1)), None, 2 ** (bits - 1) - 1], f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    **{f"uint{bits}": pa.array([0, None, 2**bits - 1], f"uint{bits}") for bits in (8, 16, 32, 64)},
    "float16": pa.array([1.5, None, -2.5], pa.float16()),
    "float32": pa.array([1.5, None, math.inf], pa.float32()),
    "float64": pa.array([0.1, None, -math.inf]),
    "decimal32": pa.array([D("1.5"), None, D("-2.5")], pa.decimal32(5, 2)),
    "decimal64": pa.array([D("1.5"), None, D("2.5")], pa.decimal64(12, 2)),
    "decimal128": pa.array([D("1.5"), None, D("-2.5")], pa.decimal128(38, 5)),
    "decimal256": pa.array([D("1.5"), None, D("2.5")], pa.decimal256(60, 5)),
    "string": pa.array(["a", None, ""]),
    "large_string": pa.array(['é,"\n', None, ""], pa.large_string()),
    "string_view": pa.array(["a", None, "too long to lie within its view"], pa.string_view()),
    "date32": pa.array(DAYS, pa.date32()),
    "date64": pa.array(DAYS, pa.date64()),
    "time32[s]": pa.array([1, None, 86_399], pa.time32("s")),
    "time32[ms]": pa.array([1, None, 86_399_999], pa.time32("ms")),
    "time64[us]": pa.array([1, None, 2], pa.time64("us")),
    "time64[ns]": pa.array([1, None, 2], pa.time64("ns")),
    **{
        f"timestamp[{unit},{zone}]": pa.array(_coarse(unit), pa.timestamp(unit, zone))
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin")
    },
    **{f"duration[{unit}]": pa.array([1, None, -2], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")},
    "null": pa.nulls(3),
}
BYTES: dict[str, pa.Array] = {
    "binary": pa.array([b"a", None, b"\xff\x00"]),
    "large_binary": pa.array([b"a", None, b""], pa.large_binary()),
    "binary_view": pa.array([b"a", None, b"too long to lie within its view"], pa.binary_view()),
    "fixed_size_binary": pa.array([b"ab", None, b"\xff\x00"], pa.binary(2)),
    "uuid": pa.array([b"0" * 16, None, b"1" * 16], pa.uuid()),
}
DICTIONARIES: dict[str, pa.Array] = {
    "dictionary(string)": pa.array(["a", None, "b"]).dictionary_encode(),
    "dictionary(large_string)": pa.array(["a", None, "b"], pa.large_string()).dictionary_encode(),
    "dictionary(int64)": pa.array([1, None, 2]).dictionary_encode(),
    "dictionary(double)": pa.array([1.5, None, 2.5]).dictionary_encode(),
    "dictionary(timestamp)": pa.array([1, None, 2], pa.timestamp("us")).dictionary_encode(),
    "dictionary(ordered)": pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0], pa.int32()), pa.array(["a", "b"]), ordered=True
    ),
}
NESTED: dict[str, pa.Array] = {
    "list": pa.array([[1, None], None, []]),
    "large_list": pa.array([[1, None], None, []], pa.large_list(pa.int32())),
    "fixed_size_list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "list(struct)": pa.array([[{"a": [1]}], None, []]),
    "struct(timestamp)": pa.array([{"a": 1}, None, {"a": 3}], pa.struct([("a", pa.timestamp("us", "UTC"))])),
}
IN_ARROW_ONLY: dict[str, pa.Array] = {
    "list(dictionary)": pa.array([["a", "b"], None, ["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "list_view": pa.array([[1, 2], None, []], pa.list_view(pa.int32())),
    "json": pa.array(['{"a":1}', None, "1"], pa.json_()),
}
EVERY = {**PLAIN, **BYTES, **DICTIONARIES, **NESTED, **IN_ARROW_ONLY}


def _round_trip(tmp_path: Path, array: pa.Array, content_type: ContentType) -> pa.ChunkedArray:
    """Writes rows in two pieces, and reads them in every way there is; all must agree."""
    location = parse_location(str(tmp_path))
    file = TabularFile(f"{location.root_uri}/data.{content_type.file_suffix}", content_type)
    metadata = {"unit": "furlong"}
    table = pa.Table.from_arrays(
        [pa.array(range(6)), pa.chunked_array([array, array])],
        schema=pa.schema([pa.field("row", pa.int64()), pa.field("c", array.type, metadata=metadata)]),
    )
    with TabularWriter.open(location, file.uri, content_type, table.schema) as writer:
        writer.write(table.slice(0, 2))
        writer.write(table.slice(2))
        written = writer.close()

    declared = table.schema if content_type in (ContentType.CSV, ContentType.TSV) else None
    found = measure(location, file, declared)
    assert (found.rows, found.size_bytes) == (written.rows, written.size_bytes) == (6, _size(file.uri))
    read = read_table(location, file, schema=declared)
    batches = list(read_batches(location, file, ["c"], schema=declared))
    assert [value for batch in batches for value in batch.column(0)] == list(read.column("c"))
    assert read_schema(location, file, declared).field("c").type == read.column("c").type
    if content_type in (ContentType.PARQUET, ContentType.FEATHER):
        assert read.schema.field("c").metadata == {b"unit": b"furlong"}
    if declared is None:
        assert written.schema.field("c").type == read.column("c").type
    assert read.column("row").to_pylist() == list(range(6))
    return read.column("c")


def _size(uri: str) -> int:
    return Path(uri.removeprefix("file://")).stat().st_size


def _same_values(read: pa.ChunkedArray, array: pa.Array) -> bool:
    """Whether the column holds the array twice, whatever types and dictionaries hold the values."""
    read.validate(full=True)
    plain = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    whole = pa.concat_arrays([cast_array(chunk, plain) for chunk in read.chunks])
    expected = cast_array(array, plain)
    return bool(whole.equals(pa.concat_arrays([expected, expected])))


@pytest.mark.parametrize("content_type", [ContentType.PARQUET, ContentType.FEATHER])
@pytest.mark.parametrize("name", EVERY)
def test_parquet_and_arrow_give_every_type_back_as_it_was_but_for_views(
    tmp_path: Path, name: str, content_type: ContentType
) -> None:
    read = _round_trip(tmp_path, EVERY[name], content_type)
    assert read.type == {"string_view": pa.string(), "binary_view": pa.binary()}.get(name, EVERY[name].type)
    assert _same_values(read, EVERY[name])


def _conditions(column: pa.ChunkedArray) -> Iterator[pc.Expression]:
    """Those that PyArrow evaluates on values of this type."""
    field = pc.field("c")
    yield field.is_valid()
    yield field.is_null()
    for value in column.drop_null().combine_chunks():
        for condition in (field == value, field >= value, field < value, ~(field == value)):
            with suppress(pa.ArrowNotImplementedError):
                pa.table({"c": column}).filter(condition)
                yield condition


def _scanned(
    location: StoreLocation, file: TabularFile, schema: pa.Schema, row_filter: pc.Expression | None
) -> pa.Table:
    """What a scan reads of a file, with a filter on column `c`."""
    measured = measure(location, file)
    entry = DataFile(
        file_number=1,
        path=file.uri,
        content_type=file.content_type,
        rows=measured.rows,
        size_bytes=measured.size_bytes,
        row_groups=measured.row_groups,
    )
    columns = ReadColumns(schema, row_filter, pa.schema([schema.field("c")]))
    pieces, _ = plan_pieces(location, [ScanFile({}, file.uri, entry)], columns, 1)
    return pa.Table.from_batches([batch for piece in pieces for batch in piece.read()], schema)


@pytest.mark.parametrize("name", [*PLAIN, *BYTES, *DICTIONARIES, *NESTED])
def test_a_filter_on_a_file_of_every_type_leaves_out_no_row_that_matches(tmp_path: Path, name: str) -> None:
    location = parse_location(str(tmp_path))
    file = TabularFile(f"{location.root_uri}/data.parquet", ContentType.PARQUET)
    rows = plain_table(pa.table({"row": [0, 1, 2], "c": EVERY[name]}))
    pq.write_table(rows, tmp_path / "data.parquet", row_group_size=1)
    table = read_table(location, file)
    assert _scanned(location, file, table.schema, None)["row"].equals(table["row"])
    for condition in _conditions(table["c"]):
        found = _scanned(location, file, table.schema, condition)
        assert found["row"].equals(table.filter(condition)["row"]), condition


def test_a_filter_that_casts_a_column_of_seconds_is_evaluated_on_seconds(tmp_path: Path) -> None:
    """Parquet stores milliseconds in their place: a row group of one value would be left out by that one."""
    location = parse_location(str(tmp_path))
    file = TabularFile(f"{location.root_uri}/data.parquet", ContentType.PARQUET)
    rows = pa.table({"c": pa.array([3, 3, 4], pa.timestamp("s"))})
    pq.write_table(rows, tmp_path / "data.parquet", row_group_size=1)
    condition = pc.field("c").cast(pa.int64()) == 3
    assert _scanned(location, file, rows.schema, condition).equals(rows.slice(0, 2))


OTHER_IN_DUCKDB = {
    "null": pa.nulls(3, pa.int32()),
    "decimal256": EVERY["decimal256"].cast(pa.float32()),
    "float16": EVERY["float16"].cast(pa.float32()),
    "uuid": pa.array([str(UUID(bytes=b"0" * 16)), None, str(UUID(bytes=b"1" * 16))]),
    **{f"duration[{unit}]": EVERY[f"duration[{unit}]"].cast(pa.int64()) for unit in ("s", "ms", "us", "ns")},
}
"""Types that DuckDB does not have, as it reads them instead."""


@pytest.mark.parametrize("name", [*PLAIN, *BYTES, *DICTIONARIES, *NESTED])
def test_duckdb_reads_the_same_values_from_our_parquet_file(tmp_path: Path, name: str) -> None:
    array = EVERY[name]
    _round_trip(tmp_path, array, ContentType.PARQUET)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.sql(f"SELECT c FROM read_parquet('{tmp_path}/data.parquet')").to_arrow_table()
    assert _same_values(rows.column("c"), OTHER_IN_DUCKDB.get(name, array))


@pytest.mark.parametrize("name", [name for name in [*PLAIN, *DICTIONARIES] if not name.startswith("duration")])
@pytest.mark.parametrize("content_type", [ContentType.CSV, ContentType.TSV])
def test_text_gives_every_plain_value_back_when_its_type_is_declared(
    tmp_path: Path, name: str, content_type: ContentType
) -> None:
    array = EVERY[name]
    assert _same_values(_round_trip(tmp_path, array, content_type), array)


REFUSED_BY_ORC = ("time", "duration", "decimal256")


@pytest.mark.parametrize("name", EVERY)
def test_orc_gives_every_value_back_or_refuses_its_type(tmp_path: Path, name: str) -> None:
    array = EVERY[name]
    if (name.startswith(REFUSED_BY_ORC) and not name.startswith("timestamp")) or name == "null":
        return
    assert _same_values(_round_trip(tmp_path, array, ContentType.ORC), array)


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        (pa.month_day_nano_interval(), ContentType.PARQUET),
        (pa.struct([]), ContentType.PARQUET),
        (pa.list_(pa.dense_union([pa.field("a", pa.int8())])), ContentType.PARQUET),
        (pa.time64("us"), ContentType.ORC),
        (pa.duration("s"), ContentType.ORC),
        (pa.decimal256(60, 5), ContentType.ORC),
        (pa.list_(pa.null()), ContentType.ORC),
        (pa.list_(pa.int8()), ContentType.CSV),
        (pa.binary(), ContentType.CSV),
        (pa.duration("s"), ContentType.CSV),
        (pa.int8(), ContentType.JSON),
    ],
)
def test_a_type_that_the_format_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path, kind: pa.DataType, content_type: ContentType
) -> None:
    location = parse_location(str(tmp_path))
    with pytest.raises(Invalid, match=r"column 'c'|JSON lines are read, not written"):
        TabularWriter.open(location, f"{location.root_uri}/data", content_type, pa.schema([("c", kind)]))
    assert list(tmp_path.iterdir()) == []


def test_a_column_without_a_type_is_left_out_of_an_orc_file(tmp_path: Path) -> None:
    location = parse_location(str(tmp_path))
    file = TabularFile(f"{location.root_uri}/data.orc", ContentType.ORC)
    with TabularWriter.open(location, file.uri, ContentType.ORC, pa.schema([("a", pa.int8()), ("b", pa.null())])) as w:
        w.write(pa.table({"a": pa.array([1], pa.int8()), "b": pa.nulls(1)}))
    assert read_table(location, file).to_pydict() == {"a": [1]}


def test_a_timestamp_that_orc_cannot_hold_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    location = parse_location(str(tmp_path))
    table = pa.table({"c": pa.array([64_060_588_800], pa.timestamp("s"))})
    with (
        pytest.raises(Invalid, match="column 'c'"),
        TabularWriter.open(location, f"{location.root_uri}/data.orc", ContentType.ORC, table.schema) as writer,
    ):
        writer.write(table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content_type", [ContentType.PARQUET, ContentType.FEATHER])
def test_dictionaries_that_together_outgrow_their_indices_are_written_with_wider_ones(
    tmp_path: Path, content_type: ContentType
) -> None:
    location = parse_location(str(tmp_path))
    narrow = pa.dictionary(pa.int8(), pa.string())
    pieces = [pa.table({"c": pa.array([f"{piece}.{row}" for row in range(100)]).cast(narrow)}) for piece in range(3)]
    file = TabularFile(f"{location.root_uri}/data", content_type)
    with TabularWriter.open(location, file.uri, content_type, pieces[0].schema) as writer:
        for piece in pieces:
            writer.write(piece)
    read = read_table(location, file)
    assert read.schema.field("c").type == pa.dictionary(pa.int32(), pa.string())
    assert read.column("c").to_pylist() == [f"{piece}.{row}" for piece in range(3) for row in range(100)]
