"""An index on an object store says what one on this machine says, and costs the bytes that are asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.keys import TableFolder
from compactor.index.files import IndexTarget, Prefetch, find_row, open_bucket, write_bucket, write_pointers
from compactor.index.layout import DIGEST_BYTES, IndexRows
from compactor.index.paged_file import KeptFiles, PagedFile
from compactor.index.remote_search import RemoteSearch, RowsInRun, expected_rows
from compactor.index.shared_pages import PAGE_BYTES
from compactor.kernels.search import find_digests
from compactor.kernels.sha1 import Digests
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import RangeReader, Span
from compactor.storage.sending import Sending
from tests.fakes.memory_ranges import MemoryRanges
from tests.properties.folders import fresh_folder

FOLDER = TableFolder("ACME.ORDERS.V1").stream({})
SOME = Prefetch(file_numbers=True, everything=False)


def sorted_digests(count: int, seed: int) -> Digests:
    """Uniform digests in order, as SHA-1 gives them."""
    digests = np.random.default_rng(seed).integers(0, 2**32, (count, 5), np.uint32, endpoint=False)
    return digests[np.lexsort(digests.T[::-1])]


def raw_of(digests: Digests) -> Digests:
    return np.ascontiguousarray(digests.astype(">u4")).view(np.uint32)


# Few different values a column, so that digests begin alike, and runs of them lie far from where they are expected.
_ODD_DIGESTS = st.lists(
    st.tuples(st.sampled_from([0, 1, 2**31, 2**32 - 1]), *[st.integers(0, 2)] * 4), max_size=400, unique=True
)


@given(_ODD_DIGESTS, _ODD_DIGESTS, st.integers(0, 50), st.integers(0, 50))
def test_a_remote_search_finds_what_a_search_of_everything_finds_however_the_digests_lie(
    held: list[tuple[int, ...]], searched: list[tuple[int, ...]], before: int, after: int
) -> None:
    digests, wanted = (np.array(sorted(each), np.uint32).reshape(-1, 5) for each in (held, searched))
    raw, there = raw_of(digests), np.zeros(len(digests), np.bool_)
    at_hand = np.zeros_like(raw)

    def need(rows: Sequence[tuple[int, int]]) -> None:
        for low, high in rows:
            at_hand[low:high], there[low:high] = raw[low:high], True

    rows_in_run = RowsInRun(before, before + len(digests) + after)
    found = RemoteSearch(at_hand, wanted, rows_in_run, need).positions()

    assert found.tolist() == find_digests(raw, wanted).tolist()
    assert there[found].all()


@pytest.mark.parametrize("count", [1, 30, 3_000])
def test_a_remote_search_reads_the_rows_around_its_digests_and_no_others(count: int) -> None:
    digests = sorted_digests(1_000_000, seed=1)
    raw = raw_of(digests)
    searched: list[tuple[int, int]] = []
    wanted = digests[np.sort(np.random.default_rng(count).choice(len(digests), count, replace=False))]

    found = RemoteSearch(raw, wanted, RowsInRun(0, len(digests)), searched.extend).positions()

    assert len(found) == count
    read = sum(high - low for low, high in searched)
    assert read <= min(count * 4 * (1_000 + 1), len(digests)) * 1.05
    assert read >= count


def test_a_search_for_most_pages_asks_for_all_rows_at_once() -> None:
    digests = sorted_digests(100_000, seed=2)
    assert expected_rows(digests[::100], RowsInRun(0, len(digests)), len(digests)) == [(0, len(digests))]


class Written:
    """A bucket's index in a folder, and the same as remote objects."""

    def __init__(
        self,
        folder: Path,
        runs: Sequence[Digests],
        rows_per_file: int,
        repointed: bool = False,
        packed_rows_min: int = 8_192,
    ) -> None:
        self.location = StoreLocation(f"file://{folder}")
        self.files: list[IndexFile] = []
        for number, digests in enumerate(runs, 1):
            rows = IndexRows(digests.copy(), *_pointers(len(digests), number), np.empty((len(digests), 0), np.uint8))
            target = IndexTarget(FOLDER, number, f"c{number}", rows_per_file, packed_rows_min)
            self.files += write_bucket(self.location, target, 0, rows, (), "a1", sending=Sending(0))
        if repointed and self.files:
            target = IndexTarget(FOLDER, len(runs) + 1, "moved", rows_per_file, packed_rows_min)
            numbers, indices = _pointers(self.files[0].rows, 77)
            self.files[0] = write_pointers(
                self.location, target, self.files[0], numbers, indices, "a2", sending=Sending(0)
            )
        paths = [file.path for file in self.files] + [file.pointers.path for file in self.files if file.pointers]
        root = self.location.root_uri
        self.objects = MemoryRanges({f"{root}/{path}": (folder / path).read_bytes() for path in paths})

    def reader(self) -> RangeReader:
        return RangeReader(self.objects)


def _pointers(count: int, seed: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    return random.integers(1, 9, count).astype(np.int32), random.integers(0, 1 << 40, count)


@given(
    sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=3),
    rows_per_file=st.integers(300, 4_000),
    share=st.sampled_from([0.0, 0.001, 0.05, 1.0]),
    repointed=st.booleans(),
    packed_rows_min=st.sampled_from([0, 1_000, 1 << 40]),
    seed=st.integers(0, 1_000),
)
def test_a_remote_bucket_says_what_the_same_files_say_in_a_folder(
    sizes: list[int], rows_per_file: int, share: float, repointed: bool, packed_rows_min: int, seed: int
) -> None:
    with fresh_folder() as folder:
        runs = [sorted_digests(size, seed + number) for number, size in enumerate(sizes)]
        written = Written(folder, runs, rows_per_file, repointed, packed_rows_min)
        random = np.random.default_rng(seed)
        everything = np.concatenate([*runs, sorted_digests(50, seed + 99)])
        digests = everything[random.random(len(everything)) <= share]
        digests = np.unique(digests[np.lexsort(digests.T[::-1])], axis=0)
        near = open_bucket(written.location, written.files)
        far = open_bucket(
            written.location,
            written.files,
            None,
            Prefetch(digests, file_numbers=True, everything=False),
            written.reader(),
        )
        assert [segment.file for segment in far] == [segment.file for segment in near]
        for ours, theirs in zip(far, near, strict=True):
            found = ours.find(digests)
            assert found.tolist() == theirs.find(digests).tolist()
            assert (ours.file_numbers == theirs.file_numbers).all()
            assert (ours.row_indices_at(found) == theirs.row_indices[found]).all()
            is_searched = random.random(ours.file.rows) < 0.1
            assert (
                ours.row_indices_where(partial(np.array, is_searched))[is_searched] == theirs.row_indices[is_searched]
            ).all()
            one, other = ours.rows((), found), theirs.rows((), found)
            assert (one.digests == other.digests).all()
            assert (one.file_numbers == other.file_numbers).all()
            assert (one.row_indices == other.row_indices).all()
            assert (ours.rows(()).digests == theirs.rows(()).digests).all()


def test_no_byte_of_an_index_is_fetched_twice_in_a_round_and_columns_that_nobody_asks_for_never(tmp_path: Path) -> None:
    rows = 400_000
    digests = sorted_digests(rows, seed=5)
    written = Written(tmp_path, [digests], rows)
    reader = written.reader()
    arriving = digests[::50]

    [segment] = open_bucket(
        written.location, written.files, 1, Prefetch(arriving, file_numbers=True, everything=False), reader
    )
    segment.find(arriving)
    assert len(segment.file_numbers) == rows
    needed = (DIGEST_BYTES + 1) * rows  # file numbers below 255 are packed into a byte
    assert needed <= written.objects.bytes_requested() <= needed + 4 * PAGE_BYTES

    [again] = open_bucket(written.location, written.files, 1, SOME, reader)
    assert len(again.file_numbers) == rows
    again.row_indices_at(np.arange(1_000))
    again.rows((), np.arange(1_000))
    assert written.objects.bytes_requested() <= needed + 6 * PAGE_BYTES
    spans = sorted(span for _, span in written.objects.requests)
    assert all(one.end <= other.start for one, other in pairwise(spans))


def test_a_few_arriving_keys_cost_their_pages_of_a_large_index(tmp_path: Path) -> None:
    digests = sorted_digests(400_000, seed=6)
    written = Written(tmp_path, [digests], len(digests))
    arriving = digests[[1_000, 200_000]]

    [segment] = open_bucket(written.location, written.files, 1, Prefetch(arriving, everything=False), written.reader())

    assert segment.find(arriving).tolist() == [1_000, 200_000]
    assert written.objects.bytes_requested() <= 8 * PAGE_BYTES


def test_a_process_keeps_no_more_of_remote_files_than_it_is_told_to() -> None:
    objects = MemoryRanges({f"s3://lake/{number}": bytes(10 * PAGE_BYTES) for number in range(3)})
    reader, kept = RangeReader(objects), KeptFiles()
    for number in (0, 1):
        kept.open(reader, f"s3://lake/{number}", 10 * PAGE_BYTES).need([Span(0, 10 * PAGE_BYTES)])
    kept.open(reader, "s3://lake/2", 10 * PAGE_BYTES, room_bytes=15 * PAGE_BYTES)

    assert kept.open(reader, "s3://lake/1", 10 * PAGE_BYTES).bytes_there == 10 * PAGE_BYTES
    assert kept.open(reader, "s3://lake/0", 10 * PAGE_BYTES).bytes_there == 0


def test_kept_files_are_opened_by_many_threads_at_once() -> None:
    objects = MemoryRanges({f"s3://lake/{number}": bytes(2 * PAGE_BYTES) for number in range(64)})
    reader, kept = RangeReader(objects), KeptFiles()

    def open_all(_: int) -> None:
        for number in range(64):
            kept.open(reader, f"s3://lake/{number}", 2 * PAGE_BYTES, 20 * PAGE_BYTES).need([Span(0, 2 * PAGE_BYTES)])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(open_all, range(8)))


def test_pages_in_small_gaps_come_along_and_none_comes_twice() -> None:
    body = np.random.default_rng(1).bytes(20 * PAGE_BYTES + 100)
    objects = MemoryRanges({"s3://lake/x": body})
    file = PagedFile(RangeReader(objects), "s3://lake/x", len(body))
    file.need([Span(0, 10), Span(2 * PAGE_BYTES, 2 * PAGE_BYTES + 1), Span(len(body) - 1, len(body))])
    assert sorted(span for _, span in objects.requests) == [Span(0, 3 * PAGE_BYTES), Span(20 * PAGE_BYTES, len(body))]
    file.need([Span(0, len(body))])
    assert objects.bytes_requested() == len(body)
    assert file.buffer.to_pybytes() == body


def test_an_index_file_that_is_shorter_than_the_log_says_is_corrupt_and_named(tmp_path: Path) -> None:
    written = Written(tmp_path, [sorted_digests(10_000, seed=7)], 10_000)
    uri = next(iter(written.objects.objects))
    written.objects.objects[uri] = written.objects.objects[uri][:-100]
    with pytest.raises(Corrupt, match=uri):
        open_bucket(written.location, written.files, 1, SOME, written.reader())


def test_a_remote_file_of_another_bucket_is_noticed_by_the_digests_that_are_read(tmp_path: Path) -> None:
    digests = sorted_digests(10_000, seed=8)
    written = Written(tmp_path, [digests], 10_000)
    with pytest.raises(Corrupt, match="holds digests of other hash buckets than 0"):
        open_bucket(written.location, written.files, 7, Prefetch(digests[:100], everything=False), written.reader())


@given(
    sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=3),
    rows_per_file=st.integers(300, 4_000),
    repointed=st.booleans(),
    packed_rows_min=st.sampled_from([0, 1_000, 1 << 40]),
    seed=st.integers(0, 1_000),
)
def test_a_remote_lookup_says_what_one_in_a_folder_says_and_hardly_ever_waits_twice(
    sizes: list[int], rows_per_file: int, repointed: bool, packed_rows_min: int, seed: int
) -> None:
    with fresh_folder() as folder:
        runs = [sorted_digests(size, seed + number) for number, size in enumerate(sizes)]
        written = Written(folder, runs, rows_per_file, repointed, packed_rows_min)
        random = np.random.default_rng(seed)
        absent = random.integers(0, 2**32, (1, 5), np.uint32, endpoint=False)
        for digest in [*(run[[random.integers(len(run))]] for run in runs), absent]:
            reader = _Counted(written.objects)
            found = find_row(written.location, written.files, digest, reader)
            assert found == find_row(written.location, written.files, digest)
            # Beyond a border of parts it may be in the neighbour.
            assert reader.others <= (0 if len(written.files) == len(runs) else 8)


class _Counted(RangeReader):
    """Counts the ranges that were not requested before they were needed."""

    others = 0

    def read(self, uri: str, spans: Sequence[Span], join_gap_bytes: int = 0) -> list[memoryview]:
        self.others += sum(not self._is_begun(uri, span) for span in spans)
        return super().read(uri, spans, join_gap_bytes)

    def _is_begun(self, uri: str, span: Span) -> bool:
        return any(sent.span.start <= span.start and span.end <= sent.span.end for sent in self._ahead.get(uri, []))
