"""Events: what they look like, that they are the same when sent again, and that none is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
from pydantic import ValidationError

from compactor.catalog.actions import RowCounts
from compactor.catalog.log import DurableLog, Entry
from compactor.errors import Unavailable
from compactor.event_types import EVENT_TYPES, EventData, SessionData, Severity
from compactor.events import (
    REASON_CHARACTERS_MAX,
    REASONS_MAX,
    Event,
    Relay,
    SessionSubject,
    Subject,
    bounded,
    event_json_schema,
    heartbeat_event,
    session_log_events,
)
from compactor.session_log import (
    SESSION_LOG,
    ExpectedSlaChanged,
    Heartbeat,
    IndexMoved,
    RoundDone,
    SessionAction,
    SessionFailed,
    SessionStarted,
    SessionState,
)
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
    SessionFailed(attempt=1, error_kind="Unavailable", reasons=("away",)),
)


def told(*actions: SessionAction, number: int = 3) -> tuple[Event, ...]:
    return session_log_events(ABOUT, "some/log", Entry(number, "id", 1_760_000_000_123, actions))


def test_an_event_is_a_cloud_event_that_names_its_entry() -> None:
    (event,) = told(SessionStarted(attempt=1, rounds=2, expected_sla=9.5))
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
    assert [event.render() for event in told(*ACTIONS)] == [event.render() for event in told(*ACTIONS)]


def test_how_an_attempt_ended_is_not_told_by_its_own_log() -> None:
    assert [event.type.split(".", 1)[1] for event in told(*ACTIONS)] == [
        "session.started.v1",
        "rehash.completed.v1",
        "session.round_completed.v1",
        "session.expected_sla_changed.v1",
    ]


def test_an_event_is_parsed_back_as_it_was() -> None:
    for event in told(*ACTIONS):
        assert Event.model_validate_json(event.render()) == event


@pytest.mark.parametrize("change", [{"type": "lithify.other.done.v1"}, {"data": {"attempt": 1}}, {"extra": 1}])
def test_what_is_no_event_is_refused(change: dict[str, object]) -> None:
    fields = {**json.loads(told(ACTIONS[0])[0].render()), **change}
    with pytest.raises(ValidationError):
        Event.model_validate_json(json.dumps(fields))


def test_message_attributes_are_few_and_never_empty() -> None:
    (event,) = told(ACTIONS[0])
    assert event.attributes == {
        "type": "lithify.session.started.v1",
        "severity": "info",
        "job_run_id": "run",
        "table": "A.B.V1",
    }
    unknown = event.model_copy(update={"table": None})
    assert "table" not in unknown.attributes
    assert "table" not in json.loads(unknown.render())


def test_heartbeats_of_the_same_progress_are_the_same_event() -> None:
    beat = Heartbeat(
        attempt=1, at_ms=5, round_number=1, rounds=2, step="dedupe", tasks_done=1, tasks=4, rows_done=0, rows=9
    )
    first, second = heartbeat_event(ABOUT, "some/log", beat), heartbeat_event(ABOUT, "some/log", beat)
    assert first == second
    assert first.id == "some/log#heartbeat.5"


def test_every_contracted_type_is_there_and_every_failure_is_grave() -> None:
    names = {name.removeprefix("lithify.").removesuffix(".v1") for name in EVENT_TYPES}
    job_run = {f"job_run.{name}" for name in ("accepted", "rejected", "started", "succeeded", "failed", "cancelled")}
    session = {
        f"session.{name}"
        for name in (
            *("planned", "launched", "started", "round_completed", "expected_sla_changed"),
            *("stalled", "retried", "succeeded", "failed"),
        )
    }
    assert names == job_run | session | {"rehash.completed", "heartbeat.emitted"}
    grave = {name for name, data in EVENT_TYPES.items() if data.severity is Severity.ERROR}
    assert grave == {f"lithify.{name}.v1" for name in ("job_run.rejected", "job_run.failed", "session.failed")}


def test_events_are_in_order_by_sequence_as_text() -> None:
    early, late = told(ACTIONS[0], number=9), told(*ACTIONS[:3], number=10)
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
    events = [json.loads(event.render()) for event in (*desk.sink.events, *told(*ACTIONS))]
    assert len({event["type"] for event in events}) >= 10
    for event in events:
        validator.validate(event)
    started = json.loads(told(ACTIONS[0])[0].render())
    assert not validator.is_valid({**started, "type": "lithify.session.launched.v1"})
    assert not validator.is_valid({**started, "type": "other"})


def test_every_type_of_data_says_which_session_it_is_about() -> None:
    for name, data in EVENT_TYPES.items():
        assert issubclass(data, EventData)
        about_session = name.split(".")[1] in ("session", "rehash", "heartbeat")
        assert issubclass(data, SessionData) == about_session


# ---------------------------------------------------------------------------------------------------------- relay


class _Story:
    """A session log, and relays of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.log: DurableLog[SessionState, SessionAction] = DurableLog(self.store, "s/log", SESSION_LOG, self.clock)

    def write(self, *actions: SessionAction) -> None:
        self.log.append(lambda _: actions)

    def relay(self, sink: MemorySink) -> Relay[SessionState, SessionAction]:
        def build(entry: Entry[SessionAction]) -> Sequence[Event]:
            return session_log_events(ABOUT, "s/log", entry)

        return Relay(self.log, self.store, "s/published.json", build, sink)


def test_each_entry_is_told_once() -> None:
    story, sink = _Story(), MemorySink()
    relay = story.relay(sink)
    story.write(ACTIONS[0])
    assert relay.publish() == 1
    story.write(ACTIONS[2], ACTIONS[3])
    assert relay.publish() == 2
    assert relay.publish() == 2
    assert [event.id for event in sink.events] == ["s/log#1.0", "s/log#2.0", "s/log#2.1"]


def test_whoever_takes_over_tells_the_rest() -> None:
    story, sink = _Story(), MemorySink()
    story.write(ACTIONS[0])
    story.relay(sink).publish()
    story.write(ACTIONS[2])
    story.relay(sink).publish()
    assert [event.id for event in sink.events] == ["s/log#1.0", "s/log#2.0"]


def test_what_could_not_be_published_stays_to_be_told() -> None:
    story, sink = _Story(), MemorySink([Unavailable("no topic")])
    story.write(ACTIONS[0])
    relay = story.relay(sink)
    with pytest.raises(Unavailable):
        relay.publish()
    assert relay.publish() == 1
    assert len(sink.events) == 1


def test_a_lost_cursor_costs_repeats_and_no_event() -> None:
    story, sink = _Story(), MemorySink()
    story.write(ACTIONS[0])
    story.relay(sink).publish()
    story.store.overwrite("s/published.json", b"not a cursor")
    story.write(ACTIONS[2])
    story.relay(sink).publish()
    assert [event.id for event in sink.events] == ["s/log#1.0", "s/log#1.0", "s/log#2.0"]
