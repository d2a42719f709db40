"""From a message to an accepted or a rejected job run. The order of durable writes stands here, and only here.

An instruction that can work:

    1  marker open_job_runs/<job run id>    a hint: how others find the job run
    2  entry 1 of its log: accepted         THE FACT: from here on it will be run, by this dispatcher or another
    3  the message is deleted               a crash before this: it is delivered again, found accepted, and deleted
    4  it is offered to this dispatcher     a crash before this: any dispatcher's next look at the markers finds it

An instruction that can never work:

    1  entry 1 of log <message id>: rejected    THE FACT, with every reason; under the message's own id, so that a
                                                rejection never takes a job run id that somebody chose
    2  a copy on the dead-letter queue          a crash after this: the copy may come twice
    3  the event                                a crash after this: the event may come twice, with the same id
    4  the message is deleted                   a crash before this: delivered again, found rejected, on with 2

A second delivery of a message, and a second message with the same job run id and content, find the first entry and
start nothing. A message that cannot be judged now (a lake does not answer) is put back for a while, each time longer.
One that was delivered too often without an answer is rejected: it may be what keeps killing whoever looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.log import LogState
from compactor.errors import Conflict, Corrupt, Invalid, Unavailable
from compactor.events import EventSink
from compactor.log_context import bound
from compactor.object_store import StoreLocation, parse_location
from compactor.session_planner import pin_sessions
from compactor.spec import JobRunSpec
from dispatcher.instruction import (
    InstructionDocument,
    Violations,
    content_digest,
    job_run_spec,
    parse_instruction,
)
from dispatcher.job_runs import (
    JobRunAccepted,
    JobRunAction,
    JobRunRejected,
    JobRunState,
    JobRunStatus,
    SessionPin,
)
from dispatcher.lake_checks import check_against_lake
from dispatcher.queue import Queue, QueueMessage
from dispatcher.records import JobRunRecords

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class IntakeSettings:
    """
    default_lake        for documents that name none
    s3_endpoint_url     of the S3 service that lakes lie on; None: AWS's own
    deliveries_max      deliveries of a message before it is given up; the queue's own limit counts if it is lower
    put_back_seconds    how long a message rests that could not be judged; doubled with every delivery
    judging_seconds     how long a message stays invisible while it is held against its lake
    """

    default_lake: StoreLocation | None = None
    s3_endpoint_url: str | None = None
    s3_region: str | None = None
    deliveries_max: int = 5
    put_back_seconds: int = 30
    put_back_seconds_max: int = 900
    judging_seconds: int = 900


@dataclass(frozen=True)
class Accepted:
    job_run_id: str


@dataclass(frozen=True)
class Repeated:
    """The job run stands already: nothing was started."""

    job_run_id: str
    status: JobRunStatus


@dataclass(frozen=True)
class Rejected:
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class PutBack:
    """It could not be judged now."""

    reason: str
    seconds: int


Taken = Accepted | Repeated | Rejected | PutBack


class Intake:
    """Takes messages, one at a time."""

    def __init__(
        self,
        queue: Queue,
        records: JobRunRecords,
        open_lake: Callable[[StoreLocation], DeltaCatalog],
        sink: EventSink,
        settings: IntakeSettings,
    ) -> None:
        self._queue = queue
        self._records = records
        self._open_lake = open_lake
        self._sink = sink
        self._settings = settings

    def take(self, message: QueueMessage) -> Taken:
        """Judge a message, make the judgement durable, and finish with the message."""
        with bound(message_id=message.message_id):
            try:
                taken = self._judge(message)
            except (Unavailable, Conflict) as error:
                taken = self._put_back(message, str(error))
            except Corrupt as error:
                _log.error("message_meets_corrupt_log", reason=str(error))
                taken = self._put_back(message, str(error))
            _log.info("message_taken", outcome=type(taken).__name__, **_shown(taken))
            return taken

    def _judge(self, message: QueueMessage) -> Taken:
        standing = self._records.state(message.message_id)
        if standing.rejected is not None:
            return self._finish_rejection(message, standing)
        document = parse_instruction(message.body)
        if isinstance(document, Violations):
            return self._reject(message, document)
        job_run_id = document.job_run_id or message.message_id
        digest = content_digest(document)
        before = self._records.state(job_run_id)
        if before.status is not JobRunStatus.ABSENT:
            return self._answer_repeated(message, document, job_run_id, before)
        if message.delivery_count > self._deliveries_max():
            return self._reject(message, _about(document, (self._given_up(message),)))
        self._queue.set_visibility(message, self._settings.judging_seconds)
        try:
            accepted = self._accepted(message, document, job_run_id, digest)
        except Invalid as error:
            return self._reject(message, _about(document, error.reasons))
        return self._accept(message, document, accepted)

    def _accepted(
        self, message: QueueMessage, document: InstructionDocument, job_run_id: str, digest: str
    ) -> JobRunAccepted:
        """The first entry of the job run, its sources pinned. Raises `Invalid` with every reason why there is none."""
        spec = job_run_spec(document, job_run_id, self.locate_lake(document))
        lake = self._open_lake(spec.lake)
        reasons = check_against_lake(spec, lake)
        if reasons:
            raise Invalid(*reasons)
        return JobRunAccepted(
            spec=spec, content_digest=digest, message_id=message.message_id, sessions=pins(spec, lake)
        )

    def locate_lake(self, document: InstructionDocument) -> StoreLocation:
        """Where the document's lake lies. Raises `Invalid` if neither it nor this dispatcher names one."""
        if document.delta_catalog is not None:
            settings = self._settings
            return parse_location(
                document.delta_catalog, endpoint_url=settings.s3_endpoint_url, region=settings.s3_region
            )
        if self._settings.default_lake is None:
            raise Invalid(
                "delta_catalog is missing, and this dispatcher has no lake of its own: name a lake's root URI"
            )
        return self._settings.default_lake

    # -- the writes, in their order (see above)

    def _accept(self, message: QueueMessage, document: InstructionDocument, accepted: JobRunAccepted) -> Taken:
        job_run_id = accepted.spec.job_run_id

        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            return [accepted] if before.state.status is JobRunStatus.ABSENT else []

        self._records.mark_open(job_run_id)
        appended = self._records.log(job_run_id).append(decide)
        if appended.entry is None:  # another dispatcher was faster, with this message or with another
            return self._answer_repeated(message, document, job_run_id, appended.after.state)
        self._queue.delete(message)
        return Accepted(job_run_id)

    def _answer_repeated(
        self, message: QueueMessage, document: InstructionDocument, job_run_id: str, standing: JobRunState
    ) -> Taken:
        first = standing.accepted
        if first is None or first.content_digest != content_digest(document):
            reason = f"job_run_id {job_run_id!r} was used before, for other content: choose another id"
            return self._reject(message, _about(document, (reason,)))
        self._queue.delete(message)
        return Repeated(job_run_id, standing.status)

    def _reject(self, message: QueueMessage, violations: Violations) -> Rejected:
        rejected = JobRunRejected(
            message_id=message.message_id,
            requested_job_run_id=violations.job_run_id,
            table=violations.table,
            reasons=violations.reasons,
        )

        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            return [rejected] if before.state.status is JobRunStatus.ABSENT else []

        after = self._records.log(message.message_id).append(decide).after.state
        return self._finish_rejection(message, after)

    def _finish_rejection(self, message: QueueMessage, standing: JobRunState) -> Rejected:
        reasons = standing.rejected.reasons if standing.rejected is not None else ()
        self._queue.dead_letter(message, reasons)
        self._tell(message, standing)
        self._queue.delete(message)
        return Rejected(reasons)

    def _tell(self, message: QueueMessage, standing: JobRunState) -> None:
        log = self._records.log(message.message_id)
        try:
            self._records.relay(message.message_id, log, standing, self._sink).publish()
        except Invalid as error:
            # The topic is wrong, and will be at the next delivery too; the log and the dead-letter queue say it all.
            _log.error("events_refused", reason=str(error))

    def _put_back(self, message: QueueMessage, reason: str) -> PutBack:
        settings = self._settings
        doubled = settings.put_back_seconds * 2 ** min(message.delivery_count - 1, 16)
        seconds = min(doubled, settings.put_back_seconds_max)
        try:
            self._queue.set_visibility(message, seconds)
        except Unavailable as error:
            _log.warning("message_not_put_back", reason=str(error))  # it comes back when its visibility ends
        return PutBack(reason, seconds)

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


def pins(spec: JobRunSpec, lake: DeltaCatalog) -> tuple[SessionPin, ...]:
    """The sessions of a job run, pinned to where the logs stand now; streams without anything to do have none."""
    return tuple(
        SessionPin(
            session_id=pinned.spec.session_id,
            partition=pinned.spec.partition,
            source_stream_version=pinned.spec.source_stream_version,
            source_entry_number=pinned.spec.source_entry_number,
            source_position=pinned.spec.source_position,
            destination_entry_number=pinned.spec.destination_entry_number,
        )
        for pinned in pin_sessions(spec, lake)
        if pinned.has_work
    )


def _about(document: InstructionDocument, reasons: tuple[str, ...]) -> Violations:
    return Violations(reasons, document.job_run_id, document.source_table_id)


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
