"""Whether a planned session may be launched now: the last check before a cluster is requested, and the first one that
knows its size. A session that may not be launched gives its lease back and waits."""

from __future__ import annotations

from collections.abc import Sequence

from compactor.log.durable_log import LogState
from compactor.log_context import ProcessLog
from compactor.model.clock import Clock
from compactor.planning.cluster_plan import ClusterPlan
from dispatcher.records.claims import Claim, JobRunLog
from dispatcher.records.costs import session_cost, total_usd
from dispatcher.records.job_run_log import JobRunAction, JobRunState, JobRunWaitsForMoney
from dispatcher.records.sessions import SessionState
from dispatcher.scheduling.lease_log import Lease, QuotaExceeded, RunCost
from dispatcher.scheduling.leases import Leases

_log = ProcessLog()

MONEY_SECONDS = 600.0
"""Pause before limits on money are checked again: a cheaper session frees some, the next day frees all."""

ROOM_SECONDS = 30.0
"""Pause before the limits on clusters and vCPUs are checked again."""


class LaunchGate:
    """The gate of one lease."""

    def __init__(self, claim: Claim, leases: Leases, lease: Lease | None, clock: Clock) -> None:
        """`lease` None: nothing will be launched."""
        self._claim = claim
        self._leases = leases
        self._lease = lease
        self._clock = clock

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        """None: it may be launched, and its cluster counts from now on. Raises the state's store's errors."""
        if cluster is None or self._lease is None:
            return None
        is_limited = self._leases.limits.job_run.usd is not None
        exceeded = self._leases.charge(self._lease, cluster, self._cost_so_far() if is_limited else None)
        if exceeded is None:
            return None
        _log.info("session_waits", reason=exceeded.reason)
        return seconds_of(exceeded, self._claim.log)

    def _cost_so_far(self) -> RunCost | None:
        """Of the whole job run, though other dispatchers may hold shards of it."""
        state = self._claim.log.newest.state
        if state.accepted is None:
            return None
        job_run_id, states, ended_usd = state.accepted.spec.job_run_id, [state], 0.0
        if state.accepted.shard is not None:
            whole, open_shards = self._leases.shards_of(job_run_id)
            states, ended_usd = [*open_shards, state], (whole.shards.usd or 0.0) if whole.shards is not None else 0.0
        now_ms = self._clock.now_ms()
        usd_of = {key: _usd_of_session(each, now_ms) for found in states for key, each in found.sessions.items()}
        return RunCost(job_run_id, ended_usd, usd_of)


def seconds_of(exceeded: QuotaExceeded, log: JobRunLog) -> float:
    """How long it waits. A wait for money is logged in the job-run log and published once."""
    if not exceeded.is_money:
        return ROOM_SECONDS
    note_over_budget(log, exceeded)
    return MONEY_SECONDS


def note_over_budget(log: JobRunLog, exceeded: QuotaExceeded) -> None:
    def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
        state = before.state
        if not state.status.is_open or state.waits_for_money is not None:
            return []
        return [JobRunWaitsForMoney(reason=exceeded.reason, again=state.has_lacked_money)]

    log.append(decide, log.newest)


def _usd_of_session(session: SessionState, now_ms: int) -> float:
    """The cost of its clusters so far; while one runs what it is expected to cost at most, if that is more."""
    used = total_usd([session_cost(session, now_ms)]) or 0.0
    if session.in_flight is None or session.plan is None or session.plan.cluster is None:
        return used
    return max(used, session.plan.cluster.usd_charged)
