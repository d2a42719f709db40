"""A session alone, as tests plan and run it: without a launcher, and without a journal of their own."""

from __future__ import annotations

from compactor.catalog.tables import DeltaCatalog
from compactor.engine.protocol import Engine
from compactor.model.clock import Clock
from compactor.planning.session_planner import measure_session, plan_measured
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan, SessionResult, SessionSpec
from compactor.sessions.attempt import run_attempt_with_journal
from compactor.sessions.keys import JobRunFolder
from compactor.sessions.session_journal import HeartbeatListener, SessionJournal
from compactor.storage.object_store import ObjectStore


def plan_session(
    spec: SessionSpec, lake: DeltaCatalog, resources: Resources, share_of_memory: float = 1.0
) -> SessionPlan:
    """Measures and sizes a session. Raises `Invalid` for input that can never be compacted as asked."""
    return plan_measured(measure_session(spec, lake), resources, share_of_memory)


def run_attempt(
    plan: SessionPlan,
    lake: DeltaCatalog,
    state: ObjectStore,
    engine: Engine,
    attempt: int,
    clock: Clock,
    *,
    on_heartbeat: HeartbeatListener = lambda _: None,
    before_seconds: float = 0.0,
) -> SessionResult:
    """Runs the session to its end, and calls `on_heartbeat` at each progress. It was launched `before_seconds` ago."""
    folder = JobRunFolder(plan.spec.job_run.job_run_id).session(plan.spec.session_id)
    journal = SessionJournal(state, folder, attempt, clock, on_heartbeat=on_heartbeat)
    return run_attempt_with_journal(journal, plan, lake, engine, clock, before_seconds)
