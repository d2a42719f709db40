"""Where job runs are kept: one log each, and a marker for those that have not ended.

A marker is a hint that saves listing every log: it is put before the first entry, and removed after the last event. A
marker without a log is what a crash in between leaves; it costs one read per look until it is old enough to be removed.
"""

from __future__ import annotations

from compactor.catalog.listing import encoded_names
from compactor.catalog.log import DurableLog
from compactor.catalog.paths import JobRunFolder, OpenJobRun, SessionFolder, decode, parse
from compactor.clock import Clock
from compactor.events import EventSink, Relay, SessionRelay, SessionSubject, session_log_events
from compactor.object_store import ObjectStore
from compactor.session_log import SESSION_LOG
from dispatcher.claims import JobRunLog
from dispatcher.job_run_events import job_run_events, subject_of
from dispatcher.job_runs import JOB_RUN_LOG, JobRunAction, JobRunState

EMPTY_MARKER_MS_MAX = 3_600_000
"""Nobody takes an hour from the marker to the first entry."""

JobRunRelay = Relay[JobRunState, JobRunAction]


class JobRunRecords:
    """The job runs of one dispatcher state. Threads may share one; a log should be shared by who works on it."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock

    def log(self, job_run_id: str) -> JobRunLog:
        """The log of a job run, which may be empty."""
        return DurableLog(self.store, JobRunFolder(job_run_id).log, JOB_RUN_LOG, self._clock)

    def state(self, job_run_id: str) -> JobRunState:
        return self.log(job_run_id).load().state

    def job_run_ids(self) -> list[str]:
        """Every job run that has a log, rejected ones too."""
        return sorted(decode(encoded) for encoded in encoded_names(self.store, "job_runs/"))

    # -- markers

    def mark_open(self, job_run_id: str) -> None:
        self.store.put_if_absent(OpenJobRun(job_run_id).key, b"")

    def mark_closed(self, job_run_id: str) -> None:
        self.store.delete(OpenJobRun(job_run_id).key)

    def open_job_run_ids(self) -> list[str]:
        """Job runs that may have work left, and no markers that have nothing to mark."""
        found = []
        for entry in self.store.list("open_job_runs/"):
            path = parse(entry.key)
            if not isinstance(path, OpenJobRun):
                continue
            if self._is_empty_and_old(path.job_run_id, entry.modified_at_ms):
                self.mark_closed(path.job_run_id)
            else:
                found.append(path.job_run_id)
        return found

    def _is_empty_and_old(self, job_run_id: str, marked_at_ms: int) -> bool:
        if self._clock.now_ms() - marked_at_ms < EMPTY_MARKER_MS_MAX:
            return False
        return self.log(job_run_id).load().entry_number == 0

    # -- events

    def relay(self, job_run_id: str, log: JobRunLog, state: JobRunState, sink: EventSink) -> JobRunRelay:
        """What publishes the events of a job run's own log; `state` is any fold after its first entry."""
        build = job_run_events(subject_of(job_run_id, state), log.folder, state)
        return Relay(log, self.store, JobRunFolder(job_run_id).published.key, build, sink)

    def session_relay(self, about: SessionSubject, sink: EventSink) -> SessionRelay:
        """What publishes the events of one session's log."""
        folder = SessionFolder(about.of.job_run_id, about.session_id)
        log = DurableLog(self.store, folder.log, SESSION_LOG, self._clock)
        return Relay(
            log,
            self.store,
            folder.published.key,
            lambda entry: session_log_events(about, folder.log, entry),
            sink,
        )
