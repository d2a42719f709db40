"""The cost of a stream's log after years: appends at any length, the load of a stream whose deltas are retired, and
many small deltas one by one and together.

    python -m tests.benchmarks.long_logs [--deltas 1000000] [--appends 100000] [--writers 1 8 32]
                                         [--only load appends writers]

S3 is seaweedfs, on the same cores; its figures are of this machine. Appends are measured without data files, in memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from tests.servers import BUCKET, REGION, aws_environment, seaweedfs_server

LIVE = 1_000
RETIRED_TOGETHER = 50_000
DELTAS_PER_ENTRY = 500
WINDOW = 2_000
SECONDS_OF_WRITERS = 15.0
BATCH = 64
CLOCK = SystemClock()


def measure_load(deltas: int, url: str) -> Iterator[str]:
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
    answer = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.long_logs", "--load-from", url], check=True, capture_output=True
    )
    found = json.loads(answer.stdout)
    kept = sum(entry.size_bytes for entry in store.list("log/checkpoints/"))
    yield (
        f"load after {deltas:,} deltas, {found['live']:,} live: {found['seconds']:.2f} s, "
        f"{found['bytes'] / 1e6:.0f} MB of memory; {found['retired']:,} retired; checkpoints {kept / 1e6:.1f} MB"
    )


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


def measure_appends(until: int) -> Iterator[str]:
    log = _log(MemoryStore(CLOCK))
    found: dict[int, float] = {}
    for mark in (1_000, until):
        while (there := _count(log)) < mark - WINDOW // 2:
            _append(log, min(DELTAS_PER_ENTRY, mark - WINDOW // 2 - there))
        begun = time.process_time()
        for _ in range(WINDOW):
            _append(log, 1)
        found[mark] = (time.process_time() - begun) / WINDOW
    first, last = found.values()
    yield (
        f"append at the {until:,}th unretired delta {last * 1e3:.3f} ms, at the 1,000th {first * 1e3:.3f} ms: "
        f"ratio {last / first:.2f}"
    )


def measure_writers(writers: Sequence[int], url: str) -> Iterator[str]:
    for count in writers:
        one = _rate(count, f"one-{count}", url, _one_by_one)
        many = _rate(count, f"many-{count}", url, _together)
        times = f"{many / one:.1f} times"
        yield f"{count:>2} writers: one by one {one:,.0f} deltas/s, append_many of {BATCH} {many:,.0f}: {times}"


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deltas", type=int, default=1_000_000)
    parser.add_argument("--appends", type=int, default=100_000)
    parser.add_argument("--writers", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument(
        "--only", nargs="*", choices=("load", "appends", "writers"), default=("load", "appends", "writers")
    )
    parser.add_argument("--load-from", help="what the measured process of `load` gets")
    options = parser.parse_args()
    if options.load_from:
        load_and_print(options.load_from)
        return 0
    with aws_environment(), tempfile.TemporaryDirectory() as folder, seaweedfs_server(Path(folder) / "s3") as url:
        sections = {
            "appends": lambda: measure_appends(options.appends),
            "writers": lambda: measure_writers(options.writers, url),
            "load": lambda: measure_load(options.deltas, url),
        }
        for name in options.only:
            for line in sections[name]():
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
