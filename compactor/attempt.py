"""One attempt at a session: runs it, and leaves its end in the session log whatever happens, short of a crash."""

from __future__ import annotations

from pyspark import SparkContext

from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.paths import JobRunFolder
from compactor.clock import Clock
from compactor.errors import Fenced, Invalid, LithifyError
from compactor.object_store import ObjectStore
from compactor.session import SessionTools, run_session
from compactor.session_journal import SessionJournal
from compactor.spec import SessionPlan, SessionResult

BUG = "bug"
"""The error kind of what no code expected."""


def run_attempt(
    plan: SessionPlan, lake: DeltaCatalog, state: ObjectStore, spark: SparkContext, attempt: int, clock: Clock
) -> SessionResult:
    """Runs the session to its end. Raises what ended it; the session log says the same, but for `Fenced`:

    who has been superseded writes nothing more.
    """
    folder = JobRunFolder(plan.spec.job_run.job_run_id).session(plan.spec.session_id)
    journal = SessionJournal(state, folder, attempt, clock)
    journal.count_tasks_with(lambda: _tasks_done(spark))
    with journal:
        try:
            result = run_session(plan, SessionTools(lake, spark, clock, journal))
        except Fenced:
            raise
        except LithifyError as error:
            reasons = error.reasons if isinstance(error, Invalid) else (str(error),)
            journal.failed(type(error).__name__, reasons)
            raise
        except Exception as error:  # the log must say how it ended; what it was is raised on
            journal.failed(BUG, (f"{type(error).__name__}: {error}",))
            raise
        journal.succeeded(result)
    return result


def _tasks_done(spark: SparkContext) -> int:
    tracker = spark.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
