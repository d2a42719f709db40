"""What a compaction, a scan and a lookup take in a folder, and over an object store that is 0, 30 or 100 ms away:
seconds, requests and bytes down. The store is seaweedfs; a proxy before it delays and counts.

Requests and bytes follow from the input alone; seconds follow from the machine as well.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.api import compact
from compactor.catalog.snapshot import CompactedStream
from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.model.files import IndexFile
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from tests.proxy import ProxyProcess, Traffic, Weather, proxy_process_before
from tests.servers import BUCKET, REGION, aws_environment, seaweedfs_server

DELAYS_MS = (0, 30, 100)
ROWS = 1_000_000
LARGE = 16
"""Times as many rows, for what is worth a Spark."""
DELTA_FILES = 8
COMPACTED_FILES = 16
STREAMS = 200
ROWS_OF_A_STREAM = 1_000
LOOKUPS = 5

DOLLARS_PER_WRITE, DOLLARS_PER_READ = 0.005 / 1_000, 0.0004 / 1_000
"""List prices of S3 Standard in us-east-1: of PUT, POST and LIST; of GET and HEAD. Deletes cost nothing."""


@dataclass(frozen=True)
class Change:
    """A delta of updates.

    share      of the table's rows
    clustered  neighbouring keys; otherwise keys spread over the whole table
    """

    share: float
    clustered: bool

    @property
    def spread(self) -> str:
        return "clustered" if self.clustered else "uniform"

    def __str__(self) -> str:
        return f"{self.share:.0%} {self.spread}"

    def ids_of(self, rows: int) -> npt.NDArray[np.int64]:
        count = int(rows * self.share)
        if self.clustered:
            return np.arange(rows // 3, rows // 3 + count)
        return np.sort(np.random.default_rng(7).choice(rows, count, replace=False))


INCREMENTAL = Change(0.1, clustered=True)
REPEATS = 3
CHANGES = tuple(Change(share, clustered) for share in (0.01, 0.05, 0.1, 0.2) for clustered in (True, False))
"""Each over tables of its own, `REPEATS` of them: so `WHOLE` is the median of all of these."""

WHOLE, STREAMS_OF, SCAN, LOOKUP = "whole", "a stream", "scan", "lookup"

_MANY = "BENCH.MANY.V1"


@dataclass(frozen=True)
class Far:
    """One operation at one distance.

    delay_ms  None: in a folder of this machine
    seconds   of one: of a stream where there are many, of a lookup; the median where it was repeated
    requests  of one, by operation
    """

    what: str
    delay_ms: int | None
    seconds: float
    requests: Mapping[str, float]
    bytes_down: float
    bytes_up: float


@dataclass(frozen=True)
class FarLake:
    """Operations on tables of so many rows.

    found         by operation and delay
    table_bytes   the compacted files at rest
    needed_bytes  what the incremental run cannot do without: its delta, the files it rewrites, the index it searches
    """

    found: tuple[Far, ...]
    rows: int
    table_bytes: int
    needed_bytes: int

    def of(self, what: str, delay_ms: int | None) -> Far | None:
        return next((each for each in self.found if (each.what, each.delay_ms) == (what, delay_ms)), None)


@dataclass(frozen=True)
class FarLakes:
    """`large`: the whole compaction and `INCREMENTAL` alone."""

    small: FarLake
    large: FarLake


def measure_object_store(folder: Path, scale: float, delays_ms: Sequence[int] = DELAYS_MS) -> FarLakes:
    """Raises `RuntimeError` if a row is missing or wrong."""
    rows = max(int(ROWS * scale), 16_000)
    with aws_environment(), seaweedfs_server(folder / "seaweedfs") as url, proxy_process_before(url) as proxy:
        _Runs(proxy, _on_s3(proxy, "warm"), 0, 16_000).run()  # loads the kernels and opens connections
        small = _far_lake(proxy, folder / "lake", "at", rows, delays_ms, lambda runs: runs.run())
        large = _far_lake(proxy, folder / "large", "large", LARGE * rows, delays_ms, lambda runs: runs.run_large())
    return FarLakes(small, large)


def _far_lake(
    proxy: ProxyProcess,
    folder: Path,
    prefix: str,
    rows: int,
    delays_ms: Sequence[int],
    run: Callable[[_Runs], list[Far]],
) -> FarLake:
    runs = [_Runs(proxy, parse_location(str(folder)), None, rows)]
    runs += [_Runs(proxy, _on_s3(proxy, f"{prefix}-{delay_ms}"), delay_ms, rows) for delay_ms in delays_ms]
    found = tuple(each for one in runs for each in run(one))
    return FarLake(found, rows, runs[-1].table_bytes, runs[-1].needed_bytes)


def _on_s3(proxy: ProxyProcess, prefix: str) -> StoreLocation:
    return parse_location(f"s3://{BUCKET}/{prefix}", endpoint_url=proxy.url, region=REGION)


class _Runs:
    """All operations at one distance, on tables of their own."""

    def __init__(self, proxy: ProxyProcess, location: StoreLocation, delay_ms: int | None, rows: int) -> None:
        self._proxy = proxy
        self._location = location
        self._delay_ms = delay_ms
        self._rows = rows
        self.table_bytes = 0
        self.needed_bytes = 0
        self._read_of = ""

    def run(self) -> list[Far]:
        repeated: dict[str, list[Far]] = defaultdict(list)
        for change in CHANGES:
            for turn in range(REPEATS):
                table_id = f"BENCH.FAR-{change.share:.0%}-{change.spread}-{turn}.V1".replace("%", "")
                for far in self._compactions(table_id, change):
                    repeated[far.what].append(far)
        found = [_median_of(each) for each in repeated.values()]
        opened = [self._catalog().table(self._read_of) for _ in range(1 + LOOKUPS)]
        found.append(self._measured(SCAN, 1, lambda: self._scan(opened[0])))
        found.append(self._measured(LOOKUP, LOOKUPS, lambda: self._look_up(opened[1:])))
        found.append(self._streams())
        return found

    def run_large(self) -> list[Far]:
        return self._compactions("BENCH.LARGE.V1", INCREMENTAL)

    def _compactions(self, table_id: str, change: Change) -> list[Far]:
        """Of a new table, and of a change of it."""
        self._append_table(table_id)
        whole = self._measured(WHOLE, 1, partial(self._compact, table_id))
        before = self._compacted(table_id)
        self._catalog().table(table_id).append({}, _rows_of(change.ids_of(self._rows), "new"))
        changed = self._measured(str(change), 1, partial(self._compact, table_id))
        if change == INCREMENTAL:
            self._note_bytes(table_id, before)
            self._read_of = table_id
        return [whole, changed]

    def _append_table(self, table_id: str) -> None:
        table = self._catalog().create_table(table_id, [])
        for ids in np.array_split(np.arange(self._rows), DELTA_FILES):
            table.append({}, _rows_of(ids, "old"))

    def _compacted(self, table_id: str) -> CompactedStream:
        compacted = self._catalog().table(table_id).stream({}).load().state.compacted
        if compacted is None:
            raise RuntimeError("nothing was compacted")
        return compacted

    def _note_bytes(self, table_id: str, before: CompactedStream) -> None:
        after = self._compacted(table_id)
        active = self._catalog().table(table_id).stream({}).load().state.active
        if active is None:
            raise RuntimeError("the stream has no deltas")
        rewritten = [file for number, file in before.files.items() if number not in after.files]
        self.table_bytes = before.bytes_at_rest
        self.needed_bytes = sum(file.size_bytes for file in active.deltas[-1].files)
        self.needed_bytes += sum(file.size_bytes for file in rewritten) + _index_bytes(before.index_files)

    def _streams(self) -> Far:
        table = self._catalog().create_table(_MANY, ["stream"])
        for number in range(STREAMS):
            table.append({"stream": str(number)}, _rows_of(np.arange(ROWS_OF_A_STREAM), "old"))
        return self._measured(STREAMS_OF, STREAMS, lambda: self._compact(_MANY))

    def _measured(self, what: str, count: int, work: Callable[[], None]) -> Far:
        with weather_of(self._proxy, Weather(delay_seconds=(self._delay_ms or 0) / 1000)):
            began = time.monotonic()
            work()
            seconds = time.monotonic() - began
            traffic = self._proxy.counted()
        requests = {operation: each.requests / count for (_, operation), each in sorted(traffic.items())}
        down, up = bytes_of(traffic)
        return Far(what, self._delay_ms, seconds / count, requests, down / count, up / count)

    def _catalog(self) -> DeltaCatalog:
        return DeltaCatalog(open_store(self._location), SystemClock())

    def _compact(self, name: str) -> None:
        compact(
            name,
            {"id"},
            delta_catalog_client=self._catalog(),
            rows_per_compacted_file=self._rows // COMPACTED_FILES,
        )

    def _scan(self, table: Table) -> None:
        found = table.scan().to_table()
        new = pc.sum(pc.equal(found.column("status"), "new")).as_py()
        if (found.num_rows, new) != (self._rows, len(INCREMENTAL.ids_of(self._rows))):
            raise RuntimeError(f"the scan found {found.num_rows} rows, {new} of them new")

    def _look_up(self, tables: Sequence[Table]) -> None:
        """Each in a table that has read nothing yet but its definition."""
        for number, table in enumerate(tables):
            key = number * self._rows // len(tables)
            found = table.lookup({}, {"id": key})
            if found is None or found["id"] != key:
                raise RuntimeError(f"key {key} was not found: {found}")


def _median_of(found: Sequence[Far]) -> Far:
    """Of one operation that was repeated; requests and bytes are those of the first."""
    return replace(found[0], seconds=median(each.seconds for each in found))


@contextmanager
def weather_of(proxy: ProxyProcess, weather: Weather) -> Iterator[None]:
    """The weather of what is measured alone; requests are counted from its start."""
    proxy.count_anew()
    proxy.set_weather(weather)
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


def bytes_of(traffic: Mapping[tuple[str, str], Traffic]) -> tuple[int, int]:
    """Down and up."""
    return sum(each.bytes_down for each in traffic.values()), sum(each.bytes_up for each in traffic.values())
