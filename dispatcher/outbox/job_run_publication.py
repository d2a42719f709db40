"""Publishes the events of one job run: those of its sessions' logs, then those of its own.

When that is done, and what happens after a failure, is for `event_publisher`.
"""

from collections.abc import Callable, Iterator, Sequence

from compactor.events.relay import EVENTS_PER_CALL, EventSink, PendingEvents, SessionRelay, SessionSubject
from compactor.log_context import LOG
from compactor.model.errors import Corrupt, Outdated
from compactor.sessions.session_log import SessionLog
from compactor.storage.concurrently import run_concurrently
from dispatcher.records.claims import JobRunLog
from dispatcher.records.history import EndedJobRun, ended_job_run
from dispatcher.records.job_run_events import subject_of
from dispatcher.records.job_run_log import JobRunState, JobRunStatus
from dispatcher.records.job_run_store import JobRunRelay, JobRunStore

SESSIONS_AT_ONCE = 50
"""Sessions whose events are sent in one call of the topic's sink, so that its batches are full."""


class JobRunPublication:
    """Publishes the log of one job run and the logs of its sessions."""

    def __init__(self, job_run_id: str, log: JobRunLog, state: JobRunState, *, is_new: bool = False) -> None:
        """`is_new`: no dispatcher can have published any of it."""
        self.job_run_id = job_run_id
        self._is_new = is_new
        self.topic_arn = state.accepted.spec.sns_event_topic_arn if state.accepted is not None else None
        self._log = log
        self._state = state
        self._run_relay: JobRunRelay | None = None
        self._session_relays: dict[str, tuple[SessionLog | None, SessionRelay]] = {}
        self._maybe_published = set(launched(state))
        """Sessions whose events a dispatcher may have published: another one, or this one since."""

    @property
    def newest(self) -> JobRunState:
        """The newest cached fold of its log."""
        newest = self._log.newest.state
        return newest if newest.status is not JobRunStatus.ABSENT else self._state

    @property
    def ended(self) -> Iterator[EndedJobRun]:
        """The job run's record for the history, if it has ended."""
        found = ended_job_run(self.job_run_id, self.newest, self._log.entry(1).at_ms)
        if found is not None:
            yield found

    def load(self) -> None:
        """Reads the new entries of the job run's log. Raises the store's errors."""
        self._log.load()

    def publish_pending(self, records: JobRunStore, sink: EventSink, sessions: dict[str, SessionLog | None]) -> None:
        """Publishes the pending events of these sessions' logs, many in one call, then those of the job run's log.
        Removes published sessions from `sessions`."""
        ids = sorted(sessions)
        for start in range(0, len(ids), SESSIONS_AT_ONCE):
            self._publish_sessions(records, sink, ids[start : start + SESSIONS_AT_ONCE], sessions)
        if self._run_relay is None:
            is_cleaned = self._is_cleaned(records)
            self._run_relay = records.relay(
                self.job_run_id, self._log, self.newest, sink, is_cleaned, is_unpublished=self._is_new
            )
        self._run_relay.publish()

    def _publish_sessions(
        self, records: JobRunStore, sink: EventSink, ids: Sequence[str], sessions: dict[str, SessionLog | None]
    ) -> None:
        relays = {
            session_id: self._session_relay(records, sink, session_id, sessions[session_id]) for session_id in ids
        }

        def collect(session_id: str) -> PendingEvents | None:
            try:
                return relays[session_id].collect()
            except (Corrupt, Outdated) as error:  # an unreadable log cannot be published here
                LOG.error("session_log_not_published", session_id=session_id, reason=str(error))
                return None

        where = records.store.location
        collected = dict(zip(ids, run_concurrently(where, collect, ids), strict=True))
        pending = [(relays[session_id], found) for session_id, found in collected.items() if found is not None]
        events = [event for _, found in pending for event in found.events]
        if events:
            sink.publish(events)
        run_concurrently(where, lambda each: each[0].move(each[1]), pending, writes=True)
        for relay, found in pending:
            if len(found.events) >= EVENTS_PER_CALL:
                relay.publish()  # there may be more
        for session_id in ids:
            del sessions[session_id]
        self._maybe_published |= set(ids)

    def _is_cleaned(self, records: JobRunStore) -> Callable[[], bool]:
        return lambda: records.is_cleaned(self.job_run_id, self._state, self._log.entry(1).at_ms)

    def _session_relay(
        self, records: JobRunStore, sink: EventSink, session_id: str, log: SessionLog | None
    ) -> SessionRelay:
        """`log`: that of the attempt's watcher, as far as it was read; None: it is read here."""
        known = self._session_relays.pop(session_id, None)
        has_ended = log is not None and log.newest.state.end is not None
        if known is not None and known[0] is log:
            if not has_ended:
                self._session_relays[session_id] = known
            return known[1]
        session = self.newest.sessions[session_id]
        about = SessionSubject(subject_of(self.job_run_id, self._state), session_id, session.pin.partition)
        is_new, is_cleaned = session_id not in self._maybe_published, self._is_cleaned(records)
        relay = records.session_relay(about, sink, is_cleaned, log=log, is_unpublished=is_new)
        if not has_ended:
            self._session_relays[session_id] = (log, relay)
        return relay


def launched(state: JobRunState) -> dict[str, SessionLog | None]:
    """Sessions that may have a log, none of which was read."""
    return {session_id: None for session_id, session in state.sessions.items() if session.attempt > 0}
