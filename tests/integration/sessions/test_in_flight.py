"""Sessions of a table with `session_plans`: what they will do is in the stream's log first, and others keep away."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import SessionPlanAnnounced, SessionPlanEnded
from compactor.catalog.snapshot import StreamSnapshot
from compactor.engine.in_process import InProcessEngine
from compactor.local_job_run import WAIT_POLL_SECONDS, run_here
from compactor.model.errors import Conflict, Corrupt, Fenced, Invalid
from compactor.model.names import Operation
from compactor.planning.session_planner import pin_sessions, rehash_of
from compactor.planning.spec import JobRunResult
from compactor.schemas.unify import parse_schema
from compactor.sessions.in_flight import LASTS_SECONDS_MIN
from compactor.sessions.session_log import SessionProgress
from compactor.storage.object_store import ObjectStore
from tests.builders import TABLE_ID, run_of
from tests.conftest import Command
from tests.crashes import Delta, Lake, LaterClock, Options, attempt, check_rows
from tests.fakes.attempts import plan_session
from tests.fakes.doomed_store import Doom, DoomedStore
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.held_engine import HeldEngine

TWO_ROUNDS = Options(max_rows_per_round=2)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake", [], LaterClock(), session_plans=True)
    lake.append([Delta(Operation.UPSERT, [row(1), row(2)]), Delta(Operation.UPSERT, [row(2), row(3)])])
    return lake


def row(key: int) -> dict[str, object]:
    return {"id": key, "time": key, "value": "x"}


def stream(lake: Lake) -> StreamSnapshot:
    return lake.catalog().table(TABLE_ID).stream({}).load().state


def plans_in(lake: Lake) -> list[SessionPlanAnnounced | SessionPlanEnded]:
    entries = lake.catalog().table(TABLE_ID).stream({}).log.entries()
    actions = [action for entry in entries for action in entry.actions]
    return [action for action in actions if isinstance(action, SessionPlanAnnounced | SessionPlanEnded)]


def put_forward(lake: Lake, seconds: float) -> None:
    assert isinstance(lake.clock, LaterClock)
    lake.clock.put_forward(seconds)


def kill_before_commit(lake: Lake, job_run_id: str) -> None:
    """The process is killed: nothing is written of its end."""
    log = lake.catalog().table(TABLE_ID).stream({}).log
    key = f"{log.folder}/{log.load().entry_number + 2:020d}.json"  # the plan comes first
    store = DoomedStore(lake.store(), Doom(key, "before", "the process is killed"))
    with pytest.raises(Stopped):
        attempt(lake.plan(TWO_ROUNDS, job_run_id), lake, InProcessEngine(), 1, store)


def during(what: Callable[[], None]) -> HeldEngine:
    """An engine that does something before the first commit of a session."""
    todo = [what]
    return HeldEngine(lambda: todo.pop()() if todo else None)


def test_what_a_session_will_do_is_in_the_log_until_its_last_commit(lake: Lake) -> None:
    seen: list[StreamSnapshot] = []
    before = stream(lake)
    engine = HeldEngine(lambda: seen.append(stream(lake)))
    attempt(lake.plan(TWO_ROUNDS), lake, engine, 1)
    (plan,) = plans_in(lake)
    assert isinstance(plan, SessionPlanAnnounced)
    assert [each.in_flight for each in seen] == [plan, plan], "before each of two commits"
    assert stream(lake).in_flight is None
    assert before.active is not None
    assert [(each.files, each.rows) for each in plan.rounds] == [(1, 2), (1, 2)]
    assert [each.processed.position for each in plan.rounds if each.processed is not None] == [0, 1]
    assert (plan.attempt, plan.from_index_version, plan.hash_bucket_count) == (1, None, 2)
    assert set(parse_schema(plan.compacted_schema).names) == {"id", "time", "value"}
    check_rows(lake)


def test_a_second_compactor_is_refused_before_it_begins_and_told_who_is_at_work(lake: Lake) -> None:
    refused: list[str] = []

    def call() -> None:
        written = len(list(lake.folder.rglob("*")))
        with pytest.raises(Conflict) as error:
            compact(TABLE_ID, {"id"}, sort_keys=[("time", "ascending")], delta_catalog_client=user(lake))
        refused.append(str(error.value))
        assert len(list(lake.folder.rglob("*"))) == written

    attempt(lake.plan(TWO_ROUNDS, "first"), lake, during(call), 1)
    assert "is being compacted by job run first since" in refused[0]
    check_rows(lake)


def user(lake: Lake) -> DeltaCatalog:
    return DeltaCatalog.open(lake.folder)


def test_of_two_that_begin_at_once_the_one_whose_plan_is_second_is_refused(lake: Lake) -> None:
    plan, log = lake.plan(TWO_ROUNDS, "second"), lake.catalog().table(TABLE_ID).stream({}).log
    store = DoomedStore(lake.store())
    store.just_before(
        f"{log.folder}/{log.load().entry_number + 1:020d}.json", lambda: kill_before_commit(lake, "first")
    )
    with pytest.raises(Conflict, match="job run first"):
        attempt(plan, lake, InProcessEngine(), 1, store)
    assert [each.job_run_id for each in plans_in(lake) if isinstance(each, SessionPlanAnnounced)] == ["first"]


def test_a_plan_ends_with_the_failure_of_its_session(lake: Lake) -> None:
    def fail() -> None:
        raise Corrupt("a file is damaged")

    with pytest.raises(Corrupt):
        attempt(lake.plan(TWO_ROUNDS, "first"), lake, HeldEngine(fail), 1)
    plan, end = plans_in(lake)
    assert end == SessionPlanEnded(plan_id=plan.plan_id)
    attempt(lake.plan(TWO_ROUNDS, "second"), lake, InProcessEngine(), 1)
    check_rows(lake)


def test_an_interrupt_ends_the_plan_as_well(lake: Lake) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(lake.plan(TWO_ROUNDS, "first"), lake, HeldEngine(interrupt), 1)
    assert stream(lake).in_flight is None


def test_the_next_attempt_of_a_killed_session_goes_on_at_once(lake: Lake) -> None:
    kill_before_commit(lake, "first")
    plan = stream(lake).in_flight
    assert plan is not None
    attempt(lake.plan(TWO_ROUNDS, "first"), lake, InProcessEngine(), 2)
    assert [each.attempt for each in plans_in(lake) if isinstance(each, SessionPlanAnnounced)] == [1, 2]
    check_rows(lake)


def test_others_take_over_from_a_killed_session_when_its_time_is_over_and_not_before(lake: Lake) -> None:
    kill_before_commit(lake, "first")
    put_forward(lake, LASTS_SECONDS_MIN - 60)
    with pytest.raises(Conflict, match=r"if it was killed, from .* UTC on"):
        attempt(lake.plan(TWO_ROUNDS, "second"), lake, InProcessEngine(), 1)
    put_forward(lake, 61)
    attempt(lake.plan(TWO_ROUNDS, "second"), lake, InProcessEngine(), 2)
    check_rows(lake)


@pytest.mark.parametrize("commits", [True, False])
def test_a_session_whose_plan_was_replaced_commits_nothing_more(lake: Lake, commits: bool) -> None:
    """Also if the other one has not committed yet: its work would be in vain otherwise."""

    def take_over() -> None:
        put_forward(lake, LASTS_SECONDS_MIN + 1)
        if commits:
            attempt(lake.plan(TWO_ROUNDS, "second"), lake, InProcessEngine(), 1)
        else:
            kill_before_commit(lake, "second")

    with pytest.raises(
        Fenced,
        match=r"another compaction .* (committed first|has begun in its place): nothing is lost",
    ):
        attempt(lake.plan(TWO_ROUNDS, "first"), lake, during(take_over), 1)
    if not commits:
        assert stream(lake).compacted is None
        in_force = stream(lake).in_flight
        assert in_force is not None
        assert in_force.job_run_id == "second", "the first one's end is not that of the second one's plan"
        attempt(lake.plan(TWO_ROUNDS, "second"), lake, InProcessEngine(), 2)
    check_rows(lake)


def test_a_lost_answer_to_the_last_commit_is_settled_though_the_commit_has_ended_the_plan(lake: Lake) -> None:
    log = lake.catalog().table(TABLE_ID).stream({}).log
    key = f"{log.folder}/{log.load().entry_number + 3:020d}.json"  # after the plan and the first of two rounds
    store = DoomedStore(lake.store(), Doom(key, "after", "one answer is lost"))
    attempt(lake.plan(TWO_ROUNDS), lake, InProcessEngine(), 1, store)
    assert store.met
    check_rows(lake)


class WaitingClock(LaterClock):
    """Pauses end at once, and time goes by in those of seconds; `meanwhile` is called in each, with its number."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.meanwhile: Callable[[int], None] = lambda _: None

    def monotonic_seconds(self) -> float:
        return sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        if seconds < 1:  # a log's, before it tries a number again
            return
        self.pauses.append(seconds)
        self.put_forward(seconds)
        self.meanwhile(len(self.pauses))


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[Lake, WaitingClock]:
    """A lake whose stream a killed session has."""
    clock = WaitingClock()
    lake = Lake(tmp_path / "waiting", [], clock, session_plans=True)
    lake.append([Delta(Operation.UPSERT, [row(1), row(2)]), Delta(Operation.UPSERT, [row(2), row(3)])])
    kill_before_commit(lake, "first")
    return lake, clock


def run_waiting(
    lake: Lake, wait_seconds: float, store: ObjectStore | None = None, heard: list[SessionProgress] | None = None
) -> JobRunResult:
    run = lake.plan(TWO_ROUNDS, "second").spec.job_run
    listener = None if heard is None else heard.append
    return run_here(run, lake.catalog(store), lake.clock, InProcessEngine(), listener, wait_seconds)


def test_who_waits_goes_on_when_the_other_has_ended_with_what_is_left(waiting: tuple[Lake, WaitingClock]) -> None:
    lake, clock = waiting

    def finish(number: int) -> None:
        if number == 3:
            attempt(lake.plan(TWO_ROUNDS, "first"), lake, InProcessEngine(), 2)

    clock.meanwhile = finish
    heard: list[SessionProgress] = []
    (session,) = run_waiting(lake, 600, heard=heard).sessions
    assert (session.rounds, session.rows_out) == (0, 3)
    assert clock.pauses == [WAIT_POLL_SECONDS] * 3
    assert [each.waits_for is not None for each in heard] == [True], "it is told once"
    assert "is being compacted by job run first" in str(heard[0].waits_for)
    check_rows(lake)


def test_who_waits_long_enough_takes_over_when_the_time_of_the_plan_is_over(waiting: tuple[Lake, WaitingClock]) -> None:
    lake, clock = waiting
    (session,) = run_waiting(lake, LASTS_SECONDS_MIN + 60).sessions
    assert session.rounds == 2
    assert LASTS_SECONDS_MIN - 10 < sum(clock.pauses) <= LASTS_SECONDS_MIN + WAIT_POLL_SECONDS
    check_rows(lake)


def test_the_wait_has_a_bound_and_its_error_says_who_is_at_work_and_until_when(
    waiting: tuple[Lake, WaitingClock],
) -> None:
    lake, clock = waiting
    with pytest.raises(Conflict, match=r"job run first since .*, from .* UTC on; it has waited for 12 s"):
        run_waiting(lake, 12)
    assert clock.pauses == [5.0, 5.0, 2.0]
    with pytest.raises(Conflict, match=r"job run first since .*; it waits with wait_seconds \(--wait-seconds\)"):
        run_waiting(lake, 0)
    assert len(clock.pauses) == 3
    assert stream(lake).compacted is None


def test_of_two_that_begin_at_once_the_second_one_waits_and_tries_again(tmp_path: Path) -> None:
    clock = WaitingClock()
    lake = Lake(tmp_path / "lake", [], clock, session_plans=True)
    lake.append([Delta(Operation.UPSERT, [row(1), row(2)]), Delta(Operation.UPSERT, [row(2), row(3)])])
    log = lake.catalog().table(TABLE_ID).stream({}).log
    store = DoomedStore(lake.store())
    store.just_before(
        f"{log.folder}/{log.load().entry_number + 1:020d}.json", lambda: kill_before_commit(lake, "first")
    )
    (session,) = run_waiting(lake, LASTS_SECONDS_MIN + 60, store).sessions
    assert (session.rounds, session.rows_out) == (2, 3)
    assert [(each.job_run_id, each.attempt) for each in plans_in(lake) if isinstance(each, SessionPlanAnnounced)] == [
        ("first", 1),
        ("second", 2),
    ]
    check_rows(lake)


def test_while_one_partition_waits_the_others_are_compacted(tmp_path: Path) -> None:
    clock = WaitingClock()
    catalog = DeltaCatalog.open(tmp_path)
    table = catalog.create_table(TABLE_ID, ["day"], primary_keys=["id"], properties={"session_plans": True})
    for day in ("1", "2"):
        table.append({"day": day}, pa.table({"id": [1, 2]}))
    refused: list[Conflict] = []
    seen: list[int] = []

    def call() -> None:
        clock.meanwhile = lambda _: seen.append(table.scan({"day": "2"}).to_table().num_rows)
        run = run_of(catalog, TABLE_ID, job_run_id="second")
        with pytest.raises(Conflict, match=r"day=1.*is being compacted by job run compact-") as error:
            run_here(run, catalog.for_one_run(), clock, InProcessEngine(), wait_seconds=7)
        refused.append(error.value)

    compact(TABLE_ID, delta_catalog_client=catalog, partitions=[{"day": "1"}], engine=during(call))
    assert seen == [2, 2], "compacted before the first pause"
    result = refused[0].result
    assert isinstance(result, JobRunResult)
    assert [(each.partition, each.rounds) for each in result.sessions] == [({"day": "2"}, 1)]
    assert [(each.partition, each.error_kind) for each in result.failures] == [({"day": "1"}, "Conflict")]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_wait_without_a_bound_is_refused(lake: Lake, seconds: float) -> None:
    with pytest.raises(Invalid, match=r"wait_seconds is .*: give 0 or more seconds"):
        compact(TABLE_ID, {"id"}, delta_catalog_client=user(lake), wait_seconds=seconds)


def test_the_command_waits_and_names_for_whom(lake: Lake, command: Command) -> None:
    kill_before_commit(lake, "first")
    result = command("compact", TABLE_ID, "--lake", str(lake.folder), "-k", "id", "--wait-seconds", "0.1")
    assert result.exit_code == 1
    message = " ".join(result.err.split())
    assert "waits: ACME.ORDERS.V1" in message
    assert "is being compacted by job run first since" in message
    assert "it has waited for 0.1 s" in message


def rehash(lake: Lake, hash_bucket_count: int, job_run_id: str) -> None:
    stream = lake.catalog().table(TABLE_ID).stream({})
    compacted = stream.load().state.compacted
    assert compacted is not None
    run = rehash_of(lake.catalog(), stream, compacted, job_run_id, hash_bucket_count)
    (pinned,) = pin_sessions(run, lake.catalog())
    plan = plan_session(pinned.spec, lake.catalog(), InProcessEngine().resources())
    attempt(plan, lake, InProcessEngine(), 1)


def test_a_rehash_has_a_plan_without_rounds_which_its_commit_ends(lake: Lake) -> None:
    attempt(lake.plan(TWO_ROUNDS), lake, InProcessEngine(), 1)
    rehash(lake, 3, "rehash")
    plan = plans_in(lake)[-1]
    assert isinstance(plan, SessionPlanAnnounced)
    assert (plan.job_run_id, plan.rounds, plan.hash_bucket_count) == ("rehash", (), 3)
    after = stream(lake)
    assert after.in_flight is None
    assert after.compacted is not None
    assert after.compacted.hash_bucket_count == 3
    check_rows(lake)


def test_a_rehash_is_refused_while_a_session_is_at_work(lake: Lake) -> None:
    attempt(lake.plan(TWO_ROUNDS), lake, InProcessEngine(), 1)
    lake.append([Delta(Operation.UPSERT, [row(4)])])
    kill_before_commit(lake, "first")
    with pytest.raises(Conflict, match="is being compacted by job run first since"):
        rehash(lake, 3, "rehash")


def test_a_session_with_nothing_to_do_writes_no_plan(lake: Lake) -> None:
    attempt(lake.plan(TWO_ROUNDS, "first"), lake, InProcessEngine(), 1)
    attempt(lake.plan(TWO_ROUNDS, "second"), lake, InProcessEngine(), 1)
    assert len(plans_in(lake)) == 1


def test_a_session_that_moves_to_another_bucket_count_first_keeps_its_plan_through_both_commits(lake: Lake) -> None:
    attempt(lake.plan(TWO_ROUNDS, "first"), lake, InProcessEngine(), 1)
    lake.append([Delta(Operation.UPSERT, [row(3), row(4)])])
    seen: list[StreamSnapshot] = []
    engine = HeldEngine(lambda: seen.append(stream(lake)))
    attempt(lake.plan(Options(hash_bucket_count=5), "second"), lake, engine, 1)
    assert [each.in_flight is not None for each in seen] == [True, True]
    assert stream(lake).in_flight is None
    check_rows(lake)


def test_a_table_without_the_property_has_no_plans(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "plain", [])
    lake.append([Delta(Operation.UPSERT, [row(1)])])
    attempt(lake.plan(TWO_ROUNDS), lake, InProcessEngine(), 1)
    assert plans_in(lake) == []


def test_a_table_that_compact_creates_has_the_plans_of_its_source(tmp_path: Path) -> None:
    catalog = DeltaCatalog.open(tmp_path)
    table = catalog.create_table(TABLE_ID, properties={"session_plans": True})
    table.append({}, pa.table({"id": [1]}))
    compact(TABLE_ID, {"id"}, delta_catalog_client=catalog, destination_compacted_table_id="ACME.ELSEWHERE.V1")
    entries = catalog.table("ACME.ELSEWHERE.V1").stream({}).log.entries()
    first, *_ = [action for entry in entries for action in entry.actions]
    assert isinstance(first, SessionPlanAnnounced)


def test_a_plan_costs_one_request(tmp_path: Path) -> None:
    sent = {}
    for has_plans in (False, True):
        lake = Lake(tmp_path / str(has_plans), [], session_plans=has_plans)
        lake.append([Delta(Operation.UPSERT, [row(1)])])
        store = FaultyStore(lake.store())
        catalog = DeltaCatalog(store, lake.clock)
        compact(TABLE_ID, {"id"}, delta_catalog_client=catalog)
        sent[has_plans] = Counter(verb for verb, key in store.requests if "heartbeat" not in key)
    assert sent[True] - sent[False] == Counter(put_if_absent=1), sent
    assert sent[False] - sent[True] == Counter()


def test_the_table_is_shown_with_who_is_at_work(lake: Lake, command: Command) -> None:
    show = ("table", "show", TABLE_ID, "--lake", str(lake.folder))
    assert "in flight" not in command(*show).out
    kill_before_commit(lake, "first")
    shown = " ".join(command(*show).out.split())
    assert "first, attempt 1, since" in shown
    (row_shown,) = json.loads(command(*show, "--output", "json").out)["streams"]
    assert row_shown["in_flight"]["job_run_id"] == "first"
    assert [each["rows"] for each in row_shown["in_flight"]["rounds"]] == [2, 2]
    assert row_shown["in_flight"]["lasts_seconds"] == LASTS_SECONDS_MIN
    attempt(lake.plan(TWO_ROUNDS, "first"), lake, InProcessEngine(), 2)
    assert "in flight" not in command(*show).out
