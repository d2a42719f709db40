"""Merge on read: the rows of partition streams as if they were compacted now. Writes nothing.

What a compaction would take is decided by the planner of compactions (`planning/session_planner.py`): a stream of which
it would take nothing is shown as it is compacted. Keys and tombstone retention are those of the last compaction.

It runs a round's steps in this process until the survivors are known: it reads the key columns of the pending deltas
and the whole index of the stream. It is meant for streams that are compacted so often that few deltas are pending.

A stream that was never compacted is merged by the keys of the table's properties, else by those of the table's other
partitions, if these agree; otherwise the view is refused, since a stream left out would look like an empty one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid
from compactor.model.files import DataFile
from compactor.model.names import ContentType, PartitionValues, counted
from compactor.planning.round_plan import RoundPlan, RowsToHash
from compactor.planning.round_planner import RoundTurn, plan_round
from compactor.planning.session_input import SessionInput, read_session_input
from compactor.planning.session_planner import pin_stream
from compactor.planning.spec import DEFAULT_SORT_KEYS, JobRunSpec, SessionPlan, SessionSpec
from compactor.steps.dedupe import DedupeStep, dedupe_bucket, indexed_buckets
from compactor.steps.hash_bucket import HashedRows, HashStep, hash_rows
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore

_NAME = "merge-on-read"
_NO_BOUND = 1 << 62
_HASH_BUCKET_COUNT = 8
"""Parts in which the rows of a stream without an index are hashed and sorted."""


@dataclass(frozen=True)
class MergedFile:
    """A compacted file or a delta file, and its surviving rows (int64, ascending)."""

    uri: str
    file: DataFile
    kept: npt.NDArray[np.int64]
    is_delta: bool


@dataclass(frozen=True)
class MergedStream:
    """The merged view of one partition stream."""

    stream: PartitionStream
    schema: pa.Schema
    files: tuple[MergedFile, ...]


@dataclass(frozen=True)
class _Keys:
    """The keys by which a partition stream is compacted, and its source table."""

    source_table_id: str
    primary_keys: tuple[str, ...]
    sort_keys: tuple[SortKey, ...]


@dataclass(frozen=True)
class _Opened:
    """A partition stream at the end of its log. `keys` None: it was never compacted.

    Attributes:
        tombstone_retention: of its last compaction; None: for ever"""

    stream: PartitionStream
    keys: _Keys | None
    has_deltas: bool
    tombstone_retention: int | None = None

    @property
    def is_new(self) -> bool:
        """Whether all of its rows are in deltas, and its keys are not known yet."""
        return self.keys is None and self.has_deltas

    @property
    def is_empty(self) -> bool:
        """Whether it has no rows itself, but another table may have some that are compacted into it next."""
        return self.keys is None and not self.has_deltas


def merge_table(
    store: ObjectStore,
    table_id: str,
    streams: Sequence[PartitionStream],
    *,
    others: Sequence[PartitionStream] = (),
    selected: Callable[[Sequence[PartitionValues]], Sequence[PartitionValues]] | None = None,
) -> list[MergedStream | PartitionStream]:
    """The merged view of these partition streams of a table, in their order; of one without a pending delta the stream,
    whose compacted rows are all. Raises `Invalid`, with the stream's name, if one has deltas and its keys are unknown.

    Args:
        others: streams of the table that only tell keys. The table's further logs are read where these do not suffice
        selected: which of some partitions are to be merged, where that is not a list: if another table is compacted
            into this one, partitions that only the other one has are merged too; None: it is only asked for these"""
    lake = DeltaCatalog(store, SystemClock()).for_one_run()
    table = lake.table(table_id)
    opened = run_concurrently(store.location, _open, streams)
    telling = [*opened, *run_concurrently(store.location, _open, others)]
    if any(each.is_new for each in opened):
        opened = _with_keys_of_table(table, opened)
    empty = [each.stream.partition for each in opened if each.is_empty]
    if selected is None and empty:
        telling += _open_others(store, table, telling)
    in_sources = list(_in_sources_only(lake, table, _known(telling), selected, empty))
    if in_sources or any(each.is_new for each in opened):
        telling += _open_others(store, table, telling)
    known = _known(telling)
    opened += [replace(each, keys=_only(known)) for each in in_sources]
    return run_concurrently(store.location, lambda each: _merge(lake, each), _with_keys(opened, known))


def _open(stream: PartitionStream) -> _Opened:
    snapshot = stream.load().state
    compacted, active = snapshot.compacted, snapshot.active
    has_deltas = active is not None and bool(active.deltas)
    if compacted is None:
        return _Opened(stream, None, has_deltas)
    keys = _Keys(compacted.source_table_id, compacted.primary_keys, compacted.sort_keys)
    return _Opened(stream, keys, has_deltas, compacted.last_round.tombstone_retention)


def _open_others(store: ObjectStore, table: Table, opened: Sequence[_Opened]) -> list[_Opened]:
    """The streams of the table that are not opened yet."""
    read = {each.stream.folder.partition for each in opened}
    unread = [each for each in map(table.stream, table.partitions()) if each.folder.partition not in read]
    return run_concurrently(store.location, _open, unread)


def _known(opened: Sequence[_Opened]) -> dict[_Keys, set[int | None]]:
    """The keys by which streams were compacted, with the retentions of tombstones."""
    known: dict[_Keys, set[int | None]] = {}
    for each in opened:
        if each.keys is not None:
            known.setdefault(each.keys, set()).add(each.tombstone_retention)
    return known


def _in_sources_only(
    lake: DeltaCatalog,
    table: Table,
    known: Iterable[_Keys],
    selected: Callable[[Sequence[PartitionValues]], Sequence[PartitionValues]] | None,
    empty: Sequence[PartitionValues],
) -> Iterator[_Opened]:
    """Selected partitions of the source tables of which this table has no rows yet; `selected` None: the empty ones."""
    source_table_ids = sorted({keys.source_table_id for keys in known} - {table.table_id})
    there: set[tuple[tuple[str, str], ...]] = set()
    if source_table_ids and selected is not None:
        there = {tuple(each.items()) for each in table.partitions()} - {tuple(each.items()) for each in empty}
    for source_table_id in source_table_ids:
        source = lake.table(source_table_id)
        found: Sequence[PartitionValues] = empty
        if selected is not None:
            found = selected([each for each in source.partitions() if tuple(each.items()) not in there])
        for partition in found:
            if _open(source.stream(partition)).has_deltas:
                yield _Opened(table.stream(partition), None, has_deltas=True)


def _with_keys_of_table(table: Table, opened: Sequence[_Opened]) -> list[_Opened]:
    """Those that were never compacted by the keys of the table's properties, if it has any."""
    primary_keys, sort_keys = table.properties.primary_keys, table.properties.sort_keys
    if primary_keys is None:
        return list(opened)
    own_sort_keys = () if sort_keys in (None, DEFAULT_SORT_KEYS) else sort_keys
    keys = _Keys(table.table_id, tuple(sorted(primary_keys)), own_sort_keys or ())
    return [replace(each, keys=keys) if each.is_new else each for each in opened]


def _only(known: Mapping[_Keys, set[int | None]]) -> _Keys | None:
    return next(iter(known)) if len(known) == 1 else None


def _with_keys(opened: Sequence[_Opened], known: Mapping[_Keys, set[int | None]]) -> list[_Opened]:
    """The streams that have rows, each with its keys. Raises `Invalid` if one has deltas and unknown keys."""
    only = _only(known)
    unknown = [
        each.stream for each in opened if each.is_new and (only is None or only.source_table_id != each.stream.table_id)
    ]
    if unknown:
        others = len(unknown) - 1
        verb = f" and {counted(others, 'more partition')} were" if others else " was"
        why = "the table's other partitions have different keys" if known else "its keys are unknown"
        raise Invalid(
            f"{unknown[0]}{verb} never compacted, and {why}: compact it, or leave out what is not compacted yet "
            "with view='compacted'"
        )
    retentions = known[only] if only is not None else set()
    retention = next(iter(retentions)) if len(retentions) == 1 else None
    with_keys = (replace(each, keys=only, tombstone_retention=retention) if each.is_new else each for each in opened)
    return [each for each in with_keys if each.keys is not None]


def _merge(lake: DeltaCatalog, opened: _Opened) -> MergedStream | PartitionStream:
    """The stream itself if a compaction that begins now would take no delta."""
    stream, keys = opened.stream, opened.keys
    if keys is None:
        return stream
    run = JobRunSpec(
        job_run_id=_NAME,
        source_table_id=keys.source_table_id,
        primary_keys=keys.primary_keys,
        sort_keys=keys.sort_keys or DEFAULT_SORT_KEYS,
        lake=lake.location,
        destination_compacted_table_id=stream.table_id,
        compacted_file_content_type=ContentType.FEATHER,  # the one that holds every type: nothing is written
        tombstone_retention=opened.tombstone_retention,
    )
    source = lake.table(keys.source_table_id)
    pinned = pin_stream(run, source, lake.table_like(stream.table_id, source), stream.partition, number=1)
    if pinned is None or not pinned.work.delta_files:
        return stream
    session = read_session_input(pinned.spec, lake, only_reads=True)
    kept = _surviving_rows(_plan(lake, pinned.spec, session))
    compacted = [] if session.streams.compacted is None else sorted(session.streams.compacted.files.items())
    files = [
        *((stream.uri_of(file.path), file, False) for _, file in compacted),
        *((ref.uri, ref.file, True) for ref in session.streams.pending),
    ]
    merged = (
        MergedFile(uri, file, kept[ordinal], is_delta=is_delta) for ordinal, (uri, file, is_delta) in enumerate(files)
    )
    return MergedStream(stream, session.schema, tuple(merged))


def _plan(lake: DeltaCatalog, spec: SessionSpec, session: SessionInput) -> RoundPlan:
    compacted: CompactedStream | None = session.streams.compacted
    plan = SessionPlan(
        spec=spec,
        hash_bucket_count=_HASH_BUCKET_COUNT if compacted is None else compacted.hash_bucket_count,
        max_rows_per_round=_NO_BOUND,
        task_memory_bytes=_NO_BOUND,
        tasks=1,
        expected_sla=0.0,
        arithmetic=(),
    )
    turn = RoundTurn(1, 1, session.streams.pending, None, _NAME)
    round_plan = plan_round(lake.location, plan, session, session.streams.snapshot, turn)
    # Every run is absorbed, so dedupe returns every live row of the stream.
    return replace(round_plan, absorbed_runs=frozenset(file.run for file in round_plan.index_files))


def _surviving_rows(plan: RoundPlan) -> Sequence[npt.NDArray[np.int64]]:
    """The surviving rows of every source file, by ordinal."""
    if not plan.key_columns:
        return [np.arange(file.rows, dtype=np.int64) for file in plan.sources]
    hashing, deduping = HashStep.of(plan), DedupeStep.of(plan)
    blocks: dict[int, list[HashedRows]] = defaultdict(list)
    for file in plan.deltas:
        for bucket, block in hash_rows(hashing, [RowsToHash.all_of(file)]):
            blocks[bucket].append(block)
    found = chain.from_iterable(
        dedupe_bucket(deduping, bucket, blocks[bucket.hash_bucket]) for bucket in indexed_buckets(plan)
    )
    pointers = [(piece.run.ordinals_of_rows, piece.run.indices_of_rows) for piece in found]
    ordinals = np.concatenate([np.empty(0, np.int32), *(ordinals for ordinals, _ in pointers)])
    rows = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in pointers)])
    order = np.lexsort((rows, ordinals))
    starts = np.searchsorted(ordinals[order], np.arange(len(plan.sources) + 1))
    return [rows[order[starts[ordinal] : starts[ordinal + 1]]] for ordinal in range(len(plan.sources))]
