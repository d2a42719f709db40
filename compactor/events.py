"""Events: what happened, told to whoever listens, after it has become durable.

An event is a CloudEvents 1.0 document. Nearly all are built from one entry of one log, so that an event sent twice is
the same event: same `id`, same `source`, same text. Consumers drop repeats by `id`, and put a job run's events in order
by `sequence`. The one exception is the heartbeat, which says only that there was progress.

    log entry durable  ->  builder (pure): events  ->  EventSink.publish  ->  cursor object moved (a hint)

`Relay` walks that line. A publisher that dies leaves the cursor where it was; whoever takes over the log publishes the
rest, and repeats at most what its predecessor had not noted yet. Which entry makes which event is known by builders: a
session log's is here, a job-run log's is in `dispatcher/job_run_events.py`; what events say is in `event_types.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Literal, Protocol, TypeVar, assert_never

from pydantic import Field, JsonValue, SerializeAsAny, ValidationInfo, field_validator
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json

from compactor import event_types as said
from compactor.catalog.log import DurableLog, Entry
from compactor.document import Document
from compactor.errors import Corrupt
from compactor.event_types import EVENT_TYPES, EventData, Severity
from compactor.names import PartitionValues
from compactor.object_store import ObjectStore
from compactor.session_log import (
    ExpectedSlaChanged,
    Heartbeat,
    IndexMoved,
    RoundDone,
    SessionAction,
    SessionFailed,
    SessionStarted,
    SessionState,
    SessionSucceeded,
)

REASONS_MAX = 40
REASON_CHARACTERS_MAX = 1_000
"""An SNS message holds 262,144 bytes: 40 reasons of 1,000 characters (4 bytes each at worst) are 160,000 of them."""

StateT = TypeVar("StateT")
ActionT = TypeVar("ActionT")


class Event(Document):
    """A CloudEvents 1.0 document in its JSON form. `sequence`, `severity`, `jobrunid` and `table` are extensions.

    id        "<log id>#<entry number>.<ordinal>": the same when the event is sent again
    source    "/lithify/job_runs/<job run id>"
    type      one of `EVENT_TYPES`
    time      RFC 3339, UTC, milliseconds
    sequence  sorts a job run's events as text: time, entry number, ordinal
    subject   the session, where the event is about one
    table     the source table; None where the document did not say which
    """

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
        """Compact JSON. An attribute without a value is left out, as CloudEvents would have it."""
        unset = {name for name in ("subject", "table") if getattr(self, name) is None}
        return self.model_dump_json(exclude=unset).encode()

    @property
    def attributes(self) -> dict[str, str]:
        """Message attributes for filter policies. Few: raw delivery drops a message with more than ten."""
        always = {"type": self.type, "severity": self.severity.value, "job_run_id": self.jobrunid}
        return always if self.table is None else {**always, "table": self.table}


class EventSink(Protocol):
    """Where events go: an SNS topic, or a list in a test."""

    def publish(self, events: Sequence[Event]) -> None:
        """All of them, in order where the place has one. Raises `Unavailable` if some may not have arrived (send them
        all again), `Invalid` where the place itself is wrong."""


class NoSink:
    """Where no topic was given."""

    def publish(self, events: Sequence[Event]) -> None:
        """Nobody listens."""


# ---------------------------------------------------------------------------------------------------- building


@dataclass(frozen=True)
class Subject:
    """Whose events they are: a job run, and what it compacts."""

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


def session_log_events(about: SessionSubject, log_id: str, entry: Entry[SessionAction]) -> tuple[Event, ...]:
    """What an entry of a session log has to tell.

    How an attempt ended is not told here: a failed attempt may be tried again. The conclusion of a session is its
    launcher's to draw, see `session_succeeded` and `session_failed`.
    """
    told = []
    for ordinal, action in enumerate(entry.actions):
        data = _of_session_action(about, action)
        if data is not None:
            told.append(entry_event(about.of, log_id, entry, ordinal, data))
    return tuple(told)


def _of_session_action(about: SessionSubject, action: SessionAction) -> EventData | None:
    session_id, partition = about.session_id, dict(about.partition)
    match action:
        case SessionStarted():
            return said.SessionStarted(
                session_id=session_id,
                partition=partition,
                attempt=action.attempt,
                rounds=action.rounds,
                expected_sla=action.expected_sla,
            )
        case RoundDone():
            return said.SessionRoundCompleted(
                session_id=session_id,
                partition=partition,
                attempt=action.attempt,
                round_number=action.round_number,
                rounds=action.rounds,
                entry_number=action.entry_number,
                counts=action.counts,
                seconds=action.seconds,
            )
        case ExpectedSlaChanged():
            return said.SessionExpectedSlaChanged(
                session_id=session_id,
                partition=partition,
                attempt=action.attempt,
                before=action.before,
                now=action.now,
            )
        case IndexMoved():
            return said.RehashCompleted(
                session_id=session_id,
                partition=partition,
                attempt=action.attempt,
                entry_number=action.entry_number,
                hash_bucket_count=action.hash_bucket_count,
            )
        case SessionSucceeded() | SessionFailed():
            return None
        case _:
            assert_never(action)


def heartbeat_event(about: SessionSubject, log_id: str, heartbeat: Heartbeat) -> Event:
    """Progress. Its id names the moment of the progress, so that the same progress is the same event."""
    data = said.HeartbeatEmitted(
        session_id=about.session_id,
        partition=dict(about.partition),
        attempt=heartbeat.attempt,
        round_number=heartbeat.round_number,
        rounds=heartbeat.rounds,
        step=heartbeat.step,
        tasks_done=heartbeat.tasks_done,
        tasks=heartbeat.tasks,
        rows_done=heartbeat.rows_done,
        rows=heartbeat.rows,
    )
    return _event(about.of, f"{log_id}#heartbeat.{heartbeat.at_ms}", heartbeat.at_ms, "heartbeat", data)


def _event(subject: Subject, event_id: str, at_ms: int, place: str, data: EventData) -> Event:
    return Event(
        id=event_id,
        source=f"/lithify/job_runs/{subject.job_run_id}",
        type=data.event_type,
        time=datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        sequence=f"{at_ms:015d}.{place}",
        subject=data.session_id if isinstance(data, said.SessionData) else None,
        severity=data.severity,
        jobrunid=subject.job_run_id,
        table=subject.table,
        data=data,
    )


def bounded(reasons: Sequence[str]) -> tuple[str, ...]:
    """As many reasons, each as long, as a message can carry; the last one says what was left out."""
    kept = [
        reason if len(reason) <= REASON_CHARACTERS_MAX else reason[:REASON_CHARACTERS_MAX] + " ..."
        for reason in reasons
    ]
    if len(kept) <= REASONS_MAX:
        return tuple(kept)
    return (*kept[: REASONS_MAX - 1], f"and {len(kept) - REASONS_MAX + 1} more")


def event_json_schema() -> dict[str, JsonValue]:
    """The JSON Schema of all events: the envelope, and for each type the data it carries."""
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
                "severity": {"const": data_type.severity.value},
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
    """How far a log's events have been published: every entry up to and with this one."""

    entry_number: int = Field(ge=0)


class Relay(Generic[StateT, ActionT]):
    """Publishes what a log's entries have to tell, each entry's events after it is durable, in order.

    Any thread may call; one at a time publishes. The cursor object is a hint: overwritten, and if it is lost the log is
    told from its beginning.
    """

    def __init__(
        self,
        log: DurableLog[StateT, ActionT],
        store: ObjectStore,
        cursor_key: str,
        build: Callable[[Entry[ActionT]], Sequence[Event]],
        sink: EventSink,
    ) -> None:
        self._log = log
        self._store = store
        self._cursor_key = cursor_key
        self._build = build
        self._sink = sink
        self._lock = threading.Lock()
        self._published: int | None = None

    def publish(self) -> int:
        """Publish the entries after the cursor, and answer the number of the last one published.

        Raises what the sink and the store raise; nothing is lost then, the next call begins where this one did.
        """
        with self._lock:
            before = self._cursor()
            last, events = before, list[Event]()
            for entry in self._log.entries(after=before):
                events.extend(self._build(entry))
                last = entry.number
            if last > before:
                if events:
                    self._sink.publish(events)
                self._published = last
                self._store.overwrite(self._cursor_key, PublishCursor(entry_number=last).render())
            return last

    def _cursor(self) -> int:
        if self._published is None:
            body = self._store.read(self._cursor_key)
            self._published = 0 if body is None else _parse_cursor(body, self._cursor_key)
        return self._published


def _parse_cursor(body: bytes, key: str) -> int:
    try:
        return PublishCursor.parse_durable(body, key).entry_number
    except Corrupt:
        return 0  # a hint that cannot be read costs repeats, which consumers drop by id


SessionRelay = Relay[SessionState, SessionAction]
