"""Builds events from logs and publishes them after the log entry is durable.

An event is a CloudEvents 1.0 document. Nearly all are built from one entry of one log, so an event that is sent twice
is the same event: same `id`, same `source`, same text. Consumers drop repeats by `id`, and order a job run's events by
`sequence`. The exceptions: the heartbeat, which only reports progress, and the event that a log cannot be read.

    log entry durable  ->  builder (pure): events  ->  EventSink.publish  ->  cursor object moved (a hint)

`Relay` does this for one log. The next publisher of the log continues after the cursor, and may repeat only events that
were published after the cursor was last moved. Builders make events from entries: that of session logs is here, that of
job-run logs in `dispatcher/records/job_run_events.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Literal, Protocol, TypeVar, assert_never
from urllib.parse import quote

from pydantic import Field, JsonValue, SerializeAsAny, ValidationInfo, field_validator
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json

from compactor.events.types import (
    EVENT_TYPES,
    EventData,
    HeartbeatEvent,
    RehashCompletedEvent,
    SessionData,
    SessionExpectedSlaChangedEvent,
    SessionRoundCompletedEvent,
    SessionStartedEvent,
    Severity,
)
from compactor.log.durable_log import DurableLog, Entry
from compactor.log_context import Logged
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Outdated
from compactor.model.names import PartitionValues
from compactor.sessions.session_log import (
    ExpectedSlaChanged,
    Heartbeat,
    IndexMoved,
    RoundDone,
    SessionAction,
    SessionFailed,
    SessionLogState,
    SessionStarted,
    SessionSucceeded,
)
from compactor.storage.object_store import ObjectStore

EVENTS_PER_CALL = 50
"""Events that are published by one call of a sink, after which the cursor moves: five SNS batches."""

StateT = TypeVar("StateT")
ActionT = TypeVar("ActionT")


class Event(Document):
    """A CloudEvents 1.0 document in its JSON form. `sequence`, `severity`, `jobrunid` and `table` are extensions.

    Attributes:
        id: "<log id>#<entry number>.<ordinal>": the same when the event is sent again
        source: "/lithify/job_runs/<job run id>", the id percent-encoded: a URI reference whatever the id is
        type: one of `EVENT_TYPES`
        time: RFC 3339, UTC, milliseconds
        sequence: sorts a job run's events as text: time, entry number, ordinal. Events of one log are in its order; two
            logs (the job run's, a session's) may be written on two machines, and follow their clocks
        subject: the session, if the event is about one
        table: the source table; None if the document did not name one"""

    specversion: Literal["1.0"] = "1.0"
    id: str = Field(min_length=1)
    source: str = Field(min_length=1)
    type: str
    time: str
    sequence: str
    subject: str | None = None
    datacontenttype: Literal["application/json"] = "application/json"
    severity: Severity
    jobrunid: str
    table: str | None = None
    data: SerializeAsAny[EventData]

    @field_validator("type")
    @classmethod
    def _known(cls, event_type: str) -> str:
        if event_type not in EVENT_TYPES:
            raise ValueError(f"{event_type!r} is no event type of this version")
        return event_type

    @field_validator("data", mode="before")
    @classmethod
    def _of_the_type(cls, value: object, seen: ValidationInfo) -> EventData:
        if isinstance(value, EventData):
            return value
        data_type = EVENT_TYPES.get(seen.data.get("type", ""), EventData)
        return data_type.model_validate_json(to_json(value))

    def render(self) -> bytes:
        """Compact JSON. An attribute without a value is left out, as CloudEvents demands."""
        unset = {name for name in ("subject", "table") if getattr(self, name) is None}
        return self.model_dump_json(exclude=unset).encode()

    @property
    def attributes(self) -> dict[str, str]:
        """Message attributes for filter policies: few, since raw delivery drops a message with more than ten."""
        always = {"type": self.type, "severity": self.severity.value, "job_run_id": self.jobrunid}
        return always if self.table is None else {**always, "table": self.table}


class EventSink(Protocol):
    """A destination of events: an SNS topic, or a list in a test."""

    @property
    def name(self) -> str:
        """Identifies the destination: each has its own cursor."""

    def publish(self, events: Sequence[Event]) -> None:
        """Publishes all events, in order if the destination keeps one. Raises `Unavailable` if some may not have
        arrived (send them all again), `Invalid` if the destination cannot be used."""


class NoSink:
    """The destination if no topic was given."""

    name = ""

    def publish(self, events: Sequence[Event]) -> None:
        """Does nothing."""


# ---------------------------------------------------------------------------------------------------- building


@dataclass(frozen=True)
class Subject:
    """The job run of an event, and its source table."""

    job_run_id: str
    table: str | None


@dataclass(frozen=True)
class SessionSubject:
    """A session of a job run."""

    of: Subject
    session_id: str
    partition: PartitionValues


def entry_event(subject: Subject, log_id: str, entry: Entry[ActionT], ordinal: int, data: EventData) -> Event:
    """The event number `ordinal` (from 0) of a log's entry."""
    event_id = f"{log_id}#{entry.number}.{ordinal}"
    return _event(subject, event_id, entry.at_ms, f"{entry.number:08d}.{ordinal:04d}", data)


def entryless_event(subject: Subject, log_id: str, at_ms: int, name: str, data: EventData) -> Event:
    """An event about a log that is not built from an entry: at most one of its type per log."""
    return _event(subject, f"{log_id}#{name}", at_ms, name, data)


def session_log_events(about: SessionSubject, log_id: str, entry: Entry[SessionAction]) -> tuple[Event, ...]:
    """The events of a session log's entry.

    The end of an attempt is no event: a failed attempt may be tried again. The launcher decides how a session ends, see
    `session_succeeded` and `session_failed`.
    """
    events = []
    for ordinal, action in enumerate(entry.actions):
        data = _of_session_action(about, action)
        if data is not None:
            events.append(entry_event(about.of, log_id, entry, ordinal, data))
    return tuple(events)


def _of_session_action(about: SessionSubject, action: SessionAction) -> EventData | None:
    match action:
        case SessionStarted():
            return SessionStartedEvent.from_facts(about, action)
        case RoundDone():
            return SessionRoundCompletedEvent.from_facts(about, action)
        case ExpectedSlaChanged():
            return SessionExpectedSlaChangedEvent.from_facts(about, action)
        case IndexMoved():
            return RehashCompletedEvent.from_facts(about, action)
        case SessionSucceeded() | SessionFailed():
            return None
        case _:
            assert_never(action)


def heartbeat_event(about: SessionSubject, log_id: str, heartbeat: Heartbeat) -> Event:
    """Progress. Its id contains the time of the progress, so that the same progress is the same event."""
    data = HeartbeatEvent.from_facts(about, heartbeat)
    return _event(about.of, f"{log_id}#heartbeat.{heartbeat.at_ms}", heartbeat.at_ms, "heartbeat", data)


def _event(subject: Subject, event_id: str, at_ms: int, suffix: str, data: EventData) -> Event:
    return Event(
        id=event_id,
        source=f"/lithify/job_runs/{quote(subject.job_run_id, safe='')}",
        type=data.event_type,
        time=datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        sequence=f"{at_ms:015d}.{suffix}",
        subject=data.session_id if isinstance(data, SessionData) else None,
        severity=data.grade,
        jobrunid=subject.job_run_id,
        table=subject.table,
        data=data,
    )


def event_json_schema() -> dict[str, JsonValue]:
    """The JSON Schema of all events: the envelope, and the data of each type."""
    data_types = list(EVENT_TYPES.values())
    _, definitions = models_json_schema([(data_type, "serialization") for data_type in data_types])
    envelope = Event.model_json_schema(mode="serialization")
    envelope["properties"]["type"] = {"enum": sorted(EVENT_TYPES)}
    envelope["properties"]["data"] = {"type": "object"}
    envelope["oneOf"] = [
        {
            "properties": {
                "type": {"const": data_type.event_type},
                "data": {"$ref": f"#/$defs/{data_type.__name__}"},
                "severity": {"enum": [each.value for each in data_type.severities or (data_type.severity,)]},
            }
        }
        for data_type in data_types
    ]
    kept = {name: value for name, value in envelope.get("$defs", {}).items() if name != EventData.__name__}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **envelope,
        "$defs": {**kept, **definitions["$defs"]},
    }


# ---------------------------------------------------------------------------------------------------- publishing


class PublishCursor(Document):
    """How far a log's events have been published: every entry up to and including this one.

    Attributes:
        entry_number: to the sink of the last call; in a cursor without `sinks`, to the only sink
        sinks: to each sink, by its name"""

    entry_number: int = Field(ge=0)
    sinks: dict[str, int] = {}

    def of(self, sink: str) -> int:
        return self.sinks.get(sink, 0) if self.sinks else self.entry_number

    def moved(self, sink: str, entry_number: int) -> PublishCursor:
        return PublishCursor(entry_number=entry_number, sinks={**self.sinks, sink: entry_number})


@dataclass(frozen=True)
class PendingEvents:
    """Events to publish, and the number of the last entry that they come from."""

    entry_number: int
    events: tuple[Event, ...]


class Relay(Generic[StateT, ActionT]):
    """Publishes the events of a log's entries, in order, after the entries are durable.

    Any thread may call; one at a time publishes. The cursor object is a hint: it is overwritten, and if it is lost the
    log is published from its beginning. It moves with every call of the sink: of a long log only a part is published
    twice.
    """

    def __init__(
        self,
        log: DurableLog[StateT, ActionT],
        store: ObjectStore,
        cursor_key: str,
        build: Callable[[Entry[ActionT]], Sequence[Event]],
        sink: EventSink,
        *,
        is_unpublished: bool = False,
        is_complete: bool = False,
        published_until: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        Args:
            published_until: asked if there is no cursor: the number of the last entry that is published all the same
            is_unpublished: none of this log's events can be published yet: there is no cursor to read
            is_complete: only what was read of the log object is published: another reads further"""
        self._published_until = published_until
        self._is_unpublished = is_unpublished
        self._is_complete = is_complete
        self._log = log
        self._store = store
        self._cursor_key = cursor_key
        self._build = build
        self._sink = sink
        self._lock = threading.Lock()
        self._cursor: PublishCursor | None = None

    def publish(self) -> int:
        """Publishes the entries after the cursor; returns the number of the last one published.

        Raises the errors of the sink and the store; nothing is lost then, the next call continues at the cursor.
        """
        with self._lock:
            if isinstance(self._sink, NoSink):
                # No cursor is written: for a topic that is given later, the log is published from its beginning.
                return 0
            while True:
                pending = self._collect()
                if pending.events:
                    self._sink.publish(pending.events)
                if pending.entry_number > self._published_entry_number():
                    self._move(pending.entry_number)
                if len(pending.events) < EVENTS_PER_CALL:  # the log's end; later entries are for the next call
                    return pending.entry_number

    def collect(self) -> PendingEvents:
        """The next events, for a caller that publishes them with those of other logs and then calls `move`."""
        with self._lock:
            return PendingEvents(0, ()) if isinstance(self._sink, NoSink) else self._collect()

    def move(self, pending: PendingEvents) -> None:
        """They were published."""
        with self._lock:
            if pending.entry_number > self._published_entry_number():
                self._move(pending.entry_number)

    def _collect(self) -> PendingEvents:
        """The next events: at least those of one call of the sink, if there are so many."""
        last, events = self._published_entry_number(), list[Event]()
        for entry in self._entries(last):
            events.extend(self._build(entry))
            last = entry.number
            if len(events) >= EVENTS_PER_CALL:
                break
        return PendingEvents(last, tuple(events))

    def _entries(self, after: int) -> Iterator[Entry[ActionT]]:
        if not self._is_complete:
            return self._log.entries(after=after)
        return (self._log.entry(number) for number in range(after + 1, self._log.newest.entry_number + 1))

    def _published_entry_number(self) -> int:
        if self._cursor is None:
            self._cursor = PublishCursor(entry_number=0) if self._is_unpublished else self._read_cursor()
        return self._cursor.of(self._sink.name)

    def _move(self, last: int) -> None:
        self._cursor = (self._cursor or PublishCursor(entry_number=0)).moved(self._sink.name, last)
        self._store.overwrite(self._cursor_key, self._cursor.render())

    def _read_cursor(self) -> PublishCursor:
        body = self._store.read(self._cursor_key)
        # A hint that cannot be read costs repeats, which are dropped by id.
        with Logged("publish_cursor_unreadable", Corrupt, Outdated):
            if body is not None:
                return PublishCursor.parse_durable(body, self._cursor_key)
        return PublishCursor(entry_number=self._published_until() if body is None else 0)


SessionRelay = Relay[SessionLogState, SessionAction]
