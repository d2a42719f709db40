"""The cost of a stream's log after years: appends at any length, the load of a stream whose deltas are retired, and
many small deltas one by one and together.

S3 is seaweedfs, on the same cores; its figures are of this machine. Appends at a length are of a local folder, without
data files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from compactor import DeltaCatalog
from compactor.catalog import appending
from compactor.catalog.actions import DeltasRetired, StreamAction
from compactor.catalog.appending import DeltaRequest
from compactor.catalog.delta_files import DeltaFiles
from compactor.catalog.snapshot import StreamSnapshot, apply
from compactor.catalog.stream import STREAM_LOG, StreamLog
from compactor.log.durable_log import DurableLog, LogState
from compactor.model.clock import SystemClock
from compactor.model.files import ColumnStats, DataFile
from compactor.model.names import ContentType, Operation
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from tests.fakes.memory_store import MemoryStore
from tests.servers import BUCKET, REGION

LIVE = 1_000
RETIRED_TOGETHER = 50_000
DELTAS_PER_ENTRY = 500
SECONDS_OF_WRITERS = 15.0
BATCH = 64
CLOCK = SystemClock()


@dataclass(frozen=True)
class Load:
    """By a process that has read nothing of the log. `grown_bytes`: of its memory."""

    deltas: int
    live: int
    seconds: float
    grown_bytes: int
    checkpoint_bytes: int


@dataclass(frozen=True)
class AppendCost:
    """Of one append, flushed to the disk. `processor_seconds`: of `seconds`, those that do not wait for the disk."""

    seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class Appends:
    """At the 1,000th unretired delta, and at this one."""

    at: int
    first: AppendCost
    last: AppendCost


@dataclass(frozen=True)
class Writers:
    """Deltas a second that so many writers append to one stream: one by one, and by `append_many`."""

    writers: int
    one_by_one: float
    together: float


def measure_load(deltas: int, url: str) -> Load:
    """A stream of which all deltas but the last ones are retired, as a fresh process loads it."""
    store = _s3(url, "load")
    log = _log(store)
    while (appended := _appended(log)) < deltas - LIVE:
        _append(log, min(DELTAS_PER_ENTRY, deltas - LIVE - appended))
        if _count(log) >= RETIRED_TOGETHER:
            _retire(log)
    _retire(log)
    for _ in range(LIVE):
        _append(log, 1)
    answer = subprocess.run([sys.executable, "-m", "tests.benchmarks.long_logs", url], check=True, capture_output=True)
    found = json.loads(answer.stdout)
    kept = sum(entry.size_bytes for entry in store.list("log/checkpoints/"))
    return Load(deltas, found["live"], found["seconds"], found["bytes"], kept)


def _retire(log: StreamLog) -> None:
    last = log.newest.state.sources[1].last_position
    now_ms = CLOCK.now_ms()
    until_ms = now_ms // 10**10 * 10**10 + 10**10
    log.append(
        lambda _: [DeltasRetired(stream_version=1, position=last or 0, at_ms=now_ms, ids_refused_until_ms=until_ms)]
    )


def _appended(log: StreamLog) -> int:
    sources = log.newest.state.sources
    retired = sources[1].retired if sources else None
    return _count(log) + (0 if retired is None else retired.count)


def load_and_print(url: str) -> None:
    store = _s3(url, "load")
    store.read("nothing")  # opens the connection
    _log(MemoryStore(CLOCK)).load()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak_bytes()
    begun = time.perf_counter()
    source = _log(store).load().state.sources[1]
    seconds = time.perf_counter() - begun
    grown = _peak_bytes() - before
    retired = source.retired.count if source.retired is not None else 0
    figures = {"seconds": seconds, "bytes": grown, "live": len(source.deltas), "retired": retired}
    sys.stdout.write(json.dumps(figures))


def _peak_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measure_appends(until: int, folder: Path) -> Appends:
    """The mean of as many appends as half of the deltas before the mark and after it, so that each mean has its share
    of the checkpoints, whose sizes grow with the log and whose number falls, and of Python's garbage collections."""
    log = _log(open_store(parse_location(str(folder))))
    first, last = (_appends_around(log, mark) for mark in (1_000, until))
    return Appends(until, first, last)


def _appends_around(log: StreamLog, mark: int) -> AppendCost:
    while (there := _count(log)) < mark // 2:
        _append(log, min(DELTAS_PER_ENTRY, mark // 2 - there))
    begun, begun_processor = time.perf_counter(), time.process_time()
    for _ in range(mark):
        _append(log, 1)
    return AppendCost((time.perf_counter() - begun) / mark, (time.process_time() - begun_processor) / mark)


def measure_writers(count: int, url: str) -> Writers:
    one = _rate(count, f"one-{count}", url, _one_by_one)
    return Writers(count, one, _rate(count, f"many-{count}", url, _together))


def _rate(writers: int, prefix: str, url: str, write: Callable[[DeltaCatalog, float], int]) -> float:
    """Deltas a second that so many writers append to one stream."""
    lakes = [_lake(url, prefix) for _ in range(writers)]
    lakes[0].create_table("ACME.MANY.V1")
    begun = time.perf_counter()
    until = begun + SECONDS_OF_WRITERS
    with ThreadPoolExecutor(writers) as threads:
        appended = sum(threads.map(lambda lake: write(lake, until), lakes))
    return appended / (time.perf_counter() - begun)


def _one_by_one(lake: DeltaCatalog, until: float) -> int:
    table, rows, count = lake.table("ACME.MANY.V1"), _rows(), 0
    while time.perf_counter() < until:
        table.append({}, rows)
        count += 1
    return count


def _together(lake: DeltaCatalog, until: float) -> int:
    table, rows, count = lake.table("ACME.MANY.V1"), _rows(), 0
    while time.perf_counter() < until:
        count += len(table.append_many([({}, rows, "upsert")] * BATCH))
    return count


def _rows() -> pa.Table:
    return pa.table({"id": range(10), "value": [f"value {number}" for number in range(10)]})


def _append(log: StreamLog, count: int) -> None:
    files = [(DeltaRequest(Operation.UPSERT, None, CLOCK.new_id(), None), _files()) for _ in range(count)]

    def decide(log_state: LogState[StreamSnapshot]) -> Sequence[StreamAction]:
        snapshot, actions = log_state.state, list[StreamAction]()
        for request, each in files:
            more = appending.add_delta(snapshot, request, each, CLOCK.now_ms())
            for action in more:
                snapshot = apply(snapshot, action)
            actions += more
        return actions

    log.append(decide)


def _files() -> DeltaFiles:
    columns = {name: ColumnStats(null_count=0, min_value=1, max_value=9) for name in ("id", "time", "amount")}
    file = DataFile(
        file_number=1,
        path=f"tables/ACME.MANY.V1/data/_/delta/{CLOCK.new_id()}/1.parquet",
        content_type=ContentType.PARQUET,
        rows=10,
        size_bytes=498,
        columns=columns,
    )
    return DeltaFiles((file,), f"arrow:sha256:{CLOCK.new_id()}{CLOCK.new_id()}", ())


def _count(log: StreamLog) -> int:
    sources = log.newest.state.sources
    return len(sources[1].deltas) if sources else 0


def _log(store: ObjectStore) -> StreamLog:
    return DurableLog(store, "log", STREAM_LOG, CLOCK)


def _s3(url: str, prefix: str) -> ObjectStore:
    return open_store(parse_location(f"s3://{BUCKET}/{prefix}", endpoint_url=url, region=REGION))


def _lake(url: str, prefix: str) -> DeltaCatalog:
    return DeltaCatalog.open(f"s3://{BUCKET}/{prefix}", endpoint_url=url, region=REGION)


if __name__ == "__main__":
    load_and_print(sys.argv[1])
