"""What the logs say of a session: its streams, the delta files that no round has compacted yet, and what is left to do.

Reads logs, and no file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import pyarrow as pa

from compactor.catalog.actions import IndexRehashed, RoundCommitted
from compactor.catalog.definition import TableDefinition
from compactor.catalog.keys import is_open_file
from compactor.catalog.snapshot import CompactedStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog, Table
from compactor.log.durable_log import LogState
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import counted, render_partition
from compactor.planning.destinations import check_destination_stream, check_keys
from compactor.planning.round_plan import DeltaFileRef
from compactor.planning.rounds import rows_per_file
from compactor.planning.small_files import MergeLimits, small_files_to_merge
from compactor.planning.spec import JobRunSpec, SessionSpec
from compactor.schemas.unify import parse_schema

Commit = tuple[int, RoundCommitted | IndexRehashed]
"""A durable change of a session, with its entry number in the compacted stream's log."""

READ_FOOTERS, READ_LOG_ENTRIES = "read footers", "read log entries"


class ReadReport(Protocol):
    """Receives the progress of reading. Called from one thread."""

    def reading(self, step: str, of: int) -> None:
        """`step` reads `of` objects next."""

    def read_one(self) -> None:
        """One of them has been read."""


class NoReadReport:
    """Ignores progress."""

    def reading(self, step: str, of: int) -> None: ...

    def read_one(self) -> None: ...


NO_READ_REPORT = NoReadReport()


@dataclass(frozen=True)
class PendingWork:
    """What is left to do for a session. It is false if nothing is."""

    delta_files: int = 0
    """Delta files that no round has compacted."""

    closed_files: int = 0
    """Compacted files of a published table that other engines cannot read."""

    dirty_files: int = 0
    """Compacted files with more dead rows than the job run allows."""

    dead_rows: int = 0
    """Dead rows of the dirty files."""

    max_dead_row_share: float = 0.0
    """What the job run allows."""

    small_files: int = 0
    """Small compacted files that the next round merges."""

    merged_files: int = 0
    """The files that they become."""

    rehash: tuple[int, int | None] | None = None
    """The hash bucket count of the index, and the one that the job run asks for (None: as many as take half of a task's
    memory); None: it asks for no other."""

    def __bool__(self) -> bool:
        return self.has_rounds or self.rehash is not None

    @property
    def has_rounds(self) -> bool:
        """Whether a round is needed; a rehash is none."""
        return bool(self.delta_files or self.closed_files or self.dirty_files or self.small_files)

    def reasons(self) -> Iterator[str]:
        """Why the session runs, a sentence each, where it is not for its deltas."""
        if not self.delta_files and self.closed_files:
            files = counted(self.closed_files, "compacted file")
            why = "since the table is published and other engines read them"
            yield f"no delta is pending: {files} are rewritten, {why}"
        elif not self.delta_files and self.dirty_files:
            files, rows = counted(self.dirty_files, "compacted file"), counted(self.dead_rows, "dead row")
            yield (
                f"no delta is pending: {files} with {rows} are rewritten, since max_dead_row_share is "
                f"{self.max_dead_row_share:g}"
            )
        if not self.delta_files and self.small_files:
            files = counted(self.small_files, "small compacted file")
            yield f"no delta is pending: {files} are merged into {self.merged_files:,}"
        if self.rehash is not None:
            now, wanted = self.rehash
            fitting = "as many hash buckets as take half of a task's memory"
            to = fitting if wanted is None else f"{wanted:,} hash buckets, as asked for"
            yield f"the index is rehashed from {now:,} to {to}"


@dataclass(frozen=True)
class SessionStreams:
    """The streams of a session, as of one reading of their logs."""

    spec: SessionSpec
    source: PartitionStream
    destination: PartitionStream

    source_table: TableDefinition
    destination_table: TableDefinition
    """A table that does not exist yet has the definition with which it is created."""

    snapshot: StreamSnapshot
    """The snapshot of the destination."""

    compacted: CompactedStream | None
    """The part of the destination that the session continues; None: it begins a new stream version."""

    compacted_stream_version: int
    """The version that the session's rounds write."""

    pending: tuple[DeltaFileRef, ...]
    """Delta files above the watermark, up to the pinned entry, in (position, file number) order."""

    @classmethod
    def load(cls, spec: SessionSpec, lake: DeltaCatalog, *, as_pinned: bool = False) -> Self:
        """`as_pinned`: the logs as they were when the session was pinned, for a plan that is made right after it.

        Raises `Invalid` if the destination holds other data, or an index for other keys.
        """
        source_table = lake.table(spec.job_run.source_table_id)
        destination_table = lake.table_like(spec.job_run.destination_compacted_table_id, source_table)
        source, destination = source_table.stream(spec.partition), destination_table.stream(spec.partition)
        if not as_pinned:
            now = source.log.load_past(spec.source_entry_number).state
            snapshot = now if source is destination else destination.load().state
            return cls.of(spec, source_table, destination_table, now, snapshot)
        now = source.load(as_of=spec.source_entry_number).state
        snapshot = destination.load(as_of=spec.destination_entry_number).state
        now = snapshot if source is destination else now
        return cls.of(spec, source_table, destination_table, now, snapshot)

    @classmethod
    def of(
        cls,
        spec: SessionSpec,
        source_table: Table,
        destination_table: Table,
        now: StreamSnapshot,
        snapshot: StreamSnapshot,
    ) -> Self:
        """`now`, `snapshot`: the current source and destination, which were just read."""
        source, destination = source_table.stream(spec.partition), destination_table.stream(spec.partition)
        compacted, compacted_stream_version = _continued(spec, snapshot)
        is_rehash = spec.job_run.operation == "rehash"
        is_gone = _dropped_since(spec, destination, snapshot, now)
        return cls(
            spec=spec,
            source=source,
            destination=destination,
            source_table=source_table.definition,
            destination_table=destination_table.definition,
            snapshot=snapshot,
            compacted=compacted,
            compacted_stream_version=compacted_stream_version,
            pending=() if is_gone or is_rehash else _pending(spec, source, snapshot, compacted, now),
        )

    @property
    def is_open(self) -> bool:
        """Whether other engines read the compacted files."""
        return bool(self.destination_table.properties.publish)

    def work(self) -> PendingWork:
        """What is left to do."""
        run, compacted = self.spec.job_run, self.compacted
        if run.operation == "rehash":
            return PendingWork(rehash=self._rehash_on_demand())
        if compacted is None:
            return PendingWork(delta_files=len(self.pending))
        dirty = compacted.files_with_more_dead_rows_than(run.max_dead_row_share)
        closed = sum(not is_open_file(file.path) for file in compacted.files.values()) if self.is_open else 0
        return PendingWork(
            delta_files=len(self.pending),
            closed_files=closed,
            dirty_files=len(dirty),
            dead_rows=sum(each.rows for each in dirty),
            max_dead_row_share=run.max_dead_row_share,
            small_files=sum(len(files) for files in self.merges),
            merged_files=len(self.merges),
            rehash=_rehash(run, compacted),
        )

    def _rehash_on_demand(self) -> tuple[int, int | None] | None:
        """None: it is done, or there is no index. Without a requested count it is done once an attempt of the session
        has committed one: another plan might choose a third count."""
        run, compacted = self.spec.job_run, self.compacted
        if compacted is None or not run.has_key:
            return None
        if run.hash_bucket_count is not None:
            return _rehash(run, compacted)
        is_done = any(isinstance(action, IndexRehashed) for _, action in commits_of(self.spec, self.destination))
        return None if is_done else (compacted.hash_bucket_count, None)

    @cached_property
    def merges(self) -> tuple[tuple[int, ...], ...]:
        """What a round without deltas would merge now."""
        return self.small_files_to_merge(self.compacted, ())

    def small_files_to_merge(
        self, compacted: CompactedStream | None, deltas: Sequence[DeltaFileRef]
    ) -> tuple[tuple[int, ...], ...]:
        """Groups of compacted files, by their numbers, of which a round that reads `deltas` makes one each."""
        if compacted is None:
            return ()
        run, properties = self.spec.job_run, self.destination_table.properties
        limits = MergeLimits(
            rows_per_file=rows_per_file(run, compacted, deltas),
            bytes_per_file=run.bytes_per_compacted_file,
            small_files=properties.merge_small_files,
            share=properties.merge_small_files_share,
            in_order=not run.has_key,
        )
        arriving = [ref.file for ref in deltas]
        return small_files_to_merge(compacted.files, compacted.deletion_vectors, limits, arriving)

    def compacted_schema(self) -> pa.Schema | None:
        """The schema of the compacted rows; None: there are none."""
        return None if self.compacted is None else parse_schema(self.compacted.last_round.compacted_schema)


def _rehash(run: JobRunSpec, compacted: CompactedStream) -> tuple[int, int] | None:
    wanted = run.hash_bucket_count
    return None if wanted is None or wanted == compacted.hash_bucket_count else (compacted.hash_bucket_count, wanted)


def _continued(spec: SessionSpec, snapshot: StreamSnapshot) -> tuple[CompactedStream | None, int]:
    """The compacted stream that the session continues, and its version; a new source stream version starts a new one.

    Raises `Invalid` if the destination holds other data, or an index for other keys.
    """
    run, before = spec.job_run, snapshot.compacted
    check_destination_stream(run.source_table_id, run.destination_compacted_table_id, spec.partition, snapshot)
    if before is None:
        return None, 1
    if before.source_stream_version > spec.source_stream_version:
        raise Invalid(
            f"{render_partition(spec.partition)} is compacted from source stream version "
            f"{before.source_stream_version}; version {spec.source_stream_version} is older: release a newer one"
        )
    if before.source_stream_version < spec.source_stream_version:
        return None, before.stream_version + 1
    check_keys(before, run)
    return before, before.stream_version


def _dropped_since(
    spec: SessionSpec, destination: PartitionStream, snapshot: StreamSnapshot, now: StreamSnapshot
) -> bool:
    """Whether the partition was dropped after the session was pinned: the session then compacts nothing.

    Args:
        snapshot, now: the current destination and source"""
    if spec.source_stream_version <= now.dropped_version:
        return True
    return snapshot.is_dropped and destination.load(spec.destination_entry_number).state.reset != snapshot.reset


def _pending(
    spec: SessionSpec,
    source: PartitionStream,
    snapshot: StreamSnapshot,
    compacted: CompactedStream | None,
    now: StreamSnapshot,
) -> tuple[DeltaFileRef, ...]:
    """Delta files that no round has compacted yet, in (position, file number) order, as of the pinned entry.

    Args:
        snapshot, compacted: the destination, and the part of it that the session continues
        now: the current source"""
    stream = source.load(as_of=spec.source_entry_number).state.sources.get(spec.source_stream_version)
    if stream is None:
        raise Corrupt(
            f"stream version {spec.source_stream_version} is not in the log at entry {spec.source_entry_number}"
        )
    processed = None if compacted is None else compacted.processed
    retired = stream.retired
    if retired is not None and (processed is None or processed.whole_position < retired.position):
        raise Invalid(
            f"{source} has retired its deltas up to position {retired.position}, since all compactions of it had taken "
            f"them; {spec.job_run.destination_compacted_table_id} has "
            f"{'none of them' if processed is None else f'those up to {processed.position}'}: compact into the table "
            "that has them, or append their rows again"
        )
    unprocessed = stream.deltas if processed is None else stream.deltas.above(processed.position - 1)
    # Deltas that were retracted after the pin are not compacted either. The commit checks later retractions.
    retracted = now.sources[spec.source_stream_version].retracted_positions
    return tuple(
        DeltaFileRef(delta.position, delta.operation, file, source.uri_of(file.path), delta.delta_id)
        for delta in unprocessed
        if delta.position not in retracted and not snapshot.skips(spec.source_stream_version, delta.position)
        for file in sorted(delta.files, key=lambda file: file.file_number)
        if processed is None or not processed.covers(delta.position, file.file_number)
    )


def commits_of(
    spec: SessionSpec,
    destination: PartitionStream,
    report: ReadReport = NO_READ_REPORT,
    now: LogState[StreamSnapshot] | None = None,
) -> list[Commit]:
    """Commits of earlier attempts, with their entry numbers. `now`: the destination, if it was just read.

    Writers may have appended thousands of entries since the session was pinned. If the compacted part has not changed
    since then, none is read; otherwise many are read at a time.
    """
    pinned, now = spec.destination_entry_number, destination.load() if now is None else now
    if now.entry_number <= pinned or _compacted_at(destination.load(pinned).state) == _compacted_at(now.state):
        return []
    report.reading(READ_LOG_ENTRIES, now.entry_number - pinned)
    found: list[Commit] = []
    for entry in destination.log.entries_between(pinned + 1, now.entry_number):
        report.read_one()
        found += [
            (entry.number, action)
            for action in entry.actions
            if isinstance(action, RoundCommitted | IndexRehashed) and action.session_id == spec.session_id
        ]
    return found


def _compacted_at(snapshot: StreamSnapshot) -> tuple[str, int] | None:
    """The state that every kind of commit changes."""
    compacted = snapshot.compacted
    return None if compacted is None else (compacted.last_round.commit_id, compacted.index_version)
