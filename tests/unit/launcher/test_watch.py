"""What follows from what is seen of a running attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.session_log import SessionFailed, SessionState, SessionSucceeded
from compactor.spec import SessionResult
from launcher.watch import Crashed, Ended, Observation, Stalled, Superseded, Verdict, Wait, WatchTimers, judge

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
SUCCESS = SessionSucceeded(attempt=2, result=RESULT)
FAILURE = SessionFailed(attempt=2, error_kind="Unavailable", reasons=("away",))
SUCCEEDED = replace(STARTED, end=SUCCESS)
FAILED = replace(STARTED, end=FAILURE)
EARLIER_FAILED = replace(NOT_STARTED, end=SessionFailed(attempt=1, error_kind="bug", reasons=()))
EARLIER_SUCCEEDED = replace(NOT_STARTED, end=SessionSucceeded(attempt=1, result=RESULT))


@pytest.mark.parametrize(
    ("exit_code", "log", "quiet_seconds", "verdict"),
    [
        # launched, and nothing in the log yet
        (None, NOT_STARTED, 9, Wait()),
        (None, NOT_STARTED, 11, Stalled(11, started=False)),
        (1, NOT_STARTED, 0, Crashed(1)),
        (0, NOT_STARTED, 0, Crashed(0)),  # a job that ends well says so in its log
        # what an earlier attempt said is not about this one, unless it succeeded after all
        (None, EARLIER_FAILED, 0, Wait()),
        (137, EARLIER_FAILED, 0, Crashed(137)),
        (137, EARLIER_SUCCEEDED, 0, Ended(SessionSucceeded(attempt=1, result=RESULT))),
        # running
        (None, STARTED, 19, Wait()),
        (None, STARTED, 21, Stalled(21, started=True)),
        (137, STARTED, 0, Crashed(137)),
        (None, replace(STARTED, attempt=3), 0, Superseded(3)),
        # ended in the log: the process gets a little time to go
        (None, SUCCEEDED, 4, Wait()),
        (None, SUCCEEDED, 6, Ended(SUCCESS)),
        (0, SUCCEEDED, 0, Ended(SUCCESS)),
        (1, FAILED, 0, Ended(FAILURE)),
    ],
)
def test_the_verdict(exit_code: int | None, log: SessionState, quiet_seconds: float, verdict: Verdict) -> None:
    assert judge(Observation(2, exit_code, log, quiet_seconds), TIMERS) == verdict
