"""The checkpoint of a partition stream's log (`log/checkpoints.py`): its snapshot as a small JSON object, and rows.

    deltas/<stream version>                        grows: a row for each delta, in position order
    refused_ids/<stream version>/<until, in ms>    replaced: a row for each id of a retired delta
    compacted                                      replaced by every round and rehash: a row for the compacted stream,
                                                   and one for each live file

Of these columns a row has exactly one that is not null, with its class's fields as columns (`log/columns.py`).

    delta        a delta, with its files
    compacted    the compacted stream, without its files (at most one row)
    file         a live compacted file, its bounds in columns of their own types
    refused_id   the digest of a retired delta's id
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import pyarrow as pa
from pydantic import JsonValue
from pydantic_core import to_json

from compactor.catalog.actions import DeltaAdded, SessionPlanAnnounced, SkippedPositions
from compactor.catalog.delta_sequence import DeltaSequence
from compactor.catalog.retired import RefusedIds, RetiredDeltas
from compactor.catalog.snapshot import CompactedStream, Reset, RetractedDelta, SourceStream, StreamSnapshot, TakenBy
from compactor.log.checkpoints import Described, GrowingSeries, ReplacedRows
from compactor.log.columns import RecordCodec
from compactor.model.document import Document
from compactor.model.errors import Corrupt
from compactor.model.files import DataFile
from compactor.model.names import LifecycleState

ValueT = TypeVar("ValueT")

_DELTA = RecordCodec(DeltaAdded)
_COMPACTED = RecordCodec(CompactedStream, leave_out=("files",))
FILE = RecordCodec(DataFile)

SCHEMA = pa.schema(
    {
        "delta": _DELTA.arrow_type,
        "compacted": _COMPACTED.arrow_type,
        "file": FILE.arrow_type,
        "refused_id": pa.uint64(),
    }
)


class _Retired(Document):
    """`refused_until_ms`: one time for each series of refused ids."""

    position: int
    count: int
    refused_until_ms: tuple[int, ...]


class _Source(Document):
    stream_version: int
    state: LifecycleState
    last_position: int | None
    last_write_at_ms: int | None = None
    retracted: tuple[RetractedDelta, ...] = ()
    taken: tuple[TakenBy, ...] = ()
    retired: _Retired | None = None


class _Head(Document):
    last_index_version: int
    sources: tuple[_Source, ...]
    in_flight: SessionPlanAnnounced | None = None
    reset: Reset | None = None
    dropped_version: int = 0
    skipped: tuple[SkippedPositions, ...] = ()


def describe(snapshot: StreamSnapshot) -> Described:
    """The snapshot's parts, for a checkpoint."""
    head = _Head.from_facts(snapshot, sources=tuple(map(_stored, snapshot.sources.values())))
    left_out = {name for name, field in _Head.model_fields.items() if getattr(head, name) == field.default}
    return Described(head.model_dump(mode="json", exclude=left_out), tuple(_series(snapshot)))


def _stored(source: SourceStream) -> _Source:
    retired = None
    if source.retired is not None:
        until_ms = tuple(ids.until_ms for ids in source.retired.refused)
        retired = _Retired.from_facts(source.retired, refused_until_ms=until_ms)
    return _Source.from_facts(source, retired=retired)


def _series(snapshot: StreamSnapshot) -> Iterator[GrowingSeries | ReplacedRows]:
    for version, source in snapshot.sources.items():
        if source.deltas:
            first, last = source.deltas[0].position, source.deltas[-1].position
            yield GrowingSeries(_deltas_of(version), first, last, partial(_delta_rows, source.deltas))
        for ids in source.retired.refused if source.retired is not None else ():
            yield ReplacedRows(_refused_of(version, ids.until_ms), str(len(ids)), partial(_refused_rows, ids))
    compacted = snapshot.compacted
    if compacted is not None:
        rows_version = f"{compacted.index_version} {compacted.last_round.commit_id}"
        if snapshot.reset is not None:  # a restore brings an earlier round back, with other file numbers to come
            rows_version += f" {snapshot.reset.reset_id}"
        yield ReplacedRows("compacted", rows_version, partial(_compacted_rows, compacted))


def _deltas_of(version: int) -> str:
    return f"deltas/{version}"


def _refused_of(version: int, until_ms: int) -> str:
    return f"refused_ids/{version}/{until_ms}"


def _delta_rows(deltas: DeltaSequence, position: int | None) -> pa.Table:
    return pa.table({"delta": _DELTA.to_array(list(deltas if position is None else deltas.above(position)))})


def _refused_rows(ids: RefusedIds) -> pa.Table:
    return pa.table({"refused_id": ids.array})


def _compacted_rows(compacted: CompactedStream) -> pa.Table:
    files = FILE.to_array(list(compacted.files.values()))
    rows = [pa.table({"compacted": _COMPACTED.to_array([compacted])}), pa.table({"file": files})]
    return pa.concat_tables(rows, promote_options="default")


def restore(state: dict[str, JsonValue], rows: Mapping[str, pa.Table]) -> StreamSnapshot:
    """The snapshot of a description. Raises `Corrupt` or `Outdated` for another kind, and PyArrow's errors."""
    head = _Head.parse_durable(to_json(state), "a checkpoint")
    sources = {source.stream_version: _source(source, rows) for source in head.sources}
    return StreamSnapshot(
        sources=MappingProxyType(sources),
        compacted=_compacted(rows["compacted"]) if "compacted" in rows else None,
        last_index_version=head.last_index_version,
        in_flight=head.in_flight,
        reset=head.reset,
        dropped_version=head.dropped_version,
        skipped=head.skipped,
    )


def _source(stored: _Source, rows: Mapping[str, pa.Table]) -> SourceStream:
    retired = None
    if stored.retired is not None:
        refused = tuple(_refused(stored.stream_version, each, rows) for each in stored.retired.refused_until_ms)
        retired = RetiredDeltas(stored.retired.position, stored.retired.count, refused)
    deltas = DeltaSequence()
    table = rows.get(_deltas_of(stored.stream_version))
    if table is not None:
        retracted = [each.position for each in stored.retracted]
        deltas = _deltas(table, None if retired is None else retired.position, retracted)
    return SourceStream(
        stream_version=stored.stream_version,
        state=stored.state,
        deltas=deltas,
        retracted=stored.retracted,
        taken=stored.taken,
        retired=retired,
        last_position=stored.last_position,
        last_write_at_ms=stored.last_write_at_ms,
    )


def _refused(version: int, until_ms: int, rows: Mapping[str, pa.Table]) -> RefusedIds:
    digests = rows[_refused_of(version, until_ms)].column("refused_id").combine_chunks()
    return RefusedIds(until_ms, digests.to_numpy().astype("<u8", copy=False).tobytes())


def _deltas(table: pa.Table, retired_position: int | None, retracted: Sequence[int]) -> DeltaSequence:
    """The deltas that are still part of the stream version. Rows of other deltas are filtered out before decoding."""
    import pyarrow.compute as pc

    array = table.column("delta").combine_chunks().drop_null()
    if retired_position is not None:  # a slice, for a filter copies every field
        positions = array.field("position").to_numpy(zero_copy_only=False)
        array = array.slice(int(positions.searchsorted(retired_position, side="right")))
    if retracted:
        array = array.filter(pc.invert(pc.is_in(array.field("position"), pa.array(retracted, pa.int64()))))
    # What is wrong with all rows shows at the first, or at the last: then the log is replayed instead.
    for row in (array.slice(0, 1), array.slice(max(len(array) - 1, 0))):
        _DELTA.to_values(row)
    return DeltaSequence.stored(array, _decoded)


def _decoded(rows: pa.StructArray) -> list[DeltaAdded]:
    try:
        return _present(_DELTA.to_values(rows))
    except (KeyError, ValueError) as error:
        raise Corrupt(
            f"a delta in a checkpoint cannot be read: {error}; delete the checkpoints of its stream, and its entries "
            "are read instead"
        ) from error


def _compacted(table: pa.Table) -> CompactedStream:
    files = {file.file_number: file for file in _present(FILE.to_values(_kind(table, "file")))}
    given = {"files": MappingProxyType(files)}
    (compacted,) = _present(_COMPACTED.to_values(_kind(table, "compacted"), given))
    return compacted


def _kind(table: pa.Table, name: str) -> pa.Array:
    """The rows of a kind, from the first to the last. A slice, for a filter copies every field."""
    column = table.column(name).combine_chunks()
    present = column.is_valid().to_numpy(zero_copy_only=False).nonzero()[0]
    return column.slice(present[0], present[-1] + 1 - present[0]) if len(present) else column.slice(0, 0)


def _present(values: list[ValueT | None]) -> list[ValueT]:
    return [value for value in values if value is not None]
