"""Limits on what runs at a time and on money, over all dispatchers; who gets the next place; and nobody starves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.log.keys import EntryObject
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse, PaidRates
from compactor.planning.spec import SessionPlan, SessionSpec
from dispatcher.cli.job_run_lines import job_run_lines
from dispatcher.cli.output import as_text
from dispatcher.operations.status import view_all, view_job_run
from dispatcher.records.claims import Claim, claim_job_run
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.keys import PausedObject, TurnsLog
from dispatcher.records.ranking import STEP_SECONDS, slot_rank, stream_rank
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.lease_log import Lease
from dispatcher.scheduling.leases import MONEY_SECONDS, ROOM_SECONDS
from dispatcher.scheduling.limits import DispatcherLimits, JobRunLimits, Limits, SharedLimits
from dispatcher.scheduling.session_pool import SchedulerSnapshot, Slots, WaitingSession, choose
from launcher.outcomes import NothingToDo
from launcher.plan import LackOfMemory
from launcher.sizing.desired_sla import DesiredSla
from tests.fakes.dispatch_desk import Desk
from tests.fakes.small_cluster import Succeeds
from tests.keeper_world import cost_of
from tests.unit.dispatcher.test_job_run_controller import DAYS, job_run_of
from tests.unit.dispatcher.test_session_finding import WIDE
from tests.unit.dispatcher.test_session_finding import append_days as append_wide
from tests.unit.dispatcher.test_stream_order import accept, launched, run_all, tick_all, tick_all_until
from tests.waiting import wait_until

OTHER = "ACME.OTHER.V1"


class OnClusters(Desk):
    """Each session is planned for a cluster of 8 vCPUs that costs $2 an hour, and is expected to cost $1."""

    left_seconds: list[float | None]
    """Of the desired SLA, at each plan."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.left_seconds = []

    def plan(
        self, spec: SessionSpec, lack: LackOfMemory | None = None, desired: DesiredSla | None = None
    ) -> SessionPlan | NothingToDo:
        self.left_seconds.append(None if desired is None else desired.left_seconds)
        plan = super().plan(spec, lack, desired)
        return plan.model_copy(update={"cluster": CLUSTER}) if isinstance(plan, SessionPlan) else plan


CLUSTER = ClusterPlan(
    region="us-east-1",
    instance_type="r5.2xlarge",
    nodes=1,
    nodes_max=1,
    primary_instance_type="r5.xlarge",
    executors_per_node=1,
    executor_cores=8,
    executor_heap_bytes=1,
    executor_overhead_bytes=1,
    task_memory_bytes=1,
    driver_heap_bytes=1,
    driver_overhead_bytes=1,
    start_seconds=0,
    expected_sla=60,
    rates=PaidRates(
        instances_usd_hour=2,
        surcharge_usd_hour=0,
        volumes_usd_hour=0,
        put_usd_1000=0,
        get_usd_1000=0,
        storage_usd_gib_month=0,
        priced_on="2026-11-01",
    ),
    cost=cost_of(1.0).model_copy(update={"seconds": 1800.0}),
)


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    hold = threading.Event()
    yield hold
    hold.set()


def fleet(tmp_path: Path, limits: Limits, hold: threading.Event, max_sessions: int = 9) -> tuple[Desk, Desk]:
    """Two dispatchers whose sessions run until they may end."""
    desk: Desk = OnClusters(tmp_path)
    desk.settings = replace(desk.settings, max_sessions=max_sessions, max_job_runs=50, limits=limits)
    desk = replace(desk)
    other = desk.second()
    for each in (desk, other):
        each.cluster.behaves = lambda _: Succeeds(hold)
    return desk, other


def without_costs(desk: Desk) -> Desk:
    """Another dispatcher beside this one, whose sessions cost nothing."""
    return Desk(desk.folder, desk.clock, desk.state, desk.queue, desk.sink, desk.settings, owner="without costs")


def running(*desks: Desk) -> int:
    return sum(desk.cluster.running for desk in desks)


def close(*desks: Desk) -> None:
    for desk in desks:
        desk.close()


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (Limits(all=SharedLimits(sessions=3)), 3),
        (Limits(table=SharedLimits(sessions=2)), 2),
        (Limits(all=SharedLimits(clusters=3)), 3),
        (Limits(table=SharedLimits(clusters=2)), 2),
        (Limits(all=SharedLimits(vcpus=24)), 3),
        (Limits(table=SharedLimits(vcpus=17)), 2),
        (Limits(all=SharedLimits(usd_per_day=3.5)), 3),
        (Limits(table=SharedLimits(usd_per_day=2)), 2),
    ],
    ids=lambda value: ", ".join(f"{k}={v}" for k, v in vars(value).items() if v) if not isinstance(value, int) else "",
)
def test_no_more_runs_than_a_limit_lets(tmp_path: Path, limits: Limits, most: int, hold: threading.Event) -> None:
    desk, other = fleet(tmp_path, limits, hold)
    desk.append_days(DAYS, 8)
    for day in range(1, 9):
        accept(desk, f"run {day}", source_table_id=DAYS, partitions=[{"day": str(day)}])
    for each, days in ((desk, "1234"), (other, "5678")):
        for name in days:
            each.controller.offer(f"run {name}")
    highest = 0
    for _ in range(60):
        tick_all(desk, other, times=1)
        highest = max(highest, running(desk, other))
    desk.tick_until(lambda: running(desk, other) == most)
    assert max(highest, running(desk, other)) == most
    close(desk, other)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (Limits(dispatcher=DispatcherLimits(clusters=2)), 2),
        (Limits(dispatcher=DispatcherLimits(vcpus=31)), 3),
        (Limits(dispatcher=DispatcherLimits(usd_per_day=1.5)), 1),
    ],
    ids=("clusters", "vcpus", "usd"),
)
def test_a_dispatcher_runs_no_more_than_its_own_limits_let_and_counts_no_others(
    tmp_path: Path, limits: Limits, most: int, hold: threading.Event
) -> None:
    desk, other = fleet(tmp_path, limits, hold)
    desk.append_days(DAYS, 8)
    other.accept(job_run_id="theirs", source_table_id=DAYS, partitions=[{"day": "8"}])
    other.tick_until(lambda: running(other) == 1)
    for day in range(1, 6):
        desk.accept(job_run_id=f"run {day}", source_table_id=DAYS, partitions=[{"day": str(day)}])
    desk.tick_until(lambda: running(desk) == most)
    tick_all(desk, times=30)
    assert (running(desk), running(other)) == (most, 1)
    close(desk, other)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(dispatcher=DispatcherLimits(clusters=1)),
        Limits(dispatcher=DispatcherLimits(vcpus=15)),
        Limits(dispatcher=DispatcherLimits(usd_per_day=1.5)),
    ],
    ids=("clusters", "vcpus", "usd"),
)
def test_a_dispatcher_at_its_own_limit_leaves_to_others_what_they_can_start(
    tmp_path: Path, limits: Limits, hold: threading.Event
) -> None:
    desk, other = fleet(tmp_path, limits, hold)
    desk.append_days(DAYS, 2)
    for day in (1, 2):
        desk.accept(job_run_id=f"run {day}", source_table_id=DAYS, partitions=[{"day": str(day)}])
    desk.tick_until(lambda: running(desk) == 1 and desk.controller.job_runs_held == 1)
    (left,) = [each for each in ("run 1", "run 2") if desk.job_run(each).claim is None]
    assert desk.turns.now().wants == {}
    other.tick_until(lambda: running(other) == 1)
    claim = desk.job_run(left).claim
    assert claim is not None
    assert (claim.owner, running(desk), running(other)) == ("second", 1, 1)
    close(desk, other)


def test_what_a_dispatcher_took_over_beyond_its_room_another_may_start(tmp_path: Path, hold: threading.Event) -> None:
    desk, other = fleet(tmp_path, Limits(), hold, max_sessions=1)
    desk.append_days(DAYS, 3)
    runs = [f"run {day}" for day in (1, 2, 3)]
    for day, job_run_id in enumerate(runs, 1):
        accept(desk, job_run_id, source_table_id=DAYS, partitions=[{"day": str(day)}])
        claimed = claim_job_run(desk.records.log(job_run_id), "dead", lambda _: False)
        assert isinstance(claimed, Claim)
        (marker,) = [each for each in desk.records.open_markers() if each.work.text == job_run_id]
        desk.records.mark_held(replace(marker.valid, owner="dead", epoch=1), marker.keys)
    desk.tick_until(lambda: running(desk) == 1 and desk.controller.job_runs_held == 1)
    other.tick_until(lambda: running(other) == 1)
    tick_all(desk, other)
    held = [claim.owner if claim is not None else None for claim in (desk.job_run(each).claim for each in runs)]
    assert sorted(held, key=str) == [None, "first", "second"]
    close(desk, other)


def test_what_a_limit_kept_waiting_runs_when_there_is_a_place(tmp_path: Path, hold: threading.Event) -> None:
    desk, other = fleet(tmp_path, Limits(all=SharedLimits(sessions=1)), hold)
    desk.append_days(DAYS, 4)
    runs = [f"run {day}" for day in range(1, 5)]
    for day, run in enumerate(runs, 1):
        accept(desk, run, source_table_id=DAYS, partitions=[{"day": str(day)}])
    hold.set()
    run_all(desk, other, until=runs)
    assert {desk.job_run(each).status for each in runs} == {JobRunStatus.SUCCEEDED}
    assert desk.turns.now().turns == {}
    assert desk.turns.now().wants == {}
    close(desk, other)


def test_a_job_run_that_would_cost_too_much_waits_with_one_event(tmp_path: Path, hold: threading.Event) -> None:
    desk, other = fleet(tmp_path, Limits(job_run=JobRunLimits(usd=0.5)), hold)
    desk.append([{"id": 1}])
    desk.accept(job_run_id="run")
    for _ in range(5):
        tick_all(desk, other, times=4)
        desk.move_on(601)
    desk.tick_until(lambda: desk.job_run("run").waits_for_money is not None)
    tick_all(desk, other)
    assert running(desk, other) == 0
    assert desk.sink.names.count("job_run.waits_for_money") == 1
    (published,) = [event for event in desk.sink.events if event.type == "lithify.job_run.waits_for_money.v1"]
    assert published.data.model_dump()["reason"] == (
        "it is expected to cost $1.00 more; of the $0.50 that a job run may spend, $0.00 are spent or planned"
    )
    close(desk, other)


def test_a_job_run_that_waits_for_money_gives_the_slot_back_that_it_had_reserved(
    tmp_path: Path, hold: threading.Event
) -> None:
    desk, _ = fleet(tmp_path, Limits(all=SharedLimits(sessions=1), table=SharedLimits(usd_per_day=0.5)), hold)
    free = without_costs(desk)
    free.cluster.behaves = lambda _: Succeeds(hold)
    desk.append([{"id": 1}])
    desk.append([{"id": 1}], table=OTHER)
    desk.accept(job_run_id="run")
    desk.tick_until(lambda: desk.job_run("run").waits_for_money is not None)
    free.accept(job_run_id="running", source_table_id=OTHER)
    free.tick_until(lambda: running(free) == 1)
    desk.move_on(MONEY_SECONDS + 1)
    desk.tick_until(lambda: list(desk.turns.now().wants) == ["run"])
    hold.set()
    free.tick_until(lambda: desk.job_run("running").ended is not None)
    desk.move_on(MONEY_SECONDS + 1)
    tick_all(desk)
    assert desk.turns.now().wants == {}
    free.accept(job_run_id="next", source_table_id=OTHER)
    run_all(free, desk, until=["next"])
    assert running(desk) == 0
    close(desk, free)


@pytest.mark.parametrize(("usd", "is_started"), [(0.3, True), (None, False)], ids=["known", "as may have run"])
def test_a_day_has_spent_what_the_nodes_ran_and_not_what_may_have_run_once_that_is_known(
    tmp_path: Path, hold: threading.Event, usd: float | None, is_started: bool
) -> None:
    """The next one is expected to cost $1 of $1.50 a day, and one has run for 20 minutes at $2 an hour."""
    desk, other = fleet(tmp_path, Limits(all=SharedLimits(usd_per_day=1.5)), hold)
    desk.move_on(86_400 - desk.clock.now_ms() / 1000 % 86_400)
    desk.append_days(DAYS, 2)
    for day in (1, 2):
        accept(desk, f"run {day}", source_table_id=DAYS, partitions=[{"day": str(day)}])
    desk.cluster.ran = None if usd is None else ClusterUse(instances_usd=usd)
    desk.tick_until(lambda: running(desk) == 1 and any(desk.job_run(f"run {n}").waits_for_money for n in (1, 2)))
    desk.move_on(1_200)
    hold.set()
    desk.tick_until(lambda: any(desk.job_run(f"run {n}").ended for n in (1, 2)))
    for _ in range(3):
        desk.move_on(700)
        tick_all(desk)
    assert all(desk.job_run(f"run {n}").ended is not None for n in (1, 2)) == is_started
    close(desk, other)


def test_what_a_session_has_waited_is_taken_from_its_desired_sla_at_each_plan(tmp_path: Path) -> None:
    desk = OnClusters(tmp_path)
    desk.settings = replace(desk.settings, limits=Limits(job_run=JobRunLimits(usd=0.5)))
    desk = replace(desk)
    desk.append([{"id": 1}])
    desk.accept(job_run_id="run", desired_sla=2_000)
    for waited in (0, 601, 601, 601, 601):
        desk.move_on(waited)
        plans = len(desk.left_seconds)
        desk.tick_until(lambda: len(desk.left_seconds) > plans)  # noqa: B023
        tick_all(desk)
    left = [each for each in desk.left_seconds if each is not None]
    assert len(left) == len(desk.left_seconds)
    assert left[0] >= 1_990
    assert left == sorted(left, reverse=True)
    assert 1_300 <= left[1] <= 1_399
    assert left[-1] == 0
    desk.close()


def test_a_pause_takes_nothing_from_the_desired_sla_of_a_plan(tmp_path: Path) -> None:
    desk = OnClusters(tmp_path)
    desk.settings = replace(desk.settings, sweep_seconds=0.0, pause_look_seconds=0.0)
    desk = replace(desk)
    desk.append([{"id": 1}])
    desk.records.pauses.pause(PausedObject("everything"), "maintenance")
    desk.accept(job_run_id="run", desired_sla=2_000)
    tick_all(desk)
    desk.move_on(1_500)
    desk.records.pauses.resume(PausedObject("everything"))
    desk.tick_until(lambda: bool(desk.left_seconds))
    assert (desk.left_seconds[0] or 0) >= 1_990
    desk.close()


@pytest.mark.parametrize(("usd", "most"), [(1.5, 1), (3.5, 3)])
def test_the_shards_of_a_job_run_share_its_money_whoever_holds_them(
    tmp_path: Path, hold: threading.Event, usd: float, most: int
) -> None:
    desk, other = fleet(tmp_path, Limits(job_run=JobRunLimits(usd=usd)), hold)
    append_wide(desk.lake)
    desk.accept(source_table_id=WIDE, job_run_id="run")
    highest = 0
    for _ in range(30):
        tick_all(desk, other, times=1)
        highest = max(highest, running(desk, other))
    shards = desk.job_run("run").shards
    assert shards is not None
    assert shards.count == 2
    assert highest == running(desk, other) == most
    close(desk, other)


def test_what_waits_for_the_money_of_a_day_runs_on_the_next(tmp_path: Path, hold: threading.Event) -> None:
    desk, other = fleet(tmp_path, Limits(all=SharedLimits(usd_per_day=1.1)), hold)
    desk.move_on(86_400 - desk.clock.now_ms() / 1000 % 86_400)  # all of the following minutes are in one day
    desk.append_days(DAYS, 2)
    for day in (1, 2):
        accept(desk, f"run {day}", source_table_id=DAYS, partitions=[{"day": str(day)}])
    runs = ["run 1", "run 2"]
    desk.tick_until(lambda: running(desk, other) == 1 and any(desk.job_run(each).waits_for_money for each in runs))
    (waits,) = [each for each in runs if desk.job_run(each).waits_for_money]
    runs.remove(waits)
    desk.move_on(250)  # what runs costs $0.14 of the day
    hold.set()
    run_all(desk, other, until=runs)
    for _ in range(3):
        desk.move_on(700)
        tick_all(desk, other)
    assert desk.job_run(waits).ended is None
    desk.move_on(86_400)
    run_all(desk, other, until=[waits])
    assert desk.sink.names.count("job_run.waits_for_money") == 1
    close(desk, other)


def test_a_place_that_is_free_goes_to_the_highest_priority_whoever_holds_it(
    tmp_path: Path, hold: threading.Event
) -> None:
    desk, other = fleet(tmp_path, Limits(all=SharedLimits(sessions=1)), hold)
    desk.append_days(DAYS, 9)
    first = threading.Event()
    events = [first]
    desk.cluster.behaves = lambda _: Succeeds(events.pop() if events else hold)
    wide = desk.accept(source_table_id=DAYS, job_run_id="wide")
    desk.tick_until(lambda: desk.cluster.running == 1)
    other.append([{"id": 1}])
    other.accept(job_run_id="urgent", priority=9)
    tick_all(other)
    first.set()
    # No tick before the thread of the session has ended: whose turn it is, is decided then.
    wait_until(lambda: all(future.done() for _, future in desk.controller._pool._running.values()))
    assert any(each.end for each in desk.job_run(wide).sessions.values())
    tick_all(desk, other)
    tick_all_until(desk, other, done=lambda: "urgent" in launched(desk, other))
    assert [job_run_of(job) for job in desk.cluster.launched].count("wide") == 1
    hold.set()
    run_all(desk, other, until=["wide", "urgent"])
    close(desk, other)


def test_a_place_is_free_for_the_highest_priority_once_its_lease_has_ended_though_its_thread_has_not(
    tmp_path: Path, hold: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, _ = fleet(tmp_path, Limits(all=SharedLimits(sessions=1)), hold)
    desk = replace(desk, settings=replace(desk.settings, turn_look_seconds=1e6))
    desk.append_days(DAYS, 9)
    first, has_ended = threading.Event(), threading.Event()
    events = [first]
    desk.cluster.behaves = lambda _: Succeeds(events.pop() if events else hold)
    end = desk.turns.end

    def end_and_stay(lease: Lease, usd: float | None) -> None:
        end(lease, usd)
        if not has_ended.is_set():
            has_ended.set()
            hold.wait()

    desk.accept(source_table_id=DAYS, job_run_id="wide")
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.append([{"id": 1}])
    desk.accept(job_run_id="urgent", priority=9)
    desk.tick()
    monkeypatch.setattr(desk.turns, "end", end_and_stay)
    first.set()
    has_ended.wait()
    desk.tick()
    wait_until(lambda: desk.cluster.running == 1, seconds=5)
    assert [job_run_of(job) for job in desk.cluster.launched] == ["wide", "urgent"]
    hold.set()
    run_all(desk, until=["wide", "urgent"])
    close(desk)


# ----------------------------------------------------------------------------------------------- what status says of it


def waits_for(desk: Desk, job_run_id: str) -> str | None:
    """As `status` says, of one job run and among all of them."""
    (listed,) = [each for each in view_all(desk.records, desk.clock) if each.job_run_id == job_run_id]
    alone = view_job_run(desk.records, job_run_id, desk.clock)
    assert alone.waits_for == listed.waits_for
    text = as_text(job_run_lines(alone, None), None)
    assert alone.waits_for is None or f"waits for {alone.waits_for}" in text
    return alone.waits_for


def test_status_says_of_a_job_run_who_runs_on_its_stream_or_is_ahead(tmp_path: Path, hold: threading.Event) -> None:
    desk, other = fleet(tmp_path, Limits(), hold)
    desk.append([{"id": 1}])
    for number in (1, 2):
        accept(desk, f"run {number}")
    assert waits_for(desk, "run 1") == "a place: no dispatcher has had room for it yet (0 Spark jobs at work)"
    assert waits_for(desk, "run 2") == "its turn: job run run 1 is ahead on its stream"
    desk.tick_until(lambda: running(desk) == 1)
    assert waits_for(desk, "run 1") is None
    assert waits_for(desk, "run 2") == "its turn: job run run 1 runs on its stream"
    close(desk, other)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(all=SharedLimits(clusters=1)), "a limit on what runs at a time (1 Spark job at work)"),
        (Limits(all=SharedLimits(sessions=1)), "a limit on what runs at a time (1 Spark job at work)"),
        (
            Limits(all=SharedLimits(usd_per_day=1)),
            "money: it is expected to cost $1.00; of the $1.00 that all may spend",
        ),
    ],
    ids=("clusters", "sessions", "money"),
)
def test_status_says_of_a_job_run_that_a_limit_or_the_lack_of_money_keeps_it(
    tmp_path: Path, hold: threading.Event, limits: Limits, reason: str
) -> None:
    desk, other = fleet(tmp_path, limits, hold)
    desk.append_days(DAYS, 2)
    for day in (1, 2):
        accept(desk, f"run {day}", source_table_id=DAYS, partitions=[{"day": str(day)}])
    runs = ["run 1", "run 2"]
    desk.tick_until(lambda: running(desk) == 1)
    tick_all(desk, times=20)
    desk.move_on(ROOM_SECONDS + 1)
    desk.tick_until(lambda: any(waits_for(desk, each) is not None for each in runs))
    (waiting,) = {waits_for(desk, each) for each in runs} - {None}
    assert waiting is not None
    assert waiting.startswith(reason)
    close(desk, other)


def test_a_log_of_turns_of_a_newer_release_hides_no_job_run(tmp_path: Path, hold: threading.Event) -> None:
    desk, other = fleet(tmp_path, Limits(), hold)
    desk.append([{"id": 1}])
    accept(desk, "run")
    desk.state.put_if_absent(EntryObject(TurnsLog().key, 1).key, b'{"format": 9, "entry_number": 1}')
    assert waits_for(desk, "run") is None
    close(desk, other)


# ------------------------------------------------------------------------------------------------------- who is next


def waiting(table: str, number: int, priority: int = 0, accepted_at_ms: int = 0) -> WaitingSession:
    return WaitingSession(WorkId(f"{table} {number}"), "s", table, str(number), priority, accepted_at_ms)


def test_tables_share_places_however_much_one_has_waiting() -> None:
    sessions = [waiting("A", number, accepted_at_ms=number) for number in range(100)]
    sessions += [waiting("B", number, accepted_at_ms=200 + number) for number in range(3)]
    chosen = choose(sessions, [], Slots(0, 4), SchedulerSnapshot(0, 1_000))
    assert [unit[0].table for unit in chosen] == ["A", "B", "A", "B"]


def test_a_table_of_which_others_run_sessions_comes_after_one_of_which_nobody_does() -> None:
    sessions = [waiting("A", 1, accepted_at_ms=1), waiting("B", 1, accepted_at_ms=2)]
    chosen = choose(sessions, [], Slots(0, 1), SchedulerSnapshot(0, 1_000, {"A": 2, "B": 1}))
    assert [unit[0].table for unit in chosen] == ["B"]


def test_priority_counts_before_the_share_of_a_table() -> None:
    sessions = [waiting("A", number, priority=1) for number in range(2)] + [waiting("B", 1)]
    chosen = choose(sessions, [], Slots(0, 2), SchedulerSnapshot(0, 1_000))
    assert [unit[0].table for unit in chosen] == ["A", "A"]


def test_what_waits_for_long_enough_goes_before_a_higher_priority() -> None:
    step_ms = STEP_SECONDS * 1000
    old, new = stream_rank(0, 0, "old"), stream_rank(3, 3 * step_ms + 1, "new")
    assert old < new
    assert stream_rank(3, 3 * step_ms - 1, "new") < old
    now_ms = 4 * step_ms
    assert slot_rank(old, now_ms, 0) < slot_rank(new, now_ms, 0)


def test_no_priority_is_so_high_that_something_waits_for_ever() -> None:
    low, high = stream_rank(-(2**31), 0, "low"), stream_rank(2**31, 200 * STEP_SECONDS * 1000 + 1, "high")
    assert low < high
