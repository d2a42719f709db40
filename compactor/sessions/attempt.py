"""One attempt at a session: runs it, and writes its end to the session log in every case but a crash."""

from contextlib import AbstractContextManager, nullcontext
from logging import ERROR, WARNING

from compactor.catalog.tables import DeltaCatalog
from compactor.engine.protocol import Engine, sentence_of
from compactor.log_context import bound, operator_log
from compactor.model.clock import Clock
from compactor.model.errors import ErrorKind, Fenced, LithifyError
from compactor.planning.named_deltas import naming_deltas
from compactor.planning.spec import SessionPlan, SessionResult
from compactor.sessions.session import SessionDependencies, run_session
from compactor.sessions.session_journal import SessionJournal
from compactor.task_progress import ProgressListener, listening


def run_attempt_with_journal(
    journal: SessionJournal,
    plan: SessionPlan,
    lake: DeltaCatalog,
    engine: Engine,
    clock: Clock,
    before_seconds: float,
    *,
    shares_core: bool = False,
) -> SessionResult:
    """Runs the session to its end. It was launched `before_seconds` ago. `shares_core`: as in `SessionDependencies`.

    Raises the error that ended it. The session log has the same error, except for `Fenced`: a superseded attempt writes
    nothing more.
    """
    spec = plan.spec
    about = bound(job_run_id=spec.job_run.job_run_id, session_id=spec.session_id, attempt=journal.attempt)
    with about, _listening(engine, clock) as listener, journal:
        journal.count_with(engine.tasks_done, lambda: 0 if listener is None else listener.rows())
        progress = None if listener is None else listener.address
        try:
            with naming_deltas(spec, lake), engine.translate_errors("the session"):
                dependencies = SessionDependencies(
                    lake, engine, clock, journal, progress, before_seconds, journal.attempt, shares_core
                )
                result = run_session(plan, dependencies)
        except Fenced as error:
            operator_log("attempt_ended", level=WARNING, end="fenced", reason=str(error))
            raise
        except LithifyError as error:
            operator_log("attempt_ended", level=ERROR, end="failed", error_kind=error.kind, reason=str(error))
            journal.failed(error.kind, error.reasons)
            raise
        except Exception as error:  # the log must have its end; the error is raised again
            reason = f"{type(error).__name__}: {sentence_of(error)}"
            operator_log("attempt_ended", level=ERROR, end="failed", error_kind=ErrorKind.BUG, reason=reason)
            journal.failed(ErrorKind.BUG, (reason,))
            raise
        try:
            journal.succeeded(result)
        except Fenced as error:
            operator_log("attempt_ended", level=WARNING, end="fenced", reason=str(error))
            raise
        operator_log(
            "attempt_ended",
            end="succeeded",
            rounds=result.rounds,
            rows_in=result.rows_in,
            rows_out=result.rows_out,
            seconds=round(result.seconds, 3),
        )
    return result


def _listening(engine: Engine, clock: Clock) -> AbstractContextManager[ProgressListener | None]:
    hosts = engine.driver_hosts()
    return nullcontext() if hosts is None else listening(*hosts, clock)
