"""Long-polls the queue while there is room for another job run, and hands each message to the intake."""

import threading
from dataclasses import dataclass, replace
from typing import Self

from compactor.log_context import LOG, Logged
from compactor.model.clock import Clock
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from dispatcher.intake.intake import Accepted, Intake, Rejected, Repeated
from dispatcher.intake.queue import Queue, QueueMessage
from dispatcher.records.metrics_samples import Metrics
from dispatcher.running.job_run_controller import JobRunController

MESSAGES_MAX = 5
"""Messages of one long poll, at most; no more than there is room for."""


@dataclass(frozen=True)
class ReceiverSettings:
    """
    Attributes:
        wait_seconds: of one long poll; a drain takes up to this long to be noticed
        idle_seconds: between two looks for room
        count_seconds: between two looks at whether anything waits on the queue, while there is no room
        unavailable_seconds: after the queue did not answer"""

    wait_seconds: int = 10
    idle_seconds: float = 1.0
    count_seconds: float = 15.0
    unavailable_seconds: float = 5.0

    def until_idle(self) -> Self:
        """For a dispatcher that ends when the queue is empty: the last long poll, which finds nothing, is short."""
        return replace(self, wait_seconds=min(self.wait_seconds, 1))


class Receiver:
    """Runs in its own thread until it is stopped."""

    def __init__(
        self,
        queue: Queue,
        intake: Intake,
        controller: JobRunController,
        metrics: Metrics,
        settings: ReceiverSettings,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._intake = intake
        self._controller = controller
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._waits_since_ms: int | None = None
        self._seen_empty_at_ms = clock.now_ms()
        self._answered_at_seconds: float | None = None
        self._polls_sent = 0
        self._found_nothing_by = 0
        """The number of the last long poll, if it found nothing, else 0."""
        self._counted_none_at: int | None = None
        """So many polls were sent when the queue had counted no message."""
        self.last_error: Exception | None = None
        """The error of the last long poll."""

    def run(self, stops: threading.Event) -> None:
        """Raises `Invalid` if there is no such queue any more, and outlives everything else."""
        with self._intake.keeper.running():
            self._run(stops)

    def _run(self, stops: threading.Event) -> None:
        while not stops.is_set():
            self._controller.receiver_turned()
            has_room = self._controller.room > 0
            try:
                if has_room:
                    self.receive_once(stops)
                else:
                    self.look_at_queue()
                self.last_error = None
            except Denied as error:
                self.last_error = error
                # Credentials and rights may be renewed while this runs, without a restart.
                LOG.error("queue_denied", reason=str(error))
                stops.wait(self._settings.unavailable_seconds)
            except Unavailable as error:
                self.last_error = error
                LOG.warning("queue_unavailable", reason=str(error))
                stops.wait(self._settings.unavailable_seconds)
            except Invalid:
                raise
            except Exception as error:  # noqa: BLE001 (whatever a queue answers, this is the only thread that receives)
                self.last_error = error
                LOG.error("queue_not_received_from", error_kind=type(error).__name__, exc_info=error)
                stops.wait(self._settings.unavailable_seconds)
            else:
                stops.wait(0 if has_room else self._settings.idle_seconds)

    def is_empty(self) -> bool:
        """Whether a long poll was empty that was sent after the queue counted no message, not even an invisible one.

        A message that becomes visible between a poll and a count may be in neither, but the next poll receives it.
        """
        if not self._found_nothing_by:
            return False
        if self._counted_none_at is not None:
            return self._found_nothing_by > self._counted_none_at
        with Logged("queue_not_counted", Unavailable):
            if self._queue.messages_left() == 0:
                self._counted_none_at = self._polls_sent
        return False

    @property
    def queue_age_seconds(self) -> float:
        """For how long the oldest message has been waiting, at most: since that of the last poll was sent, or since the
        queue was last seen empty. 0: none waits. Any thread may ask."""
        since_ms = self._waits_since_ms
        return 0.0 if since_ms is None else max(self._clock.now_ms() - since_ms, 0) / 1000

    def look_at_queue(self) -> None:
        """While there is no room to receive: whether anything waits, asked when due. Raises the queue's errors."""
        now_seconds, now_ms = self._clock.monotonic_seconds(), self._clock.now_ms()
        answered_at = self._answered_at_seconds
        if answered_at is not None and now_seconds - answered_at < self._settings.count_seconds:
            return
        self._answered_at_seconds = None  # without an answer the next look is due at once
        if not self._queue.messages_visible():
            self._waits_since_ms, self._seen_empty_at_ms = None, now_ms
        elif self._waits_since_ms is None:
            self._waits_since_ms = self._seen_empty_at_ms
        self._answered_at_seconds = now_seconds

    def receive_once(self, stops: threading.Event) -> int:
        """One long poll of no more messages than there is room for; returns their number. `stops` set: releases
        them."""
        settings = self._settings
        keeper = self._intake.keeper
        messages_max = min(MESSAGES_MAX, self._controller.room)
        if not messages_max:
            return 0
        self._answered_at_seconds = None
        self._polls_sent += 1
        messages = self._queue.receive(messages_max, settings.wait_seconds, keeper.visibility_seconds)
        keeper.hold(messages)
        self._answered_at_seconds = self._clock.monotonic_seconds()
        self._found_nothing_by = 0 if messages else self._polls_sent
        if messages:
            self._counted_none_at = None
        self._waits_since_ms = min((message.origin.sent_at_ms for message in messages), default=None)
        if not messages:
            self._seen_empty_at_ms = self._clock.now_ms()
        for message in messages:
            if stops.is_set():
                self._give_back(message)
                continue
            taken = self._intake.take(message)
            keeper.release(message)
            self._controller.receiver_turned()
            self._metrics.message_taken(type(taken).__name__)
            match taken:
                case Accepted(job_run_id, log):
                    self._controller.offer(job_run_id, log)
                case Rejected(message_id=message_id):
                    self._controller.offer(message_id)  # to publish its event
                case Repeated(job_run_id, status) if not status.is_open:
                    self._controller.offer(job_run_id)  # likewise; of one that is open, its holder does
                case _:
                    pass
        return len(messages)

    def _give_back(self, message: QueueMessage) -> None:
        self._intake.keeper.release(message)
        with Logged("message_not_released", LithifyError):  # it comes back when its visibility ends
            self._queue.set_visibility(message, 0)
