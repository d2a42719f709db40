"""The queue of instruction documents, as the dispatcher needs it.

Delivery is at least once, and a message that is not deleted comes back when its visibility ends. Nothing else is relied
on: neither order nor single delivery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Protocol

from pydantic import Field, ValidationError

from compactor.model.document import Document

REASONS_ATTRIBUTE = "reasons"
"""The attribute of a dead letter with its reasons, as a JSON list of sentences."""

ORIGIN_ATTRIBUTE = "origin"
"""The attribute of a copy, dead-lettered or sent again, with its `Origin`."""


class Origin(Document):
    """The original message of a copy, and the time when it was sent. Its id names a log."""

    message_id: Annotated[str, Field(pattern="^[ -~]{1,100}$")]
    sent_at_ms: int


@dataclass(frozen=True)
class MessageAttribute:
    """As SQS knows it. The data type begins with `String`, `Number` or `Binary`; only the last has bytes."""

    data_type: str
    value: str | bytes


@dataclass(frozen=True)
class QueueMessage:
    """One delivery of a message.

    Attributes:
        message_id: the same at every delivery
        receipt: names this delivery; void once the message's visibility has ended
        delivery_count: 1 at the first delivery
        sent_at_ms: when it was put on this queue
        attributes: its sender's attributes, and those that were added to a copy
        group: of a FIFO queue: messages of one group are delivered in order; None: a standard queue has none"""

    message_id: str
    receipt: str
    body: str
    delivery_count: int
    sent_at_ms: int = 0
    attributes: Mapping[str, MessageAttribute] = field(default_factory=lambda: MappingProxyType({}))
    group: str | None = None

    @property
    def reasons(self) -> str | None:
        """Why it was dead-lettered, as a JSON list; None for a message that was not."""
        attribute = self.attributes.get(REASONS_ATTRIBUTE)
        return attribute.value if attribute is not None and isinstance(attribute.value, str) else None

    @property
    def origin(self) -> Origin:
        """Its original message: itself, unless it is a copy."""
        attribute = self.attributes.get(ORIGIN_ATTRIBUTE)
        if attribute is not None:
            try:
                return Origin.model_validate_json(attribute.value)
            except ValidationError:
                pass  # a sender's own attribute of that name
        return Origin(message_id=self.message_id, sent_at_ms=self.sent_at_ms)


class Queue(Protocol):
    """Every method raises `Unavailable` if the service does not answer, `Invalid` if the queue itself is wrong."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def deliveries_max(self) -> int | None:
        """Deliveries after which the service itself moves a message to the dead-letter queue; None: never."""

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        """Up to `messages_max` messages (at most 10), waiting `wait_seconds` for the first (at most 20)."""

    def delete(self, message: QueueMessage) -> None:
        """Deletes the message. A void receipt is no error: the message comes again."""

    def delete_all(self, messages: Sequence[QueueMessage]) -> None:
        """Deletes many messages, with few requests. Any of them may be deleted when this raises."""

    def set_visibility(self, message: QueueMessage, seconds: int) -> None:
        """Seconds from now until the message may be delivered again; 0: at once. A void receipt is no error."""

    def dead_letter(self, message: QueueMessage, reasons: Sequence[str]) -> None:
        """Put a copy of the message on the dead-letter queue: its body, attributes and origin, and the reasons; of the
        last three, what has room beside the body. It keeps its group. Does not delete the message."""

    def send(
        self,
        body: str,
        attributes: Mapping[str, MessageAttribute] = MappingProxyType({}),
        group: str | None = None,
    ) -> str:
        """Sends a new message; returns its id. A queue that has no groups ignores `group`; None: a group of its own."""

    def send_again(self, message: QueueMessage, delay_seconds: int) -> None:
        """Put a copy of the message on the queue, with its origin and in its group, whose deliveries are counted from
        1. It is delivered after about so long (at most 900 seconds). Does not delete the message."""

    def messages_left(self) -> int:
        """The number of messages, also of invisible ones. The service's count may lag behind."""

    def messages_visible(self) -> int:
        """The number of messages that wait to be received. The service's count may lag behind."""

    def dead_letters(self) -> Queue:
        """The dead-letter queue, as a queue. Raises `Invalid` if there is none."""
