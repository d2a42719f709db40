"""Events: what they look like, that they are the same when sent again, and that none is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import jsonschema  # type: ignore[import-untyped]
import pytest
from pydantic import ValidationError

from compactor.events.publish_events import publish_event
from compactor.events.relay import (
    EVENTS_PER_CALL,
    Event,
    Relay,
    SessionSubject,
    Subject,
    event_json_schema,
    heartbeat_event,
    session_log_events,
)
from compactor.events.types import REASON_CHARACTERS_MAX, REASONS_MAX, EventData, SessionData, Severity, bounded
from compactor.log.durable_log import DurableLog, Entry
from compactor.model.counts import RowCounts
from compactor.model.errors import ErrorKind, Unavailable
from compactor.model.names import OpenFormat
from compactor.publishing.protocol import Published
from compactor.sessions.session_log import (
    SESSION_LOG,
    ExpectedSlaChanged,
    Heartbeat,
    IndexMoved,
    RoundDone,
    SessionAction,
    SessionFailed,
    SessionLogState,
    SessionStarted,
)
from compactor.storage.keys import encode_partition
from dispatcher.records.job_run_events import ALL_EVENT_TYPES
from tests.fakes.dispatch_desk import Desk, instruction
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_sink import MemorySink
from tests.fakes.memory_store import MemoryStore

ABOUT = SessionSubject(Subject("run", "A.B.V1"), "run.1", {"day": "1"})
COUNTS = RowCounts(
    rows_before=0, rows_in=2, rows_out=1, rows_deduplicated=1, rows_deleted=0, rows_carried=0, tombstones=0
)
ACTIONS: tuple[SessionAction, ...] = (
    SessionStarted(attempt=1, rounds=2, expected_sla=9.5),
    IndexMoved(attempt=1, entry_number=6, hash_bucket_count=8),
    RoundDone(attempt=1, round_number=1, rounds=2, entry_number=7, counts=COUNTS, seconds=1.5),
    ExpectedSlaChanged(attempt=1, before=9.5, now=12.0),
    SessionFailed(attempt=1, error_kind=ErrorKind.UNAVAILABLE, reasons=("away",)),
)


def events_of(*actions: SessionAction, number: int = 3) -> tuple[Event, ...]:
    return session_log_events(ABOUT, "some/log", Entry(number, "id", 1_760_000_000_123, actions))


def test_an_event_is_a_cloud_event_that_names_its_entry() -> None:
    (event,) = events_of(SessionStarted(attempt=1, rounds=2, expected_sla=9.5))
    assert json.loads(event.render()) == {
        "specversion": "1.0",
        "id": "some/log#3.0",
        "source": "/lithify/job_runs/run",
        "type": "lithify.session.started.v1",
        "time": "2025-10-09T08:53:20.123Z",
        "sequence": "001760000000123.00000003.0000",
        "subject": "run.1",
        "datacontenttype": "application/json",
        "severity": "info",
        "jobrunid": "run",
        "table": "A.B.V1",
        "data": {"session_id": "run.1", "partition": {"day": "1"}, "attempt": 1, "rounds": 2, "expected_sla": 9.5},
    }


def test_the_same_entry_makes_the_same_events() -> None:
    assert [event.render() for event in events_of(*ACTIONS)] == [event.render() for event in events_of(*ACTIONS)]


def test_the_own_log_of_an_attempt_does_not_publish_its_end() -> None:
    assert [event.type.split(".", 1)[1] for event in events_of(*ACTIONS)] == [
        "session.started.v1",
        "rehash.completed.v1",
        "session.round_completed.v1",
        "session.expected_sla_changed.v1",
    ]


def test_an_event_is_parsed_back_as_it_was() -> None:
    for event in events_of(*ACTIONS):
        assert Event.model_validate_json(event.render()) == event


@pytest.mark.parametrize("change", [{"type": "lithify.other.done.v1"}, {"data": {"attempt": 1}}, {"extra": 1}])
def test_a_value_that_is_not_an_event_is_refused(change: dict[str, object]) -> None:
    fields = {**json.loads(events_of(ACTIONS[0])[0].render()), **change}
    with pytest.raises(ValidationError):
        Event.model_validate_json(json.dumps(fields))


def test_message_attributes_are_few_and_never_empty() -> None:
    (event,) = events_of(ACTIONS[0])
    assert event.attributes == {
        "type": "lithify.session.started.v1",
        "severity": "info",
        "job_run_id": "run",
        "table": "A.B.V1",
    }
    unknown = event.model_copy(update={"table": None})
    assert "table" not in unknown.attributes
    assert "table" not in json.loads(unknown.render())


@pytest.mark.parametrize("job_run_id", ["a b", "100%", "a#b", "a?b", "//host", "x:y", "\u8a9e", "[1]", "a\\b", '"'])
def test_the_source_is_a_uri_reference_whatever_the_job_run_is_called(job_run_id: str) -> None:
    beat = Heartbeat(
        attempt=1, at_ms=5, round_number=1, rounds=1, step="dedupe", tasks_done=1, tasks=1, rows_done=0, rows=1
    )
    event = heartbeat_event(SessionSubject(Subject(job_run_id, None), "s", {}), "some/log", beat)
    path = event.source.removeprefix("/lithify/job_runs/")
    assert re.fullmatch(r"(?:[A-Za-z0-9._~-]|%[0-9A-F]{2})+", path)
    assert unquote(path) == job_run_id == event.jobrunid


def test_heartbeats_of_the_same_progress_are_the_same_event() -> None:
    beat = Heartbeat(
        attempt=1, at_ms=5, round_number=1, rounds=2, step="dedupe", tasks_done=1, tasks=4, rows_done=0, rows=9
    )
    first, second = heartbeat_event(ABOUT, "some/log", beat), heartbeat_event(ABOUT, "some/log", beat)
    assert first == second
    assert first.id == "some/log#heartbeat.5"


def test_every_contracted_type_is_there_and_every_failure_is_grave() -> None:
    names = {name.removeprefix("lithify.").removesuffix(".v1") for name in ALL_EVENT_TYPES}
    job_run = {
        f"job_run.{name}"
        for name in (
            *("accepted", "rejected", "repeated", "started", "succeeded", "failed", "cancelled", "set_aside"),
            *("paused", "resumed", "waits_for_money"),
        )
    }
    session = {
        f"session.{name}"
        for name in (
            *("planned", "launched", "started", "round_completed", "expected_sla_changed"),
            *("stalled", "retried", "succeeded", "failed"),
        )
    }
    table = {"table.published", "table.publish_failed"}
    keeper = {"keeper.decided", "keeper.postponed", "keeper.failed"}
    assert names == job_run | session | table | keeper | {"rehash.completed", "heartbeat.emitted"}
    grave = {name for name, data in ALL_EVENT_TYPES.items() if data.severity is Severity.ERROR}
    of_job_runs = ("job_run.rejected", "job_run.failed", "job_run.set_aside", "session.failed")
    assert grave == {f"lithify.{name}.v1" for name in (*of_job_runs, "keeper.failed")}


def test_events_are_in_order_by_sequence_as_text() -> None:
    early, late = events_of(ACTIONS[0], number=9), events_of(*ACTIONS[:3], number=10)
    sequences = [event.sequence for event in (*early, *late)]
    assert sequences == sorted(sequences)


def test_reasons_are_cut_to_what_a_message_carries() -> None:
    kept = bounded([f"{number} " + "x" * 5_000 for number in range(100)])
    assert len(kept) == REASONS_MAX
    assert kept[-1] == "and 61 more"
    assert max(len(reason) for reason in kept) == REASON_CHARACTERS_MAX + 4
    assert bounded(["a", "b"]) == ("a", "b")


def test_the_published_schema_holds_for_all_that_a_dispatcher_tells(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.append([{"id": 1}])
    desk.accept()
    desk.send("{")
    desk.send(instruction(source_table_id="NO.SUCH.V1"))
    desk.take()
    desk.run()
    desk.close()
    schema = event_json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    events = [json.loads(event.render()) for event in (*desk.sink.events, *events_of(*ACTIONS))]
    assert len({event["type"] for event in events}) >= 10
    for event in events:
        validator.validate(event)
    started = json.loads(events_of(ACTIONS[0])[0].render())
    assert not validator.is_valid({**started, "type": "lithify.session.launched.v1"})
    assert not validator.is_valid({**started, "type": "other"})


def test_every_type_of_data_says_which_session_it_is_about() -> None:
    for name, data in ALL_EVENT_TYPES.items():
        assert issubclass(data, EventData)
        about_session = name.split(".")[1] in ("session", "rehash", "heartbeat")
        assert issubclass(data, SessionData) == about_session


# ---------------------------------------------------------------------------------------------------------- relay


class _EntriesAndEvents:
    """A session log, and relays of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.log: DurableLog[SessionLogState, SessionAction] = DurableLog(self.store, "s/log", SESSION_LOG, self.clock)

    def write(self, *actions: SessionAction) -> None:
        self.log.append(lambda _: actions)

    def relay(self, sink: MemorySink) -> Relay[SessionLogState, SessionAction]:
        def build(entry: Entry[SessionAction]) -> Sequence[Event]:
            return session_log_events(ABOUT, "s/log", entry)

        return Relay(self.log, self.store, "s/published.json", build, sink)


def test_each_entry_is_told_once() -> None:
    story, sink = _EntriesAndEvents(), MemorySink()
    relay = story.relay(sink)
    story.write(ACTIONS[0])
    assert relay.publish() == 1
    story.write(ACTIONS[2], ACTIONS[3])
    assert relay.publish() == 2
    assert relay.publish() == 2
    assert [event.id for event in sink.events] == ["s/log#1.0", "s/log#2.0", "s/log#2.1"]


def test_a_successor_publishes_the_remaining_events() -> None:
    story, sink = _EntriesAndEvents(), MemorySink()
    story.write(ACTIONS[0])
    story.relay(sink).publish()
    story.write(ACTIONS[2])
    story.relay(sink).publish()
    assert [event.id for event in sink.events] == ["s/log#1.0", "s/log#2.0"]


def test_unpublished_events_stay_pending() -> None:
    story, sink = _EntriesAndEvents(), MemorySink([Unavailable("no topic")])
    story.write(ACTIONS[0])
    relay = story.relay(sink)
    with pytest.raises(Unavailable):
        relay.publish()
    assert relay.publish() == 1
    assert len(sink.events) == 1


def test_a_lost_cursor_costs_repeats_and_no_event() -> None:
    story, sink = _EntriesAndEvents(), MemorySink()
    story.write(ACTIONS[0])
    story.relay(sink).publish()
    story.store.overwrite("s/published.json", b"not a cursor")
    story.write(ACTIONS[2])
    story.relay(sink).publish()
    assert [event.id for event in sink.events] == ["s/log#1.0", "s/log#1.0", "s/log#2.0"]


def test_each_topic_has_a_cursor_of_its_own() -> None:
    story, first, second = _EntriesAndEvents(), MemorySink(name="first"), MemorySink(name="second")
    story.write(ACTIONS[0])
    story.relay(first).publish()
    story.write(ACTIONS[2])
    story.relay(second).publish()
    story.relay(first).publish()
    assert [event.id for event in first.events] == ["s/log#1.0", "s/log#2.0"]
    assert [event.id for event in second.events] == ["s/log#1.0", "s/log#2.0"]


def test_a_cursor_from_before_there_was_one_for_each_topic_holds_for_any() -> None:
    story, sink = _EntriesAndEvents(), MemorySink()
    story.write(ACTIONS[0])
    story.write(ACTIONS[2])
    story.store.overwrite("s/published.json", b'{"entry_number": 1}')
    story.relay(sink).publish()
    assert [event.id for event in sink.events] == ["s/log#2.0"]


def test_a_long_log_is_published_in_parts_and_nothing_twice() -> None:
    story, sink = _EntriesAndEvents(), _FailingSink(fails_at_call=3)
    for _ in range(2 * EVENTS_PER_CALL + 10):
        story.write(ACTIONS[0])
    with pytest.raises(Unavailable):
        story.relay(sink).publish()
    assert len(sink.events) == 2 * EVENTS_PER_CALL
    story.relay(sink).publish()
    assert [event.id for event in sink.events] == [f"s/log#{n}.0" for n in range(1, 2 * EVENTS_PER_CALL + 11)]


class _FailingSink(MemorySink):
    def __init__(self, fails_at_call: int) -> None:
        super().__init__()
        self._calls_left = fails_at_call

    def publish(self, events: Sequence[Event]) -> None:
        self._calls_left -= 1
        if self._calls_left == 0:
            raise Unavailable("no answer")
        super().publish(events)


def test_the_event_of_a_publication_of_many_partitions_has_room_in_sns() -> None:
    streams = [encode_partition({"customer": f"customer-{number:06d}", "day": "2026-11-29"}) for number in range(8_000)]
    outcome = Published(OpenFormat.DELTA, 0, dict.fromkeys(streams, 3), 1, 0, 0, rows=1, lag_ms=0)
    event = publish_event(Subject("run", "A.WIDE.V1"), "A.WIDE.V1", outcome, at_ms=5)
    assert event is not None
    assert len(event.render()) < 200_000
    data = json.loads(event.render())["data"]
    assert list(data["entries"]) == sorted(streams)[: len(data["entries"])]
    assert len(data["entries"]) + data["entries_left_out"] == 8_000
    few = publish_event(Subject("run", "A.WIDE.V1"), "A.WIDE.V1", replace(outcome, entries={"_": 3}), at_ms=5)
    assert few is not None
    assert json.loads(few.render())["data"]["entries_left_out"] == 0
