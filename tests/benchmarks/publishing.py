"""What a publish of one round takes, as Delta Lake and as Apache Iceberg: times on a folder, requests on S3; and what a
deletion vector takes as a Roaring bitmap.

A publish opens no data file, so rounds are written by hand: each replaces a file and marks rows of another one dead.
S3 is seaweedfs behind a proxy that counts, on the same cores.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.model.names import OpenFormat
from compactor.publishing.delta_vectors import vector_file
from compactor.publishing.protocol import Outcome, Published, TablePublisher
from compactor.publishing.publication import publishers_of
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from tests.benchmarks.one_dispatcher import on_s3
from tests.builders import TABLE_ID
from tests.open_rounds import OpenLake
from tests.proxy import Proxy, proxy_before
from tests.servers import aws_environment, seaweedfs_server

PARTITIONS, FILES = 1_000, 4
TIMED, COUNTED = 200, 20
"""Publishes of each format. Among so many are several with a checkpoint of Delta Lake."""

DEAD_ROWS = 600_000
DEAD_SHARES = {"a tenth of the rows": 0.1, "one row in a thousand": 0.001}

_CHANGED = 20
"""Partitions that rounds change in turn."""
_PARTITIONS_ON_S3 = 100
_WARM = 5
_BITMAPS = 20
_CLOCK = SystemClock()


@dataclass(frozen=True)
class PublishTimes:
    """Of one format, on a folder."""

    format: OpenFormat
    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p95_seconds(self) -> float:
        return statistics.quantiles(self.seconds, n=20)[-1]


@dataclass(frozen=True)
class PublishRequests:
    """Of one publish in the steady state, by operation.

    mean  publishes with a checkpoint included
    most  of a single publish
    """

    format: OpenFormat
    by_operation: Mapping[str, float]
    most: int

    @property
    def mean(self) -> float:
        return sum(self.by_operation.values())

    @property
    def listings(self) -> float:
        return self.by_operation.get("LIST", 0.0)


@dataclass(frozen=True)
class Publishing:
    """bitmap_seconds: of processor, of `DEAD_ROWS` rows, by how they are spread."""

    partitions: int
    times: tuple[PublishTimes, ...]
    requests: tuple[PublishRequests, ...]
    bitmap_seconds: Mapping[str, float]


def measure_publishing(folder: Path, scale: float) -> Publishing:
    """`scale` of the partitions and of the publishes that are timed."""
    partitions = max(round(PARTITIONS * scale), _CHANGED)
    lake = _Rounds(open_store(parse_location(str(folder / "lake"))), partitions)
    times = [PublishTimes(each, tuple(lake.seconds_of(each, max(round(TIMED * scale), 20)))) for each in OpenFormat]
    with aws_environment(), seaweedfs_server(folder / "s3") as url:
        far = _Rounds(open_store(on_s3("publishing", url)[1]), _PARTITIONS_ON_S3)
        with proxy_before(url) as proxy:
            through_proxy = open_store(on_s3("publishing", proxy.url)[1])
            requests = [far.requests_of(each, through_proxy, proxy) for each in OpenFormat]
    return Publishing(
        partitions, tuple(times), tuple(requests), {name: _bitmap(of) for name, of in DEAD_SHARES.items()}
    )


class _Rounds:
    """A published table, each of whose partitions has so many files."""

    def __init__(self, store: ObjectStore, partitions: int) -> None:
        DeltaCatalog(store, _CLOCK).create_table(TABLE_ID, ["region"], properties={"publish": "delta,iceberg"})
        self._store = store
        self._lake = OpenLake(Path(), store, _CLOCK)
        self._names = [f"region {number}" for number in range(partitions)]
        for name in self._names:
            self._lake.commit(name, added=FILES)

    def seconds_of(self, format_: OpenFormat, count: int) -> Iterator[float]:
        """Of each publish, in a process that has published the table before."""
        for publish in self._rounds(format_, self._store, count):
            began = time.perf_counter()
            outcome = publish()
            yield time.perf_counter() - began
            _check(outcome)

    def requests_of(self, format_: OpenFormat, store: ObjectStore, proxy: Proxy) -> PublishRequests:
        total, most = Counter[str](), 0
        for publish in self._rounds(format_, store, COUNTED):
            proxy.count_anew()
            _check(publish())
            found = Counter({name: traffic.requests for (_, name), traffic in proxy.counted().items()})
            total, most = total + found, max(most, found.total())
        return PublishRequests(format_, {name: count / COUNTED for name, count in sorted(total.items())}, most)

    def _rounds(self, format_: OpenFormat, store: ObjectStore, count: int) -> Iterator[Callable[[], Outcome]]:
        """Writes a round, and yields its publish, so many times."""
        table = DeltaCatalog(store, _CLOCK).table(TABLE_ID)
        (publisher,) = [each for each in publishers_of(store, table, _CLOCK) if each.format is format_]
        _check(publisher.publish([table.stream({"region": name}) for name in self._names]))
        for number in range(_WARM + count):
            name = self._names[number % _CHANGED]
            self._change(name)
            publish = _publish_of(publisher, table, name)
            if number < _WARM:
                _check(publish())
            else:
                yield publish

    def _change(self, name: str) -> None:
        compacted = self._lake.stream(name).load().state.compacted
        if compacted is None:
            raise RuntimeError(f"{name} has no files")
        oldest, next_oldest, *_ = sorted(compacted.files)
        self._lake.commit(name, added=1, removed=[oldest], dead={next_oldest: [1, 2, 3]})


def _publish_of(publisher: TablePublisher, table: Table, name: str) -> Callable[[], Outcome]:
    return lambda: publisher.publish([table.stream({"region": name})])


def _check(outcome: Outcome) -> None:
    if not isinstance(outcome, Published) or outcome.refused:
        raise RuntimeError(f"the round was not published: {outcome}")


def _bitmap(share: float) -> float:
    """Processor seconds of the median bitmap, whose rows are so large a share of the file's."""
    gaps = np.random.default_rng(1).geometric(share, DEAD_ROWS)
    rows = np.cumsum(gaps).astype(np.int64)

    def seconds() -> Iterable[float]:
        for _ in range(_BITMAPS):
            began = time.thread_time()
            vector_file(rows)
            yield time.thread_time() - began

    return statistics.median(seconds())
