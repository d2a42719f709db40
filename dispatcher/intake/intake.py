"""Accepts or rejects the job run of a message. The order of durable writes is defined here.

An instruction that can work:

    1  its marker, without an owner         a hint, by which others find the job run
    2  its task token, if it has one        a secret, so it lies apart (`dispatcher/records/callbacks.py`)
    3  entry 1 of its log: accepted         THE FACT: from here on it will be run, by this dispatcher or another
    4  its marker again, if it is gone      this dispatcher may have stood still for so long that others gave it up
    5  the message is deleted               a crash before this: it is delivered again, found accepted, marked, and
                                            deleted
    6  it is offered to this dispatcher     a crash before this: any dispatcher's next look at the markers finds it

An instruction that can never work:

    1  its marker, which we own                 a hint: how others find an event that was not published
    2  its task token, as far as it has one     the workflow is told, too; under the message's id, as the log
    3  entry 1 of log <message id>: rejected    THE FACT, with every reason; under the message's own id, so that a
                                                rejection never takes a job run id that somebody chose
    4  rejected_documents/<job run id>/...      so that it is found under the id that the document gave itself
    5  a copy on the dead-letter queue          a crash after this: the copy may come twice
    6  entry 2: dead-lettered                   from here on no second copy is sent
    7  the message is deleted                   a crash before this: delivered again, found rejected, on where it was
    8  it is offered, and its event published   a crash before this: any dispatcher's next look at the markers finds it

A second delivery of a message finds the first entry and starts nothing. A second message with the same job run id and
content starts nothing either: it is recorded in the job run's log, and an event informs its sender. If it has a task
token, the token is stored before the entry, and the workflow waits for the job run like the first one.

A rejected message whose log is that of an accepted job run of another document has a wrong origin: its sender may have
chosen that. A copy goes to the dead-letter queue, the message is deleted, and nothing is written of it.

Every error with a message leads to an answer for that message, and never ends the dispatcher:

- A service is unavailable: the message is put back, each time for longer, up to the patience limit, and its deliveries
do not count. Before the queue would move it to the dead letters, which it does without reasons, a copy replaces it.
- A message cannot be deleted: it is put back. No copy replaces it, and at its next delivery its answer is found.
- Any other error, a bug included: the message is put back, and after `deliveries_max` deliveries it is rejected with
the error as its reason.
- The receiving dispatcher died: after `deliveries_max` deliveries the message is rejected before its lake is read
again, because it may be what kills dispatchers. Its body is parsed first, since it may have been accepted before. One
whose parsing kills a dispatcher is moved to the dead letters by the queue itself.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from logging import ERROR, INFO
from typing import assert_never

from compactor.catalog.tables import DeltaCatalog
from compactor.log.durable_log import LogState
from compactor.log_context import LOG, Logged, bound
from compactor.model.background import BackgroundLoop
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Invalid, LithifyError, Outdated, Unavailable, refuse_if
from compactor.planning.table_terms import complete_by_table
from compactor.sessions.keys import JobRunFolder
from compactor.storage.concurrently import run_concurrently
from compactor.storage.location import StoreLocation, key_bytes_max, parse_location
from dispatcher.intake.admission import Admission
from dispatcher.intake.instruction import (
    InstructionDocument,
    Violations,
    bounded_reasons,
    content_digest,
    fields_given,
    job_run_spec,
    parse_instruction,
)
from dispatcher.intake.pinning import pin_sources
from dispatcher.intake.queue import Queue, QueueMessage
from dispatcher.records.claims import JobRunLog
from dispatcher.records.job_run_log import (
    JobRunAccepted,
    JobRunAction,
    JobRunRejected,
    JobRunRepeated,
    JobRunState,
    JobRunStatus,
    MessageDeadLettered,
    Waiter,
)
from dispatcher.records.job_run_store import JobRunStore


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
                    LOG.warning("message_judged_too_long", message_id=message.message_id)
                    del self._held[receipt]
                    continue
                with Logged("visibility_not_extended", LithifyError, message_id=message.message_id):
                    self._queue.set_visibility(message, self.visibility_seconds)

    def running(self) -> BackgroundLoop:
        """Extends held messages, three times per visibility timeout."""
        return BackgroundLoop("visibility", self.put_off, max(self.visibility_seconds / 3, 0.1))


DELIVERIES_OF_A_COPY = 2
"""Deliveries of a copy that may be used up by unavailable services. The others remain for other errors."""

PATIENCE_SECONDS = 86_400
"""Time after which a message is given up if a service is unavailable."""

REPEATS_MAX = 100
"""Repeats of one job run that are recorded, with an event each: the limit bounds the log if a sender loops."""

WAITERS_MAX = 1_000
"""Waiters of one job run that are recorded and get heartbeats. Further tokens are answered at its end."""

NAMES_IN_JOB_RUN_BYTES_MAX = 64
"""Bytes of the longest key of a job run beside its id: `.10000/log/<20>.checkpoint.parquet` takes 48."""


@dataclass(frozen=True)
class IntakeSettings:
    """
    Attributes:
        admission: lakes, tables, topics and files that documents may name
        s3_endpoint_url: of the S3 service that lakes lie on; None: AWS's own
        deliveries_max: deliveries of a message before it is given up; the queue's own limit counts if it is lower
        put_back_seconds: the least pause of a message that could not be judged; it pauses as long as it has waited
        visibility_seconds: after which the messages of a dispatcher that was killed are delivered again
        judging_seconds: that a message may take before it is delivered again though its dispatcher lives"""

    admission: Admission = field(default_factory=Admission)
    s3_endpoint_url: str | None = None
    s3_region: str | None = None
    deliveries_max: int = 5
    put_back_seconds: int = 30
    put_back_seconds_max: int = 900
    visibility_seconds: int = 60
    judging_seconds: int = 900


@dataclass(frozen=True)
class Accepted:
    """`log`: the job run's, including the new entry."""

    job_run_id: str
    log: JobRunLog | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Repeated:
    """The job run exists already: nothing was started."""

    job_run_id: str
    status: JobRunStatus


@dataclass(frozen=True)
class Rejected:
    """`message_id`: the log whose event is to be published."""

    reasons: tuple[str, ...]
    message_id: str = field(default="", compare=False)


@dataclass(frozen=True)
class PutBack:
    """It could not be judged now."""

    reason: str
    seconds: int


Taken = Accepted | Repeated | Rejected | PutBack


class _NotDeletedError(Exception):
    """The answer is durable, and the message is still on the queue."""


class Intake:
    """Takes messages, one at a time."""

    def __init__(
        self,
        queue: Queue,
        records: JobRunStore,
        open_lake: Callable[[StoreLocation], DeltaCatalog],
        settings: IntakeSettings,
        clock: Clock,
    ) -> None:
        """`keeper`: keeps received messages invisible."""
        self.keeper = VisibilityKeeper(queue, settings.visibility_seconds, settings.judging_seconds, clock)
        self._queue = queue
        self._records = records
        self._open_lake = open_lake
        self._settings = settings
        self._clock = clock

    def take(self, message: QueueMessage) -> Taken:
        """Judges a message, makes the judgement durable, and finishes the message. Never raises: see above."""
        with bound(message_id=message.origin.message_id):
            try:
                taken = self._judge(message)
            except _NotDeletedError as error:
                taken = self._put_back(message, str(error))
            except (Unavailable, Conflict) as error:
                taken = self._answer_error(message, str(error), self._wait_for_service)
            except Exception as error:  # noqa: BLE001 (one message may not end a dispatcher, whatever is wrong)
                LOG.error("message_not_judged", error_kind=type(error).__name__, exc_info=error)
                taken = self._answer_error(message, f"{type(error).__name__}: {error}", self._wait_for_repair)
            level = ERROR if isinstance(taken, Rejected) else INFO
            LOG.log(level, "message_taken", outcome=type(taken).__name__, **_shown(taken))
            return taken

    def _judge(self, message: QueueMessage) -> Taken:
        message_id = message.origin.message_id
        document = self._parsed(message)
        job_run_id = message_id if isinstance(document, Violations) else document.job_run_id or message_id
        logs = [self._records.log(each) for each in dict.fromkeys((message_id, job_run_id))]
        states = run_concurrently(self._records.store.location, lambda log: log.load().state, logs)
        if states[0].rejected is not None:
            return self._finish_rejection(message, states[0])
        if isinstance(document, Violations):
            return self._reject(message, document)
        log, before = logs[-1], states[-1]
        if before.status is not JobRunStatus.ABSENT:
            return self._answer_repeated(message, document, job_run_id, before)
        if message.delivery_count > self._deliveries_max():
            return self._reject(message, _about(document, (self._given_up(message),)))
        try:
            accepted = self._accepted(message, document, job_run_id)
        except Invalid as error:
            return self._reject(message, _about(document, error.reasons))
        return self._accept(message, document, accepted, log)

    def _parsed(self, message: QueueMessage) -> InstructionDocument | Violations:
        document = parse_instruction(message.body)
        if isinstance(document, Violations):
            return document
        reason = self._state_violation(document.job_run_id or message.origin.message_id)
        return document if reason is None else _about(document, (reason,))

    def _state_violation(self, job_run_id: str) -> str | None:
        """The reason why the state's store cannot hold the keys of the job run; None: it can."""
        location = self._records.store.location
        session = JobRunFolder(job_run_id).session(job_run_id)
        needed, room = len(session.key) + NAMES_IN_JOB_RUN_BYTES_MAX, key_bytes_max(location)
        if needed <= room:
            return None
        return (
            f"job_run_id {job_run_id!r} needs object keys of {needed:,} bytes, and below {location.root_uri} they may "
            f"have {room:,}: choose a shorter one"
        )

    # -- what cannot be judged

    def _answer_error(self, message: QueueMessage, reason: str, answer: Callable[[QueueMessage, str], Taken]) -> Taken:
        """The answer to an error. If the answer fails too, the message is only put back."""
        try:
            return answer(message, reason)
        except Exception as error:  # noqa: BLE001 (as above)
            LOG.error("message_not_finished", error_kind=type(error).__name__, reason=str(error))
            return self._put_back(message, f"{type(error).__name__}: {error}")

    def _wait_for_service(self, message: QueueMessage, reason: str) -> Taken:
        waited_seconds = self._waited_seconds(message)
        if waited_seconds >= PATIENCE_SECONDS and not self._is_accepted(message):
            return self._reject(message, _recognized(message.body, f"after {waited_seconds:,.0f} s: {reason}"))
        if message.delivery_count < min(DELIVERIES_OF_A_COPY, self._deliveries_max()):
            return self._put_back(message, reason)
        seconds = self._rest_seconds(message)
        self._queue.send_again(message, seconds)
        self._finish(message)
        return PutBack(reason, seconds)

    def _is_accepted(self, message: QueueMessage) -> bool:
        """Whether its job run was accepted with its content: then it is not reported as rejected."""
        document = parse_instruction(message.body)
        if isinstance(document, Violations):
            return False
        try:
            accepted = self._records.state(document.job_run_id or message.origin.message_id).accepted
        except Outdated:  # nobody here will ever know
            return False
        return accepted is not None and accepted.content_digest == content_digest(document)

    def _wait_for_repair(self, message: QueueMessage, reason: str) -> Taken:
        if message.delivery_count < self._deliveries_max():
            return self._put_back(message, reason)
        reasoned = f"it was delivered {message.delivery_count} times and could not be judged: {reason}"
        return self._reject(message, _recognized(message.body, reasoned))

    def _accepted(self, message: QueueMessage, document: InstructionDocument, job_run_id: str) -> JobRunAccepted:
        """The first entry of the job run, its sources pinned. Raises `Invalid` with every reason why there is none."""
        admission, location = self._settings.admission, self.locate_lake(document)
        refuse_if(list(admission.refusals(document, location)))
        requested = job_run_spec(document, job_run_id, location)
        lake = self._open_lake(location)
        source = lake.table(requested.source_table_id)
        spec = complete_by_table(requested, fields_given(document), source)
        pinned = pin_sources(spec, lake, source, self._clock, admission)
        return JobRunAccepted(
            spec=spec,
            content_digest=content_digest(document),
            message_id=message.origin.message_id,
            sessions=pinned.sessions,
            waiter=_waiter(document),
            pinned_until_ms=pinned.pinned_until_ms,
        )

    def locate_lake(self, document: InstructionDocument) -> StoreLocation:
        """The location of the document's lake. Raises `Invalid` if neither it nor this dispatcher names one."""
        if document.delta_catalog is not None:
            settings = self._settings
            return parse_location(
                document.delta_catalog, endpoint_url=settings.s3_endpoint_url, region=settings.s3_region
            )
        if self._settings.admission.own_lake is None:
            raise Invalid(
                "delta_catalog is missing, and this dispatcher has no lake of its own: name a lake's root URI"
            )
        return self._settings.admission.own_lake

    # -- the writes, in their order (see above)

    def _accept(
        self, message: QueueMessage, document: InstructionDocument, accepted: JobRunAccepted, log: JobRunLog
    ) -> Taken:
        job_run_id = accepted.spec.job_run_id

        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            return [accepted] if before.state.status is JobRunStatus.ABSENT else []

        mark = self._records.mark_open(accepted)
        if document.task_token is not None:
            self._records.callbacks.keep(job_run_id, accepted.message_id, document.task_token)
        appended = log.append(decide, log.newest)
        self._records.mark(mark)
        if appended.entry is None:  # another dispatcher accepted it first, with this message or with another
            return self._answer_repeated(message, document, job_run_id, appended.after.state)
        self._finish(message)
        return Accepted(job_run_id, log)

    def _answer_repeated(
        self, message: QueueMessage, document: InstructionDocument, job_run_id: str, existing: JobRunState
    ) -> Taken:
        first, message_id = existing.accepted, message.origin.message_id
        if first is None or first.content_digest != content_digest(document):
            if document.task_token is not None and message_id not in existing.waiters:
                self._records.callbacks.discard(job_run_id, message_id)  # from before another one was accepted first
            return self._reject(message, _about(document, (_used_before(job_run_id),)))
        if message_id != first.message_id:
            if document.task_token is not None and message_id not in existing.waiters:
                self._records.callbacks.keep(job_run_id, message_id, document.task_token)
            existing = self._note_repeat(job_run_id, message_id, _waiter(document))
        elif existing.status.is_open:  # the accepting dispatcher may have died before marking it again
            self._records.mark_open(first, self._records.log(job_run_id).entry(1).at_ms)
        self._finish(message)
        return Repeated(job_run_id, existing.status)

    def _note_repeat(self, job_run_id: str, message_id: str, waiter: Waiter | None) -> JobRunState:
        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            state = before.state
            repeats_max = REPEATS_MAX if waiter is None else WAITERS_MAX
            if message_id in state.repeated_by or len(state.repeated_by) >= repeats_max:
                return []
            status, answer = answer_to_repeat(self._records, job_run_id, state)
            return [JobRunRepeated(message_id=message_id, status=status, answer=answer, waiter=waiter)]

        after = self._records.log(job_run_id).append(decide).after.state
        self._records.mark_to_be_published(job_run_id)  # events of an ended job run were published up to here
        return after

    def _reject(self, message: QueueMessage, violations: Violations) -> Rejected:
        message_id = message.origin.message_id
        rejected = JobRunRejected(
            message_id=message_id,
            requested_job_run_id=violations.job_run_id,
            table=violations.table,
            reasons=bounded_reasons(violations.reasons),
            waiter=Waiter() if violations.task_token is not None else None,
        )

        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            return [rejected] if before.state.status is JobRunStatus.ABSENT else []

        log = self._records.log(message_id)
        if log.load().state.accepted is not None:
            return self._reject_beside(message, rejected.reasons)
        self._records.mark_to_be_published(message_id)
        if violations.task_token is not None:
            self._records.callbacks.keep(message_id, message_id, violations.task_token)
        after = log.append(decide, log.newest).after.state
        if after.accepted is not None:
            return self._reject_beside(message, rejected.reasons)
        return self._finish_rejection(message, after)

    def _reject_beside(self, message: QueueMessage, reasons: tuple[str, ...]) -> Rejected:
        """Rejects a message whose log is that of an accepted job run. The copy may come twice. Raises `Conflict` if
        that is its own, which another dispatcher has accepted meanwhile: its next delivery is answered."""
        if self._is_accepted(message):
            raise Conflict("another dispatcher has accepted it")
        self._queue.dead_letter(message, reasons)
        self._finish(message)
        return Rejected(reasons, message.origin.message_id)

    def _finish_rejection(self, message: QueueMessage, existing: JobRunState) -> Rejected:
        message_id, rejected = message.origin.message_id, existing.rejected
        reasons = rejected.reasons if rejected is not None else ()
        if rejected is not None and rejected.requested_job_run_id is not None:
            self._records.mark_rejected(rejected.requested_job_run_id, message_id)
        if not existing.dead_lettered:
            self._queue.dead_letter(message, reasons)
            self._records.log(message_id).append(
                lambda before: [] if before.state.dead_lettered else [MessageDeadLettered()]
            )
        self._finish(message)
        return Rejected(reasons, message_id)

    def _finish(self, message: QueueMessage) -> None:
        self.keeper.release(message)
        try:
            self._queue.delete(message)
        except Exception as error:
            raise _NotDeletedError(f"{type(error).__name__}: {error}") from error

    def _put_back(self, message: QueueMessage, reason: str) -> PutBack:
        seconds = self._rest_seconds(message)
        self.keeper.release(message)
        with Logged("message_not_put_back", LithifyError):  # it comes back when its visibility ends
            self._queue.set_visibility(message, seconds)
        return PutBack(reason, seconds)

    def _rest_seconds(self, message: QueueMessage) -> int:
        """As long as it has waited so far, so that its waiting time doubles."""
        longest = min(round(self._waited_seconds(message)), self._settings.put_back_seconds_max)
        return max(longest, self._settings.put_back_seconds)

    def _waited_seconds(self, message: QueueMessage) -> float:
        sent_at_ms = message.origin.sent_at_ms
        return max(self._clock.now_ms() - sent_at_ms, 0) / 1000 if sent_at_ms else 0.0

    def _deliveries_max(self) -> int:
        """One less than the queue's own limit: the queue moves a message away silently, and without reasons."""
        of_queue = self._queue.deliveries_max
        own = self._settings.deliveries_max
        return own if of_queue is None else max(min(own, of_queue - 1), 1)

    def _given_up(self, message: QueueMessage) -> str:
        return (
            f"it was delivered {message.delivery_count} times and could not be accepted: see the dispatchers' logs for "
            f"message {message.message_id}, then redrive it"
        )


def preview_job_run_id(document: InstructionDocument, records: JobRunStore | None) -> str | None:
    """The effect of the job run id of a document that is about to be sent; None if the id is new.

    Raises `Invalid` for one that was used for other content: the document would be refused.
    """
    job_run_id = document.job_run_id
    if job_run_id is None or records is None:
        return None
    existing = records.state(job_run_id)
    if existing.accepted is None:
        return None
    if existing.accepted.content_digest != content_digest(document):
        raise Invalid(_used_before(job_run_id))
    return answer_to_repeat(records, job_run_id, existing)[1]


def _used_before(job_run_id: str) -> str:
    return f"job_run_id {job_run_id!r} was used before, for other content: choose another id"


def answer_to_repeat(records: JobRunStore, job_run_id: str, state: JobRunState) -> tuple[JobRunStatus, str]:
    """The answer to a repeated request: about the last job run that ran it again."""
    last_id, last = records.last_retry(job_run_id, state)
    rerun = f"job run {job_run_id} was run again as {last_id}; " if last_id != job_run_id else ""
    return last.status, rerun + _answer(last_id, last)


def _answer(job_run_id: str, state: JobRunState) -> str:
    status = state.status
    if status.is_open:
        return f"job run {job_run_id} is {status}: this document starts nothing more"
    if status is JobRunStatus.SUCCEEDED:
        return f"job run {job_run_id} has succeeded: to compact what came since, send another job_run_id"
    reasons = "; ".join(state.ended.outcome.reasons[:3]) if state.ended is not None else ""
    ended = "has failed" if status is JobRunStatus.FAILED else f"was {status}"
    return (
        f"job run {job_run_id} {ended}{f' ({reasons[:500]})' if reasons else ''}: this document starts nothing, "
        f"send it with another job_run_id, or `lithify retry {job_run_id}`"
    )


def _about(document: InstructionDocument, reasons: tuple[str, ...]) -> Violations:
    return Violations(reasons, document.job_run_id, document.source_table_id, document.task_token)


def _waiter(document: InstructionDocument) -> Waiter | None:
    """The waiter, without its token."""
    if document.task_token is None:
        return None
    return Waiter(heartbeat_seconds=document.task_heartbeat_seconds)


def _recognized(body: str, reason: str) -> Violations:
    """The reason, with the ids in the body, if they can be read."""
    try:
        parsed = parse_instruction(body)
    except Exception:  # noqa: BLE001 (reading it may be what fails)
        return Violations((reason,))
    if isinstance(parsed, Violations):
        return replace(parsed, reasons=(reason,))
    return _about(parsed, (reason,))


def _shown(taken: Taken) -> dict[str, str]:
    match taken:
        case Accepted(job_run_id):
            return {"job_run_id": job_run_id}
        case Repeated(job_run_id, status):
            return {"job_run_id": job_run_id, "status": status}
        case Rejected(reasons):
            return {"reasons": "; ".join(reasons)}
        case PutBack(reason, seconds):
            return {"reason": reason, "seconds": str(seconds)}
        case _:
            assert_never(taken)
