"""Which dead letters are sent again, and that none is lost by it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest

from compactor.model.errors import Unavailable
from dispatcher.cli.redrive import DeadLetter, Selection, move
from dispatcher.intake.queue import MessageAttribute, QueueMessage
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_queue import MemoryQueue


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> MemoryQueue:
    """With three dead letters: of a table that is not there, of a column that is not, and one that is no document."""
    queue = MemoryQueue(clock, MemoryQueue(clock))
    for body, reason in (
        (json.dumps({"job_run_id": "first", "source_table_id": "A.B.V1"}), "there is no table A.B.V1"),
        (json.dumps({"job_run_id": "second", "source_table_id": "C.D.V1"}), "there is no column 'Größe'"),
        ("{", "the document is not JSON"),
    ):
        queue.send(body, {"sender": MessageAttribute("String", "me")})
        (message,) = queue.receive(1, 0, 30)
        queue.dead_letter(message, [reason])
        queue.delete(message)
    return queue


ALL = Selection()


def moved(queue: MemoryQueue, only: Selection = ALL, *, dry_run: bool = False) -> list[DeadLetter]:
    return move(queue, only, dry_run=dry_run)


def names(letters: list[DeadLetter]) -> list[object]:
    return [each["job_run_id"] for each in letters]


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (ALL, ["first", "second", None]),
        (Selection(ids=frozenset({"second"})), ["second"]),
        (Selection(ids=frozenset({"message-3", "first"})), ["first", None]),
        (Selection(table="A.B.V1"), ["first"]),
        (Selection(table="A.B.V"), []),
        (Selection(frozenset({"first"}), "C.D.V1"), []),
    ],
)
def test_dead_letters_are_chosen_by_id_and_table(queue: MemoryQueue, only: Selection, found: list[object]) -> None:
    dead_letters = queue.dead_letters()
    before = sorted(dead_letters.bodies)

    assert names(moved(queue, only, dry_run=True)) == found
    assert (queue.bodies, sorted(dead_letters.bodies)) == ([], before)
    assert len(dead_letters.receive(10, 0, 0)) == 3, "they are given back at once"

    letters = moved(queue, only)
    assert names(letters) == found
    assert sorted([*queue.bodies, *dead_letters.bodies]) == before
    assert len(queue.bodies) == len(found)
    assert len(dead_letters.receive(10, 0, 0)) == 3 - len(found)


def test_a_message_sent_again_is_a_new_one_with_its_sender_s_attributes(queue: MemoryQueue) -> None:
    (letter,) = moved(queue, Selection(ids=frozenset({"first"})))
    (message,) = queue.receive(10, 0, 0)
    assert letter["sent_as"] == message.message_id
    assert dict(message.attributes) == {"sender": MessageAttribute("String", "me")}
    assert message.origin.message_id == message.message_id


class DeliversAgain(MemoryQueue):
    """Every so many receives leave their messages visible, so that they are delivered once more."""

    def __init__(self, clock: ManualClock, every: int) -> None:
        super().__init__(clock)
        self._every = every
        self._receives = 0

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        self._receives += 1
        stays_visible = self._receives % self._every == 0
        return super().receive(messages_max, wait_seconds, 0 if stays_visible else visibility_seconds)


class IsRefused(MemoryQueue):
    """A dispatcher dead-letters everything again, at once."""

    def send(
        self,
        body: str,
        attributes: Mapping[str, MessageAttribute] = MappingProxyType({}),
        group: str | None = None,
    ) -> str:
        sent_as = super().send(body, attributes, group)
        (message,) = self.receive(1, 0, 30)
        self.dead_letter(message, ["still wrong"])
        self.delete(message)
        return sent_as


def with_letters(queue: MemoryQueue, count: int) -> MemoryQueue:
    for number in range(count):
        queue.dead_letters().put(json.dumps({"job_run_id": f"run-{number}"}), {})
    return queue


def test_all_of_many_dead_letters_are_shown_and_sent(clock: ManualClock) -> None:
    queue = with_letters(MemoryQueue(clock, MemoryQueue(clock)), 1_205)
    assert len(moved(queue, dry_run=True)) == 1_205
    assert queue.dead_letters().messages_visible() == 1_205
    assert len(moved(queue)) == 1_205
    assert (queue.messages_left(), queue.dead_letters().messages_left()) == (1_205, 0)


def test_letters_that_are_delivered_twice_hide_none_of_the_others_and_are_given_back(clock: ManualClock) -> None:
    queue = with_letters(MemoryQueue(clock, DeliversAgain(clock, every=2)), 100)
    assert len(moved(queue, dry_run=True)) == 100
    assert queue.dead_letters().messages_visible() == 100


def test_reading_ends_though_letters_come_again_and_again(clock: ManualClock) -> None:
    queue = with_letters(MemoryQueue(clock, DeliversAgain(clock, every=1)), 5)
    assert len(moved(queue, dry_run=True)) == 5


def test_a_document_that_is_refused_again_while_others_are_sent_is_not_sent_a_second_time(clock: ManualClock) -> None:
    queue = with_letters(IsRefused(clock, MemoryQueue(clock)), 30)
    assert len(moved(queue)) == 30
    assert (queue.messages_left(), queue.dead_letters().messages_visible()) == (0, 30)


def test_a_dead_letter_that_cannot_be_sent_stays(queue: MemoryQueue, clock: ManualClock) -> None:
    class Refuses(MemoryQueue):
        def send(self, body: str, attributes: object = None, group: str | None = None) -> str:
            raise Unavailable("the queue does not answer")

    refusing = Refuses(clock, queue.dead_letters())
    with pytest.raises(Unavailable):
        moved(refusing)
    assert len(queue.dead_letters().bodies) == 3
