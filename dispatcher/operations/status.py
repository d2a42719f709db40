"""The status of job runs for people: folds of the logs, and the heartbeats. Reads only."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from pydantic import Field

from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Invalid, LithifyError, Outdated, Unavailable
from compactor.planning.cluster_plan import Cost
from compactor.planning.spec import Partition
from compactor.planning.time_model import SLA_BUFFER, SLA_BUFFER_SECONDS_MIN
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import Heartbeat, SessionLogState
from compactor.storage.concurrently import run_concurrently
from dispatcher.operations.waits import Waits, for_money
from dispatcher.records.history import EndedJobRun
from dispatcher.records.job_run_log import JobRunAccepted, JobRunState, JobRunStatus, ShardsState
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.outcome import (
    expected_cost,
    expected_sla,
    expected_usd,
    paused_seconds,
    seconds_late,
    session_cost,
    used_usd,
)
from dispatcher.records.sessions import SessionPlanned, SessionState
from launcher.outcomes import Cancelled, Failed, NothingToDo, SessionEnd, Succeeded

UNREADABLE = "unreadable"
"""The status of a job run whose log this release cannot read. The others are shown."""


DAY_UNREADABLE = "history of "
"""What stands in place of the job runs of a day that cannot be read begins like this."""

OPEN = (JobRunStatus.WAITING, JobRunStatus.RUNNING)

SHARD_SESSIONS_SHOWN = 10
"""Running sessions that are shown of a job run with shards."""

REJECTIONS_MAX = 10
"""The most rejections shown for one job run, the latest ones."""


class SessionView(Document):
    """One session.

    Attributes:
        seconds: from the last attempt's launch to the session's end, or to now; None: none was launched
        expected_sla: its predicted value, in seconds: once it has ended that of its plan, before as it has refined it
        eta_seconds: the rest of it; below 0 it is late
        eta_band_seconds: from what is predicted without its plan's buffer to that with twice of it
        share: of its delta rows that is compacted, 0 to 1; None: it has not begun
        rows_before: live compacted rows before its first round
        delta_rows: rows of the deltas that its rounds have read so far
        rows_out: live compacted rows after the last round so far
        expected_cost: of its cluster and its requests, as planned; None: nothing is launched for it
        cost: what it used; while it runs, its clusters so far
        reasons: why it failed; while it waits for its next attempt, why the last one failed"""

    session_id: str
    partition: Partition
    status: str
    attempt: int
    cluster: str | None
    rounds_done: int
    heartbeat: Heartbeat | None
    seconds: float | None
    expected_sla: float | None
    eta_seconds: float | None
    eta_band_seconds: tuple[float, float] | None = None
    share: float | None = None
    rows_before: int | None
    delta_rows: int | None
    rows_out: int | None
    end: SessionEnd | None
    reasons: tuple[str, ...]
    expected_cost: Cost | None = None
    cost: Cost | None = None


class ShardsView(Document):
    """Of a job run over many streams, which several dispatchers may share.

    Attributes:
        count, ended: its shards, and how many of them have ended
        sessions_done: sessions that succeeded in those
        owners: dispatchers that hold a shard now; only where one job run is asked for"""

    count: int
    ended: int
    sessions_done: int
    owners: tuple[str, ...] = ()


class RejectionView(Document):
    """A rejected document that named a job run; it is on the dead-letter queue."""

    message_id: str
    at_ms: int
    reasons: tuple[str, ...]


class JobRunView(Document):
    """One job run, or a rejected document under the id that it gave itself; without one, under its message's.

    Attributes:
        seconds: from its acceptance to its end, or to now
        paused_seconds: of these and of the expected ones, in a pause
        expected_sla: what that was predicted to take: the greatest of its sessions, each with its waiting; None: not
            known. Where its sessions are shown, as they have refined it by now
        eta_seconds: the rest of that, while it is open; below 0 it is late
        desired_sla: the requested seconds
        predecessor: the job run that this one runs again
        paused: what is paused, and why, where that keeps it from going on
        waits_for: money, its turn on a stream, or a place, while nothing of it runs; `watch` knows of money only
        waiters: workflows that waited for it, or wait
        requested_job_run_id, message_id: of a rejected document: its own id, and its message's
        rejections: documents of this id that were rejected, the latest first; only where one job run is asked for
        expected_usd: what the clusters of its sessions and their requests are expected to cost; None: it launches none
        usd: what they used so far
        finds_sessions: it may have further sessions: it finds them as it reaches their streams
        shards: with these, `sessions` are only the first of those that run"""

    job_run_id: str
    table: str | None
    destination: str | None
    status: str
    owner: str | None
    accepted_at_ms: int
    seconds: float
    expected_sla: float | None = None
    eta_seconds: float | None = None
    desired_sla: int | None = None
    predecessor: str | None = None
    cancel_requested: bool
    paused: str | None = None
    waits_for: str | None = None
    waiters: int = 0
    reasons: tuple[str, ...]
    sessions: tuple[SessionView, ...] = Field(default=())
    requested_job_run_id: str | None = None
    message_id: str | None = None
    rejections: tuple[RejectionView, ...] = ()
    expected_usd: float | None = None
    usd: float | None = None
    finds_sessions: bool = False
    shards: ShardsView | None = None
    paused_seconds: float = 0.0

    def seconds_late(self, seconds: float) -> float | None:
        """Above the desired SLA, by its actual or expected seconds; None: none was desired."""
        return seconds_late(seconds, self.paused_seconds, self.desired_sla)


def view_job_run(records: JobRunStore, job_run_id: str, clock: Clock) -> JobRunView:
    """Raises `Invalid` if there is no such job run."""
    view = find_job_run(records, job_run_id, clock, waits=Waits(records, clock))
    if view is None:
        raise Invalid(f"there is no job run {job_run_id!r} here: `lithify status` lists those there are")
    return view


def find_job_run(
    records: JobRunStore,
    job_run_id: str,
    clock: Clock,
    *,
    message_id: str | None = None,
    waits: Waits | None = None,
) -> JobRunView | None:
    """None if there is no such job run, or no dispatcher has taken its document yet.

    Rejected documents are recorded under their message's id, and found under their own, too.

    Args:
        message_id: of the message that is asked about: only its own rejection counts, not one of another document of
            this job run id; None: the latest
        waits: finds what it waits for; None: only waiting for money is shown"""
    log = records.log(job_run_id)
    state = log.load().state
    rejections = _rejections(records, job_run_id)
    answer = message_id
    if message_id is None and state.status is JobRunStatus.ABSENT and rejections:
        answer = rejections[0].message_id
    if answer is not None and answer != job_run_id:
        answering = records.log(answer)
        answered = answering.load().state
        if answered.rejected is not None:
            log, state = answering, answered
    if state.status is JobRunStatus.ABSENT:
        return None
    view = _view(job_run_id, state, log.entry(1).at_ms, clock, waits)
    if state.shards is not None:
        return _with_shards(records, view, state, state.shards, clock).model_copy(update={"rejections": rejections})
    sessions = _sessions(records, job_run_id, state.sessions.values(), clock)
    refined = {each.session_id: each.expected_sla for each in sessions if each.expected_sla is not None}
    expected = expected_sla(state, log.entry(1).at_ms, clock.now_ms(), refined)
    left = expected - view.seconds if state.status.is_open and expected and view.seconds is not None else None
    update = {"expected_sla": expected, "eta_seconds": left}
    return view.model_copy(update={"sessions": sessions, "rejections": rejections, **update})


def _rejections(records: JobRunStore, job_run_id: str) -> tuple[RejectionView, ...]:
    found = []
    for message_id in records.rejected_message_ids(job_run_id)[:REJECTIONS_MAX]:
        log = records.log(message_id)
        rejected = log.load().state.rejected
        if rejected is not None:
            found.append(RejectionView(message_id=message_id, at_ms=log.entry(1).at_ms, reasons=rejected.reasons))
    return tuple(found)


def _view(
    job_run_id: str, state: JobRunState, accepted_at_ms: int, clock: Clock, waits: Waits | None = None
) -> JobRunView:
    spec = state.accepted.spec if state.accepted is not None else None
    rejected = state.rejected
    return JobRunView(
        job_run_id=job_run_id if rejected is None else rejected.requested_job_run_id or job_run_id,
        table=spec.source_table_id if spec is not None else rejected.table if rejected is not None else None,
        destination=spec.destination_compacted_table_id if spec is not None else None,
        status=state.status,
        owner=state.claim.owner if state.claim is not None else None,
        accepted_at_ms=accepted_at_ms,
        seconds=_seconds(state, accepted_at_ms, clock),
        expected_sla=expected_sla(state, accepted_at_ms, clock.now_ms()),
        desired_sla=spec.desired_sla if spec is not None else None,
        predecessor=state.accepted.predecessor if state.accepted is not None else None,
        cancel_requested=state.cancel is not None or state.status is JobRunStatus.CANCELLED,
        paused=f"{state.paused.scope}: {state.paused.reason}" if state.paused is not None else None,
        waits_for=waits.of(state, accepted_at_ms) if waits is not None else for_money(state),
        waiters=len(state.waiters),
        reasons=_reasons(state),
        requested_job_run_id=rejected.requested_job_run_id if rejected is not None else None,
        message_id=rejected.message_id if rejected is not None else None,
        expected_usd=expected_usd(state),
        usd=used_usd(state, clock.now_ms()),
        finds_sessions=state.is_finding and state.status.is_open,
        shards=_shards(state),
        paused_seconds=paused_seconds(state, clock.now_ms()),
    )


def _shards(state: JobRunState, owners: tuple[str, ...] = ()) -> ShardsView | None:
    shards = state.shards
    if shards is None:
        return None
    ended, done = len(shards.ended), shards.outcome.sessions
    return ShardsView(count=shards.count, ended=ended, sessions_done=done, owners=owners)


def _with_shards(
    records: JobRunStore, view: JobRunView, state: JobRunState, shards: ShardsState, clock: Clock
) -> JobRunView:
    """Adds the dispatchers that hold its shards, and sessions that run: a bounded number of requests."""
    if not state.status.is_open:
        return view
    markers = {marker.work: marker.valid for marker in records.open_markers()}
    held = {
        work: mark.owner
        for work in shards.open_work(view.job_run_id)
        if (mark := markers.get(work)) is not None and mark.owner is not None
    }
    states = [records.state(work.text) for work in held]
    running = [each for found in states for each in found.open_sessions() if each.in_flight is not None]
    expected = [expected_sla(found, view.accepted_at_ms, clock.now_ms()) for found in states]
    known = [each for each in (view.expected_sla, *expected) if each is not None]
    return view.model_copy(
        update={
            "sessions": _sessions(records, view.job_run_id, running[:SHARD_SESSIONS_SHOWN], clock),
            "expected_sla": max(known, default=None),
            "shards": _shards(state, tuple(sorted(set(held.values())))),
        }
    )


def view_all(records: JobRunStore, clock: Clock, ended_max: int | None = None) -> tuple[JobRunView, ...]:
    """Every job run, the latest first, without its sessions. One whose log cannot be read says why.

    Args:
        ended_max: of those that have ended, the latest so many, and a few more; None: all of them"""
    # The markers first: what ends in between is in the history by then.
    return each_once(_outlines(records, records.open_job_run_ids(), clock), view_recorded(records, ended_max))


def each_once(*views: Iterable[JobRunView]) -> tuple[JobRunView, ...]:
    """The latest first; of a job run that is there twice, the first."""
    found: dict[str, JobRunView] = {}
    for view in chain(*views):
        found.setdefault(view.message_id or view.job_run_id, view)
    return _sorted(found.values())


def view_running_sessions(
    records: JobRunStore, job_run_id: str, clock: Clock, sessions_max: int
) -> tuple[SessionView, ...]:
    """Some of the sessions of a job run that run now: of a job run with shards those that it runs itself."""
    running = [each for each in records.state(job_run_id).open_sessions() if each.in_flight is not None]
    return _sessions(records, job_run_id, running[:sessions_max], clock)


def _outlines(records: JobRunStore, job_run_ids: Sequence[str], clock: Clock) -> list[JobRunView]:
    waits = Waits(records, clock)
    read = partial(_outlined, records, clock, waits)
    return [view for view in run_concurrently(records.store.location, read, job_run_ids) if view is not None]


def _sorted(views: Iterable[JobRunView]) -> tuple[JobRunView, ...]:
    return tuple(sorted(views, key=lambda view: (view.accepted_at_ms, view.job_run_id), reverse=True))


def view_recorded(records: JobRunStore, ended_max: int | None) -> Iterator[JobRunView]:
    """Those of the history, the latest day first. A day that cannot be read says why."""
    count = 0
    for day in records.history.read():
        if day.failure is not None:
            yield _unreadable(f"{DAY_UNREADABLE}{day.day}", day.failure)
        yield from map(view_ended, day.job_runs)
        count += len(day.job_runs)
        if ended_max is not None and count >= ended_max:
            return


def view_ended(ended: EndedJobRun) -> JobRunView:
    """As the history has it."""
    cancelled = ended.cancel_requested or ended.status == JobRunStatus.CANCELLED
    return JobRunView.from_facts(ended, job_run_id=ended.own_id, owner=None, cancel_requested=cancelled, sessions=())


def _unreadable(job_run_id: str, reason: str, accepted: JobRunAccepted | None = None, at_ms: int = 0) -> JobRunView:
    return JobRunView(
        job_run_id=job_run_id,
        table=accepted.spec.source_table_id if accepted is not None else None,
        destination=accepted.spec.destination_compacted_table_id if accepted is not None else None,
        status=UNREADABLE,
        owner=None,
        accepted_at_ms=at_ms,
        seconds=0.0,
        cancel_requested=False,
        reasons=(reason,),
    )


def _outlined(records: JobRunStore, clock: Clock, waits: Waits, job_run_id: str) -> JobRunView | None:
    try:
        outline = records.outline(job_run_id)
    except LithifyError as error:
        if isinstance(error, Unavailable) and not isinstance(error, Outdated):
            raise  # an error of the store concerns every log
        log = records.log(job_run_id)
        accepted = records.accepted_in(log)
        return _unreadable(job_run_id, str(error), accepted, log.entry(1).at_ms if accepted is not None else 0)
    return None if outline is None else _view(job_run_id, outline.state, outline.accepted_at_ms, clock, waits)


def _sessions(
    records: JobRunStore, job_run_id: str, sessions: Iterable[SessionState], clock: Clock
) -> tuple[SessionView, ...]:
    read = partial(_session, records, job_run_id, clock)
    return tuple(run_concurrently(records.store.location, read, tuple(sessions)))


def _session(records: JobRunStore, job_run_id: str, clock: Clock, session: SessionState) -> SessionView:
    folder = SessionFolder(job_run_id, session.pin.session_id)
    was_launched = session.attempt > 0  # else it has no log
    running = (
        records.session_log(job_run_id, session.pin.session_id).load().state if was_launched else SessionLogState()
    )
    expected = session.plan.expected_sla if session.plan is not None else None
    if session.end is None and running.attempt == session.attempt:  # it has begun and refined it
        expected = running.expected_sla or expected
    seconds = _since_launch(session, clock)
    counts = [each.counts for each in running.rounds_done]
    beat = _heartbeat(records, folder) if session.end is None and was_launched else None
    left = None if session.end is not None or not expected or seconds is None else expected - seconds
    return SessionView(
        session_id=session.pin.session_id,
        partition=session.pin.partition,
        status=_status(session),
        attempt=session.attempt,
        cluster=session.cluster,
        rounds_done=len(running.rounds_done),
        heartbeat=beat,
        seconds=seconds,
        expected_sla=expected,
        eta_seconds=left,
        eta_band_seconds=None if left is None or session.plan is None else _band(left, expected or 0.0, session.plan),
        share=_share(session, beat),
        rows_before=counts[0].rows_before if counts else None,
        delta_rows=sum(each.rows_in - each.rows_before for each in counts) if counts else None,
        rows_out=counts[-1].rows_out if counts else None,
        end=session.end,
        reasons=_session_reasons(session),
        expected_cost=expected_cost(session),
        cost=session_cost(session, clock.now_ms()),
    )


def _band(left: float, expected: float, plan: SessionPlanned) -> tuple[float, float]:
    """Of the seconds that are left: as far below and above as the plan's buffer reaches, which grows and shrinks with
    what is expected."""
    predicted = plan.expected_sla / SLA_BUFFER if plan.predicted_seconds is None else plan.predicted_seconds
    spread = max(expected * (1 - predicted / plan.expected_sla), SLA_BUFFER_SECONDS_MIN)
    return max(left - spread, 0.0), max(left + spread, 0.0)


def _share(session: SessionState, beat: Heartbeat | None) -> float | None:
    """The done share of a session's work, by its last heartbeat: committed rounds, and the rows that the tasks of the
    running one have reported. A round that is not committed may have to run again."""
    if session.end is not None:
        return 1.0 if isinstance(session.end, Succeeded | NothingToDo) else None
    if beat is None or beat.attempt != session.attempt:
        return None
    return beat.share_done or 0.0


def _since_launch(session: SessionState, clock: Clock) -> float | None:
    """Of the last attempt. None: there is none, or another is to follow it."""
    if session.launched_at_ms is None or (session.end is None and session.in_flight is None):
        return None
    if session.end is None:
        return max(clock.now_ms() - session.launched_at_ms, 0) / 1000
    return max(session.ended_at_ms - session.launched_at_ms, 0) / 1000 if session.ended_at_ms is not None else None


def _session_reasons(session: SessionState) -> tuple[str, ...]:
    if session.end is None:
        return session.waits_after
    return session.end.reasons if isinstance(session.end, Failed) else ()


def _status(session: SessionState) -> str:
    match session.end:
        case Succeeded() | NothingToDo() | Failed() | Cancelled():
            return session.end.end
        case None:
            return "waiting" if session.in_flight is None else "running"


def _heartbeat(records: JobRunStore, folder: SessionFolder) -> Heartbeat | None:
    body = records.store.read(folder.heartbeat.key)
    if body is None:
        return None
    try:
        return Heartbeat.parse_durable(body, folder.heartbeat.key)
    except (Corrupt, Outdated):
        return None  # a hint: the next one suffices


def _seconds(state: JobRunState, accepted_at_ms: int, clock: Clock) -> float:
    if state.ended is not None:
        return state.ended.seconds
    return 0.0 if state.rejected is not None else (clock.now_ms() - accepted_at_ms) / 1000


def _reasons(state: JobRunState) -> tuple[str, ...]:
    if state.rejected is not None:
        return state.rejected.reasons
    return state.ended.outcome.reasons if state.ended is not None else ()
