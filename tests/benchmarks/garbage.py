"""What a collection of garbage takes: of a tenth of the files, and of all, in a store in memory that counts requests.

The store answers at once: the seconds are the processor's, of all threads. Memory is the peak of what is allocated
while garbage is searched for; the store's own objects are there before.
"""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from compactor.lake import DeltaCatalog
from compactor.maintenance.collection import Collection as GarbageCollection
from compactor.maintenance.collection import GracePeriods
from compactor.maintenance.garbage import StreamGarbage, find_garbage
from compactor.storage.location import StoreLocation
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.many_files import StreamShape, write_streams

STREAMS = 1_000
SHAPE = StreamShape(old=860, garbage=100, recent=40)

_TABLE = "BENCH.GARBAGE.V1"


@dataclass(frozen=True)
class Collection:
    """
    grown_bytes  the peak of what is allocated while garbage is searched for and nothing is deleted
    seconds      of the processor, for a run that retires, searches and deletes
    requests     of that run, by operation
    """

    streams: int
    files: int
    garbage: int
    seconds: float
    grown_bytes: int
    requests: Mapping[str, int]


def measure_garbage(_: Path, scale: float) -> tuple[Collection, Collection]:
    """Of a tenth of the streams, and of all."""
    streams = max(round(STREAMS * scale), 10)
    return _collect(streams // 10), _collect(streams)


def _collect(streams: int) -> Collection:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock, StoreLocation("s3://bucket/lake")))
    lake = DeltaCatalog(store, clock)
    lake.create_table(_TABLE, partition_keys=["number"])
    write_streams(store, _TABLE, streams, SHAPE, clock)
    grown_bytes = _grown_bytes(store, clock)
    store.requests.clear()
    began = time.process_time()
    collection = GarbageCollection(lake, clock, GracePeriods(), deletes=True)
    collection.collect(_TABLE)
    seconds = time.process_time() - began
    requests = dict(sorted(Counter(str(verb) for verb, _ in store.requests).items()))
    deleted = collection.deleted_files
    if collection.failed or deleted != streams * SHAPE.garbage or any(_garbage_left(store, clock)):
        raise RuntimeError(f"{deleted} files were deleted, of {streams * SHAPE.garbage}, or not all")
    return Collection(streams, streams * SHAPE.files, deleted, seconds, grown_bytes, requests)


def _grown_bytes(store: FaultyStore, clock: ManualClock) -> int:
    """By tracing every allocation: a process's resident memory hides what takes the place of something freed."""
    next(find_garbage(store, _TABLE, clock))  # what is loaded once
    tracemalloc.start()
    try:
        for _ in find_garbage(store, _TABLE, clock):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _garbage_left(store: FaultyStore, clock: ManualClock) -> Iterator[StreamGarbage]:
    return (found for found in find_garbage(store, _TABLE, clock) if found.garbage)
