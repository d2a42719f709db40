"""How long a received message stays invisible: short, and longer only while somebody lives who works on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.lake import DeltaCatalog
from compactor.model.errors import Unavailable
from compactor.storage.location import StoreLocation
from dispatcher.intake.intake import PutBack, VisibilityKeeper
from dispatcher.intake.receiver import Receiver, ReceiverSettings
from tests.fakes.dispatch_desk import Desk, instruction
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_queue import MemoryQueue

VISIBILITY_SECONDS = 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> MemoryQueue:
    return MemoryQueue(clock, MemoryQueue(clock))


@pytest.fixture
def keeper(queue: MemoryQueue, clock: ManualClock) -> VisibilityKeeper:
    return VisibilityKeeper(queue, VISIBILITY_SECONDS, 600, clock)


@pytest.fixture
def desk(tmp_path: Path, clock: ManualClock) -> Iterator[Desk]:
    desk = Desk(tmp_path, clock=clock)
    yield desk
    desk.close()


def test_the_messages_of_a_dispatcher_that_was_killed_come_back_after_the_visibility(
    queue: MemoryQueue, keeper: VisibilityKeeper, clock: ManualClock
) -> None:
    queue.send("a")
    keeper.hold(queue.receive(1, 0, keeper.visibility_seconds))
    clock.sleep(VISIBILITY_SECONDS)
    assert len(queue.receive(1, 0, 1)) == 1


def test_a_message_that_is_worked_on_stays_invisible_until_it_is_released(
    queue: MemoryQueue, keeper: VisibilityKeeper, clock: ManualClock
) -> None:
    queue.send("a")
    (message,) = queue.receive(1, 0, keeper.visibility_seconds)
    keeper.hold([message])
    for _ in range(10):
        clock.sleep(VISIBILITY_SECONDS - 1)
        keeper.put_off()
        assert queue.receive(1, 0, 1) == []
    keeper.release(message)
    keeper.put_off()
    clock.sleep(VISIBILITY_SECONDS)
    assert len(queue.receive(1, 0, 1)) == 1


def test_a_hanging_thread_does_not_block_a_message_for_ever(
    queue: MemoryQueue, keeper: VisibilityKeeper, clock: ManualClock
) -> None:
    queue.send("a")
    keeper.hold(queue.receive(1, 0, keeper.visibility_seconds))
    for _ in range(600 // 50 + 1):
        clock.sleep(50)
        keeper.put_off()
    clock.sleep(VISIBILITY_SECONDS)
    keeper.put_off()
    assert len(queue.receive(1, 0, 1)) == 1


def test_a_message_that_was_put_back_for_long_is_not_put_off_for_a_shorter_time(desk: Desk, clock: ManualClock) -> None:
    def away(location: StoreLocation) -> DeltaCatalog:
        raise Unavailable("the lake does not answer")

    desk = desk.second(open_lake=away)
    desk.send(instruction())
    clock.sleep(500)  # so long that its next rest is longer than a visibility
    (message,) = desk.queue.receive(1, 0, desk.intake.keeper.visibility_seconds)
    desk.intake.keeper.hold([message])
    assert desk.intake.take(message) == PutBack("the lake does not answer", 500)
    desk.intake.keeper.put_off()
    clock.sleep(499)
    assert desk.queue.receive(1, 0, 1) == []
    clock.sleep(1)
    assert len(desk.queue.receive(1, 0, 1)) == 1


def test_the_other_messages_of_a_batch_stay_invisible_while_the_first_is_judged(desk: Desk, clock: ManualClock) -> None:
    seen_by_others: list[int] = []

    def slow(location: StoreLocation) -> DeltaCatalog:
        clock.sleep(VISIBILITY_SECONDS - 1)
        desk.intake.keeper.put_off()
        clock.sleep(VISIBILITY_SECONDS - 1)
        seen_by_others.append(len(desk.queue.receive(10, 0, 1)))
        return DeltaCatalog.open(location.root_uri)

    desk.append([{"id": 1}])
    desk = desk.second(open_lake=slow)
    for number in range(3):
        desk.send(instruction(job_run_id=f"run-{number}"))
    receiver = Receiver(
        desk.queue, desk.intake, desk.controller, desk.metrics, ReceiverSettings(wait_seconds=0), desk.clock
    )
    assert receiver.receive_once(threading.Event()) == 3
    assert seen_by_others == [0, 0, 0]
    assert desk.queue.bodies == []
