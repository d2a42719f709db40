"""Creates the queues, the topic and the bucket of `lithify demo`, on stand-ins for AWS.

Nothing else in Lithify creates them: in an AWS account `infra/` does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from compactor.events.relay import Event
from compactor.storage.aws.failures import translated

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

DELIVERIES_MAX = 5


@dataclass(frozen=True)
class DemoServices:
    """Queues for instructions and announced files, with those of their dead letters; a topic, and a queue of its
    events."""

    queue_url: str
    files_queue_url: str
    topic_arn: str
    events_queue_url: str


def create_services(endpoint_url: str, region: str, name: str) -> DemoServices:
    """Creates all of them, with names that begin with `name`."""
    sqs = boto3.client("sqs", endpoint_url=endpoint_url, region_name=region)
    sns = boto3.client("sns", endpoint_url=endpoint_url, region_name=region)
    with translated(f"{endpoint_url} creates no queues"):
        queue, files = (_create_queue(sqs, each) for each in (name, f"{name}-files"))
        events = sqs.create_queue(QueueName=f"{name}-events")["QueueUrl"]
        topic = sns.create_topic(Name=f"{name}-events")["TopicArn"]
        sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=_arn(sqs, events),
            Attributes={"RawMessageDelivery": "true"},
        )
    return DemoServices(queue, files, topic, events)


def create_bucket(endpoint_url: str, region: str, bucket: str) -> None:
    """One try, for a server that may not be ready yet: `Unavailable` then."""
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=5)
    s3 = boto3.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
    with translated(f"{endpoint_url} takes no objects"):
        if bucket not in {each.get("Name") for each in s3.list_buckets().get("Buckets", [])}:
            s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key="ready", Body=b"")


class EventFeed:
    """The events that a topic delivered to a queue, each once."""

    def __init__(self, sqs: SQSClient, url: str) -> None:
        self._sqs = sqs
        self._url = url
        self._seen: set[str] = set()

    @classmethod
    def open(cls, url: str, endpoint_url: str, region: str) -> EventFeed:
        return cls(boto3.client("sqs", endpoint_url=endpoint_url, region_name=region), url)

    def receive(self) -> list[Event]:
        """The events since the last call, without waiting; sorted, since queues do not keep the order."""
        found: list[Event] = []
        with translated(f"queue {self._url} cannot be read"):
            while messages := self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages"):
                for message in messages:
                    event = Event.model_validate_json(message.get("Body", ""))
                    self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message.get("ReceiptHandle", ""))
                    if event.id not in self._seen:
                        self._seen.add(event.id)
                        found.append(event)
        return sorted(found, key=lambda event: event.sequence)


def _create_queue(sqs: SQSClient, name: str) -> str:
    """The URL of a queue that has dead letters."""
    dead_letters = sqs.create_queue(QueueName=f"{name}-dead-letters")["QueueUrl"]
    policy = {"deadLetterTargetArn": _arn(sqs, dead_letters), "maxReceiveCount": DELIVERIES_MAX}
    return sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": json.dumps(policy)})["QueueUrl"]


def _arn(sqs: SQSClient, url: str) -> str:
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
