"""What a keeper takes, and what it leaves: a look at very many streams on a slow store, and a table of many small
appends that it keeps by the preset `streaming`, beside the same rows after one compaction.

The keeper looks once a minute of a clock that only the measurement moves, and each of its instructions is a compaction
in this process. Lookups and scans of the two tables take turns; their seconds are the processor's, of all threads, and
medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from compactor import DeltaCatalog, compact
from compactor.catalog.stream import PartitionStream
from compactor.lake import Table
from compactor.model.clock import SystemClock
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from tests.fakes.faulty_store import FaultyStore, Verb
from tests.fakes.manual_clock import ManualClock
from tests.keeper_world import ORDERS, KeeperWorld

STREAMS = 10_000
WITH_NEWS = 100
DELAY_SECONDS = 0.03
APPENDS = 500
KEYS_AN_APPEND = 1_000
LOOKUPS = 100
SCANS = 9
MINUTE = 60.0

_ResultT = TypeVar("_ResultT")


@dataclass(frozen=True)
class Look:
    """The first look at a table with news hints, each request answered after `DELAY_SECONDS`."""

    streams: int
    with_news: int
    requests: int
    seconds: float


@dataclass(frozen=True)
class Kept:
    """`compactions` by the keeper; processor seconds of the kept table, and of the one that was compacted once."""

    appends: int
    compactions: int
    files: int
    lookup_seconds: tuple[float, float]
    scan_seconds: tuple[float, float]


@dataclass(frozen=True)
class KeeperFigures:
    look: Look
    kept: Kept


def measure_keeper(folder: Path, scale: float) -> KeeperFigures:
    streams = max(round(STREAMS * scale), 100)
    return KeeperFigures(_look(streams, streams * WITH_NEWS // STREAMS), _kept(folder, max(round(APPENDS * scale), 10)))


class _LateStore(FaultyStore):
    def _ask(self, verb: Verb, key: str, carry_out: Callable[[], _ResultT]) -> _ResultT:
        time.sleep(DELAY_SECONDS)
        return super()._ask(verb, key, carry_out)


def _look(streams: int, with_news: int) -> Look:
    world = KeeperWorld()
    table = world.table({"pending_rows": 1}, keys=("day",))
    for number in range(streams - with_news):
        log = table.stream({"day": f"{number:05d}"}).folder.log
        world.lake_store.put_if_absent(f"{log}/{1:020d}.json", b"not read")
    for number in range(with_news):
        world.append(partition={"day": f"new {number}"})
    lake, state = _LateStore(world.lake_store), _LateStore(world.state)
    keeper = world.keeper(lake=lake, state=state)
    began = time.monotonic()
    look = keeper.look()
    seconds = time.monotonic() - began
    if not look.decided or look.set_aside:
        raise RuntimeError(f"the keeper decided nothing: {look}")
    return Look(streams, with_news, len(lake.requests) + len(state.requests), seconds)


class _RealWorld(KeeperWorld):
    """Its rows are in a folder, and its sessions are real."""

    def use(self, folder: Path) -> None:
        self.lake_store = LocalStore(StoreLocation(f"file://{folder}"))
        self.lake = DeltaCatalog(self.lake_store, self.clock)

    def write_compacted_file(self, _: PartitionStream) -> str:
        return ""

    def compact(self, stream: PartitionStream, until: int | None = None, path: str | None = None) -> bool:
        (session,) = compact(stream.table_id, {"id"}, delta_catalog_client=self.lake).sessions
        return session.rounds > 0


def _kept(folder: Path, appends: int) -> Kept:
    world = _RealWorld(remote=False, clock=ManualClock(SystemClock().now_ms()))  # rounds have the machine's time
    world.use(folder)
    kept, once = world.table("streaming"), world.table(None, "ACME.ONCE.V1")
    keeper, compactions = world.keeper(), 0
    for number in range(appends):
        first = number * KEYS_AN_APPEND
        ids = pa.array(range(first, first + KEYS_AN_APPEND), pa.int64())
        rows = pa.table({"id": ids, "amount": ids.cast(pa.float64())})
        for table in (kept, once):
            table.append({}, rows)
        world.clock.sleep(MINUTE)
        keeper.look()
        compactions += len(world.dispatch())
    for _ in range(10):  # until the last row is compacted
        world.clock.sleep(MINUTE)
        keeper.look()
        compactions += len(world.dispatch())
    world.compact(once.stream({}))
    tables = (world.lake.table(ORDERS), world.lake.table("ACME.ONCE.V1"))
    rows_expected = appends * KEYS_AN_APPEND
    found = [table.scan({}).to_table().num_rows for table in tables]
    if found != [rows_expected, rows_expected]:
        raise RuntimeError(f"the tables have {found} rows, of {rows_expected}")
    scans = _in_turns(tables, SCANS, lambda table, _: table.scan({}).to_table())
    step = rows_expected // LOOKUPS
    lookups = _in_turns(tables, LOOKUPS, lambda table, number: table.lookup({}, {"id": number * step}))
    files = tables[0].stream({}).load().state.compacted
    return Kept(appends, compactions, 0 if files is None else len(files.files), lookups, scans)


def _in_turns(tables: tuple[Table, Table], times: int, read: Callable[[Table, int], object]) -> tuple[float, float]:
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(times):
        for table, found in zip(tables, seconds, strict=True):
            began = time.process_time()
            if read(table, number) is None:
                raise RuntimeError("a key was not found")
            found.append(time.process_time() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])
