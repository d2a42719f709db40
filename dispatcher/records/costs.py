"""Expected and actual cost of sessions, in money. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from compactor.planning.cluster_plan import Cost
from compactor.planning.store_use import StoreUse
from dispatcher.records.job_run_log import JobRunState, ShardEnded
from dispatcher.records.sessions import SessionState
from launcher.outcomes import SessionEnd, Succeeded
from launcher.sizing.money import cost_used


def expected_cost(session: SessionState) -> Cost | None:
    return session.plan.cluster.cost if session.plan is not None and session.plan.cluster is not None else None


def session_cost(session: SessionState, now_ms: int) -> Cost | None:
    """The cost of a session; unless it succeeded, the cost of its clusters until its end or until now."""
    if isinstance(session.end, Succeeded):
        return session.end.result.cost
    attempts = session.attempt_seconds(session.ended_at_ms or now_ms)
    if session.plan is None or session.plan.cluster is None or not attempts:
        return None
    return cost_used(session.plan.cluster, attempts, StoreUse())


def with_cost(end: SessionEnd, session: SessionState, at_ms: int) -> SessionEnd:
    """The end with the session's cost, if clusters were launched for it. `at_ms`: when it ended."""
    cluster = session.plan.cluster if session.plan is not None else None
    attempts = session.attempt_seconds(at_ms)
    if cluster is None or not attempts or not isinstance(end, Succeeded):
        return end
    cost = cost_used(cluster, attempts, end.result.store or StoreUse(), end.result.used)
    result = end.result.model_copy(update={"cost": cost, "expected_cost": end.result.expected_cost or cluster.cost})
    return end.model_copy(update={"result": result})


def total_usd(costs: Iterable[Cost | None]) -> float | None:
    """The sum of the known costs; None: no cost is known."""
    known = [cost.total_usd for cost in costs if cost is not None]
    return sum(known) if known else None


def expected_usd(state: JobRunState) -> float | None:
    """What the clusters of all sessions of a job run are expected to cost, and their requests."""
    if state.shards is not None:
        return state.shards.expected_usd
    return total_usd(expected_cost(session) for session in state.sessions.values())


def used_usd(state: JobRunState, now_ms: int) -> float | None:
    """What they have used; of a job run with shards those of shards that have ended."""
    if state.shards is not None:
        return state.shards.usd
    return total_usd(session_cost(session, now_ms) for session in state.sessions.values())


SHARD_NAMES_MAX = 100
"""Failed sessions, and reasons, of one shard in the log of its job run."""


def shard_ended(state: JobRunState) -> ShardEnded | None:
    """The end of a shard for the log of its job run; None: it is no shard, or has not ended."""
    if state.accepted is None or state.accepted.shard is None or state.ended is None:
        return None
    outcome = state.ended.outcome
    ended_at_ms = state.accepted.shard.accepted_at_ms + round(state.ended.seconds * 1000)
    return ShardEnded(
        number=state.accepted.shard.number,
        outcome=outcome.model_copy(
            update={
                "failed_sessions": outcome.failed_sessions[:SHARD_NAMES_MAX],
                "reasons": outcome.reasons[:SHARD_NAMES_MAX],
            }
        ),
        expected_sla=state.ended.expected_sla,
        expected_usd=expected_usd(state),
        usd=used_usd(state, ended_at_ms),
    )
