"""The `LaunchJournal` of a dispatcher: records sessions in the job-run log, under the claim, and notifies listeners."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING

from compactor.events.relay import SessionSubject, Subject, heartbeat_event
from compactor.events.types import bounded
from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import Heartbeat, SessionLog
from dispatcher.outbox.event_publisher import EventPublisher
from dispatcher.outbox.table_publications import TablePublications
from dispatcher.outbox.workflow_callbacks import WorkflowAnswers
from dispatcher.records.claims import Claim
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.metrics_samples import Metrics
from dispatcher.records.outcome import with_cost
from dispatcher.records.sessions import (
    AboutSession,
    LaunchCharged,
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionPlanned,
    SessionRetried,
    SessionStalled,
)
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.leases import LaunchGate
from launcher.launch_journal import Launch, Member, Retried
from launcher.outcomes import Failed, SessionEnd, Succeeded, level_of
from launcher.plan import plan_changes
from launcher.spark_job import ClusterReference


@dataclass(frozen=True)
class Listeners:
    """What learns of the progress of job runs. Thread-safe: each has its own thread, or none."""

    publisher: EventPublisher
    answers: WorkflowAnswers
    metrics: Metrics
    tables: TablePublications

    def session_progressed(self, job_run_id: str, session_id: str) -> None:
        """The session was planned or launched, has written to its log, or has a new heartbeat."""
        self.answers.progressed(WorkId.parse(job_run_id).job_run_id)
        self.metrics.session_progressed(job_run_id, session_id)
        self.tables.notify(job_run_id, session_id)

    def leave(self, job_run_id: str) -> None:
        """Another dispatcher continues it."""
        self.publisher.leave(job_run_id)
        self.tables.leave(job_run_id)
        self.answers.leave(job_run_id)  # a shard has no waiters: its holder leaves those of the job run


class ClaimJournal:
    """The journal of sessions of one job run. Writes raise `Fenced` once the claim is lost."""

    def __init__(
        self,
        claim: Claim,
        job_run_id: str,
        about: Subject,
        listeners: Listeners,
        gate: LaunchGate,
        clock: Clock,
        *,
        heartbeat_event_seconds: float,
        logs_each: bool,
    ) -> None:
        """
        Args:
            job_run_id: of the job run, or the name of the shard
            about: of the job run, for its events
            logs_each: log lines tell the end of each session, not only their number"""
        self._claim = claim
        self._job_run_id = job_run_id
        self._about = about
        self._listeners = listeners
        self._publisher = listeners.publisher
        self._gate = gate
        self._heartbeat_event_seconds = heartbeat_event_seconds
        self._clock = clock
        self._logs_each = logs_each
        self._published_at_seconds: float | None = None

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        return self._gate.wait_seconds(cluster)

    def planned(self, launch: Launch) -> None:
        self._write(launch, lambda member, state: self._planned(launch, member, state))

    def launching(self, launch: Launch, place: str) -> None:
        LOG.info(_event(launch, "planned"), **_whose(launch), **_planned_figures(launch))
        at_ms = self._clock.now_ms()

        def actions(member: Member, state: JobRunState) -> list[AboutSession]:
            launching = SessionLaunching(
                epoch=self._claim.epoch,
                session_id=member.session_id,
                attempt=member.attempt,
                at_ms=at_ms,
                name=launch.name,
                place=place,
                bundle=launch.bundle_id,
            )
            return [*self._planned(launch, member, state), launching]

        self._write(launch, actions)

    def launched(self, launch: Launch, cluster: str, reference: ClusterReference) -> None:
        LOG.info(_event(launch, "launched"), **_whose(launch), cluster=cluster)

        def actions(member: Member, _: JobRunState) -> list[AboutSession]:
            launched = SessionLaunched(
                epoch=self._claim.epoch,
                session_id=member.session_id,
                attempt=member.attempt,
                cluster=cluster,
                reference=reference,
                bundle=launch.bundle_id,
            )
            return [launched]

        self._write(launch, actions)

    def is_in_flight(self, launch: Launch) -> bool:
        sessions = self._claim.log.load().state.sessions
        found = [(member, sessions[member.session_id]) for member in launch.members.values()]
        return any(
            session.in_flight is not None
            and session.bundle == launch.bundle_id
            and (session.in_flight.attempt == member.attempt)
            for member, session in found
        )

    def attached(self, launch: Launch, cluster: str) -> None:
        LOG.info(_event(launch, "attached"), **_whose(launch), cluster=cluster)
        self.progressed(launch.members.values())

    def progressed(self, members: Collection[Member], heartbeat: Heartbeat | None = None) -> None:
        for member in members:
            self._listeners.session_progressed(self._job_run_id, member.session_id)
            if heartbeat is not None and self._heartbeat_is_due():
                about = SessionSubject(self._about, member.session_id, member.plan.spec.partition)
                log_id = SessionFolder(self._about.job_run_id, member.session_id).log
                self._publisher.show_progress(self._job_run_id, heartbeat_event(about, log_id, heartbeat))

    def session_read(self, member: Member, log: SessionLog) -> None:
        self._publisher.notify(self._job_run_id, member.session_id, log)
        self._listeners.tables.notify(self._job_run_id, member.session_id)

    def stalled(self, launch: Launch, members: Collection[Member], quiet_seconds: float) -> None:
        LOG.warning(_event(launch, "stalled"), **_whose(launch), quiet_seconds=quiet_seconds)
        stalled = [
            SessionStalled(
                epoch=self._claim.epoch,
                session_id=member.session_id,
                attempt=member.attempt,
                quiet_seconds=quiet_seconds,
            )
            for member in members
        ]
        self._claim.write(lambda _: stalled)

    def charged(self, launch: Launch, use: ClusterUse) -> None:
        LOG.info(_event(launch, "charged"), **_whose(launch), usd=round(use.usd, 4))
        charged = LaunchCharged(epoch=self._claim.epoch, name=launch.name, sessions=launch.size, use=use)
        self._claim.write(lambda _: [charged])

    def settled(self, ends: Mapping[str, SessionEnd], retried: Sequence[Retried], at_ms: int) -> None:
        self._log_settled(ends, retried)
        priced: dict[str, SessionEnd] = {}
        attempts: dict[str, int] = {}

        def decide(state: JobRunState) -> Sequence[AboutSession]:
            """Without what an earlier call has written whose answer was lost."""
            priced.clear()
            attempts.update((session_id, state.sessions[session_id].attempt) for session_id in ends)
            priced.update(
                (session_id, with_cost(end, state.sessions[session_id], at_ms))
                for session_id, end in ends.items()
                if state.sessions[session_id].end is None
            )
            ended = [
                SessionEnded(epoch=self._claim.epoch, session_id=session_id, end=end, at_ms=at_ms)
                for session_id, end in priced.items()
            ]
            due = [each for each in retried if not each.was_launched or _is_in_flight(each, state)]
            return [*ended, *(self._retried(each, at_ms) for each in due)]

        self._claim.write(decide)
        for session_id, end in priced.items():
            self._listeners.metrics.session_ended(end, attempts[session_id])
            self._listeners.tables.notify(self._job_run_id, session_id)
        for each in retried:
            self._listeners.metrics.session_retried(each.failed.error_kind)

    def attempts_ended(self, session_ids: Collection[str]) -> None:
        for session_id in session_ids:
            self._listeners.metrics.session_left(self._job_run_id, session_id)
            self._publisher.attempt_ended(self._job_run_id, session_id)

    def _write(self, launch: Launch, actions: Callable[[Member, JobRunState], Sequence[AboutSession]]) -> None:
        """In one entry the actions of each member."""
        members = launch.members.values()
        self._claim.write(lambda state: [action for member in members for action in actions(member, state)])
        self.progressed(members)

    def _planned(self, launch: Launch, member: Member, state: JobRunState) -> list[SessionPlanned]:
        """The plan, if it or the bundle differs from the previous one."""
        planned = SessionPlanned.from_facts(member, member.plan, epoch=self._claim.epoch, bundle=launch.bundle_id)
        before = state.sessions[member.session_id].plan
        if before is None:
            return [planned]
        changes = plan_changes(before, planned)
        if before.bundle != launch.bundle_id:
            alone = launch.bundle_id is None
            changes += ("in a Spark job of its own" if alone else "in another Spark job, with other sessions",)
        return [planned.model_copy(update={"changes": changes})] if changes else []

    def _retried(self, retried: Retried, at_ms: int) -> SessionRetried:
        failed = retried.failed
        return SessionRetried.from_facts(retried, failed, epoch=self._claim.epoch, failed_at_ms=at_ms)

    def _heartbeat_is_due(self) -> bool:
        now_seconds = self._clock.monotonic_seconds()
        published_at_seconds = self._published_at_seconds
        if published_at_seconds is not None and now_seconds - published_at_seconds < self._heartbeat_event_seconds:
            return False
        self._published_at_seconds = now_seconds
        return True

    def _log_settled(self, ends: Mapping[str, SessionEnd], retried: Sequence[Retried]) -> None:
        if self._logs_each:
            for end in ends.values():
                LOG.log(level_of(end.end), "session_ended", end=end.end, **_figures(end))
            for each in retried:
                kind, reasons = each.failed.error_kind, "; ".join(each.failed.reasons)
                LOG.warning("session_retried", attempt=each.attempt, error_kind=kind, reasons=reasons)
            return
        counts = dict(Counter[str](end.end for end in ends.values()))
        why = bounded([f"{each}: {'; '.join(end.reasons)}" for each, end in ends.items() if isinstance(end, Failed)])
        level = max([WARNING if retried else INFO, *(level_of(end) for end in counts)])
        LOG.log(
            level, "sessions_settled", **counts, retried=len(retried), **({"reasons": "; ".join(why)} if why else {})
        )


def _figures(end: SessionEnd) -> dict[str, object]:
    match end:
        case Failed():
            return {"attempt": end.attempt, "error_kind": end.error_kind, "reasons": "; ".join(end.reasons)}
        case Succeeded(result=result):
            return {"rounds": result.rounds, "seconds": round(result.seconds, 3)}
        case _:
            return {}


def _event(launch: Launch, what: str) -> str:
    """The name of a log line: `session_launched`, `bundle_launched`."""
    return f"{'session' if launch.bundle_id is None else 'bundle'}_{what}"


def _whose(launch: Launch) -> dict[str, object]:
    if launch.bundle_id is None:
        return {"attempt": launch.members[0].attempt}
    return {"bundle_id": launch.bundle_id, "sessions": len(launch.members)}


def _planned_figures(launch: Launch) -> dict[str, object]:
    longest = max(member.plan.expected_sla for member in launch.members.values())
    figures: dict[str, object] = {"expected_sla": round(longest, 1)}
    if launch.bundle_id is None:
        plan = launch.any_plan
        figures |= {"hash_bucket_count": plan.hash_bucket_count, "tasks": plan.tasks}
        figures |= {"max_rows_per_round": plan.max_rows_per_round}
    return figures


def _is_in_flight(retried: Retried, state: JobRunState) -> bool:
    in_flight = state.sessions[retried.session_id].in_flight
    return in_flight is not None and in_flight.attempt < retried.attempt
