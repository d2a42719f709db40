"""An answer of the store with a flipped bit: it is asked for once more, and nothing of it stays in the process."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compactor.catalog.keys import StreamFolder
from compactor.index import files as index_files
from compactor.index.files import IndexTarget, Prefetch, find_row, open_bucket, write_bucket, write_pointers
from compactor.index.layout import IndexRows
from compactor.index.page_sums import PageSums
from compactor.index.paged_file import KeptFiles, PagedFile
from compactor.index.shared_pages import PAGE_BYTES, SharedPages
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import RangeReader, Span
from compactor.storage.sending import Sending
from tests.fakes.memory_ranges import MemoryRanges

ROWS = 20_000
WORDS = np.random.default_rng(1).integers(0, 2**32, (ROWS, 5), dtype=np.uint32)
DIGESTS = WORDS[np.lexsort(WORDS.T[::-1])]
SEARCHED = DIGESTS[::97]


class FlippingRanges(MemoryRanges):
    """Objects, and answers of which some have a flipped bit. `flips(n)`: whether the n-th answer, from 0, has one."""

    flips: Callable[[int], bool] = staticmethod(lambda _: False)

    def read(self, uri: str, span: Span, version: str | None) -> memoryview:
        answer = super().read(uri, span, version)
        if not self.flips(len(self.requests) - 1):
            return answer
        body = bytearray(answer)
        body[len(body) // 2] ^= 4
        return memoryview(body)


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    return StoreLocation(f"file://{tmp_path}")


@pytest.fixture(params=["its own pointers", "pointers beside it"])
def file(location: StoreLocation, request: pytest.FixtureRequest) -> IndexFile:
    target = IndexTarget(StreamFolder("ACME.SUMS.V1", ()), 1, "c" * 32, ROWS)
    numbers, indices = np.arange(ROWS, dtype=np.int32) % 7 + 1, np.arange(ROWS, dtype=np.int64)
    rows = IndexRows(DIGESTS.copy(), numbers, indices, np.empty((ROWS, 0), np.uint8))
    (written,) = write_bucket(location, target, 0, rows, (), "a" * 16, sending=Sending(0))
    if request.param == "its own pointers":
        return written
    return write_pointers(location, target, written, numbers, indices[::-1].copy(), "b" * 16, sending=Sending(0))


@pytest.fixture
def objects(location: StoreLocation, file: IndexFile) -> FlippingRanges:
    root = Path(location.root_uri.removeprefix("file://"))
    return FlippingRanges({f"{location.root_uri}/{path}": (root / path).read_bytes() for path in file.paths})


def read_all(location: StoreLocation, file: IndexFile, reader: RangeReader) -> list[object]:
    (segment,) = open_bucket(location, [file], 1, reader=reader)
    return [segment.raw_digests.tobytes(), segment.file_numbers.tolist(), segment.row_indices.tolist()]


def read_some(location: StoreLocation, file: IndexFile, reader: RangeReader) -> list[object]:
    prefetch = Prefetch(SEARCHED[:5], file_numbers=True, everything=False)
    (segment,) = open_bucket(location, [file], 1, prefetch, reader)
    found = segment.find(SEARCHED)
    rows = segment.rows((), found)
    return [found.tolist(), segment.file_numbers.tolist(), rows.digests.tolist(), rows.row_indices.tolist()]


def look_up(location: StoreLocation, file: IndexFile, reader: RangeReader) -> list[object]:
    keys = (*SEARCHED[:3], SEARCHED[0] ^ 1)
    return [find_row(location, [file], words.reshape(1, 5), reader) for words in keys]


WAYS = pytest.mark.parametrize("read", [read_all, read_some, look_up])


@WAYS
def test_a_flipped_bit_in_any_one_answer_is_never_seen(
    location: StoreLocation, file: IndexFile, objects: FlippingRanges, read: Callable[..., list[object]]
) -> None:
    right = read(location, file, RangeReader(objects))
    answers = len(objects.requests)
    assert answers >= 1
    for number in range(answers):
        objects.requests.clear()
        objects.flips = lambda n, number=number: n == number  # type: ignore[misc]
        assert read(location, file, RangeReader(objects)) == right


@WAYS
def test_a_store_that_is_damaged_is_corrupt_and_once_it_is_well_the_same_process_reads_it(
    location: StoreLocation, file: IndexFile, objects: FlippingRanges, read: Callable[..., list[object]]
) -> None:
    right = read(location, file, RangeReader(objects))
    reader = RangeReader(objects)
    objects.flips = lambda _: True
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"index/.*(is damaged|cannot be read|other hash buckets)"):
            read(location, file, reader)
    objects.flips = lambda _: False
    assert read(location, file, reader) == right


def test_pages_that_another_process_has_left_on_the_disk_are_compared(
    location: StoreLocation, file: IndexFile, objects: FlippingRanges, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = read_some(location, file, RangeReader(objects))

    def another_process() -> None:
        kept = KeptFiles()
        kept.share(SharedPages([tmp_path]))
        monkeypatch.setattr(index_files, "_KEPT", kept)

    another_process()
    uri = f"{location.root_uri}/{file.path}"
    shared = SharedPages([tmp_path]).open(uri, file.size_bytes)
    assert shared is not None
    body = bytearray(objects.objects[uri])
    body[PAGE_BYTES + 5] ^= 1
    assert shared.put(0, memoryview(body))
    for _ in range(2):
        assert read_some(location, file, RangeReader(objects)) == right
        another_process()


def test_a_file_of_an_earlier_release_has_no_sums_and_is_read(location: StoreLocation, tmp_path: Path) -> None:
    batch = pa.record_batch({"a": list(range(10))})
    with pa.ipc.new_file(tmp_path / "x.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    body = (tmp_path / "x.arrow").read_bytes()
    assert PageSums.of_file(pa.ipc.open_file(pa.BufferReader(body)).metadata) is None
    file = PagedFile(RangeReader(MemoryRanges({"s3://x": body})), "s3://x", len(body))
    file.trust(None)
    file.need([Span(0, len(body))])
    assert file.buffer.to_pybytes() == body


def test_the_sums_are_those_of_the_bytes_before_the_footer(location: StoreLocation, file: IndexFile) -> None:
    body = (Path(location.root_uri.removeprefix("file://")) / file.path).read_bytes()
    sums = PageSums.of_file(pa.ipc.open_file(pa.BufferReader(body)).metadata)
    assert sums is not None
    summed = body[: sums.summed_bytes]
    assert len(body) - len(summed) < 4096
    pages = [summed[start : start + PAGE_BYTES] for start in range(0, len(summed), PAGE_BYTES)]
    assert sums.sums.tolist() == [zlib.crc32(page) for page in pages]
