"""Keeps received messages invisible while a dispatcher works on them, and not much longer.

A message is received with a short visibility timeout, which is extended while its dispatcher runs: so the messages of a
killed dispatcher come back soon, even if judging one of them may take long.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from compactor.log_context import ProcessLog
from compactor.model.background import BackgroundLoop
from compactor.model.clock import Clock
from compactor.model.errors import LithifyError
from dispatcher.intake.queue import Queue, QueueMessage

_log = ProcessLog()


class VisibilityKeeper:
    """Thread-safe. Release a message before finishing it, so that a longer timeout is not shortened."""

    def __init__(self, queue: Queue, visibility_seconds: int, judging_seconds: float, clock: Clock) -> None:
        """`judging_seconds`: the longest extension, so that a hanging thread does not block a message."""
        self.visibility_seconds = visibility_seconds
        self._queue = queue
        self._judging_seconds = judging_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, tuple[QueueMessage, float]] = {}

    def hold(self, messages: Sequence[QueueMessage]) -> None:
        """Starts to extend the timeout of a message that was just received."""
        now_seconds = self._clock.monotonic_seconds()
        with self._lock:
            self._held.update({message.receipt: (message, now_seconds) for message in messages})

    def release(self, message: QueueMessage) -> None:
        """After this returns, its timeout is not extended any more."""
        with self._lock:
            self._held.pop(message.receipt, None)

    def put_off(self) -> None:
        """Extends all held messages once."""
        now_seconds = self._clock.monotonic_seconds()
        with self._lock:
            receipts = list(self._held)
        for receipt in receipts:
            with self._lock:
                held = self._held.get(receipt)
                if held is None:
                    continue
                message, since_seconds = held
                if now_seconds - since_seconds > self._judging_seconds:
                    _log.warning("message_judged_too_long", message_id=message.message_id)
                    del self._held[receipt]
                    continue
                try:
                    self._queue.set_visibility(message, self.visibility_seconds)
                except LithifyError as error:
                    _log.warning("visibility_not_extended", message_id=message.message_id, reason=str(error))

    def running(self) -> BackgroundLoop:
        """Extends held messages, three times per visibility timeout."""
        return BackgroundLoop("visibility", self.put_off, max(self.visibility_seconds / 3, 0.1))
