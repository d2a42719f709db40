"""A key is found in the index whatever its size, its runs and its parts, and in a bounded number of reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.keys import TableFolder
from compactor.index.files import IndexTarget, open_bucket, write_bucket, write_pointers
from compactor.index.layout import TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER, IndexRows
from compactor.index.range_lookup import RowPointer, find_pointer
from compactor.model.files import IndexFile
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from compactor.storage.sending import Sending
from tests.effort import examples
from tests.fakes.faulty_store import FaultyStore
from tests.properties.folders import fresh_folder

FOLDER = TableFolder("ACME.ORDERS.V1").stream({})
PACKED, NOT_PACKED = 0, 1 << 40
"""From how many rows on pointers are packed: runs take turns."""


def digest_of(key: int) -> bytes:
    return hashlib.sha1(str(key).encode()).digest()


def write_run(
    location: StoreLocation, run: int, pointers: dict[bytes, tuple[int, int]], rows_per_file: int
) -> list[IndexFile]:
    """One run of a bucket's index, from digest to (file number, row index)."""
    digests = sorted(pointers)
    rows = IndexRows(
        np.frombuffer(b"".join(digests), ">u4").astype(np.uint32).reshape(-1, 5),
        np.array([pointers[digest][0] for digest in digests], np.int32),
        np.array([pointers[digest][1] for digest in digests], np.int64),
        np.empty((len(digests), 0), np.uint8),
    )
    target = IndexTarget(FOLDER, run, f"c{run}", rows_per_file, packed_rows_min=PACKED if run % 2 else NOT_PACKED)
    return list(write_bucket(location, target, 0, rows, (), "a1", sending=Sending(0)))


def repoint(location: StoreLocation, run: int, file: IndexFile, distance: int) -> IndexFile:
    """The file with new pointers, as a later run leaves it: all of its rows have moved on by so many."""
    [segment] = open_bucket(location, [file])
    is_row = segment.file_numbers > TOMBSTONE_FILE_NUMBER
    row_indices = segment.row_indices + distance * is_row
    target = IndexTarget(FOLDER, run, f"c{run}", 1, packed_rows_min=PACKED if run % 3 else NOT_PACKED)
    return write_pointers(location, target, file, segment.file_numbers, row_indices, "a2", sending=Sending(0))


def find(store: ObjectStore, files: list[IndexFile], key: int) -> RowPointer | None:
    return find_pointer(store, files, digest_of(key))


runs_of_keys = st.lists(
    st.dictionaries(
        st.integers(0, 300),
        st.tuples(st.sampled_from([TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER, 1, 2]), st.integers(0, 9)),
        max_size=200,
    ),
    min_size=1,
    max_size=3,
)


@examples(0.3)
@given(runs_of_keys, st.sampled_from([1, 2, 7, 50, 1_000]), st.integers(0, 5))
def test_every_key_has_the_pointer_that_the_newest_run_says(
    runs: list[dict[int, tuple[int, int]]], rows_per_file: int, times_moved: int
) -> None:
    with fresh_folder() as folder:
        location = StoreLocation(f"file://{folder}")
        files = []
        for run, keys in enumerate(runs, 1):
            pointers = {digest_of(key): pointer for key, pointer in keys.items()}
            files += write_run(location, run, pointers, rows_per_file)
        for time in range(times_moved):
            files = [repoint(location, len(runs) + 1 + time, file, 10) for file in files]
        truth = {key: pointer for keys in runs for key, pointer in keys.items()}
        store = open_store(location)
        for key in range(302):
            number, row = truth.get(key, (TOMBSTONE_FILE_NUMBER, 0))
            assert find(store, files, key) == (RowPointer(number, row + 10 * times_moved) if number > 0 else None)


@pytest.fixture(scope="module")
def big_index(tmp_path_factory: pytest.TempPathFactory) -> tuple[FaultyStore, list[IndexFile]]:
    """200,000 keys in four files."""
    folder: Path = tmp_path_factory.mktemp("index")
    location = StoreLocation(f"file://{folder}")
    files = write_run(location, 1, {digest_of(key): (1, key) for key in range(200_000)}, 50_000)
    return FaultyStore(LocalStore(location)), files


def test_a_key_of_a_big_index_is_found_in_four_reads(big_index: tuple[FaultyStore, list[IndexFile]]) -> None:
    store, files = big_index
    reads = []
    for key in range(0, 200_000, 997):
        store.requests.clear()
        assert find(store, files, key) == RowPointer(1, key)
        reads.append(len(store.requests))
    assert sorted(reads)[len(reads) // 2] == 4
    assert max(reads) <= 8


def test_pointers_that_replace_a_file_s_own_cost_one_read_more(tmp_path: Path) -> None:
    location = StoreLocation(f"file://{tmp_path}")
    keys = {digest_of(key): (1, key) for key in range(50_000)}
    files = [repoint(location, 2, file, 7) for file in write_run(location, 1, keys, 50_000)]
    store = FaultyStore(LocalStore(location))
    reads = []
    for key in range(0, 50_000, 997):
        store.requests.clear()
        assert find(store, files, key) == RowPointer(1, key + 7)
        reads.append(len(store.requests))
    assert sorted(reads)[len(reads) // 2] == 5


def test_a_key_that_is_not_there_ends_in_as_few_reads_even_at_the_border_of_a_window(
    big_index: tuple[FaultyStore, list[IndexFile]],
) -> None:
    store, files = big_index
    for key in range(200_000, 202_000):
        store.requests.clear()
        assert find(store, files, key) is None
        assert len(store.requests) <= 8


@pytest.mark.parametrize("rows_per_file", [10_000, 300])
def test_digests_that_are_not_where_they_are_expected_are_found_too_and_absent_ones_end_the_search(
    rows_per_file: int, tmp_path: Path
) -> None:
    """No SHA-1 is like that. But the search has to cross many windows and files, and meets all of their borders."""
    location = StoreLocation(f"file://{tmp_path}")
    crowded = [(2 * number).to_bytes(20, "big") for number in range(3_000)]
    files = write_run(location, 1, {digest: (1, row) for row, digest in enumerate(crowded)}, rows_per_file)
    store = FaultyStore(LocalStore(location))
    for row in range(0, 3_000, 7):
        assert find_pointer(store, files, crowded[row]) == RowPointer(1, row)
    for number in range(1, 6_000, 2):
        store.requests.clear()
        assert find_pointer(store, files, number.to_bytes(20, "big")) is None
        assert len(store.requests) <= 30
    assert find_pointer(store, files, b"\xff" * 20) is None
