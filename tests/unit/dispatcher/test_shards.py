"""A job run over many streams is divided into shards, which dispatchers claim separately."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from compactor.lake import DeltaCatalog
from compactor.log.keys import KEYS as LOG_KEYS
from compactor.log.keys import EntryObject
from compactor.model.errors import Unavailable
from compactor.storage.keys import parse_any
from dispatcher.cli.job_run_lines import job_run_lines
from dispatcher.cli.output import as_text
from dispatcher.operations.status import view_all, view_job_run
from dispatcher.records.claims import Claim, claim_job_run
from dispatcher.records.history_upkeep import HistoryUpkeep
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus, SessionsFound, ShardEnded
from dispatcher.records.keys import JobRunLogFolder, JobRunObject, PausedObject
from dispatcher.records.sessions import SessionPin
from dispatcher.records.work_id import (
    OPEN_SHARDS_MAX,
    STREAMS_PER_SHARD,
    ShardNumber,
    WorkId,
    shard_count,
)
from dispatcher.running.journal import Listeners
from tests.fakes.dispatch_desk import Busy, Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.small_cluster import Succeeds
from tests.unit.dispatcher.test_session_finding import ALL, STREAMS, WIDE, Idle, append_days, partitions, sessions
from tests.unit.dispatcher.test_stream_order import tick_all


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    clock = ManualClock()
    desk = Idle(tmp_path, clock=clock, state=FaultyStore(MemoryStore(clock)))
    append_days(DeltaCatalog(desk.lake.store, clock))
    yield desk
    desk.close()


def shards_of(desk: Desk, job_run_id: str) -> list[str]:
    shards = desk.job_run(job_run_id).shards
    assert shards is not None
    return [WorkId(job_run_id, ShardNumber(number, shards.count)).text for number in range(shards.opened)]


def test_the_name_of_a_shard_is_no_job_run_id_and_leads_back_to_it() -> None:
    whole, shard = WorkId("orders-7"), WorkId("orders-7", ShardNumber(3, 8))
    assert (WorkId.parse(whole.text), WorkId.parse(shard.text)) == (whole, shard)
    assert (whole.text, str(whole)) == ("orders-7", "orders-7")
    assert shard.text == "orders-7\x1f3-8"
    assert str(shard) == "orders-7 (shard 4 of 8)"


def test_shards_have_so_few_streams_that_a_dispatcher_holds_no_more_of_a_wider_job_run() -> None:
    assert [shard_count(streams) for streams in (1, 66, 400, 4_000, 5_000, 100_000)] == [1, 2, 8, 8, 10, 200]
    for streams in (4_000, 10_001, 1_000_000):
        assert streams / shard_count(streams) <= STREAMS_PER_SHARD


def test_every_stream_has_one_shard() -> None:
    for digest in ("000000000000", "e3b0c44298fc", "ffffffffffff"):
        assert [WorkId("run", ShardNumber(number, 7)).may_have(digest) for number in range(7)].count(True) == 1


def test_two_dispatchers_run_parts_of_one_job_run_at_once(tmp_path: Path) -> None:
    hold = threading.Event()
    desk = Desk(tmp_path)
    desk.settings = replace(desk.settings, max_sessions=2)
    desk = replace(desk)
    append_days(desk.lake)
    other = desk.second()
    for each in (desk, other):
        each.cluster.behaves = lambda _: Succeeds(hold)
    job_run_id = desk.accept(source_table_id=WIDE)

    def both_run() -> bool:
        other.tick()
        return desk.cluster.running == 2 and other.cluster.running == 2

    desk.tick_until(both_run)
    owners = {state.claim.owner for state in map(desk.job_run, shards_of(desk, job_run_id)) if state.claim is not None}
    assert owners == {"first", "second"}
    text = as_text(job_run_lines(view_job_run(desk.records, job_run_id, desk.clock), None), None).plain
    assert "0 of 2 shards done by 2 dispatchers, with 0 sessions" in text
    assert [view.job_run_id for view in view_all(desk.records, desk.clock)] == [job_run_id]
    hold.set()
    for each in (desk, other):
        each.close()


def test_the_events_and_the_history_of_a_job_run_with_shards_are_those_of_one_job_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    append_days(desk.lake)
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.run()
    names = Counter(desk.sink.names)
    assert (names["job_run.accepted"], names["job_run.started"], names["job_run.succeeded"]) == (1, 1, 1)
    assert names["session.succeeded"] == STREAMS
    assert {json.loads(event.render())["jobrunid"] for event in desk.sink.events} == {job_run_id}
    (ended,) = [each for day in desk.records.history.read() for each in day.job_runs]
    assert (ended.job_run_id, ended.sessions, ended.rows_out, ended.status) == (
        job_run_id,
        STREAMS,
        STREAMS,
        "succeeded",
    )
    assert desk.records.open_work() == []
    assert desk.tables.followed == desk.publisher.followed == frozenset()
    desk.close()


def test_plans_heartbeats_and_cursors_of_shards_go_with_those_of_their_job_run(desk: Desk) -> None:
    desk.accept(job_run_id="wide", source_table_id=WIDE)
    desk.accept(job_run_id="wider", source_table_id=WIDE)
    desk.run()
    desk.clock.sleep(3 * 86_400.0)
    kept_up = HistoryUpkeep(desk.records, desk.clock)
    kept_up.close_days()
    (day,) = desk.records.history.closed_days()
    before = [entry.key for entry in desk.records.store.list("job_runs/")]
    cursors = [key for key in before if JobRunObject.parse_or_none(key) is not None]
    assert len([key for key in cursors if WorkId.parse(job_run_in(key)).job_run_id == "wide"]) > 1
    kept_up.clean(day)
    after = [entry.key for entry in desk.records.store.list("job_runs/")]
    assert after
    assert [key for key in before if parse_any(key, LOG_KEYS) is not None] == after


def job_run_in(key: str) -> str:
    """The name of the job run or shard in whose folder an object lies."""
    return unquote(key.split("/")[1])


def test_a_workflow_gets_heartbeats_from_a_dispatcher_that_holds_only_a_shard(tmp_path: Path) -> None:
    desk = Busy(tmp_path, clock=ManualClock())
    desk.settings = replace(desk.settings, max_sessions=1)
    desk = replace(desk)
    append_days(DeltaCatalog(desk.lake.store, desk.clock))
    token = desk.callbacks.begin("a task token of some length")
    job_run_id = desk.accept(source_table_id=WIDE, task_token=token, task_heartbeat_seconds=60)
    other = desk.second()

    def both_hold_one() -> bool:
        other.tick()
        return len(owners_of_shards(desk, job_run_id)) == 2

    desk.tick_until(both_hold_one)
    claim = desk.job_run(job_run_id).claim
    assert claim is not None
    (owner,) = owners_of_shards(desk, job_run_id).keys() - {claim.owner}
    shard = owners_of_shards(desk, job_run_id)[owner]
    holder = other if owner == "second" else desk
    listeners = Listeners(holder.publisher, holder.answers, holder.metrics, holder.tables)
    before = desk.callbacks.beats[token]
    for _ in range(120):
        holder.move_on(1)
        listeners.session_progressed(shard, f"{job_run_id}.1")
        holder.answers.answer_round()
    assert desk.callbacks.beats[token] - before in (5, 6)  # the last one before may be just ago
    for each in (desk, other):
        each.close()


def owners_of_shards(desk: Desk, job_run_id: str) -> dict[str, str]:
    """By owner, a shard that it has claimed."""
    shards = desk.job_run(job_run_id).shards
    claims = {name: desk.job_run(name).claim for name in shards_of(desk, job_run_id)} if shards is not None else {}
    return {claim.owner: name for name, claim in claims.items() if claim is not None}


def test_a_cancel_reaches_the_shards_and_the_job_run_ends_as_cancelled(tmp_path: Path) -> None:
    hold = threading.Event()
    desk = Desk(tmp_path)
    append_days(desk.lake)
    desk.cluster.behaves = lambda _: Succeeds(hold)
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.tick_until(lambda: desk.cluster.running == 2)
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not now")])
    desk.run()
    ended = desk.job_run(job_run_id).ended
    assert ended is not None
    assert (ended.outcome.status, ended.outcome.reasons) == ("cancelled", ("not now",))
    assert all(desk.job_run(name).status is JobRunStatus.CANCELLED for name in shards_of(desk, job_run_id))
    assert Counter(desk.sink.names)["job_run.cancelled"] == 1
    desk.close()


def test_a_pause_of_the_job_run_keeps_its_shards_from_starting_and_is_told_once(tmp_path: Path) -> None:
    hold = threading.Event()
    desk = Desk(tmp_path)
    desk.settings = replace(desk.settings, pause_look_seconds=0.0)
    desk = replace(desk)
    append_days(desk.lake)
    desk.cluster.behaves = lambda _: Succeeds(hold)
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.tick_until(lambda: desk.cluster.running == 2)
    what = PausedObject("job_runs", job_run_id)
    desk.records.pauses.pause(what, "a release")
    tick_all(desk)
    hold.set()
    desk.tick_until(lambda: desk.job_run(job_run_id).paused is not None and desk.cluster.running == 0)
    tick_all(desk)
    assert desk.cluster.running == 0
    launched = len(desk.cluster.launched)
    tick_all(desk)
    assert len(desk.cluster.launched) == launched < STREAMS
    assert all(desk.job_run(name).paused is None for name in shards_of(desk, job_run_id))
    desk.records.pauses.resume(what)
    desk.tick_until(lambda: desk.job_run(job_run_id).ended is not None)
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    names = Counter(desk.sink.names)
    assert (names["job_run.paused"], names["job_run.resumed"]) == (1, 1)
    desk.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_end_of_a_shard_is_recorded_once_whatever_its_first_record_became(desk: Desk, when: str) -> None:
    job_run_id = desk.accept(source_table_id=WIDE)
    state = desk.state
    assert isinstance(state, FaultyStore)
    folder = JobRunLogFolder(job_run_id).key
    for number in (4, 5, 6):
        state.fail("put_if_absent", EntryObject(folder, number).key, when, times=1)  # type: ignore[arg-type]
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    actions = [action for entry in desk.records.log(job_run_id).entries() for action in entry.actions]
    assert sorted(action.number for action in actions if isinstance(action, ShardEnded)) == [0, 1]
    assert partitions(desk, job_run_id) == ALL


def test_a_successor_ends_a_job_run_whose_shards_have_all_ended(desk: Desk) -> None:
    job_run_id = desk.accept(source_table_id=WIDE)

    def have_ended() -> bool:
        shards = desk.job_run(job_run_id).shards
        return shards is not None and len(shards.ended) == shards.count

    state = desk.state
    assert isinstance(state, FaultyStore)
    folder = JobRunLogFolder(job_run_id).key
    for number in range(6, 9):
        state.fail("put_if_absent", EntryObject(folder, number).key, times=None, error=Unavailable)
    desk.tick_until(have_ended)
    tick_all(desk)
    assert desk.job_run(job_run_id).ended is None
    state.heal()
    desk.controller.drain(0.0)
    second = desk.second()
    second.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert len({each.pin.session_id for each in sessions(desk, job_run_id)}) == STREAMS
    second.close()


def test_a_successor_claims_each_shard_once(tmp_path: Path) -> None:
    """Its sessions run here already when the job run itself is gone on with."""
    hold = threading.Event()
    desk = Desk(tmp_path)
    append_days(desk.lake)
    desk.cluster.behaves = lambda _: Succeeds(hold)
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.tick_until(lambda: desk.cluster.running == 2)
    successor = desk.second()
    desk.leave()
    works = [job_run_id, *shards_of(desk, job_run_id)]

    def epochs() -> list[int | None]:
        claims = [successor.job_run(each).claim for each in works]
        return [claim.epoch if claim is not None and claim.owner == "second" else None for claim in claims]

    def all_are_claimed() -> bool:
        """What the first dispatcher was at may have renewed a claim after the clock was moved."""
        successor.move_on(successor.settings.claim_seconds / 2)
        return None not in epochs()

    successor.tick_until(all_are_claimed)
    found = epochs()
    hold.set()
    successor.run()
    assert all(each is not None and each <= 2 for each in found), found
    assert successor.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    successor.close()


def test_no_more_shards_are_open_than_a_few_and_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.running.sharding.OPEN_SHARDS_MAX", 2)
    monkeypatch.setattr("dispatcher.records.work_id.SHARED_STREAMS", 12)
    desk = Idle(tmp_path)
    append_days(desk.lake)
    job_run_id = desk.accept(source_table_id=WIDE)
    most = 0

    def has_ended() -> bool:
        nonlocal most
        shards = desk.job_run(job_run_id).shards
        most = max(most, len(shards.open) if shards is not None else 0)
        return desk.job_run(job_run_id).ended is not None

    desk.tick_until(has_ended)
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert (most, len(shards_of(desk, job_run_id))) == (2, 6)
    assert partitions(desk, job_run_id) == ALL
    desk.close()


def test_the_status_of_a_job_run_with_many_shards_takes_few_requests(desk: Desk) -> None:
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.run()
    state = desk.state
    assert isinstance(state, FaultyStore)
    state.requests.clear()
    view = view_job_run(desk.records, job_run_id, desk.clock)
    assert view.shards is not None
    assert (view.shards.ended, view.shards.count, view.sessions) == (2, 2, ())
    assert len(state.requests) <= 15
    assert OPEN_SHARDS_MAX <= 16  # of each that is held, `status` reads the log


def test_a_job_run_that_an_earlier_release_began_to_run_keeps_its_sessions_to_itself(desk: Desk) -> None:
    job_run_id = desk.accept(source_table_id=WIDE)
    pin = SessionPin(
        session_id=f"{job_run_id}.1",
        partition={"day": "000"},
        source_stream_version=1,
        source_entry_number=1,
        source_position=None,
        destination_entry_number=1,
    )
    claim = claim_job_run(desk.records.log(job_run_id), "earlier", lambda _: False)
    assert isinstance(claim, Claim)
    claim.write(lambda _: [SessionsFound(epoch=claim.epoch, sessions=(pin,))])
    claim.release()
    desk.run()
    state = desk.job_run(job_run_id)
    assert state.shards is None
    assert (state.status, len(state.sessions)) == (JobRunStatus.SUCCEEDED, STREAMS)
