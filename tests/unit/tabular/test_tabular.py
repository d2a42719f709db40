"""Data files: reading, measuring, the errors of damaged files, and that no reader sees half a file."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv

from compactor.model.errors import Corrupt, Invalid, Unavailable
from compactor.model.files import ColumnStats
from compactor.model.names import ContentType
from compactor.schemas.cast import conform
from compactor.schemas.unify import unify_schemas
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.ranges import RangeReader
from compactor.tabular import (
    TabularFile,
    TabularWriter,
    dictionary_columns_of,
    infer_content_type,
    measure,
    read_batches,
    read_schema,
    read_table,
)
from compactor.tabular.filesystems import writing
from compactor.tabular.formats import Source
from compactor.tabular.text import BLOCK_BYTES, Csv, JsonLines
from tests.fakes.memory_ranges import MemoryRanges

WRITTEN = [ContentType.PARQUET, ContentType.FEATHER, ContentType.ORC, ContentType.CSV, ContentType.TSV]
ORDERS = pa.table({"id": [3, 1, 2], "status": ["new", None, ""], "amount": [1.5, None, 2.5]})


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    return parse_location(str(tmp_path / "lake"))


def _write(location: StoreLocation, name: str, table: pa.Table, content_type: ContentType) -> TabularFile:
    file = TabularFile(f"{location.root_uri}/{name}", content_type)
    with TabularWriter.open(location, file.uri, content_type, table.schema) as writer:
        writer.write(table)
    return file


def _write_and_fail(writer: TabularWriter) -> None:
    writer.write(ORDERS)
    raise ZeroDivisionError


def _given(tmp_path: Path, name: str, body: bytes) -> TabularFile:
    path = tmp_path / name
    path.write_bytes(body)
    return TabularFile(path.as_uri(), infer_content_type(name))


# ---------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("uri", "content_type"),
    [
        ("s3://b/part.0.parquet", ContentType.PARQUET),
        ("file:///x/A.ARROW", ContentType.FEATHER),
        ("/x/a.feather", ContentType.FEATHER),
        ("a.orc", ContentType.ORC),
        ("a.csv.gz", ContentType.CSV),
        ("a.tsv", ContentType.TSV),
        ("a.jsonl.gz", ContentType.JSON),
        ("a.ndjson", ContentType.JSON),
    ],
)
def test_the_content_type_follows_from_the_suffix(uri: str, content_type: ContentType) -> None:
    assert infer_content_type(uri) is content_type


@pytest.mark.parametrize("uri", ["a", "a.txt", "a.parquet.gz", "s3://csv/a", "x.csv/part"])
def test_a_name_that_promises_no_content_type_is_refused(uri: str) -> None:
    with pytest.raises(Invalid, match="cannot be inferred from its name"):
        infer_content_type(uri)


@pytest.mark.parametrize("uri", ["relative.parquet", "hdfs://x/y", "s3://bucket", "s3:///key", ""])
def test_a_place_that_is_neither_s3_nor_an_absolute_path_is_refused(location: StoreLocation, uri: str) -> None:
    with pytest.raises(Invalid, match="s3://bucket/key"):
        read_table(location, TabularFile(uri, ContentType.PARQUET))


def test_a_name_is_taken_as_it_stands(location: StoreLocation) -> None:
    file = _write(location, "a b/%2E%2e/día=1/x#?.parquet", ORDERS, ContentType.PARQUET)
    assert Path(file.uri.removeprefix("file://")).is_file()
    assert read_table(location, file) == ORDERS


# --------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("content_type", WRITTEN)
def test_columns_come_in_the_order_asked_and_those_that_the_file_lacks_are_left_out(
    location: StoreLocation, content_type: ContentType
) -> None:
    file = _write(location, "x", ORDERS, content_type)
    wanted = ["amount", "gone", "id"]
    assert read_table(location, file, wanted).to_pydict() == ORDERS.select(["amount", "id"]).to_pydict()
    batches = list(read_batches(location, file, wanted))
    assert pa.Table.from_batches(batches).to_pydict() == ORDERS.select(["amount", "id"]).to_pydict()


@pytest.mark.parametrize("content_type", [*WRITTEN, ContentType.JSON])
def test_rows_are_counted_even_when_no_wanted_column_is_there(
    location: StoreLocation, tmp_path: Path, content_type: ContentType
) -> None:
    if content_type is ContentType.JSON:
        file = _given(tmp_path, "x.json", b'{"id": 1}\n{}\n{"id": 2}\n')
    else:
        file = _write(location, "x", ORDERS, content_type)
    assert read_table(location, file, ["gone"]).num_rows == 3
    assert sum(batch.num_rows for batch in read_batches(location, file, ["gone"])) == 3


@pytest.mark.parametrize("content_type", WRITTEN)
def test_a_file_without_rows_keeps_its_columns(location: StoreLocation, content_type: ContentType) -> None:
    file = _write(location, "x", ORDERS.slice(0, 0), content_type)
    table = read_table(location, file, schema=ORDERS.schema)
    assert (table.num_rows, table.schema) == (0, ORDERS.schema)
    assert measure(location, file, ORDERS.schema).rows == 0
    assert sum(batch.num_rows for batch in read_batches(location, file)) == 0


@pytest.mark.parametrize("content_type", [ContentType.PARQUET, ContentType.FEATHER, ContentType.ORC])
def test_a_column_with_a_dot_in_its_name_is_not_a_path(location: StoreLocation, content_type: ContentType) -> None:
    table = pa.table({"a": pa.array([{"b": 1}]), "a.b": [2], "a.c": [3]})
    file = _write(location, "x", table, content_type)
    assert read_table(location, file, ["a.b"]).to_pydict() == {"a.b": [2]}
    assert read_table(location, file, ["a"]).to_pydict() == {"a": [{"b": 1}]}
    assert read_table(location, file, ["a.c", "a"]).to_pydict() == {"a.c": [3], "a": [{"b": 1}]}


def test_the_stream_form_of_arrow_is_read_like_the_file_form(location: StoreLocation, tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_stream(sink, ORDERS.schema) as writer:
        writer.write_table(ORDERS, max_chunksize=2)
    file = TabularFile((tmp_path / "x.arrow").as_uri(), ContentType.FEATHER)
    assert read_table(location, file) == ORDERS
    assert read_table(location, file, ["amount"]) == ORDERS.select(["amount"])
    assert [batch.num_rows for batch in read_batches(location, file)] == [2, 1]
    assert measure(location, file).rows == 3


@pytest.mark.filterwarnings("ignore:Feather V1:DeprecationWarning")
def test_the_first_version_of_feather_is_still_read(location: StoreLocation, tmp_path: Path) -> None:
    pyarrow.feather.write_feather(ORDERS, str(tmp_path / "x.feather"), version=1)
    file = TabularFile((tmp_path / "x.feather").as_uri(), ContentType.FEATHER)
    assert read_table(location, file, ["amount"]).to_pydict() == {"amount": [1.5, None, 2.5]}
    assert measure(location, file).rows == 3


def test_a_batch_of_parquet_is_bounded_in_bytes(location: StoreLocation, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    payload = pa.array([rng.bytes(1000) for _ in range(40_000)])
    pq.write_table(pa.table({"payload": payload}), tmp_path / "x.parquet")
    file = TabularFile((tmp_path / "x.parquet").as_uri(), ContentType.PARQUET)
    batches = list(read_batches(location, file))
    assert sum(batch.num_rows for batch in batches) == 40_000
    assert max(batch.nbytes for batch in batches) < 20 * 1024 * 1024


def test_files_of_all_formats_unify_into_one_table(location: StoreLocation, tmp_path: Path) -> None:
    files = [
        _write(location, "a.parquet", pa.table({"id": pa.array([1], pa.int32()), "s": ["p"]}), ContentType.PARQUET),
        _write(
            location, "b.arrow", pa.table({"id": [2], "s": pa.array(["a"], pa.large_string())}), ContentType.FEATHER
        ),
        _write(location, "c.orc", pa.table({"id": [3], "extra": [True]}), ContentType.ORC),
        _given(tmp_path, "d.csv", b"s,id\nc,4\n"),
        _given(tmp_path, "e.json.gz", gzip.compress(b'{"id": 5, "s": null}\n')),
        _given(tmp_path, "f.tsv.gz", gzip.compress(b"id\ts\n6\t\n")),
    ]
    schema = unify_schemas([(file.uri, read_schema(location, file)) for file in files])
    whole = pa.concat_tables([conform(read_table(location, file, schema=schema), schema) for file in files])
    assert whole.schema == pa.schema([("id", pa.int64()), ("s", pa.large_string()), ("extra", pa.bool_())])
    assert whole.column("id").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert whole.column("s").to_pylist() == ["p", "a", None, "c", None, None]
    assert whole.column("extra").to_pylist() == [None, None, True, None, None, None]


# ------------------------------------------------------------------------------------------------------ text

MANY = 1_000_000


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_csv_column_has_one_type_even_if_its_last_value_decides_it(
    location: StoreLocation, tmp_path: Path, suffix: str
) -> None:
    body = b"id,late,empty_first\n" + b"1000000,2000000,\n" * MANY + b"2,x,3.5\n"
    file = _given(tmp_path, f"x.csv{suffix}", gzip.compress(body, 1) if suffix else body)
    expected = pa.schema([("id", pa.int64()), ("late", pa.string()), ("empty_first", pa.float64())])
    found = measure(location, file)
    assert (found.rows, found.schema) == (MANY + 1, expected)
    batches = list(read_batches(location, file))
    assert len(batches) > 1
    assert pa.Table.from_batches(batches).schema == read_table(location, file).schema == expected
    assert batches[-1].slice(batches[-1].num_rows - 1).to_pylist() == [{"id": 2, "late": "x", "empty_first": 3.5}]


_FIELDS = st.sampled_from(
    ["", "1", "-7", "1.5", "true", "2020-01-01", "12:30:00", "2020-01-01 00:00:00", "2020-01-01T00:00:00.5", "x", "é"]
    + ["2020-01-01T00:00:00Z", "2020-01-01T00:00:00.25+02:00", "NA", "null", "9223372036854775808"]
)


@given(st.lists(_FIELDS, min_size=1, max_size=6))
def test_streaming_infers_a_csv_column_as_pyarrow_infers_it_from_the_whole(values: list[str]) -> None:
    text = "a,b\n" + "".join(f"{value},{row}\n" for row, value in enumerate(values))
    with_nulls = csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    expected = csv.read_csv(pa.BufferReader(text.encode()), convert_options=with_nulls).schema.field("a").type
    if "9223372036854775808" in values and all(value.removeprefix("-").isdigit() or not value for value in values):
        expected = pa.decimal128(38, 0)  # where PyArrow would round
    file = TabularFile("s3://lake/x.csv", ContentType.CSV)
    source = Source(file, "", RangeReader(MemoryRanges({file.uri: text.encode()})))
    nothing_known = pa.schema([("a", pa.null()), ("b", pa.null())])
    kinds, pieces = Csv(",")._infer(source, nothing_known, {})
    assert (kinds, [piece.rows for piece in pieces]) == ([expected, pa.int64()], [len(values)])


@pytest.mark.parametrize(("outlined", "begins"), [(Csv(","), b"id,v\n"), (JsonLines(), b"")], ids=["csv", "json"])
def test_of_a_long_text_a_few_blocks_are_read_for_its_outline(outlined: Csv | JsonLines, begins: bytes) -> None:
    """Whatever a parser would read ahead: on S3 planning waits for it, and it is paid for."""
    row = b'1,"' + b"n" * 990 + b'\n"\n' if begins else b'{"id": 1, "v": "' + b"n" * 980 + b'"}\n'
    file = TabularFile("s3://lake/x", ContentType.CSV)
    ranges = MemoryRanges({file.uri: begins + row * (8 * BLOCK_BYTES // len(row))})
    source = Source(file, "", RangeReader(ranges))
    outline = outlined.outline(source, None)
    assert outline.schema.names == ["id", "v"]
    assert not outline.whole
    assert ranges.bytes_requested() <= 4 * BLOCK_BYTES


def test_csv_types_are_those_declared(location: StoreLocation, tmp_path: Path) -> None:
    file = _given(tmp_path, "x.csv", b"zip,amount,at,n\n01234,1.50,2020-01-01T00:00:00Z,7\n,,,\n")
    declared = pa.schema(
        [
            ("zip", pa.dictionary(pa.int32(), pa.string())),
            ("amount", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("elsewhere", pa.int8()),
        ]
    )
    table = read_table(location, file, schema=declared)
    assert table.schema.types == [declared.field(0).type, declared.field(1).type, declared.field(2).type, pa.int64()]
    assert table.to_pylist()[0] == {
        "zip": "01234",
        "amount": Decimal("1.50"),
        "at": datetime(2020, 1, 1, tzinfo=UTC),
        "n": 7,
    }
    assert pa.Table.from_batches(read_batches(location, file, schema=declared)).to_pylist() == table.to_pylist()
    assert read_schema(location, file, declared) == table.schema


def test_in_csv_an_empty_field_is_null_and_quotes_are_empty_text(location: StoreLocation, tmp_path: Path) -> None:
    file = _given(tmp_path, "x.csv", b'a,b\n"",1\n,2\nNA,3\n"two\nlines",4\n')
    assert read_table(location, file, ["a"]).to_pydict() == {"a": ["", None, "NA", "two\nlines"]}


def test_nulls_of_a_single_csv_column_are_rows(location: StoreLocation) -> None:
    file = _write(location, "x.csv", pa.table({"a": [1, None, None, 4, None]}), ContentType.CSV)
    assert read_table(location, file).to_pydict() == {"a": [1, None, None, 4, None]}
    assert measure(location, file).rows == 5


def test_csv_is_written_gzipped_where_its_name_says_so(location: StoreLocation) -> None:
    file = _write(location, "x.csv.gz", ORDERS, ContentType.CSV)
    assert Path(file.uri.removeprefix("file://")).read_bytes()[:2] == b"\x1f\x8b"
    assert read_table(location, file) == ORDERS


def test_json_lines_are_inferred_from_all_lines_and_declared_types_are_kept(
    location: StoreLocation, tmp_path: Path
) -> None:
    filler = b'{"id": 1, "pad": "' + b"x" * 1000 + b'", "when": "2020-01-01", "tags": []}\n'
    tail = b'{"id": 2.5, "when": "later", "tags": ["a"], "more": {"x": 1}, "day": "1995-04-03"}'
    file = _given(tmp_path, "x.jsonl", filler * 9000 + b"\n\n" + tail)
    found = measure(location, file)
    assert found.rows == 9001
    assert found.schema.field("id").type == pa.float64()
    assert found.schema.field("when").type == pa.string()
    declared = pa.schema([("day", pa.date32()), ("tags", pa.large_list(pa.dictionary(pa.int32(), pa.string())))])
    table = read_table(location, file, ["when", "day", "tags", "more"], declared)
    assert table.num_rows == 9001
    assert table.slice(9000).to_pylist() == [
        {"when": "later", "day": date(1995, 4, 3), "tags": ["a"], "more": {"x": 1}}
    ]
    assert table.slice(0, 1).column("when").to_pylist() == ["2020-01-01"]
    assert table.schema.field("tags").type == declared.field("tags").type
    assert pa.Table.from_batches(read_batches(location, file, ["id"])).num_rows == 9001


def test_json_values_of_two_kinds_are_refused(location: StoreLocation, tmp_path: Path) -> None:
    one_block = b'{"a": true}'.ljust(BLOCK_BYTES - 1) + b"\n"
    far_apart = _given(tmp_path, "x.json", one_block + b'{"a": "text"}\n')
    with pytest.raises(Invalid, match=r"x\.json has values of bool and of string in column 'a'"):
        measure(location, far_apart)
    close_by = _given(tmp_path, "y.json", b'{"a": true}\n{"a": "text"}\n')
    with pytest.raises(Invalid, match=r"y\.json cannot be read as json.* changed from boolean to string in row 1"):
        measure(location, close_by)


@pytest.mark.parametrize("text", [b'[{"a": 1}, {"a": 2}]', b'\n [\n{"a": 1},\n{"a": 2}\n]\n'])
def test_a_json_array_is_refused_with_the_form_that_is_read(
    location: StoreLocation, tmp_path: Path, text: bytes
) -> None:
    with pytest.raises(Invalid, match=r"x\.json cannot be read as json: it is an array; write an object a line"):
        measure(location, _given(tmp_path, "x.json", text))


def test_an_empty_json_file_has_no_rows(location: StoreLocation, tmp_path: Path) -> None:
    file = _given(tmp_path, "x.json", b"\n")
    assert read_table(location, file).num_rows == measure(location, file).rows == 0


# --------------------------------------------------------------------------------------------------- measure


def test_parquet_bounds_are_read_from_the_footer(location: StoreLocation, tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([5, None, 2**63 - 1]),
            "u": pa.array([1, 2, 2**32 - 1], pa.uint32()),
            "price": pa.array([Decimal("-1.50"), Decimal("10.25"), None]),
            "day": pa.array([date(1995, 4, 3), date(1960, 1, 1), None]),
            "at": pa.array([1, -1, None], pa.timestamp("ns", "Europe/Berlin")),
            "naive": pa.array([0, 86_400, None], pa.timestamp("s")),
            "text": ["b", "é", None],
            "long": ["x" * 64, "y", None],
            "f": [1.5, float("nan"), None],
            "inf": [float("-inf"), 2.0, None],
            "bytes": [b"a", None, b"b"],
            "nested": [[1], None, [2]],
            "flag": [True, None, False],
            "nothing": pa.nulls(3, pa.int8()),
            "code": pa.array(["a", "c", "b"]).dictionary_encode(),
            "took": pa.array([1, 2, 3], pa.duration("s")),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=1)
    file = TabularFile((tmp_path / "x.parquet").as_uri(), ContentType.PARQUET)
    found = measure(location, file)
    assert found.schema == table.schema
    expected = {
        "id": ColumnStats(null_count=1, min_value=5, max_value=2**63 - 1),
        "u": ColumnStats(null_count=0, min_value=1, max_value=2**32 - 1),
        "price": ColumnStats(null_count=1, min_value="-1.50", max_value="10.25"),
        "day": ColumnStats(null_count=1, min_value="1960-01-01", max_value="1995-04-03"),
        "at": ColumnStats(
            null_count=1, min_value="1969-12-31T23:59:59.999999999Z", max_value="1970-01-01T00:00:00.000000001Z"
        ),
        "naive": ColumnStats(null_count=1, min_value="1970-01-01T00:00:00.000", max_value="1970-01-02T00:00:00.000"),
        "text": ColumnStats(null_count=1, min_value="b", max_value="é"),
        "long": ColumnStats(null_count=1),
        "f": ColumnStats(null_count=1),  # a row group of NaN alone has no bounds
        "inf": ColumnStats(null_count=1),  # JSON has no infinity
        "bytes": ColumnStats(null_count=1),
        "flag": ColumnStats(null_count=1, min_value=False, max_value=True),
        "nothing": ColumnStats(null_count=3),
        "code": ColumnStats(null_count=0, min_value="a", max_value="c"),
        "took": ColumnStats(null_count=0),
    }
    assert dict(found.columns) == expected
    for stats in found.columns.values():
        assert ColumnStats.parse_durable(stats.render(), "here") == stats


def test_a_chunk_without_statistics_leaves_its_column_without_bounds(location: StoreLocation, tmp_path: Path) -> None:
    pq.write_table(ORDERS, tmp_path / "x.parquet", write_statistics=["id"])
    found = measure(location, TabularFile((tmp_path / "x.parquet").as_uri(), ContentType.PARQUET))
    assert found.columns["id"] == ColumnStats(null_count=0, min_value=1, max_value=3)
    assert found.columns["status"] == ColumnStats()


@pytest.mark.parametrize("content_type", WRITTEN)
def test_the_writer_measures_the_bytes_of_the_file(location: StoreLocation, content_type: ContentType) -> None:
    table = pa.table(
        {
            "id": [3, 1, None],
            "at": pa.array([1, 2, None], pa.timestamp("ns", "UTC")),
            "day": pa.array([0, 1, None], pa.date32()),
        }
    )
    file = TabularFile(f"{location.root_uri}/x", content_type)
    with TabularWriter.open(location, file.uri, content_type, table.schema) as writer:
        writer.write(table.slice(0, 1))
        writer.write(table.slice(1))
        written = writer.close()
        assert writer.close() is written
    found = measure(location, file, table.schema)
    assert (written.rows, written.size_bytes, written.schema) == (found.rows, found.size_bytes, found.schema)
    assert written.columns == {
        "id": ColumnStats(null_count=1, min_value=1, max_value=3),
        "at": ColumnStats(
            null_count=1, min_value="1970-01-01T00:00:00.000000001Z", max_value="1970-01-01T00:00:00.000000002Z"
        ),
        "day": ColumnStats(null_count=1, min_value="1970-01-01", max_value="1970-01-02"),
    }


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_fails_the_file(
    call: str, location: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = TabularFile(f"{location.root_uri}/x.parquet", ContentType.PARQUET)
    writer = TabularWriter.open(location, file.uri, file.content_type, ORDERS.schema)
    writer.write(ORDERS)
    with monkeypatch.context() as disk:
        disk.setattr(os, call, fail)
        with pytest.raises(Unavailable, match="No space left on device"):
            writer.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("has_call", [True, False])
def test_a_growing_file_is_whole_whether_or_not_the_system_can_be_told_to_begin(
    has_call: bool, location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.tabular.output_file.FLUSH_BYTES", 1)
    monkeypatch.setattr("compactor.tabular.writer.PIECE_ROWS_MAX", 1)
    if not has_call:
        monkeypatch.setattr("compactor.tabular.output_file._sync_file_range", None)
    file = TabularFile(f"{location.root_uri}/x.parquet", ContentType.PARQUET)
    with TabularWriter.open(location, file.uri, file.content_type, ORDERS.schema) as writer:
        writer.write(ORDERS)
    assert read_table(location, file).equals(ORDERS)


# ---------------------------------------------------------------------------------------------- broken files


def _broken() -> Iterator[tuple[str, bytes]]:
    parquet, arrow, orc = pa.BufferOutputStream(), pa.BufferOutputStream(), pa.BufferOutputStream()
    pq.write_table(ORDERS, parquet)
    with pa.ipc.new_file(arrow, ORDERS.schema) as writer:
        writer.write_table(ORDERS)
    pa.orc.write_table(ORDERS, orc)
    whole = {"parquet": parquet, "arrow": arrow, "orc": orc}
    for suffix, sink in whole.items():
        body = sink.getvalue().to_pybytes()
        yield f"half.{suffix}", body[: len(body) // 2]
        yield f"without_end.{suffix}", body[:-3]
        yield f"empty.{suffix}", b""
        yield f"noise.{suffix}", b"\x07" * 500
    data = parquet.getvalue().to_pybytes()
    yield "overwritten.parquet", data[:4] + b"\xff" * 60 + data[64:]
    yield "empty.csv", b""
    yield "ragged.csv", b"a,b\n1,2\n1,2,3\n"
    yield "cut.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 1000, mtime=0)[:-12]
    yield "cut.json", b'{"a": 1}\n{"a": '
    yield "array.json", b'[{"a": 1}]'
    yield "cut.json.gz", gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-12]


@pytest.mark.parametrize(("name", "body"), list(_broken()))
def test_a_broken_file_is_refused_by_name(location: StoreLocation, tmp_path: Path, name: str, body: bytes) -> None:
    file = _given(tmp_path, name, body)
    with pytest.raises(Invalid) as refused:
        read_table(location, file)
    assert str(refused.value).startswith(f"{file.uri} cannot be read as {file.content_type}: ")
    with pytest.raises(Invalid, match=name):
        list(read_batches(location, file))


def test_an_arrow_file_whose_offsets_lead_astray_is_refused(location: StoreLocation, tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 2**30, 3], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
    with (
        pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, pa.schema([("a", pa.string())])) as w,
    ):
        w.write_batch(pa.RecordBatch.from_arrays([text], ["a"]))
    with pytest.raises(Invalid, match=r"x\.arrow"):
        read_table(location, TabularFile((tmp_path / "x.arrow").as_uri(), ContentType.FEATHER))


@pytest.mark.parametrize("content_type", list(ContentType))
def test_a_missing_file_is_corruption_and_named(location: StoreLocation, content_type: ContentType) -> None:
    file = TabularFile(f"{location.root_uri}/gone", content_type)
    for verb in (read_schema, read_table, measure):
        with pytest.raises(Corrupt, match="/gone does not exist"):
            verb(location, file)


@pytest.mark.parametrize("content_type", list(ContentType))
def test_a_folder_is_no_data_file(location: StoreLocation, tmp_path: Path, content_type: ContentType) -> None:
    with pytest.raises(Invalid, match=tmp_path.name):
        read_table(location, TabularFile(tmp_path.as_uri(), content_type))


@pytest.mark.parametrize("name", ["x.parquet", "x.csv"])
def test_two_columns_of_one_name_are_refused(location: StoreLocation, tmp_path: Path, name: str) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    if name == "x.csv":
        csv.write_csv(twice, tmp_path / name)
    else:
        pq.write_table(twice, tmp_path / name)
    file = TabularFile((tmp_path / name).as_uri(), infer_content_type(name))
    for verb in (read_schema, read_table, measure):
        with pytest.raises(Invalid, match=rf"{name} has more than one column named 'a'"):
            verb(location, file)


# --------------------------------------------------------------------------------------------------- writing


def test_a_file_is_not_there_before_it_is_closed(location: StoreLocation) -> None:
    path = Path(location.root_uri.removeprefix("file://")) / "deep" / "x.parquet"
    writer = TabularWriter.open(location, f"file://{path}", ContentType.PARQUET, ORDERS.schema)
    writer.write(ORDERS)
    assert not path.exists()
    writer.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize("content_type", WRITTEN)
def test_a_failed_write_leaves_nothing(location: StoreLocation, content_type: ContentType) -> None:
    folder = Path(location.root_uri.removeprefix("file://"))
    with (
        pytest.raises(ZeroDivisionError),
        TabularWriter.open(location, f"file://{folder}/x", content_type, ORDERS.schema) as writer,
    ):
        _write_and_fail(writer)
    assert list(folder.iterdir()) == []


def test_rows_of_another_schema_are_conformed_or_refused(location: StoreLocation) -> None:
    schema = pa.schema([("id", pa.int64()), ("status", pa.string())])
    file = TabularFile(f"{location.root_uri}/x.parquet", ContentType.PARQUET)
    with TabularWriter.open(location, file.uri, ContentType.PARQUET, schema) as writer:
        writer.write(pa.table({"id": pa.array([1], pa.int8())}))
        with pytest.raises(Invalid, match="column 'id' is string, which does not widen to int64"):
            writer.write(pa.table({"id": ["x"]}))
    assert read_table(location, file).to_pydict() == {"id": [1], "status": [None]}


def test_row_groups_hold_a_million_rows_however_they_come(location: StoreLocation) -> None:
    file = TabularFile(f"{location.root_uri}/x.parquet", ContentType.PARQUET)
    table = pa.table({"id": pa.array(range(300_000), pa.int32())})
    with TabularWriter.open(location, file.uri, ContentType.PARQUET, table.schema) as writer:
        for _ in range(8):
            writer.write(table)
    metadata = pq.read_metadata(file.uri.removeprefix("file://"))
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [1_000_000, 1_000_000, 400_000]
    assert metadata.row_group(0).column(0).compression == "SNAPPY"


def test_row_groups_of_wide_rows_are_bounded_in_bytes(location: StoreLocation) -> None:
    payload = "x" * 4096
    table = pa.table({"payload": [payload] * 10_000})
    file = TabularFile(f"{location.root_uri}/x.parquet", ContentType.PARQUET)
    with TabularWriter.open(location, file.uri, ContentType.PARQUET, table.schema) as writer:
        for _ in range(4):
            writer.write(table)
    metadata = pq.read_metadata(file.uri.removeprefix("file://"))
    rows = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert sum(rows) == 40_000
    assert all(count * 4096 <= 64 * 1024 * 1024 for count in rows)
    assert len(rows) == 3


def test_a_column_whose_dictionary_did_not_pay_is_not_encoded_again(location: StoreLocation, tmp_path: Path) -> None:
    count = 300_000
    rng = np.random.default_rng(7)
    table = pa.table(
        {
            "few": rng.integers(0, 100, count),
            "unique": rng.permutation(count),
            "few_texts": pa.array([f"state {number % 7}" for number in range(count)]),
            "unique_texts": pa.array([f"text {number:020d}" for number in range(count)]),
            "nested": pa.array([{"few": number % 3, "unique": number * 7} for number in range(count)]),
            "list": pa.array([[number % 3] for number in range(count)]),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=200_000)
    source = TabularFile((tmp_path / "x.parquet").as_uri(), ContentType.PARQUET)
    chosen = dictionary_columns_of(location, source)
    assert chosen == ("few", "few_texts", "nested.few", "list.list.element")

    file = TabularFile(f"{location.root_uri}/y.parquet", ContentType.PARQUET)
    with TabularWriter.open(location, file.uri, ContentType.PARQUET, table.schema, chosen) as writer:
        writer.write(table)
    row_group = pq.read_metadata(file.uri.removeprefix("file://")).row_group(0)
    chunks = [row_group.column(position) for position in range(row_group.num_columns)]
    assert tuple(chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page) == chosen
    assert dictionary_columns_of(location, file) == chosen
    assert read_table(location, file) == table


def test_only_parquet_has_dictionary_columns(location: StoreLocation) -> None:
    assert dictionary_columns_of(location, _write(location, "x", ORDERS, ContentType.ORC)) is None


def test_a_full_disk_is_reported() -> None:
    sentence = "file:///lake/x cannot be written, its disk is full: free some space"
    with pytest.raises(Unavailable, match=sentence), writing("file:///lake/x", "parquet"):
        raise OSError(errno.ENOSPC, "Error writing bytes to file")
