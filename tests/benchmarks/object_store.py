"""What a compaction, a scan and a lookup take over an object store that is 0, 30 or 100 ms away: seconds, requests and
bytes down. The store is seaweedfs; a proxy before it delays and counts.

Requests and bytes follow from the input alone; seconds follow from the machine as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.api import compact
from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.model.files import IndexFile
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from tests.proxy import ProxyProcess, Traffic, Weather, proxy_process_before
from tests.servers import BUCKET, REGION, aws_environment, seaweedfs_server

DELAYS_MS = (0, 30, 100)
ROWS = 1_000_000
DELTA_FILES = 8
COMPACTED_FILES = 16
CHANGED_SHARE = 0.1
STREAMS = 20
ROWS_OF_A_STREAM = 1_000
LOOKUPS = 5

DOLLARS_PER_WRITE, DOLLARS_PER_READ = 0.005 / 1_000, 0.0004 / 1_000
"""List prices of S3 Standard in us-east-1: of PUT, POST and LIST; of GET and HEAD. Deletes cost nothing."""

WHOLE, INCREMENTAL, STREAMS_OF, SCAN, LOOKUP = "whole", "incremental", "a stream", "scan", "lookup"

_TABLE = "BENCH.FAR.V1"


@dataclass(frozen=True)
class Far:
    """One operation at one distance.

    seconds   of one: of a stream where there are many, of a lookup
    requests  of one, by operation
    """

    what: str
    delay_ms: int
    seconds: float
    requests: Mapping[str, float]
    bytes_down: float
    bytes_up: float


@dataclass(frozen=True)
class FarLake:
    """
    found         by operation and delay
    table_bytes   the compacted files at rest
    needed_bytes  what an incremental run cannot do without: its delta, the files it rewrites, the index it searches
    """

    found: tuple[Far, ...]
    rows: int
    table_bytes: int
    needed_bytes: int

    def of(self, what: str, delay_ms: int) -> Far | None:
        return next((each for each in self.found if (each.what, each.delay_ms) == (what, delay_ms)), None)


def measure_object_store(folder: Path, scale: float, delays_ms: Sequence[int] = DELAYS_MS) -> FarLake:
    """Raises `RuntimeError` if a row is missing or wrong."""
    rows = max(int(ROWS * scale), 16_000)
    with aws_environment(), seaweedfs_server(folder) as url, proxy_process_before(url) as proxy:
        _Runs(proxy, "warm", 0, 16_000).run()  # loads the kernels and opens connections
        runs = [_Runs(proxy, f"at-{delay_ms}", delay_ms, rows) for delay_ms in delays_ms]
        found = tuple(each for run in runs for each in run.run())
    return FarLake(found, rows, runs[0].table_bytes, runs[0].needed_bytes)


class _Runs:
    """All operations at one distance, on a table of their own."""

    def __init__(self, proxy: ProxyProcess, name: str, delay_ms: int, rows: int) -> None:
        self._proxy = proxy
        self._prefix = name
        self._delay_ms = delay_ms
        self._rows = rows
        self.table_bytes = 0
        self.needed_bytes = 0

    def run(self) -> Iterator[Far]:
        catalog = self._catalog()
        table = catalog.create_table(_TABLE, [])
        for ids in np.array_split(np.arange(self._rows), DELTA_FILES):
            table.append({}, _rows_of(ids, "old"))
        yield self._measured(WHOLE, 1, self._compact)
        before = self._catalog().table(_TABLE).stream({}).load().state.compacted
        changed = int(self._rows * CHANGED_SHARE)
        start = self._rows // 3
        delta = _rows_of(np.arange(start, start + changed), "new")
        catalog.table(_TABLE).append({}, delta)
        yield self._measured(INCREMENTAL, 1, self._compact)
        stream = self._catalog().table(_TABLE).stream({}).load().state
        after = stream.compacted
        if before is None or after is None or stream.active is None:
            raise RuntimeError("nothing was compacted")
        rewritten = [file for number, file in before.files.items() if number not in after.files]
        self.table_bytes = before.bytes_at_rest
        self.needed_bytes = sum(file.size_bytes for file in stream.active.deltas[-1].files)
        self.needed_bytes += sum(file.size_bytes for file in rewritten) + _index_bytes(before.index_files)
        opened = [self._catalog().table(_TABLE) for _ in range(1 + LOOKUPS)]
        yield self._measured(SCAN, 1, lambda: self._scan(opened[0]))
        yield self._measured(LOOKUP, LOOKUPS, lambda: self._look_up(opened[1:]))
        yield from self._streams()

    def _streams(self) -> Iterator[Far]:
        name = f"{_TABLE.removesuffix('V1')}V2"
        table = self._catalog().create_table(name, ["stream"])
        for number in range(STREAMS):
            table.append({"stream": str(number)}, _rows_of(np.arange(ROWS_OF_A_STREAM), "old"))
        yield self._measured(STREAMS_OF, STREAMS, lambda: self._compact(name))

    def _measured(self, what: str, count: int, work: Callable[[], None]) -> Far:
        with _weather(self._proxy, self._delay_ms):
            began = time.monotonic()
            work()
            seconds = time.monotonic() - began
            traffic = self._proxy.counted()
        requests = {operation: each.requests / count for (_, operation), each in sorted(traffic.items())}
        down, up = _sums(traffic)
        return Far(what, self._delay_ms, seconds / count, requests, down / count, up / count)

    def _catalog(self) -> DeltaCatalog:
        return DeltaCatalog(open_store(self._location()), SystemClock())

    def _location(self) -> StoreLocation:
        root = f"s3://{BUCKET}/{self._prefix}"
        return parse_location(root, endpoint_url=self._proxy.url, region=REGION)

    def _compact(self, name: str = _TABLE) -> None:
        compact(
            name,
            {"id"},
            delta_catalog_client=self._catalog(),
            rows_per_compacted_file=self._rows // COMPACTED_FILES,
        )

    def _scan(self, table: Table) -> None:
        found = table.scan().to_table()
        new = pc.sum(pc.equal(found.column("status"), "new")).as_py()
        if (found.num_rows, new) != (self._rows, int(self._rows * CHANGED_SHARE)):
            raise RuntimeError(f"the scan found {found.num_rows} rows, {new} of them new")

    def _look_up(self, tables: Sequence[Table]) -> None:
        """Each in a table that has read nothing yet but its definition."""
        for number, table in enumerate(tables):
            key = number * self._rows // len(tables)
            found = table.lookup({}, {"id": key})
            if found is None or found["id"] != key:
                raise RuntimeError(f"key {key} was not found: {found}")


@contextmanager
def _weather(proxy: ProxyProcess, delay_ms: int) -> Iterator[None]:
    """The distance, for what is measured alone."""
    proxy.count_anew()
    proxy.set_weather(Weather(delay_seconds=delay_ms / 1000))
    try:
        yield
    finally:
        proxy.set_weather(Weather())


def _rows_of(ids: npt.NDArray[np.int64], status: str) -> pa.Table:
    noise = np.random.default_rng(int(ids[0]) if len(ids) else 0)
    return pa.table(
        {
            "id": ids,
            "customer": noise.integers(0, 100_000, len(ids)),
            "amount": noise.random(len(ids)).round(2),
            "status": pa.array([status] * len(ids)),
        }
    )


def _index_bytes(files: Sequence[IndexFile]) -> int:
    return sum(file.bytes_at_rest for file in files)


def dollars_of(requests: Mapping[str, float]) -> float:
    """What these requests cost, by operation."""
    prices = {"GET": DOLLARS_PER_READ, "GET range": DOLLARS_PER_READ, "HEAD": DOLLARS_PER_READ, "DELETE": 0.0}
    return sum(count * prices.get(operation, DOLLARS_PER_WRITE) for operation, count in requests.items())


def _sums(traffic: Mapping[tuple[str, str], Traffic]) -> tuple[int, int]:
    return sum(each.bytes_down for each in traffic.values()), sum(each.bytes_up for each in traffic.values())
