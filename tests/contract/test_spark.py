"""What a round asks of Spark, of the real one and of the one in this process that tests use in its place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from pyspark import Accumulator, AccumulatorParam, SparkContext, StorageLevel

from compactor.record_files import record_files
from compactor.spark_records import RecordSerializer, one_by_one, record_serializer, shuffle
from compactor.spark_storage import storage_left_bytes
from compactor.spark_workers import wake_workers
from tests.fakes.in_process_spark import in_process_spark

ElementT = TypeVar("ElementT")


@pytest.fixture(params=["in process", pytest.param("spark", marks=pytest.mark.spark)])
def context(request: pytest.FixtureRequest) -> SparkContext:
    spark = in_process_spark() if request.param == "in process" else request.getfixturevalue("spark")
    found: SparkContext = spark.sparkContext
    return found


@pytest.fixture(params=["through Spark", "in files"])
def serializer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordSerializer]:
    if request.param == "through Spark":
        yield RecordSerializer()
        return
    with record_files(tmp_path) as files:
        yield RecordSerializer(files)


def _twice(element: int) -> list[int]:
    return [element, element]


def _whose(partition: int, elements: Iterable[ElementT]) -> Iterator[tuple[int, list[ElementT]]]:
    yield partition, list(elements)


def _by_remainder(divisor: int, element: int) -> tuple[int, int]:
    return element % divisor, element


def _same(key: ElementT) -> ElementT:
    return key


def _unchanged(_: int, elements: Iterable[ElementT]) -> Iterable[ElementT]:
    return elements


def _noting(folder: str, partition: int, elements: Iterable[int]) -> Iterable[int]:
    note = os.open(f"{folder}/{partition}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(note, b"x")
    os.close(note)
    return elements


def test_elements_keep_their_order_and_each_partition_takes_consecutive_ones(context: SparkContext) -> None:
    whose = context.parallelize(range(7), 3).mapPartitionsWithIndex(_whose).collect()
    assert whose == [(0, [0, 1]), (1, [2, 3]), (2, [4, 5, 6])]


def test_an_element_may_become_none_one_or_many(context: SparkContext) -> None:
    assert context.parallelize([1, 2], 2).flatMap(_twice).collect() == [1, 1, 2, 2]
    assert context.parallelize([1, 2], 2).map(str).collect() == ["1", "2"]
    assert context.parallelize([], 1).flatMap(_twice).collect() == []


def test_a_shuffle_brings_every_element_once_to_the_partition_of_its_key(
    context: SparkContext, serializer: RecordSerializer
) -> None:
    keyed = context.parallelize(range(50), 4).map(partial(_by_remainder, 5))
    whose = shuffle(keyed, 6, _same, serializer).mapPartitionsWithIndex(_whose).collect()
    assert [partition for partition, _ in whose] == [0, 1, 2, 3, 4, 5]
    for partition, elements in whose:
        expected = [(partition, number) for number in range(50) if number % 5 == partition]
        assert sorted(elements) == expected


def test_what_is_persisted_is_not_computed_again_for_a_second_job(context: SparkContext, tmp_path: Path) -> None:
    noting = context.parallelize(range(4), 2).mapPartitionsWithIndex(partial(_noting, str(tmp_path)))
    kept = noting.persist(StorageLevel.MEMORY_AND_DISK)
    assert kept.collect() == [0, 1, 2, 3]
    assert kept.map(str).collect() == ["0", "1", "2", "3"]
    kept.unpersist()
    assert [note.read_bytes() for note in sorted(tmp_path.iterdir())] == [b"x", b"x"]


def _large(element: int) -> tuple[int, npt.NDArray[np.int64]]:
    return element % 2, np.full(300_000, element)


def _adding_one(_: int, records: Iterable[tuple[int, npt.NDArray[np.int64]]]) -> Iterator[int]:
    for _, array in records:
        array += 1
        yield int(array.sum())


def test_arrays_of_megabytes_pass_through_shuffle_and_store_and_may_be_written_to(
    context: SparkContext, serializer: RecordSerializer
) -> None:
    large = shuffle(context.parallelize(range(4), 2).map(_large), 2, _same, serializer)
    kept = one_by_one(large.mapPartitionsWithIndex(_unchanged), serializer).persist(StorageLevel.MEMORY_AND_DISK)
    for _ in range(2):
        sums = kept.mapPartitionsWithIndex(_adding_one).collect()
        assert sorted(sums) == [300_000 * (element + 1) for element in range(4)]
    assert sorted(int(array[0]) for _, array in kept.collect()) == [0, 1, 2, 3]
    kept.unpersist()


class _Merged(AccumulatorParam[dict[int, int]]):
    def zero(self, value: dict[int, int]) -> dict[int, int]:
        return {}

    def addInPlace(self, value1: dict[int, int], value2: dict[int, int]) -> dict[int, int]:  # noqa: N802
        return value1 | value2


def _telling(sizes: Accumulator[dict[int, int]], partition: int, elements: Iterable[int]) -> Iterator[int]:
    kept = list(elements)
    yield from kept
    sizes.add({partition: len(kept)})


def test_what_tasks_add_is_known_once_the_jvm_has_counted_what_they_yield(context: SparkContext) -> None:
    sizes: Accumulator[dict[int, int]] = context.accumulator({}, _Merged())
    kept = (
        context.parallelize(range(7), 3)
        .mapPartitionsWithIndex(partial(_telling, sizes))
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    assert kept._jrdd.count() > 0
    assert sizes.value == {0: 2, 1: 2, 2: 3}
    assert kept.collect() == [0, 1, 2, 3, 4, 5, 6]
    kept.unpersist()


def test_a_task_gets_copies_and_gives_copies(context: SparkContext) -> None:
    given = [[1], [2]]
    (first, second) = context.parallelize(given, 1).map(_same).collect()
    assert [first, second] == given
    assert first is not given[0]


def test_the_room_for_what_is_kept_is_known(context: SparkContext, request: pytest.FixtureRequest) -> None:
    """The one in this process has no JVM, and says that it has no room."""
    in_this_process = request.node.callspec.params["context"] == "in process"
    assert (storage_left_bytes(context) == 0) == in_this_process


def test_the_cores_are_known(context: SparkContext) -> None:
    assert context.defaultParallelism == 2
    assert list(context.statusTracker().getActiveStageIds()) == []


@pytest.mark.spark
def test_waking_workers_is_one_spark_job_that_succeeds(request: pytest.FixtureRequest) -> None:
    spark: SparkContext = request.getfixturevalue("spark").sparkContext
    tracker = spark.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    wake_workers(spark).join(60)
    woken = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup()) - before]
    assert [job.status for job in woken if job is not None] == ["SUCCEEDED"]


@pytest.mark.spark
def test_on_one_machine_large_records_lie_in_sparks_own_scratch_folder(request: pytest.FixtureRequest) -> None:
    spark: SparkContext = request.getfixturevalue("spark").sparkContext
    scratch = Path(spark._temp_dir)
    with record_serializer(spark) as serializer:
        before = {path for path in scratch.glob("records-*/*") if path.stat().st_size}
        shuffled = shuffle(spark.parallelize(range(4), 2).map(_large), 2, _same, serializer)
        assert sorted(shuffled.mapPartitionsWithIndex(_adding_one).collect()) == [300_000 * n for n in range(1, 5)]
        written = {path for path in scratch.glob("records-*/*") if path.stat().st_size} - before
        assert len(written) == 2  # of each task that shuffled one
    assert not any(path.exists() for path in written)
