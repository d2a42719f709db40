"""The session log: the durable record of the running Spark job, and the heartbeat beside it, which is a hint.

The dispatcher reads both. It writes here only commits of an attempt whose process died before logging them. Attempts of
a session share one log: an attempt that sees a later attempt's start has been superseded and stops (`Fenced`).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Protocol, assert_never

from pydantic import Field, TypeAdapter

from compactor.log.durable_log import DurableLog, LogFormat
from compactor.log.small_states import small_checkpoint
from compactor.log_context import LOG
from compactor.model.counts import RowCounts
from compactor.model.document import Document
from compactor.model.errors import ErrorKind, reason_of
from compactor.model.names import PartitionValues, counted
from compactor.planning.session_streams import READ_FOOTERS, READ_LOG_ENTRIES
from compactor.planning.spec import SessionResult

READ_STEPS = frozenset({READ_FOOTERS, READ_LOG_ENTRIES})
"""Steps of an attempt before its first round, which count files or entries instead of tasks."""


class SessionStarted(Document):
    action: Literal["session_started"] = "session_started"
    attempt: int = Field(ge=1)
    rounds: int
    expected_sla: float


class RoundDone(Document):
    """A round is in the table's log, as entry `entry_number` of the compacted stream."""

    action: Literal["round_done"] = "round_done"
    attempt: int
    round_number: int
    rounds: int
    entry_number: int
    counts: RowCounts
    seconds: float


class ExpectedSlaChanged(Document):
    action: Literal["expected_sla_changed"] = "expected_sla_changed"
    attempt: int
    before: float
    now: float


class IndexMoved(Document):
    """The index was rehashed: entry `entry_number` of the compacted stream."""

    action: Literal["index_moved"] = "index_moved"
    attempt: int
    entry_number: int
    hash_bucket_count: int


class SessionSucceeded(Document):
    action: Literal["session_succeeded"] = "session_succeeded"
    attempt: int
    result: SessionResult


class SessionFailed(Document):
    """An attempt that ended with an error."""

    action: Literal["session_failed"] = "session_failed"
    attempt: int
    error_kind: ErrorKind
    reasons: tuple[str, ...]


SessionAction = Annotated[
    SessionStarted | RoundDone | ExpectedSlaChanged | IndexMoved | SessionSucceeded | SessionFailed,
    Field(discriminator="action"),
]


class Heartbeat(Document):
    """Progress, overwritten at each progress. `at_ms` changes only with real progress.

    Attributes:
        tasks_done, tasks: of a Spark step; in a reading step, the files or entries that were read, and their number
        rows_in_tasks: rows that running tasks have reported, in all steps of the attempt: it changes within a task
        share_done: of the attempt's work, from 0 to 1, by these rows; None: no round has begun"""

    attempt: int
    at_ms: int
    round_number: int
    rounds: int
    step: str
    tasks_done: int
    tasks: int
    rows_done: int
    rows: int
    rows_in_tasks: int = 0
    share_done: float | None = None


class StepProgress(Protocol):
    """The progress within the running step, in heartbeats and events."""

    @property
    def round_number(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def step(self) -> str: ...
    @property
    def tasks_done(self) -> int: ...
    @property
    def tasks(self) -> int: ...


def describe_progress(beat: StepProgress) -> str:
    """For display: `round 2 of 3, dedupe, 5 of 8 tasks`; before the first round `read footers, 5 of 2,000`."""
    parts = [f"round {beat.round_number} of {beat.rounds}"] if beat.rounds else []
    parts.append(beat.step)
    if beat.tasks:
        of = f"{beat.tasks:,}" if beat.step in READ_STEPS else counted(beat.tasks, "task")
        parts.append(f"{beat.tasks_done:,} of {of}")
    return ", ".join(parts)


@dataclass(frozen=True)
class SessionLogState:
    """The fold of a session log. `told`: entries of the compacted stream that the log names."""

    attempt: int = 0
    rounds_done: tuple[RoundDone, ...] = ()
    told: frozenset[int] = frozenset()
    expected_sla: float | None = None
    end: SessionSucceeded | SessionFailed | None = None


def apply(state: SessionLogState, action: SessionAction) -> SessionLogState:
    match action:
        case SessionStarted():
            return replace(state, attempt=action.attempt, expected_sla=action.expected_sla, end=None)
        case RoundDone():
            return replace(state, rounds_done=(*state.rounds_done, action), told=state.told | {action.entry_number})
        case ExpectedSlaChanged():
            return replace(state, expected_sla=action.now)
        case IndexMoved():
            return replace(state, told=state.told | {action.entry_number})
        case SessionSucceeded() | SessionFailed():
            return replace(state, end=action)
        case _:
            assert_never(action)


SESSION_LOG: LogFormat[SessionLogState, SessionAction] = LogFormat(
    name="session",
    action_type=TypeAdapter(SessionAction),
    initial=SessionLogState(),
    apply=apply,
    checkpoint=small_checkpoint(SessionLogState),
)

SessionLog = DurableLog[SessionLogState, SessionAction]


@dataclass(frozen=True)
class SessionProgress:
    """One progress report.

    Attributes:
        number, sessions: the number of the session among those with work, and their count
        heartbeat: its progress; None: it starts, and perhaps a Spark for it
        waits_for: the session that has its stream, if it waits for the end of that one; then `number` and `sessions`
            count the waiting sessions"""

    number: int
    sessions: int
    partition: PartitionValues
    heartbeat: Heartbeat | None
    waits_for: str | None = None


Listener = Callable[[SessionProgress], None]
"""Called from any thread; must return quickly. Its errors are logged and have no other effect."""


class ProgressReporter:
    """Tells a listener (None: nobody listens) the fields of a `SessionProgress`, one call at a time: sessions may run
    side by side."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._lock = threading.Lock()

    def __call__(
        self, number: int, sessions: int, of: PartitionValues, beat: Heartbeat | None, waits_for: str | None = None
    ) -> None:
        if self._listener is None:
            return
        try:
            with self._lock:
                self._listener(SessionProgress(number, sessions, of, beat, waits_for))
        except Exception as error:  # noqa: BLE001  (who cannot listen stops no session)
            LOG.warning("progress_listener_failed", reason=reason_of(error))
