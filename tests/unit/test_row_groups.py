"""Row groups that pass on undecoded hold what Arrow would have written, and Arrow is asked for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock, patch

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.errors import Invalid
from compactor.names import ContentType
from compactor.object_store import StoreLocation, parse_location
from compactor.tabular import FileMeasure, RowGroup, TabularFile, TabularWriter, open_rows, read_table, stored_schema
from compactor.tabular.column_chunks import PAGE_BYTES, ColumnType, read_column
from compactor.tabular.formats import Source
from compactor.tabular.thrift import i32, i64, read_struct, structure, write_struct
from tests.arrow_types import KEY_TYPES, KeyType, Raw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lake:
    """A folder, and what is done in it."""

    location: StoreLocation

    def write(self, table: pa.Table, **options: object) -> TabularFile:
        """A file as some other writer would leave it."""
        file = TabularFile(f"{self.location.root_uri}/source.parquet", ContentType.PARQUET)
        path = Path(file.uri.removeprefix("file://"))
        path.parent.mkdir(exist_ok=True)
        stored = stored_schema(table.schema, ContentType.PARQUET)
        pq.write_table(table.cast(stored), path, **{"compression": "snappy", **options})
        return file

    def take(self, file: TabularFile, rows: Rows, schema: pa.Schema, groups: int = 1) -> list[RowGroup] | None:
        """The rows in so many row groups; None where Arrow has to read the file."""
        with open_rows(self.location, file, schema) as source:
            if source is None:
                return None
            pieces = np.array_split(rows, groups)
            taken = [source.take(piece, again=piece is not pieces[-1]) for piece in pieces]
        return None if None in taken else [group for group in taken if group is not None]

    def gather(self, schema: pa.Schema, *pieces: RowGroup | pa.Table) -> tuple[TabularFile, FileMeasure]:
        """A file of row groups and of rows that Arrow encodes."""
        file = TabularFile(f"{self.location.root_uri}/gathered.parquet", ContentType.PARQUET)
        with TabularWriter.open(self.location, file.uri, file.content_type, schema, takes_row_groups=True) as writer:
            for piece in pieces:
                if isinstance(piece, RowGroup):
                    writer.write_row_group(piece)
                else:
                    writer.write(piece)
            return file, writer.close()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(parse_location(str(tmp_path / "lake")))


@pytest.fixture(scope="module")
def one_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(parse_location(str(tmp_path_factory.mktemp("lake"))))


@dataclass(frozen=True)
class Written:
    """A table of one column and its neighbours, how a writer writes it, and which rows are wanted of it."""

    table: pa.Table
    options: dict[str, object]
    rows: Rows
    groups: int
    expected: pa.Table


_CODECS = st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli"])


@st.composite
def _files(draw: st.DrawFn, kind: KeyType) -> Written:
    raw = st.integers(-(2**40), 2**40) if str(kind).startswith("timestamp[s") else kind.values
    values: list[Raw | None] = draw(st.lists(st.none() | raw, min_size=1, max_size=30))
    if draw(st.booleans()):
        values = [value for value in values if value is not None]
    repeats = draw(st.sampled_from([1, 7, 40]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = [(values * repeats)[place] for place in random.permutation(len(values) * repeats)]
    nullable = None in values or draw(st.booleans())
    table = _table(kind, range(len(values)), values, nullable)
    options = {
        "compression": draw(_CODECS),
        "use_dictionary": draw(st.booleans()),
        "dictionary_pagesize_limit": draw(st.sampled_from([16, 1024 * 1024])),
        "data_page_size": draw(st.sampled_from([16, 1024 * 1024])),
        "write_batch_size": draw(st.sampled_from([3, 1024])),
        "row_group_size": draw(st.sampled_from([5, 64, 1024 * 1024])),
        # The old version has no nanoseconds, and a writer would round them.
        "version": "2.6" if pa.types.is_temporal(kind.arrow_type) else draw(st.sampled_from(["1.0", "2.6"])),
        "store_schema": True,
    }
    if len(table) and draw(st.booleans()):
        rows = random.permutation(len(table))[: draw(st.integers(0, len(table)))]
    else:
        rows = np.sort(random.permutation(len(table))[: draw(st.integers(0, len(table)))])
    expected = _table(kind, rows.tolist(), [values[row] for row in rows], nullable)
    return Written(table, options, rows.astype(np.int64), draw(st.integers(1, 3)), expected)


def _table(kind: KeyType, ids: Sequence[int], values: Sequence[Raw | None], nullable: bool) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), pa.field("of.it", kind.arrow_type, nullable)])
    return pa.table([pa.array(ids, pa.int64()), kind.array(values)], schema=schema)


PASSED_ON = [kind for kind in KEY_TYPES if kind.arrow_type != pa.float16()]


@pytest.mark.parametrize("kind", PASSED_ON, ids=str)
@given(data=st.data())
@settings(max_examples=20)
def test_rows_pass_on_as_arrow_would_have_taken_and_written_them(
    one_lake: Lake, kind: KeyType, data: st.DataObject
) -> None:
    written = data.draw(_files(kind))
    schema = stored_schema(written.table.schema, ContentType.PARQUET)
    source = one_lake.write(written.table, **written.options)
    is_remote = data.draw(st.booleans(), "is remote")
    with patch.object(Source, "is_remote", property(lambda _: is_remote)):
        taken = one_lake.take(source, written.rows, schema, written.groups)
    if taken is None:
        # A writer of the old version has other types for some columns; nothing else is a reason to ask Arrow.
        assert written.options["version"] == "1.0"
        return
    file, measure = one_lake.gather(schema, *taken)
    expected = written.expected.cast(schema)
    found = read_table(one_lake.location, file)
    found.validate(full=True)
    assert spelled(found) == spelled(expected)
    by_arrow = TabularFile(f"{one_lake.location.root_uri}/by-arrow.parquet", ContentType.PARQUET)
    with TabularWriter.open(one_lake.location, by_arrow.uri, ContentType.PARQUET, schema) as writer:
        writer.write(expected)
        expected_measure = writer.close()
    assert (measure.rows, measure.schema) == (expected_measure.rows, expected_measure.schema)
    if len(taken) == 1:
        # Bounds of several row groups are those of each, and an infinite one hides the others.
        assert measure.columns == expected_measure.columns


def spelled(table: pa.Table) -> list[str]:
    """Every value as its bytes, so that NaN is itself and zeros have signs."""
    return [repr(_raw(column)) for column in table.columns]


def _raw(column: pa.ChunkedArray) -> list[object]:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    column = column.cast(kind)
    if pa.types.is_temporal(kind):
        column = pa.chunked_array(
            [chunk.view(pa.int32() if kind.bit_width == 32 else pa.int64()) for chunk in column.chunks],
            pa.int32() if kind.bit_width == 32 else pa.int64(),
        )
    values: list[object] = column.to_pylist()
    return values


def _orders(count: int) -> pa.Table:
    random = np.random.default_rng(count)
    return pa.table(
        {
            "id": random.permutation(count),
            "status": pa.array(["new", "paid", "sent", None]).take(pa.array(random.integers(0, 4, count))),
            "note": [None if each % 11 == 0 else f"{each} " * int(each % 30) for each in random.permutation(count)],
            "amount": random.random(count),
        }
    )


def test_row_groups_and_rows_that_arrow_encodes_stand_in_one_file(lake: Lake) -> None:
    orders = _orders(50_000)
    source = lake.write(orders, row_group_size=20_000)
    rows = np.random.default_rng(1).permutation(50_000)[:40_000]
    taken = lake.take(source, rows, orders.schema, groups=2)
    assert taken is not None
    file, measure = lake.gather(orders.schema, orders.slice(0, 10), *taken, orders.slice(10, 90), orders.slice(100, 5))
    expected = pa.concat_tables([orders.slice(0, 10), orders.take(pa.array(rows)), orders.slice(10, 95)])
    assert read_table(lake.location, file).equals(expected)
    metadata = pq.read_metadata(file.uri.removeprefix("file://"))
    assert [metadata.row_group(each).num_rows for each in range(4)] == [10, 20_000, 20_000, 95]
    assert measure.rows == len(expected)
    assert measure.columns["id"].min_value == pc.min(expected["id"]).as_py()


def test_a_file_may_be_of_row_groups_alone_or_of_nothing(lake: Lake) -> None:
    orders = _orders(100)
    taken = lake.take(lake.write(orders), np.arange(100)[::-1].copy(), orders.schema)
    assert taken is not None
    assert read_table(lake.location, lake.gather(orders.schema, *taken)[0]).equals(orders.take(np.arange(100)[::-1]))
    nothing, measure = lake.gather(orders.schema)
    assert measure.rows == 0
    assert read_table(lake.location, nothing).schema == orders.schema


def test_pages_stay_small_and_columns_keep_the_encoding_that_pays(lake: Lake) -> None:
    orders = _orders(200_000)
    source = lake.write(orders)
    taken = lake.take(source, np.arange(0, 200_000, 2), orders.schema)
    assert taken is not None
    file, _ = lake.gather(orders.schema, *taken)
    group = pq.read_metadata(file.uri.removeprefix("file://")).row_group(0)
    encodings = {group.column(each).path_in_schema: group.column(each).encodings for each in range(4)}
    assert {name for name, each in encodings.items() if "RLE_DICTIONARY" in each} == {"status"}
    plain_sizes = [chunk.plain_size for chunk in taken[0].chunks]
    assert max(plain_sizes) > 4 * PAGE_BYTES
    # Headers and bodies take turns: one body a page, at most as many bytes as a page and the longest value.
    assert all(len(chunk.pieces) // 2 >= chunk.plain_size // (PAGE_BYTES + 4_000) for chunk in taken[0].chunks)


def test_what_compression_hardly_makes_smaller_is_stored_plain(lake: Lake) -> None:
    random = np.random.default_rng(3)
    noise = [random.bytes(100) for _ in range(5_000)]
    table = pa.table({"noise": noise, "words": [f"all work and no play {number}" for number in range(5_000)]})
    taken = lake.take(lake.write(table, use_dictionary=False), np.arange(4_000), table.schema)
    assert taken is not None
    file, measure = lake.gather(table.schema, *taken)
    group = pq.read_metadata(file.uri.removeprefix("file://")).row_group(0)
    assert [group.column(each).compression for each in range(2)] == ["UNCOMPRESSED", "SNAPPY"]
    assert measure.size_bytes < 4_000 * (100 + 4) + 4_000 * 20
    again = lake.take(file, np.arange(4_000)[::-1].copy(), table.schema)
    assert again is not None
    assert read_table(lake.location, lake.gather(table.schema, *again)[0]).equals(table.take(np.arange(4_000)[::-1]))


def test_a_value_that_no_row_has_any_more_is_not_in_the_file(lake: Lake) -> None:
    secrets = pa.table({"name": ["ada", "mallory", "ada", "bob"] * 50, "kept": ["x", "y", "x", "z"] * 50})
    source = lake.write(secrets, compression="none")
    taken = lake.take(source, np.flatnonzero(np.arange(200) % 4 != 1), secrets.schema)
    assert taken is not None
    assert "mallory" not in str(taken)
    file, measure = lake.gather(secrets.schema, *taken)
    assert b"mallory" not in Path(file.uri.removeprefix("file://")).read_bytes()
    assert measure.columns["name"].max_value == "bob"


def test_dictionaries_of_several_row_groups_become_one(lake: Lake) -> None:
    words = [f"word {number % 50} of many" for number in range(1_000)]
    table = pa.table({"word": words[:500] + words[::-1][:500], "flag": [number % 3 == 0 for number in range(1_000)]})
    source = lake.write(table, row_group_size=100)
    taken = lake.take(source, np.arange(1_000), table.schema)
    assert taken is not None
    assert len(taken[0].chunks[0].pieces) == 4, "a dictionary page and a data page, each with its header"
    assert read_table(lake.location, lake.gather(table.schema, *taken)[0]).equals(table)


def _gathered_orders(lake: Lake) -> tuple[Path, pa.Table]:
    """Codes, plain values, nulls, booleans, one value throughout and none at all, in row groups of both kinds."""
    orders = _orders(9_000)
    orders = orders.append_column("paid", pa.array([None, True, False] * 3_000))
    orders = orders.append_column("country", pa.array(["ES"] * 9_000))
    orders = orders.append_column("comment", pa.array([None] * 9_000, pa.string()))
    orders = orders.append_column("price", pa.array([Decimal(number).scaleb(-2) for number in range(9_000)]))
    taken = lake.take(lake.write(orders, row_group_size=3_000), np.arange(0, 9_000, 3), orders.schema, groups=2)
    assert taken is not None
    file, _ = lake.gather(orders.schema, *taken, orders.slice(1, 1))
    path = Path(file.uri.removeprefix("file://"))
    return path, pa.concat_tables([orders.take(np.arange(0, 9_000, 3)), orders.slice(1, 1)])


def test_duckdb_reads_the_same(lake: Lake) -> None:
    path, expected = _gathered_orders(lake)
    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet($1)", [str(path)]).fetchall()
        counting = "SELECT count(*) FROM read_parquet($1) WHERE id < 100 AND status = 'new'"
        counted = connection.execute(counting, [str(path)]).fetchall()
    assert found == [tuple(row.values()) for row in expected.to_pylist()]
    assert counted == [(expected.filter((pc.field("id") < 100) & (pc.field("status") == "new")).num_rows,)]


@pytest.mark.spark
def test_spark_reads_the_same(lake: Lake, spark: SparkSession) -> None:
    path, expected = _gathered_orders(lake)
    found = [row.asDict() for row in spark.read.parquet(str(path)).collect()]
    assert found == expected.to_pylist()
    assert spark.read.parquet(str(path)).where("id < 100 AND status = 'new'").count() == len(
        [row for row in expected.to_pylist() if row["id"] < 100 and row["status"] == "new"]
    )


@pytest.mark.parametrize(
    ("table", "options"),
    [
        pytest.param(pa.table({"a": [[1], [2]]}), {}, id="a list"),
        pytest.param(pa.table({"a": [{"b": 1}]}), {}, id="a struct"),
        pytest.param(pa.table({"a": pa.array([1.5], pa.float16())}), {}, id="half a float"),
        pytest.param(pa.table({"a": pa.nulls(3)}), {}, id="nothing but nulls"),
        pytest.param(pa.table({"a": [1, 2]}), {"data_page_version": "2.0"}, id="pages of version 2"),
        pytest.param(
            pa.table({"a": [1, 2]}),
            {"column_encoding": {"a": "DELTA_BINARY_PACKED"}, "use_dictionary": False},
            id="deltas",
        ),
        pytest.param(
            pa.table({"a": pa.array([1], pa.timestamp("ns"))}), {"use_deprecated_int96_timestamps": True}, id="INT96"
        ),
        pytest.param(pa.table({"a": [1, 2]}), {"compression": "lz4"}, id="LZ4"),
    ],
)
def test_what_is_not_known_is_left_to_arrow(lake: Lake, table: pa.Table, options: dict[str, object]) -> None:
    assert lake.take(lake.write(table, **options), np.zeros(1, np.int64), table.schema) is None


@pytest.mark.parametrize(
    "wanted",
    [
        pa.schema([("a", pa.int32()), ("b", pa.string())]),
        pa.schema([("a", pa.int64()), ("b", pa.large_string())]),
        pa.schema([("b", pa.string()), ("a", pa.int64())]),
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())]),
        pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())]),
    ],
    ids=["wider", "another text", "another order", "a column more", "never null"],
)
def test_rows_of_another_schema_are_left_to_arrow(lake: Lake, wanted: pa.Schema) -> None:
    source = lake.write(pa.table({"a": [1], "b": ["x"]}))
    assert lake.take(source, np.zeros(1, np.int64), wanted) is None


def test_a_row_that_the_file_does_not_have_is_refused(lake: Lake) -> None:
    orders = _orders(10)
    source = lake.write(orders)
    with pytest.raises(Invalid, match="holds 10 rows, and not row 10"):
        lake.take(source, np.array([3, 10]), orders.schema)


def test_a_footer_is_written_as_it_was_read(lake: Lake) -> None:
    body = Path(lake.write(_orders(500), row_group_size=20).uri.removeprefix("file://")).read_bytes()
    size = int.from_bytes(body[-8:-4], "little")
    footer, end = read_struct(body, len(body) - 8 - size)
    assert end == len(body) - 8
    assert write_struct(footer) == body[-8 - size : -8]


@pytest.mark.parametrize("damaged", [b"", b"\x15", b"\x15" + b"\xff" * 100_000, b"\x1c" * 5_000, b"\x18\x7fshort"])
def test_damaged_metadata_is_refused(damaged: bytes) -> None:
    with pytest.raises(pa.ArrowInvalid, match="is damaged"):
        read_struct(damaged)


@given(st.data())
def test_a_damaged_file_is_refused_or_read_and_never_worse(one_lake: Lake, data: st.DataObject) -> None:
    orders = _orders(400)
    codec, dictionary = data.draw(st.sampled_from(["none", "snappy"])), data.draw(st.booleans())
    source = one_lake.write(orders, compression=codec, use_dictionary=dictionary, data_page_size=1_000)
    path = Path(source.uri.removeprefix("file://"))
    body = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(body)
    with suppress(Invalid):
        taken = one_lake.take(source, np.arange(400)[::-1].copy(), orders.schema)
        assert taken is None or [group.rows for group in taken] == [400]


@pytest.mark.parametrize("size", [-(2**63), -1, 0, 2**62])
def test_what_a_footer_says_of_a_chunks_plain_size_is_only_a_guess(size: int) -> None:
    plain = b"\x02\0\0\0ab\x01\0\0\0c"
    page = bytes(pa.compress(plain, "snappy"))
    header = {1: i32(0), 2: i64(len(plain)), 3: i32(len(page))}
    header[5] = structure({1: i32(2), 2: i32(0), 3: i32(3), 4: i32(3)})
    data = np.frombuffer(write_struct(header) + page, np.uint8)
    chunk = Mock(compression="SNAPPY", encodings=("PLAIN",), num_values=2, total_uncompressed_size=size)
    chunk.total_compressed_size = len(data)
    kind = ColumnType(name="x", physical="BYTE_ARRAY", width=0, optional=False, meaning="String", signed=True)
    values = read_column(kind, data, [(chunk, 0)]).values
    assert values.sizes(np.arange(2)).tolist() == [6, 5]


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62])
def test_a_page_that_claims_more_bytes_than_a_page_can_have_is_refused_before_there_is_room_for_them(size: int) -> None:
    header = {1: i32(0), 2: i64(size), 3: i32(1), 5: structure({1: i32(1), 2: i32(0), 3: i32(3), 4: i32(3)})}
    data = np.frombuffer(write_struct(header) + b"\0", np.uint8)
    chunk = Mock(compression="SNAPPY", encodings=("PLAIN",), num_values=1, total_uncompressed_size=1)
    chunk.total_compressed_size = len(data)
    kind = ColumnType(name="x", physical="BYTE_ARRAY", width=0, optional=False, meaning="String", signed=True)
    with pytest.raises(pa.ArrowInvalid, match="beyond its column chunk"):
        read_column(kind, data, [(chunk, 0)])
