"""The checkpoint of a partition stream's log: its snapshot as a table, one row per thing it holds.

Every row has one column that is not null, which says what it is:

    stream       what the snapshot knows of itself (one row)
    source       a stream version, without its deltas
    delta        a delta, with its files
    compacted    the compacted stream, without its files (at most one row)
    file         a live compacted file, its bounds in columns of their own types

The columns of each are the fields of its class (`columns.py`). Deltas are in position order within their stream
version.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

import pyarrow as pa

from compactor.catalog.actions import DataFile, DeltaAdded
from compactor.catalog.columns import RecordCodec
from compactor.catalog.log import Checkpoint
from compactor.catalog.snapshot import CompactedStream, SourceStream, StreamSnapshot
from compactor.errors import Corrupt

ValueT = TypeVar("ValueT")

_STREAM = RecordCodec(StreamSnapshot, leave_out=("sources", "compacted"))
_SOURCE = RecordCodec(SourceStream, leave_out=("deltas",))
_DELTA = RecordCodec(DeltaAdded)
_COMPACTED = RecordCodec(CompactedStream, leave_out=("files",))
_FILE = RecordCodec(DataFile)

SCHEMA = pa.schema(
    {
        "stream": _STREAM.arrow_type,
        "source": _SOURCE.arrow_type,
        "delta": _DELTA.arrow_type,
        "compacted": _COMPACTED.arrow_type,
        "file": _FILE.arrow_type,
    }
)


def snapshot_to_table(snapshot: StreamSnapshot) -> pa.Table:
    """Everything that the snapshot holds."""
    sources = list(snapshot.sources.values())
    compacted = snapshot.compacted
    arrays = {
        "stream": _STREAM.to_array([snapshot]),
        "source": _SOURCE.to_array(sources),
        "delta": _DELTA.to_array([delta for source in sources for delta in source.deltas]),
        "compacted": _COMPACTED.to_array([] if compacted is None else [compacted]),
        "file": _FILE.to_array([] if compacted is None else list(compacted.files.values())),
    }
    rows = [pa.table({name: array}) for name, array in arrays.items()]
    return pa.concat_tables(rows, promote_options="default").select(SCHEMA.names)


def snapshot_from_table(table: pa.Table) -> StreamSnapshot:
    """The snapshot that was stored. Raises `Corrupt` for a table of another kind, and what PyArrow raises."""
    if set(table.schema.names) != set(SCHEMA.names):
        raise Corrupt(f"its columns are {', '.join(table.schema.names)}")
    arrays = {name: table.column(name).drop_null().combine_chunks() for name in SCHEMA.names}
    deltas: defaultdict[int, list[DeltaAdded]] = defaultdict(list)
    for delta in _present(_DELTA.to_values(arrays["delta"])):
        deltas[delta.stream_version].append(delta)
    sources = {
        source.stream_version: replace(source, deltas=tuple(deltas.pop(source.stream_version, ())))
        for source in _present(_SOURCE.to_values(arrays["source"]))
    }
    files = {file.file_number: file for file in _present(_FILE.to_values(arrays["file"]))}
    compacted = _present(_COMPACTED.to_values(arrays["compacted"], {"files": MappingProxyType(files)}))
    parts = {"sources": MappingProxyType(sources), "compacted": compacted[0] if compacted else None}
    streams = _present(_STREAM.to_values(arrays["stream"], parts))
    if len(streams) != 1 or len(compacted) > 1 or deltas or (files and not compacted):
        raise Corrupt("its rows are not those of one snapshot")
    return streams[0]


def _present(values: list[ValueT | None]) -> list[ValueT]:
    return [value for value in values if value is not None]


CHECKPOINT: Checkpoint[StreamSnapshot] = Checkpoint(snapshot_to_table, snapshot_from_table)
