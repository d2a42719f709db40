"""A session without Spark: compacts a stream of a few rows with a plain dict, and writes what the real job writes.

It reads its plan, writes its session log and heartbeat, and commits one round, through the same code as the real job;
only the compaction itself is a dict, and there is no index. Good for tests of whoever launches and watches sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from compactor.catalog.actions import DataFile, RoundCommitted, RowCounts, Watermark
from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.paths import CompactedFilePath, SessionFolder
from compactor.catalog.transaction import Committed, commit
from compactor.clock import Clock
from compactor.errors import Fenced
from compactor.names import ContentType, Operation
from compactor.object_store import ObjectStore
from compactor.schemas import render_schema
from compactor.session_input import SessionInput, read_session_input
from compactor.session_journal import SessionJournal
from compactor.spec import SessionPlan, SessionResult
from compactor.tabular import TabularFile, TabularWriter, read_table

Row = dict[str, object]


@dataclass(frozen=True)
class _Compacted:
    rows: list[Row]
    counts: RowCounts


def run_small_session(
    plan: SessionPlan,
    lake: DeltaCatalog,
    state: ObjectStore,
    attempt: int,
    clock: Clock,
    before_commit: Callable[[], None] = lambda: None,
) -> SessionResult:
    """The whole of it. `before_commit` is where a test holds it, or makes it fail."""
    spec = plan.spec
    journal = SessionJournal(state, SessionFolder(spec.job_run.job_run_id, spec.session_id), attempt, clock)
    with journal:
        session = read_session_input(spec, lake)
        journal.started(0, 1, sum(ref.file.rows for ref in session.pending), plan.expected_sla)
        run = spec.job_run
        lake.create_table_like(run.destination_compacted_table_id, lake.table(run.source_table_id))
        before_commit()
        completion = _commit(plan, session, lake, clock) if session.pending else None
        if completion is not None:
            journal.round_done(completion[0], completion[1], seconds=0.25)
        result = _result(plan, completion[1] if completion is not None else None)
        journal.succeeded(result)
    return result


def _commit(plan: SessionPlan, session: SessionInput, lake: DeltaCatalog, clock: Clock) -> tuple[int, RoundCommitted]:
    compacted = _compact(session, lake)
    before = session.snapshot.compacted
    commit_id = clock.new_id()
    path = CompactedFilePath(
        session.destination.folder, session.compacted_stream_version, commit_id, 1, ContentType.PARQUET
    )
    number = before.next_file_number if before is not None else 1
    uri = session.destination.uri_of(path.key)
    with TabularWriter.open(lake.location, uri, ContentType.PARQUET, session.schema) as writer:
        writer.write(pa.Table.from_pylist(compacted.rows, schema=session.schema))
        measured = writer.close()
    spec = plan.spec
    action = RoundCommitted(
        commit_id=commit_id,
        job_run_id=spec.job_run.job_run_id,
        session_id=spec.session_id,
        round_number=1,
        rounds=1,
        source_table_id=spec.job_run.source_table_id,
        source_stream_version=spec.source_stream_version,
        processed=Watermark(position=session.pending[-1].position),
        compacted_table_id=spec.job_run.destination_compacted_table_id,
        compacted_stream_version=session.compacted_stream_version,
        primary_keys=session.key_columns,
        sort_keys=session.sort_keys,
        digest_encoding=1,
        compacted_schema=render_schema(session.schema),
        hash_bucket_count=plan.hash_bucket_count,
        index_version=session.snapshot.last_index_version + 1,
        bytes_at_rest=measured.size_bytes,
        files_added=(
            DataFile(
                file_number=number,
                path=path.key,
                content_type=ContentType.PARQUET,
                rows=measured.rows,
                size_bytes=measured.size_bytes,
            ),
        ),
        files_removed=tuple(before.files) if before is not None else (),
        index_files=(),
        counts=compacted.counts,
        steps={},
    )
    read_index_version = before.index_version if before is not None else None
    read_commit_id = before.last_round.commit_id if before is not None else None
    outcome = commit(session.destination, action, read_index_version, read_commit_id)
    if not isinstance(outcome, Committed):
        raise Fenced(outcome.reason)
    return outcome.entry_number, action


def _compact(session: SessionInput, lake: DeltaCatalog) -> _Compacted:
    """Contract 2 for ascending sort keys of non-null values: later rows win ties."""
    held: dict[tuple[object, ...], tuple[tuple[object, ...], Row | None]] = {}
    rows_before = rows_in = deletes_that_won = 0
    columns = [key.column for key in session.sort_keys]

    def offer(row: Row, position: int, operation: Operation) -> None:
        key = tuple(row[column] for column in session.key_columns)
        rank = tuple(row.get(column, position) for column in columns) or (position,)
        if key not in held or held[key][0] <= rank:
            held[key] = (rank, row if operation is Operation.UPSERT else None)

    for file in session.compacted.files.values() if session.compacted is not None else ():
        for row in _rows(lake, session.destination.uri_of(file.path), file.content_type):
            offer(row, -1, Operation.UPSERT)
            rows_before += 1
    for ref in session.pending:
        for row in _rows(lake, ref.uri, ref.file.content_type):
            offer(row, ref.position, ref.operation)
            rows_in += 1
    rows = [row for _, row in held.values() if row is not None]
    deletes_that_won = len(held) - len(rows)
    counts = RowCounts(
        rows_before=rows_before,
        rows_in=rows_before + rows_in,
        rows_out=len(rows),
        rows_deduplicated=rows_before + rows_in - len(held),
        rows_deleted=deletes_that_won,
        rows_carried=0,
        tombstones=0,
    )
    return _Compacted(rows, counts)


def _rows(lake: DeltaCatalog, uri: str, content_type: ContentType) -> list[Row]:
    table: pa.Table = read_table(lake.location, TabularFile(uri, content_type))
    rows: list[Row] = table.to_pylist()
    return rows


def _result(plan: SessionPlan, completion: RoundCommitted | None) -> SessionResult:
    counts = completion.counts if completion is not None else None
    return SessionResult(
        session_id=plan.spec.session_id,
        partition=plan.spec.partition,
        rounds=1 if completion is not None else 0,
        rows_in=counts.rows_in if counts is not None else 0,
        rows_out=counts.rows_out if counts is not None else 0,
        rows_deduplicated=counts.rows_deduplicated if counts is not None else 0,
        rows_deleted=counts.rows_deleted if counts is not None else 0,
        seconds=0.25,
        expected_sla=plan.expected_sla,
        completions=(completion,) if completion is not None else (),
    )
