"""The types of events of sessions and of tables, their severity and their `data`; those of job runs stand beside the
actions of the job-run log (`dispatcher/records/job_run_events.py`).

The data of a type only gains fields, with a default; any other change is a v2 of the type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, field_validator

from compactor.model.counts import RowCounts, RowTotals
from compactor.model.document import Document
from compactor.planning.cluster_plan import Cost
from compactor.planning.spec import Partition

REASONS_MAX = 40
REASON_CHARACTERS_MAX = 1_000
"""An SNS message has at most 262,144 bytes: 40 reasons of 1,000 characters of up to 4 bytes are 160,000."""

EVENT_TYPES: dict[str, type[EventData]] = {}
"""The class of the data of each event, by the event's type. Each class is added when its module is imported."""


def bounded(reasons: Sequence[str]) -> tuple[str, ...]:
    """At most `REASONS_MAX` reasons, each cut to a length; the last one is the number of those left out."""
    kept = [
        reason if len(reason) <= REASON_CHARACTERS_MAX else reason[:REASON_CHARACTERS_MAX] + " ..."
        for reason in reasons
    ]
    if len(kept) <= REASONS_MAX:
        return tuple(kept)
    return (*kept[: REASONS_MAX - 1], f"and {len(kept) - REASONS_MAX + 1} more")


Reasons = Annotated[tuple[str, ...], BeforeValidator(bounded)]


class Severity(StrEnum):
    """What a person on call must do: nothing, look at it tomorrow, look at it now."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventData(Document):
    """Base of all data. `event_type` is `lithify.<what>.<past tense>.v1`."""

    event_type: ClassVar[str]
    severity: ClassVar[Severity] = Severity.INFO
    severities: ClassVar[tuple[Severity, ...]] = ()
    """All severities that the type may have, if several."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: object) -> None:
        if "event_type" in cls.__dict__:
            EVENT_TYPES[cls.event_type] = cls

    @property
    def grade(self) -> Severity:
        return self.severity


class SessionData(EventData):
    """Base of the data of events about a session."""

    session_id: str
    partition: Partition

    @field_validator("partition", mode="before")
    @classmethod
    def _as_dict(cls, partition: object) -> object:
        return dict(partition) if isinstance(partition, Mapping) else partition


class SessionStartedEvent(SessionData):
    event_type: ClassVar[str] = "lithify.session.started.v1"
    attempt: int
    rounds: int
    expected_sla: float


class SessionRoundCompletedEvent(SessionData):
    """`entry_number` is the commit's, in the compacted stream's log."""

    event_type: ClassVar[str] = "lithify.session.round_completed.v1"
    attempt: int
    round_number: int
    rounds: int
    entry_number: int
    counts: RowCounts
    seconds: float


class SessionExpectedSlaChangedEvent(SessionData):
    event_type: ClassVar[str] = "lithify.session.expected_sla_changed.v1"
    attempt: int
    before: float
    now: float


class SessionSucceededEvent(RowTotals, SessionData):
    """Actual and predicted seconds; `expected_sla` is None if there was nothing to do. `expected_cost` is predicted
    before the session, `cost` computed after it; None if nothing was launched for it."""

    event_type: ClassVar[str] = "lithify.session.succeeded.v1"
    nothing_to_do: bool
    rounds: int
    seconds: float
    expected_sla: float | None
    expected_cost: Cost | None = None
    cost: Cost | None = None


class SessionFailedEvent(SessionData):
    """`error_kind` is a value of `ErrorKind`; another release may have others."""

    event_type: ClassVar[str] = "lithify.session.failed.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    attempt: int
    error_kind: str
    reasons: Reasons


class RehashCompletedEvent(SessionData):
    """`entry_number` is the commit's, in the compacted stream's log."""

    event_type: ClassVar[str] = "lithify.rehash.completed.v1"
    attempt: int
    entry_number: int
    hash_bucket_count: int


class HeartbeatEvent(SessionData):
    """Progress of a session: at most one event every so many seconds, and none without progress."""

    event_type: ClassVar[str] = "lithify.heartbeat.emitted.v1"
    attempt: int
    round_number: int
    rounds: int
    step: str
    tasks_done: int
    tasks: int
    rows_done: int
    rows: int


class TablePublishedEvent(EventData):
    """A commit of a table in a table format that other engines read. `table` of the event is the job run's source.

    Attributes:
        published_table_id: the table that is published
        version: of the published table; `snapshot`: its id, in formats that have one
        entries: the entry of each published stream's log that it has now, by encoded partition; of the first partitions
            of many
        entries_left_out: how many more there are
        refused: partitions that are left as they were: every reason
        lag_seconds: from the oldest of these entries to the commit"""

    event_type: ClassVar[str] = "lithify.table.published.v1"
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)
    published_table_id: str
    format: str
    version: int
    snapshot: int | None = None
    entries: dict[str, int]
    files_added: int
    files_removed: int
    files_marked: int
    rows: int
    lag_seconds: float
    refused: Reasons = ()
    entries_left_out: int = 0

    @property
    def grade(self) -> Severity:
        return Severity.WARNING if self.refused else self.severity


class TablePublishFailedEvent(EventData):
    """The rows are committed and not published. It is tried again, until it succeeds."""

    event_type: ClassVar[str] = "lithify.table.publish_failed.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    published_table_id: str
    format: str
    reasons: Reasons


class KeeperDecidedEvent(EventData):
    """The keeper sends an instruction for these partition streams of a table. `job_run_id` is its job run.

    Attributes:
        rules: the figures that were reached, each with the number of its streams
        why: of the first streams, the figures beside their bounds"""

    event_type: ClassVar[str] = "lithify.keeper.decided.v1"
    job_run_id: str
    streams: int
    rules: dict[str, int]
    why: Reasons
    expected_seconds: float
    expected_usd: float | None = None


class KeeperPostponedEvent(EventData):
    """Streams of a table are due and may not begin. Published once, until something changes. `postponed_by`: `budget`,
    `window`, `pause`, or `queue`, if it does not take their instruction. `until_ms` None: until somebody changes
    something."""

    event_type: ClassVar[str] = "lithify.keeper.postponed.v1"
    severity: ClassVar[Severity] = Severity.WARNING
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)
    postponed_by: str
    streams: int
    until_ms: int | None = None
    reasons: Reasons

    @property
    def grade(self) -> Severity:
        return Severity.INFO if self.postponed_by == "window" else self.severity


class KeeperFailedEvent(EventData):
    """A table cannot be kept: it cannot be read, or a job run of the keeper failed. The other tables go on.

    Attributes:
        job_run_id: None: it is not about a job run"""

    event_type: ClassVar[str] = "lithify.keeper.failed.v1"
    severity: ClassVar[Severity] = Severity.ERROR
    job_run_id: str | None = None
    reasons: Reasons
