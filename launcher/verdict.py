"""Judges a running launch from an observation of it. Pure: an observation and the timers in, a verdict out.

Every state has an exit timer, so nothing is in flight for ever:

    LAUNCHED -- it has begun --> RUNNING -- all its sessions have ended --> ENDED -- job ends --> verdict Ended
        |                           |                                         |
        | start_seconds             | stall_seconds                           | exit_seconds
        v                           v                                         v
    Stalled                      Stalled                                   Ended, job or not

    in every state: the job ends before its sessions --> Gone, with what its cluster says

A job out of reach is observed by its logs and heartbeat only: it is Stalled when they show no progress.

*Progress* is a new log entry, or a heartbeat with new figures. A job that merely runs is not progress.
"""

from dataclasses import dataclass, replace
from typing import Self

from launcher.spark_job import JobFailed, JobRunning, JobStatus, JobSucceeded, JobVanished, NoCapacity, OutOfReach


@dataclass(frozen=True)
class WatchTimers:
    """
    Attributes:
        start_seconds: from the launch to the first sign of the job: an entry in the session log, a bundle's heartbeat
        stall_seconds: without progress
        exit_seconds: from the end of its sessions to the end of the job, and from asking it to end to that"""

    start_seconds: float = 600.0
    stall_seconds: float = 900.0
    exit_seconds: float = 60.0

    def after_cluster_start(self, cluster_start_seconds: float) -> Self:
        """The same timers for a job whose machines are started for it."""
        return replace(self, start_seconds=self.start_seconds + cluster_start_seconds)


@dataclass(frozen=True)
class Observation:
    """One observation. The job is read before the logs: once it has ended, the logs are complete.

    Attributes:
        has_begun: the job has given a sign of life
        has_ended: the end of each of its sessions is known
        quiet_seconds: since the last progress, or since the launch"""

    status: JobStatus
    has_begun: bool
    has_ended: bool
    quiet_seconds: float


@dataclass(frozen=True)
class Wait:
    """Nothing to do yet."""


@dataclass(frozen=True)
class Ended:
    """All sessions have ended."""


@dataclass(frozen=True)
class Gone:
    """The job has ended before its sessions."""

    status: JobSucceeded | JobFailed | NoCapacity | JobVanished


@dataclass(frozen=True)
class Stalled:
    quiet_seconds: float
    has_begun: bool


Verdict = Wait | Ended | Gone | Stalled


def judge(seen: Observation, timers: WatchTimers) -> Verdict:
    if seen.has_ended:
        is_gone = not isinstance(seen.status, JobRunning) or seen.quiet_seconds > timers.exit_seconds
        return Ended() if is_gone else Wait()
    if not isinstance(seen.status, JobRunning | OutOfReach):
        return Gone(seen.status)
    if seen.quiet_seconds > (timers.stall_seconds if seen.has_begun else timers.start_seconds):
        return Stalled(seen.quiet_seconds, seen.has_begun)
    return Wait()
