"""Makes a round, or a rehash, durable: one log entry, or nothing.

The order of durable writes of a session:

    00. session started             session log; on an object store it is written beside the first reads, and is
                                    durable before 0b and 3, as 4 is before the next round's 3
    0. the destination table        its definition, if there is none; empty until 3, harmless if nothing follows
    0b. the session's plan          of a table with `session_plans`: an entry of the compacted stream's log; in force
                                    until the last commit, the session's failure or its time-out
    1. delta keys and survivors     Spark's own memory and disks; lost with the job
    2. index files and pointers,    the lake, under the commit id of this attempt, each fsynced; not visible
       compacted files, vectors
    3a. deltas taken                an entry of the source's log, if that is another table: from here on none of
                                    the round's deltas can be retracted, though 3 may fail
    3. the commit                   ONE entry of the compacted stream's log: files + index version + completion
    3b. publication                 of a published table, by others, at any time after 3: deletion vectors, under names
                                    that follow from ours, then one commit of Delta Lake (`publishing/delta.py`);
                                    position deletes, manifests and their list, then the metadata of Apache Iceberg,
                                    then its hint (`publishing/iceberg_log.py`). A format waits for no other one. Last,
                                    by dispatchers, the tables of AWS Glue that lead there (`publishing/glue.py`)
    4. round done                   session log; for readers, 3 is decisive if 4 is missing; of the last round, 4 and 6
                                    are one entry
    5. heartbeat                    a hint, overwritten
    6. session succeeded            session log

A crash before 3 leaves files that no entry names: garbage collection finds them. A lost answer at 3 is settled by the
log itself: the entry carries the commit id. After an unknown outcome nothing is deleted.
"""

from collections.abc import Collection
from logging import WARNING
from typing import assert_never

from compactor.catalog.actions import IndexRehashed, RoundCommitted, SessionTiming
from compactor.catalog.appending import take_deltas
from compactor.catalog.snapshot import ReadPoint
from compactor.catalog.stream import PartitionStream
from compactor.catalog.transaction import Committed, Conflicted, commit
from compactor.kernels.digest import DIGEST_ENCODING
from compactor.log_context import operator_log
from compactor.model.errors import Fenced, Unavailable
from compactor.model.files import IndexFile
from compactor.planning.round_plan import RehashPlan, RoundPlan
from compactor.planning.spec import SessionSpec
from compactor.schemas.unify import render_schema
from compactor.sessions.round_runner import RoundResult


def commit_round(
    stream: PartitionStream,
    source: PartitionStream,
    plan: RoundPlan,
    completion: RoundCommitted,
    plan_id: str | None = None,
) -> Committed:
    """Raises `Fenced` if the stream has moved on since the plan was made, since another compactor is at work; and if a
    delta that the round has read was retracted.

    Args:
        plan_id: the session's plan in the log; None: it has none"""
    positions = frozenset(delta.position for delta in plan.deltas)
    if source.folder == stream.folder:
        return _commit(stream, completion, plan.read_point, positions, plan_id=plan_id)
    if positions:
        version, into = completion.source_stream_version, completion.compacted_table_id
        source.log.append(lambda at: take_deltas(at.state, version, positions, into))
    return _commit(stream, completion, plan.read_point, plan_id=plan_id)


def complete(
    spec: SessionSpec, plan: RoundPlan, result: RoundResult, now_ms: int, timings: tuple[SessionTiming, ...]
) -> RoundCommitted:
    """The completion of a round for the log."""
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
        tombstone_retention=spec.job_run.tombstone_retention,
        at_ms=now_ms,
        timings=timings,
    )


def commit_rehash(
    stream: PartitionStream,
    spec: SessionSpec,
    plan: RehashPlan,
    read_point: ReadPoint,
    compacted_stream_version: int,
    index_files: tuple[IndexFile, ...],
    *,
    plan_id: str | None = None,
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
    return _commit(stream, action, read_point, plan_id=plan_id)


def _commit(
    stream: PartitionStream,
    action: RoundCommitted | IndexRehashed,
    read_point: ReadPoint,
    read_positions: Collection[int] = (),
    *,
    plan_id: str | None,
) -> Committed:
    try:
        outcome = commit(stream, action, read_point, read_positions, plan_id)
    except Unavailable as error:
        operator_log("commit_outcome_unknown", level=WARNING, commit_id=action.commit_id, reason=str(error))
        raise
    match outcome:
        case Committed(entry_number=entry_number):
            _log_round(action, entry_number)
            return outcome
        case Conflicted(sentence=sentence, reason=reason):
            operator_log("commit_fenced", level=WARNING, commit_id=action.commit_id, reason=reason)
            raise Fenced(sentence)
        case _:
            assert_never(outcome)


def _log_round(action: RoundCommitted | IndexRehashed, entry_number: int) -> None:
    if isinstance(action, IndexRehashed):
        buckets = action.hash_bucket_count
        operator_log("rehash_committed", entry_number=entry_number, commit_id=action.commit_id, hash_buckets=buckets)
        return
    operator_log(
        "round_committed",
        entry_number=entry_number,
        commit_id=action.commit_id,
        round_number=action.round_number,
        rounds=action.rounds,
        rows_in=action.counts.rows_in,
        rows_out=action.counts.rows_out,
    )
