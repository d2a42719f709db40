"""The deltas of a partition stream that are not compacted yet, and their age. Reads only logs."""

from __future__ import annotations

from dataclasses import dataclass

from compactor.catalog.actions import DeltaAdded
from compactor.catalog.snapshot import SourceStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream


@dataclass(frozen=True)
class Backlog:
    """Deltas that no committed round has read completely. `oldest_at_ms`: time of the oldest one; None: no deltas."""

    deltas: int
    rows: int
    oldest_at_ms: int | None


def backlog_of(source: PartitionStream, destination: StreamSnapshot) -> Backlog:
    """`destination`: of the stream that the source is compacted into."""
    at = source.load()
    active = at.state.active
    pending = [] if active is None else _pending(active, destination)
    if active is None or not pending:
        return Backlog(0, 0, None)
    rows = sum(
        file.rows
        for delta in pending
        for file in delta.files
        if not _is_taken(destination, active, delta.position, file.file_number)
    )
    return Backlog(len(pending), rows, _added_at_ms(source, pending[0], at.entry_number))


def _pending(active: SourceStream, destination: StreamSnapshot) -> list[DeltaAdded]:
    compacted = destination.compacted
    is_continued = compacted is not None and compacted.source_stream_version == active.stream_version
    unprocessed = active.deltas.above(compacted.processed.position - 1) if compacted and is_continued else active.deltas
    return [
        delta
        for delta in unprocessed
        if any(not _is_taken(destination, active, delta.position, file.file_number) for file in delta.files)
    ]


def _is_taken(destination: StreamSnapshot, active: SourceStream, position: int, file_number: int) -> bool:
    compacted = destination.compacted
    if destination.skips(active.stream_version, position):
        return True
    is_continued = compacted is not None and compacted.source_stream_version == active.stream_version
    return compacted is not None and is_continued and compacted.processed.covers(position, file_number)


def _added_at_ms(source: PartitionStream, delta: DeltaAdded, newest_entry: int) -> int | None:
    """The time of the entry that added a delta, by binary search: positions grow with entry numbers."""
    first, last = 1, newest_entry
    while first <= last:
        number = (first + last) // 2
        positions: list[int] = []
        while not positions and number <= last:
            entry = source.log.entry(number)
            positions = [
                action.position
                for action in entry.actions
                if isinstance(action, DeltaAdded) and action.stream_version == delta.stream_version
            ]
            number += 1
        if delta.position in positions:
            return entry.at_ms
        if not positions or positions[0] > delta.position:
            last = (first + last) // 2 - 1
        else:
            first = number
    return None
