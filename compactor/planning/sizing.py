"""Sizes a session before it runs: hash buckets, rounds, expected SLA. Pure arithmetic that explains itself.

All rows of an index take the same memory and hash uniformly over the buckets (the paper, "Compaction sessions"), so the
memory of a dedupe task is known before any data is read. The launcher sizes clusters with the same figures.

A round is bounded by four things, and the least of them decides how many rounds there are:

    memory    dedupe tasks hold the arriving rows of a bucket, and the rows of the index that they meet
    scratch   records between tasks are in Spark's scratch folders until the end of the round
    driver    it holds a count for every pair of a source file and a hash bucket
    the user  `max_rows_per_round`

Hash tasks and writers do not bound rounds: they are split by bytes (`rows_per_hash_task`, `rows_per_writer`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from math import ceil

from compactor.model.errors import Invalid
from compactor.model.names import counted
from compactor.planning.time_model import (
    SLA_BUFFER,
    PredictedTime,
    SessionWork,
    predict_time,
    rates_of,
    with_buffer,
)

DEDUPE_BYTES_PER_ROW = 128
"""Peak bytes of a dedupe task per row of its bucket, remembered or arriving, without sort values.

Measured for arriving rows with 9 bytes of sort values: 74 in dedupe, 101 if the same worker then writes the index
(tests/benchmarks). Remembered rows take more, since runs are merged: 32 twice, 16 for their order, 48 when the index is
written. Worked: 10 million rows take 1.3 GB.
"""

DEDUPE_COPIES_OF_SORT_VALUES = 3
"""Encoded sort values are held three times: as received, sorted, and in the output."""

TARGET_MEMORY_SHARE = 0.5
"""The paper: a new hash bucket count is chosen so that dedupe consumes about half of the memory of a task."""

REHASH_MEMORY_SHARE = 0.9
"""The paper: an inherited hash bucket count is kept until dedupe would consume more than this share."""

HASH_BYTES_PER_ROW = 32
"""Bytes of a hash task per row, without sort values: digest 20, position in the order by bucket 8, bucket 4."""

HASH_MEMORY_SHARE = 0.25
"""Share of a task's memory for those rows: 4 GiB hold 33 million of them, 256 MiB two million. The rest is for
decoded batches, the worker's own needs, and memory that earlier tasks of the worker did not release.
"""

WRITER_BYTES_PER_ROW = 16
"""Bytes of a writer per written row: the row's index in its source as received, and once more sorted."""

WRITER_MEMORY_SHARE = 0.25
"""Share of a task's memory for those row indices: 4 GiB hold those of 67 million rows (16 compacted files of the
default size), 256 MiB of four million.
"""

DECODED_MEMORY_SHARE = 0.25
"""Share of a task's memory for a source file that is decoded whole. A larger one is read page by page, and by Arrow a
part at a time."""

PIECE_MEMORY_SHARE = 1 / 8
"""Share of a task's memory for the rows of one row group that is written, which are there in their old and new form."""

PART_MEMORY_SHARE = 1 / 64
PART_BYTES_MAX = 8 * 1024 * 1024
"""Of a task's memory, for the stored bytes of a part of a large file, whose rows are written one after the other: 256
MiB give 4 MiB. A row group takes several, so that few of them belong to two."""

DIVIDED_MEMORY_SHARE = 1 / 16
"""Of a task's memory: a file with more stored bytes has parts. A smaller one may take four times as much decoded, and
still fit."""

AHEAD_MEMORY_SHARE = 1 / 16
AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""Of a task's memory, for what it asks of an object store before it needs it: 256 MiB give 16 MiB, 1 GiB gives 64."""

KEPT_INDEX_MEMORY_SHARE = 1 / 16
KEPT_INDEX_BYTES_MAX = 256 * 1024 * 1024
"""Of a task's memory, for pages of a remote index that dedupe has read and that are asked for again when the new run is
written: 256 MiB give 16 MiB, which hold the file numbers of 4 million rows. Spark's workers keep them on a scratch
disk for all of their machine (`index.shared_pages`), and of those this much mapped."""

SENT_INDEX_MEMORY_SHARE = 1 / 16
SENT_INDEX_BYTES_MAX = 64 * 1024 * 1024
"""Of a task's memory, for index files that are on their way to an object store while the next ones are made, and while
compacted files are written: 256 MiB give 16 MiB, the new run of half a million rows."""

BYTES_PER_TASK = 4 * 1024**3
"""Bytes of files per hash task or writer: a remote store delivers 50 MB/s or more, so a task lasts minutes at most.
A larger file is a task of its own.
"""

SCRATCH_SHARE = 0.75
"""Share of the scratch folders for one round. The rest is for spare files of an earlier round
(`SPARE_SCRATCH_SHARE`), what is kept of a remote index (`index.shared_pages`), and Spark's own files.
"""

SPARE_SCRATCH_SHARE = 0.125
"""Share of a round's scratch bytes that may be kept for the next round: half a gigabyte of 4 GB."""

SHUFFLED_BYTES_PER_ROW = 24
"""Bytes of an arriving row in the shuffle to dedupe, without sort values: a 20-byte digest, a 4-byte row index."""

KEPT_BYTES_PER_KEY = 40
"""Bytes of a key that a dedupe task leaves for the index, without sort values: 36 of digest, file, row index and
rank, the rest is framing.
"""

ROW_INDEX_BYTES = 4
"""Bytes of a row in the shuffle to materialize."""

ABSORBED_ROWS_PER_ROW = 2
"""Index rows that a round should be able to absorb, per arriving row: as many as it absorbs at once
(`planning.ABSORBED_RUN_SHARE`).
"""

DRIVER_MEMORY_SHARE = 0.25
"""Share of the driver's memory for a round's files; in a task it is a tenth (`TASK_PLAN_SHARE`)."""

TASK_PLAN_SHARE = 0.1
BYTES_PER_SOURCE_FILE = 1_024
"""Bytes of a driver or a task per source file: its name, size and position."""

DRIVER_BYTES_PER_COUNT = 64
"""Bytes of the driver per pair of source file and hash bucket that share a row: counts as received, and in the
order of writing. Worked: 10,000 files and 100 buckets are 64 MB, a quarter of 256 MB.
"""

TASK_BYTES_PER_COUNT = 16
"""Bytes of a finish task per such pair."""

FILES_PER_ROUND_MIN = 1_000
"""A round takes at least this many files for any driver memory: starting a round costs more than they do."""

SESSION_SECONDS = 5.0
"""From the job's start to its first task, plus from its last task to its end."""

SHOWN_SECONDS_MIN = 0.05


@dataclass(frozen=True)
class SessionSize:
    """The amounts of a session's input (`InputStatistics.size`), from which sizing and time are calculated.

    index_rows               of the index, tombstones and dead rows included
    delta_files              delta files in all
    largest_delta_file_rows  of the one with most rows: a file is never split between rounds
    compacted_files          live ones
    compacted_bytes          of these files
    touched_rows             compacted rows in files that the deltas may touch, which are then rewritten; None: all
    touched_rows_per_file    of those, the average that one delta file touches; None: all
    overlap_share            share of the deltas' rows whose keys are in the key range of other delta files, so that a
                             round may rewrite the output of an earlier round of the session
    lake_is_remote           the lake is on S3
    corrections              by step, the factor between the seconds of the table's own rounds and those of the
                             benchmark
    rows_up_to_file          delta rows in each delta file and all before it, in the order in which rounds take them;
                             empty: not known, so that files are taken to be as small as needed
    """

    index_rows: int
    delta_rows: int
    delta_bytes: int
    sort_values_bytes: int
    inherited_hash_bucket_count: int | None
    delta_files: int = 1
    largest_delta_file_rows: int = 0
    compacted_files: int = 0
    compacted_bytes: int = 0
    touched_rows: int | None = None
    touched_rows_per_file: float | None = None
    overlap_share: float = 1.0
    lake_is_remote: bool = False
    corrections: tuple[tuple[str, float], ...] = ()
    rows_up_to_file: tuple[int, ...] = ()


@dataclass(frozen=True)
class Resources:
    """What a session may use.

    task_memory_bytes    what one Python task may hold, beside the libraries that all workers share
    tasks                tasks side by side (cores)
    scratch_bytes        in all of Spark's scratch folders together; None: not known, so it bounds nothing
    driver_memory_bytes  what the driver may hold; None: not known, so it bounds nothing
    hash_buckets_min     of a new hash bucket count, if later sessions will have more tasks than this one
    start_seconds        from the launch to the first task: of a Spark that has to be started, of a cluster; 0: it runs
    in_process           tasks run in the caller's process, one after the other
    machines             that the tasks are spread over
    network_byte         seconds of one core for a byte over its share of its machine's network; 0: it bounds nothing
    """

    task_memory_bytes: int
    tasks: int
    scratch_bytes: int | None = None
    driver_memory_bytes: int | None = None
    hash_buckets_min: int = 1
    start_seconds: float = SESSION_SECONDS
    in_process: bool = False
    machines: int = 1
    network_byte: float = 0.0

    def with_memory_share(self, share: float) -> Resources:
        """The same resources with less memory per task, for a session that ran out of memory."""
        return replace(self, task_memory_bytes=max(int(self.task_memory_bytes * share), 1))


@dataclass(frozen=True)
class Sizing:
    """The decision, and the sentences that explain it.

    task_memory_bytes        what a task may hold by this plan
    max_files_per_round      delta files
    scratch_bytes_per_round  scratch bytes of a round; None: not known
    work                     its predicted amounts
    time                     its predicted seconds
    """

    hash_bucket_count: int
    max_rows_per_round: int
    rounds: int
    expected_sla: float
    arithmetic: tuple[str, ...]
    task_memory_bytes: int
    max_files_per_round: int
    scratch_bytes_per_round: int | None
    work: SessionWork
    time: PredictedTime


@dataclass(frozen=True)
class RoundRoom:
    """The limits of one round, from which the absorbed part of the index is chosen.

    scratch_bytes  None: not known
    """

    task_memory_bytes: int
    hash_bucket_count: int
    scratch_bytes: int | None

    def rows_to_absorb(self, arriving_rows: int, index_rows: int, sort_values_bytes: int) -> int:
        """Rows of the index that a round may absorb at most, beside the rows that arrive.

        Worked: in 4 buckets of tasks of 256 MiB, 7.5 million rows fit. With 2 million arriving and an index of 10
        million, each arriving row may meet one that is only searched for: 7.5 - 2 * 2 = 3.5 million.
        """
        fit = rows_in_memory(self.task_memory_bytes, self.hash_bucket_count, sort_values_bytes)
        everything = index_rows + arriving_rows <= fit
        room = index_rows if everything else max(fit - 2 * arriving_rows, 0)
        if self.scratch_bytes is not None:
            left = self.scratch_bytes - scratch_bytes(arriving_rows, 0, sort_values_bytes)
            room = min(room, max(left, 0) // scratch_bytes(0, 1, sort_values_bytes))
        return room


def dedupe_bytes_per_row(sort_values_bytes: int) -> int:
    """Bytes of a dedupe task per row."""
    return DEDUPE_BYTES_PER_ROW + DEDUPE_COPIES_OF_SORT_VALUES * sort_values_bytes


def hash_buckets_for(rows: int, resources: Resources, sort_values_bytes: int) -> int:
    """The bucket count with which one bucket takes about half of a task's memory; at least one bucket per core.

    Worked: 375 million rows at 128 bytes; half of 8 GiB holds 33.5 million of them: 12 buckets.
    """
    per_bucket = int(resources.task_memory_bytes * TARGET_MEMORY_SHARE / dedupe_bytes_per_row(sort_values_bytes))
    return max(recommended_hash_buckets(rows, per_bucket), resources.tasks, resources.hash_buckets_min)


def recommended_hash_buckets(rows: int, rows_per_bucket: int) -> int:
    """The bucket count for these rows; Figure 3-1 of the paper with 150,000,000 rows a bucket.

    Worked: 46.875 billion rows at 150 million a bucket: 313. Half of 8 GiB for those is 28.63 bytes a row.
    """
    return max(-(-rows // max(rows_per_bucket, 1)), 1)


def memory_share(rows: int, hash_bucket_count: int, resources: Resources, sort_values_bytes: int) -> float:
    """The share of a task's memory that one of `hash_bucket_count` buckets takes."""
    return rows * dedupe_bytes_per_row(sort_values_bytes) / hash_bucket_count / resources.task_memory_bytes


def rows_in_memory(task_memory_bytes: int, hash_bucket_count: int, sort_values_bytes: int) -> int:
    """Rows, arriving or remembered, that all buckets together may hold: nine tenths of a task's memory each."""
    bytes_in_all = REHASH_MEMORY_SHARE * task_memory_bytes * hash_bucket_count
    return int(bytes_in_all / dedupe_bytes_per_row(sort_values_bytes))


def rows_per_hash_task(task_memory_bytes: int, sort_values_bytes: int) -> int:
    """Rows that a hash task holds at a time, at most. Worked: 256 MiB and 9 bytes of sort values are 1.6 million."""
    return max(int(HASH_MEMORY_SHARE * task_memory_bytes / (HASH_BYTES_PER_ROW + sort_values_bytes)), 1)


def ahead_bytes(task_memory_bytes: int) -> int:
    """What a task has on its way from an object store, or waiting, before it needs it."""
    return min(int(task_memory_bytes * AHEAD_MEMORY_SHARE), AHEAD_BYTES_MAX)


def index_bytes_kept(task_memory_bytes: int) -> int:
    """Of a remote index, what a worker keeps from dedupe for the end of the round."""
    return min(int(task_memory_bytes * KEPT_INDEX_MEMORY_SHARE), KEPT_INDEX_BYTES_MAX)


def index_bytes_sent(task_memory_bytes: int) -> int:
    """Of new index files, what is on its way to an object store at the same time."""
    return min(int(task_memory_bytes * SENT_INDEX_MEMORY_SHARE), SENT_INDEX_BYTES_MAX)


def rows_per_part(rows: int, size_bytes: int, task_memory_bytes: int) -> int:
    """Rows of each part of a file with so many rows and stored bytes. Worked: of 2 million rows of 600 bytes, 256 MiB
    give parts of 6,991 rows; of a file of 16 MiB, all rows.
    """
    if size_bytes <= DIVIDED_MEMORY_SHARE * task_memory_bytes:
        return rows
    part_bytes = min(PART_MEMORY_SHARE * task_memory_bytes, PART_BYTES_MAX)
    return max(int(rows * part_bytes / size_bytes), 1)


def rows_per_writer(task_memory_bytes: int) -> int:
    """Rows that a writer writes at most. Worked: 256 MiB are 4 million."""
    return max(int(WRITER_MEMORY_SHARE * task_memory_bytes / WRITER_BYTES_PER_ROW), 1)


def scratch_bytes(arriving_rows: int, absorbed_rows: int, sort_values_bytes: int) -> int:
    """Scratch bytes of a round with this many rows, without the indices of rows that only move.

    Worked: 1 million rows with 9 bytes of sort values: 33 MB shuffled, 49 MB kept, 4 MB of row indices: 86 MB.
    """
    kept = KEPT_BYTES_PER_KEY + ROW_INDEX_BYTES + sort_values_bytes
    return arriving_rows * (SHUFFLED_BYTES_PER_ROW + sort_values_bytes + kept) + absorbed_rows * kept


def size_session(
    size: SessionSize,
    resources: Resources,
    requested_hash_bucket_count: int | None,
    requested_rows_per_round: int | None,
    share_of_memory: float = 1.0,
) -> Sizing:
    """Raises `Invalid`, with both figures, if the index does not fit the memory with the requested bucket count.

    share_of_memory  of a task's memory that the plan takes: less for a session that ran out of memory
    """
    resources = resources.with_memory_share(share_of_memory)
    outline = outline_session(size, resources, requested_hash_bucket_count, requested_rows_per_round)
    time = predicted_time(size, resources, outline.rounds, outline.hash_bucket_count)
    return Sizing(
        hash_bucket_count=outline.hash_bucket_count,
        max_rows_per_round=outline.max_rows_per_round,
        rounds=outline.rounds,
        expected_sla=with_buffer(time.seconds),
        arithmetic=(*_share_sentence(share_of_memory, resources), *_arithmetic(size, resources, outline, time)),
        task_memory_bytes=resources.task_memory_bytes,
        max_files_per_round=outline.max_files_per_round,
        scratch_bytes_per_round=scratch_of_a_round(size, resources),
        work=work_of(size, outline.rounds, outline.hash_bucket_count),
        time=time,
    )


@dataclass(frozen=True)
class SizingOutline:
    """The figures of a sizing without its arithmetic, to compare many clusters.

    why      this bucket count
    bounds   the most delta rows of a round, by limit
    """

    hash_bucket_count: int
    why: str
    rows_fit: int
    bounds: dict[str, int]
    max_rows_per_round: int
    max_files_per_round: int
    rounds: int


def outline_session(
    size: SessionSize,
    resources: Resources,
    requested_hash_bucket_count: int | None,
    requested_rows_per_round: int | None,
) -> SizingOutline:
    """Raises `Invalid` as `size_session` does."""
    width = size.sort_values_bytes
    hash_bucket_count, why = _choose_hash_bucket_count(size, resources, requested_hash_bucket_count)
    rows_fit = rows_in_memory(resources.task_memory_bytes, hash_bucket_count, width)
    if rows_fit <= size.index_rows:
        raise Invalid(_index_does_not_fit(size, resources, hash_bucket_count))
    bounds = _bounds(size, resources, rows_fit, requested_rows_per_round)
    max_rows_per_round = min(bounds.values())
    max_files_per_round = _files_per_round(size, resources, hash_bucket_count)
    return SizingOutline(
        hash_bucket_count=hash_bucket_count,
        why=why,
        rows_fit=rows_fit,
        bounds=bounds,
        max_rows_per_round=max_rows_per_round,
        max_files_per_round=max_files_per_round,
        rounds=count_rounds(size, max_rows_per_round, max_files_per_round),
    )


def _index_does_not_fit(size: SessionSize, resources: Resources, hash_bucket_count: int) -> str:
    per_row = dedupe_bytes_per_row(size.sort_values_bytes)
    needed = -(-size.index_rows * per_row // hash_bucket_count)
    enough = ceil((size.index_rows + 1) * per_row / (REHASH_MEMORY_SHARE * resources.task_memory_bytes))
    return (
        f"{counted(size.index_rows, 'index row')} of {per_row} bytes in {counted(hash_bucket_count, 'hash bucket')} "
        f"are {needed:,} bytes in a task, which may take {REHASH_MEMORY_SHARE:.0%} of its "
        f"{resources.task_memory_bytes:,}: ask for {counted(enough, 'hash bucket')} or more"
    )


def count_rounds(size: SessionSize, max_rows_per_round: int, max_files_per_round: int | None) -> int:
    """The rounds that `split_into_rounds` will make of the delta files.

    Worked: 3 files of 500 rows, and at most 800 rows a round: 3, since files are not cut.
    """
    ends, files_max = size.rows_up_to_file, max_files_per_round or size.delta_files
    if not ends or (ends[-1] <= max_rows_per_round and len(ends) <= files_max):
        return max(-(-size.delta_rows // max_rows_per_round), -(-size.delta_files // max(files_max, 1)))
    rounds = taken = rows = 0
    while taken < len(ends):
        fitting = bisect_right(ends, rows + max_rows_per_round, lo=taken)
        taken = max(min(fitting, taken + files_max), taken + 1)
        rows = ends[taken - 1]
        rounds += 1
    return rounds


def _arithmetic(
    size: SessionSize, resources: Resources, outline: SizingOutline, time: PredictedTime
) -> tuple[str, ...]:
    rows, width = size.index_rows + size.delta_rows, size.sort_values_bytes
    buckets = outline.hash_bucket_count
    share = memory_share(min(rows, outline.rows_fit), buckets, resources, width)
    decides = min(outline.bounds, key=lambda name: outline.bounds[name])
    per_row = dedupe_bytes_per_row(width)
    most = f"at most {outline.max_rows_per_round:,} delta rows"
    buffered = f"{with_buffer(time.seconds):.1f} s with the 10 % buffer"
    return (
        f"{counted(size.index_rows, 'index row')} + {counted(size.delta_rows, 'delta row')}: {per_row} bytes each",
        f"{counted(buckets, 'hash bucket')}: {outline.why}; a bucket takes {share:.1%} of a task's memory",
        f"{counted(outline.rounds, 'round')} of {most}: {_bound_phrase(decides, size, outline.bounds)}",
        *_scratch_sentence(size, resources, outline.max_rows_per_round),
        *_files_sentence(size, resources, buckets, outline.max_files_per_round),
        f"a hash task holds at most {rows_per_hash_task(resources.task_memory_bytes, width):,} rows at a time",
        f"a writer holds the indices of at most {rows_per_writer(resources.task_memory_bytes):,} rows",
        *_remote_reads_sentence(size, resources),
        _time_sentence(time, size),
        f"{time.seconds:.1f} s predicted on {counted(resources.tasks, 'core')}; {buffered}",
    )


def _remote_reads_sentence(size: SessionSize, resources: Resources) -> tuple[str, ...]:
    if not size.lake_is_remote:
        return ()
    shares = (ahead_bytes, index_bytes_kept, index_bytes_sent)
    ahead, kept, sent = (each(resources.task_memory_bytes) / 2**20 for each in shares)
    reads = f"a task reads at most {ahead:,.0f} MiB ahead from the store"
    return (f"{reads}, keeps {kept:,.0f} MiB of the index, and has {sent:,.0f} MiB of new index files on their way",)


def scratch_of_a_round(size: SessionSize, resources: Resources) -> int | None:
    """Scratch bytes for the rows of one round; None: not known.

    A round may rewrite every compacted file, so that the index of each of their rows is shuffled: space for that is
    reserved, at most half of all. Worked: of 2 GiB 1.61 GB; with 64 million rows in the end, 1.35 GB.
    """
    if resources.scratch_bytes is None:
        return None
    budget = int(resources.scratch_bytes * SCRATCH_SHARE)
    return budget - min(ROW_INDEX_BYTES * (size.index_rows + size.delta_rows), budget // 2)


def spare_scratch_bytes(scratch_bytes_per_round: int | None) -> int | None:
    """Scratch bytes that may be kept for the next round to overwrite, in addition to those of a round."""
    return None if scratch_bytes_per_round is None else int(scratch_bytes_per_round * SPARE_SCRATCH_SHARE)


def _bounds(
    size: SessionSize, resources: Resources, rows_fit: int, requested_rows_per_round: int | None
) -> dict[str, int]:
    """The most delta rows of a round, by limit; each at least one."""
    # If not all rows fit, a round does not absorb the index, and reads at most as many of its rows as arrive.
    all_fit = size.index_rows + size.delta_rows <= rows_fit
    room = rows_fit - size.index_rows
    bounds = {"memory": room if all_fit else min(room, rows_fit // 2)}
    scratch = scratch_of_a_round(size, resources)
    if scratch is not None:
        bounds["scratch"] = _rows_that_scratch_holds(size, scratch)
    if requested_rows_per_round is not None:
        bounds["asked for"] = requested_rows_per_round
    return {name: max(rows, 1) for name, rows in bounds.items()}


def _rows_that_scratch_holds(size: SessionSize, budget: int) -> int:
    """All, if they fit with the index rows that they may absorb; otherwise later rounds will have an index to
    absorb.
    """
    width = size.sort_values_bytes
    absorbed = min(ABSORBED_ROWS_PER_ROW * size.delta_rows, size.index_rows)
    if scratch_bytes(size.delta_rows, absorbed, width) <= budget:
        return budget // scratch_bytes(1, 0, width)
    return budget // scratch_bytes(1, ABSORBED_ROWS_PER_ROW, width)


def _files_per_round(size: SessionSize, resources: Resources, hash_bucket_count: int) -> int:
    """The most delta files of a round, in addition to all compacted files."""
    room = [TASK_PLAN_SHARE * resources.task_memory_bytes / _task_bytes_per_file(hash_bucket_count)]
    if resources.driver_memory_bytes is not None:
        room.append(DRIVER_MEMORY_SHARE * resources.driver_memory_bytes / _driver_bytes_per_file(hash_bucket_count))
    return max(int(min(room)) - size.compacted_files, FILES_PER_ROUND_MIN)


def _task_bytes_per_file(hash_bucket_count: int) -> int:
    return BYTES_PER_SOURCE_FILE + TASK_BYTES_PER_COUNT * hash_bucket_count


def _driver_bytes_per_file(hash_bucket_count: int) -> int:
    return BYTES_PER_SOURCE_FILE + DRIVER_BYTES_PER_COUNT * hash_bucket_count


def _share_sentence(share_of_memory: float, resources: Resources) -> tuple[str, ...]:
    if share_of_memory >= 1:
        return ()
    return (f"planned with {share_of_memory:.0%} of a task's memory: {resources.task_memory_bytes:,} bytes",)


def _bound_phrase(decides: str, size: SessionSize, bounds: dict[str, int]) -> str:
    if decides == "asked for":
        return decides
    if size.largest_delta_file_rows > bounds[decides]:
        return (
            f"what {decides} holds; but the largest delta file has {size.largest_delta_file_rows:,} rows, and files "
            "are not cut between rounds: give it more, or write smaller files"
        )
    return f"what {decides} holds"


def _scratch_sentence(size: SessionSize, resources: Resources, rows_per_round: int) -> tuple[str, ...]:
    width = size.sort_values_bytes
    rows = min(rows_per_round, size.delta_rows)
    absorbed = min(ABSORBED_ROWS_PER_ROW * rows, size.index_rows + size.delta_rows - rows)
    needed = scratch_bytes(rows, absorbed, width) + ROW_INDEX_BYTES * (size.index_rows + size.delta_rows)
    takes = f"a round takes {needed / 1e9:.1f} GB of scratch folders at most"
    each = f"{SHUFFLED_BYTES_PER_ROW + width} bytes a row shuffled, {KEPT_BYTES_PER_KEY + width} kept"
    if resources.scratch_bytes is None:
        return (f"{takes}: {each}; how much there is, is not known",)
    return (f"{takes}, of {resources.scratch_bytes / 1e9:.1f} GB: {each}",)


def _files_sentence(
    size: SessionSize, resources: Resources, hash_bucket_count: int, max_files_per_round: int
) -> tuple[str, ...]:
    files = size.compacted_files + min(size.delta_files, max_files_per_round)
    needed = files * _driver_bytes_per_file(hash_bucket_count)
    buckets = counted(hash_bucket_count, "hash bucket")
    driver_use = f"{counted(files, 'source file')} a round x {buckets}: {needed / 1e6:,.0f} MB in the driver"
    if resources.driver_memory_bytes is None:
        return (driver_use,)
    short = needed > DRIVER_MEMORY_SHARE * resources.driver_memory_bytes
    share = f"{DRIVER_MEMORY_SHARE:.0%} of its {resources.driver_memory_bytes / 1e6:,.0f} MB"
    return (f"{driver_use}, more than {share}: give it more" if short else f"{driver_use}, at most {share}",)


def _time_sentence(time: PredictedTime, size: SessionSize) -> str:
    """Only parts of at least a tenth of a second, rounded, so that the sentence stays short."""
    parts = {
        "start": time.start,
        "rounds and commits": time.rounds + time.commits,
        "rehash": time.rehash,
        "read": time.read,
        "hash": time.hash_bucket,
        "shuffle": time.shuffle,
        "dedupe": time.dedupe,
        "index": time.index,
        "materialize": time.materialize,
        "write": time.write,
    }
    shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items() if seconds >= SHOWN_SECONDS_MIN)
    store = "S3" if size.lake_is_remote else "a folder"
    own = "; corrected by the table's own rounds" if size.corrections else ""
    return f"seconds with the lake on {store}: {shown or 'less than 0.1 each'}{own}"


def work_of(size: SessionSize, rounds: int, hash_bucket_count: int | None = None) -> SessionWork:
    """The amounts of a session with this many rounds of equal size. Rows that lose are counted as written, since their
    number is not known before.

    Worked: 2 rounds of 500,000 rows over 4,000,000 rows of which the deltas touch all: each round rewrites 4,000,000
    rows, and the second one also the touched ones of the first one's 500,000.

    hash_bucket_count  to which the index is rehashed, if it has another; None: it keeps its own
    """
    rounds = max(rounds, 1)
    rows_a_round, files_a_round = size.delta_rows / rounds, size.delta_files / rounds
    touched = size.index_rows if size.touched_rows is None else size.touched_rows
    by_file = touched if size.touched_rows_per_file is None else size.touched_rows_per_file
    # A session without deltas cleans files of dead rows.
    rewritten = rounds * min(touched, by_file * files_a_round) if size.delta_files else touched
    grown = rows_a_round * rounds * (rounds - 1) / 2
    rewritten += size.overlap_share * grown
    rows_at_rest = max(size.index_rows, 1)
    compacted_row_bytes = size.compacted_bytes / rows_at_rest if size.index_rows else 0.0
    delta_row_bytes = size.delta_bytes / max(size.delta_rows, 1)
    row_bytes = max(compacted_row_bytes, delta_row_bytes)
    files_rewritten = size.compacted_files * min(rewritten / rows_at_rest, rounds) if size.index_rows else 0.0
    return SessionWork(
        rounds=rounds,
        delta_rows=size.delta_rows,
        files_read=int(2 * size.delta_files + files_rewritten),
        bytes_read=int(size.delta_bytes + rewritten * row_bytes),
        shuffled_bytes=size.delta_rows * (SHUFFLED_BYTES_PER_ROW + size.sort_values_bytes),
        index_rows=int(size.index_rows * rounds + grown),
        rows_written=int(size.delta_rows + rewritten),
        bytes_written=int((size.delta_rows + rewritten) * row_bytes),
        rehashed_rows=0 if hash_bucket_count in (None, size.inherited_hash_bucket_count) else size.index_rows,
    )


def predicted_time(
    size: SessionSize, resources: Resources, rounds: int, hash_bucket_count: int | None = None
) -> PredictedTime:
    """From the job's launch to its end, by part, without a buffer."""
    rates = rates_of(
        far=size.lake_is_remote,
        in_process=resources.in_process,
        network_byte=resources.network_byte,
        machines=resources.machines,
    ).corrected(dict(size.corrections))
    work = work_of(size, rounds, hash_bucket_count)
    return predict_time(work, rates, resources.tasks, resources.start_seconds)


def predict_seconds(
    size: SessionSize, resources: Resources, rounds: int, hash_bucket_count: int | None = None
) -> float:
    """From the job's launch to its end, without a buffer."""
    return predicted_time(size, resources, rounds, hash_bucket_count).seconds


def without_start(expected_sla: float) -> float:
    """The predicted seconds without the start of a Spark, from those with it."""
    return with_buffer(max(expected_sla / SLA_BUFFER - SESSION_SECONDS, 0.0))


def _choose_hash_bucket_count(size: SessionSize, resources: Resources, requested: int | None) -> tuple[int, str]:
    if requested is not None:
        return requested, "as asked for"
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
