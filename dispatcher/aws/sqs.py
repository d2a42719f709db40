"""The queue on SQS. Its dead-letter queue is the one that its redrive policy names, unless another is given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from compactor.aws.failures import translated
from compactor.errors import Invalid
from dispatcher.queue import REASONS_ATTRIBUTE, QueueMessage

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

REASONS_BYTES_MAX = 8_192
MESSAGE_BYTES_MAX = 262_144
"""Of a body with its attributes, as every SQS queue takes it; reasons give way to the body."""

_VOID_RECEIPT = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"})


@dataclass(frozen=True)
class _DeadLetters:
    url: str
    deliveries_max: int | None


class SqsQueue:
    """A `Queue`. Threads may share one: boto3's clients are safe for that."""

    def __init__(self, client: SQSClient, url: str, dead_letters: _DeadLetters | None) -> None:
        self._client = client
        self._url = url
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
        """Raises `Invalid` if there is no such queue, or if one of the two may not be used."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise Invalid(f"{url!r} is no queue URL: write https://sqs.region.amazonaws.com/account/name")
        config = Config(retries={"mode": "standard", "total_max_attempts": 5}, connect_timeout=5, read_timeout=30)
        client = boto3.client("sqs", region_name=region, endpoint_url=endpoint_url, config=config)
        return cls(client, url, _find_dead_letters(client, url, dead_letter_queue_url))

    @property
    def name(self) -> str:
        return self._url

    @property
    def deliveries_max(self) -> int | None:
        return self._dead_letters.deliveries_max if self._dead_letters is not None else None

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        with translated(f"queue {self._url} cannot be read"):
            answer = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=messages_max,
                WaitTimeSeconds=wait_seconds,
                VisibilityTimeout=visibility_seconds,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
                MessageAttributeNames=[REASONS_ATTRIBUTE],
            )
        return [_message(message) for message in answer.get("Messages", [])]

    def delete(self, message: QueueMessage) -> None:
        with translated(f"message {message.message_id} cannot be deleted from {self._url}"):
            try:
                self._client.delete_message(QueueUrl=self._url, ReceiptHandle=message.receipt)
            except ClientError as error:
                _pass_void_receipt(error)

    def set_visibility(self, message: QueueMessage, seconds: int) -> None:
        with translated(f"message {message.message_id} cannot be kept on {self._url}"):
            try:
                self._client.change_message_visibility(
                    QueueUrl=self._url, ReceiptHandle=message.receipt, VisibilityTimeout=seconds
                )
            except ClientError as error:
                _pass_void_receipt(error)

    def dead_letter(self, message: QueueMessage, reasons: Sequence[str]) -> None:
        url = self._dead_letter_url()
        room_bytes = MESSAGE_BYTES_MAX - len(message.body.encode()) - len(REASONS_ATTRIBUTE) - len("String")
        text = render_reasons(reasons, max(min(room_bytes, REASONS_BYTES_MAX), 0))
        with translated(f"dead-letter queue {url} takes no message"):
            self._client.send_message(
                QueueUrl=url,
                MessageBody=message.body,
                MessageAttributes={REASONS_ATTRIBUTE: {"DataType": "String", "StringValue": text}} if text else {},
            )

    def send(self, body: str) -> str:
        with translated(f"queue {self._url} takes no message"):
            return self._client.send_message(QueueUrl=self._url, MessageBody=body)["MessageId"]

    def dead_letters(self) -> SqsQueue:
        return SqsQueue(self._client, self._dead_letter_url(), None)

    def _dead_letter_url(self) -> str:
        if self._dead_letters is None:
            raise Invalid(f"queue {self._url} has no dead-letter queue: give it a redrive policy, or name one")
        return self._dead_letters.url


def render_reasons(reasons: Sequence[str], bytes_max: int) -> str:
    """A JSON list in ASCII of as many reasons as fit, each cut if it must be; empty if not even one fits."""
    kept: list[str] = []
    for reason in reasons:
        room = bytes_max - len(json.dumps([*kept, ""]))
        # A character takes at most 12 bytes as JSON in ASCII: a pair of \\uXXXX.
        whole = len(json.dumps(reason)) - 2 <= room
        cut = reason if whole else reason[: max(room // 12 - 4, 0)] + " ..."
        if room < 60 and not whole:
            break
        kept.append(cut)
        if not whole:
            break
    return json.dumps(kept) if kept else ""


def _find_dead_letters(client: SQSClient, url: str, given_url: str | None) -> _DeadLetters | None:
    with translated(f"queue {url} cannot be used"):
        answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    text = answer.get("Attributes", {}).get("RedrivePolicy")
    policy = json.loads(text) if text else {}
    deliveries_max = int(policy["maxReceiveCount"]) if "maxReceiveCount" in policy else None
    if given_url is not None:
        with translated(f"dead-letter queue {given_url} cannot be used"):
            client.get_queue_attributes(QueueUrl=given_url, AttributeNames=["QueueArn"])
        return _DeadLetters(given_url, deliveries_max)
    if "deadLetterTargetArn" not in policy:
        return None
    account, name = policy["deadLetterTargetArn"].split(":")[-2:]
    with translated(f"the dead-letter queue of {url} cannot be used"):
        found = client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]
    return _DeadLetters(found, deliveries_max)


def _message(message: MessageTypeDef) -> QueueMessage:
    attribute = message.get("MessageAttributes", {}).get(REASONS_ATTRIBUTE)
    return QueueMessage(
        message_id=message.get("MessageId", ""),
        receipt=message.get("ReceiptHandle", ""),
        body=message.get("Body", ""),
        delivery_count=int(message.get("Attributes", {}).get("ApproximateReceiveCount", "1")),
        reasons=attribute.get("StringValue") if attribute is not None else None,
    )


def _pass_void_receipt(error: ClientError) -> None:
    code = error.response.get("Error", {}).get("Code", "").rsplit(".", 1)[-1]
    if code not in _VOID_RECEIPT:
        raise error
