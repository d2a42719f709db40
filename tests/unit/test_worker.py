"""What a warm worker does while it has no job."""

from __future__ import annotations

import queue

import pytest

import compactor.index.files as index_files
from compactor.index.paged_file import KeptFiles
from compactor.index.shared_pages import PAGE_BYTES
from compactor.storage.ranges import RangeReader, Span
from compactor.worker import next_job, return_memory
from tests.fakes.memory_ranges import MemoryRanges


def test_a_job_that_waits_is_taken_at_once_and_an_idle_worker_returns_its_memory_once() -> None:
    jobs: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    idle: list[str] = []

    def when_idle() -> None:
        idle.append("idle")
        jobs.put(["second"])

    jobs.put(["first"])
    assert next_job(jobs, when_idle, 0.0) == ["first"]
    assert not idle
    assert next_job(jobs, when_idle, 0.0) == ["second"]
    assert idle == ["idle"]


def test_an_idle_worker_lets_the_pages_of_remote_index_files_go(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, kept, uri = RangeReader(MemoryRanges({"s3://lake/0": bytes(PAGE_BYTES)})), KeptFiles(), "s3://lake/0"
    monkeypatch.setattr(index_files, "_KEPT", kept)
    kept.open(reader, uri, PAGE_BYTES).need([Span(0, PAGE_BYTES)])
    assert kept.open(reader, uri, PAGE_BYTES).bytes_there == PAGE_BYTES
    return_memory()
    assert kept.open(reader, uri, PAGE_BYTES).bytes_there == 0
