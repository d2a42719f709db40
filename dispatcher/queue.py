"""What the dispatcher asks of the queue that instruction documents arrive on.

Delivery is at least once, and a message that is not deleted comes back when its visibility ends. That is all that is
relied on: order is not, and neither is that a message comes only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

REASONS_ATTRIBUTE = "reasons"
"""On a dead-lettered message: why, as a JSON list of sentences."""


@dataclass(frozen=True)
class QueueMessage:
    """One delivery of a message.

    message_id      the same at every delivery
    receipt         names this delivery; void once the message's visibility has ended
    delivery_count  1 at the first delivery
    reasons         why it was dead-lettered; None for a message that was not
    """

    message_id: str
    receipt: str
    body: str
    delivery_count: int
    reasons: str | None = None


class Queue(Protocol):
    """Every method raises `Unavailable` if the service does not answer, `Invalid` if the queue itself is wrong."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def deliveries_max(self) -> int | None:
        """Deliveries after which the service itself moves a message to the dead-letter queue; None: never."""

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        """Up to so many messages (at most 10), waiting for the first as long as said (at most 20 seconds)."""

    def delete(self, message: QueueMessage) -> None:
        """The message is done with. A void receipt is no error: the message comes again."""

    def set_visibility(self, message: QueueMessage, seconds: int) -> None:
        """Seconds from now until the message may be delivered again; 0: at once. A void receipt is no error."""

    def dead_letter(self, message: QueueMessage, reasons: Sequence[str]) -> None:
        """Put a copy of the message, with the reasons, on the dead-letter queue. Does not delete the message."""

    def send(self, body: str) -> str:
        """A new message; answers its id."""

    def dead_letters(self) -> Queue:
        """The dead-letter queue, as a queue. Raises `Invalid` if there is none."""
