"""What a compaction of wide rows takes over connections of 100 MB/s each, beside connections without a limit; and what
the requests of a run of 1 GB cost. The store is seaweedfs; a proxy before it limits and counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.api import compact
from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from tests.benchmarks.object_store import INCREMENTAL, weather_of
from tests.proxy import FAIR, ProxyProcess, Weather, proxy_process_before
from tests.servers import BUCKET, REGION, aws_environment, seaweedfs_server

ROWS = 1_000_000
ROW_BYTES = 1_024
DELTA_FILES = 8
COMPACTED_FILES = 16
LIMIT = Weather(bytes_per_second=100e6)

_TABLE = "BENCH.WIRE.V1"


@dataclass(frozen=True)
class Wire:
    """One compaction, and an incremental one of a tenth of neighbouring keys.

    requests  of the incremental one, by operation
    """

    whole_seconds: float
    incremental_seconds: float
    requests: Mapping[str, int]


@dataclass(frozen=True)
class Bandwidth:
    rows: int
    free: Wire
    limited: Wire


def measure_bandwidth(folder: Path, scale: float) -> Bandwidth:
    rows = max(int(ROWS * scale), 16_000)
    with aws_environment(), seaweedfs_server(folder) as url, proxy_process_before(url) as proxy:
        _measured(proxy, "warm", FAIR, 16_000)  # loads the kernels and opens connections
        return Bandwidth(rows, _measured(proxy, "free", FAIR, rows), _measured(proxy, "limited", LIMIT, rows))


def _measured(proxy: ProxyProcess, prefix: str, weather: Weather, rows: int) -> Wire:
    location = parse_location(f"s3://{BUCKET}/{prefix}", endpoint_url=proxy.url, region=REGION)
    table = DeltaCatalog(open_store(location), SystemClock()).create_table(_TABLE, [])
    for ids in np.array_split(np.arange(rows), DELTA_FILES):
        table.append({}, _wide_rows(ids))
    whole, _ = _compacted(proxy, location, weather, rows)
    table.append({}, _wide_rows(INCREMENTAL.ids_of(rows)))
    incremental, requests = _compacted(proxy, location, weather, rows)
    return Wire(whole, incremental, requests)


def _compacted(
    proxy: ProxyProcess, location: StoreLocation, weather: Weather, rows: int
) -> tuple[float, Mapping[str, int]]:
    """Seconds, and requests by operation."""
    catalog = DeltaCatalog(open_store(location), SystemClock())
    with weather_of(proxy, weather):
        began = time.monotonic()
        compact(_TABLE, {"id"}, delta_catalog_client=catalog, rows_per_compacted_file=rows // COMPACTED_FILES)
        seconds = time.monotonic() - began
        traffic = proxy.counted()
    return seconds, {operation: each.requests for (_, operation), each in sorted(traffic.items())}


def _wide_rows(ids: npt.NDArray[np.int64]) -> pa.Table:
    """Rows of `ROW_BYTES` bytes that no codec makes shorter."""
    payload = ROW_BYTES - ids.itemsize
    noise = np.random.default_rng(int(ids[0])).bytes(payload * len(ids))
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(payload), len(ids), [None, pa.py_buffer(noise)])
    return pa.table({"id": ids, "payload": values})
