"""How far a partition stream is behind, and how its compacted files are: the figures that policies, reports and metrics
are made of. Pure: folds of logs in, a value out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from compactor.catalog.actions import DeltaAdded
from compactor.catalog.snapshot import CompactedStream, SourceStream, StreamSnapshot
from compactor.model.files import DataFile
from compactor.planning.small_files import MergeLimits, small_files, small_files_to_merge


@dataclass(frozen=True)
class StreamFigures:
    """The figures of a stream, or the sum of several (`total`). Times are by the clocks of those who wrote.

    Attributes:
        pending_*: deltas that no committed round has read completely; rows and bytes of those of their files that none
            has read
        oldest_pending_at_ms: when the oldest of them was appended; None: nothing is pending, or it is not recorded
        last_write_at_ms: when the last delta was appended, compacted or not; None: never, or not recorded
        files, file_bytes: live compacted files, of the stream, or of the destination that is furthest behind
        small_*: those of them that are small (`small_files.py`)
        rows: live rows of these files
        dead_rows: rows that their deletion vectors mark
        last_compacted_at_ms: when the last round was committed; None: never, or not recorded
        unpublished_files: changes of files that a published format lacks, of the format that lacks most
        unpublished_since_ms: when the oldest of these changes was committed; None: there is none
        size_ratio: of some of the smallest files that a compaction would take now, pending ones too: the bytes of all
            but the largest, to those of the largest; the greatest such ratio
        mergeable_files: small files that a compaction would merge now
        of_a_copy: it is compacted by instructions for another table, whose deltas these are"""

    pending_deltas: int = 0
    pending_rows: int = 0
    pending_bytes: int = 0
    oldest_pending_at_ms: int | None = None
    last_write_at_ms: int | None = None
    files: int = 0
    file_bytes: int = 0
    small_files: int = 0
    small_file_bytes: int = 0
    rows: int = 0
    dead_rows: int = 0
    last_compacted_at_ms: int | None = None
    unpublished_files: int = 0
    unpublished_since_ms: int | None = None
    size_ratio: float = 0.0
    mergeable_files: int = 0
    of_a_copy: bool = False

    def lag_seconds(self, now_ms: int) -> float:
        """For how long the oldest pending delta has been waiting; 0: nothing is pending."""
        return _seconds_since(self.oldest_pending_at_ms, now_ms)

    def published_lag_seconds(self, now_ms: int) -> float:
        """For how long the oldest change that is not published has been waiting; 0: everything is published."""
        return _seconds_since(self.unpublished_since_ms, now_ms)

    @property
    def dead_row_share(self) -> float:
        """Dead rows of all rows of the compacted files; 0 where there are none."""
        return self.dead_rows / max(self.rows + self.dead_rows, 1)

    @property
    def small_file_share(self) -> float:
        return self.small_files / max(self.files, 1)

    def __add__(self, other: StreamFigures) -> StreamFigures:
        """Of both together: the oldest pending delta and the newest write of the two."""
        return StreamFigures(
            pending_deltas=self.pending_deltas + other.pending_deltas,
            pending_rows=self.pending_rows + other.pending_rows,
            pending_bytes=self.pending_bytes + other.pending_bytes,
            oldest_pending_at_ms=_least(self.oldest_pending_at_ms, other.oldest_pending_at_ms),
            last_write_at_ms=_greatest(self.last_write_at_ms, other.last_write_at_ms),
            files=self.files + other.files,
            file_bytes=self.file_bytes + other.file_bytes,
            small_files=self.small_files + other.small_files,
            small_file_bytes=self.small_file_bytes + other.small_file_bytes,
            rows=self.rows + other.rows,
            dead_rows=self.dead_rows + other.dead_rows,
            last_compacted_at_ms=_greatest(self.last_compacted_at_ms, other.last_compacted_at_ms),
            unpublished_files=self.unpublished_files + other.unpublished_files,
            unpublished_since_ms=_least(self.unpublished_since_ms, other.unpublished_since_ms),
            size_ratio=max(self.size_ratio, other.size_ratio),
            mergeable_files=self.mergeable_files + other.mergeable_files,
            of_a_copy=self.of_a_copy or other.of_a_copy,
        )


def total(figures: Iterable[StreamFigures]) -> StreamFigures:
    """Of all streams together, as of a table."""
    return reduce(StreamFigures.__add__, figures, StreamFigures())


def figures_of(
    stream: StreamSnapshot,
    limits: MergeLimits,
    source: StreamSnapshot | None = None,
    destinations: Sequence[StreamSnapshot] = (),
) -> StreamFigures:
    """The figures of a stream. What is published is not known here: nothing lacks.

    Args:
        source: the stream whose deltas are pending; None: the stream itself, which is no compacted copy
        destinations: the streams they are compacted into, of which the one that is furthest behind counts; none: the
            stream itself"""
    source = source or stream
    behind = [(_pending_figures(source, each), each) for each in destinations or (stream,)]
    waiting, holder = max(behind, key=lambda pair: pair[0].pending_deltas)
    compacted = holder.compacted
    if compacted is None:
        return waiting
    goes_on = source.active is not None and _continued(source.active, holder) is not None
    small = small_files(compacted.files, compacted.deletion_vectors, limits)
    merges = small_files_to_merge(compacted.files, compacted.deletion_vectors, limits) if goes_on else ()
    taken = [compacted.files[number] for group in merges for number in group] + pending_files(source, holder)
    return replace(
        waiting,
        files=len(compacted.files),
        file_bytes=compacted.bytes_at_rest,
        small_files=len(small),
        small_file_bytes=sum(compacted.files[number].size_bytes for number in small),
        rows=compacted.rows,
        mergeable_files=sum(len(group) for group in merges),
        size_ratio=max(waiting.size_ratio, _size_ratio(taken)),
        dead_rows=sum(vector.rows for vector in compacted.deletion_vectors),
        last_compacted_at_ms=compacted.last_round.at_ms,
    )


def _pending_figures(source: StreamSnapshot, destination: StreamSnapshot) -> StreamFigures:
    active, deltas = source.active, pending_deltas(source, destination)
    if active is None:
        return StreamFigures()
    waiting = list(_files_waiting(deltas, active, destination))
    return StreamFigures(
        pending_deltas=len(deltas),
        pending_rows=sum(file.rows for file in waiting),
        pending_bytes=sum(file.size_bytes for file in waiting),
        size_ratio=_size_ratio(waiting),
        oldest_pending_at_ms=deltas[0].at_ms if deltas else None,
        last_write_at_ms=active.last_write_at_ms,
    )


def pending_deltas(source: StreamSnapshot, destination: StreamSnapshot) -> list[DeltaAdded]:
    """Deltas of the active stream version that no committed round of the destination has read completely, in order."""
    active = source.active
    if active is None:
        return []
    continued = _continued(active, destination)
    unprocessed = active.deltas if continued is None else active.deltas.above(continued.processed.position - 1)
    return [delta for delta in unprocessed if any(_files_waiting([delta], active, destination))]


def pending_files(source: StreamSnapshot, destination: StreamSnapshot) -> list[DataFile]:
    """The files of these deltas that no committed round of the destination has read."""
    active = source.active
    return [] if active is None else list(_files_waiting(pending_deltas(source, destination), active, destination))


def _size_ratio(files: Iterable[DataFile]) -> float:
    """Worked: files of 1, 1, 2 and 100 MB: the three smallest have 2 / 2 = 1, all four 4 / 100."""
    below, greatest = 0, 0.0
    for size_bytes in sorted(file.size_bytes for file in files):
        greatest = max(greatest, below / max(size_bytes, 1))
        below += size_bytes
    return greatest


def _files_waiting(
    deltas: Iterable[DeltaAdded], active: SourceStream, destination: StreamSnapshot
) -> Iterator[DataFile]:
    continued = _continued(active, destination)
    for delta in deltas:
        if destination.skips(active.stream_version, delta.position):
            continue
        for file in delta.files:
            if continued is None or not continued.processed.covers(delta.position, file.file_number):
                yield file


def _continued(active: SourceStream, destination: StreamSnapshot) -> CompactedStream | None:
    """What the destination has of this stream version; None: nothing."""
    compacted = destination.compacted
    is_continued = compacted is not None and compacted.source_stream_version == active.stream_version
    return compacted if is_continued else None


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _greatest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _seconds_since(at_ms: int | None, now_ms: int) -> float:
    return 0.0 if at_ms is None else max(now_ms - at_ms, 0) / 1_000
