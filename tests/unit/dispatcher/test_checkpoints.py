"""Checkpoints of job-run and session logs: what was held for a week is loaded as quickly as what was just accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.log.checkpoints import WholeCheckpoint
from compactor.log.durable_log import DurableLog, LogState
from compactor.log.small_states import small_checkpoint
from compactor.model.counts import RowCounts
from compactor.model.document import Document
from compactor.model.errors import Corrupt
from compactor.sessions.session_log import SESSION_LOG, RoundDone, SessionLogState, SessionStarted
from dispatcher.records.claims import Claim, claim_job_run
from dispatcher.records.job_run_log import JOB_RUN_LOG, JobRunState, JobRunWaitsForMoney
from dispatcher.records.job_run_store import JobRunStore
from tests.fakes.dispatch_desk import Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

COUNTS = RowCounts(
    rows_in=1, rows_out=1, rows_deduplicated=0, rows_deleted=0, rows_before=0, rows_carried=0, tombstones=0
)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, clock=ManualClock())
    yield desk
    desk.close()


def held_for(desk: Desk, entries: int) -> str:
    """A job run with so many entries after its claim."""
    desk.append([{"id": 1}])
    job_run_id = desk.accept(job_run_id="run")
    claim = claim_job_run(desk.records.log(job_run_id), "old", lambda _: False)
    assert isinstance(claim, Claim)
    for _ in range(entries):
        claim.log.append(lambda _: [JobRunWaitsForMoney(reason="a limit", again=True)])
    return job_run_id


def test_a_job_run_of_thousands_of_entries_is_loaded_with_40_requests(desk: Desk) -> None:
    entries = 6_000
    job_run_id = held_for(desk, entries)
    store = FaultyStore(desk.state)
    loaded = JobRunStore(store, desk.clock).log(job_run_id).load()
    assert loaded.entry_number == entries + 2
    assert len(store.requests) <= 40


def test_a_checkpoint_of_a_job_run_holds_what_its_entries_say(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for day in range(12):
        table = desk.lake.create_table("ACME.DAYS.V1", ["day"])
        table.append({"day": str(day)}, pa.table({"id": [1]}))
    desk.accept(source_table_id="ACME.DAYS.V1", job_run_id="run", sort_keys=[["id", "ascending"]])
    desk.run()
    log = desk.records.log("run")
    last = log.load().entry_number
    assert last > 32
    assert isinstance(JOB_RUN_LOG.checkpoint, WholeCheckpoint)
    for number in range(1, last + 1):
        state = _replayed(desk, number).state
        assert JOB_RUN_LOG.checkpoint.from_table(JOB_RUN_LOG.checkpoint.to_table(state)) == state
    store = FaultyStore(desk.state)
    assert JobRunStore(store, desk.clock).state("run") == _replayed(desk, last).state
    assert store.count("read", ".checkpoint.parquet") == 1
    desk.close()


def _replayed(desk: Desk, number: int) -> LogState[JobRunState]:
    """By the entries alone."""
    without = MemoryStore(desk.clock)
    for entry in desk.state.list("job_runs/run/log/"):
        if entry.key.endswith(".json"):
            body = desk.state.read(entry.key)
            assert body is not None
            without.put_if_absent(entry.key, body)
    return JobRunStore(without, desk.clock).log("run").load(as_of=number)


def test_a_session_of_many_rounds_is_loaded_from_its_checkpoint() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    log = DurableLog(store, "log", SESSION_LOG, clock)
    log.append(lambda _: [SessionStarted(attempt=1, rounds=500, expected_sla=1.0)])
    for number in range(500):
        done = RoundDone(
            attempt=1, round_number=number + 1, rounds=500, entry_number=number + 9, counts=COUNTS, seconds=1.0
        )
        log.append(lambda _, done=done: [done])  # type: ignore[misc]
    store.requests.clear()
    again: DurableLog[SessionLogState, object] = DurableLog(store, "log", SESSION_LOG, clock)  # type: ignore[arg-type]
    assert again.load().state == log.newest.state
    assert len(again.load().state.rounds_done) == 500
    assert len(store.requests) <= 40


def test_a_checkpoint_of_a_release_with_other_fields_is_passed_over_and_the_log_replayed(desk: Desk) -> None:
    job_run_id = held_for(desk, 40)
    expected = desk.job_run(job_run_id)
    key = "job_runs/run/log/00000000000000000032.checkpoint.parquet"
    body = desk.state.read(key)
    assert body is not None
    table = pq.read_table(pa.BufferReader(body))
    other = table.set_column(0, "shape", pa.array(["another"]))
    sink = pa.BufferOutputStream()
    pq.write_table(other.replace_schema_metadata(table.schema.metadata), sink)
    desk.state.overwrite(key, sink.getvalue().to_pybytes())
    store = FaultyStore(desk.state)
    assert JobRunStore(store, desk.clock).state(job_run_id) == expected
    assert store.count("read", ".json") >= 42


def test_a_checkpoint_is_read_by_a_state_that_differs_by_its_docstring_and_no_other() -> None:
    def state(doc: str, fields: dict[str, type]) -> type[Document]:
        return type("State", (Document,), {"__doc__": doc, "__annotations__": fields})

    before = state("As it was.", {"description": int})
    written = small_checkpoint(before).to_table(before.model_validate({"description": 7}))
    reworded = state("As it is.", {"description": int})
    assert small_checkpoint(reworded).from_table(written).model_dump() == {"description": 7}
    with pytest.raises(Corrupt, match="other fields"):
        small_checkpoint(state("As it was.", {"description": str})).from_table(written)


def test_a_log_that_was_never_begun_costs_one_request(desk: Desk) -> None:
    store = FaultyStore(desk.state)
    assert JobRunStore(store, desk.clock).state("nobody") == JobRunState()
    assert len(store.requests) == 1
