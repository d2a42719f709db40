"""Judges a running attempt from an observation of it. Pure: an observation and the timers in, a verdict out.

Every state has an exit timer, so nothing is in flight for ever:

    LAUNCHED -- session_started in the log --> RUNNING -- ended in the log --> ENDED -- job ends --> verdict Ended
        |                                         |                              |
        | start_seconds                           | stall_seconds                | exit_seconds
        v                                         v                              v
    Stalled                                    Stalled                        Ended, job or not

    in every state: the job ends without an end in the log --> Gone, with what its cluster says
                    a later attempt stands in the log      --> Superseded

A job out of reach is observed by its log and heartbeat only: it is Stalled when they show no progress.

*Progress* is a new log entry, or a heartbeat with new figures. A job that merely runs is not progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compactor.sessions.session_log import SessionFailed, SessionState, SessionSucceeded
from launcher.spark_job import JobFailed, JobRunning, JobStatus, JobSucceeded, JobVanished, NoCapacity, OutOfReach


@dataclass(frozen=True)
class WatchTimers:
    """
    start_seconds  from the launch to the job's first entry in the session log
    stall_seconds  without progress
    exit_seconds   from the end in the session log to the end of the job, and from asking it to end to that
    """

    start_seconds: float = 600.0
    stall_seconds: float = 900.0
    exit_seconds: float = 60.0

    def after_cluster_start(self, cluster_start_seconds: float) -> WatchTimers:
        """The same timers for a job whose machines are started for it."""
        return replace(self, start_seconds=self.start_seconds + cluster_start_seconds)


@dataclass(frozen=True)
class Observation:
    """One observation. The job is read before the log: once it has ended, the log is complete.

    quiet_seconds  since the last progress, or since the launch
    """

    attempt: int
    status: JobStatus
    log: SessionState
    quiet_seconds: float


@dataclass(frozen=True)
class Wait:
    """Nothing to do yet."""


@dataclass(frozen=True)
class Ended:
    """The session log has its end."""

    end: SessionSucceeded | SessionFailed


@dataclass(frozen=True)
class Gone:
    """The job has ended without an end in the session log."""

    status: JobSucceeded | JobFailed | NoCapacity | JobVanished


@dataclass(frozen=True)
class Stalled:
    quiet_seconds: float
    started: bool


@dataclass(frozen=True)
class Superseded:
    """Another dispatcher launched a later attempt: this session is no longer ours."""

    by_attempt: int


Verdict = Wait | Ended | Gone | Stalled | Superseded


def judge(seen: Observation, timers: WatchTimers) -> Verdict:
    """The verdict on an observation."""
    log = seen.log
    if log.end is not None and _belongs_to(log.end, seen.attempt):
        gone = not isinstance(seen.status, JobRunning) or seen.quiet_seconds > timers.exit_seconds
        return Ended(log.end) if gone else Wait()
    if log.attempt > seen.attempt:
        return Superseded(log.attempt)
    if not isinstance(seen.status, JobRunning | OutOfReach):
        return Gone(seen.status)
    started = log.attempt == seen.attempt
    if seen.quiet_seconds > (timers.stall_seconds if started else timers.start_seconds):
        return Stalled(seen.quiet_seconds, started)
    return Wait()


def _belongs_to(end: SessionSucceeded | SessionFailed, attempt: int) -> bool:
    """A success is the session's, of any attempt; a failure only its own attempt's."""
    return isinstance(end, SessionSucceeded) or end.attempt == attempt
