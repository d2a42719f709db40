"""Row groups that pass on undecoded hold what Arrow would have written, and Arrow is asked for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock, patch

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.ranges import RangeReader
from compactor.tabular import TabularFile, TabularWriter, read_table, stored_schema
from compactor.tabular.formats import Source
from compactor.tabular.parquet_pages import chosen_rows, page_reader
from compactor.tabular.parquet_pages.page_format import PAGE_BYTES, PageHeaderField
from compactor.tabular.parquet_pages.page_reader import ColumnType, read_column
from compactor.tabular.parquet_pages.row_groups import RowGroup, open_rows
from compactor.tabular.parquet_pages.thrift import (
    UnknownKindError,
    i32,
    i64,
    number_in,
    read_struct,
    struct_in,
    structs_in,
    structure,
    write_struct,
)
from tests.arrow_types import KEY_TYPES, KeyType, Raw
from tests.fakes.memory_ranges import MemoryRanges
from tests.parquet_files import Lake, Rows, gathered_orders, orders_table


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
@settings(max_examples=12)
def test_rows_pass_on_as_arrow_would_have_taken_and_written_them(
    one_lake: Lake, kind: KeyType, data: st.DataObject
) -> None:
    written = data.draw(_files(kind))
    schema = stored_schema(written.table.schema, ContentType.PARQUET)
    source = one_lake.write(written.table, **written.options)
    is_remote, by_page = data.draw(st.booleans(), "is remote"), data.draw(st.booleans(), "by page")
    with patch.object(Source, "of", _far_source) if is_remote else nullcontext():
        taken = one_lake.take(source, written.rows, schema, written.groups, by_page=by_page)
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


def _far_source(_: StoreLocation, file: TabularFile) -> Source:
    """The file as if it were an object."""
    ranges = MemoryRanges({file.uri: Path(file.uri.removeprefix("file://")).read_bytes()})
    return Source(file, "", RangeReader(ranges))


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


def test_the_footer_names_lithify_whose_pages_they_are(lake: Lake) -> None:
    orders = orders_table(500)
    taken = lake.take(lake.write(orders), np.arange(500), orders.schema)
    assert taken is not None
    file, _ = lake.gather(orders.schema, *taken)
    footer = pq.read_metadata(file.uri.removeprefix("file://"))
    assert footer.created_by == f"lithify version {version('lithify')}"
    assert footer.row_group(0).column(0).is_stats_set


def test_row_groups_and_rows_that_arrow_encodes_stand_in_one_file(lake: Lake) -> None:
    orders = orders_table(50_000)
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


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("options", [{}, {"compression": "none", "use_dictionary": False}], ids=["usual", "as it is"])
def test_row_groups_that_are_read_page_by_page_are_the_same(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, is_remote: bool, options: dict[str, object]
) -> None:
    monkeypatch.setattr(chosen_rows, "WINDOW_BYTES", 100_000)
    orders = orders_table(50_000)
    source = lake.write(orders, row_group_size=20_000, data_page_size=30_000, **options)
    rows = np.random.default_rng(2).permutation(50_000)[:30_000]
    rows[:10_000].sort()
    with patch.object(Source, "of", _far_source) if is_remote else nullcontext():
        whole, by_page = (lake.take(source, rows, orders.schema, groups=3, by_page=each) for each in (False, True))
    assert whole is not None
    assert by_page is not None
    (one, one_measure), (other, other_measure) = (lake.gather(orders.schema, *groups) for groups in (whole, by_page))
    assert one_measure == other_measure
    assert read_table(lake.location, one).equals(read_table(lake.location, other))
    with pytest.raises(Invalid, match="and not row 50000"):
        lake.take(source, np.array([1, 50_000]), orders.schema, by_page=True)


def test_of_a_file_that_is_read_page_by_page_only_pages_with_wanted_rows_are_decompressed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = pa.table({"note": [f"{number} of many" for number in range(50_000)]})
    source = lake.write(orders, row_group_size=25_000, data_page_size=10_000, use_dictionary=False)
    decompress, sizes = page_reader._decompress, list[int]()

    def counted(codec: str, body: memoryview, page: npt.NDArray[np.uint8]) -> None:
        sizes.append(len(page))
        decompress(codec, body, page)

    monkeypatch.setattr(page_reader, "_decompress", counted)
    with open_rows(lake.location, source, [orders.schema]) as rows:
        assert rows is not None
        for first in range(0, 50_000, 5_000):
            taken = rows.take_some(np.arange(first, first + 5_000))
            assert taken is not None
            assert taken.rows == 5_000
    plain = sum(len(each) + 4 for each in orders["note"].to_pylist())
    assert plain <= sum(sizes) < 1.25 * plain, "all groups together read each page once, but for pages of two groups"


@pytest.mark.parametrize("is_remote", [False, True])
def test_only_the_row_groups_around_the_rows_are_decoded(lake: Lake, is_remote: bool) -> None:
    orders = orders_table(50_000)
    source = lake.write(orders, row_group_size=10_000)
    wanted = np.array([31_000, 12_345, 30_000])
    with (
        patch.object(Source, "of", _far_source) if is_remote else nullcontext(),
        open_rows(lake.location, source, [orders.schema]) as every,
        open_rows(lake.location, source, [orders.schema], (12_345, 31_000)) as rows,
    ):
        assert rows is not None
        assert every is not None
        assert rows.decoded_bytes < 0.7 * every.decoded_bytes
        assert rows.bounds_are_most
        taken = [rows.take(wanted, keep_decoded=keep) for keep in (True, False)]
        by_page = rows.take_some(wanted)
    for group in (*taken, by_page):
        assert group is not None
        assert read_table(lake.location, lake.gather(orders.schema, group)[0]).equals(orders.take(wanted))


def test_a_file_may_be_of_row_groups_alone_or_of_nothing(lake: Lake) -> None:
    orders = orders_table(100)
    taken = lake.take(lake.write(orders), np.arange(100)[::-1].copy(), orders.schema)
    assert taken is not None
    assert read_table(lake.location, lake.gather(orders.schema, *taken)[0]).equals(orders.take(np.arange(100)[::-1]))
    nothing, measure = lake.gather(orders.schema)
    assert measure.rows == 0
    assert read_table(lake.location, nothing).schema == orders.schema


def test_pages_stay_small_and_columns_keep_the_encoding_that_pays(lake: Lake) -> None:
    orders = orders_table(200_000)
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


def test_incompressible_columns_are_stored_plain(lake: Lake) -> None:
    random = np.random.default_rng(3)
    noise = [random.bytes(100) for _ in range(5_000)]
    table = pa.table({"noise": noise, "words": [f"all work and no play {number}" for number in range(5_000)]})
    taken = lake.take(lake.write(table, use_dictionary=False), np.arange(4_000), table.schema)
    assert taken is not None
    file, measure = lake.gather(table.schema, *taken)
    group = pq.read_metadata(file.uri.removeprefix("file://")).row_group(0)
    assert [group.column(each).compression for each in range(2)] == ["UNCOMPRESSED", "SNAPPY"]
    assert measure.size_bytes < 4_000 * (100 + 4) + 4_000 * 20
    keep_decoded = lake.take(file, np.arange(4_000)[::-1].copy(), table.schema)
    assert keep_decoded is not None
    assert read_table(lake.location, lake.gather(table.schema, *keep_decoded)[0]).equals(
        table.take(np.arange(4_000)[::-1])
    )


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


def test_duckdb_reads_the_same(lake: Lake) -> None:
    path, expected = gathered_orders(lake)
    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet($1)", [str(path)]).fetchall()
        counting = "SELECT count(*) FROM read_parquet($1) WHERE id < 100 AND status = 'new'"
        counted = connection.execute(counting, [str(path)]).fetchall()
    assert found == [tuple(row.values()) for row in expected.to_pylist()]
    assert counted == [(expected.filter((pc.field("id") < 100) & (pc.field("status") == "new")).num_rows,)]


def test_polars_whose_reader_is_in_rust_reads_the_same(lake: Lake) -> None:
    path, expected = gathered_orders(lake)
    assert pl.read_parquet(path, use_pyarrow=False).rows() == [tuple(row.values()) for row in expected.to_pylist()]
    few = pl.scan_parquet(path).filter((pl.col("id") < 100) & (pl.col("status") == "new")).collect()
    assert len(few) == expected.filter((pc.field("id") < 100) & (pc.field("status") == "new")).num_rows


def test_arrow_reads_the_same(lake: Lake) -> None:
    path, expected = gathered_orders(lake)
    assert pq.read_table(path, page_checksum_verification=True).equals(expected)
    where = (pc.field("id") < 100) & (pc.field("status") == "new")
    assert pq.read_table(path, filters=where).equals(expected.filter(where))


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
def test_unknown_page_kinds_are_left_to_arrow(lake: Lake, table: pa.Table, options: dict[str, object]) -> None:
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
    orders = orders_table(10)
    source = lake.write(orders)
    with pytest.raises(Invalid, match="holds 10 rows, and not row 10"):
        lake.take(source, np.array([3, 10]), orders.schema)


def test_a_footer_is_written_as_it_was_read(lake: Lake) -> None:
    body = Path(lake.write(orders_table(500), row_group_size=20).uri.removeprefix("file://")).read_bytes()
    size = int.from_bytes(body[-8:-4], "little")
    footer, end = read_struct(body, len(body) - 8 - size)
    assert end == len(body) - 8
    assert write_struct(footer) == body[-8 - size : -8]


@pytest.mark.parametrize("damaged", [b"", b"\x15", b"\x15" + b"\xff" * 100_000, b"\x1c" * 5_000, b"\x18\x7fshort"])
def test_damaged_metadata_is_refused(damaged: bytes) -> None:
    with pytest.raises(pa.ArrowInvalid, match="is damaged"):
        read_struct(damaged)


KINDS_UNKNOWN = [0, 10, 11, 13, 14, 15]
"""The end of a struct where a field must be, a set, a map, a UUID, and what the protocol has no type for."""


@pytest.mark.parametrize("kind", KINDS_UNKNOWN)
@pytest.mark.parametrize(
    "place", [lambda kind: [0x10 | kind], lambda kind: [0x19, 0x10 | kind]], ids=["a field", "an element"]
)
def test_a_value_of_an_unknown_kind_is_refused_and_not_guessed_at(kind: int, place: Callable[[int], list[int]]) -> None:
    with pytest.raises(UnknownKindError, match=f"kind {kind}$"):
        read_struct(bytes([*place(kind), 0, 0, 0, 0, 0]))


def test_a_page_whose_header_has_a_value_of_an_unknown_kind_is_left_to_arrow(lake: Lake) -> None:
    orders = pa.table({"id": pa.array(range(100), pa.int64())})
    source = lake.write(orders, compression="none", use_dictionary=False)
    path = Path(source.uri.removeprefix("file://"))
    body, start = path.read_bytes(), pq.read_metadata(path).row_group(0).column(0).data_page_offset
    header, end = read_struct(body, start)
    an_empty_map = bytes([0xFB, 0])  # field 20, counted from field 5
    longer = write_struct(header)[:-1] + an_empty_map + b"\0"
    size = int.from_bytes(body[-8:-4], "little")
    footer, _ = read_struct(body, len(body) - 8 - size)
    (group,) = structs_in(footer, 4)
    metadata = struct_in(structs_in(group, 1)[0], 3)
    metadata[7] = i64(number_in(metadata, 7) + len(an_empty_map))
    metadata[6] = i64(number_in(metadata, 6) + len(an_empty_map))
    tail = write_struct(footer)
    pages = body[:start] + longer + body[end : len(body) - 8 - size]
    path.write_bytes(pages + tail + len(tail).to_bytes(4, "little") + b"PAR1")
    assert pq.read_table(path).equals(orders)
    assert lake.take(source, np.arange(100), orders.schema) is None


def _pages(body: bytes) -> list[tuple[int, int]]:
    """Where the bytes of each page lie, without its header."""
    found = []
    metadata = pq.read_metadata(pa.BufferReader(body))
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            place = chunk.dictionary_page_offset or chunk.data_page_offset
            end = place + chunk.total_compressed_size
            while place < end:
                header, start = read_struct(body, place)
                place = start + number_in(header, PageHeaderField.COMPRESSED_PAGE_SIZE)
                found.append((start, place))
    return found


@pytest.fixture(scope="module")
def own_pages(one_lake: Lake) -> Path:
    orders = orders_table(3_000)
    taken = one_lake.take(one_lake.write(orders), np.arange(3_000), orders.schema)
    assert taken is not None
    path = Path(one_lake.gather(orders.schema, *taken)[0].uri.removeprefix("file://"))
    return path.rename(path.with_name("own-pages.parquet"))


def test_arrow_verifies_the_checksum_of_each_page(own_pages: Path) -> None:
    body = own_pages.read_bytes()
    assert pq.read_table(pa.BufferReader(body), page_checksum_verification=True).equals(orders_table(3_000))
    pages = _pages(body)
    assert len(pages) >= 5, "four columns, one with a dictionary"
    for start, end in pages:
        damaged = bytearray(body)
        damaged[(start + end) // 2] ^= 0x10
        with pytest.raises(OSError, match=r"could not verify page integrity, CRC checksum verification failed"):
            pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)


@given(data=st.data())
def test_no_damage_to_a_page_that_has_a_checksum_is_read(one_lake: Lake, own_pages: Path, data: st.DataObject) -> None:
    body = own_pages.read_bytes()
    start, end = data.draw(st.sampled_from(_pages(body)))
    damaged = bytearray(body)
    damaged[data.draw(st.integers(start, end - 1))] ^= data.draw(st.integers(1, 255))
    path = own_pages.with_name("damaged.parquet")
    path.write_bytes(damaged)
    with pytest.raises(Invalid, match="checksum"):
        one_lake.take(TabularFile(f"file://{path}", ContentType.PARQUET), np.arange(3_000), orders_table(3_000).schema)


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_checksums_of_other_writers_are_verified(lake: Lake, codec: str) -> None:
    orders = orders_table(500)
    source = lake.write(orders, write_page_checksum=True, compression=codec)
    assert lake.take(source, np.arange(500), orders.schema) is not None
    path = Path(source.uri.removeprefix("file://"))
    damaged = bytearray(path.read_bytes())
    damaged[_pages(bytes(damaged))[-1][1] - 1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Invalid, match="checksum"):
        lake.take(source, np.arange(500), orders.schema)


@given(st.data())
def test_a_damaged_file_is_refused_or_read_as_arrow_reads_it(one_lake: Lake, data: st.DataObject) -> None:
    orders = orders_table(400)
    codec, dictionary = data.draw(st.sampled_from(["none", "snappy"])), data.draw(st.booleans())
    source = one_lake.write(orders, compression=codec, use_dictionary=dictionary, data_page_size=1_000)
    path = Path(source.uri.removeprefix("file://"))
    body = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(body)
    by_page = data.draw(st.booleans(), "by page")
    with suppress(Invalid):
        taken = one_lake.take(source, np.arange(400)[::-1].copy(), orders.schema, by_page=by_page)
        if taken is not None:
            _compare_with_arrow(one_lake, taken, path, orders.schema)


def _compare_with_arrow(lake: Lake, taken: list[RowGroup], damaged: Path, schema: pa.Schema) -> None:
    """Values, unless Arrow refuses the file: what it decodes and looks into, moves here as it is."""
    try:
        by_arrow = pq.read_table(damaged)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return
    gathered, _ = lake.gather(schema, *taken)
    ours = pq.read_table(gathered.uri.removeprefix("file://"))
    assert _spelled(ours) == list(reversed(_spelled(by_arrow)))


def _spelled(table: pa.Table) -> list[str]:
    """Rows as text: bytes that are no text any more, and numbers that are none, are equal to themselves."""
    plain = [column.cast(pa.binary()) if column.type == pa.string() else column for column in table.columns]
    return [repr(row) for row in pa.Table.from_arrays(plain, names=table.column_names).to_pylist()]


@pytest.mark.parametrize("size", [-(2**63), -1, 0, 2**62])
def test_the_plain_size_of_a_chunk_in_a_footer_is_only_an_estimate(size: int) -> None:
    plain = b"\x02\0\0\0ab\x01\0\0\0c"
    page = bytes(pa.compress(plain, "snappy"))
    header = {1: i32(0), 2: i64(len(plain)), 3: i32(len(page))}
    header[5] = structure({1: i32(2), 2: i32(0), 3: i32(3), 4: i32(3)})
    data = np.frombuffer(write_struct(header) + page, np.uint8)
    chunk = Mock(compression="SNAPPY", encodings=("PLAIN",), num_values=2, total_uncompressed_size=size)
    chunk.total_compressed_size = len(data)
    kind = ColumnType(name="x", physical="BYTE_ARRAY", width=0, optional=False, logical_type="String", signed=True)
    values = read_column(kind, data, [(chunk, 0)]).values
    assert values.sizes(np.arange(2)).tolist() == [6, 5]


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62])
def test_a_page_that_claims_more_bytes_than_a_page_can_have_is_refused_before_there_is_room_for_them(size: int) -> None:
    header = {1: i32(0), 2: i64(size), 3: i32(1), 5: structure({1: i32(1), 2: i32(0), 3: i32(3), 4: i32(3)})}
    data = np.frombuffer(write_struct(header) + b"\0", np.uint8)
    chunk = Mock(compression="SNAPPY", encodings=("PLAIN",), num_values=1, total_uncompressed_size=1)
    chunk.total_compressed_size = len(data)
    kind = ColumnType(name="x", physical="BYTE_ARRAY", width=0, optional=False, logical_type="String", signed=True)
    with pytest.raises(pa.ArrowInvalid, match="beyond its column chunk"):
        read_column(kind, data, [(chunk, 0)])
