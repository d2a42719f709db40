"""Moves a primary key index to another hash bucket count, as a Spark job of its own (seed 000; contract 3).

Its runs become one on the way, without what newer runs have made void.

Crash-safe by the order of its writes: new index files, which nobody sees; then one log entry that replaces the index
version. The old version's files stay until garbage collection finds that no entry in reach of a reader names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark import SparkContext

from compactor.catalog.actions import IndexFile
from compactor.errors import Corrupt
from compactor.index.layout import IndexRows
from compactor.spark_errors import spark_job
from compactor.spark_records import record_serializer, shuffle
from compactor.steps.rehash import RehashPlan, join_bucket, split_bucket


def rehash(spark: SparkContext, plan: RehashPlan) -> tuple[IndexFile, ...]:
    """Writes the new index version's files and returns them, in bucket order. Nobody sees them before the commit."""
    old_buckets = sorted({file.hash_bucket for file in plan.index_files})
    moved = spark.parallelize(old_buckets, max(len(old_buckets), 1)).flatMap(partial(split_bucket, plan))
    with record_serializer(spark) as serializer, spark_job("rehash"):
        by_bucket = shuffle(moved, plan.hash_bucket_count, _own_partition, serializer)
        written = by_bucket.mapPartitionsWithIndex(partial(_join_partition, plan)).collect()
    files = sorted(written, key=lambda file: (file.hash_bucket, file.part))
    rows = sum(file.rows for file in files)
    if rows != plan.keys:
        raise Corrupt(f"the stream has {plan.keys} live rows and tombstones, but the rehashed index has {rows} rows")
    return tuple(files)


def _own_partition(key: int) -> int:
    return key


def _join_partition(plan: RehashPlan, hash_bucket: int, blocks: Iterator[tuple[int, IndexRows]]) -> Iterator[IndexFile]:
    yield from join_bucket(plan, hash_bucket, [block for _, block in blocks])
