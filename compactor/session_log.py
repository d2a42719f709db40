"""The session log: what the running Spark job says of itself, durably, and the heartbeat beside it, which is a hint.

The dispatcher reads both; it never writes here. Attempts of a session share one log: an attempt that sees a later
attempt's start has been superseded and stops (`Fenced`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, assert_never

from pydantic import Field, TypeAdapter

from compactor.catalog.actions import RowCounts
from compactor.catalog.log import LogFormat
from compactor.document import Document
from compactor.spec import SessionResult


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
    """`error_kind` is the class in errors.py, or "bug"; an Invalid session is never tried again."""

    action: Literal["session_failed"] = "session_failed"
    attempt: int
    error_kind: str
    reasons: tuple[str, ...]


SessionAction = Annotated[
    SessionStarted | RoundDone | ExpectedSlaChanged | IndexMoved | SessionSucceeded | SessionFailed,
    Field(discriminator="action"),
]


class Heartbeat(Document):
    """Progress, overwritten whenever there is some. `at_ms` moves only with real progress."""

    attempt: int
    at_ms: int
    round_number: int
    rounds: int
    step: str
    tasks_done: int
    tasks: int
    rows_done: int
    rows: int


@dataclass(frozen=True)
class SessionState:
    """The fold of a session log."""

    attempt: int = 0
    rounds_done: tuple[RoundDone, ...] = ()
    expected_sla: float | None = None
    end: SessionSucceeded | SessionFailed | None = None


def apply(state: SessionState, action: SessionAction) -> SessionState:
    match action:
        case SessionStarted():
            return replace(state, attempt=action.attempt, expected_sla=action.expected_sla, end=None)
        case RoundDone():
            return replace(state, rounds_done=(*state.rounds_done, action))
        case ExpectedSlaChanged():
            return replace(state, expected_sla=action.now)
        case IndexMoved():
            return state
        case SessionSucceeded() | SessionFailed():
            return replace(state, end=action)
        case _:
            assert_never(action)


SESSION_LOG: LogFormat[SessionState, SessionAction] = LogFormat(
    name="session", action_type=TypeAdapter(SessionAction), initial=SessionState(), apply=apply
)
