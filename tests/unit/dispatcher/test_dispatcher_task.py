"""The dispatcher as a task of a workflow: it says that it lives while it does, and ends before its execution must."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from dispatcher.records.result import Failure, Success
from dispatcher.workflow.callbacks import CAUSE_CHARACTERS_MAX, ExecutionLength
from dispatcher.workflow.dispatcher_task import DispatcherTask, EndOfTask, TaskSettings, ending
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_callbacks import MemoryCallbacks

TOKEN = "the-dispatcher's-secret"
ARN = "arn:aws:states:us-east-1:123456789012:execution:dispatcher:1"
DAY = 86_400


@dataclass
class KnownExecution:
    events: int = 5
    started_at_ms: int = 0
    error: LithifyError | None = None

    def length(self, execution_arn: str) -> ExecutionLength:
        assert execution_arn == ARN
        if self.error is not None:
            raise self.error
        return ExecutionLength(self.events, self.started_at_ms)


class Started:
    """A task whose dispatcher turns, unless `stuck` says otherwise."""

    def __init__(self, settings: TaskSettings | None = None, *, arn: str | None = ARN) -> None:
        self.clock = ManualClock()
        self.callbacks = MemoryCallbacks()
        self.callbacks.begin(TOKEN)
        self.execution = KnownExecution(started_at_ms=self.clock.now_ms())
        self.stops = threading.Event()
        self.stuck: tuple[str, ...] = ()
        given = settings or TaskSettings()
        self.task = DispatcherTask(TOKEN, arn, self.callbacks, self.execution, given, self.clock)

    def turn(self, seconds: float, every_seconds: float = 1) -> None:
        for _ in range(round(seconds / every_seconds)):
            self.task.turn(self.stops, lambda: self.stuck)
            self.clock.sleep(every_seconds)

    @property
    def beats(self) -> int:
        return self.callbacks.beats[TOKEN]


def test_it_beats_at_a_third_of_the_time_out() -> None:
    started = Started(TaskSettings(heartbeat_seconds=60))
    started.turn(60)
    assert started.beats == 3
    assert not started.stops.is_set()


@pytest.mark.parametrize("loop", ["tick", "receiver"])
def test_it_beats_only_while_tick_and_receiver_turn(loop: str) -> None:
    started = Started()
    started.turn(10)
    started.stuck = (loop,)
    started.turn(300)
    assert started.beats == 1
    started.stuck = ()
    started.turn(1)
    assert started.beats == 2


def test_a_workflow_that_waits_no_more_ends_the_dispatcher() -> None:
    started = Started()
    started.turn(1)
    started.callbacks.give_up(TOKEN)
    started.turn(30)
    assert started.stops.is_set()
    assert not started.task.succeed(EndOfTask.STOPPED, "first", ())


@pytest.mark.parametrize("error", [Unavailable("throttled"), Denied("AccessDenied"), ZeroDivisionError(TOKEN)])
def test_a_service_in_trouble_is_asked_again_and_its_trouble_shown(error: Exception) -> None:
    started = Started()
    started.callbacks.error = error
    with capture_logs() as lines:
        started.turn(5)
    errors = [started.task.last_error]
    assert TOKEN not in str(lines)
    started.callbacks.error = None
    started.turn(1)
    assert started.beats == 1
    assert [*errors, started.task.last_error] == [error, None]


def test_it_ends_before_the_history_of_its_execution_is_full() -> None:
    started = Started(TaskSettings(events_max=24_000))
    started.execution.events = 23_999
    started.turn(1)
    assert not started.stops.is_set()
    started.execution.events = 24_000
    started.turn(601)
    assert started.stops.is_set()
    assert started.task.succeed(EndOfTask.STOPPED, "first", ())
    answer = started.callbacks.answers[TOKEN]
    assert isinstance(answer, Success)
    assert json.loads(answer.output) == {"reason": "execution_is_long", "owner": "first", "left": []}


def test_it_ends_before_the_ninetieth_day_of_its_execution() -> None:
    started = Started()
    started.execution.started_at_ms -= 80 * DAY * 1000  # others of this execution ran before
    started.turn(8.9 * DAY, every_seconds=600)
    assert not started.stops.is_set()
    started.turn(0.2 * DAY, every_seconds=600)
    assert started.stops.is_set()


@pytest.mark.parametrize("arn", [None, ARN])
def test_where_its_execution_is_not_known_its_own_age_counts(arn: str | None) -> None:
    started = Started(arn=arn)
    started.execution.error = Denied("no right to look at the execution")
    started.turn(88.9 * DAY, every_seconds=3_600)
    assert not started.stops.is_set()
    started.turn(0.2 * DAY, every_seconds=3_600)
    assert started.stops.is_set()
    assert started.beats > 0


def test_it_answers_once_and_tries_again_where_the_service_does_not_answer() -> None:
    started = Started()
    started.callbacks.error = Unavailable("throttled")
    assert not started.task.succeed(EndOfTask.STOPPED, "first", ())
    assert started.callbacks.calls > 10
    started.callbacks.error = None
    assert started.task.succeed(EndOfTask.STOPPED, "first", ("something is left",))
    answer = started.callbacks.answers[TOKEN]
    assert isinstance(answer, Success)
    assert json.loads(answer.output)["left"] == ["something is left"]


def test_a_dispatcher_that_cannot_work_fails_its_task_with_the_cause() -> None:
    started = Started()
    assert started.task.fail(Invalid("there is no such queue", f"and {TOKEN}", "x" * 50_000))
    answer = started.callbacks.answers[TOKEN]
    assert isinstance(answer, Failure)
    assert answer.error == "Lithify.DispatcherFailed"
    assert answer.cause.startswith("there is no such queue; and <task token>")
    assert len(answer.cause) <= CAUSE_CHARACTERS_MAX


def test_the_end_of_a_dispatcher_is_told_whatever_it_is() -> None:
    well, broken = Started(), Started()
    with ending(well.task, "first") as noted:
        noted.reason, noted.left = EndOfTask.IDLE, ("one job run is paused",)
    answer = well.callbacks.answers[TOKEN]
    assert isinstance(answer, Success)
    assert json.loads(answer.output) == {"reason": "idle", "owner": "first", "left": ["one job run is paused"]}
    with pytest.raises(Invalid, match="no such queue"), ending(broken.task, "first"):
        raise Invalid("there is no such queue")
    assert isinstance(broken.callbacks.answers[TOKEN], Failure)
    with ending(None, "first") as noted:
        assert noted.left == ()


def test_a_workflow_that_cannot_be_told_of_the_end_makes_the_dispatcher_fail() -> None:
    started = Started()
    started.turn(1)
    started.callbacks.give_up(TOKEN)
    started.turn(30)
    with pytest.raises(Unavailable, match="waits for it no more"), ending(started.task, "first"):
        pass
