"""What can be written into a partition stream's log: one frozen document per fact.

An entry of the log holds one or more of these, and is visible whole or not at all. `snapshot.py` folds them;
`FORMAT.md` specifies their JSON. A field is never renamed or given another meaning: a new one is added, with a default.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from compactor.document import Document
from compactor.names import ContentType, LifecycleState, Operation, SortOrder

Scalar = int | float | str | bool


class ColumnStats(Document):
    """What is known of one column of one file. Bounds are absent where the type has no JSON form or no value.

    Dates, times and timestamps are ISO 8601 strings, decimals are strings.
    """

    null_count: int | None = None
    min_value: Scalar | None = None
    max_value: Scalar | None = None


class DataFile(Document):
    """A delta file or a compacted file.

    path  relative to the lake's root where the catalog wrote it; an absolute URI where it was registered in place
    """

    file_number: int = Field(ge=1)
    path: str
    content_type: ContentType
    rows: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    columns: dict[str, ColumnStats] = {}


class IndexPointers(Document):
    """Pointers that hold in place of those in an index file: its rows have moved, its digests are what they were."""

    path: str
    size_bytes: int = Field(ge=0)


class IndexFile(Document):
    """One file of the primary key index: rows of one hash bucket, sorted by digest.

    run       the index version that wrote it; what a newer run says of a key hides what an older one says
    part      the file's place among its bucket's files of the run; digests of part k are all below those of part k + 1
    pointers  where its rows lie by now, if not where the file itself says
    """

    hash_bucket: int = Field(ge=0)
    run: int = Field(ge=1)
    part: int = Field(ge=0)
    path: str
    rows: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    pointers: IndexPointers | None = None

    @property
    def paths(self) -> list[str]:
        """Of all objects that it takes to read the file."""
        return [self.path] if self.pointers is None else [self.path, self.pointers.path]

    @property
    def bytes_at_rest(self) -> int:
        """Of all of these objects."""
        return self.size_bytes + (0 if self.pointers is None else self.pointers.size_bytes)


class DeletionVector(Document):
    """Which rows of a live compacted file are dead: an Arrow IPC file of their row indices, ascending.

    rows  how many rows of the file are dead
    """

    file_number: int = Field(ge=1)
    path: str
    rows: int = Field(ge=1)
    size_bytes: int = Field(ge=0)


class SortKey(Document):
    """One sort key column. Its order says which end wins."""

    column: str
    order: SortOrder = SortOrder.ASCENDING


class Watermark(Document):
    """How far a source stream has been compacted: every file up to and with this one, in (position, file number) order.

    file_number  None: every file of the delta at `position`
    """

    position: int
    file_number: int | None = None

    def covers(self, position: int, file_number: int) -> bool:
        """Whether that delta file is already in the compacted stream."""
        if position != self.position:
            return position < self.position
        return self.file_number is None or file_number <= self.file_number


class RowCounts(Document):
    """The bookkeeping of a round: rows_in = rows_out + rows_deduplicated + rows_deleted.

    rows_before        live compacted rows before the round
    rows_in            rows_before, and every row of the round's delta files
    rows_out           live compacted rows after the round
    rows_deduplicated  rows that lost to another row of their key
    rows_deleted       delete rows that won: their keys are gone
    rows_carried       of rows_out: rows in compacted files that were carried over by reference
    tombstones         keys that the index remembers as deleted after the round
    """

    rows_before: int
    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int
    rows_carried: int
    tombstones: int


class StepFigures(Document):
    """What one step of a round took. `peak_memory_bytes` is the largest of its Python workers."""

    seconds: float
    tasks: int
    peak_memory_bytes: int


class StreamVersionCreated(Document):
    action: Literal["stream_version_created"] = "stream_version_created"
    stream_version: int = Field(ge=1)
    state: LifecycleState


class StreamVersionReleased(Document):
    """The version becomes the active one; the one that was active is deprecated."""

    action: Literal["stream_version_released"] = "stream_version_released"
    stream_version: int = Field(ge=1)


class DeltaAdded(Document):
    """A delta, durable with this entry.

    content_digest  of what the writer gave; the same delta id with another digest is refused
    """

    action: Literal["delta_added"] = "delta_added"
    stream_version: int = Field(ge=1)
    position: int
    operation: Operation
    delta_id: str
    content_digest: str
    files: tuple[DataFile, ...]


class RoundCommitted(Document):
    """A round, whole: the files it made visible, the index that points into them, and its completion (contract 3).

    commit_id              unique to the attempt; how a writer recognises its own entry after a lost answer
    source_*               what was read: table, stream version, and how far
    bytes_at_rest          size of all compacted files after the round
    files_removed          file numbers that are no longer part of the stream
    deletion_vectors       new ones, each in place of its file's earlier one
    index_files            the whole index of `index_version`, runs of earlier versions that it keeps included
    digest_encoding        the number of the key encoding that the digests were made with (FORMAT.md)
    compacted_schema       Arrow schema of the rows, as a base64 IPC message; what later rounds grow
    """

    action: Literal["round_committed"] = "round_committed"
    commit_id: str
    job_run_id: str
    session_id: str
    round_number: int = Field(ge=1)
    rounds: int = Field(ge=1)
    source_table_id: str
    source_stream_version: int = Field(ge=1)
    processed: Watermark
    compacted_table_id: str
    compacted_stream_version: int = Field(ge=1)
    primary_keys: tuple[str, ...]
    sort_keys: tuple[SortKey, ...]
    digest_encoding: int
    compacted_schema: str
    hash_bucket_count: int = Field(ge=1)
    index_version: int = Field(ge=1)
    bytes_at_rest: int = Field(ge=0)
    files_added: tuple[DataFile, ...]
    files_removed: tuple[int, ...]
    deletion_vectors: tuple[DeletionVector, ...] = ()
    index_files: tuple[IndexFile, ...]
    counts: RowCounts
    steps: dict[str, StepFigures]


class IndexRehashed(Document):
    """The index was moved to another bucket count; the rows it points at did not move."""

    action: Literal["index_rehashed"] = "index_rehashed"
    commit_id: str
    job_run_id: str
    session_id: str
    compacted_stream_version: int = Field(ge=1)
    from_index_version: int = Field(ge=1)
    index_version: int = Field(ge=1)
    hash_bucket_count: int = Field(ge=1)
    index_files: tuple[IndexFile, ...]


StreamAction = Annotated[
    StreamVersionCreated | StreamVersionReleased | DeltaAdded | RoundCommitted | IndexRehashed,
    Field(discriminator="action"),
]
