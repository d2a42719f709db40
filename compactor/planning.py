"""Splits a session into rounds and says, for each, exactly what it reads and where it writes. Pure.

A plan decides everything that is not data; the round runner decides nothing. It carries the point of the compacted
stream's log that it was made from (`ReadPoint`): if the stream has moved on by the time of the commit, there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from compactor.catalog.actions import DataFile, DeletionVector, IndexFile, SortKey, Watermark
from compactor.index.files import IndexTarget
from compactor.kernels.sort_values import SortColumn
from compactor.names import ContentType, Operation
from compactor.object_store import StoreLocation
from compactor.tabular import TabularFile

ABSORBED_RUN_SHARE = 2
"""A run of the index is absorbed while it has at most so many times the rows gathered before it."""

INDEX_RUNS_MAX = 8
"""Runs that a round leaves at most: what a lookup has to search."""


@dataclass(frozen=True)
class SourceFile:
    """A file that a round reads.

    ordinal  its place in the round's order: compacted files by file number, then delta files by (position, file number)
    """

    ordinal: int
    file: TabularFile
    rows: int
    size_bytes: int

    @property
    def live_rows(self) -> int:
        return self.rows


@dataclass(frozen=True)
class CompactedSource(SourceFile):
    """A live compacted file of the rounds before. `vector`: its dead rows, if it has any."""

    file_number: int
    vector: DeletionVector | None

    @property
    def live_rows(self) -> int:
        return self.rows - (self.vector.rows if self.vector else 0)


@dataclass(frozen=True)
class DeltaSource(SourceFile):
    """A delta file. `sorts` is False where a delete's file lacks custom sort key columns (contract 2.3)."""

    position: int
    operation: Operation
    sorts: bool


@dataclass(frozen=True)
class DeltaFileRef:
    """A delta file in its stream: what planning knows of it before any schema has been read."""

    position: int
    operation: Operation
    file: DataFile
    uri: str


@dataclass(frozen=True)
class ReadPoint:
    """Where the compacted stream's log stood when the plan was made. None: nothing had been compacted."""

    round_commit_id: str | None
    index_version: int | None


@dataclass(frozen=True)
class Output:
    """What a round writes, and how."""

    content_type: ContentType
    schema: pa.Schema
    rows_per_compacted_file: int
    max_dead_row_share: float
    compacted_stream_version: int
    next_file_number: int
    index: IndexTarget


@dataclass(frozen=True)
class RoundPlan:
    """One round. Travels to every task.

    key_columns     primary key columns in sorted name order
    sort_columns    custom sort key columns in the order given; none: the stream position alone decides
    horizon         last stream position of the round
    absorbed_runs   runs of the index that are merged into the run which this round writes
    tombstones      keys that the index remembers as deleted before the round
    tasks           tasks that run side by side
    """

    commit_id: str
    round_number: int
    rounds: int
    location: StoreLocation
    read_point: ReadPoint
    compacted: tuple[CompactedSource, ...]
    deltas: tuple[DeltaSource, ...]
    index_files: tuple[IndexFile, ...]
    absorbed_runs: frozenset[int]
    tombstones: int
    hash_bucket_count: int
    key_columns: tuple[str, ...]
    sort_columns: tuple[SortColumn, ...]
    sort_keys: tuple[SortKey, ...]
    processed: Watermark
    horizon: int
    tombstone_retention: int
    output: Output
    tasks: int

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Every file that the round may read, by ordinal."""
        return (*self.compacted, *self.deltas)


def split_into_rounds(files: Sequence[DeltaFileRef], rows_per_round_max: int) -> Iterator[tuple[DeltaFileRef, ...]]:
    """Cuts delta files, in (position, file number) order, into rounds of at most that many rows.

    A round takes at least one file, so a file above the bound is a round of its own. A position may be cut between
    files: the watermark of contract 3 then names the last file taken.
    """
    taken: list[DeltaFileRef] = []
    rows = 0
    for file in files:
        if taken and rows + file.file.rows > rows_per_round_max:
            yield tuple(taken)
            taken, rows = [], 0
        taken.append(file)
        rows += file.file.rows
    if taken:
        yield tuple(taken)


def watermark_after(taken: Sequence[DeltaFileRef], following: DeltaFileRef | None) -> Watermark:
    """How far the stream is compacted once `taken` is; `following` is the next file of the stream, if any."""
    last = taken[-1]
    cuts_position = following is not None and following.position == last.position
    return Watermark(position=last.position, file_number=last.file.file_number if cuts_position else None)


def group_for_tasks(files: Sequence[DeltaSource], groups: int) -> tuple[tuple[DeltaSource, ...], ...]:
    """Consecutive files in at most `groups` groups of about equal bytes; none of them empty."""
    total = sum(file.size_bytes for file in files)
    cut: list[tuple[DeltaSource, ...]] = []
    group: list[DeltaSource] = []
    before = 0
    for file in files:
        group.append(file)
        before += file.size_bytes
        if before * groups >= total * (len(cut) + 1):
            cut.append(tuple(group))
            group = []
    if group:
        cut.append(tuple(group))
    return tuple(cut)


def runs_to_absorb(index_files: Sequence[IndexFile], arriving_rows: int) -> frozenset[int]:
    """Which of the newest runs of the index a round merges into the run that it writes.

    A run is absorbed when it is not much larger than what has been gathered before it; so an index of n rows has about
    log n runs, and each of its rows is written about log n times in all, however small the rounds are. Worked: over a
    base of 4,000,000 rows, rounds of 200,000 rows leave runs of 0.2, 0.4, 0.2 + 0.6, ... million rows; the base is
    absorbed when 2 million rows lie above it.
    """
    rows_of_runs: dict[int, int] = {}
    for file in index_files:
        rows_of_runs[file.run] = rows_of_runs.get(file.run, 0) + file.rows
    absorbed: set[int] = set()
    gathered = max(arriving_rows, 1)
    for run in sorted(rows_of_runs, reverse=True):
        too_many = len(rows_of_runs) - len(absorbed) >= INDEX_RUNS_MAX
        if rows_of_runs[run] > ABSORBED_RUN_SHARE * gathered and not too_many:
            break
        absorbed.add(run)
        gathered += rows_of_runs[run]
    return frozenset(absorbed)
