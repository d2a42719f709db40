"""Moves a primary key index to another hash bucket count, on an engine (the paper, "Primary key index rehashing").

Its runs are merged into one, without entries that newer runs have voided.

Crash-safe by the order of its writes: new index files, which are not visible; then one log entry that replaces the
index version. The old version's files stay until garbage collection finds that no readable entry names them.
"""

from __future__ import annotations

from functools import partial

from compactor.engine.protocol import Engine
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile
from compactor.planning.round_plan import RehashPlan
from compactor.steps.rehash import RehashStep, join_bucket, old_buckets, split_bucket


def rehash(engine: Engine, plan: RehashPlan) -> tuple[IndexFile, ...]:
    """Writes the new index version's files and returns them, in bucket order. They are not visible before the
    commit.
    """
    step, new_buckets = RehashStep.of(plan), range(plan.hash_bucket_count)
    with engine.exchange() as exchange:
        by_bucket = exchange.map(old_buckets(plan), partial(split_bucket, step)).shuffle(len(new_buckets))
        written = by_bucket.collect("rehash", new_buckets, partial(join_bucket, step))
    for bucket in written:
        bucket.sending.wait()
    files = sorted(
        (file for bucket in written for file in bucket.files), key=lambda file: (file.hash_bucket, file.part)
    )
    rows = sum(file.rows for file in files)
    if rows != plan.keys:
        raise Corrupt(f"the stream has {plan.keys} live rows and tombstones, but the rehashed index has {rows} rows")
    return tuple(files)
