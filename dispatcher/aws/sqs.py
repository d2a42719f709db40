"""The queue on SQS. Its dead-letter queue is the one that its redrive policy names, unless another is given."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import ClientError

from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import Denied, Invalid
from compactor.storage.aws.boto import known_region, open_client
from compactor.storage.aws.failures import kind_of, translated
from dispatcher.intake.queue import ORIGIN_ATTRIBUTE, REASONS_ATTRIBUTE, MessageAttribute, QueueMessage
from dispatcher.records.result import fitting_reasons

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType
    from mypy_boto3_sqs.type_defs import (
        MessageAttributeValueOutputTypeDef,
        MessageAttributeValueTypeDef,
        MessageTypeDef,
        SendMessageRequestTypeDef,
    )

MESSAGE_BYTES_MAX = 1_048_576
"""SQS's own limit for a body with its attributes; a queue may have a lower one."""

ATTRIBUTES_MAX = 10
BATCH_MAX = 10
"""SQS's own limit for the messages of a request."""
BATCHES_AT_ONCE = 8
"""Requests that are sent side by side: botocore's client has ten connections."""
DELAY_SECONDS_MAX = 900
REASONS_BYTES_MIN = 200
"""Bytes that the other attributes leave for the reasons."""

_REGION = "[a-z]{2,3}(?:-[a-z]+)+-[0-9]+"
_REGION_IN_HOST = re.compile(
    rf"(?:^|\.)(?:sqs(?:-fips)?\.(?P<region>{_REGION})\.|(?P<legacy>{_REGION})\.queue\.amazonaws\.)"
)

_GROUP_ID = re.compile("[!-~]{1,128}")

_VOID_RECEIPT = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"})


@dataclass(frozen=True)
class _QueueFacts:
    """The constant attributes of a queue. `message_bytes_max`: of a body with its attributes."""

    url: str
    message_bytes_max: int = MESSAGE_BYTES_MAX


@dataclass(frozen=True)
class _DeadLetters:
    facts: _QueueFacts
    deliveries_max: int | None


@dataclass(frozen=True)
class _Fifo:
    """message: the same for copies of which one is enough. `group` None: its own."""

    message: str
    group: str | None


class SqsQueue:
    """A `Queue`, standard or FIFO. Thread-safe, as botocore's clients are.

    On a FIFO queue a message that is sent without a group gets a group of its own, so that it delays no other.
    """

    def __init__(self, client: SQSClient, facts: _QueueFacts, dead_letters: _DeadLetters | None, clock: Clock) -> None:
        self._client = client
        self._reopen: Callable[[], SQSClient] | None = None
        self._clock = clock
        self._facts = facts
        self.name = facts.url
        self._dead_letters = dead_letters

    @classmethod
    def open(
        cls,
        url: str,
        *,
        dead_letter_queue_url: str | None = None,
        endpoint_url: str | None = None,
        region: str | None = None,
    ) -> SqsQueue:
        """Without a region, that in the URL is used, else that of the environment.

        Raises `Invalid` if there is no such queue, or if one of the two may not be used.
        """
        if urlsplit(url).scheme not in ("http", "https"):
            raise Invalid(f"{url!r} is no queue URL: write https://sqs.region.amazonaws.com/account/name")
        # botocore builds its own user agent anew for each request, which takes a sixth of the client's time.
        own_agent = Config(user_agent="lithify")
        found = known_region(region or region_of(url), endpoint_url, f"{url} names no AWS region")

        def reopen() -> SQSClient:
            failure = f"queue {url} cannot be reached"
            client: SQSClient = open_client("sqs", failure, found, endpoint_url, further=own_agent)
            return client

        client = reopen()
        facts, policy = _look_at(client, url, f"queue {url} cannot be used")
        queue = cls(client, facts, _find_dead_letters(client, url, policy, dead_letter_queue_url), SystemClock())
        queue._reopen = reopen
        return queue

    @property
    def deliveries_max(self) -> int | None:
        return self._dead_letters.deliveries_max if self._dead_letters is not None else None

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        try:
            return self._receive(messages_max, wait_seconds, visibility_seconds)
        except Denied:
            if self._reopen is not None:  # botocore reads the credentials file once: a new client reads it again
                self._client = self._reopen()
            raise

    def _receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        with translated(f"queue {self.name} cannot be read"):
            answer = self._client.receive_message(
                QueueUrl=self.name,
                MaxNumberOfMessages=messages_max,
                WaitTimeSeconds=wait_seconds,
                VisibilityTimeout=visibility_seconds,
                MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"],
                MessageAttributeNames=["All"],
            )
        return [_message(message) for message in answer.get("Messages", [])]

    def delete(self, message: QueueMessage) -> None:
        with translated(f"message {message.message_id} cannot be deleted from {self.name}"):
            try:
                self._client.delete_message(QueueUrl=self.name, ReceiptHandle=message.receipt)
            except ClientError as error:
                _pass_void_receipt(error)

    def delete_all(self, messages: Sequence[QueueMessage]) -> None:
        batches = [messages[start : start + BATCH_MAX] for start in range(0, len(messages), BATCH_MAX)]
        if len(batches) == 1:
            self._delete_batch(batches[0])
        elif batches:
            with ThreadPoolExecutor(BATCHES_AT_ONCE) as threads:
                list(threads.map(self._delete_batch, batches))

    def _delete_batch(self, messages: Sequence[QueueMessage]) -> None:
        with translated(f"{len(messages)} messages cannot be deleted from {self.name}"):
            answer = self._client.delete_message_batch(
                QueueUrl=self.name,
                Entries=[{"Id": str(at), "ReceiptHandle": each.receipt} for at, each in enumerate(messages)],
            )
        failed = [each for each in answer.get("Failed", []) if each["Code"].rsplit(".", 1)[-1] not in _VOID_RECEIPT]
        for each in failed:
            raise kind_of(each["Code"], 0 if each["SenderFault"] else 500)(
                f"{len(failed)} messages cannot be deleted from {self.name}: {each.get('Message', each['Code'])}"
            )

    def set_visibility(self, message: QueueMessage, seconds: int) -> None:
        with translated(f"message {message.message_id} cannot be kept on {self.name}"):
            try:
                self._client.change_message_visibility(
                    QueueUrl=self.name, ReceiptHandle=message.receipt, VisibilityTimeout=seconds
                )
            except ClientError as error:
                _pass_void_receipt(error)

    def dead_letter(self, message: QueueMessage, reasons: Sequence[str]) -> None:
        facts = self._dead_letter_facts()
        attributes = _attributes_of_dead_letter(message, reasons, facts.message_bytes_max)
        # A FIFO queue keeps one of two copies that come within five minutes of each other.
        fifo = _Fifo(message.message_id, message.group)
        self._send(facts, message.body, attributes, fifo)

    def send(
        self,
        body: str,
        attributes: Mapping[str, MessageAttribute] = MappingProxyType({}),
        group: str | None = None,
    ) -> str:
        group_id = _group_id(group) if group is not None else None
        return self._send(self._facts, body, attributes, _Fifo(self._clock.new_id(), group_id))

    def send_again(self, message: QueueMessage, delay_seconds: int) -> None:
        attributes = _attributes_of_copy(message)
        delay_seconds = min(delay_seconds, DELAY_SECONDS_MAX)
        fifo = _Fifo(self._clock.new_id(), message.group)
        self._send(self._facts, message.body, attributes, fifo, delay_seconds=delay_seconds)

    def messages_left(self) -> int:
        return self._count(
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesDelayed",
            "ApproximateNumberOfMessagesNotVisible",
        )

    def messages_visible(self) -> int:
        return self._count("ApproximateNumberOfMessages")

    def _count(self, *names: QueueAttributeNameType) -> int:
        with translated(f"queue {self.name} cannot be counted"):
            answer = self._client.get_queue_attributes(QueueUrl=self.name, AttributeNames=names)
        return sum(int(number) for number in answer.get("Attributes", {}).values())

    def dead_letters(self) -> SqsQueue:
        return SqsQueue(self._client, self._dead_letter_facts(), None, self._clock)

    def _send(
        self,
        to: _QueueFacts,
        body: str,
        attributes: Mapping[str, MessageAttribute],
        fifo: _Fifo,
        *,
        delay_seconds: int | None = None,
    ) -> str:
        request: SendMessageRequestTypeDef = {"QueueUrl": to.url, "MessageBody": body}
        if attributes:
            request["MessageAttributes"] = {name: _rendered(each) for name, each in attributes.items()}
        if to.url.endswith(".fifo"):  # which knows no delay of a single message
            request["MessageGroupId"] = fifo.group or fifo.message
            request["MessageDeduplicationId"] = fifo.message
        elif delay_seconds is not None:
            request["DelaySeconds"] = delay_seconds
        with translated(f"queue {to.url} takes no message"):
            return self._client.send_message(**request)["MessageId"]

    def _dead_letter_facts(self) -> _QueueFacts:
        if self._dead_letters is None:
            raise Invalid(f"queue {self.name} has no dead-letter queue: give it a redrive policy, or name one")
        return self._dead_letters.facts


def _group_id(group: str) -> str:
    """A group id that SQS accepts, of at most 128 letters, digits and punctuation of ASCII; for others a digest."""
    if _GROUP_ID.fullmatch(group):
        return group
    return hashlib.sha256(group.encode()).hexdigest()


def _attributes_of_copy(message: QueueMessage) -> dict[str, MessageAttribute]:
    """A sender's attributes give way to ours, the last by name first."""
    own = {ORIGIN_ATTRIBUTE: MessageAttribute("String", message.origin.render().decode())}
    others = sorted((name, each) for name, each in message.attributes.items() if name not in own)
    return {**own, **dict(others[: ATTRIBUTES_MAX - len(own)])}


def _attributes_of_dead_letter(
    message: QueueMessage, reasons: Sequence[str], message_bytes_max: int
) -> dict[str, MessageAttribute]:
    """The origin and the sender's attributes as far as they fit beside the body and a first word of the reasons; what
    did not fit is one reason more. The reasons get the room that is left."""
    kept: dict[str, MessageAttribute] = {}
    left_out = []
    room = message_bytes_max - len(message.body.encode())
    for name, attribute in _attributes_of_copy(message).items():
        size_bytes = _size_bytes(name, attribute)
        if name == REASONS_ATTRIBUTE:
            continue
        if len(kept) + 1 < ATTRIBUTES_MAX and size_bytes + REASONS_BYTES_MIN <= room:
            kept[name] = attribute
            room -= size_bytes
        else:
            left_out.append(name)
    left_out += [name for name in message.attributes if name not in kept and name not in (*left_out, REASONS_ATTRIBUTE)]
    if left_out:
        reasons = [*reasons, f"the message's attributes {', '.join(left_out)} have no room on this copy"]
    fitting = fitting_reasons(reasons, room - len(REASONS_ATTRIBUTE) - len("String") - len("[]"))
    return {**kept, REASONS_ATTRIBUTE: MessageAttribute("String", json.dumps(fitting))} if fitting else kept


def _size_bytes(name: str, attribute: MessageAttribute) -> int:
    value = attribute.value if isinstance(attribute.value, bytes) else attribute.value.encode()
    return len(name.encode()) + len(attribute.data_type.encode()) + len(value)


def _rendered(attribute: MessageAttribute) -> MessageAttributeValueTypeDef:
    if isinstance(attribute.value, bytes):
        return {"DataType": attribute.data_type, "BinaryValue": attribute.value}
    return {"DataType": attribute.data_type, "StringValue": attribute.value}


def region_of(queue_url: str) -> str | None:
    """The region in the URL of a queue on AWS, by any of its names: public, FIPS, dual-stack, VPC endpoint, legacy."""
    host = urlsplit(queue_url).hostname or ""
    found = _REGION_IN_HOST.search(host)
    return (found["region"] or found["legacy"]) if found is not None else None


def _look_at(client: SQSClient, url: str, failure: str) -> tuple[_QueueFacts, Mapping[str, str]]:
    """The attributes of a queue, and its redrive policy."""
    with translated(failure):
        answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["MaximumMessageSize", "RedrivePolicy"])
    attributes = answer.get("Attributes", {})
    message_bytes_max = int(attributes.get("MaximumMessageSize", MESSAGE_BYTES_MAX))
    return _QueueFacts(url, message_bytes_max), json.loads(attributes.get("RedrivePolicy") or "{}")


def _find_dead_letters(
    client: SQSClient, url: str, policy: Mapping[str, str], given_url: str | None
) -> _DeadLetters | None:
    deliveries_max = int(policy["maxReceiveCount"]) if "maxReceiveCount" in policy else None
    failure = f"the dead-letter queue of {url} cannot be used"
    if given_url is not None:
        found, failure = given_url, f"dead-letter queue {given_url} cannot be used"
    elif "deadLetterTargetArn" in policy:
        account, name = policy["deadLetterTargetArn"].split(":")[-2:]
        with translated(failure):
            found = client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]
    else:
        return None
    return _DeadLetters(_look_at(client, found, failure)[0], deliveries_max)


def _message(message: MessageTypeDef) -> QueueMessage:
    of_system = message.get("Attributes", {})
    return QueueMessage(
        message_id=message.get("MessageId", ""),
        receipt=message.get("ReceiptHandle", ""),
        body=message.get("Body", ""),
        delivery_count=int(of_system.get("ApproximateReceiveCount", "1")),
        sent_at_ms=int(of_system.get("SentTimestamp", "0")),
        attributes=MappingProxyType(
            {name: _attribute(each) for name, each in message.get("MessageAttributes", {}).items()}
        ),
        group=of_system.get("MessageGroupId"),
    )


def _attribute(value: MessageAttributeValueOutputTypeDef) -> MessageAttribute:
    return MessageAttribute(value["DataType"], value.get("BinaryValue") or value.get("StringValue", ""))


def _pass_void_receipt(error: ClientError) -> None:
    code = error.response.get("Error", {}).get("Code", "").rsplit(".", 1)[-1]
    if code not in _VOID_RECEIPT:
        raise error
