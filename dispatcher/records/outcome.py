"""What is concluded of a job run from the fold of its log: its outcome, expected seconds, lateness, its money. Pure."""

from collections.abc import Iterable, Mapping
from heapq import heapreplace

from compactor.model.names import render_partition
from compactor.planning.cluster_plan import Cost, StoreUse
from dispatcher.records.job_run_log import (
    NO_OUTCOME,
    JobRunOutcome,
    JobRunState,
    ShardEnded,
    ShardsState,
    merged,
    pause_ms,
)
from dispatcher.records.sessions import SessionState
from launcher.outcomes import Cancelled, Failed, NothingToDo, SessionEnd, Succeeded
from launcher.sizing.money import cost_used


def expected_cost(session: SessionState) -> Cost | None:
    return session.plan.cluster.cost if session.plan is not None and session.plan.cluster is not None else None


def session_cost(session: SessionState, now_ms: int, end: SessionEnd | None = None) -> Cost | None:
    """What a session has used until its end or until now; None: no cluster was launched for it.

    Args:
        end: that is about to be recorded"""
    end = end or session.end
    store = end.result.store if isinstance(end, Succeeded) else None
    return cost_used(session.paid, now_ms, store or StoreUse()) if session.paid else None


def with_cost(end: SessionEnd, session: SessionState, at_ms: int) -> SessionEnd:
    """The end with the session's cost, if clusters were launched for it. `at_ms`: when it ended.

    One that leaves a shared cluster while others run there is told with its part of the planned nodes: what they ran is
    known once the cluster has ended, and is in `session_cost` from then on."""
    cost = session_cost(session, at_ms, end)
    if cost is None or not isinstance(end, Succeeded):
        return end
    expected = end.result.expected_cost or expected_cost(session)
    return end.model_copy(update={"result": end.result.model_copy(update={"cost": cost, "expected_cost": expected})})


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


def expected_sla(
    state: JobRunState, accepted_at_ms: int, now_ms: int, refined: Mapping[str, float] | None = None
) -> float | None:
    """The expected seconds of the job run from its acceptance to the end of its last session. Sessions that wait for a
    slot begin one after the other when those that run end, or at once beside others in a shared Spark job; one without
    a plan is expected to take the average of the others. None: no session has a plan. Pure.

    Args:
        refined: newer expected seconds of sessions, from their own logs

    Worked: launched 2 s after the acceptance, one at a time, 3 sessions of 10 s are expected to take 32 s, as `lithify
    plan` says without the 2 s."""
    if state.ended is not None and state.ended.expected_sla is not None:
        return state.ended.expected_sla
    if state.shards is not None:
        return state.shards.expected_sla
    planned = {
        session_id: (refined or {}).get(session_id, session.plan.expected_sla)
        for session_id, session in state.sessions.items()
        if session.plan is not None
    }
    if not planned:
        return None
    mean = sum(planned.values()) / len(planned)
    ends = {
        session_id: _since(accepted_at_ms, session.launched_at_ms or now_ms) + planned[session_id]
        for session_id, session in state.sessions.items()
        if session_id in planned and (session.launched_at_ms is not None or session.end is not None)
    }
    free_at = _slots_free_at(state, ends, _since(accepted_at_ms, now_ms))
    shares = any(session.bundle is not None for session in state.sessions.values())
    for session in state.open_sessions():
        session_id = session.pin.session_id
        if session_id not in ends:
            ends[session_id] = free_at[0] + planned.get(session_id, mean)
            if not shares:
                heapreplace(free_at, ends[session_id])
    return max(ends.values())


def _slots_free_at(state: JobRunState, ends: Mapping[str, float], now: float) -> list[float]:
    """When the threads that run its sessions now are expected to be free, the earliest first: one for each session or
    bundle; if none runs, one that is free now. Seconds from the acceptance."""
    slots: dict[str, float] = {}
    for session in state.open_sessions():
        if session.pin.session_id in ends:
            slot = session.bundle or session.pin.session_id
            slots[slot] = max(slots.get(slot, now), ends[session.pin.session_id])
    return sorted(slots.values()) or [now]


def _since(accepted_at_ms: int, at_ms: int) -> float:
    return max(at_ms - accepted_at_ms, 0) / 1000


def paused_seconds(state: JobRunState, now_ms: int) -> float:
    """For which it was paused, until its end or now. Pure."""
    if state.ended is not None:
        return state.ended.paused_seconds
    return (state.paused_ms + pause_ms(state.paused, now_ms)) / 1000


def seconds_late(seconds: float, paused: float, desired_sla: int | None) -> float | None:
    """Seconds above the desired SLA, below 0 if it is kept: the time of a pause does not count. None: none was desired.

    Args:
        seconds: actual or expected, from the acceptance
        paused: seconds of them in a pause"""
    return None if desired_sla is None else seconds - paused - desired_sla


def conclude(state: JobRunState) -> JobRunOutcome | None:
    """The outcome of the job run; None while a session or a shard is open, or may be found. Pure."""
    if state.shards is not None:
        is_left = state.shards.opened < state.shards.count and state.cancel is None
        return None if state.shards.open or is_left else _outcome_of_shards(state, state.shards)
    return None if state.is_finding and state.cancel is None else outcome_of_sessions(state)


def outcome_of_sessions(state: JobRunState) -> JobRunOutcome | None:
    """The outcome of the job run if no further session is found; None while a session is open."""
    if state.shards is not None:
        return _outcome_of_shards(state, state.shards)
    ends = {session.pin.session_id: session.end for session in state.sessions.values()}
    if any(end is None for end in ends.values()):
        return None
    results = [end.result for end in ends.values() if isinstance(end, Succeeded)]
    failed = {session_id: end for session_id, end in ends.items() if isinstance(end, Failed)}
    is_cut_short = state.is_finding and state.cancel is not None
    cancelled = is_cut_short or any(isinstance(end, Cancelled) for end in ends.values())
    why_cancelled = (state.cancel.reason,) if cancelled and state.cancel is not None else ()
    return JobRunOutcome(
        status="cancelled" if cancelled else "failed" if failed else "succeeded",
        nothing_to_do=not is_cut_short and all(isinstance(end, NothingToDo) for end in ends.values()),
        sessions=len(results),
        rounds=sum(result.rounds for result in results),
        rows_in=sum(result.rows_in for result in results),
        rows_out=sum(result.rows_out for result in results),
        rows_deduplicated=sum(result.rows_deduplicated for result in results),
        rows_deleted=sum(result.rows_deleted for result in results),
        failed_sessions=tuple(failed),
        reasons=why_cancelled
        + tuple(
            f"{render_partition(state.sessions[session_id].pin.partition)}: {reason}"
            for session_id, end in failed.items()
            for reason in end.reasons
        ),
    )


def _outcome_of_shards(state: JobRunState, shards: ShardsState) -> JobRunOutcome:
    """Of those that have ended."""
    if shards.opened < shards.count and state.cancel is not None:
        cut_short = NO_OUTCOME.model_copy(update={"status": "cancelled", "reasons": (state.cancel.reason,)})
        return merged(shards.outcome, cut_short)
    return shards.outcome
