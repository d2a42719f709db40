"""The thread that receives: what keeps it waiting, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.model.clock import Clock
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from dispatcher.intake.queue import QueueMessage
from dispatcher.intake.receiver import Receiver, ReceiverSettings
from dispatcher.records.job_run_log import JobRunStatus
from tests.fakes.dispatch_desk import Busy, Desk, instruction
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_queue import MemoryQueue
from tests.waiting import wait_until

QUICK = ReceiverSettings(wait_seconds=0, idle_seconds=0.01, unavailable_seconds=0.01)


class FailingQueue(MemoryQueue):
    """`receive_errors` are raised by the next receives, one each."""

    receive_errors: list[LithifyError]

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        if self.receive_errors:
            raise self.receive_errors.pop(0)
        return super().receive(messages_max, wait_seconds, visibility_seconds)


class CountedQueue(MemoryQueue):
    """Does not answer the first question of how many messages wait."""

    def __init__(self, clock: Clock, dead_letters: MemoryQueue) -> None:
        super().__init__(clock, dead_letters)
        self.counts = 0
        self.counted_twice = threading.Event()

    def messages_visible(self) -> int:
        self.counts += 1
        if self.counts == 1:
            raise Unavailable("no answer")
        self.counted_twice.set()
        return super().messages_visible()


def receiver_of(desk: Desk) -> Receiver:
    return Receiver(desk.queue, desk.intake, desk.controller, desk.metrics, QUICK, desk.clock)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    queue = FailingQueue(desk.clock, MemoryQueue(desk.clock), deliveries_max=5)
    queue.receive_errors = []
    desk = replace(desk, queue=queue)
    yield desk
    desk.close()


def test_a_queue_that_denies_access_for_a_while_loses_no_instruction(desk: Desk) -> None:
    codes = ("ExpiredToken", "AccessDenied", "RequestExpired", "SignatureDoesNotMatch")
    assert isinstance(desk.queue, FailingQueue)
    desk.queue.receive_errors = [*(Denied(code) for code in codes), Unavailable("no answer")]
    desk.append([{"id": 1, "v": "a"}])
    desk.send(instruction(job_run_id="run"))
    stops = threading.Event()
    receiving = threading.Thread(target=receiver_of(desk).run, args=(stops,))
    receiving.start()
    desk.tick_until(lambda: desk.job_run("run").status is JobRunStatus.SUCCEEDED)
    stops.set()
    receiving.join()


def test_no_more_messages_are_asked_for_than_there_is_room_for(tmp_path: Path) -> None:
    """Seven are sent, 3 job runs may be held or known to wait, and one long poll may bring 5 messages."""
    desk = Busy(tmp_path, clock=ManualClock())
    desk = replace(desk, settings=replace(desk.settings, max_job_runs=3, max_sessions=1))
    desk.append([{"id": 1}])
    for number in range(7):
        desk.send(instruction(job_run_id=f"run {number}"))
    receiver = receiver_of(desk)
    assert receiver.receive_once(threading.Event()) == 3
    assert receiver.receive_once(threading.Event()) == 0  # no tick has come in between
    desk.controller.tick()
    assert desk.controller.room == 0
    assert receiver.receive_once(threading.Event()) == 0
    assert [desk.job_run(f"run {number}").status.is_open for number in range(7)] == [True] * 3 + [False] * 4
    desk.close()


def test_a_message_that_neither_a_poll_nor_the_count_saw_is_received_before_the_queue_is_called_empty(
    desk: Desk,
) -> None:
    """It becomes visible after the count."""
    receiver, stops = receiver_of(desk), threading.Event()
    assert receiver.receive_once(stops) == 0
    assert not receiver.is_empty(), "it was counted just now"
    desk.send("no JSON")
    assert not receiver.is_empty(), "no poll was sent since"
    assert receiver.receive_once(stops) == 1
    assert not receiver.is_empty()
    for _ in range(2):
        assert receiver.receive_once(stops) == 0
        is_empty = receiver.is_empty()
    assert is_empty


def test_a_rejected_document_takes_no_room_for_longer_than_a_tick(tmp_path: Path) -> None:
    desk = Busy(tmp_path, clock=ManualClock())
    desk = replace(desk, settings=replace(desk.settings, max_job_runs=2))
    for _ in range(5):
        desk.send("no JSON")
    receiver = receiver_of(desk)
    assert receiver.receive_once(threading.Event()) == 2
    desk.tick()
    assert receiver.receive_once(threading.Event()) == 2
    desk.close()


def test_the_queue_s_age_is_0_while_there_is_no_room_and_nothing_waits(tmp_path: Path) -> None:
    desk = Busy(tmp_path, clock=ManualClock())
    desk = replace(desk, settings=replace(desk.settings, max_job_runs=1))
    desk.append([{"id": 1}])
    desk.send(instruction())
    desk.move_on(90)
    receiver = receiver_of(desk)
    receiver.receive_once(threading.Event())
    assert receiver.queue_age_seconds == pytest.approx(90)
    desk.controller.tick()
    desk.move_on(ReceiverSettings.count_seconds)
    receiver.look_at_queue()
    assert receiver.queue_age_seconds == 0
    desk.close()


def test_what_waits_while_there_is_no_room_is_as_old_as_the_queue_was_last_seen_empty(tmp_path: Path) -> None:
    desk = Busy(tmp_path, clock=ManualClock())
    desk = replace(desk, settings=replace(desk.settings, max_job_runs=1))
    desk.append([{"id": 1}])
    desk.send(instruction())
    receiver = receiver_of(desk)
    receiver.receive_once(threading.Event())
    desk.controller.tick()
    desk.move_on(1_000)
    receiver.look_at_queue()
    desk.send(instruction())
    for seconds in (20, 40, 60):
        desk.move_on(20)
        receiver.look_at_queue()
        assert receiver.queue_age_seconds == pytest.approx(seconds)
    desk.close()


def test_a_queue_is_counted_while_there_is_no_room_and_says_if_it_is_away(tmp_path: Path) -> None:
    clock = ManualClock()
    queue = CountedQueue(clock, MemoryQueue(clock))
    desk = Busy(tmp_path, clock=clock, queue=queue)
    desk = replace(desk, settings=replace(desk.settings, max_job_runs=1))
    desk.append([{"id": 1}])
    desk.send(instruction())
    receiver = receiver_of(desk)
    receiver.receive_once(threading.Event())
    desk.controller.tick()
    desk.move_on(ReceiverSettings.count_seconds)
    stops = threading.Event()
    receiving = threading.Thread(target=receiver.run, args=(stops,))
    receiving.start()
    assert queue.counted_twice.wait(30)
    wait_until(lambda: receiver.last_error is None)
    stops.set()
    receiving.join()
    assert queue.counts == 2  # the clock stands still: no more is due
    desk.close()


def test_a_queue_that_is_not_there_ends_the_receiver(desk: Desk) -> None:
    assert isinstance(desk.queue, FailingQueue)
    desk.queue.receive_errors = [Invalid("there is no such queue")]
    with pytest.raises(Invalid, match="no such queue"):
        receiver_of(desk).run(threading.Event())


def test_a_dispatcher_that_ends_when_idle_polls_briefly_and_one_that_runs_on_does_not() -> None:
    assert ReceiverSettings().until_idle().wait_seconds == 1
    assert ReceiverSettings(wait_seconds=0).until_idle().wait_seconds == 0
    assert ReceiverSettings().wait_seconds == 10
