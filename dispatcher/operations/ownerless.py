"""The owners of running jobs by the logs of open sessions, for the sweep of `launcher/sweep.py`."""

from collections.abc import Iterator

from compactor.log_context import Logged
from compactor.model.errors import LithifyError
from compactor.storage.concurrently import run_concurrently
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.sessions import SessionState
from dispatcher.records.work_id import WorkId
from launcher.emr.settings import tag_value
from launcher.spark_job import job_name
from launcher.sweep import Owners, Sweep


def owners_in(records: JobRunStore, job_run_tags: frozenset[str]) -> Owners:
    """The attempts and bundles that the logs of open job runs name, of the job runs with these tags. Raises
    `Unavailable` if the open job runs cannot be listed."""
    if not job_run_tags:
        return Owners(frozenset())
    open_work = [each for each in records.open_work() if tag_value(each.job_run_id) in job_run_tags]
    states = run_concurrently(records.store.location, lambda work: _state_of(records, work), open_work)
    return Owners(
        names=frozenset(
            name
            for work, state in zip(open_work, states)
            if state is not None
            for session in state.open_sessions()
            for name in _names_of(records, work.job_run_id, session)
        ),
        unreadable_job_runs=tuple(work.job_run_id for work, state in zip(open_work, states) if state is None),
    )


def _names_of(records: JobRunStore, job_run_id: str, session: SessionState) -> Iterator[str]:
    yield job_name(records.store.location, job_run_id, session.pin.session_id, session.attempt)
    if session.in_flight is not None and session.in_flight.name is not None:
        yield session.in_flight.name  # of its bundle


def _state_of(records: JobRunStore, work: WorkId) -> JobRunState | None:
    """None: its log cannot be read now, or not by this release."""
    with Logged("owners_not_read", LithifyError, job_run_id=str(work)):
        return records.state(work.text)
    return None


def sweep_once(sweep: Sweep) -> None:
    """A dispatcher's own sweep. Services that do not answer are asked again the next time."""
    with Logged("clusters_not_swept", LithifyError):
        sweep.end(sweep.look().to_end)
