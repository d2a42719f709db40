"""Who works on what when a dispatcher is gone: nothing waits for it longer than it must, and nobody takes too much."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.model.errors import Unavailable
from dispatcher.records.claims import Claim, claim_job_run
from dispatcher.records.keys import LiveDispatcher
from dispatcher.records.liveness import Peers, SignOfLife
from dispatcher.running.job_run_controller import JobRunControllerSettings
from tests.fakes.dispatch_desk import Busy, Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock

SILENT_SECONDS = 300.0
SWEEP_SECONDS = 60.0
SETTINGS = JobRunControllerSettings(max_sessions=1, max_job_runs=50)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Busy(tmp_path, clock=ManualClock(), settings=SETTINGS)
    desk.append([{"id": 1}])
    yield desk
    desk.close()


def accepted(desk: Desk, count: int) -> list[str]:
    """Accepted, and not offered to any dispatcher."""
    return [accept(desk, f"run {number}") for number in range(count)]


def accept(desk: Desk, job_run_id: str, **fields: object) -> str:
    desk.send(
        {"schema_version": "1", "source_table_id": "ACME.ORDERS.V1", "primary_keys": ["id"], **fields}
        | {"job_run_id": job_run_id}
    )
    desk.take()
    desk.clock.sleep(1)
    return job_run_id


def held_by(desk: Desk, owner: str, job_run_ids: list[str]) -> None:
    """As a dispatcher that is gone has left them."""
    sign = SignOfLife(owner=owner, beat=7, at_ms=desk.clock.now_ms(), silent_seconds=SILENT_SECONDS)
    desk.state.overwrite(LiveDispatcher(owner).key, sign.render())
    records = replace(desk, owner=owner).records
    for job_run_id in job_run_ids:
        claim = claim_job_run(records.log(job_run_id), owner, lambda _: False)
        assert isinstance(claim, Claim)
        marker = next(each for each in records.open_markers() if each.work.text == job_run_id)
        records.mark_held(replace(marker.valid, owner=owner, epoch=claim.epoch), marker.keys)


def owners(desk: Desk, job_run_ids: list[str]) -> list[str | None]:
    claims = [desk.job_run(each).claim for each in job_run_ids]
    return [claim.owner if claim is not None else None for claim in claims]


def small(desk: Desk, owner: str, max_sessions: int = 1) -> Desk:
    """A dispatcher that has no room once it has begun so many sessions."""
    return desk.second(owner=owner, settings=replace(SETTINGS, max_sessions=max_sessions))


def pass_time(seconds: float, *desks: Desk, step_seconds: float = 1.0) -> None:
    """In steps, in each of which all dispatchers tick."""
    for _ in range(round(seconds / step_seconds)):
        desks[0].clock.sleep(step_seconds)
        for desk in desks:
            desk.controller.tick()


# ------------------------------------------------------------------------------------------------------ signs of life


def test_a_dispatcher_shows_its_life_every_30_seconds_and_nowhere_in_a_log(desk: Desk) -> None:
    (job_run_id,) = accepted(desk, 1)
    held_by(desk, "other", [job_run_id])
    store = FaultyStore(desk.state)
    desk = replace(desk, state=store)
    pass_time(600, desk)
    assert store.count("overwrite", "live_dispatchers/first") in (20, 21)
    entries = [action.action for entry in desk.records.log(job_run_id).entries() for action in entry.actions]
    assert entries == ["job_run_accepted", "job_run_claimed", "job_run_claimed"]
    desk.close()


def test_a_dispatcher_whose_receiver_stands_still_shows_no_life(desk: Desk) -> None:
    store = FaultyStore(desk.state)
    desk = replace(desk, state=store)
    desk.controller.receiver_turned()
    pass_time(SETTINGS.receiver_seconds, desk)
    beats = store.count("overwrite", "live_dispatchers/")
    assert beats > 0
    pass_time(600, desk)
    assert store.count("overwrite", "live_dispatchers/") == beats
    desk.controller.receiver_turned()
    pass_time(60, desk)
    assert store.count("overwrite", "live_dispatchers/") > beats
    desk.close()


def test_nothing_is_claimed_before_others_can_see_that_its_owner_lives(desk: Desk) -> None:
    (job_run_id,) = accepted(desk, 1)
    store = FaultyStore(desk.state)
    store.fail("overwrite", "live_dispatchers/", times=None)
    desk = replace(desk, state=store)
    pass_time(10, desk)
    assert owners(desk, [job_run_id]) == [None]
    store.heal()
    pass_time(1, desk)
    assert desk.job_run(job_run_id).epoch == 1
    desk.close()


def test_a_dispatcher_that_has_let_go_of_everything_leaves_no_sign_of_life(desk: Desk) -> None:
    pass_time(1, desk)
    assert list(desk.state.list("live_dispatchers/")) != []
    desk.close()
    desk.controller.drain(0)
    assert list(desk.state.list("live_dispatchers/")) == []


# ---------------------------------------------------------------------------------------------------------- takeovers


def test_job_runs_of_a_dead_dispatcher_are_taken_over_within_its_silence_and_one_sweep(desk: Desk) -> None:
    runs = accepted(desk, 3)
    held_by(desk, "dead", runs)
    second = small(desk, "second")
    pass_time(SILENT_SECONDS - 1, second)
    assert owners(desk, runs) == ["dead"] * 3
    pass_time(SWEEP_SECONDS, second)
    assert owners(desk, runs) == ["second"] * 3
    second.close()


def test_it_is_taken_over_whether_or_not_there_is_room_and_the_oldest_first(desk: Desk) -> None:
    runs = accepted(desk, 20)
    held_by(desk, "dead", runs[::-1])
    second = small(desk, "second")
    pass_time(SILENT_SECONDS + SWEEP_SECONDS, second)
    assert owners(desk, runs) == ["second"] * 20
    claimed_at = [desk.records.log(each).load().at_ms for each in runs]
    assert claimed_at == sorted(claimed_at)
    assert second.controller.job_runs_held == 20
    second.close()


def test_live_dispatchers_share_the_job_runs_of_a_dead_one(desk: Desk) -> None:
    runs = accepted(desk, 60)
    held_by(desk, "dead", runs)
    others = [small(desk, owner) for owner in ("second", "third", "fourth")]
    pass_time(SILENT_SECONDS + SWEEP_SECONDS, *others)
    shares = [owners(desk, runs).count(each.owner) for each in others]
    assert sum(shares) == 60
    assert min(shares) >= 10, shares
    for each in others:
        each.close()


def test_a_job_run_assigned_to_another_dead_dispatcher_is_taken_over(desk: Desk) -> None:
    runs = accepted(desk, 30)
    held_by(desk, "dead", runs)
    second, third = small(desk, "second"), small(desk, "third")
    pass_time(SILENT_SECONDS - 60, second, third)
    third.close()  # killed: it ticks no more
    pass_time(60 + 2 * SWEEP_SECONDS, second)
    assert owners(desk, runs) == ["second"] * 30
    second.close()


def test_a_dispatcher_that_lives_keeps_what_it_holds_however_long_it_writes_nothing(desk: Desk) -> None:
    runs = accepted(desk, 5)
    held_by(desk, "busy", runs)
    second = small(desk, "second")
    for beat in range(8, 60):
        sign = SignOfLife(owner="busy", beat=beat, at_ms=0, silent_seconds=SILENT_SECONDS)
        desk.state.overwrite(LiveDispatcher("busy").key, sign.render())
        pass_time(250, second)
    assert owners(desk, runs) == ["busy"] * 5
    second.close()


@pytest.mark.parametrize("hours", [-1, 1, 24 * 365])
def test_no_clock_but_the_watcher_s_own_decides_when_a_dispatcher_is_gone(desk: Desk, hours: int) -> None:
    runs = accepted(desk, 1)
    held_by(desk, "dead", runs)
    second = small(desk, "second")
    pass_time(10, second)
    assert isinstance(desk.clock, ManualClock)
    desk.clock.set_ms(desk.clock.now_ms() + hours * 3_600_000)
    pass_time(SILENT_SECONDS - 11, second)
    assert owners(desk, runs) == ["dead"]
    pass_time(SWEEP_SECONDS, second)
    assert owners(desk, runs) == ["second"]
    second.close()


def test_a_job_run_whose_dispatcher_died_before_marking_it_is_taken_over_in_the_same_time(
    desk: Desk,
) -> None:
    (job_run_id,) = accepted(desk, 1)
    held_by(desk, "dead", [])
    claim_job_run(desk.records.log(job_run_id), "dead", lambda _: False)
    second = small(desk, "second")
    pass_time(SILENT_SECONDS - 1, second)
    assert owners(desk, [job_run_id]) == ["dead"]
    pass_time(2 * SWEEP_SECONDS, second)
    assert owners(desk, [job_run_id]) == ["second"]
    second.close()


def test_a_claim_whose_marker_could_not_be_written_is_marked_by_the_next_sweep(desk: Desk) -> None:
    (job_run_id,) = accepted(desk, 1)
    store = FaultyStore(desk.state)
    store.fail("put_if_absent", f"{job_run_id.replace(' ', '%20')},0,")
    second = small(replace(desk, state=store), "second")
    pass_time(SWEEP_SECONDS + 2, second)
    (marker,) = desk.records.open_markers()
    assert (marker.valid.owner, marker.valid.epoch, len(marker.keys)) == ("second", 1, 1)
    second.close()


def test_a_claim_whose_owner_has_no_sign_of_life_is_taken_over_at_once(desk: Desk) -> None:
    """It died so long ago that others have deleted its sign."""
    runs = accepted(desk, 2)
    held_by(desk, "dead", runs)
    desk.state.delete(LiveDispatcher("dead").key)
    second = small(desk, "second")
    pass_time(1, second)
    assert owners(desk, runs) == ["second"] * 2
    second.close()


def test_an_owner_whose_sign_of_life_cannot_be_read_is_not_taken_for_gone(desk: Desk) -> None:
    (job_run_id,) = accepted(desk, 1)
    store = FaultyStore(desk.state)
    peers = Peers(store, "second", SILENT_SECONDS, desk.clock)
    held_by(desk, "busy", [job_run_id])  # since the signs of life were listed
    store.fail("read", LiveDispatcher("busy").key)
    assert not peers.is_gone("busy")
    assert not peers.is_gone("busy")
    assert store.count("read", LiveDispatcher("busy").key) == 1
    assert peers.is_gone("stopped")
    assert peers.is_gone("stopped")
    assert store.count("read", LiveDispatcher("stopped").key) == 1


def test_a_job_run_that_was_let_go_is_free_at_once(desk: Desk) -> None:
    runs = accepted(desk, 1)
    first = small(desk, "first")
    pass_time(2, first)
    first.closed.set()  # type: ignore[attr-defined]
    first.controller.drain(0)
    second = small(desk, "second")
    pass_time(1, second)
    assert owners(desk, runs) == ["second"]
    second.close()


def test_a_dispatcher_that_stood_still_removes_no_marker_of_a_job_run_that_was_released_since(desk: Desk) -> None:
    """It had listed the marker of before, and removes it when it goes on."""
    runs = accepted(desk, 1)
    slow = replace(desk, owner="slow").records
    (before,) = slow.open_markers()
    first = small(desk, "first")
    pass_time(2, first)
    first.closed.set()  # type: ignore[attr-defined]
    first.controller.drain(0)
    (released,) = desk.records.open_markers()
    slow.mark_held(replace(before.valid, owner="slow", epoch=1), before.keys)
    (left,) = desk.records.open_markers()
    assert released.keys <= left.keys
    second = small(desk, "second")
    pass_time(1, second)
    assert owners(desk, runs) == ["second"]
    second.close()


def test_a_dispatcher_that_stood_still_removes_no_marker_of_a_later_claim(desk: Desk) -> None:
    """Without it the job run would be in nobody's list, and others would pass it."""
    accepted(desk, 1)
    slow = replace(desk, owner="slow").records
    (before,) = slow.open_markers()
    claimed = replace(before.valid, owner="slow", epoch=1)
    slow.mark_held(claimed, before.keys)
    later = replace(claimed, owner="first", epoch=2)
    desk.records.mark_held(later, {claimed.key})
    (listed,) = slow.open_markers()
    slow.mark_held(claimed, listed.keys)
    (left,) = desk.records.open_markers()
    assert left.valid == later


# ------------------------------------------------------------------------------------------- waiting, and not hoarding


def test_a_dispatcher_holds_no_more_than_it_can_start(desk: Desk) -> None:
    runs = [f"run {number}" for number in range(10)]
    for number, job_run_id in enumerate(runs):
        desk.append([{"id": 1}], table=f"ACME.T{number}.V1")
        accept(desk, job_run_id, source_table_id=f"ACME.T{number}.V1")
    second, third = small(desk, "second", max_sessions=1), small(desk, "third", max_sessions=1)
    pass_time(2 * SWEEP_SECONDS, second, third)
    held = owners(desk, runs)
    assert (held.count("second"), held.count("third"), held.count(None)) == (1, 1, 8)
    second.close()
    third.close()


def test_of_what_waits_the_highest_priority_is_taken_on_first_whoever_accepted_it(desk: Desk) -> None:
    for number, priority in enumerate([0, 5, -3, 9]):
        accept(desk, f"run {number}", priority=priority)
    second = small(desk, "second")
    pass_time(1, second)
    assert owners(desk, [f"run {number}" for number in range(4)]) == [None, None, None, "second"]
    second.close()


# ---------------------------------------------------------------------------------- between the marker and the entry


def test_a_job_run_whose_acceptance_paused_for_hours_after_its_marker_is_found_by_sweeps(desk: Desk) -> None:
    """Its marker has been given up meanwhile."""
    others = [small(desk, "second"), small(desk, "third")]

    class Pausing(FaultyStore):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            if key.startswith("job_runs/") and not paused.is_set():
                paused.set()
                pass_time(4_000, *others, step_seconds=10)
                assert desk.records.open_job_run_ids() == []
            return super().put_if_absent(key, body)

    paused = threading.Event()
    slow = replace(desk, state=Pausing(desk.state), owner="slow")
    accept(slow, "run")  # and is offered to nobody: its dispatcher dies here
    pass_time(SWEEP_SECONDS, *others)
    assert owners(desk, ["run"])[0] in ("second", "third")
    for each in others:
        each.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", range(5))
def test_an_accepted_job_run_is_found_by_sweeps_whatever_paused_for_hours_and_died_then_or_went_on(
    desk: Desk, point: int, when: str
) -> None:
    """Marker, token, entry, marker again, deletion of the message: each is paused at, before it and after it."""
    others = [small(desk, "second"), small(desk, "third")]
    writes: list[str] = []

    class Pausing(FaultyStore):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            writes.append(key)
            is_paused_at = len(writes) - 1 == point
            if is_paused_at and when == "before":
                pass_time(4_000, *others, step_seconds=10)
            created = super().put_if_absent(key, body)
            if is_paused_at and when == "after":
                pass_time(4_000, *others, step_seconds=10)
            return created

    slow = replace(desk, state=Pausing(desk.state), owner="slow")
    accept(slow, "run", task_token=desk.callbacks.begin("t" * 40))  # and is offered to nobody: its dispatcher dies here
    assert [key.partition("/")[0] for key in writes] == [
        *("open_job_runs_by_owner", "task_tokens", "job_runs", "open_job_runs_by_owner")
    ]
    if point == len(writes):
        pass_time(4_000, *others, step_seconds=10)
    pass_time(SWEEP_SECONDS, *others)
    assert owners(desk, ["run"])[0] in ("second", "third")
    for each in others:
        each.close()


def test_a_job_run_that_was_accepted_while_its_marker_was_given_up_is_marked_again(desk: Desk) -> None:
    """The store's answer that its log is empty is older than the entry."""

    class Late(FaultyStore):
        def delete(self, key: str) -> None:
            if key in marks and not late.is_set():
                late.set()
                accept(desk, "run")
            super().delete(key)

    late = threading.Event()
    mark = desk.records.mark_over("run")
    marks = {mark.key}
    second = small(replace(desk, state=Late(desk.state)), "second")
    pass_time(2 * 3_600, second)
    assert late.is_set()
    assert owners(desk, ["run"]) == ["second"]
    second.close()


def test_a_message_that_comes_again_has_its_job_run_marked_again(desk: Desk) -> None:
    """Whoever accepted it has died before it could look whether the marker was still there."""

    class Dying(FaultyStore):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            if key in self.put:
                super().delete(key)
                raise Unavailable("gone")
            self.put.append(key)
            return super().put_if_absent(key, body)

        put: list[str] = []

    dying = replace(desk, state=Dying(desk.state), owner="dying")
    accept(dying, "run")
    assert desk.records.open_job_run_ids() == []
    desk.clock.sleep(3_600)
    desk.take()
    assert desk.records.open_job_run_ids() == ["run"]


def test_a_store_that_is_away_ends_no_dispatcher_and_what_it_held_goes_on(desk: Desk) -> None:
    runs = accepted(desk, 1)
    store = FaultyStore(desk.state)
    second = small(replace(desk, state=store), "second")
    pass_time(2, second)
    store.fail("read", times=None)
    store.fail("list", times=None, error=Unavailable)
    store.fail("overwrite", times=None)
    pass_time(120, second)
    assert second.controller.last_error is not None
    store.heal()
    pass_time(60, second)
    assert second.controller.last_error is None
    assert owners(desk, runs) == ["second"]
    second.close()
