"""What every `Queue` keeps: the one in memory, and SQS on moto's server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import boto3
import pytest

from compactor.clock import SystemClock
from compactor.errors import Invalid, Unavailable
from dispatcher.aws.sqs import MESSAGE_BYTES_MAX, SqsQueue, render_reasons
from dispatcher.queue import Queue, QueueMessage
from tests.fakes.memory_queue import MemoryQueue
from tests.servers import REGION, aws_environment, moto_server

DELIVERIES_MAX = 3


@pytest.fixture(scope="module")
def sqs_endpoint() -> Iterator[str]:
    with aws_environment(), moto_server() as url:
        yield url


def open_sqs(endpoint_url: str) -> SqsQueue:
    """A fresh queue with a redrive policy."""
    client = boto3.client("sqs", endpoint_url=endpoint_url, region_name=REGION)
    name = SystemClock().new_id()
    dead = client.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": DELIVERIES_MAX})
    url = client.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]
    return SqsQueue.open(url, endpoint_url=endpoint_url, region=REGION)


@pytest.fixture(params=["memory", pytest.param("sqs", marks=pytest.mark.servers)])
def queue(request: pytest.FixtureRequest) -> Queue:
    if request.param == "memory":
        clock = SystemClock()
        return MemoryQueue(clock, MemoryQueue(clock), DELIVERIES_MAX)
    return open_sqs(request.getfixturevalue("sqs_endpoint"))


def receive_one(queue: Queue, visibility_seconds: int = 30) -> QueueMessage:
    (message,) = queue.receive(10, 0, visibility_seconds)
    return message


def test_what_is_sent_is_received_as_it_was(queue: Queue) -> None:
    body = '{"a": "ü €", "b": [1]}\n'
    message_id = queue.send(body)
    message = receive_one(queue)
    assert (message.message_id, message.body, message.delivery_count) == (message_id, body, 1)
    assert message.reasons is None


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


def test_what_is_no_url_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(Invalid, match="'orders' is no queue URL"):
        SqsQueue.open("orders")


@pytest.mark.servers
def test_a_service_that_does_not_answer_is_unavailable(sqs_endpoint: str) -> None:
    with pytest.raises(Unavailable, match="cannot be used"):
        SqsQueue.open("http://127.0.0.1:9/123456789012/q", endpoint_url="http://127.0.0.1:9", region=REGION)


@pytest.mark.servers
def test_reasons_give_way_to_a_body_that_fills_the_message(sqs_endpoint: str) -> None:
    queue = open_sqs(sqs_endpoint)
    queue.send("x" * (MESSAGE_BYTES_MAX - 100))
    message = receive_one(queue)
    queue.dead_letter(message, ["a reason of some length " * 20])
    dead = receive_one(queue.dead_letters())
    assert dead.body == message.body
    assert len(dead.reasons or "") <= 100


@pytest.mark.parametrize("bytes_max", [0, 10, 100, 1_000, 8_192])
def test_reasons_always_fit_and_always_parse(bytes_max: int) -> None:
    reasons = ["a short one", "ä" * 300, "x" * 9_000, "the last"]
    text = render_reasons(reasons, bytes_max)
    assert len(text.encode()) <= bytes_max
    assert text == "" or json.loads(text)
