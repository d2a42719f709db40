"""How many workers a machine has, what each may hold, and which sessions run there."""

from __future__ import annotations

import pytest

from compactor.model.errors import Invalid
from compactor.planning.machine_share import GIB, MIB, WORKER_START_BYTES, WorkersShare, workers_share
from compactor.planning.where_to_run import InOneProcess, WorkerPool, choose_place, why_together_on_spark

POOL = WorkerPool(workers=2, memory_bytes=256 * MIB)


def share_of(gib: float, cores: int = 8, workers: int | None = None, *, spark_is_here: bool = True) -> WorkersShare:
    share = workers_share(int(gib * GIB), cores, workers, 30.0, spark_is_here=spark_is_here)
    assert share is not None
    return share


def alone(seconds: float = 0.1, bytes_held: int = MIB) -> InOneProcess:
    return InOneProcess(seconds, bytes_held, POOL.memory_bytes)


def test_there_is_a_worker_for_each_core_as_far_as_a_quarter_of_the_memory_holds_them() -> None:
    assert (share_of(24).pool.workers, share_of(24).memory_bytes) == (8, 768 * MIB)
    assert (share_of(3).pool.workers, share_of(3).memory_bytes) == (1, 768 * MIB)
    assert workers_share(int(1.5 * GIB), 8, None, 30.0, spark_is_here=True) is None


def test_half_of_the_memory_is_for_workers_if_spark_runs_elsewhere() -> None:
    assert share_of(3, spark_is_here=False).pool.workers == 3


def test_they_never_hold_more_together_than_their_share() -> None:
    for gib in (3, 8, 24, 100):
        assert share_of(gib).total_bytes <= gib * GIB / 4


def test_a_session_has_the_memory_that_its_worker_does_not_take_to_start() -> None:
    share = share_of(24)
    assert share.pool.memory_bytes == share.memory_bytes - WORKER_START_BYTES


def test_none_can_be_asked_for() -> None:
    assert workers_share(64 * GIB, 8, 0, 30.0, spark_is_here=True) is None


def test_more_than_the_memory_holds_are_refused_with_the_figures() -> None:
    with pytest.raises(Invalid, match=r"--workers 5: 409 MiB are left for each, of 8\.0 GiB for all sessions"):
        workers_share(8 * GIB, 8, 5, 30.0, spark_is_here=True)


def test_a_session_runs_in_a_worker_if_its_time_and_its_memory_fit() -> None:
    assert choose_place(alone(29.9), POOL).in_worker
    assert not choose_place(alone(30.0), POOL).in_worker
    assert not choose_place(alone(bytes_held=POOL.memory_bytes), POOL).in_worker


def test_the_decision_shows_its_figures() -> None:
    assert choose_place(alone(0.02, 46_000), POOL).why.startswith("in a worker: 0.02 s of 30, and 46,000 bytes of")
    both = choose_place(alone(45.0, POOL.memory_bytes), POOL).why
    assert both.startswith(
        "on Spark: it may take 45.0 s in a worker, and 30 s or more are for Spark; it may hold 268,435,456"
    )


def test_a_session_that_failed_twice_in_workers_runs_on_spark() -> None:
    assert choose_place(alone(), POOL, failures=1).in_worker
    assert choose_place(alone(), POOL, failures=2).why == "on Spark: 2 attempts in a row have failed"


def test_small_sessions_share_a_spark_job_if_all_of_them_take_the_workers_too_long() -> None:
    assert why_together_on_spark([0.02] * 500, 1_000, POOL) is None
    why = why_together_on_spark([0.02] * 500, 10_000, POOL)
    assert why is not None
    assert "10,000 small sessions may take 100.0 s in 2 workers" in why
    assert why_together_on_spark([29.0], 1, POOL) is None
    assert why_together_on_spark([], 1, POOL) is None
