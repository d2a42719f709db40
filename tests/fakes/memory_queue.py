"""A `Queue` in memory, for tests. Obeys tests/contract/test_queue.py as SQS does."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from compactor.model.clock import Clock
from compactor.model.errors import Invalid
from dispatcher.intake.queue import ORIGIN_ATTRIBUTE, REASONS_ATTRIBUTE, MessageAttribute, QueueMessage


@dataclass
class _Stored:
    message_id: str
    body: str
    attributes: Mapping[str, MessageAttribute]
    sent_at_ms: int
    visible_at_seconds: float
    deliveries: int = 0
    receipt: str = ""
    group: str | None = None


class MemoryQueue:
    """Time is the clock's: with a manual one, visibility ends when a test moves it."""

    def __init__(
        self, clock: Clock, dead_letters: MemoryQueue | None = None, deliveries_max: int | None = None
    ) -> None:
        self._clock = clock
        self._dead_letters = dead_letters
        self._deliveries_max = deliveries_max
        self._lock = threading.Lock()
        self._stored: dict[str, _Stored] = {}
        self._numbers = itertools.count(1)

    @property
    def name(self) -> str:
        return "memory queue"

    @property
    def deliveries_max(self) -> int | None:
        return self._deliveries_max

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        messages = self._receive_now(messages_max, visibility_seconds)
        if not messages and wait_seconds:
            self._clock.sleep(min(wait_seconds, 0.02))
            messages = self._receive_now(messages_max, visibility_seconds)
        return messages

    def _receive_now(self, messages_max: int, visibility_seconds: int) -> list[QueueMessage]:
        now_seconds = self._clock.monotonic_seconds()
        received = []
        with self._lock:
            visible = [stored for stored in self._stored.values() if stored.visible_at_seconds <= now_seconds]
            for stored in visible[:messages_max]:
                if self._moves_away(stored):
                    continue
                stored.deliveries += 1
                stored.visible_at_seconds = now_seconds + visibility_seconds
                stored.receipt = f"{stored.message_id}/{stored.deliveries}"
                received.append(
                    QueueMessage(
                        stored.message_id,
                        stored.receipt,
                        stored.body,
                        stored.deliveries,
                        stored.sent_at_ms,
                        stored.attributes,
                        stored.group,
                    )
                )
        return received

    def _moves_away(self, stored: _Stored) -> bool:
        """Moves a message that was delivered too often to the dead-letter queue, silently, as the service does."""
        if self._deliveries_max is None or stored.deliveries < self._deliveries_max or self._dead_letters is None:
            return False
        del self._stored[stored.message_id]
        self._dead_letters.put(stored.body, stored.attributes, group=stored.group)
        return True

    def delete(self, message: QueueMessage) -> None:
        with self._lock:
            stored = self._stored.get(message.message_id)
            if stored is not None and stored.receipt == message.receipt:
                del self._stored[message.message_id]

    def delete_all(self, messages: Sequence[QueueMessage]) -> None:
        for message in messages:
            self.delete(message)

    def set_visibility(self, message: QueueMessage, seconds: int) -> None:
        with self._lock:
            stored = self._stored.get(message.message_id)
            if stored is not None and stored.receipt == message.receipt:
                stored.visible_at_seconds = self._clock.monotonic_seconds() + seconds

    def dead_letter(self, message: QueueMessage, reasons: Sequence[str]) -> None:
        noted = MessageAttribute("String", json.dumps(list(reasons)))
        self.dead_letters().put(message.body, {**_with_origin(message), REASONS_ATTRIBUTE: noted}, group=message.group)

    def send(
        self,
        body: str,
        attributes: Mapping[str, MessageAttribute] = MappingProxyType({}),
        group: str | None = None,
    ) -> str:
        return self.put(body, attributes, group=group)

    def send_again(self, message: QueueMessage, delay_seconds: int) -> None:
        self.put(message.body, _with_origin(message), delay_seconds, message.group)

    def put(
        self,
        body: str,
        attributes: Mapping[str, MessageAttribute],
        delay_seconds: int = 0,
        group: str | None = None,
    ) -> str:
        with self._lock:
            message_id = f"message-{next(self._numbers)}"
            visible_at_seconds = self._clock.monotonic_seconds() + delay_seconds
            self._stored[message_id] = _Stored(
                message_id, body, attributes, self._clock.now_ms(), visible_at_seconds if delay_seconds else 0.0
            )
            self._stored[message_id].group = group or message_id
        return message_id

    def messages_left(self) -> int:
        with self._lock:
            return len(self._stored)

    def messages_visible(self) -> int:
        now_seconds = self._clock.monotonic_seconds()
        with self._lock:
            return sum(stored.visible_at_seconds <= now_seconds for stored in self._stored.values())

    def dead_letters(self) -> MemoryQueue:
        if self._dead_letters is None:
            raise Invalid("this queue has no dead-letter queue")
        return self._dead_letters

    @property
    def bodies(self) -> list[str]:
        """The bodies of all messages, visible or not."""
        with self._lock:
            return [stored.body for stored in self._stored.values()]


def _with_origin(message: QueueMessage) -> dict[str, MessageAttribute]:
    origin = MessageAttribute("String", message.origin.render().decode())
    return {**message.attributes, ORIGIN_ATTRIBUTE: origin}
