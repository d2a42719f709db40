"""The guarantees of every `Queue`: in memory, and SQS on moto's server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest

from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid, Unavailable
from dispatcher.aws.sqs import MESSAGE_BYTES_MAX, SqsQueue
from dispatcher.demo.stand_ins import queue_server
from dispatcher.intake.queue import ORIGIN_ATTRIBUTE, MessageAttribute, Origin, Queue, QueueMessage
from tests.fakes.memory_queue import MemoryQueue
from tests.servers import REGION, aws_environment

DELIVERIES_MAX = 3


@pytest.fixture(scope="module")
def sqs_endpoint() -> Iterator[str]:
    with aws_environment(), queue_server() as url:
        yield url


def open_sqs(endpoint_url: str, *, fifo: bool = False, message_bytes_max: int = MESSAGE_BYTES_MAX) -> SqsQueue:
    """A fresh queue with a redrive policy."""
    client = boto3.client("sqs", endpoint_url=endpoint_url, region_name=REGION)
    name, suffix = SystemClock().new_id(), ".fifo" if fifo else ""
    given = {"MaximumMessageSize": str(message_bytes_max), **({"FifoQueue": "true"} if fifo else {})}
    dead = client.create_queue(QueueName=f"{name}-dead{suffix}", Attributes=given)["QueueUrl"]  # type: ignore[arg-type]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": DELIVERIES_MAX})
    attributes = {**given, "RedrivePolicy": policy}
    url = client.create_queue(QueueName=f"{name}{suffix}", Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]
    return SqsQueue.open(url, endpoint_url=endpoint_url, region=REGION)


@pytest.fixture(
    params=["memory", pytest.param("sqs", marks=pytest.mark.servers), pytest.param("fifo", marks=pytest.mark.servers)]
)
def queue(request: pytest.FixtureRequest) -> Queue:
    if request.param == "memory":
        clock = SystemClock()
        return MemoryQueue(clock, MemoryQueue(clock), DELIVERIES_MAX)
    return open_sqs(request.getfixturevalue("sqs_endpoint"), fifo=request.param == "fifo")


def receive_one(queue: Queue, visibility_seconds: int = 30) -> QueueMessage:
    (message,) = queue.receive(10, 0, visibility_seconds)
    return message


def test_a_message_is_received_as_it_was_sent(queue: Queue) -> None:
    body = '{"a": "ü €", "b": [1]}\n'
    message_id = queue.send(body)
    message = receive_one(queue)
    assert (message.message_id, message.body, message.delivery_count) == (message_id, body, 1)
    assert message.reasons is None


def test_invisible_messages_are_counted_too(queue: Queue) -> None:
    assert queue.messages_left() == 0
    queue.send("visible")
    queue.send("received")
    message = receive_one_of_two(queue)
    assert queue.messages_left() == 2
    queue.delete(message)
    assert queue.messages_left() == 1


def receive_one_of_two(queue: Queue) -> QueueMessage:
    (message,) = queue.receive(1, 0, 30)
    return message


def has_groups(queue: Queue) -> bool:
    return isinstance(queue, MemoryQueue) or (isinstance(queue, SqsQueue) and queue.name.endswith(".fifo"))


def test_a_message_that_was_received_does_not_wait(queue: Queue) -> None:
    assert queue.messages_visible() == 0
    queue.send("a")
    queue.send("b")
    assert queue.messages_visible() == 2
    message = receive_one_of_two(queue)
    assert queue.messages_visible() == 1
    queue.set_visibility(message, 0)
    assert queue.messages_visible() == 2


def test_a_message_its_copy_and_its_dead_letter_are_in_the_group_that_it_was_sent_to(queue: Queue) -> None:
    group = "ACME.ORDERS.V1" if has_groups(queue) else None
    queue.send("a", group="ACME.ORDERS.V1")
    message = receive_one(queue)
    assert message.group == group
    queue.dead_letter(message, ["wrong"])
    assert receive_one(queue.dead_letters()).group == group
    queue.send_again(message, 0)
    queue.delete(message)
    assert receive_one(queue).group == group


def test_a_group_may_be_called_anything(queue: Queue) -> None:
    queue.send("a", group="TÄBLE " * 100)
    assert (receive_one(queue).group is not None) == has_groups(queue)


@pytest.mark.servers
def test_on_a_fifo_queue_the_messages_of_a_table_come_in_order_and_those_of_another_do_not_wait(
    sqs_endpoint: str,
) -> None:
    queue = open_sqs(sqs_endpoint, fifo=True)
    for body, table in (("1", "A"), ("2", "A"), ("3", "B")):
        queue.send(body, group=table)
    (first,) = queue.receive(1, 0, 30)
    (other,) = queue.receive(10, 0, 30)
    assert (first.body, other.body) == ("1", "3")
    queue.delete(first)
    assert receive_one(queue).body == "2"


def test_an_empty_queue_gives_nothing(queue: Queue) -> None:
    assert list(queue.receive(10, 0, 30)) == []


def test_a_received_message_is_invisible(queue: Queue) -> None:
    queue.send("a")
    receive_one(queue)
    assert list(queue.receive(10, 0, 30)) == []


def test_a_deleted_message_never_comes_again(queue: Queue) -> None:
    queue.send("a")
    message = receive_one(queue)
    queue.delete(message)
    queue.set_visibility(message, 0)
    assert list(queue.receive(10, 0, 30)) == []


def test_a_message_put_back_is_delivered_again_and_counted(queue: Queue) -> None:
    queue.send("a")
    first = receive_one(queue)
    queue.set_visibility(first, 0)
    second = receive_one(queue)
    assert second.message_id == first.message_id
    assert second.delivery_count == 2


def test_many_messages_are_deleted_at_once_and_once_more(queue: Queue) -> None:
    for number in range(23):
        queue.send(f"{number}")
    received: list[QueueMessage] = []
    while len(received) < 23:  # one receive may find none although there are some
        received += queue.receive(10, 0, 600)
    queue.delete_all(received[1:])
    queue.delete_all(received[1:])
    queue.delete_all([])
    assert queue.messages_left() == 1


def test_a_message_that_is_sent_while_others_are_deleted_is_kept(queue: Queue) -> None:
    for number in range(40):
        queue.send(f"{number}")
    received: list[QueueMessage] = []
    while len(received) < 40:
        received += queue.receive(10, 0, 600)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as sender:
            sent = sender.map(queue.send, [f"late {number}" for number in range(20)])
            queue.delete_all(received)
        assert len(list(sent)) == 20
    finally:
        sys.setswitchinterval(before)
    assert queue.messages_left() == 20


def test_deleting_twice_is_no_error(queue: Queue) -> None:
    queue.send("a")
    message = receive_one(queue)
    queue.delete(message)
    queue.delete(message)


def test_a_dead_lettered_message_has_its_body_and_its_reasons_and_stays_until_it_is_deleted(queue: Queue) -> None:
    queue.send("broken")
    message = receive_one(queue, visibility_seconds=0)
    queue.dead_letter(message, ["first: ä", "second"])
    dead = receive_one(queue.dead_letters())
    assert dead.body == "broken"
    assert dead.reasons is not None
    assert json.loads(dead.reasons) == ["first: ä", "second"]
    assert receive_one(queue).body == "broken"


ATTRIBUTES = {
    "sender": MessageAttribute("String", "somebody"),
    "tries": MessageAttribute("Number", "3"),
    "raw": MessageAttribute("Binary.gzip", b"\0\xff"),
}


def test_a_message_has_the_attributes_that_it_was_sent_with(queue: Queue) -> None:
    queue.send("a", ATTRIBUTES)
    message = receive_one(queue)
    assert dict(message.attributes) == ATTRIBUTES
    assert message.origin == Origin(message_id=message.message_id, sent_at_ms=message.sent_at_ms)
    assert message.sent_at_ms > 0


def test_a_dead_letter_keeps_the_attributes_and_names_the_message_that_it_was(queue: Queue) -> None:
    queue.send("a", ATTRIBUTES)
    message = receive_one(queue)
    queue.dead_letter(message, ["why"])
    dead = receive_one(queue.dead_letters())
    assert {name: dead.attributes[name] for name in ATTRIBUTES} == ATTRIBUTES
    assert dead.origin == message.origin
    assert dead.reasons == '["why"]'


def test_a_message_sent_again_is_counted_anew_and_names_the_message_that_it_was(queue: Queue) -> None:
    queue.send("a", ATTRIBUTES)
    first = receive_one(queue, visibility_seconds=0)
    second = receive_one(queue)
    queue.send_again(second, 0)
    queue.delete(second)
    copy = receive_one(queue)
    assert copy.message_id != first.message_id
    assert (copy.body, copy.delivery_count, copy.origin) == ("a", 1, first.origin)
    assert {name: copy.attributes[name] for name in ATTRIBUTES} == ATTRIBUTES
    queue.send_again(copy, 0)
    queue.delete(copy)
    assert receive_one(queue).origin == first.origin


def test_a_message_that_waits_holds_up_no_other(queue: Queue) -> None:
    queue.send("a")
    assert receive_one(queue).body == "a"
    queue.send("b")
    assert receive_one(queue).body == "b"


def test_an_attribute_that_only_looks_like_an_origin_is_the_sender_s(queue: Queue) -> None:
    queue.send("a", {ORIGIN_ATTRIBUTE: MessageAttribute("String", "warehouse")})
    message = receive_one(queue)
    assert message.origin.message_id == message.message_id


def test_a_message_that_nobody_finishes_moves_to_the_dead_letters_by_itself(queue: Queue) -> None:
    queue.send("poison")
    assert queue.deliveries_max == DELIVERIES_MAX
    for _ in range(DELIVERIES_MAX):
        receive_one(queue, visibility_seconds=0)
    assert list(queue.receive(10, 0, 0)) == []
    dead = receive_one(queue.dead_letters())
    assert (dead.body, dead.reasons) == ("poison", None)


def test_a_queue_without_dead_letters_says_so(queue: Queue) -> None:
    with pytest.raises(Invalid, match="has no dead-letter queue"):
        queue.dead_letters().dead_letters()


def test_at_most_as_many_messages_as_asked(queue: Queue) -> None:
    for number in range(5):
        queue.send(str(number))
    assert len(queue.receive(2, 0, 30)) == 2


# ----------------------------------------------------------------------------------------------------- SQS alone


@pytest.mark.servers
def test_a_queue_that_is_not_there_is_refused_by_name(sqs_endpoint: str) -> None:
    with pytest.raises(Invalid, match=r"queue http.*/nowhere cannot be used"):
        SqsQueue.open(f"{sqs_endpoint}/123456789012/nowhere", endpoint_url=sqs_endpoint, region=REGION)


@pytest.mark.servers
def test_a_dead_letter_queue_can_be_given_and_must_be_there(sqs_endpoint: str) -> None:
    client = boto3.client("sqs", endpoint_url=sqs_endpoint, region_name=REGION)
    url = client.create_queue(QueueName="plain")["QueueUrl"]
    dead = client.create_queue(QueueName="given")["QueueUrl"]
    opened = SqsQueue.open(url, dead_letter_queue_url=dead, endpoint_url=sqs_endpoint, region=REGION)
    assert opened.dead_letters().name == dead
    with pytest.raises(Invalid, match=r"dead-letter queue http.*/missing cannot be used"):
        SqsQueue.open(url, dead_letter_queue_url=f"{dead}/missing", endpoint_url=sqs_endpoint, region=REGION)


def test_a_text_that_is_not_a_url_is_refused_before_any_request() -> None:
    with pytest.raises(Invalid, match="'orders' is no queue URL"):
        SqsQueue.open("orders")


@pytest.mark.servers
def test_a_service_that_does_not_answer_is_unavailable(sqs_endpoint: str) -> None:
    with pytest.raises(Unavailable, match="cannot be used"):
        SqsQueue.open("http://127.0.0.1:9/123456789012/q", endpoint_url="http://127.0.0.1:9", region=REGION)


SMALL_BYTES_MAX = 20_000
"""Set for a queue, as its owner may."""


@pytest.mark.servers
@pytest.mark.parametrize("room_bytes", [0, 100, 300, 1_000, 10_000])
def test_reasons_and_attributes_give_way_to_a_body_that_fills_the_message(sqs_endpoint: str, room_bytes: int) -> None:
    queue = open_sqs(sqs_endpoint, message_bytes_max=SMALL_BYTES_MAX)
    queue.send(
        "x" * (SMALL_BYTES_MAX - room_bytes),
        {"a": MessageAttribute("String", "y" * (room_bytes - 50))} if room_bytes else {},
    )
    message = receive_one(queue)
    queue.dead_letter(message, ["a reason of some length " * 20])
    dead = receive_one(queue.dead_letters())
    assert dead.body == message.body
    assert bool(dead.reasons) == (room_bytes > 0)


@pytest.mark.servers
def test_reasons_of_many_kilobytes_are_kept_whole(sqs_endpoint: str) -> None:
    queue = open_sqs(sqs_endpoint, message_bytes_max=100_000)
    queue.send("x" * 1_000)
    reasons = ["y" * 900] * 100
    queue.dead_letter(receive_one(queue), reasons)
    assert json.loads(receive_one(queue.dead_letters()).reasons or "") == reasons


@pytest.mark.servers
def test_of_more_attributes_than_a_copy_can_have_the_last_are_left_out_and_named(sqs_endpoint: str) -> None:
    queue = open_sqs(sqs_endpoint)
    queue.send("x", {f"a{number}": MessageAttribute("String", "y") for number in range(10)})
    queue.dead_letter(receive_one(queue), ["why"])
    dead = receive_one(queue.dead_letters())
    assert sorted(dead.attributes) == [*(f"a{number}" for number in range(8)), "origin", "reasons"]
    why, left_out = json.loads(dead.reasons or "")
    assert why == "why"
    assert "a8, a9" in left_out
