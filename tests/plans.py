"""Specs, plans and results of which a test says no more than what it is about."""

from __future__ import annotations

from collections.abc import Mapping

from compactor.planning.spec import JobRunSpec, SessionPlan, SessionResult, SessionSpec
from compactor.storage.location import StoreLocation
from dispatcher.records.sessions import SessionPin

TABLE = "A.B.V1"
LAKE = StoreLocation("file:///lake")


def a_run(table_id: str = TABLE, **fields: object) -> JobRunSpec:
    """A job run of a table whose key is `id`, into the same table."""
    defaults = {"job_run_id": "run", "primary_keys": ("id",), "lake": LAKE, "destination_compacted_table_id": table_id}
    return JobRunSpec(source_table_id=table_id, **{**defaults, **fields})  # type: ignore[arg-type]


def a_pin(session_id: str = "run.1", partition: Mapping[str, str] | None = None) -> SessionPin:
    return SessionPin(
        session_id=session_id,
        partition=dict(partition or {}),
        source_stream_version=1,
        source_entry_number=1,
        source_position=1,
        destination_entry_number=1,
    )


def a_session(run: JobRunSpec | None = None) -> SessionSpec:
    return SessionSpec.from_facts(a_pin(), job_run=run or a_run())


def a_plan(session: SessionSpec | None = None, **fields: object) -> SessionPlan:
    ones = {"hash_bucket_count": 1, "max_rows_per_round": 1, "task_memory_bytes": 1, "tasks": 1, "expected_sla": 1.0}
    return SessionPlan(spec=session or a_session(), arithmetic=(), **{**ones, **fields})  # type: ignore[arg-type]


def a_result(session_id: str = "run.1", **fields: object) -> SessionResult:
    """Of one round that has added a row."""
    counts = {"rounds": 1, "rows_in": 1, "rows_out": 1, "rows_deduplicated": 0, "rows_deleted": 0}
    defaults = {"partition": {}, **counts, "seconds": 1.0, "expected_sla": 1.0}
    return SessionResult(session_id=session_id, **{**defaults, **fields})  # type: ignore[arg-type]
