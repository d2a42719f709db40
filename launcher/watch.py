"""Judges a running attempt from what can be seen of it. Pure: an observation and the timers in, a verdict out.

Every state has an exit timer, so nothing is in flight for ever:

    LAUNCHED -- session_started in the log --> RUNNING -- ended in the log --> ENDED -- process exits --> verdict Ended
        |                                         |                              |
        | start_seconds                           | stall_seconds                | exit_seconds
        v                                         v                              v
    Stalled                                    Stalled                        Ended, process or not

    in every state: the process exits without an end in the log --> Crashed
                    a later attempt stands in the log           --> Superseded

Quiet is measured from the last *progress*: a new log entry, or a heartbeat that says something new.
A process that merely lives is not progress.
"""

from __future__ import annotations

from dataclasses import dataclass

from compactor.session_log import SessionFailed, SessionState, SessionSucceeded


@dataclass(frozen=True)
class WatchTimers:
    """
    start_seconds  from the launch to the job's first entry in the session log
    stall_seconds  without progress
    exit_seconds   from the end in the session log to the process's exit
    """

    start_seconds: float = 600.0
    stall_seconds: float = 900.0
    exit_seconds: float = 60.0


@dataclass(frozen=True)
class Observation:
    """What was seen, the process before the log: once it has exited, the log says all that it ever will.

    quiet_seconds  since the last progress, or since the launch
    """

    attempt: int
    exit_code: int | None
    log: SessionState
    quiet_seconds: float


@dataclass(frozen=True)
class Wait:
    """Nothing to do yet."""


@dataclass(frozen=True)
class Ended:
    """The session log says how."""

    end: SessionSucceeded | SessionFailed


@dataclass(frozen=True)
class Crashed:
    """The process is gone, and the session log does not say how it ended."""

    exit_code: int


@dataclass(frozen=True)
class Stalled:
    quiet_seconds: float
    started: bool


@dataclass(frozen=True)
class Superseded:
    """Somebody else launched a later attempt: this session is not ours any more."""

    by_attempt: int


Verdict = Wait | Ended | Crashed | Stalled | Superseded


def judge(seen: Observation, timers: WatchTimers) -> Verdict:
    """What follows from an observation."""
    log = seen.log
    if log.end is not None and _is_about(log.end, seen.attempt):
        gone = seen.exit_code is not None or seen.quiet_seconds > timers.exit_seconds
        return Ended(log.end) if gone else Wait()
    if log.attempt > seen.attempt:
        return Superseded(log.attempt)
    if seen.exit_code is not None:
        return Crashed(seen.exit_code)
    started = log.attempt == seen.attempt
    if seen.quiet_seconds > (timers.stall_seconds if started else timers.start_seconds):
        return Stalled(seen.quiet_seconds, started)
    return Wait()


def _is_about(end: SessionSucceeded | SessionFailed, attempt: int) -> bool:
    """A success is the session's, whichever attempt wrote it; a failure only its own attempt's."""
    return isinstance(end, SessionSucceeded) or end.attempt == attempt
