"""Records as frames: what a task sends is what the next one gets, and may be written to."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pyspark import SparkContext
from pyspark.serializers import SpecialLengths

from compactor.engine.record_files import record_files
from compactor.engine.records import FILE_BYTES_MIN, RecordSerializer, record_serializer

RECORDS = RecordSerializer()


@pytest.fixture(scope="module")
def in_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordSerializer]:
    """Every record, however small, lies in a file."""
    with record_files(tmp_path_factory.mktemp("scratch")) as files:
        yield RecordSerializer(files)


@dataclass(frozen=True)
class Record:
    name: str
    numbers: npt.NDArray[np.generic]
    more: tuple[npt.NDArray[np.generic], ...]


arrays = hnp.arrays(
    st.sampled_from([np.uint8, np.bool_, np.int16, np.uint32, np.int32, np.int64, np.float64]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9),
)
records = st.builds(Record, st.text(), arrays, st.lists(arrays, max_size=3).map(tuple))


def _stream_of(given_records: list[Record], end: bytes, serializer: RecordSerializer = RECORDS) -> io.BufferedReader:
    stream = io.BytesIO()
    serializer.dump_stream(given_records, stream)  # type: ignore[no-untyped-call]
    return io.BufferedReader(io.BytesIO(stream.getvalue() + end))


END = struct.pack("!i", SpecialLengths.END_OF_DATA_SECTION)


@given(sent=st.lists(records, max_size=4), through_spark=st.booleans())
def test_records_come_out_as_they_went_in(in_files: RecordSerializer, sent: list[Record], through_spark: bool) -> None:
    serializer = RECORDS if through_spark else in_files
    received = list(RECORDS.load_stream(_stream_of(sent, END, serializer)))
    assert len(received) == len(sent)
    for before, after in zip(sent, received, strict=True):
        assert isinstance(after, Record)
        assert after.name == before.name
        for expected, array in zip((before.numbers, *before.more), (after.numbers, *after.more), strict=True):
            np.testing.assert_array_equal(array, expected)
            assert array.dtype == expected.dtype
            # Kernels take no others.
            assert array.flags.writeable
            assert array.flags.aligned
            assert array.flags.c_contiguous


def test_a_deserialized_array_is_its_own_part_of_the_frame() -> None:
    sent = Record("", np.arange(3, dtype=np.uint8), (np.arange(5, dtype=np.int64),))
    record = RECORDS.loads(RECORDS.dumps(sent))
    assert isinstance(record, Record)
    record.numbers[:] = 255
    assert record.more[0].tolist() == [0, 1, 2, 3, 4]


def test_an_array_that_does_not_lie_in_one_piece_is_sent_all_the_same() -> None:
    every_second = np.arange(10, dtype=np.int32)[::2]
    record = RECORDS.loads(RECORDS.dumps(Record("", every_second, ())))
    assert isinstance(record, Record)
    assert record.numbers.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("end", [b"", END, END + b"more"])
def test_records_end_with_the_connection_or_where_it_says_so(end: bytes) -> None:
    stream = _stream_of([Record("a", np.arange(2), ()), Record("b", np.arange(2), ())], end)
    assert len(list(RECORDS.load_stream(stream))) == 2


@pytest.mark.parametrize("kept", [2, 20, 60])
def test_a_stream_that_breaks_off_is_no_end(kept: int) -> None:
    whole = _stream_of([Record("x", np.arange(9), ())], b"").read()
    with pytest.raises((EOFError, struct.error)):
        list(RECORDS.load_stream(io.BufferedReader(io.BytesIO(whole[:kept]))))


def test_only_a_large_record_lies_in_a_file(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        serializer = RecordSerializer(files, FILE_BYTES_MIN)
        small, large = np.zeros(FILE_BYTES_MIN // 2, np.uint8), np.zeros(FILE_BYTES_MIN, np.uint8)
        assert len(serializer.dumps(small)) > len(small)
        assert len(serializer.dumps(large)) < 1_000
        (file,) = tmp_path.glob("records-*/*")
        assert file.stat().st_size > len(large)


@pytest.mark.parametrize(
    ("master", "in_files"),
    [("local", True), ("local[2]", True), ("local[*]", True), ("local[2,4]", False), ("local-cluster[2,1,1024]", False)]
    + [("yarn", False), ("spark://host:7077", False), ("k8s://https://host", False)],
)
def test_records_lie_in_files_only_where_no_task_runs_twice_and_no_disk_is_lost(
    master: str, in_files: bool, tmp_path: Path
) -> None:
    spark = cast("SparkContext", SimpleNamespace(master=master, _temp_dir=str(tmp_path)))
    with record_serializer(spark) as serializer:
        serializer.dumps(np.zeros(FILE_BYTES_MIN, np.uint8))
        assert bool(list(tmp_path.glob("records-*/*"))) == in_files
