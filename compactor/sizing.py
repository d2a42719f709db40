"""Sizes a session before it runs: hash buckets, rows per round, expected SLA. Pure arithmetic that explains itself.

All rows of an index take the same memory and hash uniformly over the buckets (seed 000, "Compaction sessions"), so what
a dedupe task will hold is known before any data is read. The launcher sizes clusters with the same figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from compactor.errors import Invalid

DEDUPE_BYTES_PER_ROW = 128
"""What a dedupe task holds per row of its bucket at its peak, remembered or arriving, without sort values.

Of arriving rows with 9 bytes of sort values 74 were measured where they are deduplicated (tests/benchmarks), and 101
where the same worker then writes the index. Remembered rows take more, since they are laid over each other: 32 twice,
16 for their order, 48 where the index is written. So 10 million rows take 1.3 GB.
"""

DEDUPE_COPIES_OF_SORT_VALUES = 3
"""Encoded sort values are held as received, in order, and as left."""

TARGET_MEMORY_SHARE = 0.5
"""Seed 000: a new hash bucket count is chosen so that dedupe consumes about half of the memory of a task."""

REHASH_MEMORY_SHARE = 0.9
"""Seed 000: an inherited hash bucket count is kept until dedupe would consume more than this share."""

SLA_BUFFER = 1.1
"""Seed 000, "SLA Adherence": the expected SLA is the predicted time and 10 %."""

SESSION_SECONDS = 5.0
"""From the job's start to its first task (4.0 to 5.1 measured), and from its last task to its end."""

# The next three are fitted by `make bench` over all of its runs on rows of 75 bytes: half of them are predicted to
# within 15 %, the worst is off by 90 %: uniform updates of clean files take longer, by as much as they rewrite.

ROUND_SECONDS = 0.38
"""Scheduling of one round's two Spark jobs, and its commit."""

DELTA_ROWS_PER_SECOND_CORE = 1_310_000
"""Delta rows hashed, deduplicated and materialized, per second and core, at about 75 bytes a row."""

INDEX_ROWS_PER_SECOND_CORE = 107_000_000
"""Rows of the existing index looked at, or merged and written, per second and core."""


@dataclass(frozen=True)
class SessionSize:
    """What is known of a session's input: rows in the index, rows and bytes in the delta files, sort values' width."""

    index_rows: int
    delta_rows: int
    delta_bytes: int
    sort_values_bytes: int
    inherited_hash_bucket_count: int | None


@dataclass(frozen=True)
class Resources:
    """What a session may use. task_memory_bytes: what one Python task may hold; tasks: tasks side by side (cores)."""

    task_memory_bytes: int
    tasks: int


@dataclass(frozen=True)
class Sizing:
    """The decision, and how it came about, a sentence each."""

    hash_bucket_count: int
    max_rows_per_round: int
    rounds: int
    expected_sla: float
    arithmetic: tuple[str, ...]


def dedupe_bytes_per_row(sort_values_bytes: int) -> int:
    """What a dedupe task holds per row, in bytes."""
    return DEDUPE_BYTES_PER_ROW + DEDUPE_COPIES_OF_SORT_VALUES * sort_values_bytes


def hash_buckets_for(rows: int, resources: Resources, sort_values_bytes: int) -> int:
    """The bucket count with which one bucket takes about half of a task's memory; at least one bucket per core.

    Worked: 375 million rows at 128 bytes are 48 GB; with 8 GiB a task, half is 4.3 GB: 12 buckets.
    """
    needed_bytes = rows * dedupe_bytes_per_row(sort_values_bytes)
    budget_bytes = int(resources.task_memory_bytes * TARGET_MEMORY_SHARE)
    return max(-(-needed_bytes // budget_bytes), resources.tasks)


def memory_share(rows: int, hash_bucket_count: int, resources: Resources, sort_values_bytes: int) -> float:
    """The share of a task's memory that one bucket of that many takes."""
    return rows * dedupe_bytes_per_row(sort_values_bytes) / hash_bucket_count / resources.task_memory_bytes


def size_session(
    size: SessionSize, resources: Resources, asked_hash_bucket_count: int | None, asked_rows_per_round: int | None
) -> Sizing:
    """Raises `Invalid`, with both figures, where the bucket count asked for cannot hold even the index in memory."""
    rows, width = size.index_rows + size.delta_rows, size.sort_values_bytes
    per_row = dedupe_bytes_per_row(width)
    hash_bucket_count, why = _choose_hash_bucket_count(size, resources, asked_hash_bucket_count)
    rows_fit = int(REHASH_MEMORY_SHARE * resources.task_memory_bytes * hash_bucket_count / per_row)
    if rows_fit <= size.index_rows:
        raise Invalid(
            f"{size.index_rows} index rows of {per_row} bytes in {hash_bucket_count} hash buckets take more than "
            f"{REHASH_MEMORY_SHARE:.0%} of a task's {resources.task_memory_bytes} bytes: ask for more hash buckets"
        )
    max_rows_per_round = rows_fit - size.index_rows
    if asked_rows_per_round is not None:
        max_rows_per_round = min(max_rows_per_round, asked_rows_per_round)
    rounds = -(-size.delta_rows // max_rows_per_round)
    seconds = predict_seconds(size, resources, rounds)
    share = memory_share(min(rows, rows_fit), hash_bucket_count, resources, width)
    return Sizing(
        hash_bucket_count,
        max_rows_per_round,
        rounds,
        seconds * SLA_BUFFER,
        (
            f"{size.index_rows:,} index rows + {size.delta_rows:,} delta rows at {per_row} bytes a row in memory",
            f"{hash_bucket_count} hash buckets: {why}; a bucket takes {share:.1%} of a task's memory",
            f"{rounds} rounds of at most {max_rows_per_round:,} delta rows",
            f"{seconds:.1f} s predicted on {resources.tasks} cores; {seconds * SLA_BUFFER:.1f} s with the 10 % buffer",
        ),
    )


def predict_seconds(size: SessionSize, resources: Resources, rounds: int) -> float:
    """From the job's start to its end, without a buffer.

    Worked: 5 million delta rows on 2 cores: 5 + 0.5 + 5,000,000 / 1,090,000 = 10.1 s.
    """
    delta_seconds = size.delta_rows / (DELTA_ROWS_PER_SECOND_CORE * resources.tasks)
    index_seconds = size.index_rows * max(rounds, 1) / (INDEX_ROWS_PER_SECOND_CORE * resources.tasks)
    return SESSION_SECONDS + ROUND_SECONDS * rounds + delta_seconds + index_seconds


def _choose_hash_bucket_count(size: SessionSize, resources: Resources, asked: int | None) -> tuple[int, str]:
    if asked is not None:
        return asked, "as asked for"
    rows = size.index_rows + size.delta_rows
    inherited = size.inherited_hash_bucket_count
    wanted = hash_buckets_for(rows, resources, size.sort_values_bytes)
    if inherited is None:
        return wanted, f"one takes at most {TARGET_MEMORY_SHARE:.0%} of a task's memory"
    share = memory_share(rows, inherited, resources, size.sort_values_bytes)
    if share <= REHASH_MEMORY_SHARE:
        return inherited, "inherited from the index"
    return (
        wanted,
        f"the inherited {inherited} would take {share:.0%} of a task's memory, so the index is rehashed first",
    )
