"""The input and output of one round: a `RoundPlan`, which names the log entry from which it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from compactor.catalog.snapshot import ReadPoint
from compactor.kernels.sort_values import SortColumn
from compactor.model.counts import SortKey, Watermark
from compactor.model.files import DataFile, DeletionVector, IndexFile
from compactor.model.names import ContentType, Operation
from compactor.schemas.open_types import open_file_schema
from compactor.storage.location import StoreLocation
from compactor.task_progress import ProgressAddress

if TYPE_CHECKING:
    from compactor.index.files import IndexTarget
    from compactor.tabular import TabularFile


@dataclass(frozen=True)
class SourceFile:
    """A file that a round reads.

    Attributes:
        ordinal: its position in the round's order: compacted files by file number, then delta files by (position, file
            number)"""

    ordinal: int
    file: TabularFile
    rows: int
    size_bytes: int

    @property
    def live_rows(self) -> int:
        return self.rows


@dataclass(frozen=True)
class CompactedSource(SourceFile):
    """A live compacted file of earlier rounds.

    Attributes:
        vector: its dead rows, if it has any
        is_rewritten: even if all its rows survive: other engines could not read it
        merge: the merge of small files that it is part of, by number: each becomes one file. None: of none"""

    file_number: int
    vector: DeletionVector | None
    is_rewritten: bool = False
    merge: int | None = None

    @property
    def live_rows(self) -> int:
        return self.rows - (self.vector.rows if self.vector else 0)


@dataclass(frozen=True)
class DeltaSource(SourceFile):
    """A delta file.

    Attributes:
        sorts: False if a delete's file lacks custom sort key columns
        row_groups: rows of each row group, stripe or piece of text; empty: see `DataFile`"""

    position: int
    operation: Operation
    sorts: bool
    row_groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class RowsToHash:
    """Consecutive rows of a delta file, which one task reads: all of them, or those of some row groups."""

    source: DeltaSource
    first_row: int
    rows: int

    @classmethod
    def all_of(cls, source: DeltaSource) -> RowsToHash:
        return cls(source, 0, source.rows)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The first and the last row; None: of all rows of the file."""
        return None if self.rows == self.source.rows else (self.first_row, self.first_row + self.rows - 1)

    @property
    def size_bytes(self) -> int:
        """Their share of the file's bytes."""
        return self.source.size_bytes * self.rows // self.source.rows if self.source.rows else self.source.size_bytes


@dataclass(frozen=True)
class DeltaFileRef:
    """A delta file in its stream, before its schema has been read."""

    position: int
    operation: Operation
    file: DataFile
    uri: str
    delta_id: str | None = None


@dataclass(frozen=True)
class RoundOutput:
    """The output settings of a round.

    Attributes:
        private_columns: those whose bounds stay out of the log
        open_partition: of a published table, whose files other engines read: the values of its last columns. None: the
            table is not published"""

    content_type: ContentType
    schema: pa.Schema
    rows_per_compacted_file: int
    max_dead_row_share: float
    own_parquet_pages: bool
    page_check_share: float
    compacted_stream_version: int
    next_file_number: int
    index: IndexTarget
    private_columns: frozenset[str] = frozenset()
    open_partition: tuple[tuple[str, str], ...] | None = None

    @property
    def file_schema(self) -> pa.Schema:
        """Of a file: the schema of the rows, and what an open file has beyond."""
        if self.open_partition is None:
            return self.schema
        return open_file_schema(self.schema, [key for key, _ in self.open_partition])


@dataclass(frozen=True)
class RoundPlan:
    """One round. Its tasks get parts of it (`compactor/steps/`).

    Attributes:
        key_columns: primary key columns in sorted name order
        sort_columns: custom sort key columns in the order given; none: the stream position alone decides
        horizon: last stream position of the round
        absorbed_runs: runs of the index that are merged into the run which this round writes
        tombstones: keys that the index remembers as deleted before the round
        tasks: tasks that run side by side
        task_memory_bytes: memory of each of them
        spare_scratch_bytes: of scratch files that may be kept for the next round to overwrite; None: as many as are
            useful
        progress: where running tasks report rows; None: nowhere"""

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
    output: RoundOutput
    tasks: int
    task_memory_bytes: int
    spare_scratch_bytes: int | None = None
    progress: ProgressAddress | None = None

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Every file that the round may read, by ordinal."""
        return (*self.compacted, *self.deltas)


@dataclass(frozen=True)
class RehashPlan:
    """What a rehash reads and writes.

    Attributes:
        keys: live rows and tombstones of the stream, which the new index must hold
        from_hash_bucket_count: of the current index"""

    location: StoreLocation
    index_files: tuple[IndexFile, ...]
    sort_columns: tuple[SortColumn, ...]
    from_index_version: int
    from_hash_bucket_count: int
    keys: int
    hash_bucket_count: int
    target: IndexTarget
    task_memory_bytes: int
