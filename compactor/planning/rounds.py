"""Splits a session into rounds. Pure.

A plan decides everything but the data; the round runner decides nothing. It carries the entry of the compacted stream's
log from which it was made (`ReadPoint`): if the stream has changed at the commit, the commit fails.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from compactor.catalog.snapshot import CompactedStream
from compactor.model.counts import Watermark
from compactor.model.files import IndexFile
from compactor.model.names import Operation
from compactor.planning.round_plan import DeltaFileRef, DeltaSource, RowsToHash
from compactor.planning.sizing import rows_in_memory, scratch_bytes
from compactor.planning.small_files import rows_that_fit
from compactor.planning.spec import JobRunSpec
from compactor.planning.task_memory import ends_of_pieces

ABSORBED_RUN_SHARE = 2
"""A run of the index is absorbed if it has at most this many times the rows gathered so far."""

INDEX_RUNS_MAX = 8
"""The most runs after a round, which a lookup has to search."""


@dataclass(frozen=True)
class RoundLimits:
    """The limits of one round, from which the absorbed part of the index is chosen.

    Attributes:
        scratch_bytes: None: not known"""

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


def split_into_rounds(
    files: Sequence[DeltaFileRef], rows_per_round_max: int, files_per_round_max: int | None = None
) -> Iterator[tuple[DeltaFileRef, ...]]:
    """Splits delta files, in (position, file number) order, into rounds of a bounded number of rows and files.

    A round takes at least one file, so a file above the bound is a round of its own. A position may be split between
    files: the watermark then names its last compacted file.
    """
    taken: list[DeltaFileRef] = []
    rows = 0
    for file in files:
        if taken and (rows + file.file.rows > rows_per_round_max or len(taken) == files_per_round_max):
            yield tuple(taken)
            taken, rows = [], 0
        taken.append(file)
        rows += file.file.rows
    if taken:
        yield tuple(taken)


def watermark_after(taken: Sequence[DeltaFileRef], following: DeltaFileRef | None) -> Watermark:
    """The watermark after `taken` is compacted; `following` is the next file of the stream, if any."""
    last = taken[-1]
    cuts_position = following is not None and following.position == last.position
    return Watermark(position=last.position, file_number=last.file.file_number if cuts_position else None)


def group_for_tasks(files: Sequence[DeltaSource], groups: int) -> tuple[tuple[RowsToHash, ...], ...]:
    """Consecutive rows in at most `groups` non-empty groups of about equal bytes. Large files are cut."""
    pieces = [piece for file in files for piece in cut_at_row_groups(file)]
    total = sum(piece.size_bytes for piece in pieces)
    cut: list[tuple[RowsToHash, ...]] = []
    group: list[RowsToHash] = []
    before = 0
    for piece in pieces:
        group.append(piece)
        before += piece.size_bytes
        if len(cut) < groups - 1 and before * groups >= total * (len(cut) + 1):
            cut.append(_joined(group))
            group = []
    if group:
        cut.append(_joined(group))
    return tuple(cut)


def cut_at_row_groups(file: DeltaSource) -> tuple[RowsToHash, ...]:
    """The smallest pieces of a file that may be read by different tasks."""
    ends = ends_of_pieces(file.rows, file.row_groups)
    return tuple(RowsToHash(file, start, end - start) for start, end in pairwise((0, *ends)))


def _joined(pieces: Sequence[RowsToHash]) -> tuple[RowsToHash, ...]:
    """The same rows, in one piece for each file."""
    by_file = groupby(pieces, key=lambda piece: piece.source.ordinal)
    return tuple(
        replace(first, rows=first.rows + sum(piece.rows for piece in others))
        for first, *others in (list(of_file) for _, of_file in by_file)
    )


def runs_to_absorb(
    index_files: Sequence[IndexFile], arriving_rows: int, absorbed_rows_max: int | None = None
) -> frozenset[int]:
    """The newest index runs that a round merges into its new run.

    A run is absorbed if it is not much larger than the rows gathered so far; so an index of n rows has about log n
    runs, and each row is written about log n times in all, for rounds of any size. Worked: over a base of 4,000,000
    rows, rounds of 200,000 rows leave runs of 0.2, 0.4, 0.2 + 0.6, ... million rows; the base is absorbed when 2
    million rows lie above it.

    Args:
        absorbed_rows_max: rows that fit memory and scratch folders; takes precedence over `INDEX_RUNS_MAX`"""
    rows_of_runs: dict[int, int] = {}
    for file in index_files:
        rows_of_runs[file.run] = rows_of_runs.get(file.run, 0) + file.rows
    absorbed: set[int] = set()
    gathered = max(arriving_rows, 1)
    for run in sorted(rows_of_runs, reverse=True):
        too_many = len(rows_of_runs) - len(absorbed) >= INDEX_RUNS_MAX
        if rows_of_runs[run] > ABSORBED_RUN_SHARE * gathered and not too_many:
            break
        if absorbed_rows_max is not None and gathered + rows_of_runs[run] > max(arriving_rows, 1) + absorbed_rows_max:
            break
        absorbed.add(run)
        gathered += rows_of_runs[run]
    return frozenset(absorbed)


def rows_per_file(run: JobRunSpec, compacted: CompactedStream | None, deltas: Sequence[DeltaFileRef]) -> int:
    """How many rows a new compacted file takes at most: as many as it may have, or as fill its bytes, whichever is
    less. Its rows are taken to be as large as those that the round reads, in their files."""
    files = [] if compacted is None else list(compacted.files.values())
    files += [ref.file for ref in deltas if ref.operation is Operation.UPSERT]
    return rows_that_fit(files, run.rows_per_compacted_file, run.bytes_per_compacted_file)
