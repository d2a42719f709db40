"""Sends heartbeats and answers to workflows that wait for job runs, in a thread of its own: an unresponsive service
delays neither the tick nor the publisher.

    run held here --its log has a waiter--> token read --sessions progress--> heartbeats
    run has ended ------------------------------------> token read --> success | failure --> marked as answered

The tokens are in the state's store (`dispatcher/records/callbacks.py`), so nothing is lost with this process: an ended
job run keeps its marker until all its waiters are answered, and any dispatcher that finds the marker answers them. The
service does not know the token of a second answer any more, which is no error.

A heartbeat says that sessions of the job run progress: none is sent while all sessions wait or hang.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from compactor.log.durable_log import LogState
from compactor.log_context import LOG
from compactor.model.background import BackgroundLoop
from compactor.model.clock import Clock
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable, kind_of
from compactor.model.retries import Backoff
from dispatcher.records.callbacks import AnswerStatus
from dispatcher.records.job_run_log import CancelRequested, JobRunAction, JobRunState
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import JobRunObject
from dispatcher.records.result import Failure, ResultDocument, Success, answer_of, fits_a_success, result_document
from dispatcher.workflow.callbacks import Callbacks, Reception

GONE_REASON = "the workflow that waited for it waits no more"
HEARTBEATS_IN_TIME_OUT = 3
"""Heartbeats within the time-out of a workflow: two may get lost before it gives up."""


BACKOFF = Backoff(first_seconds=1.0, longest_seconds=30.0)
"""Pauses of the service after it did not answer: short, since heartbeats have a time-out."""


@dataclass(frozen=True)
class AnswerSettings:
    """
    Attributes:
        round_seconds: between two rounds
        flush_seconds: to send pending answers when the dispatcher stops
        cancel_abandoned: whether a job run is cancelled when every workflow that waited for it has given up"""

    round_seconds: float = 1.0
    backoff: Backoff = BACKOFF
    flush_seconds: float = 10.0
    cancel_abandoned: bool = False


@dataclass
class _Awaited:
    """A job run that workflows wait for.

    Attributes:
        state: its fold as last read
        tokens: of unanswered waiters, by message; None: not read yet
        listed: the waiters that the fold had when the tokens were read
        progressed: whether a session has progressed since the last heartbeat
        heartbeat_at_seconds: of the last heartbeat
        is_ending: its fold is final: all waiters get their answer
        cancel_requested: all waiters have given up; requested again after a further one has given up"""

    job_run_id: str
    state: JobRunState
    is_ending: bool
    heartbeat_at_seconds: float
    tokens: dict[str, str] | None = None
    listed: frozenset[str] = frozenset()
    progressed: bool = False
    cancel_requested: bool = False
    result: ResultDocument | None = field(default=None, repr=False)

    @property
    def is_answered(self) -> bool:
        return self.tokens is not None and not self.tokens and self.state.waiters.keys() <= self.listed


class WorkflowAnswers:
    """`answer_round` is for one thread at a time. All other methods are thread-safe and quick."""

    def __init__(
        self,
        records: JobRunStore,
        callbacks: Callbacks,
        settings: AnswerSettings,
        clock: Clock,
    ) -> None:
        self._records = records
        self._callbacks = callbacks
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._awaited: dict[str, _Awaited] = {}
        self._failures = 0
        self._not_before_seconds = 0.0
        self.last_error: Exception | None = None
        """The error of the last call; None: the service answered, or no workflow waits."""

    # -- notifications, from any thread

    @property
    def is_idle(self) -> bool:
        """Whether no workflow waits for an answer that could be given now."""
        with self._lock:
            return self._not_before_seconds > self._clock.monotonic_seconds() or not any(
                each.is_ending and not each.is_answered for each in self._awaited.values()
            )

    @property
    def waiting_count(self) -> int:
        """Number of unanswered task tokens known here."""
        with self._lock:
            return sum(len(each.tokens or ()) for each in self._awaited.values())

    def notify(self, job_run_id: str, state: JobRunState, *, is_ending: bool = False) -> None:
        """The newest fold of a job run that is held here or (`is_ending`) has ended."""
        if not state.waiters:
            return
        with self._lock:
            awaited = self._awaited.get(job_run_id)
            if awaited is None:
                now_seconds = self._clock.monotonic_seconds()
                self._awaited[job_run_id] = _Awaited(job_run_id, state, is_ending, now_seconds, progressed=True)
                return
            awaited.state, awaited.is_ending = state, awaited.is_ending or is_ending
            if not state.waiters.keys() <= awaited.listed:
                awaited.tokens = None

    def reread_tokens(self, job_run_id: str) -> None:
        """A token may have been stored since the tokens were read."""
        with self._lock:
            awaited = self._awaited.get(job_run_id)
            if awaited is not None:
                awaited.tokens = None

    def progressed(self, job_run_id: str) -> None:
        """A session of it has progressed."""
        with self._lock:
            awaited = self._awaited.get(job_run_id)
            if awaited is not None:
                awaited.progressed = True

    def leave(self, job_run_id: str) -> None:
        """Another dispatcher continues it, or all of its waiters are answered."""
        with self._lock:
            self._awaited.pop(job_run_id, None)

    def are_answered(self, job_run_id: str, state: JobRunState) -> bool:
        """Whether all waiters of an ended job run are answered; `state` is its fold. The others will be."""
        if not state.waiters:
            return True
        self.notify(job_run_id, state, is_ending=True)
        with self._lock:
            awaited = self._awaited.get(job_run_id)
            return awaited is None or awaited.is_answered

    # -- answering, in one thread

    def loop(self, ends: threading.Event) -> BackgroundLoop:
        """Its rounds, of which none raises."""
        return BackgroundLoop("workflow-callbacks", self.answer_round, self._settings.round_seconds, ends=ends)

    def flush(self) -> None:
        """Sends pending answers for at most `flush_seconds`."""
        until_seconds = self._clock.monotonic_seconds() + self._settings.flush_seconds
        while not self.is_idle and self._clock.monotonic_seconds() < until_seconds:
            self.answer_round()

    def answer_round(self) -> None:
        """One try for each job run with pending answers or heartbeats, until the service does not answer."""
        with self._lock:
            awaited = list(self._awaited.values())
        if not awaited:
            self._failures, self.last_error = 0, None  # no call would ever tell that the service answers again
        for each in awaited:
            if self._not_before_seconds > self._clock.monotonic_seconds():
                return
            try:
                self._attend(each)
            except Exception as error:  # noqa: BLE001  (an error of one job run must not delay the others)
                # No traceback: its frames contain the token.
                LOG.error(
                    "workflow_not_answered",
                    job_run_id=each.job_run_id,
                    error_kind=kind_of(error),
                    reason=type(error).__name__ if not isinstance(error, LithifyError) else str(error),
                )

    def _attend(self, awaited: _Awaited) -> None:
        tokens = self._tokens(awaited)
        if awaited.is_ending:
            for message_id, token in tokens.items():
                self._answer(awaited, message_id, token)
        elif not tokens:
            self._cancel_if_abandoned(awaited)
        elif awaited.progressed:
            self._heartbeat_when_due(awaited, tokens)

    def _heartbeat_when_due(self, awaited: _Awaited, tokens: Mapping[str, str]) -> None:
        """Sends no heartbeat to a waiter that asked for none: its service may refuse them."""
        waiters = awaited.state.waiters
        intervals = {key: each.heartbeat_seconds for key, each in waiters.items() if key in tokens}
        due_seconds = min((seconds for seconds in intervals.values() if seconds), default=None)
        since_seconds = self._clock.monotonic_seconds() - awaited.heartbeat_at_seconds
        if due_seconds is None or since_seconds < due_seconds / HEARTBEATS_IN_TIME_OUT:
            return
        awaited.progressed = False
        for message_id in [message_id for message_id, seconds in intervals.items() if seconds]:
            taken = self._send_answer(awaited, message_id, partial(self._callbacks.send_heartbeat, tokens[message_id]))
            if taken is None:
                awaited.progressed = True  # still to be sent
                return
            if taken is Reception.GONE:
                self._settle(awaited, message_id, "gone")
        awaited.heartbeat_at_seconds = self._clock.monotonic_seconds()

    def _tokens(self, awaited: _Awaited) -> Mapping[str, str]:
        """A copy of the tokens, read first if that is due. A waiter without a token is answered already."""
        with self._lock:
            known, waiters = awaited.tokens, frozenset(awaited.state.waiters)
        if known is not None:
            return dict(known)
        found = self._records.callbacks.waiting(awaited.job_run_id)
        with self._lock:
            awaited.cancel_requested = awaited.cancel_requested and not found
            awaited.tokens, awaited.listed = found, waiters
        return dict(found)

    def _answer(self, awaited: _Awaited, message_id: str, token: str) -> None:
        result = awaited.result or result_document(awaited.job_run_id, awaited.state)
        awaited.result = result
        store, key = self._records.store, JobRunObject.result(awaited.job_run_id).key
        if result.status == "succeeded" and not fits_a_success(result):
            store.overwrite(key, result.render())
        match answer_of(result, f"{store.location.root_uri}/{key}"):
            case Success(output):
                how: AnswerStatus = "succeeded"
                taken = self._send_answer(awaited, message_id, partial(self._callbacks.succeed, token, output))
            case Failure(error, cause):
                how = "failed"
                taken = self._send_answer(awaited, message_id, partial(self._callbacks.fail, token, error, cause))
        if taken is not None:
            self._settle(awaited, message_id, how if taken is Reception.TAKEN else "gone")

    def _send_answer(self, awaited: _Awaited, message_id: str, call: Callable[[], Reception]) -> Reception | None:
        """None: the service did not answer and is paused; or it refused, and the waiter counts as answered."""
        settings = self._settings
        try:
            taken = call()
        except Unavailable as error:  # also `Denied`: no restart is needed after the rights are fixed
            self._failures, self.last_error = self._failures + 1, error
            seconds = settings.backoff.seconds(self._failures)
            self._not_before_seconds = self._clock.monotonic_seconds() + seconds
            emit = LOG.error if isinstance(error, Denied) else LOG.warning
            emit("workflow_unavailable", error_kind=kind_of(error), reason=str(error), again_in_seconds=seconds)
            return None
        except Invalid as error:
            LOG.error("workflow_answer_refused", job_run_id=awaited.job_run_id, reason=str(error))
            self._settle(awaited, message_id, "refused")
            return None
        self._failures, self.last_error = 0, None
        return taken

    def _settle(self, awaited: _Awaited, message_id: str, how: AnswerStatus) -> None:
        self._records.callbacks.answered(awaited.job_run_id, message_id, how)
        with self._lock:
            if awaited.tokens is not None:
                awaited.tokens.pop(message_id, None)
        LOG.info("workflow_answered", job_run_id=awaited.job_run_id, message_id=message_id, answer=how)

    def _cancel_if_abandoned(self, awaited: _Awaited) -> None:
        """If the setting is on: cancels a job run that only workflows asked for, when all of them have given up."""
        if not self._settings.cancel_abandoned or awaited.cancel_requested:
            return
        awaited.cancel_requested = True

        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            state = before.state
            requesters = state.repeated_by | ({state.accepted.message_id} if state.accepted is not None else set())
            is_wanted = not requesters <= awaited.listed or state.cancel is not None or not state.status.is_open
            return [] if is_wanted else [CancelRequested(reason=GONE_REASON)]

        self._records.log(awaited.job_run_id).append(decide)
