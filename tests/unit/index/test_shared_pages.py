"""What one process of a machine has fetched of a remote index file, the others find on its scratch disk."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.index.paged_file import KEPT_BYTES_MAX, KEPT_SHARED_MAX, KeptFiles, PagedFile
from compactor.index.shared_pages import DISK_SHARE_MAX, PAGE_BYTES, SharedFile, SharedPages
from compactor.storage.ranges import RangeReader, Span
from tests.fakes.memory_ranges import MemoryRanges
from tests.properties.folders import fresh_folder

URI = "s3://lake/index/1-0.arrow"
BODY = np.random.default_rng(1).bytes(20 * PAGE_BYTES + 100)
ALL = [Span(0, len(BODY))]


class Machine:
    """Processes that share a scratch folder. Each has what a forked worker has: files and a reader of its own."""

    def __init__(self, folder: Path, objects: dict[str, bytes] | None = None) -> None:
        self.folder = folder
        self.objects = MemoryRanges(objects or {URI: BODY})
        self._readers: list[RangeReader] = []

    def process(self) -> Process:
        return Process(self)


class Process:
    def __init__(self, machine: Machine) -> None:
        self._reader = RangeReader(machine.objects)
        self._kept = KeptFiles()
        self._kept.share(SharedPages([machine.folder]))

    def open(self, uri: str = URI, size_bytes: int = len(BODY), room_bytes: int = KEPT_BYTES_MAX) -> PagedFile:
        return self._kept.open(self._reader, uri, size_bytes, room_bytes)


def test_what_one_process_has_fetched_no_other_fetches(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.process().open().need(ALL)
    other = machine.process().open()
    other.need(ALL)
    assert machine.objects.bytes_requested() == len(BODY)
    assert other.buffer.to_pybytes() == BODY


def test_a_file_that_a_process_has_open_shows_what_others_fetch_later(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    ours, theirs = machine.process(), machine.process()
    ours.open().need([Span(0, 10)])
    theirs.open().need([Span(8 * PAGE_BYTES, 9 * PAGE_BYTES)])
    asked = machine.objects.bytes_requested()
    again = ours.open()
    again.need([Span(8 * PAGE_BYTES, 9 * PAGE_BYTES)])
    assert machine.objects.bytes_requested() == asked
    assert again.buffer.to_pybytes()[8 * PAGE_BYTES : 9 * PAGE_BYTES] == BODY[8 * PAGE_BYTES : 9 * PAGE_BYTES]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.tuples(st.integers(0, len(BODY)), st.integers(1, 5 * PAGE_BYTES)))),
        max_size=8,
    )
)
def test_whatever_processes_ask_for_in_turns_is_right_and_comes_once(
    turns: list[tuple[int, list[tuple[int, int]]]],
) -> None:
    with fresh_folder() as folder:
        machine = Machine(folder)
        processes = [machine.process() for _ in range(3)]
        for number, asked in turns:
            spans = [Span(start, min(start + length, len(BODY))) for start, length in asked if start < len(BODY)]
            file = processes[number].open()
            file.begin(spans)
            file.need(spans)
            found = file.buffer.to_pybytes()
            assert all(found[span.start : span.end] == BODY[span.start : span.end] for span in spans)
        assert machine.objects.bytes_requested() <= len(BODY)


def test_pages_that_a_full_disk_does_not_take_stay_in_memory_and_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path)
    write, written = os.pwrite, 0

    def write_until_full(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal written
        if written >= 5 * PAGE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = memoryview(data)[: PAGE_BYTES // 2]  # a disk may take a part of what it is given
        written += len(part)
        return write(descriptor, part, offset)

    monkeypatch.setattr(os, "pwrite", write_until_full)
    file = machine.process().open()
    file.need([Span(0, 4 * PAGE_BYTES)])
    file.need(ALL)
    assert file.buffer.to_pybytes() == BODY

    other = machine.process().open()
    other.need(ALL)
    assert other.buffer.to_pybytes() == BODY


def test_a_page_that_a_killed_process_has_written_and_not_marked_is_fetched(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    left = SharedPages([tmp_path]).open(URI, len(BODY))
    assert left is not None
    os.pwrite(left._descriptor, b"half a page", 0)
    file = machine.process().open()
    file.need(ALL)
    assert file.buffer.to_pybytes() == BODY


def test_a_scratch_folder_that_cannot_be_used_leaves_each_process_to_itself(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "was deleted")
    for process in (machine.process(), machine.process()):
        file = process.open()
        file.need(ALL)
        assert file.buffer.to_pybytes() == BODY
    assert machine.objects.bytes_requested() == 2 * len(BODY)


def test_the_oldest_files_are_deleted_where_there_is_no_room_and_who_has_one_open_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uris = [f"s3://lake/{number}" for number in range(40)]
    machine = Machine(tmp_path, dict.fromkeys(uris, BODY))
    free = SimpleNamespace(free=5 * len(BODY) / DISK_SHARE_MAX)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    process = machine.process()
    first = process.open(uris[0])
    for uri in uris:
        process.open(uri).need(ALL)
    kept = sum(path.stat().st_size for path in (tmp_path / "index-pages").iterdir())
    assert kept <= 7 * len(BODY)
    assert first.buffer.to_pybytes() == BODY
    asked = machine.objects.bytes_requested()
    machine.process().open(uris[-1]).need(ALL)
    assert machine.objects.bytes_requested() == asked


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_process_keeps_few_small_files_open(tmp_path: Path) -> None:
    uris = [f"s3://lake/{number}" for number in range(300)]
    process = Machine(tmp_path, dict.fromkeys(uris, BODY[:10])).process()
    before = open_files()
    for uri in uris:
        process.open(uri, 10).need([Span(0, 10)])
    assert open_files() <= before + 2 * KEPT_SHARED_MAX


def test_a_process_maps_no_more_than_its_room_and_finds_the_rest_on_the_disk(tmp_path: Path) -> None:
    uris = [f"s3://lake/{number}" for number in range(20)]
    machine = Machine(tmp_path, dict.fromkeys(uris, BODY))
    process = machine.process()
    before = open_files()
    for _ in range(2):
        for uri in uris:
            process.open(uri, room_bytes=2 * len(BODY)).need(ALL)
    assert open_files() <= before + 2 * 3
    assert machine.objects.bytes_requested() == len(uris) * len(BODY)


def test_files_of_one_name_and_different_sizes_are_different_files(tmp_path: Path) -> None:
    shared = SharedPages([tmp_path])
    small, large = shared.open(URI, PAGE_BYTES), shared.open(URI, 2 * PAGE_BYTES)
    assert isinstance(small, SharedFile)
    assert isinstance(large, SharedFile)
    assert small.put(0, memoryview(bytes(PAGE_BYTES)))
    assert large.pages_there().tolist() == [False, False]
