"""Retries a failed or cancelled job run as a new one, which names its predecessor.

The new one has the same request for the current lake: its sources are pinned again, earlier commits remain, and streams
without work have no session. There is no message, so of the order of durable writes in `dispatcher/intake/intake.py`
there are three: the marker, the entry that accepts it, the marker if it is gone. Any dispatcher of the state continues.

Its id is the first run's with a number, so that repeated requests start one: `orders`, `orders-retry-1`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactor.catalog.tables import DeltaCatalog
from compactor.log.durable_log import LogState
from compactor.model.clock import Clock
from compactor.model.errors import Invalid
from compactor.storage.keys import encode
from compactor.storage.location import StoreLocation
from dispatcher.intake.instruction import JOB_RUN_ID_BYTES_MAX
from dispatcher.intake.pinning import pin_sources
from dispatcher.records.job_run_log import JobRunAccepted, JobRunAction, JobRunState, JobRunStatus
from dispatcher.records.job_run_store import RETRIED, JobRunStore, next_retry_id


@dataclass(frozen=True)
class JobRunRetry:
    """A planned or begun retry. `stands`: it had been accepted before, and has not ended."""

    accepted: JobRunAccepted
    stands: bool

    @property
    def job_run_id(self) -> str:
        return self.accepted.spec.job_run_id


def plan_retry(
    records: JobRunStore, open_lake: Callable[[StoreLocation], DeltaCatalog], job_run_id: str, clock: Clock
) -> JobRunRetry:
    """Writes nothing. Raises `Invalid`, with every reason, if the job run must not be retried."""
    before = records.state(job_run_id)
    if before.accepted is None or before.status not in RETRIED:
        raise Invalid(_why_not(records, job_run_id, before))
    next_id = _next_id(job_run_id, before.accepted)
    existing = records.state(next_id)
    if existing.status is not JobRunStatus.ABSENT:
        return _existing(job_run_id, next_id, existing)
    spec = before.accepted.spec.model_copy(update={"job_run_id": next_id, "task_token": None})
    lake = open_lake(spec.lake)
    source = lake.table(spec.source_table_id)
    pinned = pin_sources(spec, lake, source, clock)
    accepted = before.accepted.model_copy(
        update={
            "spec": spec,
            "sessions": pinned.sessions,
            "pinned_until_ms": pinned.pinned_until_ms,
            "predecessor": job_run_id,
            "waiter": None,
        }
    )
    return JobRunRetry(accepted, stands=False)


def begin_retry(records: JobRunStore, retry: JobRunRetry) -> JobRunRetry:
    """Accepts the new job run. If another process was faster, returns what it accepted."""

    def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
        return [retry.accepted] if before.state.status is JobRunStatus.ABSENT else []

    if retry.stands:
        return retry
    mark = records.mark_open(retry.accepted)
    appended = records.log(retry.job_run_id).append(decide)
    records.mark(mark)
    if appended.entry is None:
        return _existing(retry.accepted.predecessor or "", retry.job_run_id, appended.after.state)
    return retry


def _next_id(job_run_id: str, accepted: JobRunAccepted) -> str:
    next_id = next_retry_id(job_run_id, accepted)
    if len(encode(next_id)) > JOB_RUN_ID_BYTES_MAX:
        raise Invalid(
            f"{next_id!r} would take more than {JOB_RUN_ID_BYTES_MAX} bytes in object keys: send its document again, "
            "with another job_run_id"
        )
    return next_id


def _existing(job_run_id: str, next_id: str, existing: JobRunState) -> JobRunRetry:
    accepted = existing.accepted
    if accepted is None or accepted.predecessor != job_run_id:
        raise Invalid(f"another job run is called {next_id}: send the document again, with another job_run_id")
    if existing.status in RETRIED:
        raise Invalid(
            f"{job_run_id} was run again as {next_id}, which is {existing.status}: `lithify retry {next_id}` goes on"
        )
    if not existing.status.is_open:
        raise Invalid(f"{job_run_id} was run again as {next_id}, which has {existing.status}")
    return JobRunRetry(accepted, stands=True)


def _why_not(records: JobRunStore, job_run_id: str, state: JobRunState) -> str:
    match state.status:
        case JobRunStatus.ABSENT if records.rejected_message_ids(job_run_id):
            return f"{job_run_id} was rejected: correct its document and send it, or `lithify redrive` it"
        case JobRunStatus.ABSENT:
            return f"there is no job run {job_run_id!r} here: `lithify status` lists those there are"
        case JobRunStatus.REJECTED:
            return f"{job_run_id} was rejected: correct its document and send it, or `lithify redrive` it"
        case JobRunStatus.SUCCEEDED:
            return f"{job_run_id} has succeeded: there is nothing to run again"
        case _:
            return f"{job_run_id} is {state.status}: only a job run that failed or was cancelled is run again"
