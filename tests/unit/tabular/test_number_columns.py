"""Columns of numbers are read from their pages, and are what Arrow reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation, parse_location
from compactor.tabular import TabularFile, read_batches, read_table
from compactor.tabular.parquet_pages import arrow_files
from compactor.tabular.parquet_pages.arrow_files import chunk_span
from tests.arrow_types import KEY_TYPES, KeyType

NUMBERS = [
    kind
    for kind in KEY_TYPES
    if (pa.types.is_integer(kind.arrow_type) and kind.arrow_type.bit_width >= 32)
    or kind.arrow_type in (pa.float32(), pa.float64(), pa.date32())
    or pa.types.is_timestamp(kind.arrow_type)
    or pa.types.is_time(kind.arrow_type)
]
OPTIONS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
        "use_dictionary": st.booleans(),
        "data_page_size": st.sampled_from([1, 100, 1024 * 1024]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "row_group_size": st.sampled_from([3, 50, 1000]),
    }
)


@pytest.fixture(scope="module", autouse=True)
def no_file_is_small() -> Iterator[None]:
    with patch.object(arrow_files, "SMALL_FILE_BYTES", 0):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> StoreLocation:
    folder = tmp_path_factory.mktemp("numbers")
    return parse_location(str(folder))


def write(place: StoreLocation, table: pa.Table, **options: object) -> TabularFile:
    file = TabularFile(f"{place.root_uri}/x.parquet", ContentType.PARQUET)
    pq.write_table(table, file.uri.removeprefix("file://"), **options)
    return file


def read_without_arrow(place: StoreLocation, file: TabularFile, columns: Sequence[str]) -> pa.Table:
    with patch.object(pq.ParquetFile, "iter_batches", side_effect=AssertionError("Arrow was asked")):
        return pa.Table.from_batches(read_batches(place, file, columns))


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
@settings(max_examples=10)
@given(data=st.data(), options=OPTIONS)
def test_batches_hold_what_arrow_reads_of_every_type(
    place: StoreLocation, kind: KeyType, data: st.DataObject, options: dict[str, object]
) -> None:
    in_milliseconds = str(kind).startswith("timestamp[s")
    raw = st.integers(-(2**40), 2**40) if in_milliseconds else kind.values
    values = data.draw(st.lists(st.none() | raw, min_size=1, max_size=20)) * data.draw(st.sampled_from([1, 9]))
    table = pa.table({"row": range(len(values)), "it": kind.array(values)})
    file = write(place, table, **options)
    read, expected = (
        pa.Table.from_batches(read_batches(place, file, ["it", "row"])),
        read_table(place, file, ["it", "row"]),
    )
    assert read.schema.equals(expected.schema)
    if pa.types.is_floating(kind.arrow_type):
        # NaN equals nothing.
        assert list(map(repr, read["it"].to_pylist())) == list(map(repr, expected["it"].to_pylist()))
    else:
        plain = getattr(kind.arrow_type, "value_type", kind.arrow_type)
        assert read["it"].cast(plain).equals(expected["it"].cast(plain))
    assert read["row"].to_pylist() == list(range(len(values)))


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_arrow_is_not_asked_for_numbers(place: StoreLocation, kind: KeyType, use_dictionary: bool) -> None:
    values = [None, 1, 2, 3, None, 2] * 100
    file = write(place, pa.table({"it": kind.array(values), "text": ["x"] * 600}), use_dictionary=use_dictionary)
    assert read_without_arrow(place, file, ["it"]) == read_table(place, file, ["it"])


def test_numbers_that_cannot_be_null_are_read(place: StoreLocation) -> None:
    schema = pa.schema([pa.field("it", pa.int64(), nullable=False)])
    file = write(place, pa.table([pa.array(range(100_000), pa.int64())], schema=schema))
    assert read_without_arrow(place, file, ["it"])["it"].to_pylist() == list(range(100_000))


def test_of_no_rows_there_are_no_batches(place: StoreLocation) -> None:
    file = write(place, pa.table({"it": pa.array([], pa.int64())}))
    assert sum(batch.num_rows for batch in read_batches(place, file, ["it"])) == 0


def test_a_batch_of_numbers_is_bounded(place: StoreLocation) -> None:
    file = write(place, pa.table({"it": np.arange(400_000), "text": ["x" * 200] * 400_000}))
    assert max(batch.num_rows for batch in read_batches(place, file, ["it"])) <= 131_072


def test_more_numbers_than_fit_at_once_are_left_to_arrow(place: StoreLocation) -> None:
    file = write(place, pa.table({"it": np.arange(1000)}))
    with (
        patch("compactor.tabular.parquet_pages.numbers.BYTES_MAX", 7_999),
        pytest.raises(AssertionError, match="Arrow was asked"),
    ):
        read_without_arrow(place, file, ["it"])


@pytest.mark.parametrize("flat_first", [True, False])
def test_a_column_whose_name_is_also_a_nested_one_s_path_is_not_mistaken(
    place: StoreLocation, flat_first: bool
) -> None:
    nested = pa.field("a", pa.struct([pa.field("b", pa.int64())]), nullable=False)
    columns = {nested: [{"b": 3}, {"b": 4}], pa.field("a.b", pa.int64()): [1, 2]}
    fields = sorted(columns, key=lambda field: field.name == "a.b", reverse=flat_first)
    file = write(place, pa.table([pa.array(columns[field], field.type) for field in fields], schema=pa.schema(fields)))
    assert [batch.to_pydict() for batch in read_batches(place, file, ["a"])] == [{"a": [{"b": 3}, {"b": 4}]}]
    with pytest.raises(AssertionError, match="Arrow was asked"):
        read_without_arrow(place, file, ["a.b"])


def test_a_column_chunk_that_would_end_beyond_its_file_is_refused_before_it_is_read() -> None:
    chunk = Mock(num_values=1, data_page_offset=4, dictionary_page_offset=None, total_compressed_size=96)
    assert chunk_span(chunk, 100) == (4, 96)
    with pytest.raises(pa.ArrowInvalid, match="beyond the file"):
        chunk_span(chunk, 99)


def test_a_page_that_is_passed_over_for_its_kind_makes_no_file_without_rows(place: StoreLocation) -> None:
    file = write(place, pa.table({"it": range(3_000)}), use_dictionary=False)
    path = Path(file.uri.removeprefix("file://"))
    whole = bytearray(path.read_bytes())
    assert whole[4:6] == b"\x15\x00"  # of the page's header the field with its kind: a data page
    whole[5] = 2  # an index page
    path.write_bytes(whole)
    assert pq.read_table(path).num_rows == 0
    for read in (read_table, lambda *given: list(read_batches(*given))):
        with pytest.raises(Invalid, match="its pages hold 0 rows, but its footer says 3000"):
            read(place, file)


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_numbers_are_refused_or_read_as_arrow_reads_them(place: StoreLocation, data: st.DataObject) -> None:
    values = np.arange(3_000) % data.draw(st.sampled_from([50, 3_000]))
    file = write(place, pa.table({"it": pa.array(values, mask=values == 7)}), data_page_size=4_000)
    path = Path(file.uri.removeprefix("file://"))
    whole = bytearray(path.read_bytes())
    pages_end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(4, pages_end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    with suppress(Invalid):
        ours = pa.Table.from_batches(read_batches(place, file, ["it"]))
        assert ours.num_rows == len(values)
        try:
            by_arrow = pq.read_table(path)
        except (pa.ArrowException, OSError):
            return
        assert ours["it"].to_pylist() == by_arrow["it"].to_pylist()


def test_arrow_reads_a_small_file_and_compares_the_checksums_of_its_pages(place: StoreLocation) -> None:
    file = write(place, pa.table({"it": range(3_000)}), use_dictionary=False, write_page_checksum=True)
    path = Path(file.uri.removeprefix("file://"))
    whole = bytearray(path.read_bytes())
    whole[-len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with patch.object(arrow_files, "SMALL_FILE_BYTES", len(whole) + 1):
        with pytest.raises(AssertionError, match="Arrow was asked"):
            read_without_arrow(place, file, ["it"])
        with pytest.raises(Invalid, match="checksum"):
            list(read_batches(place, file, ["it"]))
