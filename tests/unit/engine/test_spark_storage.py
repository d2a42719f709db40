"""A round's survivors are kept in memory only where the JVMs have ample room for them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark import SparkContext, StorageLevel

from compactor.engine.spark import storage_left_bytes, storage_level


def spark_with(*left: int) -> SparkContext:
    """A Spark whose JVMs have so many bytes left of 1,024 each, as py4j shows them."""
    unread = [SimpleNamespace(_1=lambda: 1024, _2=partial(int, value)) for value in left]
    iterator = SimpleNamespace(hasNext=lambda: bool(unread), next=unread.pop)
    status = SimpleNamespace(values=lambda: SimpleNamespace(iterator=lambda: iterator))
    jvm = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: status))
    return cast("SparkContext", SimpleNamespace(_jsc=jvm))


@pytest.mark.parametrize(
    ("left", "counted"),
    [((), 0), ((300,), 300), ((300, 400), 300), ((300, 100, 200), 200), ((500, 500, 500, 500), 1500)],
)
def test_executors_count_with_what_the_fullest_has_left_and_one_jvm_is_the_driver_s(
    left: tuple[int, ...], counted: int
) -> None:
    assert storage_left_bytes(spark_with(*left)) == counted


@pytest.mark.parametrize("needed", [0, 150])
def test_records_of_at_most_half_of_the_memory_are_kept_in_memory(needed: int) -> None:
    assert storage_level(spark_with(300), needed) == StorageLevel.MEMORY_AND_DISK


def test_larger_records_are_kept_on_disk() -> None:
    assert storage_level(spark_with(300), 151) == StorageLevel.DISK_ONLY
    assert storage_level(spark_with(), 1) == StorageLevel.DISK_ONLY
