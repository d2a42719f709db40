"""Events on an SNS topic, in batches of ten. The message attributes are what subscribers' filter policies see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from compactor.aws.failures import translated
from compactor.clock import Clock
from compactor.errors import Invalid, Unavailable
from compactor.events import Event

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient
    from mypy_boto3_sns.type_defs import PublishBatchRequestEntryTypeDef

BATCH_EVENTS_MAX = 10
BATCH_BYTES_MAX = 250_000
"""SNS takes 262,144 bytes a batch, names of attributes included."""

PUBLISH_ATTEMPTS = 4
"""With pauses of 0.5, 1 and 2 seconds between them, on top of boto3's own retries."""


class SnsSink:
    """An `EventSink`. Order holds within a call as far as SNS holds it; consumers sort by `sequence`."""

    def __init__(self, client: SNSClient, topic_arn: str, clock: Clock) -> None:
        self._client = client
        self._topic_arn = topic_arn
        self._clock = clock

    @classmethod
    def open(cls, topic_arn: str, clock: Clock, *, endpoint_url: str | None = None) -> SnsSink:
        """The topic's region stands in its name. Raises `Invalid` for anything but a topic's ARN."""
        parts = topic_arn.split(":")
        if len(parts) < 6 or parts[2] != "sns":
            raise Invalid(f"{topic_arn!r} is no SNS topic: write arn:aws:sns:region:account:name")
        config = Config(retries={"mode": "standard", "total_max_attempts": 4}, connect_timeout=5, read_timeout=20)
        client = boto3.client("sns", region_name=parts[3], endpoint_url=endpoint_url, config=config)
        return cls(client, topic_arn, clock)

    def publish(self, events: Sequence[Event]) -> None:
        """Raises `Unavailable` if some may not have arrived, `Invalid` if the topic is wrong or refuses one."""
        for batch in _batches(events):
            left = {str(number): event for number, event in enumerate(batch)}
            retrying = Retrying(
                sleep=self._clock.sleep,
                stop=stop_after_attempt(PUBLISH_ATTEMPTS),
                wait=wait_exponential_jitter(multiplier=0.5, max=4.0, jitter=0.2),
                retry=retry_if_exception_type(Unavailable),
                reraise=True,
            )
            retrying(self._publish_batch, left)

    def _publish_batch(self, left: dict[str, Event]) -> None:
        """Publish what is left of a batch, and take from `left` what arrived."""
        what = f"topic {self._topic_arn} takes no events"
        with translated(what):
            answer = self._client.publish_batch(
                TopicArn=self._topic_arn,
                PublishBatchRequestEntries=[_entry(entry_id, event) for entry_id, event in left.items()],
            )
        for success in answer.get("Successful", []):
            left.pop(success.get("Id", ""), None)
        for failure in answer.get("Failed", []):
            reason = f"{what}: {failure.get('Message', '')} ({failure.get('Code', '')})"
            raise Invalid(reason) if failure.get("SenderFault") else Unavailable(reason)


def _entry(entry_id: str, event: Event) -> PublishBatchRequestEntryTypeDef:
    return {
        "Id": entry_id,
        "Message": event.render().decode(),
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value} for name, value in event.attributes.items()
        },
    }


def _batches(events: Sequence[Event]) -> Iterator[list[Event]]:
    batch: list[Event] = []
    batch_bytes = 0
    for event in events:
        event_bytes = len(event.render()) + 1_000  # and its attributes
        if batch and (len(batch) == BATCH_EVENTS_MAX or batch_bytes + event_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(event)
        batch_bytes += event_bytes
    if batch:
        yield batch
