"""Whether a session has work is one answer: for the pin of a job run, for its plan, and for the session itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.model.clock import SystemClock
from compactor.planning.session_input import read_session_input
from compactor.planning.session_planner import measure_session, pin_sessions, plan_measured
from compactor.planning.session_streams import PendingWork
from compactor.planning.sizing import Resources
from tests.builders import run_of

TABLE = "ACME.ORDERS.V1"
RESOURCES = Resources(task_memory_bytes=2**30, tasks=1)


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "value": [first] * count})


def compacted(lake: DeltaCatalog, share: float = 0.0) -> None:
    compact(TABLE, {"id"}, delta_catalog_client=lake, hash_bucket_count=2, max_dead_row_share=share)


def never_compacted(lake: DeltaCatalog) -> None:
    lake.table(TABLE).append({}, rows(0, 100))


def up_to_date(lake: DeltaCatalog) -> None:
    never_compacted(lake)
    compacted(lake)


def with_a_later_delta(lake: DeltaCatalog) -> None:
    up_to_date(lake)
    lake.table(TABLE).append({}, rows(100, 10))


def with_dead_rows(lake: DeltaCatalog) -> None:
    up_to_date(lake)
    lake.table(TABLE).append({}, rows(0, 3))
    compacted(lake, share=0.5)


def with_many_small_files(lake: DeltaCatalog) -> None:
    lake.table(TABLE).set_properties({"merge_small_files": 3})
    for first in (0, 100, 200):
        lake.table(TABLE).append({}, rows(first, 100))
        compacted(lake)


def with_files_of_before_it_was_published(lake: DeltaCatalog) -> None:
    up_to_date(lake)
    lake.table(TABLE).set_properties({"publish": ["delta"]})


@pytest.mark.parametrize(
    ("prepare", "hash_bucket_count", "work"),
    [
        (never_compacted, None, PendingWork(delta_files=1)),
        (up_to_date, None, PendingWork()),
        (up_to_date, 2, PendingWork()),
        (up_to_date, 3, PendingWork(rehash=(2, 3))),
        (with_a_later_delta, None, PendingWork(delta_files=1)),
        (with_dead_rows, None, PendingWork(dirty_files=1, dead_rows=3)),
        (with_many_small_files, None, PendingWork(small_files=3, merged_files=1)),
        (with_files_of_before_it_was_published, None, PendingWork(closed_files=1)),
    ],
)
def test_pin_plan_and_session_agree_on_what_is_left_to_do(
    prepare: Callable[[DeltaCatalog], None], hash_bucket_count: int | None, work: PendingWork, tmp_path: Path
) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    lake.create_table(TABLE)
    prepare(lake)
    job_run_id = f"run-{SystemClock().new_id()}"
    run = run_of(lake, TABLE, job_run_id=job_run_id, hash_bucket_count=hash_bucket_count)
    (pinned,) = pin_sessions(run, lake)
    measured = measure_session(pinned.spec, lake)
    session = read_session_input(pinned.spec, lake)
    assert pinned.work == measured.work == session.streams.work() == work
    assert bool(session.rounds(plan_measured(measured, RESOURCES))) == work.has_rounds
    assert bool(list(work.reasons())) == (bool(work) and not work.delta_files)
