"""Long-polls the queue while there is room for another job run, and hands each message to the intake."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import structlog

from compactor.errors import Unavailable
from dispatcher.foreman import Foreman
from dispatcher.intake import Accepted, Intake
from dispatcher.queue import Queue

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ReceiverSettings:
    """
    wait_seconds         of one long poll; a drain takes up to this long to be noticed
    visibility_seconds   within which a received message is taken up
    messages_max         of one long poll
    idle_seconds         between two looks for room
    unavailable_seconds  after the queue did not answer
    """

    wait_seconds: int = 10
    visibility_seconds: int = 300
    messages_max: int = 5
    idle_seconds: float = 1.0
    unavailable_seconds: float = 5.0


class Receiver:
    """Runs in a thread of its own until it is told to stop."""

    def __init__(self, queue: Queue, intake: Intake, foreman: Foreman, settings: ReceiverSettings) -> None:
        self._queue = queue
        self._intake = intake
        self._foreman = foreman
        self._settings = settings
        self.found_nothing = False
        """Whether the last long poll came back empty."""

    def run(self, stops: threading.Event) -> None:
        """Raises `Invalid` if the queue itself is wrong: then nothing can be received any more."""
        while not stops.is_set():
            if not self._foreman.has_room:
                stops.wait(self._settings.idle_seconds)
                continue
            try:
                self.receive_once(stops)
            except Unavailable as error:
                _log.warning("queue_unavailable", reason=str(error))
                stops.wait(self._settings.unavailable_seconds)

    def receive_once(self, stops: threading.Event) -> int:
        """One long poll, and what came of it; answers how many messages came. Once `stops` is set they go back."""
        settings = self._settings
        messages = self._queue.receive(settings.messages_max, settings.wait_seconds, settings.visibility_seconds)
        self.found_nothing = not messages
        for message in messages:
            if stops.is_set():
                self._queue.set_visibility(message, 0)
                continue
            taken = self._intake.take(message)
            if isinstance(taken, Accepted):
                self._foreman.offer(taken.job_run_id)
        return len(messages)
