"""What follows from what is seen of a running launch."""

from __future__ import annotations

import pytest

from compactor.model.errors import ErrorKind
from launcher.spark_job import JobFailed, JobRunning, JobStatus, JobSucceeded, JobVanished, NoCapacity, OutOfReach
from launcher.verdict import Ended, Gone, Observation, Stalled, Verdict, Wait, WatchTimers, judge

TIMERS = WatchTimers(start_seconds=10, stall_seconds=20, exit_seconds=5)
NOT_BEGUN, BEGUN, ENDED = (False, False), (True, False), (True, True)
"""Whether the job has given a sign of life, and whether all of its sessions have ended."""
ENDED_BEFORE = (False, True)
RUNS, WELL = JobRunning(), JobSucceeded()
CRASHED = JobFailed(ErrorKind.CRASHED, "exited with code 1")
GONE = JobVanished("vanished")
NO_ROOM = NoCapacity("found no room")
UNSEEN = OutOfReach()


@pytest.mark.parametrize(
    ("status", "signs", "quiet_seconds", "verdict"),
    [
        # launched, and nothing in the log yet
        (RUNS, NOT_BEGUN, 9, Wait()),
        (RUNS, NOT_BEGUN, 11, Stalled(11, has_begun=False)),
        (CRASHED, NOT_BEGUN, 0, Gone(CRASHED)),
        (WELL, NOT_BEGUN, 0, Gone(WELL)),  # a job that ends well says so in its log
        (NO_ROOM, NOT_BEGUN, 0, Gone(NO_ROOM)),
        (GONE, NOT_BEGUN, 0, Gone(GONE)),
        # an earlier attempt has succeeded after all
        (CRASHED, ENDED_BEFORE, 0, Ended()),
        # running
        (RUNS, BEGUN, 19, Wait()),
        (RUNS, BEGUN, 21, Stalled(21, has_begun=True)),
        (CRASHED, BEGUN, 0, Gone(CRASHED)),
        # ended in the log: the job gets a little time to go
        (RUNS, ENDED, 4, Wait()),
        (RUNS, ENDED, 6, Ended()),
        (WELL, ENDED, 0, Ended()),
        (GONE, ENDED, 0, Ended()),
        (CRASHED, ENDED, 0, Ended()),
        # out of reach: only its log and its heartbeat tell
        (UNSEEN, NOT_BEGUN, 9, Wait()),
        (UNSEEN, NOT_BEGUN, 11, Stalled(11, has_begun=False)),
        (UNSEEN, BEGUN, 19, Wait()),
        (UNSEEN, BEGUN, 21, Stalled(21, has_begun=True)),
        (UNSEEN, ENDED, 0, Ended()),
    ],
)
def test_the_verdict(status: JobStatus, signs: tuple[bool, bool], quiet_seconds: float, verdict: Verdict) -> None:
    assert judge(Observation(status, *signs, quiet_seconds), TIMERS) == verdict
