"""How long a scan takes beside others, over the same files with the same threads: PyArrow's dataset, DuckDB and Polars;
in a folder, and on S3 at 30 ms a request.

The contestants take turns, so that each meets the same machine; a ratio is of the medians of a run. The turns change
their order: who reads after PyArrow finds its memory still mapped, and who reads after another does not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from compactor.api import compact
from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from tests.benchmarks.data import KEY, NARROW, write_table
from tests.benchmarks.object_store import weather_of
from tests.proxy import ProxyProcess, Weather, proxy_process_before
from tests.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, aws_environment, seaweedfs_server

ROWS, ROWS_PER_FILE, REMOTE_ROWS = 4_200_000, 400_000, 1_050_000
DELAY_MS = 30
REPEATS = 8
EVERYTHING, ONE_KEY = "everything", "one key by filter"
OURS, DATASET, DUCKDB, POLARS = "lithify", "PyArrow dataset", "DuckDB", "Polars"

_TABLE = "BENCH.SCAN.V1"

_Contestant: TypeAlias = tuple[str, Callable[[int | None], int]]


@dataclass(frozen=True)
class Scanned:
    """What one contestant takes for one question, the medians of `REPEATS`.

    delay_ms     None: in a folder of this machine
    cpu_seconds  of all threads
    requests     of one scan, of all kinds
    """

    what: str
    who: str
    delay_ms: int | None
    seconds: float
    cpu_seconds: float
    requests: int = 0


@dataclass(frozen=True)
class Scans:
    """`rows`: in the folder, and on S3."""

    found: tuple[Scanned, ...]
    rows: tuple[int, int]
    files: tuple[int, int]

    def ratio(self, what: str, delay_ms: int | None) -> float:
        """Ours over PyArrow's dataset."""
        ours, dataset = (self.of(what, who, delay_ms) for who in (OURS, DATASET))
        return ours.seconds / dataset.seconds

    def of(self, what: str, who: str, delay_ms: int | None) -> Scanned:
        return next(each for each in self.found if (each.what, each.who, each.delay_ms) == (what, who, delay_ms))


def measure_scans(folder: Path, scale: float) -> Scans:
    """Raises `RuntimeError` if a row is missing."""
    rows, remote_rows = (max(int(each * scale), 40_000) for each in (ROWS, REMOTE_ROWS))
    with aws_environment(), seaweedfs_server(folder / "seaweedfs") as url, proxy_process_before(url) as proxy:
        near = _compacted(folder, parse_location(str(folder / "lake")), rows)
        location = parse_location(f"s3://{BUCKET}/scans", endpoint_url=proxy.url, region=REGION)
        far = _compacted(folder, location, remote_rows)
        found = [*_turns(near, rows, None, None), *_turns(far, remote_rows, proxy, DELAY_MS)]
        return Scans(tuple(found), (rows, remote_rows), (len(near.scan().files()), len(far.scan().files())))


def _compacted(folder: Path, location: StoreLocation, rows: int) -> Table:
    lake = DeltaCatalog(open_store(location), SystemClock())
    written = write_table(folder / "written", replace(NARROW, rows=rows))
    table = lake.create_table(_TABLE)
    table.append({}, ds.dataset(list(written.paths)).scanner().to_reader())
    compact(_TABLE, {KEY}, delta_catalog_client=lake, rows_per_compacted_file=ROWS_PER_FILE * rows // ROWS)
    return lake.table(_TABLE)


def _turns(table: Table, rows: int, proxy: ProxyProcess | None, delay_ms: int | None) -> list[Scanned]:
    some_key = table.scan(columns=[KEY]).to_table()[KEY][rows // 2].as_py()
    contestants = _contestants(table, proxy)
    taken: dict[tuple[str, str], list[Scanned]] = defaultdict(list)
    for turn in range(REPEATS + 1):
        for what, key, expected in ((EVERYTHING, None, rows), (ONE_KEY, some_key, 1)):
            for who, read in _order(list(contestants.items()), turn):
                measured = _once(proxy, delay_ms, partial(read, key), expected)
                if turn:  # the first turn loads libraries and fills caches
                    taken[what, who].append(replace(measured, what=what, who=who))
    return [_median_of(each) for each in taken.values()]


def _order(contestants: Sequence[_Contestant], turn: int) -> Sequence[_Contestant]:
    """Of an even number of contestants, each follows each other once in as many turns (a square by E. J. Williams)."""
    count = len(contestants)
    zigzag = [(number + 1) // 2 * (1 if number % 2 else -1) for number in range(count)]
    return [contestants[(step + turn) % count] for step in zigzag]


def _once(proxy: ProxyProcess | None, delay_ms: int | None, read: Callable[[], int], expected: int) -> Scanned:
    weather = Weather(delay_seconds=(delay_ms or 0) / 1_000)
    with nullcontext() if proxy is None else weather_of(proxy, weather):
        began, began_cpu = time.perf_counter(), time.process_time()
        found = read()
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
        requests = 0 if proxy is None else sum(each.requests for each in proxy.counted().values())
    if found != expected:
        raise RuntimeError(f"a scan found {found} rows, not {expected}")
    return Scanned("", "", delay_ms, seconds, cpu_seconds, requests)


def _median_of(found: Sequence[Scanned]) -> Scanned:
    return replace(
        found[0],
        seconds=median(each.seconds for each in found),
        cpu_seconds=median(each.cpu_seconds for each in found),
        requests=int(median(each.requests for each in found)),
    )


def _contestants(table: Table, proxy: ProxyProcess | None) -> Mapping[str, Callable[[int | None], int]]:
    """What reads all rows, or those of a key, into memory, and counts them. DuckDB reads S3 by an extension, which it
    would download."""
    uris = table.scan().files()
    files = [uri.removeprefix("file://").removeprefix("s3://") for uri in uris]

    def ours(key: int | None) -> int:
        return len(table.scan(filter=_condition(key)).to_table())

    def dataset(key: int | None) -> int:
        return len(ds.dataset(files, filesystem=_filesystem(proxy)).to_table(filter=_condition(key)))

    def duck(key: int | None) -> int:
        import duckdb

        with duckdb.connect(config={"threads": pa.cpu_count()}) as connection:
            where = "" if key is None else f"WHERE {KEY} = {key}"
            query = connection.sql(f"SELECT * FROM read_parquet($files) {where}", params={"files": files})
            return len(query.to_arrow_table())

    def polars(key: int | None) -> int:
        import polars

        options = None if proxy is None else {"aws_endpoint_url": proxy.url, "aws_allow_http": "true"}
        frame = polars.scan_parquet(uris, storage_options=options)
        return (frame if key is None else frame.filter(polars.col(KEY) == key)).collect().height

    return {OURS: ours, DATASET: dataset, **({DUCKDB: duck} if proxy is None else {}), POLARS: polars}


def _condition(key: int | None) -> pc.Expression | None:
    return None if key is None else pc.field(KEY) == key


def _filesystem(proxy: ProxyProcess | None) -> fs.FileSystem:
    if proxy is None:
        return fs.LocalFileSystem()
    return fs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        region=REGION,
        scheme="http",
        endpoint_override=urlsplit(proxy.url).netloc,
    )
