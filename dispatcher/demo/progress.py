"""Job runs and sessions of the demo as their events report them: a line per session. A pure fold of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from compactor.events.relay import Event
from compactor.events.types import (
    EventData,
    HeartbeatEvent,
    SessionData,
    SessionExpectedSlaChangedEvent,
    SessionFailedEvent,
    SessionRoundCompletedEvent,
    SessionStartedEvent,
    SessionSucceededEvent,
)
from compactor.model.names import render_partition
from dispatcher.records.job_run_events import (
    JobRunAcceptedEvent,
    JobRunCancelledEvent,
    JobRunFailedEvent,
    JobRunRejectedEvent,
    JobRunSucceededEvent,
    SessionLaunchedEvent,
    SessionPlannedEvent,
    SessionRetriedEvent,
    SessionStalledEvent,
)


@dataclass(frozen=True)
class SessionLine:
    """One session. `state` is from its last event; `rows_done` of `rows` delta rows have been read."""

    job_run_id: str
    partition: str
    state: str
    round_number: int = 0
    rounds: int = 0
    step: str = ""
    tasks_done: int = 0
    tasks: int = 0
    rows_done: int = 0
    rows: int = 0
    expected_sla: float | None = None
    is_over: bool = False


@dataclass(frozen=True)
class JobRunLine:
    sessions: int = 0
    outcome: str | None = None
    reasons: tuple[str, ...] = ()


class DemoProgress:
    """Events may arrive in any order that keeps the order of each session's events."""

    def __init__(self) -> None:
        self.job_runs: dict[str, JobRunLine] = {}
        self.sessions: dict[str, SessionLine] = {}

    def apply(self, event: Event) -> None:
        data = event.data
        if isinstance(data, SessionData):
            line = self.sessions.get(data.session_id)
            if line is None:
                line = SessionLine(event.jobrunid, render_partition(data.partition), "waiting")
            self.sessions[data.session_id] = _after(line, data)
        else:
            self.job_runs[event.jobrunid] = _job_run_after(self.job_runs.get(event.jobrunid, JobRunLine()), data)

    def have_ended(self, job_run_ids: Iterable[str]) -> bool:
        return all(self.job_runs.get(each, JobRunLine()).outcome is not None for each in job_run_ids)

    @property
    def running(self) -> list[tuple[str, SessionLine]]:
        """Sessions that have begun and not ended, with their ids. Any thread may call: it gets a copy."""
        return [(session_id, line) for session_id, line in list(self.sessions.items()) if not line.is_over]

    @property
    def over_count(self) -> int:
        return len(self.sessions) - len(self.running)

    @property
    def sessions_count(self) -> int:
        """Sessions of all job runs that were accepted."""
        return sum(line.sessions for line in self.job_runs.values())


def _job_run_after(line: JobRunLine, data: EventData) -> JobRunLine:
    match data:
        case JobRunAcceptedEvent():
            return replace(line, sessions=data.sessions)
        case JobRunSucceededEvent():
            return replace(line, outcome="succeeded")
        case JobRunFailedEvent() | JobRunRejectedEvent():
            return replace(line, outcome="failed", reasons=data.reasons)
        case JobRunCancelledEvent():
            return replace(line, outcome="cancelled", reasons=(data.reason,))
        case _:
            return line


_STATES: Mapping[type[EventData], str] = {
    SessionPlannedEvent: "planned",
    SessionLaunchedEvent: "Spark starts",
    SessionStartedEvent: "running",
    SessionStalledEvent: "stalled",
    SessionRetriedEvent: "tried again",
    SessionSucceededEvent: "succeeded",
    SessionFailedEvent: "failed",
}


def _after(line: SessionLine, data: SessionData) -> SessionLine:
    is_over = line.is_over or isinstance(data, SessionSucceededEvent | SessionFailedEvent)
    line = replace(line, state=_STATES.get(type(data), line.state), is_over=is_over)
    match data:
        case SessionPlannedEvent() | SessionStartedEvent():
            return replace(line, expected_sla=data.expected_sla)
        case SessionExpectedSlaChangedEvent():
            return replace(line, expected_sla=data.now)
        case SessionRoundCompletedEvent():
            return replace(line, round_number=data.round_number, rounds=data.rounds, step="committed")
        case HeartbeatEvent():
            return replace(
                line,
                round_number=data.round_number,
                rounds=data.rounds,
                step=data.step,
                tasks_done=data.tasks_done,
                tasks=data.tasks,
                rows_done=data.rows_done,
                rows=data.rows,
            )
        case _:
            return line
