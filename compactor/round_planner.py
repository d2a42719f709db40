"""Makes the plan of one round from where the compacted stream stands. Pure: it reads nothing, it names what to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.catalog.actions import Watermark
from compactor.catalog.snapshot import CompactedStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.index.files import IndexTarget
from compactor.kernels.survivors import KEEP_FOR_EVER
from compactor.object_store import StoreLocation
from compactor.planning import (
    CompactedSource,
    DeltaFileRef,
    DeltaSource,
    Output,
    ReadPoint,
    RoundPlan,
    runs_to_absorb,
    watermark_after,
)
from compactor.session_input import SessionInput
from compactor.spec import SessionPlan
from compactor.steps.rehash import RehashPlan
from compactor.tabular import TabularFile


@dataclass(frozen=True)
class RoundTurn:
    """Which round it is: its number among `rounds`, its files, and the file that follows them in the stream, if any."""

    number: int
    rounds: int
    files: tuple[DeltaFileRef, ...]
    following: DeltaFileRef | None
    commit_id: str


def plan_round(
    location: StoreLocation, plan: SessionPlan, session: SessionInput, snapshot: StreamSnapshot, turn: RoundTurn
) -> RoundPlan:
    """The plan of one round. `snapshot` is of the compacted stream, as the round before left it."""
    compacted = _continued(session, snapshot)
    run = plan.spec.job_run
    sources = _compacted_sources(session.destination, compacted)
    rows = sum(ref.file.rows for ref in turn.files)
    processed = _processed(compacted, turn)
    return RoundPlan(
        commit_id=turn.commit_id,
        round_number=turn.number,
        rounds=turn.rounds,
        location=location,
        read_point=read_point(snapshot),
        compacted=sources,
        deltas=_delta_sources(session, turn.files, first_ordinal=len(sources)),
        index_files=() if compacted is None else compacted.index_files,
        absorbed_runs=frozenset() if compacted is None else runs_to_absorb(compacted.index_files, rows),
        tombstones=0 if compacted is None else compacted.last_round.counts.tombstones,
        hash_bucket_count=plan.hash_bucket_count,
        key_columns=session.key_columns,
        sort_columns=session.sort_columns,
        sort_keys=session.sort_keys,
        processed=processed,
        horizon=processed.position,
        tombstone_retention=KEEP_FOR_EVER if run.tombstone_retention is None else run.tombstone_retention,
        output=Output(
            content_type=run.compacted_file_content_type,
            schema=session.schema,
            rows_per_compacted_file=run.rows_per_compacted_file,
            max_dead_row_share=run.max_dead_row_share,
            compacted_stream_version=session.compacted_stream_version,
            next_file_number=1 if compacted is None else compacted.next_file_number,
            index=_index_target(plan, session, snapshot, turn.commit_id),
        ),
        tasks=plan.tasks,
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
        target=_index_target(plan, session, session.snapshot, commit_id),
    )


def read_point(snapshot: StreamSnapshot) -> ReadPoint:
    """Where the compacted side of a stream stands."""
    if snapshot.compacted is None:
        return ReadPoint(None, None)
    return ReadPoint(snapshot.compacted.last_round.commit_id, snapshot.compacted.index_version)


def _continued(session: SessionInput, snapshot: StreamSnapshot) -> CompactedStream | None:
    """What the snapshot holds of the compacted stream version that the session writes."""
    compacted = snapshot.compacted
    return compacted if compacted and compacted.stream_version == session.compacted_stream_version else None


def _processed(compacted: CompactedStream | None, turn: RoundTurn) -> Watermark:
    """How far the stream is compacted after the round; a round without files leaves that where it was."""
    if turn.files or compacted is None:
        return watermark_after(turn.files, turn.following)
    return compacted.processed


def _index_target(plan: SessionPlan, session: SessionInput, snapshot: StreamSnapshot, commit_id: str) -> IndexTarget:
    return IndexTarget(
        stream=session.destination.folder,
        index_version=snapshot.last_index_version + 1,
        commit_id=commit_id,
        rows_per_file=plan.spec.job_run.rows_per_primary_key_index_file,
    )


def _compacted_sources(destination: PartitionStream, compacted: CompactedStream | None) -> tuple[CompactedSource, ...]:
    files = sorted((compacted.files if compacted else {}).values(), key=lambda file: file.file_number)
    vectors = {vector.file_number: vector for vector in compacted.deletion_vectors} if compacted else {}
    return tuple(
        CompactedSource(
            ordinal=ordinal,
            file=TabularFile(destination.uri_of(file.path), file.content_type),
            rows=file.rows,
            size_bytes=file.size_bytes,
            file_number=file.file_number,
            vector=vectors.get(file.file_number),
        )
        for ordinal, file in enumerate(files)
    )


def _delta_sources(session: SessionInput, files: Sequence[DeltaFileRef], first_ordinal: int) -> tuple[DeltaSource, ...]:
    return tuple(
        DeltaSource(
            ordinal=ordinal,
            file=TabularFile(ref.uri, ref.file.content_type),
            rows=ref.file.rows,
            size_bytes=ref.file.size_bytes,
            position=ref.position,
            operation=ref.operation,
            sorts=(ref.position, ref.file.file_number) not in session.without_sort_values,
        )
        for ordinal, ref in enumerate(files, first_ordinal)
    )
