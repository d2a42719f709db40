"""Reads the figures of a table's partition streams (`stream_figures.py`). Reads only logs."""

from collections.abc import Iterable
from dataclasses import replace

from compactor.catalog.actions import DeltaAdded
from compactor.catalog.properties import BYTES_PER_COMPACTED_FILE, ROWS_PER_COMPACTED_FILE, TableProperties
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import Table
from compactor.model.names import PartitionValues
from compactor.planning.small_files import MergeLimits
from compactor.planning.stream_figures import StreamFigures, figures_of, pending_deltas
from compactor.storage.concurrently import run_concurrently


def merge_limits(properties: TableProperties) -> MergeLimits:
    """Which compacted files of a table are small."""
    return MergeLimits(
        properties.rows_per_compacted_file or ROWS_PER_COMPACTED_FILE,
        properties.bytes_per_compacted_file or BYTES_PER_COMPACTED_FILE,
        properties.merge_small_files,
        properties.merge_small_files_share,
        in_order=properties.primary_keys == (),
    )


def read_figures(table: Table, partitions: Iterable[PartitionValues] | None = None) -> list[StreamFigures]:
    """The figures of streams of a table, in their order, without what is published. None: those of all streams.

    Deltas of a compacted copy are those of its source. A source that is only compacted into other tables waits for the
    one that is furthest behind.
    """
    limits = merge_limits(table.properties)
    streams = [table.stream(partition) for partition in (table.partitions() if partitions is None else partitions)]
    if not streams:
        return []
    return run_concurrently(streams[0].location, lambda stream: _figures(table, stream, limits), streams)


def _figures(table: Table, stream: PartitionStream, limits: MergeLimits) -> StreamFigures:
    pairs = table.compactions(stream.partition)
    source, destinations = pairs[0][0], [side for _, side in pairs]
    at = stream.log.newest  # read just now
    now = at if source is stream else source.load()
    figures = replace(figures_of(at.state, limits, now.state, destinations), of_a_copy=source is not stream)
    if not figures.pending_deltas or figures.oldest_pending_at_ms is not None:
        return figures
    longest = max((pending_deltas(now.state, side) for side in destinations), key=len)
    return replace(figures, oldest_pending_at_ms=_added_at_ms(source, longest[0], now.entry_number))


def _added_at_ms(source: PartitionStream, delta: DeltaAdded, newest_entry: int) -> int | None:
    """The time of the entry that added a delta whose writer did not record one, as FORMAT.md allows. By binary
    search: positions grow with entry numbers."""
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
