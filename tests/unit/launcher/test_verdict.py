"""What follows from what is seen of a running attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.model.errors import ErrorKind
from compactor.planning.spec import SessionResult
from compactor.sessions.session_log import SessionFailed, SessionState, SessionSucceeded
from launcher.spark_job import JobFailed, JobRunning, JobStatus, JobSucceeded, JobVanished, NoCapacity, OutOfReach
from launcher.verdict import Ended, Gone, Observation, Stalled, Superseded, Verdict, Wait, WatchTimers, judge

TIMERS = WatchTimers(start_seconds=10, stall_seconds=20, exit_seconds=5)
RESULT = SessionResult(
    session_id="s",
    partition={},
    rounds=1,
    rows_in=1,
    rows_out=1,
    rows_deduplicated=0,
    rows_deleted=0,
    seconds=1.0,
    expected_sla=1.0,
)
NOT_STARTED = SessionState(attempt=1)
STARTED = SessionState(attempt=2)
RUNS, WELL = JobRunning(), JobSucceeded()
CRASHED = JobFailed(ErrorKind.CRASHED, "exited with code 1")
GONE = JobVanished("vanished")
NO_ROOM = NoCapacity("found no room")
UNSEEN = OutOfReach()
SUCCESS = SessionSucceeded(attempt=2, result=RESULT)
FAILURE = SessionFailed(attempt=2, error_kind=ErrorKind.UNAVAILABLE, reasons=("away",))
SUCCEEDED = replace(STARTED, end=SUCCESS)
FAILED = replace(STARTED, end=FAILURE)
EARLIER_FAILED = replace(NOT_STARTED, end=SessionFailed(attempt=1, error_kind=ErrorKind.BUG, reasons=()))
EARLIER_SUCCEEDED = replace(NOT_STARTED, end=SessionSucceeded(attempt=1, result=RESULT))


@pytest.mark.parametrize(
    ("status", "log", "quiet_seconds", "verdict"),
    [
        # launched, and nothing in the log yet
        (RUNS, NOT_STARTED, 9, Wait()),
        (RUNS, NOT_STARTED, 11, Stalled(11, started=False)),
        (CRASHED, NOT_STARTED, 0, Gone(CRASHED)),
        (WELL, NOT_STARTED, 0, Gone(WELL)),  # a job that ends well says so in its log
        (NO_ROOM, NOT_STARTED, 0, Gone(NO_ROOM)),
        (GONE, NOT_STARTED, 0, Gone(GONE)),
        # what an earlier attempt said is not about this one, unless it succeeded after all
        (RUNS, EARLIER_FAILED, 0, Wait()),
        (CRASHED, EARLIER_FAILED, 0, Gone(CRASHED)),
        (CRASHED, EARLIER_SUCCEEDED, 0, Ended(SessionSucceeded(attempt=1, result=RESULT))),
        # running
        (RUNS, STARTED, 19, Wait()),
        (RUNS, STARTED, 21, Stalled(21, started=True)),
        (CRASHED, STARTED, 0, Gone(CRASHED)),
        (RUNS, replace(STARTED, attempt=3), 0, Superseded(3)),
        # ended in the log: the job gets a little time to go
        (RUNS, SUCCEEDED, 4, Wait()),
        (RUNS, SUCCEEDED, 6, Ended(SUCCESS)),
        (WELL, SUCCEEDED, 0, Ended(SUCCESS)),
        (GONE, SUCCEEDED, 0, Ended(SUCCESS)),
        (CRASHED, FAILED, 0, Ended(FAILURE)),
        # out of reach: only its log and its heartbeat tell
        (UNSEEN, NOT_STARTED, 9, Wait()),
        (UNSEEN, NOT_STARTED, 11, Stalled(11, started=False)),
        (UNSEEN, STARTED, 19, Wait()),
        (UNSEEN, STARTED, 21, Stalled(21, started=True)),
        (UNSEEN, SUCCEEDED, 0, Ended(SUCCESS)),
        (UNSEEN, FAILED, 0, Ended(FAILURE)),
    ],
)
def test_the_verdict(status: JobStatus, log: SessionState, quiet_seconds: float, verdict: Verdict) -> None:
    assert judge(Observation(2, status, log, quiet_seconds), TIMERS) == verdict
