"""Two compactors on one partition stream: every round is committed by one of them, the other stops, nothing is merged.

No race is left to chance: the first compactor's store waits just before a write until the second one is done.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from compactor.engine.protocol import Engine
from compactor.model.errors import Fenced
from compactor.model.names import Operation
from compactor.planning.spec import SessionPlan
from compactor.sessions.session_log import SessionFailed, SessionSucceeded
from tests.builders import TABLE_ID, multiset
from tests.crash_points import COMMITS, OPTIONS, ROUNDS, key_of
from tests.crashes import (
    COLUMNS,
    Delta,
    Lake,
    attempt,
    check_books,
    check_rows,
    check_session_log,
    commits,
    session_log,
    uncommitted,
)
from tests.fakes.doomed_store import DoomedStore


def logged_ends(plan: SessionPlan, lake: Lake) -> list[object]:
    """How often, and how, the session log says that the session has ended."""
    actions = [action for entry in session_log(plan, lake.store()).entries() for action in entry.actions]
    return [action for action in actions if isinstance(action, SessionSucceeded | SessionFailed)]


@pytest.mark.parametrize("point", ["the rehash is committed", "round 1 is committed", "round 3 is committed"])
def test_of_two_job_runs_the_one_that_commits_second_is_fenced_and_writes_nothing(
    point: str, pending_lake: Lake, engine: Engine
) -> None:
    lake, before = pending_lake, len(commits(pending_lake))
    first = lake.plan(OPTIONS)
    store = DoomedStore(lake.store())
    plans = []

    def second_runs() -> None:
        plans.append(lake.plan(OPTIONS, "run 2"))
        attempt(plans[0], lake, engine, 1)

    store.just_before(key_of(first, lake, point), second_runs)
    with pytest.raises(Fenced, match=r"another compaction of .* committed first: nothing is lost, run it again"):
        attempt(first, lake, engine, 1, store)
    check_rows(lake)
    check_session_log(lake, plans[0], [1])
    done = [action.session_id for _, action in commits(lake)][before:]
    assert done == ["run 1.1"] * (COMMITS[point] - 1) + ["run 2.1"] * (1 + ROUNDS - COMMITS[point] + 1)
    assert logged_ends(first, lake) == []
    assert len(uncommitted(lake)) == 1, "only what the first had written when it was overtaken is left"


@pytest.mark.parametrize("point", ["the rehash is committed", "round 2 is committed", "round 2 is told"])
def test_an_attempt_that_another_has_superseded_stops_and_tells_nothing_more(
    point: str, pending_lake: Lake, engine: Engine
) -> None:
    lake, before = pending_lake, len(commits(pending_lake))
    plan = lake.plan(OPTIONS)
    store = DoomedStore(lake.store())
    store.just_before(key_of(plan, lake, point), lambda: attempt(plan, lake, engine, 2))
    with pytest.raises(Fenced):
        attempt(plan, lake, engine, 1, store)
    check_rows(lake)
    check_session_log(lake, plan, [1, 2])
    assert len(commits(lake)) - before == 1 + ROUNDS


def test_an_append_during_a_round_never_conflicts_and_is_compacted_by_the_next_session(
    pending_lake: Lake, engine: Engine
) -> None:
    lake, expected = pending_lake, pending_lake.expected()
    plan = lake.plan(OPTIONS)
    store = DoomedStore(lake.store())
    late = [
        Delta(Operation.UPSERT, [{"id": 1, "time": 20, "value": "late"}]),
        Delta(Operation.DELETE, [{"id": n, "time": 21} for n in range(20, 24)]),
    ]
    store.just_before(key_of(plan, lake, "round 2 is committed"), lambda: lake.append(late))
    assert attempt(plan, lake, engine, 1, store).rounds == ROUNDS
    check_books(lake)
    table = lake.catalog().table(TABLE_ID)
    assert multiset(table.scan({}).to_table(), COLUMNS) == multiset(expected, COLUMNS)
    assert multiset(table.scan({}, view="merged").to_table(), COLUMNS) == multiset(lake.expected(), COLUMNS)
    attempt(lake.plan(OPTIONS, "run 2"), lake, engine, 1)
    check_rows(lake)


def test_of_compactors_that_start_at_the_same_time_one_does_it_all(pending_lake: Lake, engine: Engine) -> None:
    lake, before = pending_lake, len(commits(pending_lake))
    plans = [lake.plan(OPTIONS, f"run {number}") for number in (1, 2)]
    at_once = Barrier(len(plans))

    def run(plan: SessionPlan) -> bool:
        at_once.wait()
        try:
            attempt(plan, lake, engine, 1)
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor(len(plans)) as pool:
        succeeded = list(pool.map(run, plans))
    check_rows(lake)
    done = [action.session_id for _, action in commits(lake)][before:]
    assert len(done) == 1 + ROUNDS
    assert any(succeeded)
    for plan, is_done in zip(plans, succeeded, strict=True):
        assert is_done or plan.spec.session_id != done[-1]
