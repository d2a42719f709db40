"""`compact()` and a dispatcher at work on the same stream at the same time: each delta is compacted once.

A session of a dispatcher that is overtaken goes on by itself; `compact()` says that it was, and is called again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor import compact
from compactor.catalog.actions import RoundCommitted
from compactor.model.errors import Fenced
from tests.fakes.dispatch_desk import TABLE, Desk
from tests.fakes.held_engine import HeldEngine
from tests.fakes.small_cluster import Succeeds

ROWS: list[dict[str, object]] = [{"id": 1}, {"id": 2}, {"id": 3}]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.append(ROWS[:2])
    desk.append(ROWS[1:])
    yield desk
    desk.close()


def check(desk: Desk) -> None:
    """Every row once; each round begins with what the one before it left, and no delta was taken twice."""
    assert desk.rows() == ROWS
    stream = desk.lake.table(TABLE).stream({})
    rounds = [each for entry in stream.log.entries() for each in entry.actions if isinstance(each, RoundCommitted)]
    assert len({each.commit_id for each in rounds}) == len(rounds)
    rows = 0
    for each in rounds:
        assert each.counts.rows_before == rows
        rows = each.counts.rows_out
    assert sum(each.counts.rows_in - each.counts.rows_before for each in rounds) == 4


def test_what_compact_has_done_while_a_session_of_a_dispatcher_was_at_work_is_not_done_again(desk: Desk) -> None:
    held = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(None if desk.cluster.launched else held)
    desk.accept(job_run_id="run")
    desk.tick_until(lambda: desk.cluster.running == 1)
    compact(TABLE, {"id"}, delta_catalog_client=desk.lake)
    held.set()
    desk.run()
    assert desk.job_run("run").status == "succeeded"
    check(desk)


def test_what_a_dispatcher_has_done_while_compact_was_at_work_is_not_done_again(desk: Desk) -> None:
    begun, held = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        held.wait(60)

    told = list[str]()

    def call() -> None:
        try:
            compact(TABLE, {"id"}, delta_catalog_client=desk.lake, engine=HeldEngine(wait))
        except Fenced as error:
            told.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(60)
    desk.accept(job_run_id="run")
    desk.run()
    held.set()
    thread.join()
    assert desk.job_run("run").status == "succeeded"
    (sentence,) = told
    assert sentence.startswith(
        f"another compaction of {TABLE} (unpartitioned) committed first: nothing is lost, run it"
    )
    check(desk)
    (again,) = compact(TABLE, {"id"}, delta_catalog_client=desk.lake).sessions
    assert again.rounds == 0
    check(desk)


def test_a_dispatcher_and_compact_turn_by_turn_compact_each_delta_once(desk: Desk) -> None:
    for number in range(3, 6):
        desk.accept(job_run_id=f"run-{number}")
        desk.run()
        compact(TABLE, {"id"}, delta_catalog_client=desk.lake)
    check(desk)
    assert {desk.job_run(f"run-{number}").status for number in range(3, 6)} == {"succeeded"}


def test_of_a_table_with_plans_a_dispatchers_session_waits_for_compact_to_end(desk: Desk) -> None:
    desk.lake.table(TABLE).set_properties({"session_plans": True})
    begun, held = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        held.wait(60)

    thread = threading.Thread(
        target=lambda: compact(TABLE, {"id"}, delta_catalog_client=desk.lake, engine=HeldEngine(wait))
    )
    thread.start()
    assert begun.wait(60)
    desk.accept(job_run_id="run")
    desk.tick_until(lambda: desk.job_run("run").sessions["run.1"].failure_counts.outages > 0)
    assert desk.cluster.launched == [], "no cluster is launched in vain"
    held.set()
    thread.join()
    desk.run()
    assert desk.job_run("run").status == "succeeded"
    check(desk)
