"""Statistics of a session's input before any row is read: one frozen value, from the log if possible, else from
a sample of the files. `SessionSize` are its amounts, from which sizing and time are calculated.

    from the log       rows, bytes at rest, files, content types, the index, which keys lie in which file
    from a sample      the types of text, if none are declared: its first block
    from the table's   the seconds of its steps, and the share of its rows that was rewritten
    own rounds
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import exp, inf
from typing import Self

import pyarrow as pa

from compactor.catalog.actions import RoundCommitted
from compactor.catalog.snapshot import CompactedStream
from compactor.model.files import DataFile, Scalar
from compactor.model.names import ContentType, counted
from compactor.planning.round_plan import DeltaFileRef
from compactor.planning.sizing import SessionSize
from compactor.planning.task_memory import ROWS_PER_CUT, ends_of_pieces
from compactor.planning.time_model import MeasuredRound, SessionWork, TasksOfRound, correction_of, rates_of

COMPARED_FILES_MAX = 64
COMPARISONS_MAX = 200_000
"""At most this many delta files, spread over all, are compared by their keys with the others: fewer of many."""


@dataclass(frozen=True)
class SchemaStatistics:
    """Statistics of all files with one schema. `size_bytes`: at rest."""

    schema: pa.Schema
    files: int
    rows: int
    size_bytes: int
    content_types: frozenset[ContentType]

    @classmethod
    def of(cls, schema: pa.Schema, files: Sequence[DataFile]) -> Self:
        rows, size_bytes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
        return cls(schema, len(files), rows, size_bytes, frozenset(file.content_type for file in files))


@dataclass(frozen=True)
class InputStatistics:
    """
    Attributes:
        deltas: pending delta files, by schema
        compacted_rows: in compacted files, dead ones included
        sampled_files: text files whose types are those of their first block
        size: the amounts from which sizing and time are calculated"""

    deltas: tuple[SchemaStatistics, ...]
    compacted_rows: int
    sampled_files: int
    size: SessionSize

    def arithmetic(self) -> tuple[str, ...]:
        """Sentences that describe the input."""
        sentences = []
        rows = sum(each.rows for each in self.deltas)
        if rows:
            at_rest = sum(each.size_bytes for each in self.deltas)
            kinds = ", ".join(sorted({kind.value for each in self.deltas for kind in each.content_types}))
            files = counted(sum(each.files for each in self.deltas), f"{kinds} file")
            sentences.append(
                f"{counted(rows, 'delta row')} in {files} of {counted(len(self.deltas), 'schema')}: {at_rest:,} bytes "
                "at rest"
            )
        if rows and self.size.merged_files:
            files = counted(self.size.merged_files, "small compacted file")
            sentences.append(f"{files} with {counted(self.size.merged_rows, 'row')} are merged into fewer")
        if self.sampled_files:
            sentences.append(
                f"the types of {counted(self.sampled_files, 'text file')} are those of the first 8 MiB: no schema is "
                "declared, and a session that finds others says so"
            )
        if self.size.has_key and self.compacted_rows and rows and self.size.touched_rows is not None:
            share = f"{self.size.touched_rows / self.compacted_rows:.0%}"
            sentences.append(f"deltas may touch {share} of {counted(self.compacted_rows, 'compacted row')}")
        return tuple(sentences)


def statistics_of(
    deltas: Sequence[tuple[DeltaFileRef, pa.Schema]],
    compacted: CompactedStream | None,
    key_columns: Sequence[str],
    sort_values_bytes: int,
    *,
    max_dead_row_share: float,
    lake_is_remote: bool,
    sampled_files: int,
) -> InputStatistics:
    """`deltas`: the pending files, each with its schema."""
    by_schema: dict[pa.Schema, list[DataFile]] = {}
    for ref, schema in deltas:
        by_schema.setdefault(schema.remove_metadata(), []).append(ref.file)
    files = [ref.file for ref, _ in deltas]
    delta_rows = sum(file.rows for file in files)
    ordered = _ordered_columns(deltas, key_columns)
    touched = _touched(files, compacted, ordered, delta_rows, max_dead_row_share)
    corrections = _corrections(compacted, lake_is_remote)
    compacted_files = [] if compacted is None else list(compacted.files.values())
    size = SessionSize(
        index_rows=0 if compacted is None else sum(file.rows for file in compacted.index_files),
        delta_rows=delta_rows,
        delta_bytes=sum(file.size_bytes for file in files),
        sort_values_bytes=sort_values_bytes,
        inherited_hash_bucket_count=None if compacted is None else compacted.hash_bucket_count,
        delta_files=len(files),
        largest_delta_file_rows=max((file.rows for file in files), default=0),
        rows_up_to_file=tuple(accumulate(file.rows for file in files)),
        compacted_files=len(compacted_files),
        compacted_bytes=sum(file.size_bytes for file in compacted_files),
        touched_rows=touched.rows,
        touched_rows_per_file=touched.rows_per_file,
        overlap_share=_overlap_share(files, ordered),
        corrections=corrections,
        own_factors=_own_factors(compacted, is_corrected=bool(corrections)),
        lake_is_remote=lake_is_remote,
        undivided_rows=max(map(_undivided_rows, files), default=0),
        uncut_files=sum(file.rows >= 2 * ROWS_PER_CUT and _undivided_rows(file) == file.rows for file in files),
    )
    return InputStatistics(
        deltas=tuple(SchemaStatistics.of(schema, of_schema) for schema, of_schema in by_schema.items()),
        compacted_rows=sum(file.rows for file in compacted_files),
        sampled_files=sampled_files,
        size=size,
    )


def _undivided_rows(file: DataFile) -> int:
    ends = ends_of_pieces(file.rows, [group.rows for group in file.row_groups])
    return max(end - begin for begin, end in pairwise((0, *ends)))


def _ordered_columns(deltas: Sequence[tuple[DeltaFileRef, pa.Schema]], key_columns: Sequence[str]) -> tuple[str, ...]:
    """Columns whose bounds in the log have the order of their values: decimals are stored there as digits."""
    decimals = {field.name for _, schema in deltas for field in schema if pa.types.is_decimal(field.type)}
    return tuple(name for name in key_columns if name not in decimals)


def spread(count: int, most: int) -> frozenset[int]:
    """At most `most` positions of a sequence of `count`, spread over all of it."""
    return frozenset(number * count // min(count, most) for number in range(min(count, most)))


# ------------------------------------------------------------------------------------- which files deltas may touch


@dataclass(frozen=True)
class _Touched:
    """See `SessionSize.touched_rows`."""

    rows: int
    rows_per_file: float


def _touched(
    deltas: Sequence[DataFile],
    compacted: CompactedStream | None,
    key_columns: Sequence[str],
    delta_rows: int,
    max_dead_row_share: float,
) -> _Touched:
    """Compacted rows in files whose keys overlap those of the deltas, by the log's bounds.

    A file is touched as by random keys; below its permitted share of dead rows it is not rewritten.
    """
    if compacted is None or not compacted.files:
        return _Touched(0, 0.0)
    if not deltas:
        dirty = compacted.files_with_more_dead_rows_than(max_dead_row_share)
        return _Touched(sum(compacted.files[vector.file_number].rows for vector in dirty), 0.0)
    files = list(compacted.files.values())
    dead = {vector.file_number: vector.rows for vector in compacted.deletion_vectors}
    rows = sum(file.rows for file in files)
    if max_dead_row_share and (delta_rows + sum(dead.values())) / max(rows, 1) <= max_dead_row_share:
        return _Touched(0, 0.0)
    bounds = [_interval_of(deltas, files, name) for name in key_columns]
    hit = [file for file in files if all(interval is None or interval.meets(file) for interval in bounds)]
    within = sum(file.rows for file in hit)
    expected = sum(file.rows * (1 - exp(-delta_rows * file.rows / max(within, 1))) for file in hit)
    expected = min(expected, _observed_share(compacted, delta_rows) * rows)
    by_file = _mean_touched_rows(deltas, hit, key_columns)
    return _Touched(int(expected), min(by_file, expected))


def _observed_share(compacted: CompactedStream, delta_rows: int) -> float:
    """The share of compacted rows that the last round rewrote; 1 if it was much smaller than this session."""
    counts = compacted.last_round.counts
    arrived = counts.rows_in - counts.rows_before
    if not counts.rows_before or 2 * arrived < delta_rows:
        return 1.0
    return 1 - counts.rows_carried / counts.rows_before


@dataclass(frozen=True)
class _Intervals:
    """The merged ranges of the deltas' values of one column, in order."""

    column: str
    lows: list[Scalar]
    highs: list[Scalar]

    def meets(self, file: DataFile) -> bool:
        low, high = _bounds_of(file, self.column)
        if low is None or high is None:
            return True
        return bisect_right(self.lows, high) > bisect_left(self.highs, low)


def _interval_of(deltas: Sequence[DataFile], files: Sequence[DataFile], column: str) -> _Intervals | None:
    """None: the bounds of one of the files are unknown, or its values are not comparable."""
    ranges = [_bounds_of(file, column) for file in deltas if file.rows]
    kinds = {_kind_of(bound) for each in (*ranges, *(_bounds_of(file, column) for file in files)) for bound in each}
    if len(kinds) != 1 or None in kinds:
        return None
    lows: list[Scalar] = []
    highs: list[Scalar] = []
    for low, high in sorted((low, high) for low, high in ranges if low is not None and high is not None):
        if highs and low <= highs[-1]:  # type: ignore[operator]
            highs[-1] = max(highs[-1], high)
        else:
            lows.append(low)
            highs.append(high)
    return _Intervals(column, lows, highs)


def _bounds_of(file: DataFile, column: str) -> tuple[Scalar | None, Scalar | None]:
    """Bounds do not cover nulls, so a column that may have nulls has no bounds."""
    stats = file.columns.get(column)
    if stats is None or stats.null_count != 0:
        return None, None
    return stats.min_value, stats.max_value


def _kind_of(bound: Scalar | None) -> type | None:
    """Numbers are comparable with numbers, texts with texts."""
    if bound is None:
        return None
    return str if isinstance(bound, str) else float


def _mean_touched_rows(deltas: Sequence[DataFile], files: Sequence[DataFile], key_columns: Sequence[str]) -> float:
    """The average number of compacted rows that one delta file may touch."""
    some = [deltas[number] for number in sorted(_compared(len(deltas), len(files)))]
    met = 0
    for delta in some:
        intervals = [_interval_of([delta], files, name) for name in key_columns]
        met += sum(file.rows for file in files if all(each is None or each.meets(file) for each in intervals))
    return met / max(len(some), 1)


def _compared(deltas: int, files: int) -> frozenset[int]:
    return spread(deltas, min(COMPARED_FILES_MAX, max(COMPARISONS_MAX // max(files, 1), 1)))


def _overlap_share(deltas: Sequence[DataFile], key_columns: Sequence[str]) -> float:
    """The share of the deltas' rows whose delta file overlaps another delta file by keys, on average."""
    if len(deltas) < 2:
        return 0.0
    some = sorted(_compared(len(deltas), len(deltas)))
    shares = []
    for number in some:
        others = [file for other, file in enumerate(deltas) if other != number]
        intervals = [_interval_of([deltas[number]], others, name) for name in key_columns]
        rows = sum(file.rows for file in others)
        met = sum(file.rows for file in others if all(each is None or each.meets(file) for each in intervals))
        shares.append(met / max(rows, 1))
    return sum(shares) / len(shares)


# ------------------------------------------------------------------------------------------ the table's own rounds


def _corrections(compacted: CompactedStream | None, lake_is_remote: bool) -> tuple[tuple[str, float], ...]:
    """From the last round, if it says how many cores it had."""
    if compacted is None:
        return ()
    measured = _measured(compacted.last_round)
    if measured is None:
        return ()
    factors = correction_of([measured], rates_of(far=lake_is_remote, in_process=measured.cores == 1))
    return tuple(sorted(factors.items()))


def _own_factors(compacted: CompactedStream | None, *, is_corrected: bool) -> tuple[tuple[str, float], ...]:
    """`is_corrected`: the prediction is, step by step, by the table's rounds. What that leaves, a session whose
    prediction was not cannot say."""
    timings = () if compacted is None else compacted.last_round.timings
    alike = [each for each in timings if not is_corrected or each.is_corrected is not False]
    return tuple((each.place, each.seconds / each.predicted_seconds) for each in alike)


def _measured(done: RoundCommitted) -> MeasuredRound | None:
    cores = {step.cores for step in done.steps.values()}
    if len(cores) != 1 or (of := next(iter(cores))) is None:
        return None
    counts = done.counts
    written = sum(file.rows for file in done.files_added)
    bytes_written = sum(file.size_bytes for file in done.files_added)
    arrived = counts.rows_in - counts.rows_before
    work = SessionWork(
        rounds=1,
        delta_rows=arrived,
        files_read=len(done.files_added) + len(done.files_removed),
        bytes_read=bytes_written,
        shuffled_bytes=0,
        index_rows=counts.rows_before,
        rows_written=written,
        bytes_written=bytes_written,
        rows_fetched=counts.rows_before if done.round_number == 1 else 0,
    )
    tasks = TasksOfRound(*(_tasks_of(done, step) for step in ("hash_bucket", "dedupe", "materialize")))
    return MeasuredRound(work, of, {name: step.seconds for name, step in done.steps.items()}, tasks)


def _tasks_of(done: RoundCommitted, step: str) -> float:
    return max(done.steps[step].tasks, 1) if step in done.steps else inf
