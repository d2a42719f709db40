"""Sizes a session before it runs: hash buckets, rounds, expected SLA. Pure arithmetic that explains itself.

All rows of an index take the same memory and hash uniformly over the buckets (Flash Compactor paper, "Compaction
sessions"), so the memory of a dedupe task is known before any data is read. The launcher sizes clusters with the same
figures.

A round is bounded by four things, and the least of them decides how many rounds there are:

    memory    dedupe tasks hold the arriving rows of a bucket, and the rows of the index that they meet
    scratch   records between tasks are in Spark's scratch folders until the end of the round
    driver    it holds a count for every pair of a source file and a hash bucket
    the user  `max_rows_per_round`

Hash tasks and writers do not bound rounds: they are split by bytes (`rows_per_hash_task`, `rows_per_writer`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf

from compactor.model.errors import Invalid
from compactor.model.names import counted
from compactor.planning.own_errors import NONE_SEEN, OwnErrors, OwnPrediction, PlaceFactors
from compactor.planning.task_memory import (
    AHEAD,
    KEPT_INDEX,
    ROWS_PER_SMALL_FILE,
    SENT_INDEX,
    parts_of,
    rows_per_hash_task,
    rows_per_writer,
)
from compactor.planning.time_model import PredictedTime, SessionWork, TasksOfRound, predict_time, rates_of

DEDUPE_BYTES_PER_ROW = 49
"""Peak bytes of a task for each row of its hash bucket, remembered or arriving, without sort values: of the one that
sorts what arrives, 28 in digest order, and of the one that writes the index, of which a row is 32; and what both know
of a row beside. Worked: 10 million rows take 0.49 GB. `tests/integration/steps/test_bucket_memory.py` measures them."""

DEDUPE_COPIES_OF_SORT_VALUES = 2
"""Encoded sort values are held twice: as they are and as an index file has them."""

TARGET_MEMORY_SHARE = 0.5
"""A new hash bucket count is chosen so that dedupe takes this share of a task's memory (Flash Compactor paper,
"Compaction sessions")."""

ROWS_PER_HASH_BUCKET_MIN = 25_000
"""Cores get a hash bucket each only if it has so many rows: fewer take less time than a task and an index file cost."""

ROWS_OF_ONLY_HASH_BUCKET_MAX = 1_000_000
"""An index that began with one hash bucket is rehashed once it has more rows, so that tasks can share them."""

REHASH_MEMORY_SHARE = 0.75
"""An inherited hash bucket count is kept until dedupe would take more than this share (the same section has 0.9). The
rest is for pages of the index that are kept, files that are being sent, and what a worker did not release."""


SCRATCH_SHARE = 0.75
"""Share of the scratch folders for one round. The rest is for spare files of an earlier round, cached pages of a remote
index (`index.shared_pages`), and Spark's own files."""

SPARE_SCRATCH_SHARE = 0.125
"""Share of a round's scratch bytes that may be kept for the next round: half a gigabyte of 4 GB."""

SHUFFLED_BYTES_PER_ROW = 24
"""Bytes of an arriving row in the shuffle to dedupe, without sort values: a 20-byte digest, a 4-byte row index."""

KEPT_BYTES_PER_KEY = 40
"""Bytes of a key that a dedupe task leaves for the index, without sort values: 36, and framing."""

ROW_INDEX_BYTES = 4
"""Bytes of a row in the shuffle to materialize."""

INDEX_BYTES_PER_ROW = 32
"""Bytes of an index row, without sort values: at rest, and while a rehash moves it."""

ABSORBED_ROWS_PER_ROW = 2
"""Index rows that a round should be able to absorb, per arriving row (`rounds.ABSORBED_RUN_SHARE`)."""

DRIVER_MEMORY_SHARE = 0.5
TASK_PLAN_SHARE = 0.1
"""Shares of the driver's memory, and of a task's, for a round's files."""

BYTES_PER_SOURCE_FILE = 1_024
"""Bytes of a driver or a task per source file: its name, size and position."""

DRIVER_BYTES_PER_COUNT = 8
"""Bytes of the driver per pair of hash bucket and part of a source file: a count, and the place of rows that move
(`placement.NumbersByPart`). Worked: 90,000 files and 10,000 buckets are 7.2 GB."""

TASK_BYTES_PER_COUNT = 16
"""Bytes of a writer per pair of hash bucket and source file of its own."""

FILES_OF_A_WRITER = 2
"""A writer may have so many times its even share of a round's files."""

ROWS_PER_ROUND_WITHOUT_KEY = 1_000_000_000
"""Rows of a round of a table without a key, whose numbers are sent to its writers: 4 GB."""

FILES_PER_ROUND_MIN = 1_000
"""A round takes at least this many files for any driver memory: starting a round costs more than they do."""

SESSION_SECONDS = 5.0
"""Seconds from a Spark job's start to its first task, and from its last task to its end."""


@dataclass(frozen=True)
class SessionSize:
    """The amounts of a session's input, from which sizing and time are calculated.

    Attributes:
        index_rows: of the index, tombstones and dead rows included
        delta_files: delta files in all
        largest_delta_file_rows: of the one with most rows: a file is never split between rounds
        compacted_files: live ones
        compacted_bytes: of these files
        touched_rows: compacted rows in files that the deltas may touch, which are then rewritten; None: all
        touched_rows_per_file: of those, the average that one delta file touches; None: all
        overlap_share: share of the deltas' rows whose keys are in the key range of other delta files, so that a round
            may rewrite the output of an earlier round of the session
        lake_is_remote: the lake is on S3
        corrections: by step: seconds of the table's own rounds / those of the benchmark
        merged_files, merged_rows: small compacted files that the first round merges into fewer, and their rows
        undivided_rows: most rows of a delta file that one task has to read: a row group or an uncut file; 0: any
        uncut_files: large delta files that are read by one task each
        held_row_group_bytes: stored bytes of the largest row group that one task holds at once; 0: not known
        only_rehash: the index moves to another hash bucket count, and no round is run
        has_key: False: nothing is hashed and deduplicated, and there is no index
        own_factors: of the table's last sessions, the oldest first: the place, and seconds / predicted seconds
        rows_up_to_file: delta rows in each delta file and all before it, in the order in which rounds take them; empty:
            not known, so that files are taken to be as small as needed"""

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
    merged_files: int = 0
    merged_rows: int = 0
    undivided_rows: int = 0
    uncut_files: int = 0
    held_row_group_bytes: int = 0
    only_rehash: bool = False
    has_key: bool = True
    own_factors: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Resources:
    """What a session may use.

    Attributes:
        task_memory_bytes: what one Python task may hold, beside the libraries that all workers share
        tasks: tasks side by side (cores)
        scratch_bytes: in all of Spark's scratch folders together; None: not known, so it bounds nothing
        driver_memory_bytes: what the driver may hold; None: not known, so it bounds nothing
        hash_buckets_min: of a new hash bucket count, if later sessions will have more tasks than this one
        start_seconds: from the launch to the first task: of a Spark that has to be started, of a cluster; 0: it runs
        in_process: tasks run in the caller's process, one after the other
        start_late_seconds: beyond `start_seconds` and 10 %, that the start may be late
        start_note: on what the seconds of the start rest
        place_factors: of the last sessions of all tables there
        machines: that the tasks are spread over
        network_byte: seconds of one core for a byte over its share of its machine's network; 0: it bounds nothing"""

    task_memory_bytes: int
    tasks: int
    scratch_bytes: int | None = None
    driver_memory_bytes: int | None = None
    hash_buckets_min: int = 1
    start_seconds: float = SESSION_SECONDS
    in_process: bool = False
    start_late_seconds: float = 0.0
    start_note: str | None = None
    place_factors: PlaceFactors = NONE_SEEN
    machines: int = 1
    network_byte: float = 0.0

    @property
    def place(self) -> str:
        """Of sessions that predict each other: "process", "spark" on this machine, or "cluster"."""
        if self.in_process:
            return "process"
        return "cluster" if self.network_byte else "spark"

    def with_memory_share(self, share: float) -> Resources:
        """The same resources with less memory per task, for a session that ran out of memory."""
        return replace(self, task_memory_bytes=max(int(self.task_memory_bytes * share), 1))


def dedupe_bytes_per_row(sort_values_bytes: int) -> int:
    return DEDUPE_BYTES_PER_ROW + DEDUPE_COPIES_OF_SORT_VALUES * sort_values_bytes


def hash_buckets_for(rows: int, resources: Resources, sort_values_bytes: int) -> int:
    """The bucket count with which one bucket takes about half of a task's memory; at least one bucket per core, unless
    they would be too small for a task and a file each.

    Worked: 375 million rows at 49 bytes; half of 8 GiB holds 87.7 million of them: 5 buckets. 1,000 rows: 1 bucket.
    """
    per_bucket = int(resources.task_memory_bytes * TARGET_MEMORY_SHARE / dedupe_bytes_per_row(sort_values_bytes))
    side_by_side = min(max(resources.tasks, resources.hash_buckets_min), -(-rows // ROWS_PER_HASH_BUCKET_MIN))
    return max(recommended_hash_buckets(rows, per_bucket), side_by_side)


def recommended_hash_buckets(rows: int, rows_per_bucket: int) -> int:
    """The bucket count for these rows; Figure 3-1 of the Flash Compactor paper with 150,000,000 rows a bucket.

    Worked: 46.875 billion rows at 150 million a bucket: 313. Half of 8 GiB for those is 28.63 bytes a row.
    """
    return max(-(-rows // max(rows_per_bucket, 1)), 1)


def memory_share(rows: int, hash_bucket_count: int, resources: Resources, sort_values_bytes: int) -> float:
    """The share of a task's memory that one of `hash_bucket_count` buckets takes."""
    return rows * dedupe_bytes_per_row(sort_values_bytes) / hash_bucket_count / resources.task_memory_bytes


def rows_in_memory(task_memory_bytes: int, hash_bucket_count: int, sort_values_bytes: int) -> int:
    """Rows, arriving or remembered, that all buckets together may hold: three quarters of a task's memory each."""
    bytes_in_all = REHASH_MEMORY_SHARE * task_memory_bytes * hash_bucket_count
    return int(bytes_in_all / dedupe_bytes_per_row(sort_values_bytes))


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
    """`share_of_memory`: of a task's memory that the plan takes; less for a session that ran out of memory. Raises
    `Invalid`, with both figures, if the index does not fit the memory with the requested bucket count."""
    resources = resources.with_memory_share(share_of_memory)
    hash_bucket_count, why = _choose_hash_bucket_count(size, resources, requested_hash_bucket_count)
    rows_fit = rows_in_memory(resources.task_memory_bytes, hash_bucket_count, size.sort_values_bytes)
    if rows_fit <= size.index_rows:
        raise Invalid(_index_does_not_fit(size, resources, hash_bucket_count))
    bounds = _bounds(size, resources, rows_fit, requested_rows_per_round)
    max_rows = min(bounds.values())
    return Sizing(size, resources, share_of_memory, hash_bucket_count, why, rows_fit, bounds, max_rows)


@dataclass(frozen=True)
class Sizing:
    """The decision for a session, and the sentences that explain it. What is derived is calculated when it is asked
    for, since many clusters are compared."""

    size: SessionSize
    resources: Resources
    share_of_memory: float
    hash_bucket_count: int
    why_so_many: str
    rows_fit: int
    bounds: dict[str, int]
    """The most delta rows of a round, by limit."""
    max_rows_per_round: int
    """The least of these."""

    @cached_property
    def max_files_per_round(self) -> int:
        """Delta files of a round, at most, in addition to all compacted files."""
        driver_bytes = self.resources.driver_memory_bytes
        share_of_files = min(FILES_OF_A_WRITER / self.resources.tasks, 1.0)
        per_file = BYTES_PER_SOURCE_FILE + TASK_BYTES_PER_COUNT * self.hash_bucket_count * share_of_files
        limits = [TASK_PLAN_SHARE * self.resources.task_memory_bytes / per_file - self.size.compacted_files]
        if driver_bytes is not None:
            room = DRIVER_MEMORY_SHARE * driver_bytes - self.driver_bytes(0)
            limits.append(room / max(self.driver_bytes(1) - self.driver_bytes(0), 1))
        return max(int(min(limits)), FILES_PER_ROUND_MIN)

    def driver_bytes(self, delta_files: int, hash_buckets: int | None = None) -> int:
        """What the driver holds, at the most, in a round of all compacted files and this many delta files. None: of the
        planned hash buckets."""
        size, memory, buckets = self.size, self.resources.task_memory_bytes, hash_buckets or self.hash_bucket_count
        parts = parts_of(size.compacted_files, size.compacted_bytes, memory)
        parts += parts_of(delta_files, size.delta_bytes * delta_files // max(size.delta_files, 1), memory)
        files = size.compacted_files + delta_files
        return BYTES_PER_SOURCE_FILE * files + DRIVER_BYTES_PER_COUNT * parts * buckets

    @property
    def driver_memory_needed(self) -> int:
        return ceil(self.driver_bytes(min(self.size.delta_files, FILES_PER_ROUND_MIN)) / DRIVER_MEMORY_SHARE)

    @property
    def rehash_scratch_bytes(self) -> int:
        """Scratch bytes of the rehash before the first round; 0 if there is none.

        Worked: 1 billion index rows without sort values: 32 GB.
        """
        if self.size.inherited_hash_bucket_count in (None, self.hash_bucket_count):
            return 0
        return self.size.index_rows * (INDEX_BYTES_PER_ROW + self.size.sort_values_bytes)

    @cached_property
    def rounds(self) -> int:
        return count_rounds(self.size, self.max_rows_per_round, self.max_files_per_round)

    @cached_property
    def work(self) -> SessionWork:
        """Its predicted amounts."""
        return work_of(self.size, self.rounds, self.hash_bucket_count)

    @cached_property
    def prediction(self) -> OwnPrediction:
        model = predicted_time(self.size, self.resources, self.rounds, self.hash_bucket_count)
        factors = [factor for where, factor in self.size.own_factors if where == self.resources.place]
        of_place = self.resources.place_factors
        own = OwnErrors.of(factors, of_place.corrected if self.size.corrections else of_place.plain)
        return OwnPrediction(model, own, self.resources.start_late_seconds)

    @property
    def time(self) -> PredictedTime:
        """Its predicted seconds."""
        return self.prediction.time

    @property
    def expected_sla(self) -> float:
        return self.prediction.expected_sla

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """Sentences with the figures."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        size, memory_bytes, width = self.size, self.resources.task_memory_bytes, self.size.sort_values_bytes
        if self.share_of_memory < 1:
            yield f"planned with {self.share_of_memory:.0%} of a task's memory: {memory_bytes:,} bytes"
        rows, buckets = size.index_rows + size.delta_rows, counted(self.hash_bucket_count, "hash bucket")
        of_rows = f"{counted(size.index_rows, 'index row')} + {counted(size.delta_rows, 'delta row')}"
        yield f"{of_rows}: {dedupe_bytes_per_row(width)} bytes each"
        share = memory_share(min(rows, self.rows_fit), self.hash_bucket_count, self.resources, width)
        yield f"{buckets}: {self.why_so_many}; a bucket takes {share:.1%} of a task's memory"
        if size.only_rehash:
            yield f"its rows take {self.rehash_scratch_bytes / 1e9:.1f} GB of scratch folders; no data file is read"
        else:
            yield from self._round_sentences(buckets)
        if size.lake_is_remote:
            ahead, kept, sent = (each.of(memory_bytes) / 2**20 for each in (AHEAD, KEPT_INDEX, SENT_INDEX))
            reads = f"a task prefetches at most {ahead:,.0f} MiB from the store, keeps {kept:,.0f} MiB of the index"
            yield f"{reads}, and uploads {sent:,.0f} MiB of new index files at a time"
        store = "S3" if size.lake_is_remote else "a folder"
        own = "; corrected by the table's own rounds" if size.corrections else ""
        yield f"seconds with the lake on {store}: {self.time.parts()}{own}"
        buffered = f"{self.expected_sla:.1f} s with the {self.prediction.buffer}"
        yield f"{self.time.seconds:.1f} s predicted on {counted(self.resources.tasks, 'core')}; {buffered}"
        yield self.prediction.sentence
        if self.resources.start_note is not None:
            yield self.resources.start_note

    def _round_sentences(self, buckets: str) -> Iterator[str]:
        size, memory_bytes = self.size, self.resources.task_memory_bytes
        most = f"at most {self.max_rows_per_round:,} delta rows"
        yield f"{counted(self.rounds, 'round')} of {most}: {self._bound_phrase()}"
        yield self._scratch_sentence()
        yield self._files_sentence(buckets)
        if size.uncut_files:
            files = counted(size.uncut_files, "large delta file")
            piece = f"one task reads up to {size.undivided_rows:,} rows"
            cuts = "cuts fall between row groups of Parquet, stripes of ORC, and lines of text without quotes"
            yield f"not cut between tasks: {files}; {cuts}; {piece}"
        yield f"a hash task holds at most {rows_per_hash_task(memory_bytes, size.sort_values_bytes):,} rows at a time"
        yield f"a writer holds the indices of at most {rows_per_writer(memory_bytes):,} rows"

    def _bound_phrase(self) -> str:
        decides = min(self.bounds, key=lambda name: self.bounds[name])
        largest = self.size.largest_delta_file_rows
        if decides == "asked for":
            return decides
        if largest > self.bounds[decides]:
            return (
                f"what {decides} holds; but the largest delta file has {largest:,} rows, and files are not cut between "
                "rounds: give it more, or write smaller files"
            )
        return f"what {decides} holds"

    def _scratch_sentence(self) -> str:
        size, width = self.size, self.size.sort_values_bytes
        in_all = size.index_rows + size.delta_rows
        rows = min(self.max_rows_per_round, size.delta_rows)
        absorbed = min(ABSORBED_ROWS_PER_ROW * rows, in_all - rows)
        needed = scratch_bytes(rows, absorbed, width) + ROW_INDEX_BYTES * in_all
        takes = f"a round takes {needed / 1e9:.1f} GB of scratch folders at most"
        each = f"{SHUFFLED_BYTES_PER_ROW + width} bytes a row shuffled, {KEPT_BYTES_PER_KEY + width} kept"
        if self.resources.scratch_bytes is None:
            return f"{takes}: {each}; how much there is, is not known"
        return f"{takes}, of {self.resources.scratch_bytes / 1e9:,.1f} GB: {each}"

    def _files_sentence(self, buckets: str) -> str:
        driver_bytes = self.resources.driver_memory_bytes
        deltas = min(self.size.delta_files, self.max_files_per_round)
        files, needed = counted(self.size.compacted_files + deltas, "source file"), self.driver_bytes(deltas)
        driver_use = f"{files} a round x {buckets}: {needed / 1e6:,.0f} MB in the driver"
        if driver_bytes is None:
            return driver_use
        share = f"{DRIVER_MEMORY_SHARE:.0%} of its {driver_bytes / 1e6:,.0f} MB"
        short = needed > DRIVER_MEMORY_SHARE * driver_bytes
        return f"{driver_use}, more than {share}: give it more" if short else f"{driver_use}, at most {share}"


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
    """The rounds that `split_into_rounds` will make of the delta files, at least one.

    Worked: 3 files of 500 rows, and at most 800 rows a round: 3, since files are not cut."""
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


def scratch_of_a_round(size: SessionSize, resources: Resources) -> int | None:
    """Scratch bytes for the rows of one round; None: not known.

    A round may rewrite every compacted file, so that the index of each of their rows is shuffled: space for that is
    reserved, at most half of all. Worked: of 2 GiB 1.61 GB; with 64 million rows in the end, 1.35 GB."""
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
    if size.has_key:
        # If not all rows fit, a round does not absorb the index, and reads at most as many of its rows as arrive.
        all_fit = size.index_rows + size.delta_rows <= rows_fit
        room = rows_fit - size.index_rows
        bounds = {"memory": room if all_fit else min(room, rows_fit // 2)}
    else:
        bounds = {"row numbers": ROWS_PER_ROUND_WITHOUT_KEY}
    scratch = scratch_of_a_round(size, resources)
    if scratch is not None:
        bounds["scratch"] = _rows_that_scratch_holds(size, scratch)
    if requested_rows_per_round is not None:
        bounds["asked for"] = requested_rows_per_round
    return {name: max(rows, 1) for name, rows in bounds.items()}


def _rows_that_scratch_holds(size: SessionSize, budget: int) -> int:
    """All, if they fit with the index rows that they may absorb; else later rounds absorb an index."""
    if not size.has_key:
        return budget // ROW_INDEX_BYTES
    width = size.sort_values_bytes
    absorbed = min(ABSORBED_ROWS_PER_ROW * size.delta_rows, size.index_rows)
    if scratch_bytes(size.delta_rows, absorbed, width) <= budget:
        return budget // scratch_bytes(1, 0, width)
    return budget // scratch_bytes(1, ABSORBED_ROWS_PER_ROW, width)


def work_of(size: SessionSize, rounds: int, hash_bucket_count: int | None = None) -> SessionWork:
    """The amounts of a session with this many rounds of equal size. Rows that lose are counted as written, since their
    number is not known before.

    Worked: 2 rounds of 500,000 rows over 4,000,000 rows of which the deltas touch all: each round rewrites 4,000,000
    rows, and the second one also the touched ones of the first one's 500,000.

    `hash_bucket_count`: to which the index is rehashed, if it has another; None: it keeps its own, or if nothing but a
    rehash is asked for, to any other."""
    is_rehashed = hash_bucket_count not in (None, size.inherited_hash_bucket_count)
    if size.only_rehash:
        moved = size.index_rows if is_rehashed or hash_bucket_count is None else 0
        return SessionWork(0, 0, 0, 0, 0, 0, 0, 0, rehashed_rows=moved)
    rounds = max(rounds, 1)
    rows_a_round, files_a_round = size.delta_rows / rounds, size.delta_files / rounds
    touched = size.index_rows if size.touched_rows is None else size.touched_rows
    by_file = touched if size.touched_rows_per_file is None else size.touched_rows_per_file
    # A session without deltas cleans files of dead rows.
    rewritten = rounds * min(touched, by_file * files_a_round) if size.delta_files else touched
    grown = rows_a_round * rounds * (rounds - 1) / 2
    rewritten += size.overlap_share * grown
    rows_at_rest = max(size.index_rows, 1)
    files_rewritten = size.compacted_files * min(rewritten / rows_at_rest, rounds) if size.index_rows else 0.0
    # Of small files those that deltas touch are rewritten anyway.
    untouched = max(1 - rewritten / rows_at_rest, 0.0)
    rewritten += size.merged_rows * untouched
    files_rewritten += size.merged_files * untouched
    compacted_row_bytes = size.compacted_bytes / rows_at_rest if size.index_rows else 0.0
    delta_row_bytes = size.delta_bytes / max(size.delta_rows, 1)
    row_bytes = max(compacted_row_bytes, delta_row_bytes)
    return SessionWork(
        rounds=rounds,
        delta_rows=size.delta_rows if size.has_key else 0,
        files_read=int(2 * size.delta_files + files_rewritten),
        bytes_read=int(size.delta_bytes + rewritten * row_bytes),
        shuffled_bytes=size.delta_rows * (SHUFFLED_BYTES_PER_ROW + size.sort_values_bytes) if size.has_key else 0,
        index_rows=int(size.index_rows * rounds + grown) if size.has_key else 0,
        rows_written=int(size.delta_rows + rewritten),
        bytes_written=int((size.delta_rows + rewritten) * row_bytes),
        rehashed_rows=size.index_rows if is_rehashed else 0,
        rows_fetched=size.index_rows if size.has_key else 0,
    )


def tasks_of_round(size: SessionSize, work: SessionWork) -> TasksOfRound:
    """How many tasks the steps of a round can have.

    Worked: one file of CSV with 8 million rows: one of hash bucket, one of materialize. In Parquet, of row groups of a
    million rows: 8 each.
    """
    rounds = max(work.rounds, 1)
    return TasksOfRound(
        hash_bucket=max(size.delta_rows / rounds / size.undivided_rows, 1.0) if size.undivided_rows else inf,
        materialize=max(work.rows_written / rounds / max(size.undivided_rows, ROWS_PER_SMALL_FILE), 1.0),
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
    tasks = replace(tasks_of_round(size, work), dedupe=hash_bucket_count or inf)
    return predict_time(work, rates, resources.tasks, resources.start_seconds, tasks)


def _choose_hash_bucket_count(size: SessionSize, resources: Resources, requested: int | None) -> tuple[int, str]:
    if not size.has_key:
        return 1, "the table has no key, and no index"
    if requested is not None:
        return requested, "as asked for"
    rows, inherited = size.index_rows + size.delta_rows, size.inherited_hash_bucket_count
    wanted = hash_buckets_for(rows, resources, size.sort_values_bytes)
    if inherited is None or size.only_rehash:
        return wanted, f"one takes at most {TARGET_MEMORY_SHARE:.0%} of a task's memory"
    share = memory_share(rows, inherited, resources, size.sort_values_bytes)
    if inherited == 1 < wanted and rows > ROWS_OF_ONLY_HASH_BUCKET_MAX:
        return wanted, f"the inherited one has {rows:,} rows, which several tasks share after a rehash"
    if share <= REHASH_MEMORY_SHARE:
        return inherited, "inherited from the index"
    return (
        wanted,
        f"the inherited {inherited} would take {share:.0%} of a task's memory, so the index is rehashed first",
    )
