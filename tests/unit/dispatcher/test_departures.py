"""A claimed job run leaves a dispatcher by one door: nothing of it stays, and whoever goes on need not wait."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.model.errors import Unavailable
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from dispatcher.records.claims import Claim, claim_job_run
from dispatcher.records.job_run_log import CancelRequested, JobRunClaimed, JobRunStatus
from dispatcher.records.keys import LiveDispatcher
from dispatcher.records.liveness import SignOfLife
from dispatcher.scheduling.limits import Limits, SharedLimits
from tests.fakes.dispatch_desk import Busy, Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.unit.dispatcher.test_flow_limits import close, fleet, running
from tests.unit.dispatcher.test_job_run_controller import DAYS
from tests.unit.dispatcher.test_session_finding import WIDE, Idle, append_days
from tests.unit.dispatcher.test_stream_order import accept, tick_all
from tests.unit.dispatcher.test_takeover import SILENT_SECONDS, owners, pass_time


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    hold = threading.Event()
    yield hold
    hold.set()


def lose(desk: Desk, job_run_id: str) -> None:
    sign = SignOfLife(owner="another", beat=1, at_ms=0, silent_seconds=SILENT_SECONDS)
    desk.state.overwrite(LiveDispatcher("another").key, sign.render())
    desk.records.log(job_run_id).append(lambda before: [JobRunClaimed(owner="another", epoch=before.state.epoch + 1)])
    tick_all(desk)


def drain(desk: Desk, _: str) -> None:
    desk.controller.drain(0.0)


@pytest.mark.parametrize("leave", [lose, drain])
def test_nothing_is_kept_of_a_job_run_that_left_while_its_streams_were_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: object
) -> None:
    monkeypatch.setattr("dispatcher.running.sharding.COUNTED_AT_ONCE", 1)
    monkeypatch.setattr("dispatcher.running.sharding.SHARDING_SECONDS", 0.0)
    clock = ManualClock()
    counted: list[weakref.ref[ObjectStore]] = []

    def open_lake(location: StoreLocation) -> DeltaCatalog:
        lake = DeltaCatalog(open_store(location), clock)
        counted.append(weakref.ref(lake.store))
        return lake

    accepting = Idle(tmp_path, clock=clock)
    append_days(accepting.lake)
    desk = Idle(tmp_path, clock=clock, state=accepting.state, queue=accepting.queue, open_lake=open_lake)
    job_run_id = accepting.accept(source_table_id=WIDE)
    desk.controller.offer(job_run_id)
    tick_all(desk, times=3)
    gc.collect()
    assert any(each() is not None for each in counted)  # it counts
    assert callable(leave)
    leave(desk, job_run_id)
    gc.collect()
    assert all(each() is None for each in counted)
    for each in (desk, accepting):
        each.close()


def test_a_job_run_that_ends_while_it_waits_for_a_slot_keeps_it_free_no_longer(
    tmp_path: Path, hold: threading.Event
) -> None:
    desk, other = fleet(tmp_path, Limits(all=SharedLimits(sessions=1)), hold)
    desk.append_days(DAYS, 3)
    first = desk.accept(job_run_id="first", source_table_id=DAYS, partitions=[{"day": "1"}])
    desk.tick_until(lambda: running(desk) == 1)
    waits = accept(desk, "waits", source_table_id=DAYS, partitions=[{"day": "2"}], priority=9)
    claim = claim_job_run(desk.records.log(waits), "dead", lambda _: False)
    assert isinstance(claim, Claim)
    (marker,) = [each for each in desk.records.open_markers() if each.work.text == waits]
    desk.records.mark_held(replace(marker.valid, owner="dead", epoch=1), marker.keys)
    other.tick_until(lambda: waits in other.turns.now().wants)
    desk.records.log(waits).append(lambda _: [CancelRequested(reason="not now")])
    other.tick_until(lambda: other.job_run(waits).status is JobRunStatus.CANCELLED)
    later = accept(desk, "later", source_table_id=DAYS, partitions=[{"day": "3"}])
    desk.controller.offer(later)
    tick_all(other)
    hold.set()
    desk.tick_until(lambda: all(desk.job_run(each).status is JobRunStatus.SUCCEEDED for each in (first, later)))
    close(desk, other)


def test_what_a_dispatcher_could_not_release_when_it_stopped_is_taken_over_after_its_silence(tmp_path: Path) -> None:
    clock = ManualClock()
    state = FaultyStore(MemoryStore(clock))
    desk = Busy(tmp_path, clock=clock, state=state)
    desk.settings = replace(desk.settings, claim_seconds=SILENT_SECONDS, sweep_seconds=60.0)
    desk = replace(desk)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    pass_time(5, desk)
    assert owners(desk, [job_run_id]) == ["first"]
    entries = desk.records.log(job_run_id).load().entry_number
    state.fail("put_if_absent", f"log/{entries + 1:020d}.json", times=None)
    assert isinstance(desk, Busy)
    desk.closed.set()
    desk.controller.drain(0.0)
    state.heal()
    assert owners(desk, [job_run_id]) == ["first"]
    second = desk.second()
    pass_time(SILENT_SECONDS + 130, second)
    assert owners(second, [job_run_id]) == ["second"]
    second.close()


def test_a_job_run_whose_acceptance_cannot_be_read_after_its_claim_is_given_back_and_claimed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(log: DurableLog[object, object], number: int) -> object:
        raise Unavailable(f"entry {number} of {log.folder} cannot be read")

    desk = Desk(tmp_path, clock=ManualClock())
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    with monkeypatch.context() as away:
        away.setattr(DurableLog, "entry", is_away)
        tick_all(desk, times=1)
    assert owners(desk, [job_run_id]) == [None]
    assert desk.controller.quarantined == ()
    second = desk.second()
    second.tick_until(lambda: second.job_run(job_run_id).status is JobRunStatus.SUCCEEDED)
    close(desk, second)
