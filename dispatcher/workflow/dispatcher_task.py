"""The dispatcher as a task of a workflow, which waits for it by a task token: a thread sends heartbeats.

    started --heartbeats, while its loops turn--> the execution grows old: drain --> success: continue as new
                                              +-> SIGTERM, or nothing left to do: drain --> success
                                              +-> the workflow does not wait any more: drain, and an exit code for it
                                              +-> it cannot work: failure, with the cause

A workflow that starts a new execution for the next dispatcher and ends (`docs/operate/run.md` has one) never ends,
although executions do: Step Functions ends each at 25,000 events, and keeps its history for 90 days.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from compactor.log_context import LOG
from compactor.model.background import BackgroundLoop
from compactor.model.clock import Clock
from compactor.model.errors import Denied, LithifyError, Unavailable, kind_of
from dispatcher.workflow.callbacks import CAUSE_CHARACTERS_MAX, Callbacks, Executions, Reception

DISPATCHER_FAILED = "Lithify.DispatcherFailed"

LONG_SECONDS = 89 * 86_400
"""Age at which an execution, or this process if its execution is unknown, is long: its history is kept for 90 days."""

CHECK_SECONDS = 600.0
"""Interval between two checks of the execution's length."""

ANSWER_SECONDS, ANSWER_PAUSE_SECONDS = 60.0, 2.0
"""Time for which the last answer is tried, and the pause between two tries."""


class EndOfTask(StrEnum):
    """Why a successful dispatcher task has ended: the `reason` for its workflow."""

    EXECUTION_IS_LONG = "execution_is_long"
    STOPPED = "stopped"
    IDLE = "idle"


@dataclass(frozen=True)
class TaskSettings:
    """
    Attributes:
        heartbeat_seconds: the state's HeartbeatSeconds
        events_max: of the execution's history; checked only if the execution is known"""

    heartbeat_seconds: float = 60.0
    events_max: int = 24_000
    round_seconds: float = 1.0


@dataclass
class Ending:
    """The end of a dispatcher, for the waiting workflow. `left`: work that remains, in sentences."""

    reason: EndOfTask = EndOfTask.STOPPED
    left: tuple[str, ...] = ()


@contextmanager
def ending(task: DispatcherTask | None, owner: str) -> Iterator[Ending]:
    """Answers the workflow at the end of the block: with the noted ending, or the error. Raises `Unavailable` if
    the answer failed, or the workflow does not wait any more. Does nothing without a task."""
    noted = Ending()
    try:
        yield noted
    except Exception as error:
        if task is not None:
            task.fail(error)
        raise
    if task is not None and not task.succeed(noted.reason, owner, noted.left):
        why = "waits for it no more" if task.is_gone else "could not be told so"
        raise Unavailable(f"the dispatcher has ended, and the workflow whose task it is {why}")


class DispatcherTask:
    """`run` is for a thread of its own; `succeed` and `fail` are called once, at the end of the dispatcher."""

    def __init__(
        self,
        task_token: str,
        execution_arn: str | None,
        callbacks: Callbacks,
        executions: Executions,
        settings: TaskSettings,
        clock: Clock,
    ) -> None:
        self._task_token = task_token
        self._execution_arn = execution_arn
        self._callbacks = callbacks
        self._executions = executions
        self._settings = settings
        self._clock = clock
        self._began_at_seconds = clock.monotonic_seconds()
        self._beat_at_seconds: float | None = None
        self._checked_at_seconds: float | None = None
        self.is_gone = False
        """Whether the workflow has stopped waiting."""
        self.is_long = False
        """Whether a new execution must follow this one."""
        self.last_error: Exception | None = None

    def loop(self, ends: threading.Event, stops: threading.Event, stuck: Callable[[], Sequence[str]]) -> BackgroundLoop:
        """Its rounds, of which none raises."""
        return BackgroundLoop(
            "dispatcher-task", partial(self.turn, stops, stuck), self._settings.round_seconds, ends=ends
        )

    def turn(self, stops: threading.Event, stuck: Callable[[], Sequence[str]]) -> None:
        """Sends what is due. `stops` is set to end the dispatcher. `stuck`: the loops of the dispatcher that hang."""
        try:
            self._beat_when_due(stuck)
            self._measure_when_due()
        except Unavailable as error:
            self.last_error = error
            emit = LOG.error if isinstance(error, Denied) else LOG.warning
            emit("dispatcher_task_not_reported", error_kind=kind_of(error), reason=str(error))
        except Exception as error:  # noqa: BLE001  (without a stack: its frames hold the token)
            self.last_error = error
            LOG.error("dispatcher_task_not_reported", error_kind=kind_of(error), reason=type(error).__name__)
        if (self.is_gone or self.is_long) and not stops.is_set():
            LOG.info("dispatcher_ends_as_task", workflow_waits=not self.is_gone, execution_is_long=self.is_long)
            stops.set()

    def succeed(self, reason: EndOfTask, owner: str, left: Sequence[str]) -> bool:
        """Whether the workflow got the dispatcher's success."""
        if self.is_long:
            reason = EndOfTask.EXECUTION_IS_LONG
        output = json.dumps({"reason": reason, "owner": owner, "left": list(left[:100])})
        return self._answer(lambda: self._callbacks.succeed(self._task_token, output))

    def fail(self, error: BaseException) -> bool:
        """Whether the workflow got the dispatcher's failure."""
        cause = (str(error) or type(error).__name__).replace(self._task_token, "<task token>")
        return self._answer(
            lambda: self._callbacks.fail(self._task_token, DISPATCHER_FAILED, cause[:CAUSE_CHARACTERS_MAX])
        )

    def _beat_when_due(self, stuck: Callable[[], Sequence[str]]) -> None:
        now_seconds = self._clock.monotonic_seconds()
        every_seconds = self._settings.heartbeat_seconds / 3
        if self._beat_at_seconds is not None and now_seconds - self._beat_at_seconds < every_seconds:
            return
        loops = stuck()
        if loops:
            LOG.error("dispatcher_is_stuck", loops=list(loops))
            return
        if self._callbacks.send_heartbeat(self._task_token) is Reception.GONE:
            self.is_gone = True
        self._beat_at_seconds, self.last_error = now_seconds, None

    def _measure_when_due(self) -> None:
        now_seconds = self._clock.monotonic_seconds()
        if self._checked_at_seconds is not None and now_seconds - self._checked_at_seconds < CHECK_SECONDS:
            return
        self._checked_at_seconds = now_seconds
        age_seconds = now_seconds - self._began_at_seconds
        if self._execution_arn is not None:
            try:
                length = self._executions.length(self._execution_arn)
            except LithifyError as error:  # this process' own figures suffice
                LOG.warning("execution_not_measured", error_kind=kind_of(error), reason=str(error))
            else:
                age_seconds = max(age_seconds, (self._clock.now_ms() - length.started_at_ms) / 1000)
                self.is_long = length.events >= self._settings.events_max
        self.is_long = self.is_long or age_seconds >= LONG_SECONDS

    def _answer(self, send: Callable[[], Reception]) -> bool:
        if self.is_gone:
            return False
        until_seconds = self._clock.monotonic_seconds() + ANSWER_SECONDS
        while True:
            try:
                taken = send()
            except LithifyError as error:
                LOG.warning("workflow_not_answered", error_kind=kind_of(error), reason=str(error))
            else:
                # Gone: the answer arrived and only its reply was lost, or the workflow has given up.
                return taken is Reception.TAKEN
            if self._clock.monotonic_seconds() >= until_seconds:
                return False
            self._clock.sleep(ANSWER_PAUSE_SECONDS)
