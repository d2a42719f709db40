"""What is known of job runs, for people who ask: folds of the logs, and the heartbeats. Reads only."""

from __future__ import annotations

from pydantic import Field

from compactor.catalog.log import DurableLog
from compactor.catalog.paths import SessionFolder
from compactor.clock import Clock
from compactor.document import Document
from compactor.errors import Corrupt, Invalid
from compactor.session_log import SESSION_LOG, Heartbeat
from compactor.spec import Partition
from dispatcher.job_runs import JobRunState, JobRunStatus, SessionState
from dispatcher.records import JobRunRecords
from launcher.outcomes import Cancelled, Failed, NothingToDo, SessionEnd, Succeeded


class SessionView(Document):
    """One session. `eta_seconds` is what is left of the expected SLA; below 0 it is late."""

    session_id: str
    partition: Partition
    status: str
    attempt: int
    cluster: str | None
    rounds_done: int
    heartbeat: Heartbeat | None
    expected_sla: float | None
    eta_seconds: float | None
    end: SessionEnd | None
    reasons: tuple[str, ...]


class JobRunView(Document):
    """One job run. `seconds`: from its acceptance to its end, or to now."""

    job_run_id: str
    table: str | None
    destination: str | None
    status: str
    owner: str | None
    accepted_at_ms: int
    seconds: float
    cancel_requested: bool
    reasons: tuple[str, ...]
    sessions: tuple[SessionView, ...] = Field(default=())


def view_job_run(records: JobRunRecords, job_run_id: str, clock: Clock, *, with_sessions: bool = True) -> JobRunView:
    """Raises `Invalid` if there is no such job run."""
    log = records.log(job_run_id)
    state = log.load().state
    if state.status is JobRunStatus.ABSENT:
        raise Invalid(f"there is no job run {job_run_id!r} here: `lithify status` lists those there are")
    accepted_at_ms = next(iter(log.entries())).at_ms
    spec = state.accepted.spec if state.accepted is not None else None
    return JobRunView(
        job_run_id=job_run_id,
        table=spec.source_table_id if spec is not None else _rejected_table(state),
        destination=spec.destination_compacted_table_id if spec is not None else None,
        status=state.status,
        owner=state.claim.owner if state.claim is not None else None,
        accepted_at_ms=accepted_at_ms,
        seconds=_seconds(state, accepted_at_ms, clock),
        cancel_requested=state.cancel is not None,
        reasons=_reasons(state),
        sessions=_sessions(records, state, clock) if with_sessions else (),
    )


def view_all(records: JobRunRecords, clock: Clock) -> tuple[JobRunView, ...]:
    """Every job run, the latest first, without its sessions."""
    views = [view_job_run(records, job_run_id, clock, with_sessions=False) for job_run_id in records.job_run_ids()]
    return tuple(sorted(views, key=lambda view: view.accepted_at_ms, reverse=True))


def _sessions(records: JobRunRecords, state: JobRunState, clock: Clock) -> tuple[SessionView, ...]:
    if state.accepted is None:
        return ()
    job_run_id = state.accepted.spec.job_run_id
    return tuple(_session(records, job_run_id, session, clock) for session in state.sessions.values())


def _session(records: JobRunRecords, job_run_id: str, session: SessionState, clock: Clock) -> SessionView:
    folder = SessionFolder(job_run_id, session.pin.session_id)
    log = DurableLog(records.store, folder.log, SESSION_LOG, clock)
    running = log.load().state
    started_at_ms = next((entry.at_ms for entry in log.entries()), None)
    expected = running.expected_sla or (session.plan.expected_sla if session.plan is not None else None)
    eta_seconds = None
    if session.end is None and started_at_ms is not None and expected is not None:
        eta_seconds = expected - (clock.now_ms() - started_at_ms) / 1000
    return SessionView(
        session_id=session.pin.session_id,
        partition=session.pin.partition,
        status=_status(session),
        attempt=session.attempt,
        cluster=session.cluster,
        rounds_done=len(running.rounds_done),
        heartbeat=_heartbeat(records, folder) if session.end is None else None,
        expected_sla=expected,
        eta_seconds=eta_seconds,
        end=session.end,
        reasons=session.end.reasons if isinstance(session.end, Failed) else (),
    )


def _status(session: SessionState) -> str:
    match session.end:
        case Succeeded() | NothingToDo() | Failed() | Cancelled():
            return session.end.end
        case None:
            return "waiting" if session.attempt == 0 else "running"


def _heartbeat(records: JobRunRecords, folder: SessionFolder) -> Heartbeat | None:
    body = records.store.read(folder.heartbeat.key)
    if body is None:
        return None
    try:
        return Heartbeat.parse_durable(body, folder.heartbeat.key)
    except Corrupt:
        return None  # a hint: the next one will do


def _seconds(state: JobRunState, accepted_at_ms: int, clock: Clock) -> float:
    if state.ended is not None:
        return state.ended.seconds
    return 0.0 if state.rejected is not None else (clock.now_ms() - accepted_at_ms) / 1000


def _reasons(state: JobRunState) -> tuple[str, ...]:
    if state.rejected is not None:
        return state.rejected.reasons
    return state.ended.outcome.reasons if state.ended is not None else ()


def _rejected_table(state: JobRunState) -> str | None:
    return state.rejected.table if state.rejected is not None else None
