"""Job runs over many streams: accepted with a time instead of sessions, which are found as the job run reaches them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.events.types import SessionSucceededEvent
from compactor.lake import DeltaCatalog
from compactor.model.errors import Unavailable
from compactor.planning.session_planner import SessionFinder
from compactor.planning.spec import JobRunSpec
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.intake.intake import Accepted
from dispatcher.intake.pinning import CLOCKS_APART_MS, STREAMS_PINNED_MAX
from dispatcher.operations.retry import begin_retry, plan_retry
from dispatcher.records.job_run_events import JobRunAcceptedEvent
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus
from dispatcher.records.sessions import SessionState
from dispatcher.records.work_id import ShardNumber, WorkId
from launcher.outcomes import NothingToDo
from tests.builders import run_of
from tests.fakes.dispatch_desk import Busy, Desk, instruction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.moving_clock import MovingClock

WIDE = "ACME.WIDE.V1"
STREAMS = STREAMS_PINNED_MAX + 6


class Idle(Desk):
    """Its sessions find nothing to do, at once."""

    def plan(self, *_: object) -> NothingToDo:
        return NothingToDo()


@pytest.fixture(scope="module")
def wide_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose table has just more streams than are pinned when a job run is accepted."""
    folder = tmp_path_factory.mktemp("wide")
    append_days(DeltaCatalog(open_store(parse_location(str(folder))), ManualClock()))
    return folder


@pytest.fixture
def folder(tmp_path: Path, wide_lake: Path) -> Path:
    """Of a desk with that lake."""
    shutil.copytree(wide_lake, tmp_path / "lake")
    return tmp_path


@pytest.fixture
def desk(folder: Path) -> Iterator[Desk]:
    desk = Idle(folder)
    yield desk
    desk.close()


def append_days(lake: DeltaCatalog, until: int = STREAMS, first: int = 0) -> None:
    table = lake.create_table(WIDE, ["day"])
    for day in range(first, until):
        table.append({"day": f"{day:03}"}, pa.table({"id": [day]}))


def sessions(desk: Desk, job_run_id: str) -> list[SessionState]:
    """Of its shards."""
    shards = desk.job_run(job_run_id).shards
    numbers = [] if shards is None else [ShardNumber(each, shards.count) for each in range(shards.opened)]
    names = [WorkId(job_run_id, each).text for each in numbers]
    return [session for name in names for session in desk.job_run(name).sessions.values()]


def partitions(desk: Desk, job_run_id: str) -> list[str]:
    return sorted(session.pin.partition["day"] for session in sessions(desk, job_run_id))


ALL = [f"{day:03}" for day in range(STREAMS)]


def test_many_streams_are_accepted_by_an_entry_that_names_none_of_them(desk: Desk) -> None:
    job_run_id = desk.accept(source_table_id=WIDE)
    accepted = desk.job_run(job_run_id).accepted
    assert accepted is not None
    assert (accepted.sessions, accepted.partitions) == ((), None)
    assert accepted.pinned_until_ms is not None
    desk.run()
    state = desk.job_run(job_run_id)
    assert (state.status, state.is_finding) == (JobRunStatus.SUCCEEDED, False)
    assert partitions(desk, job_run_id) == ALL
    assert len({session.pin.session_id for session in sessions(desk, job_run_id)}) == STREAMS


def test_few_streams_are_pinned_when_they_are_accepted(tmp_path: Path) -> None:
    desk = Idle(tmp_path)
    append_days(desk.lake, STREAMS_PINNED_MAX)
    accepted = desk.job_run(desk.accept(source_table_id=WIDE)).accepted
    assert accepted is not None
    assert accepted.pinned_until_ms is None
    assert len(accepted.sessions) == STREAMS_PINNED_MAX
    desk.close()


def test_named_partitions_are_pinned_however_many_streams_there_are(desk: Desk) -> None:
    append_days(desk.lake)
    accepted = desk.job_run(desk.accept(source_table_id=WIDE, partitions=[{"day": "003"}])).accepted
    assert accepted is not None
    assert [pin.partition for pin in accepted.sessions] == [{"day": "003"}]


def test_subscribers_get_the_partition_of_each_session_that_is_found(folder: Path) -> None:
    desk = Desk(folder)
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.run()
    (accepted,) = (event.data for event in desk.sink.events if isinstance(event.data, JobRunAcceptedEvent))
    assert (accepted.sessions, accepted.finds_sessions) == (0, True)
    ended = [event.data for event in desk.sink.events if isinstance(event.data, SessionSucceededEvent)]
    assert sorted(data.partition["day"] for data in ended) == ALL
    assert len({event.id for event in desk.sink.events}) == len(desk.sink.events)
    outcome = desk.job_run(job_run_id).ended
    assert outcome is not None
    assert (outcome.outcome.sessions, outcome.outcome.rows_out) == (STREAMS, STREAMS)
    desk.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("entry", range(3, 7))
def test_a_state_that_fails_at_any_entry_loses_no_session_and_finds_none_twice(
    folder: Path, entry: int, when: str
) -> None:
    clock = ManualClock()
    state = FaultyStore(MemoryStore(clock))
    desk = Idle(folder, clock=clock, state=state)
    job_run_id = desk.accept(source_table_id=WIDE)
    state.fail("put_if_absent", f"log/{entry:020d}.json", when, times=8)  # type: ignore[arg-type]
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert partitions(desk, job_run_id) == ALL
    desk.close()


def test_a_successor_finds_what_its_predecessor_had_not(folder: Path) -> None:
    clock = ManualClock()
    state = FaultyStore(MemoryStore(clock))
    first = Busy(folder, clock=clock, state=state)
    job_run_id = first.accept(source_table_id=WIDE)
    state.fail("put_if_absent", f"log/{4:020d}.json", times=None)
    for _ in range(3):
        first.controller.tick()
        clock.sleep(1)
    shards = first.job_run(job_run_id).shards
    assert shards is not None
    assert first.job_run(WorkId(job_run_id, ShardNumber(0, shards.count)).text).is_finding
    state.heal()
    first.controller.drain(0.0)
    second = Idle(folder, clock=clock, state=state, queue=first.queue, owner="second")
    second.run()
    assert second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert partitions(second, job_run_id) == ALL
    second.close()
    first.close()


def test_a_cancel_ends_a_job_run_whose_sessions_are_not_found_and_a_retry_finds_them(desk: Desk) -> None:
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not now")])
    desk.run()
    state = desk.job_run(job_run_id)
    assert (state.status, len(state.sessions)) == (JobRunStatus.CANCELLED, 0)
    assert state.ended is not None
    assert (state.ended.outcome.reasons, state.ended.outcome.nothing_to_do) == (("not now",), False)
    retry = begin_retry(desk.records, plan_retry(desk.records, lambda _: desk.lake, job_run_id, desk.clock))
    desk.controller.offer(retry.job_run_id)
    desk.run()
    assert desk.job_run(retry.job_run_id).status is JobRunStatus.SUCCEEDED
    assert partitions(desk, retry.job_run_id) == ALL


def test_a_lake_that_does_not_answer_delays_the_finding(folder: Path) -> None:
    away = [Unavailable("the lake is away"), Unavailable("the lake is still away")]
    desk = Idle(folder)
    lake = desk.lake
    job_run_id = desk.accept(source_table_id=WIDE)

    def open_lake(_: object) -> DeltaCatalog:
        if away:
            raise away.pop()
        return lake

    second = Idle(folder, state=desk.state, queue=desk.queue, owner="second", open_lake=open_lake)
    second.run()
    assert not away
    assert partitions(second, job_run_id) == ALL
    second.close()
    desk.close()


def test_a_table_that_goes_offline_ends_the_job_run_with_the_reason(desk: Desk) -> None:
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.lake.table(WIDE).set_properties({"state": "offline"})
    desk.run()
    ended = desk.job_run(job_run_id).ended
    assert ended is not None
    assert ended.outcome.status == "failed"
    assert any("is offline" in reason for reason in ended.outcome.reasons)


# ---------------------------------------------------------------------------------------------- pinned by time


def spec_of(lake: DeltaCatalog) -> JobRunSpec:
    return run_of(lake, WIDE, job_run_id="run")


def test_a_session_reads_what_was_appended_until_the_time_of_its_job_run(tmp_path: Path) -> None:
    clock = ManualClock()
    lake = DeltaCatalog(open_store(parse_location(str(tmp_path))), clock)
    append_days(lake, 3)
    until_ms = clock.now_ms()
    at_that_time = lake.table(WIDE).stream({"day": "001"}).load().entry_number
    clock.sleep(1)
    lake.table(WIDE).append({"day": "001"}, pa.table({"id": [1]}))
    lake.table(WIDE).append({"day": "late"}, pa.table({"id": [1]}))
    found = SessionFinder(spec_of(lake), lake, until_ms).next()
    assert found is not None
    entries = {pinned.spec.partition["day"]: pinned.spec.source_entry_number for pinned in found}
    assert entries.keys() == {"000", "001", "002"}
    assert entries["001"] == at_that_time
    later = SessionFinder(spec_of(lake), lake, clock.now_ms()).next()
    assert later is not None
    assert Counter(pinned.work.delta_files for pinned in later) == {1: 3, 2: 1}


def test_an_append_by_a_writer_whose_clock_is_minutes_ahead_is_not_left_out(tmp_path: Path) -> None:
    desk = Idle(tmp_path)
    ahead = MovingClock()
    ahead.move_on(CLOCKS_APART_MS / 1000 - 60)
    append_days(DeltaCatalog(desk.lake.store, ahead))
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.run()
    assert partitions(desk, job_run_id) == ALL
    desk.close()


def test_the_requests_of_an_acceptance_do_not_grow_with_the_streams(folder: Path) -> None:
    clock = MovingClock()
    plain = Idle(folder, clock=clock)
    requests = []
    for until in (STREAMS, STREAMS + 20):
        append_days(plain.lake, until, STREAMS)
        store = FaultyStore(open_store(plain.lake.location))
        desk = Idle(folder, clock=clock, open_lake=lambda _, store=store: DeltaCatalog(store, clock))  # type: ignore[misc]
        desk.send(instruction(source_table_id=WIDE))
        (taken,) = desk.take()
        assert isinstance(taken, Accepted)
        requests.append(len(store.requests))
        desk.close()
    assert requests[0] == requests[1] < 200
    plain.close()
