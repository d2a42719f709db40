"""Publishes events to an SNS topic, in batches of ten. Subscribers' filter policies apply to the message attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from botocore.config import Config

from compactor.events.relay import Event
from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.errors import Denied, Invalid, Unavailable
from compactor.model.retries import Backoff, Retry
from compactor.storage.aws.boto import new_session, open_client
from compactor.storage.aws.failures import kind_of, translated

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient
    from mypy_boto3_sns.type_defs import PublishBatchRequestEntryTypeDef

    _Batch = dict[str, PublishBatchRequestEntryTypeDef]
    """The entries of a call, by their ids."""

BATCH_EVENTS_MAX = 10
BATCH_BYTES_MAX = 250_000
"""SNS allows 262,144 bytes per batch, including the names of attributes."""

PUBLISH_ATTEMPTS = 4
"""Tries of a batch, in addition to botocore's own retries."""

BACKOFF = Backoff(first_seconds=0.5, longest_seconds=4.0, jitter=0.1)
"""Pauses between two tries of a batch."""


class SnsSink:
    """An `EventSink`. SNS does not guarantee an order; consumers sort by `sequence`."""

    def __init__(self, client: SNSClient, topic_arn: str, clock: Clock, attempts: int = PUBLISH_ATTEMPTS) -> None:
        self._client = client
        self._reopen: Callable[[], SNSClient] | None = None
        self.name = topic_arn
        self._clock = clock
        self._attempts = attempts

    @classmethod
    def open(cls, topic_arn: str, clock: Clock, *, endpoint_url: str | None = None, patient: bool = True) -> SnsSink:
        """The topic's region is part of its ARN. Raises `Invalid` for anything but a topic's ARN.

        Args:
            patient: whether a call may retry for long; if not, it takes some seconds at most"""
        parts = topic_arn.split(":")
        if len(parts) < 6 or parts[2] != "sns":
            raise Invalid(f"{topic_arn!r} is no SNS topic: write arn:aws:sns:region:account:name")
        connect_seconds, read_seconds, tries = (5, 20, 4) if patient else (2, 5, 1)

        def reopen() -> SNSClient:
            client: SNSClient = open_client(
                "sns",
                f"topic {topic_arn} cannot be reached",
                parts[3],
                endpoint_url,
                tries=tries,
                connect_seconds=connect_seconds,
                read_seconds=read_seconds,
                further=Config(parameter_validation=False),  # they are typed, and events are small
            )
            client.meta.events.register("before-call.sns.PublishBatch", _encode_once)
            return client

        sink = cls(reopen(), topic_arn, clock, PUBLISH_ATTEMPTS if patient else 1)
        sink._reopen = reopen
        return sink

    def check(self) -> None:
        """Raises `Invalid` if the topic does not exist, `Denied` or `Unavailable` if that cannot be checked."""
        with translated(f"topic {self.name} cannot be used"):
            self._client.get_topic_attributes(TopicArn=self.name)

    def publish(self, events: Sequence[Event]) -> None:
        """Raises `Unavailable` if some may not have arrived, `Invalid` if the topic is wrong or refuses one."""
        for batch in _batches(events):
            publish = partial(self._publish_batch, batch)
            Retry(BACKOFF, self._attempts).call(publish, self._clock, lambda error: isinstance(error, Unavailable))

    def _publish_batch(self, left: _Batch) -> None:
        """Publishes the rest of a batch, and removes from `left` the events that arrived."""
        try:
            self._send_batch(left)
        except Denied:
            if self._reopen is not None:  # botocore reads the credentials file once: a new client reads it again
                self._client = self._reopen()
            raise

    def _send_batch(self, left: _Batch) -> None:
        refusal = f"topic {self.name} takes no events"
        with translated(refusal):
            answer = self._client.publish_batch(TopicArn=self.name, PublishBatchRequestEntries=list(left.values()))
        for success in answer.get("Successful", []):
            left.pop(success.get("Id", ""), None)
        for failure in answer.get("Failed", []):
            code, status = failure.get("Code", ""), 400 if failure.get("SenderFault") else 500
            raise kind_of(code, status)(f"{refusal}: {failure.get('Message', '')} ({code})")
        if left:
            raise Unavailable(f"topic {self.name} did not say whether it took {len(left)} of the events")


def _encode_once(params: dict[str, Any], **_: object) -> None:
    """botocore would encode the body for its signature, and once more to send it."""
    params["body"] = urlencode(params["body"], doseq=True).encode()


def _batches(events: Sequence[Event]) -> Iterator[_Batch]:
    batch: _Batch = {}
    batch_bytes = 0
    for event in events:
        body = event.render()
        event_bytes = len(body) + 1_000  # and its attributes
        if event_bytes > BATCH_BYTES_MAX:  # SNS would refuse it each time, and no other event would be sent
            LOG.error("event_too_large", event_id=event.id, event_type=event.type, size_bytes=len(body))
            continue
        if batch and (len(batch) == BATCH_EVENTS_MAX or batch_bytes + event_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, batch_bytes = {}, 0
        entry_id = str(len(batch))
        attributes = event.attributes.items()
        batch[entry_id] = {
            "Id": entry_id,
            "Message": body.decode(),
            "MessageAttributes": {name: {"DataType": "String", "StringValue": value} for name, value in attributes},
        }
        batch_bytes += event_bytes
    if batch:
        yield batch


def sns_regions() -> Mapping[str, frozenset[str]]:
    """The regions of each partition of AWS: `aws`, `aws-cn` and so on."""
    session = new_session()
    return {
        partition: frozenset(session.get_available_regions("sns", partition_name=partition))
        for partition in session.get_available_partitions()
    }
