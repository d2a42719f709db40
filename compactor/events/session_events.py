"""The events that end a session, for every runner; and all events of sessions that run in the caller's process.

A launcher may try a session again, so it publishes the session's end. `compact()` makes one attempt, so here the end of
the attempt is the end of the session; another one follows only if it waits for a
compactor that began a moment before it.
"""

from collections.abc import Mapping
from typing import Protocol

from compactor.events.relay import Event, EventSink, Relay, SessionSubject, Subject, entry_event, session_log_events
from compactor.events.types import EventData, SessionFailedEvent, SessionSucceededEvent
from compactor.log.durable_log import DurableLog, Entry
from compactor.model.clock import Clock
from compactor.model.errors import ErrorKind
from compactor.planning.spec import SessionResult, SessionSpec
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import SESSION_LOG, SessionAction, SessionFailed, SessionLogState, SessionSucceeded
from compactor.storage.object_store import ObjectStore


def publish_session(spec: SessionSpec, state: ObjectStore, sink: EventSink, clock: Clock) -> None:
    """Publishes the events of the session's log. Raises the sink's errors; another call publishes the rest."""
    subject = Subject(spec.job_run.job_run_id, spec.job_run.source_table_id)
    about = SessionSubject(subject, spec.session_id, spec.partition)
    folder = SessionFolder(spec.job_run.job_run_id, spec.session_id)
    log: DurableLog[SessionLogState, SessionAction] = DurableLog(state, folder.log, SESSION_LOG, clock)

    def build(entry: Entry[SessionAction]) -> tuple[Event, ...]:
        ends = ((ordinal, _end(about, action)) for ordinal, action in enumerate(entry.actions))
        end_events = (
            entry_event(subject, folder.log, entry, ordinal, data) for ordinal, data in ends if data is not None
        )
        return (*session_log_events(about, folder.log, entry), *end_events)

    Relay(log, state, folder.published.key, build, sink).publish()


def _end(about: SessionSubject, action: SessionAction) -> EventData | None:
    if isinstance(action, SessionSucceeded):
        return session_succeeded(about.session_id, about.partition, action.result)
    if isinstance(action, SessionFailed):
        return session_failed(about.session_id, about.partition, action)
    return None


class EndedInFailure(Protocol):
    """A failure in a log: an attempt's, or a session's."""

    @property
    def attempt(self) -> int: ...
    @property
    def error_kind(self) -> ErrorKind: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...


def session_succeeded(
    session_id: str, partition: Mapping[str, str], result: SessionResult | None
) -> SessionSucceededEvent:
    """`result` None: there was nothing to do, so nothing was launched."""
    if result is not None:
        return SessionSucceededEvent.from_facts(
            result,
            session_id=session_id,
            partition=dict(partition),
            nothing_to_do=result.rounds == 0 and result.rehashed_from is None,
        )
    return SessionSucceededEvent(
        session_id=session_id,
        partition=dict(partition),
        nothing_to_do=True,
        rounds=0,
        rows_in=0,
        rows_out=0,
        rows_deduplicated=0,
        rows_deleted=0,
        seconds=0.0,
        expected_sla=None,
    )


def session_failed(session_id: str, partition: Mapping[str, str], failure: EndedInFailure) -> SessionFailedEvent:
    return SessionFailedEvent.from_facts(failure, session_id=session_id, partition=dict(partition))
