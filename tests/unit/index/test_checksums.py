"""The log records the checksum of each index file and of its pointers, and who reads one whole compares it; the file
itself has sums of its pages."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from compactor.catalog.keys import StreamFolder
from compactor.index.files import IndexTarget, Prefetch, open_bucket, read_bucket, write_bucket, write_pointers
from compactor.index.layout import IndexRows
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import RangeReader
from compactor.storage.sending import Sending
from tests.fakes.memory_ranges import MemoryRanges

ROWS = 1_000


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    return StoreLocation(f"file://{tmp_path}")


@pytest.fixture(params=[0, ROWS + 1], ids=["packed", "not packed"])
def file(location: StoreLocation, request: pytest.FixtureRequest) -> IndexFile:
    """An index file with pointers of its own beside it."""
    target = IndexTarget(StreamFolder("ACME.SUMS.V1", ()), 1, "c" * 32, ROWS, packed_rows_min=request.param)
    words = np.sort(np.random.default_rng(1).integers(0, 2**32, (ROWS, 5), dtype=np.uint32), axis=0)
    numbers, indices = np.ones(ROWS, np.int32), np.arange(ROWS, dtype=np.int64)
    rows = IndexRows(words, numbers, indices, np.empty((ROWS, 0), np.uint8))
    (written,) = write_bucket(location, target, 0, rows, (), "a" * 16, sending=Sending(0))
    return write_pointers(location, target, written, numbers, indices[::-1].copy(), "b" * 16, sending=Sending(0))


def path_of(location: StoreLocation, key: str) -> Path:
    return Path(location.root_uri.removeprefix("file://")) / key


def damage(path: Path) -> None:
    """Changes one bit in the middle, where the columns lie."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def remote(location: StoreLocation, file: IndexFile) -> RangeReader:
    """A reader of the same bytes, as objects of a store."""
    return RangeReader(
        MemoryRanges({f"{location.root_uri}/{path}": path_of(location, path).read_bytes() for path in file.paths})
    )


def test_the_log_records_the_checksums_of_the_bytes_that_were_written(location: StoreLocation, file: IndexFile) -> None:
    assert file.pointers is not None
    recorded = [file.crc32, file.pointers.crc32]
    assert recorded == [zlib.crc32(path_of(location, path).read_bytes()) for path in file.paths]
    assert len(read_bucket(location, [file])) == ROWS


@pytest.mark.parametrize("damaged", [0, 1], ids=["its digests", "its pointers"])
@pytest.mark.parametrize("is_remote", [False, True])
def test_a_file_of_which_one_bit_has_changed_is_corrupt_and_named(
    location: StoreLocation, file: IndexFile, damaged: int, is_remote: bool
) -> None:
    path = file.paths[damaged]
    damage(path_of(location, path))
    reader = remote(location, file) if is_remote else None
    with pytest.raises(Corrupt, match=rf"{path} is damaged: its CRC-32 is .*, but the log says"):
        open_bucket(location, [file], reader=reader)


def test_of_a_remote_file_of_which_only_some_bytes_are_read_the_pages_are_compared(
    location: StoreLocation, file: IndexFile
) -> None:
    some = Prefetch(file_numbers=True, everything=False)
    (segment,) = open_bucket(location, [file], prefetch=some, reader=remote(location, file))
    assert segment.file_numbers.tolist() == [1] * ROWS
    damage(path_of(location, file.paths[1]))
    with pytest.raises(Corrupt, match=rf"{file.paths[1]} is damaged"):
        open_bucket(location, [file], prefetch=some, reader=remote(location, file))


def test_a_file_of_an_earlier_release_has_no_checksum_and_is_read(location: StoreLocation, file: IndexFile) -> None:
    assert file.pointers is not None
    pointers = file.pointers.model_copy(update={"crc32": None})
    before = file.model_copy(update={"crc32": None, "pointers": pointers})
    damage(path_of(location, file.path))
    assert len(open_bucket(location, [before])) == 1
