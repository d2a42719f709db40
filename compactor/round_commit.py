"""Makes a round, or a rehash, durable: one log entry, or nothing.

The order of durable writes of a session, once:

    0. the destination table        its definition, where there is none; empty until 3, and no harm if nothing follows
    1. delta keys and survivors     Spark's own memory and disks; lost with the job
    2. index files and pointers,    the lake, under the commit id of this attempt, each brought to the disk; nobody
       compacted files, vectors     sees them
    3. the commit                   ONE entry of the compacted stream's log: files + index version + completion
    4. round done                   session log; a reader who finds 3 without 4 believes 3
    5. heartbeat                    a hint, overwritten
    6. session succeeded            session log

A crash before 3 leaves files that no entry names: garbage collection finds them. An answer lost at 3 is settled by the
log itself: the entry carries the commit id. After an unknown outcome nothing is deleted, by anybody.
"""

from __future__ import annotations

from typing import assert_never

from compactor.catalog.actions import IndexFile, IndexRehashed, RoundCommitted
from compactor.catalog.stream import PartitionStream
from compactor.catalog.transaction import Committed, Conflicted, commit
from compactor.errors import Fenced
from compactor.kernels.digest import DIGEST_ENCODING
from compactor.planning import ReadPoint, RoundPlan
from compactor.round_runner import RoundResult
from compactor.schemas import render_schema
from compactor.spec import SessionSpec
from compactor.steps.rehash import RehashPlan


def commit_round(stream: PartitionStream, plan: RoundPlan, completion: RoundCommitted) -> Committed:
    """Raises `Fenced` where the stream has moved on since the plan was made: another compactor is at work."""
    return _commit(stream, completion, plan.read_point)


def complete(spec: SessionSpec, plan: RoundPlan, result: RoundResult) -> RoundCommitted:
    """The completion of a round: what the log will say of it."""
    carried_bytes = sum(file.size_bytes for file in plan.compacted if file.file_number not in result.files_removed)
    return RoundCommitted(
        commit_id=plan.commit_id,
        job_run_id=spec.job_run.job_run_id,
        session_id=spec.session_id,
        round_number=plan.round_number,
        rounds=plan.rounds,
        source_table_id=spec.job_run.source_table_id,
        source_stream_version=spec.source_stream_version,
        processed=plan.processed,
        compacted_table_id=spec.job_run.destination_compacted_table_id,
        compacted_stream_version=plan.output.compacted_stream_version,
        primary_keys=plan.key_columns,
        sort_keys=plan.sort_keys,
        digest_encoding=DIGEST_ENCODING,
        compacted_schema=render_schema(plan.output.schema),
        hash_bucket_count=plan.hash_bucket_count,
        index_version=plan.output.index.index_version,
        bytes_at_rest=carried_bytes + sum(file.size_bytes for file in result.files_added),
        files_added=result.files_added,
        files_removed=result.files_removed,
        deletion_vectors=result.deletion_vectors,
        index_files=result.index_files,
        counts=result.counts,
        steps=result.steps,
    )


def commit_rehash(
    stream: PartitionStream,
    spec: SessionSpec,
    plan: RehashPlan,
    read_point: ReadPoint,
    compacted_stream_version: int,
    index_files: tuple[IndexFile, ...],
) -> Committed:
    """Raises `Fenced` as `commit_round` does."""
    action = IndexRehashed(
        commit_id=plan.target.commit_id,
        job_run_id=spec.job_run.job_run_id,
        session_id=spec.session_id,
        compacted_stream_version=compacted_stream_version,
        from_index_version=plan.from_index_version,
        index_version=plan.target.index_version,
        hash_bucket_count=plan.hash_bucket_count,
        index_files=index_files,
    )
    return _commit(stream, action, read_point)


def _commit(stream: PartitionStream, action: RoundCommitted | IndexRehashed, read_point: ReadPoint) -> Committed:
    outcome = commit(stream, action, read_point.index_version, read_point.round_commit_id)
    match outcome:
        case Committed():
            return outcome
        case Conflicted(reason=reason):
            raise Fenced(f"{action.session_id} was overtaken and commits nothing more: {reason}")
        case _:
            assert_never(outcome)
