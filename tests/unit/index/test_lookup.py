"""A key is found in the index whatever its size, its runs and its parts, and in a bounded number of reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.keys import TableFolder
from compactor.index import files as index_files
from compactor.index.files import IndexTarget, RowPointer, find_row, open_bucket, write_bucket, write_pointers
from compactor.index.layout import TOMBSTONE_FILE_NUMBER, VOID_FILE_NUMBER, IndexRows
from compactor.index.paged_file import FolderPages, KeptFiles
from compactor.kernels.sha1 import Digests
from compactor.model.files import IndexFile
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import Span
from compactor.storage.sending import Sending
from tests.effort import examples
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


class CountingPages(FolderPages):
    """Pages of a folder, of which each request is counted, and how often one waits for some."""

    def __init__(self) -> None:
        self.requests = self.waits = 0

    def read(self, uri: str, spans: Sequence[Span], join_gap_bytes: int) -> list[memoryview]:
        self.requests += len(spans)
        self.waits += bool(spans)
        return super().read(uri, spans, join_gap_bytes)


def words_of(digest: bytes) -> Digests:
    return np.frombuffer(digest, ">u4").astype(np.uint32).reshape(1, 5)


def find(location: StoreLocation, files: list[IndexFile], digest: bytes) -> tuple[RowPointer | None, CountingPages]:
    """In a process that has read nothing of the index yet."""
    pages = CountingPages()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_files, "_KEPT", KeptFiles())
        return find_row(location, files, words_of(digest), pages), pages


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
        for key in range(0, 302, 5):
            number, row = truth.get(key, (TOMBSTONE_FILE_NUMBER, 0))
            expected = RowPointer(number, row + 10 * times_moved) if number > 0 else None
            assert find(location, files, digest_of(key))[0] == expected


@pytest.fixture(scope="module")
def big_index(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoreLocation, list[IndexFile]]:
    """200,000 keys in four files."""
    location = StoreLocation(f"file://{tmp_path_factory.mktemp('index')}")
    return location, write_run(location, 1, {digest_of(key): (1, key) for key in range(200_000)}, 50_000)


def test_a_key_of_a_big_index_is_found_by_few_requests_that_are_sent_together(
    big_index: tuple[StoreLocation, list[IndexFile]],
) -> None:
    location, files = big_index
    requests, waits = [], []
    for key in range(0, 200_000, 997):
        pointer, pages = find(location, files, digest_of(key))
        assert pointer == RowPointer(1, key)
        requests.append(pages.requests)
        waits.append(pages.waits)
    assert sorted(waits)[len(waits) // 2] == 1
    assert sorted(requests)[len(requests) // 2] <= 4
    assert max(requests) <= 8


def test_pointers_that_replace_a_file_s_own_are_asked_for_with_its_digests(tmp_path: Path) -> None:
    location = StoreLocation(f"file://{tmp_path}")
    keys = {digest_of(key): (1, key) for key in range(50_000)}
    files = [repoint(location, 2, file, 7) for file in write_run(location, 1, keys, 50_000)]
    requests, waits = [], []
    for key in range(0, 50_000, 997):
        pointer, pages = find(location, files, digest_of(key))
        assert pointer == RowPointer(1, key + 7)
        requests.append(pages.requests)
        waits.append(pages.waits)
    assert sorted(waits)[len(waits) // 2] == 2  # for each of the two objects
    assert sorted(requests)[len(requests) // 2] <= 5


def test_a_key_that_is_not_there_ends_in_as_few_requests_even_at_the_border_of_a_window(
    big_index: tuple[StoreLocation, list[IndexFile]],
) -> None:
    location, files = big_index
    for key in range(200_000, 200_200):
        pointer, pages = find(location, files, digest_of(key))
        assert pointer is None
        assert pages.requests <= 10


@pytest.mark.parametrize("rows_per_file", [10_000, 300])
def test_digests_that_are_not_where_they_are_expected_are_found_too_and_absent_ones_end_the_search(
    rows_per_file: int, tmp_path: Path
) -> None:
    """No SHA-1 is like that. But the search has to cross many windows and files, and meets all of their borders."""
    location = StoreLocation(f"file://{tmp_path}")
    crowded = [(2 * number).to_bytes(20, "big") for number in range(3_000)]
    files = write_run(location, 1, {digest: (1, row) for row, digest in enumerate(crowded)}, rows_per_file)
    for row in range(0, 3_000, 37):
        assert find(location, files, crowded[row])[0] == RowPointer(1, row)
    for number in range(1, 6_000, 26):
        pointer, pages = find(location, files, number.to_bytes(20, "big"))
        assert pointer is None
        assert pages.requests <= 30
    assert find(location, files, b"\xff" * 20)[0] is None
