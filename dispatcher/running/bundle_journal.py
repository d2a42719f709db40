"""The `BundleJournal` of a dispatcher: records the course of many sessions in the job-run log under the claim, in
few entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import INFO, WARNING

import structlog

from compactor.events.relay import bounded
from compactor.model.clock import Clock
from compactor.planning.bundle_plan import BundleMember, BundlePlan
from compactor.planning.cluster_plan import ClusterPlan
from compactor.sessions.session_log import SessionLog
from dispatcher.outbox.listeners import Listeners
from dispatcher.records.claims import Claim
from dispatcher.records.costs import with_cost
from dispatcher.records.job_run_log import (
    AboutSession,
    JobRunState,
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionPlanned,
    SessionRetried,
    SessionStalled,
    planned_action,
)
from dispatcher.scheduling.budgets import LaunchGate
from launcher.bundle_run import RetriedMember
from launcher.outcomes import Failed, SessionEnd, level_of
from launcher.plan import plan_changes
from launcher.spark_job import ClusterReference

_log = structlog.get_logger(__name__)


class ClaimBundleJournal:
    """The journal of the bundles of one job run. Writes raise `Fenced` once the claim is lost."""

    def __init__(self, claim: Claim, job_run_id: str, listeners: Listeners, gate: LaunchGate, clock: Clock) -> None:
        self._claim = claim
        self._job_run_id = job_run_id
        self._listeners = listeners
        self._publisher = listeners.publisher
        self._gate = gate
        self._clock = clock

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        return self._gate.wait_seconds(cluster)

    def launching(self, plan: BundlePlan, name: str, place: str) -> None:
        longest = max(member.plan.expected_sla for member in plan.members)
        _log.info(
            "bundle_planned", bundle_id=plan.bundle_id, sessions=len(plan.members), expected_sla=round(longest, 1)
        )
        at_ms = self._clock.now_ms()

        def decide(state: JobRunState) -> Sequence[AboutSession]:
            actions: list[AboutSession] = []
            for member in plan.members:
                actions += self._planned(member, plan.bundle_id, state)
                actions.append(
                    SessionLaunching(
                        epoch=self._claim.epoch,
                        session_id=_id(member),
                        attempt=member.attempt,
                        at_ms=at_ms,
                        name=name,
                        place=place,
                        bundle=plan.bundle_id,
                    )
                )
            return actions

        self._claim.write(decide)
        self._publisher.news(self._job_run_id)

    def launched(self, plan: BundlePlan, cluster: str, reference: ClusterReference) -> None:
        _log.info("bundle_launched", bundle_id=plan.bundle_id, sessions=len(plan.members), cluster=cluster)
        self._write(
            SessionLaunched(
                epoch=self._claim.epoch,
                session_id=_id(member),
                attempt=member.attempt,
                cluster=cluster,
                reference=reference,
                bundle=plan.bundle_id,
            )
            for member in plan.members
        )

    def is_in_flight(self, plan: BundlePlan) -> bool:
        sessions = self._claim.log.load().state.sessions
        return any(
            session.in_flight is not None and session.bundle == plan.bundle_id
            for session in (sessions[_id(member)] for member in plan.members)
        )

    def progressed(self, members: Collection[BundleMember]) -> None:
        for member in members:
            self._listeners.session_progressed(self._job_run_id, _id(member))

    def left(self, members: Collection[BundleMember]) -> None:
        for member in members:
            self._listeners.meter.session_left(self._job_run_id, _id(member))

    def attached(self, bundle_id: str, cluster: str) -> None:
        _log.info("bundle_attached", bundle_id=bundle_id, cluster=cluster)

    def stalled(self, members: Collection[BundleMember], quiet_seconds: float) -> None:
        _log.warning("bundle_stalled", sessions=len(members), quiet_seconds=quiet_seconds)
        self._write(
            SessionStalled(
                epoch=self._claim.epoch,
                session_id=_id(member),
                attempt=member.attempt,
                quiet_seconds=quiet_seconds,
            )
            for member in members
        )

    def settled(self, ends: Mapping[str, SessionEnd], retried: Sequence[RetriedMember], at_ms: int) -> None:
        counts: dict[str, int] = {}
        for end in ends.values():
            counts[end.end] = counts.get(end.end, 0) + 1
        failed = {session_id: end for session_id, end in ends.items() if isinstance(end, Failed)}
        reasons = bounded([f"{session_id}: {'; '.join(end.reasons)}" for session_id, end in failed.items()])
        why = {"reasons": "; ".join(reasons)} if reasons else {}
        level = max([WARNING if retried else INFO, *(level_of(end) for end in counts)])
        _log.log(level, "sessions_settled", **counts, retried=len(retried), **why)
        retries = [
            SessionRetried(
                epoch=self._claim.epoch,
                session_id=each.session_id,
                attempt=each.attempt,
                error_kind=each.failed.error_kind,
                reasons=each.failed.reasons,
                failed_at_ms=at_ms,
                progressed=each.failed.progressed,
                alone=each.alone,
            )
            for each in retried
        ]
        priced: dict[str, SessionEnd] = {}

        def decide(state: JobRunState) -> Sequence[AboutSession]:
            """Without what an earlier call has written whose answer was lost."""
            open_ends = {each: end for each, end in ends.items() if state.sessions[each].end is None}
            priced.clear()
            priced.update((each, with_cost(end, state.sessions[each], at_ms)) for each, end in open_ends.items())
            ended = [
                SessionEnded(epoch=self._claim.epoch, session_id=session_id, end=end, at_ms=at_ms)
                for session_id, end in priced.items()
            ]
            return [*ended, *(each for each in retries if state.sessions[each.session_id].in_flight is not None)]

        self._claim.write(decide)
        self._publisher.news(self._job_run_id)
        for end in priced.values():
            self._listeners.meter.session_ended(end)
        for each in retried:
            self._listeners.meter.session_retried(each.failed.error_kind)

    def ended(self, logs: Mapping[str, SessionLog]) -> None:
        for session_id, log in logs.items():
            self._publisher.attempt_ended(self._job_run_id, session_id, log)
            self._listeners.tables.moved(self._job_run_id, session_id)
            self._listeners.meter.session_left(self._job_run_id, session_id)

    def _planned(self, member: BundleMember, bundle_id: str, state: JobRunState) -> list[SessionPlanned]:
        """The member's plan, if the plan or the bundle differs from the previous one."""
        planned = planned_action(self._claim.epoch, member.attempt, member.plan, bundle_id)
        before = state.sessions[_id(member)].plan
        if before is None:
            return [planned]
        changes = (*plan_changes(before, planned), "in another Spark job, with other sessions")
        return [planned.model_copy(update={"changes": changes})]

    def _write(self, actions: Iterable[AboutSession]) -> None:
        written = list(actions)
        self._claim.write(lambda _: written)
        self._publisher.news(self._job_run_id)


def _id(member: BundleMember) -> str:
    return member.plan.spec.session_id
