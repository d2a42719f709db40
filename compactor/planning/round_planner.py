"""Makes the plan of one round from the current compacted stream. Pure: it reads nothing, it names the input."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from compactor.catalog.snapshot import CompactedStream, ReadPoint, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.index.files import IndexTarget
from compactor.kernels.sort_values import encoded_width
from compactor.kernels.survivors import KEEP_FOR_EVER
from compactor.model.counts import Watermark
from compactor.model.files import IndexFile
from compactor.planning.round_plan import (
    CompactedSource,
    DeltaFileRef,
    DeltaSource,
    RehashPlan,
    RoundOutput,
    RoundPlan,
)
from compactor.planning.rounds import RoundLimits, rows_per_file, runs_to_absorb, watermark_after
from compactor.planning.session_input import SessionInput
from compactor.planning.sizing import spare_scratch_bytes
from compactor.planning.spec import SessionPlan
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile


@dataclass(frozen=True)
class RoundTurn:
    """One round of a session: its number among `rounds`, its files, and the next file of the stream, if any."""

    number: int
    rounds: int
    files: tuple[DeltaFileRef, ...]
    following: DeltaFileRef | None
    commit_id: str


def plan_round(
    location: StoreLocation, plan: SessionPlan, session: SessionInput, snapshot: StreamSnapshot, turn: RoundTurn
) -> RoundPlan:
    """The plan of one round. `snapshot` is that of the compacted stream after the previous round."""
    compacted = _continued(session, snapshot)
    run = plan.spec.job_run
    merges = session.streams.small_files_to_merge(compacted, turn.files)
    rewritten = session.files_to_rewrite(compacted)
    if not run.has_key:  # the last files are written again with the deltas behind them: one merge, in order
        rewritten = session.files_in_order({*rewritten, *(number for group in merges for number in group)}, compacted)
        merges = ()
    sources = _compacted_sources(session.streams.destination, compacted, rewritten, merges)
    rows = sum(ref.file.rows for ref in turn.files)
    processed = _processed(compacted, turn)
    index_files = () if compacted is None else compacted.index_files
    return RoundPlan(
        commit_id=turn.commit_id,
        round_number=turn.number,
        rounds=turn.rounds,
        location=location,
        read_point=ReadPoint.of(snapshot),
        compacted=sources,
        deltas=_delta_sources(session, turn.files, first_ordinal=len(sources)),
        index_files=index_files,
        absorbed_runs=runs_to_absorb(index_files, rows, _rows_to_absorb(plan, session, rows, index_files)),
        tombstones=0 if compacted is None else compacted.last_round.counts.tombstones,
        hash_bucket_count=plan.hash_bucket_count,
        key_columns=session.key_columns,
        sort_columns=session.sort_columns,
        sort_keys=session.sort_keys,
        processed=processed,
        horizon=processed.position,
        tombstone_retention=KEEP_FOR_EVER if run.tombstone_retention is None else run.tombstone_retention,
        output=RoundOutput(
            content_type=run.compacted_file_content_type,
            schema=session.schema,
            rows_per_compacted_file=rows_per_file(run, compacted, turn.files),
            private_columns=session.private_columns,
            max_dead_row_share=run.max_dead_row_share,
            own_parquet_pages=run.own_parquet_pages,
            page_check_share=run.page_check_share,
            compacted_stream_version=session.streams.compacted_stream_version,
            next_file_number=1 if compacted is None else compacted.next_file_number,
            index=_index_target(plan, session, snapshot, turn.commit_id),
            open_partition=tuple(session.streams.destination.partition.items()) if session.streams.is_open else None,
        ),
        tasks=plan.tasks,
        task_memory_bytes=plan.task_memory_bytes,
        spare_scratch_bytes=spare_scratch_bytes(plan.scratch_bytes_per_round),
    )


def plan_rehash(
    location: StoreLocation, plan: SessionPlan, session: SessionInput, compacted: CompactedStream, commit_id: str
) -> RehashPlan:
    """The plan that brings the inherited index to the session's hash bucket count."""
    return RehashPlan(
        location=location,
        index_files=compacted.index_files,
        sort_columns=session.sort_columns,
        from_index_version=compacted.index_version,
        from_hash_bucket_count=compacted.hash_bucket_count,
        keys=compacted.rows + compacted.last_round.counts.tombstones,
        hash_bucket_count=plan.hash_bucket_count,
        target=_index_target(plan, session, session.streams.snapshot, commit_id),
        task_memory_bytes=plan.task_memory_bytes,
    )


def _continued(session: SessionInput, snapshot: StreamSnapshot) -> CompactedStream | None:
    """The part of the snapshot that belongs to the compacted stream version which the session writes."""
    compacted = snapshot.compacted
    return compacted if compacted and compacted.stream_version == session.streams.compacted_stream_version else None


def _rows_to_absorb(plan: SessionPlan, session: SessionInput, rows: int, index_files: Sequence[IndexFile]) -> int:
    limits = RoundLimits(plan.task_memory_bytes, plan.hash_bucket_count, plan.scratch_bytes_per_round)
    return limits.rows_to_absorb(rows, sum(file.rows for file in index_files), encoded_width(session.sort_columns))


def _processed(compacted: CompactedStream | None, turn: RoundTurn) -> Watermark:
    """The position up to which the stream is compacted after the round; a round without files does not change it."""
    if turn.files or compacted is None:
        return watermark_after(turn.files, turn.following)
    return compacted.processed


def _index_target(plan: SessionPlan, session: SessionInput, snapshot: StreamSnapshot, commit_id: str) -> IndexTarget:
    return IndexTarget(
        stream=session.streams.destination.folder,
        index_version=snapshot.last_index_version + 1,
        commit_id=commit_id,
        rows_per_file=plan.spec.job_run.rows_per_primary_key_index_file,
    )


def _compacted_sources(
    destination: PartitionStream,
    compacted: CompactedStream | None,
    rewritten: Collection[int],
    merges: Sequence[Sequence[int]],
) -> tuple[CompactedSource, ...]:
    merge_of = {number: merge for merge, numbers in enumerate(merges) for number in numbers}
    files = sorted((compacted.files if compacted else {}).values(), key=lambda file: file.file_number)
    vectors = {vector.file_number: vector for vector in compacted.deletion_vectors} if compacted else {}
    return tuple(
        CompactedSource(
            ordinal=ordinal,
            file=TabularFile.of(destination.uri_of(file.path), file),
            rows=file.rows,
            size_bytes=file.size_bytes,
            file_number=file.file_number,
            vector=vectors.get(file.file_number),
            is_rewritten=file.file_number in rewritten,
            merge=merge_of.get(file.file_number),
        )
        for ordinal, file in enumerate(files)
    )


def _delta_sources(session: SessionInput, files: Sequence[DeltaFileRef], first_ordinal: int) -> tuple[DeltaSource, ...]:
    return tuple(
        DeltaSource(
            ordinal=ordinal,
            file=TabularFile.of(ref.uri, ref.file, ref.delta_id),
            rows=ref.file.rows,
            size_bytes=ref.file.size_bytes,
            position=ref.position,
            operation=ref.operation,
            sorts=(ref.position, ref.file.file_number) not in session.without_sort_values,
            row_groups=tuple(group.rows for group in ref.file.row_groups),
        )
        for ordinal, ref in enumerate(files, first_ordinal)
    )
