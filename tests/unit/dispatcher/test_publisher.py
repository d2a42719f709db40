"""What is told of job runs, and that a topic in trouble loses nothing and keeps nobody else waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.events.relay import Event, EventSink
from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.model.errors import Corrupt, Denied, Invalid, LithifyError, Unavailable
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import SESSION_LOG
from dispatcher.intake.admission import Admission
from dispatcher.outbox.event_publisher import EventPublisher, PublisherSettings, publish_to_the_end
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus
from dispatcher.records.sessions import SessionLaunched
from tests.fakes.dispatch_desk import FOLLOWS_SPEED, STALL_SECONDS, Desk, instruction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_sink import MemorySink
from tests.fakes.memory_store import MemoryStore
from tests.fakes.small_cluster import Crashes, Hangs, Stalls, Succeeds
from tests.waiting import wait_until

OTHER_TOPIC = "arn:aws:sns:us-east-1:123456789012:other"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def is_running(desk: Desk, job_run_id: str) -> bool:
    """Whether the only session was launched and has started, by the logs. Ticks, and publishes nothing."""
    desk.controller.tick()
    log = SessionFolder(job_run_id, f"{job_run_id}.1").log
    started = DurableLog(desk.state, log, SESSION_LOG, desk.clock).load().state.attempt == 1
    actions = (action for entry in desk.records.log(job_run_id).entries() for action in entry.actions)
    return started and any(isinstance(action, SessionLaunched) for action in actions)


def topics(own: EventSink, other: EventSink) -> Callable[[str | None], EventSink]:
    return lambda topic_arn: own if topic_arn is None else other


class SilentSink(MemorySink):
    """Answers no call before `answers` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_called = threading.Event()
        self.answers = threading.Event()

    def publish(self, events: Sequence[Event]) -> None:
        self.is_called.set()
        self.answers.wait()
        super().publish(events)


class RefusingSink(MemorySink):
    """Refuses while `refusal` is there. `calls` counts them."""

    def __init__(self, refusal: Exception | None) -> None:
        super().__init__()
        self.refusal = refusal
        self.calls = 0

    def publish(self, events: Sequence[Event]) -> None:
        self.calls += 1
        if self.refusal is not None:
            raise self.refusal
        super().publish(events)


# -------------------------------------------------------------------------------------------------- topics in trouble


def test_a_topic_that_does_not_answer_keeps_no_job_run_waiting(tmp_path: Path) -> None:
    sink = SilentSink()
    desk = Desk(tmp_path, sink=sink)
    with desk.publisher.loop(threading.Event()):
        desk.append([{"id": 1}])
        job_run_id = desk.accept()
        desk.controller.tick()
        sink.is_called.wait()
        while desk.job_run(job_run_id).status is not JobRunStatus.SUCCEEDED:
            desk.controller.tick()
            desk.clock.sleep(0.005)
        assert sink.names == []
        sink.answers.set()
    desk.publisher.flush()
    # The sessions' last events may come after the job run's: `sequence` orders them.
    assert max(sink.events, key=lambda event: event.sequence).type == "lithify.job_run.succeeded.v1"
    assert desk.records.open_job_run_ids() == []
    desk.close()


@pytest.mark.parametrize(
    "error", [Unavailable("no answer"), Invalid("no such topic"), ValueError("region '-'")], ids=repr
)
def test_a_topic_in_trouble_keeps_no_other_topic_waiting(tmp_path: Path, error: Exception) -> None:
    own, other = MemorySink(), RefusingSink(error)
    lake = DeltaCatalog.open(str(tmp_path / "lake"))
    admission = Admission(own_lake=lake.location, topics=(OTHER_TOPIC,))
    desk = Desk(tmp_path, sink_for=topics(own, other), admission=admission)
    desk.append([{"id": 1}])
    bad, good = desk.accept(sns_event_topic_arn=OTHER_TOPIC), desk.accept()
    desk.tick_until(lambda: desk.controller.holds_nothing and "job_run.succeeded" in own.names)
    assert {desk.job_run(each).status for each in (bad, good)} == {JobRunStatus.SUCCEEDED}
    assert {event.jobrunid for event in own.events} == {good}
    desk.close()


def test_a_silent_topic_gets_one_try_a_round_and_is_left_alone_for_longer_each_time(tmp_path: Path) -> None:
    clock, sink = ManualClock(), RefusingSink(Unavailable("no answer"))
    desk = Desk(tmp_path, clock=clock)
    publisher = EventPublisher(desk.records, lambda _: sink, desk.answers, PublisherSettings(), clock)
    desk.append([{"id": 1}])
    for number in range(3):
        job_run_id = desk.accept(job_run_id=f"run {number}")
        publisher.follow(job_run_id, desk.records.log(job_run_id), desk.job_run(job_run_id))
    tried_at = []
    for second in range(1_000):
        before = sink.calls
        publisher.publish_round()
        assert sink.calls - before <= 1
        if sink.calls > before:
            tried_at.append(second)
        clock.sleep(1)
    assert tried_at == [0, 5, 15, 35, 75, 155, 315, 615, 915]
    sink.refusal = None
    clock.sleep(300)
    publisher.publish_round()
    assert sorted(event.jobrunid for event in sink.events) == ["run 0", "run 1", "run 2"]
    desk.close()


def test_a_topic_that_failed_is_no_trouble_once_no_events_wait_for_it(tmp_path: Path) -> None:
    sink = RefusingSink(Unavailable("no answer"))
    desk = Desk(tmp_path, clock=ManualClock())
    publisher = EventPublisher(desk.records, lambda _: sink, desk.answers, PublisherSettings(), desk.clock)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    publisher.follow(job_run_id, desk.records.log(job_run_id), desk.job_run(job_run_id))
    publisher.publish_round()
    publisher.publish_round()
    assert publisher.troubles.keys() == {"topic"}
    desk.clock.sleep(5)
    publisher.leave(job_run_id)  # another dispatcher publishes its events
    publisher.publish_round()
    assert (publisher.followed, publisher.troubles) == (frozenset(), {})
    desk.close()


def test_events_wait_only_once_their_topic_did_not_take_them(tmp_path: Path) -> None:
    """Those of the next round are no reason to alarm anybody: a busy dispatcher always has some."""
    sink = RefusingSink(None)
    desk = Desk(tmp_path, clock=ManualClock())
    publisher = EventPublisher(desk.records, lambda _: sink, desk.answers, PublisherSettings(), desk.clock)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    publisher.follow(job_run_id, desk.records.log(job_run_id), desk.job_run(job_run_id))
    waiting = [publisher.waiting_count]
    for sink.refusal in (Unavailable("no answer"), Invalid("no such topic"), None):
        publisher.publish_round()
        waiting.append(publisher.waiting_count)
        desk.clock.sleep(300)
    publisher.notify(job_run_id)
    assert [*waiting, publisher.waiting_count] == [0, 1, 1, 0, 0]
    desk.close()


def rejected_in(store: FaultyStore, tmp_path: Path) -> tuple[Desk, EventPublisher, str]:
    """A publisher by itself, which follows a job run that was rejected."""
    desk = Desk(tmp_path, clock=ManualClock(), state=store)
    publisher = EventPublisher(desk.records, lambda _: desk.sink, desk.answers, PublisherSettings(), desk.clock)
    job_run_id = desk.send(instruction(source_table_id="NO.SUCH.V1"))
    desk.take()
    publisher.follow(job_run_id, desk.records.log(job_run_id), desk.job_run(job_run_id), is_ending=True)
    return desk, publisher, job_run_id


@pytest.mark.parametrize(("key_part", "error"), [("history/days/", Corrupt), ("job_runs/", Unavailable)])
def test_a_job_run_whose_state_does_not_answer_is_a_trouble_and_left_alone_for_longer_each_time(
    tmp_path: Path, key_part: str, error: type[LithifyError]
) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    desk, publisher, _ = rejected_in(store, tmp_path)
    store.fail("read", key_part, "after", times=None, error=error)  # after it is counted
    tried_at = []
    for second in range(400):
        before = store.count("read", key_part)
        publisher.publish_round()
        if store.count("read", key_part) > before:
            tried_at.append(second)
        desk.clock.sleep(1)
    assert tried_at == [0, 5, 15, 35, 75, 155, 315]
    assert not publisher.is_idle
    assert publisher.troubles.keys() == {"state"}
    assert publisher.waiting_count == 1
    store.heal()
    desk.clock.sleep(300)
    publisher.publish_round()
    assert desk.sink.names[-1] == "job_run.rejected"
    assert (publisher.followed, publisher.troubles) == (frozenset(), {})
    assert desk.records.open_job_run_ids() == []
    desk.close()


def test_a_job_run_that_the_history_does_not_take_keeps_no_other_waiting(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    desk, publisher, job_run_id = rejected_in(store, tmp_path)
    store.fail("read", "history/days/", error=Corrupt)
    publisher.publish_round()
    assert publisher.followed == {job_run_id}
    other = desk.send(instruction(source_table_id="NO.SUCH.V1"))
    desk.take()
    publisher.follow(other, desk.records.log(other), desk.job_run(other), is_ending=True)
    publisher.publish_round()
    assert publisher.followed == {job_run_id}
    desk.close()


def test_a_stopping_dispatcher_tries_again_what_the_state_did_not_take(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    desk, publisher, _ = rejected_in(store, tmp_path)
    store.fail("read", "history/days/", error=Corrupt)
    publisher.flush()
    assert desk.records.open_job_run_ids() == []
    desk.close()


def test_a_paused_job_run_that_leaves_is_no_longer_followed(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    desk = Desk(tmp_path, clock=ManualClock(), state=store)
    publisher = EventPublisher(desk.records, lambda _: desk.sink, desk.answers, PublisherSettings(), desk.clock)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    publisher.follow(job_run_id, desk.records.log(job_run_id), desk.job_run(job_run_id))
    store.fail("read", "job_runs/", times=None)
    publisher.publish_round()
    assert publisher.troubles.keys() == {"state"}
    publisher.leave(job_run_id)
    publisher.publish_round()
    assert (publisher.followed, publisher.troubles) == (frozenset(), {})
    desk.close()


@pytest.mark.parametrize("error", [Denied("ExpiredToken"), Unavailable("no answer")], ids=repr)
def test_events_held_up_by_expired_credentials_are_published_with_new_ones(desk: Desk, error: LithifyError) -> None:
    sink = RefusingSink(error)
    desk = desk.second(sink=sink)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.tick()
    desk.tick_until(lambda: desk.controller.holds_nothing)
    assert desk.records.open_job_run_ids() == [job_run_id]
    sink.refusal = None
    desk.run()
    in_order = [event.type.split(".")[-2] for event in sorted(sink.events, key=lambda event: event.sequence)]
    assert (in_order[0], sink.names[-1]) == ("accepted", "job_run.succeeded")
    assert desk.records.open_job_run_ids() == []
    desk.close()


def test_events_that_a_topic_refused_are_kept_until_they_are_published(desk: Desk) -> None:
    sink = RefusingSink(Invalid("the topic was deleted"))
    broken = desk.second(sink=sink)
    broken.append([{"id": 1}])
    job_run_id = broken.accept()
    broken.tick()
    broken.tick_until(lambda: broken.records.unpublished_job_run_ids() == [job_run_id])
    assert broken.records.open_job_run_ids() == []  # dispatchers need not look at it
    broken.close()

    assert publish_to_the_end(desk.records, job_run_id, lambda _: desk.sink)
    names = [name for name in desk.sink.names if name not in FOLLOWS_SPEED]
    assert sorted(names) == sorted(
        [
            *("job_run.accepted", "job_run.started", "session.planned", "session.launched", "session.started"),
            *("session.round_completed", "session.succeeded", "job_run.succeeded"),
        ]
    )
    assert desk.records.unpublished_job_run_ids() == []


def test_a_topic_made_again_while_its_job_run_goes_on_is_told_all_of_it(tmp_path: Path) -> None:
    sink = RefusingSink(Invalid("the topic was deleted"))
    desk = Desk(tmp_path, sink=sink)
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold)
    desk.append([{"id": 1}])
    desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    sink.refusal = None
    hold.set()
    desk.run()
    assert [name for name in sink.names if name.startswith("job_run")] == [
        *("job_run.accepted", "job_run.started", "job_run.succeeded")
    ]
    assert desk.records.unpublished_job_run_ids() == []
    desk.close()


# ----------------------------------------------------------------------------------------------- nothing is left out


def test_events_of_the_sessions_of_a_broken_job_run_are_published(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    store = FaultyStore(desk.state)
    desk = replace(desk, state=store)
    time_passes = threading.Event()
    desk.cluster.behaves = lambda job: Stalls()
    # Again and again: time that passes before the dispatcher has seen the session's start is not time of a stall.
    desk.cluster.let_time_pass = lambda: desk.move_on(STALL_SECONDS) if time_passes.is_set() else None
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    wait_until(lambda: is_running(desk, job_run_id))
    # A bug meets the session's thread when it says that the session stalled.
    store.fail("put_if_absent", f"job_runs/{job_run_id}/log", error=ZeroDivisionError)
    time_passes.set()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.FAILED
    assert desk.sink.names.count("session.started") == 1
    desk.close()


def test_the_sessions_of_a_job_run_that_was_cancelled_while_it_waited_are_told(tmp_path: Path) -> None:
    mute = Desk(tmp_path, sink=RefusingSink(Unavailable("no topic")), owner="first")
    mute.cluster.behaves = lambda job: Hangs()
    mute.append([{"id": 1}])
    job_run_id = mute.accept()
    mute.tick_until(lambda: mute.cluster.running == 1)
    mute.controller.drain(0)  # stopped, with its session's first events told to nobody

    second = mute.second(sink=MemorySink())
    second.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not now")])
    second.run()
    assert second.cluster.launched == []
    assert second.sink.names.count("session.started") == 1
    assert second.sink.names[-1] == "job_run.cancelled"
    second.close()


def test_a_successor_publishes_the_sessions_of_its_job_run(tmp_path: Path) -> None:
    mute = Desk(tmp_path, sink=RefusingSink(Unavailable("no topic")), owner="first")
    mute.cluster.behaves = lambda job: Hangs()
    mute.append([{"id": 1}])
    mute.accept()
    mute.tick_until(lambda: mute.cluster.running == 1)
    mute.controller.drain(0, lambda: True)
    second = mute.second(sink=MemorySink())
    second.run()
    attempts = [event.data.model_dump()["attempt"] for event in second.sink.events if "session.started" in event.type]
    assert attempts == [1, 2]
    second.close()


def test_the_next_dispatcher_publishes_a_pending_rejection(desk: Desk) -> None:
    message_id = desk.send(instruction(source_table_id="NO.SUCH.V1"))
    desk.take()
    desk.records.mark_over(message_id)
    second = desk.second(sink=MemorySink(name="another topic"))
    second.run()
    assert second.sink.names == ["job_run.rejected"]
    assert second.records.open_job_run_ids() == []
    second.close()


@pytest.mark.parametrize("errors", [[], [Unavailable("not now")]], ids=["at once", "by the next dispatcher"])
def test_a_repeat_during_the_publication_of_the_end_is_published_too(
    tmp_path: Path, errors: list[LithifyError]
) -> None:
    """It finds the job run's marker still there, which is taken away a moment later."""

    class MeetingSink(MemorySink):
        def publish(self, events: Sequence[Event]) -> None:
            if repeats and errors:
                raise errors.pop()
            super().publish(events)
            if "job_run.succeeded" in self.names and "job_run.repeated" not in self.names and not repeats:
                desk.send(instruction(job_run_id="asked-twice"))
                repeats.extend(desk.take())

    repeats: list[object] = []
    sink = MeetingSink()
    desk = Desk(tmp_path, sink=sink)
    desk.append([{"id": 1}])
    desk.accept(job_run_id="asked-twice")
    desk.run()
    desk.publisher.flush()
    assert len(repeats) == 1
    desk.close()
    second = desk.second()
    second.run()
    second.publisher.flush()
    assert sink.names.count("job_run.repeated") == 1
    assert second.records.open_job_run_ids() == []
    second.close()


def test_events_of_a_crashed_session_precede_the_end_of_its_job_run(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Crashes()
    desk.append([{"id": 1}])
    desk.accept()
    desk.run()
    assert desk.sink.names[-2:] == ["session.failed", "job_run.failed"]
