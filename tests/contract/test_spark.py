"""PySpark's internals that the Spark engine relies on, on each Spark version of the make targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from compactor.engine.prestart import prestart_workers
from compactor.engine.records import RecordSerializer, shuffle
from compactor.engine.spark import SparkEngine, release_scratch, storage_left_bytes
from compactor.model.clock import SystemClock
from compactor.task_progress import ProgressAddress, RowCounter, listening
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def context(request: pytest.FixtureRequest) -> SparkContext:
    found: SparkContext = request.getfixturevalue("spark").sparkContext
    return found


def _large(element: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    yield element % 2, np.full(300_000, element)


def _sum(_: int, arrays: Iterable[npt.NDArray[np.int64]]) -> int:
    return sum(int(array.sum()) for array in arrays)


def test_the_room_for_kept_records_and_the_cores_are_known(context: SparkContext) -> None:
    assert storage_left_bytes(context) > 0
    assert SparkEngine(context).resources().tasks == 2
    assert SparkEngine(context).tasks_done() == 0


def test_waking_workers_is_one_spark_job_that_succeeds(context: SparkContext) -> None:
    tracker = context.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    assert SparkEngine(context, prestart_workers(context)).await_workers()
    wait_until(lambda: not tracker.getActiveJobsIds())  # noted after the job has answered
    woken = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup()) - before]
    assert [job.status for job in woken if job is not None] == ["SUCCEEDED"]


def test_on_one_machine_large_records_lie_in_sparks_own_scratch_folder(context: SparkContext) -> None:
    scratch = Path(context._temp_dir)
    before = {path for path in scratch.glob("records-*/*") if path.stat().st_size}
    with SparkEngine(context).exchange() as exchange:
        shuffled = exchange.map(range(4), _large).shuffle(2)
        assert shuffled.collect("test", range(2), _sum) == [300_000 * 2, 300_000 * 4]
        written = {path for path in scratch.glob("records-*/*") if path.stat().st_size} - before
        assert len(written) == 4  # one of each task
    assert not any(path.exists() for path in written)


def _count_and_wait(address: ProgressAddress, seen: str, rows: Iterable[int]) -> Iterator[int]:
    """A task that ends when the driver confirms that it has seen the task's progress."""
    counter = RowCounter(address)
    for row in rows:
        counter.add(1)
        yield row

    def is_seen() -> bool:
        counter.add(0)  # any single report may be lost
        return Path(seen).exists()

    wait_until(is_seen)


def test_the_rows_of_a_task_are_seen_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    context = spark.sparkContext
    with listening(*SparkEngine(context).driver_hosts(), SystemClock(), every_seconds=0) as listener:
        assert listener is not None
        task = partial(_count_and_wait, listener.address, str(seen))
        with ThreadPoolExecutor(1) as pool:
            collected = pool.submit(context.parallelize(range(5), 1).mapPartitions(task).collect)
            wait_until(lambda: listener.rows() == 5)
            assert not collected.done()
            seen.touch()
            assert collected.result() == [0, 1, 2, 3, 4]


def test_shuffle_files_that_nobody_needs_any_more_go_when_scratch_is_given_back(spark: SparkSession) -> None:
    context = spark.sparkContext
    folder = Path(context.getConf().get("spark.local.dir", ""))

    def shuffle_files() -> set[Path]:
        return set(folder.glob("blockmgr-*/*/shuffle_*"))

    before = shuffle_files()
    records = context.parallelize([(number % 3, bytes(100_000)) for number in range(12)], 4)
    assert len(shuffle(records, 3, RecordSerializer()).collect()) == 12
    left = shuffle_files() - before
    assert left
    del records

    def are_gone() -> bool:
        # Py4J tells the JVM what Python has let go of a moment later.
        release_scratch(context)
        return not left & shuffle_files()

    wait_until(are_gone)
