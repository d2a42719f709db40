"""Whether a planned session may be launched now: the last check before a cluster is requested, and the first one that
knows its size. A session that may not be launched gives its turn back and waits."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from compactor.log.durable_log import LogState
from compactor.model.clock import Clock
from compactor.planning.cluster_plan import ClusterPlan
from dispatcher.job_runs.claims import Claim, JobRunLog
from dispatcher.job_runs.costs import expected_cost, session_cost, total_usd
from dispatcher.job_runs.job_run_log import JobRunAction, JobRunState, JobRunWaitsForMoney, SessionState
from dispatcher.job_runs.turn_log import Lack, Turn, lack_of_run_money
from dispatcher.job_runs.turns import Turns

_log = structlog.get_logger(__name__)

MONEY_SECONDS = 600.0
"""Before it is looked at again whether there is money: some comes back where less is spent than was expected, and all
of it on the next day."""

ROOM_SECONDS = 30.0
"""Likewise, whether there is room for its cluster."""


class LaunchGate:
    """The gate of one turn."""

    def __init__(self, claim: Claim, turns: Turns, turn: Turn | None, clock: Clock) -> None:
        """`turn` None: nothing will be launched."""
        self._claim = claim
        self._turns = turns
        self._turn = turn
        self._clock = clock

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        """None: it may be launched, and its cluster counts from now on. Raises the state's store's errors."""
        if cluster is None or self._turn is None:
            return None
        state = self._claim.log.newest.state
        used = usd_of_job_run(state, self._clock.now_ms())
        parts = state.accepted.shard.count if state.accepted is not None and state.accepted.shard is not None else 1
        lack = lack_of_run_money(used, cluster.cost.total_usd, self._turns.limits, parts)
        lack = lack or self._turns.charge(self._turn, cluster)
        if lack is None:
            return None
        _log.info("session_waits", reason=lack.reason)
        return seconds_of(lack, self._claim.log)


def seconds_of(lack: Lack, log: JobRunLog) -> float:
    """How long it waits. A wait for money is logged in the job-run log and published once."""
    if not lack.is_money:
        return ROOM_SECONDS
    note_lack_of_money(log, lack)
    return MONEY_SECONDS


def note_lack_of_money(log: JobRunLog, lack: Lack) -> None:
    def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
        state = before.state
        if not state.status.is_open or state.waits_for_money is not None:
            return []
        return [JobRunWaitsForMoney(reason=lack.reason, again=state.has_lacked_money)]

    log.append(decide, log.newest)


def usd_of_job_run(state: JobRunState, now_ms: int) -> float:
    """The cost of its clusters so far; for running clusters the expected cost, if that is more."""
    return sum(_usd_of_session(session, now_ms) for session in state.sessions.values())


def _usd_of_session(session: SessionState, now_ms: int) -> float:
    used, expected = total_usd([session_cost(session, now_ms)]) or 0.0, total_usd([expected_cost(session)]) or 0.0
    return used if session.in_flight is None else max(used, expected)
