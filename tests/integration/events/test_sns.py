"""Events on SNS: in batches, each with its attributes, and what is wrong with a topic told in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import boto3
import pytest

from compactor.events.aws.sns import SnsSink
from compactor.events.relay import Event, SessionSubject, Subject, session_log_events
from compactor.log.durable_log import Entry
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid, Unavailable
from compactor.sessions.session_log import SessionAction, SessionStarted
from dispatcher.demo.stand_ins import queue_server
from tests.fakes.manual_clock import ManualClock
from tests.servers import REGION, aws_environment

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient

ABOUT = SessionSubject(Subject("run", "A.B.V1"), "run.1", {"note": "x" * 20_000})


@pytest.fixture(scope="module")
def endpoint_url() -> Iterator[str]:
    with aws_environment(), queue_server() as url:
        yield url


def events(count: int, about: SessionSubject = ABOUT) -> tuple[Event, ...]:
    actions: tuple[SessionAction, ...] = tuple(
        SessionStarted(attempt=number, rounds=1, expected_sla=1.0) for number in range(1, count + 1)
    )
    return session_log_events(about, "log", Entry(1, "id", 5, actions))


@pytest.mark.servers
def test_any_number_of_events_arrives_whatever_their_size(endpoint_url: str) -> None:
    sqs = boto3.client("sqs", endpoint_url=endpoint_url, region_name=REGION)
    sns = boto3.client("sns", endpoint_url=endpoint_url, region_name=REGION)
    url = sqs.create_queue(QueueName=SystemClock().new_id())["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = sns.create_topic(Name=SystemClock().new_id())["TopicArn"]
    policy = json.dumps({"severity": ["info"], "table": ["A.B.V1"]})
    attributes = {"RawMessageDelivery": "true", "FilterPolicy": policy}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=attributes)

    elsewhere = SessionSubject(Subject("run", "C.D.V1"), "run.1", {})
    sent = events(25)
    SnsSink.open(topic, SystemClock(), endpoint_url=endpoint_url).publish([*sent, *events(3, elsewhere)])

    arrived = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
        for message in messages:
            arrived.append(Event.model_validate_json(message["Body"]))
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert sorted(arrived, key=lambda event: event.sequence) == list(sent)


@pytest.mark.servers
def test_a_topic_that_is_not_there_is_refused_by_name(endpoint_url: str) -> None:
    topic = f"arn:aws:sns:{REGION}:123456789012:nowhere"
    with pytest.raises(Invalid, match=f"topic {topic} takes no events"):
        SnsSink.open(topic, ManualClock(), endpoint_url=endpoint_url).publish(events(1))


@pytest.mark.servers
def test_a_service_that_does_not_answer_is_asked_again_and_is_then_unavailable(endpoint_url: str) -> None:
    clock = ManualClock()
    sink = SnsSink.open(f"arn:aws:sns:{REGION}:123456789012:t", clock, endpoint_url="http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="takes no events"):
        sink.publish(events(1))
    assert 3.0 < clock.monotonic_seconds() < 5.0


def test_events_that_the_answer_does_not_name_are_sent_again() -> None:
    sent: list[list[str]] = []

    def publish_batch(**request: object) -> dict[str, list[dict[str, str]]]:
        entries = cast(list[dict[str, str]], request["PublishBatchRequestEntries"])
        sent.append([entry["Id"] for entry in entries])
        return {"Successful": [{"Id": entries[0]["Id"]}], "Failed": []}

    client = cast("SNSClient", SimpleNamespace(publish_batch=publish_batch))
    SnsSink(client, f"arn:aws:sns:{REGION}:123456789012:t", ManualClock()).publish(events(3))
    assert sent == [["0", "1", "2"], ["1", "2"], ["2"]]


def test_an_event_that_is_too_large_for_sns_holds_no_other_back() -> None:
    sent: list[str] = []

    def publish_batch(**request: object) -> dict[str, list[dict[str, str]]]:
        entries = cast(list[dict[str, str]], request["PublishBatchRequestEntries"])
        sent.extend(json.loads(entry["Message"])["data"]["partition"]["note"][:1] for entry in entries)
        return {"Successful": [{"Id": entry["Id"]} for entry in entries], "Failed": []}

    client = cast("SNSClient", SimpleNamespace(publish_batch=publish_batch))
    whole = [
        event
        for note in ("a", "b" * 300_000, "c")
        for event in events(1, SessionSubject(Subject("run", "A.B.V1"), "run.1", {"note": note}))
    ]
    SnsSink(client, f"arn:aws:sns:{REGION}:123456789012:t", ManualClock()).publish(whole)
    assert sent == ["a", "c"]


def test_a_name_that_is_not_a_topic_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Invalid, match="'events' is no SNS topic"):
        SnsSink.open("events", SystemClock())
