"""A job run that rehashes the index and nothing else: the rows before it are the rows after it, whoever dies when."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.catalog.actions import IndexRehashed
from compactor.local_job_run import rehash_here
from compactor.model.names import Operation
from compactor.planning.session_planner import pin_sessions, rehash_of
from compactor.planning.spec import SessionPlan
from launcher.outcomes import NothingToDo
from launcher.plan import plan_for_cluster
from tests.builders import TABLE_ID
from tests.crashes import (
    RESOURCES,
    Delta,
    Lake,
    LaterClock,
    Options,
    attempt,
    check_rows,
    check_session_log,
    commits,
    session_log,
    uncommitted,
)
from tests.fakes.attempts import plan_session
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.unruly_engine import UnrulyEngine

HASH_BUCKETS = 3
POINTS_MAX = 20


def compacted(folder: Path, *, session_plans: bool = False) -> Lake:
    """Two runs of an index in 3 hash buckets, with a tombstone."""
    lake = Lake(folder, [], LaterClock(), session_plans)
    options = Options(hash_bucket_count=HASH_BUCKETS)
    lake.append([Delta(Operation.UPSERT, [{"id": n, "time": 5, "value": "a"} for n in range(40)])])
    attempt(lake.plan(options, "first"), lake, UnrulyEngine(), 1)
    lake.append([Delta(Operation.DELETE, [{"id": 3, "time": 6}]), Delta(Operation.UPSERT, [_row(7)])])
    attempt(lake.plan(options, "second"), lake, UnrulyEngine(), 1)
    return lake


def _row(key: int) -> dict[str, object]:
    return {"id": key, "time": 9, "value": "b"}


def rehash_plan(lake: Lake, hash_buckets: int | None) -> SessionPlan:
    stream = lake.catalog().table(TABLE_ID).stream({})
    found = stream.load().state.compacted
    assert found is not None
    run = rehash_of(lake.catalog(), stream, found, "rehash", hash_buckets)
    (pinned,) = pin_sessions(run, lake.catalog())
    return plan_session(pinned.spec, lake.catalog(), RESOURCES)


@pytest.mark.parametrize(
    ("asked", "becomes", "session_plans"),
    [(5, 5, True), (None, 1, False)],
    ids=["asked for and announced", "what fits"],
)
def test_a_rehash_that_is_killed_at_any_write_is_ended_by_the_next_attempt(
    tmp_path: Path, asked: int | None, becomes: int, session_plans: bool
) -> None:
    built = compacted(tmp_path / "built", session_plans=session_plans)
    for point in range(POINTS_MAX):
        lake = replace(built, folder=tmp_path / str(point))
        shutil.copytree(built.folder, lake.folder)
        rounds_before = len(commits(lake))
        plan = rehash_plan(lake, asked)
        store = FaultyStore(lake.store())
        store.stop_at(point)
        with suppress(Stopped):
            attempt(plan, lake, UnrulyEngine(), 1, store)
            break  # it has fewer writes
        told = list(session_log(plan, lake.store()).entries())
        again = plan_for_cluster(plan.spec, lake.catalog(), RESOURCES)
        assert isinstance(again, SessionPlan)
        result = attempt(again, lake, UnrulyEngine(), 2)
        assert (result.rehashed_from, result.hash_bucket_count, result.rounds) == (HASH_BUCKETS, becomes, 0)
        done = [action for _, action in commits(lake)[rounds_before:]]
        assert [type(each) for each in done] == [IndexRehashed]
        check_rows(lake)
        check_session_log(lake, plan, [1, 2] if told else [2])
        assert len(uncommitted(lake)) <= 1
    assert point >= 4


def test_deltas_that_wait_are_left_to_the_next_compaction(tmp_path: Path) -> None:
    lake = compacted(tmp_path / "lake")
    lake.append([Delta(Operation.UPSERT, [_row(50), _row(7)])])
    result = rehash_here(lake.catalog(), lake.catalog().table(TABLE_ID).stream({}), 4, lake.clock, UnrulyEngine())
    assert result is not None
    assert (result.rounds, result.rehashed_from, result.hash_bucket_count) == (0, HASH_BUCKETS, 4)
    snapshot = lake.catalog().table(TABLE_ID).stream({}).load().state
    assert snapshot.compacted is not None
    assert snapshot.compacted.processed.position == len(lake.deltas) - 2
    attempt(lake.plan(Options(hash_bucket_count=4), "third"), lake, UnrulyEngine(), 1)
    check_rows(lake)


def test_an_index_that_has_as_many_hash_buckets_is_nothing_to_do_and_nothing_is_launched(tmp_path: Path) -> None:
    lake = compacted(tmp_path / "lake")
    stream = lake.catalog().table(TABLE_ID).stream({})
    for asked in (HASH_BUCKETS, None):
        before = list(lake.store().list(""))
        plan = rehash_plan(lake, asked)
        if asked is not None:
            assert isinstance(plan_for_cluster(plan.spec, lake.catalog(), RESOURCES), NothingToDo)
            assert list(lake.store().list("")) == before
    rehash_here(lake.catalog(), stream, None, lake.clock, UnrulyEngine())
    number = len(commits(lake))
    again = rehash_here(lake.catalog(), stream, None, lake.clock, UnrulyEngine())
    assert again is not None
    assert again.rehashed_from is None
    assert isinstance(plan_for_cluster(rehash_plan(lake, None).spec, lake.catalog(), RESOURCES), NothingToDo)
    assert len(commits(lake)) == number
