"""What a table costs after years, and a small session on S3: requests, loads, appends, plans and acceptances, each at
the size that years make.

S3 is seaweedfs behind a proxy that counts, and delays each answer where it is said, on the same cores. `long_logs.py`
has the logs of a million deltas.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from compactor.api import compact
from compactor.catalog.keys import TableFolder
from compactor.lake import DeltaCatalog
from compactor.log.keys import EntryObject
from compactor.model.clock import SystemClock
from compactor.planning.session_planner import pin_sessions
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunSpec
from compactor.storage.opening import open_store
from dispatcher.intake.admission import Admission
from tests.benchmarks.long_logs import Appends, Load, Writers, measure_appends, measure_load, measure_writers
from tests.benchmarks.one_dispatcher import dispatcher, on_s3, open_mail, watch
from tests.benchmarks.workers import in_sequence
from tests.fakes.attempts import plan_session
from tests.fakes.dispatch_desk import Desk, instruction
from tests.proxy import Proxy, Weather, proxy_before
from tests.servers import aws_environment, seaweedfs_server

FILES = 10_000
ACCEPTED_STREAMS, WITH_NEWS = 100_000, 100
DELTAS, APPENDS, WRITERS = 1_000_000, 100_000, 32
COUNTED = 10
"""Instructions whose requests are counted, and then twice as many."""

PLAN_DELAY_SECONDS = 0.03
APART_SECONDS = 0.1
"""Delay of each answer where requests in sequence are counted, so that those side by side overlap."""

_TABLE = "BENCH.YEARS.V1"
_CLOCK = SystemClock()
_WRITERS_AT_ONCE = 32


@dataclass(frozen=True)
class SmallSession:
    """
    compact     requests of a `compact()`, and how many of them in sequence
    dispatched  requests of an instruction from the queue to its end, by operation, with all that the job does
    """

    compact: int
    compact_in_sequence: int
    dispatched: dict[str, float]


@dataclass(frozen=True)
class Plan:
    files: int
    seconds: float
    requests: int


@dataclass(frozen=True)
class WideAcceptance:
    """Of a job run over so many streams, of which some have news."""

    streams: int
    seconds: float
    requests: int


@dataclass(frozen=True)
class Years:
    session: SmallSession
    plan: Plan
    wide: WideAcceptance
    load: Load
    appends: Appends
    writers: Writers


def measure_years(folder: Path, scale: float) -> Years:
    """`scale` of every size."""
    appends = measure_appends(max(round(APPENDS * scale), 4_000), folder / "appends")
    with aws_environment(), seaweedfs_server(folder / "s3") as url:
        return Years(
            session=_small_session(folder, url),
            plan=_plan(url, max(round(FILES * scale), 10)),
            wide=_wide_acceptance(folder, url, max(round(ACCEPTED_STREAMS * scale), 2 * WITH_NEWS)),
            load=measure_load(max(round(DELTAS * scale), 5_000), url),
            appends=appends,
            writers=measure_writers(WRITERS, url),
        )


def _catalog(prefix: str, url: str) -> DeltaCatalog:
    return DeltaCatalog(open_store(on_s3(prefix, url)[1]), _CLOCK)


def _count(proxy: Proxy) -> int:
    return sum(each.requests for each in proxy.counted().values())


def _small_session(folder: Path, url: str) -> SmallSession:
    with proxy_before(url) as proxy:
        _catalog("small", url).create_table(_TABLE).append({}, pa.table({"id": [1, 2, 3]}))
        proxy.count_anew()
        proxy.set_weather(Weather(delay_seconds=APART_SECONDS))
        compact(_TABLE, {"id"}, delta_catalog_client=_catalog("small", proxy.url))
        requests, chain = _count(proxy), in_sequence(proxy.seen())
    few, many = (_dispatched(folder, url, count) for count in (COUNTED, 2 * COUNTED))
    many.subtract(few)
    return SmallSession(requests, len(chain), {name: count / COUNTED for name, count in sorted(many.items()) if count})


def _dispatched(folder: Path, url: str, count: int) -> Counter[str]:
    """So many instructions, each for a table of its own with one small delta; a dispatcher until it is idle."""
    prefix = f"dispatched-{count}"
    for number in range(count):
        _catalog(prefix, url).create_table(f"BENCH.T{number}.V1").append({}, pa.table({"id": [1, 2, 3]}))
    with proxy_before(url) as proxy, open_mail() as mail:
        for number in range(count):
            document = {"schema_version": "1", "source_table_id": f"BENCH.T{number}.V1", "primary_keys": ["id"]}
            mail.sqs().send_message(QueueUrl=mail.queue_url, MessageBody=json.dumps(document))
        with dispatcher(folder, *on_s3(prefix, proxy.url), mail, "--until-idle") as process:
            watch(process)
        return Counter({name: traffic.requests for (_, name), traffic in proxy.counted().items()})


def _plan(url: str, files: int) -> Plan:
    """Of one session over so many pending files of one schema, in a process that has read nothing of the lake."""
    table, rows = _catalog("plan", url).create_table(_TABLE), pa.table({"id": range(4)})
    for start in range(0, files, 500):
        table.append_many([({}, rows, "upsert")] * min(500, files - start))
    with proxy_before(url) as proxy:
        lake = _catalog("plan", proxy.url)
        run = JobRunSpec(
            job_run_id="run",
            source_table_id=_TABLE,
            primary_keys=("id",),
            lake=lake.location,
            destination_compacted_table_id=_TABLE,
        )
        proxy.set_weather(Weather(delay_seconds=PLAN_DELAY_SECONDS))
        began = time.monotonic()
        (session,) = pin_sessions(run, lake)
        plan_session(session.spec, lake, Resources(task_memory_bytes=1 << 31, tasks=2))
        return Plan(files, time.monotonic() - began, _count(proxy))


def _wide_acceptance(folder: Path, url: str, streams: int) -> WideAcceptance:
    catalog = _catalog("wide", url)
    table = catalog.create_table(_TABLE, ["stream"])
    for number in range(WITH_NEWS):
        table.append({"stream": str(number)}, pa.table({"id": [1, 2, 3]}))
    entry = catalog.store.read(_first_entry(0))
    if entry is None:
        raise RuntimeError("a stream has no log")
    # The others have no news: what was appended to them has been compacted. Nobody needs to read their logs.
    with ThreadPoolExecutor(_WRITERS_AT_ONCE) as threads:
        further = [
            threads.submit(catalog.store.put_if_absent, _first_entry(each), entry) for each in range(WITH_NEWS, streams)
        ]
    if not all(each.result() for each in further):
        raise RuntimeError("streams were there before")
    with proxy_before(url) as proxy:
        state, lake = on_s3("wide", proxy.url)
        (folder / "desk").mkdir()
        desk = Desk(
            folder / "desk",
            clock=SystemClock(),
            state=open_store(state),
            open_lake=lambda _: DeltaCatalog(open_store(lake), _CLOCK),
            admission=Admission(own_lake=lake),
        )
        desk.send(instruction(source_table_id=_TABLE, job_run_id="wide"))
        proxy.count_anew()
        began = time.monotonic()
        desk.take()
        found = WideAcceptance(streams, time.monotonic() - began, _count(proxy))
        accepted = desk.job_run("wide").accepted
        desk.close()
    if accepted is None:
        raise RuntimeError("the instruction was not accepted")
    return found


def _first_entry(number: int) -> str:
    """Its key, in the log of a stream."""
    return EntryObject(TableFolder(_TABLE).stream({"stream": str(number)}).log, 1).key
