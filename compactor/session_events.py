"""The events of sessions that run in the caller's own process: those of the session log, and how each session ended.

Where a launcher may try a session again, its end is the launcher's to tell; `compact()` tries once, so here an
attempt's end is the session's.
"""

from __future__ import annotations

from compactor import event_types as said
from compactor.catalog.log import DurableLog, Entry
from compactor.catalog.paths import SessionFolder
from compactor.clock import Clock
from compactor.event_types import EventData
from compactor.events import Event, EventSink, Relay, SessionSubject, Subject, bounded, entry_event, session_log_events
from compactor.object_store import ObjectStore
from compactor.session_log import SESSION_LOG, SessionAction, SessionFailed, SessionState, SessionSucceeded
from compactor.spec import SessionSpec


def publish_session(spec: SessionSpec, state: ObjectStore, sink: EventSink, clock: Clock) -> None:
    """Publishes what the session's log has to tell. Raises what the sink raises; another call publishes the rest."""
    subject = Subject(spec.job_run.job_run_id, spec.job_run.source_table_id)
    about = SessionSubject(subject, spec.session_id, spec.partition)
    folder = SessionFolder(spec.job_run.job_run_id, spec.session_id)
    log: DurableLog[SessionState, SessionAction] = DurableLog(state, folder.log, SESSION_LOG, clock)

    def build(entry: Entry[SessionAction]) -> tuple[Event, ...]:
        ends = ((place, _end(about, action)) for place, action in enumerate(entry.actions))
        told = (entry_event(subject, folder.log, entry, place, data) for place, data in ends if data is not None)
        return (*session_log_events(about, folder.log, entry), *told)

    Relay(log, state, folder.published.key, build, sink).publish()


def _end(about: SessionSubject, action: SessionAction) -> EventData | None:
    if isinstance(action, SessionSucceeded):
        result = action.result
        return said.SessionSucceeded(
            session_id=about.session_id,
            partition=dict(about.partition),
            nothing_to_do=result.rounds == 0,
            rounds=result.rounds,
            rows_in=result.rows_in,
            rows_out=result.rows_out,
            rows_deduplicated=result.rows_deduplicated,
            rows_deleted=result.rows_deleted,
            seconds=result.seconds,
            expected_sla=result.expected_sla,
        )
    if isinstance(action, SessionFailed):
        return said.SessionFailed(
            session_id=about.session_id,
            partition=dict(about.partition),
            attempt=action.attempt,
            error_kind=action.error_kind,
            reasons=bounded(action.reasons),
        )
    return None
