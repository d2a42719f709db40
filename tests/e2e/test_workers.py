"""A dispatcher with workers: small sessions run in them, and whatever is killed, each is compacted once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pyarrow as pa
import pytest

from compactor import compact
from compactor.catalog.actions import IndexRehashed, RoundCommitted
from compactor.engine.in_process import InProcessEngine
from compactor.log.durable_log import CHECKPOINT_ENTRIES
from compactor.maintenance.verify import verify
from compactor.model.names import Operation
from dispatcher.records.job_run_log import JobRunStatus
from tests.builders import multiset
from tests.e2e.conftest import REPOSITORY, House, Mailroom, ask_to_stop
from tests.fakes.dispatch_desk import instruction
from tests.fakes.doomed_worker import When, WorkerDoom, make_site, writes
from tests.oracle import Row, surviving_rows
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

DAYS = "ACME.DAYS.V1"
SORT_KEYS = [("time", "ascending")]
ROUNDS = 3

WRITES = (
    ("the start is told", "run.1/log/1.json"),
    ("the rehash is committed", "_/log/31.json"),
    ("the rehash is told", "run.1/log/2.json"),
    ("round 1 is committed", "_/log/32.json"),
    ("the checkpoint's files are written", "log/checkpoints/32-x.parquet"),
    ("the checkpoint's deltas are written", "log/checkpoints/32-x.parquet"),
    ("the checkpoint is written", "log/checkpoints/32.json"),
    ("the checkpoint is hinted at", "_/log/_last_checkpoint"),
    ("round 1 is told", "run.1/log/3.json"),
    ("round 2 is committed", "_/log/33.json"),
    ("round 2 is told", "run.1/log/4.json"),
    ("round 3 is committed", "_/log/34.json"),
    ("round 3 and the success are told", "run.1/log/5.json"),
)
"""Of a session that runs in a worker, in order, and how the key ends, without zeros before a number and with x for
fresh ids. The first round is the stream's 32nd entry."""

ROUND_2_COMMITTED = [name for name, _ in WRITES].index("round 2 is committed") + 1

KILLS = tuple((write, when) for write in range(1, len(WRITES) + 1) for when in ("before", "after"))
EVERYWHERE = pytest.param(KILLS, marks=pytest.mark.release, id="at every write")
AT_SOME = pytest.param(KILLS[1::7], id="at some writes")


@contextmanager
def dispatcher(house: House, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """With one worker, whose writes `tests/fakes/doomed_worker.py` watches."""
    site, doom = house.folder / "site", house.folder / "doom"
    if not site.exists():
        make_site(site)
        doom.mkdir()
        (doom / "writes").write_text("")
    paths = f"{site}:{REPOSITORY}"
    process = house.start(*options, LITHIFY_WORKERS="1", PYTHONPATH=paths, WORKER_DOOM=str(doom))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return list(psutil.Process(process.pid).children(recursive=True))


def deltas_of(house: House, table_id: str) -> list[tuple[Operation, list[Row]]]:
    """A compacted table with two hash buckets, and pending upserts, deletes, and keys that come back."""
    table = house.lake.create_table(table_id)
    deltas: list[tuple[Operation, list[Row]]] = []

    def append(operation: Operation, rows: list[Row]) -> None:
        table.append({}, pa.Table.from_pylist(rows), operation)
        deltas.append((operation, rows))

    append(Operation.UPSERT, [_row(n, 5, "base") for n in range(40)])
    while table.stream({}).load().entry_number < CHECKPOINT_ENTRIES - 7:
        append(Operation.UPSERT, [_row(0, 0, "older than all")])
    compact(
        table_id,
        ["id"],
        SORT_KEYS,
        delta_catalog_client=house.lake,
        hash_bucket_count=2,
        engine=InProcessEngine(1),
    )
    append(Operation.UPSERT, [_row(n, 4 + n % 3, "second") for n in range(12)])
    append(Operation.DELETE, [{"id": n, "time": 6} for n in range(6, 18)])
    append(Operation.UPSERT, [*(_row(n, 7, "back") for n in (6, 8)), *(_row(n, 5, "late") for n in (7, 9))])
    append(Operation.UPSERT, [_row(n, 8, "new") for n in range(38, 44)])
    return deltas


def _row(key: int, time: int, value: str) -> Row:
    return {"id": key, "time": time, "value": f"{value} {key}"}


def document(table_id: str, job_run_id: str) -> dict[str, object]:
    return instruction(
        source_table_id=table_id,
        job_run_id=job_run_id,
        sort_keys=SORT_KEYS,
        hash_bucket_count=3,
        max_rows_per_round=12,
    )


def await_success(house: House, job_run_id: str) -> None:
    wait_until(lambda: house.job_run(job_run_id).ended is not None, every_seconds=0.05)
    state = house.job_run(job_run_id)
    assert state.status is JobRunStatus.SUCCEEDED, state.ended


def check_compacted_once(house: House, table_id: str, deltas: list[tuple[Operation, list[Row]]], before: int) -> None:
    """`before`: commits before the job run."""
    table = house.lake.table(table_id)
    stream = table.stream({})
    numbered = [(position, operation, [rows]) for position, (operation, rows) in enumerate(deltas)]
    rows, columns = table.scan().to_table().to_pylist(), ["id", "time", "value"]
    assert multiset(rows, columns) == multiset(surviving_rows(numbered, ["id"], SORT_KEYS), columns)
    assert verify(stream).problems == ()
    assert commits(house, table_id) - before == 1 + ROUNDS


def commits(house: House, table_id: str) -> int:
    entries = house.lake.table(table_id).stream({}).log.entries()
    return sum(isinstance(action, IndexRehashed | RoundCommitted) for entry in entries for action in entry.actions)


def test_small_sessions_run_in_workers_and_no_spark_is_started(house: House, mailroom: Mailroom) -> None:
    table = house.lake.create_table(DAYS, partition_keys=["day"])
    days = [f"2026-01-{day:02}" for day in range(1, 7)]
    for day in days:
        table.append({"day": day}, pa.table({"id": [1, 1, 2], "v": ["a", "b", "c"]}))
        table.append({"day": day}, pa.table({"id": [2]}), Operation.DELETE)
    with dispatcher(house) as process:
        job_run_id = mailroom.send(instruction(source_table_id=DAYS))
        await_success(house, job_run_id)
        wait_until(lambda: "job_run.succeeded" in mailroom.event_types())
        assert [each.cmdline()[3] for each in children(process)] == ["compactor.worker"]
        ask_to_stop(process)
        assert process.wait(60) == 0, house.log()
    rows = sorted(table.scan().to_table().to_pylist(), key=lambda row: str(row["day"]))
    assert rows == [{"day": day, "id": 1, "v": "b"} for day in days]
    events = [json.loads(event.model_dump_json()) for event in mailroom.events()]
    launched = [each["data"]["cluster"] for each in events if each["type"] == "lithify.session.launched.v1"]
    assert len(launched) == len(days)
    assert all(cluster.startswith("worker process ") for cluster in launched)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [AT_SOME, EVERYWHERE])
def test_a_session_whose_worker_is_killed_at_a_write_is_compacted_once(
    house: House, kills: tuple[tuple[int, When], ...]
) -> None:
    with dispatcher(house):
        for number, (write, when) in enumerate(kills):
            table_id, job_run_id = f"ACME.CASE_{number}.V1", f"case-{number}"
            deltas, doom = deltas_of(house, table_id), house.folder / "doom"
            before = commits(house, table_id)
            WorkerDoom(write, when).put(doom)
            house.mailroom.send(document(table_id, job_run_id))
            await_success(house, job_run_id)
            assert WorkerDoom.is_met(doom), f"{when} {WRITES[write - 1][0]}"
            check_compacted_once(house, table_id, deltas, before)
    assert house.log().count("worker_died") == len(kills)


def test_the_writes_of_a_session_in_a_worker_are_these(house: House) -> None:
    deltas = deltas_of(house, DAYS)
    before = commits(house, DAYS)
    house.append([{"id": 1}])
    with dispatcher(house):
        # In a worker that is not ready yet, a session also logs that it expects to take less than its plan says.
        house.mailroom.send(instruction(job_run_id="first"))
        await_success(house, "first")
        (house.folder / "doom" / "writes").write_text("")
        house.mailroom.send(document(DAYS, "run"))
        await_success(house, "run")
        check_compacted_once(house, DAYS, deltas, before)
    told = re.compile(r"run\.1/log/[0-9]+\.json$")
    written = [
        re.sub(r"-[0-9a-f]{32}", "-x", re.sub(r"/0+([0-9]+)", r"/\1", key)) for key in writes(house.folder / "doom")
    ]
    left = iter(written)
    for name, end in WRITES:
        wanted = told.pattern if told.match(end) else re.escape(end) + "$"
        assert any(re.search(wanted, key) for key in left), f"{name}: {written}"
    # One that takes longer than expected also logs that, after a round.
    others = [key for key in written if not told.search(key)]
    assert len(others) == sum(told.match(end) is None for _, end in WRITES), written


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_does_not_outlive_its_dispatcher_and_the_next_one_finishes_its_session(
    house: House, ends: signal.Signals
) -> None:
    deltas, doom = deltas_of(house, DAYS), house.folder / "doom"
    before = commits(house, DAYS)
    with dispatcher(house, "--drain-seconds", "0.5") as killed:
        WorkerDoom(ROUND_2_COMMITTED, "after", "hangs").put(doom)
        house.mailroom.send(document(DAYS, "run"))
        wait_until(lambda: WorkerDoom.is_met(doom))
        (worker,) = children(killed)
        killed.send_signal(ends)
        killed.wait()
        psutil.wait_procs([worker], timeout=60)
        assert not worker.is_running()
    assert house.job_run("run").ended is None
    assert ("; nothing is left in flight." in house.log()) == (ends == signal.SIGTERM)
    with dispatcher(house, "--until-idle") as successor:
        assert successor.wait(120) == 0, house.log()
    assert house.job_run("run").status is JobRunStatus.SUCCEEDED
    check_compacted_once(house, DAYS, deltas, before)
