"""One Spark job for one session or for many: launched or found again, polled until each session is settled, then ended.

**The order of durable writes** around a launch. A dispatcher may die between any two of them:

    1  the plan: of the attempt beside its session log, of a bundle in a folder of its own
    2  `SessionPlanned` and `SessionLaunching` of each session, with number, name and place, in one entry of the
       job-run log
    3  the launch itself
    4  `SessionLaunched` of each session with the reference, in one entry of the job-run log
    5  what the job writes: session logs, heartbeat, commits
    6  the job is asked to stop, if it has not ended; `LaunchCharged`: what its nodes ran, if its cluster knows it
    7  `SessionRetried` or `SessionEnded`, in the job-run log; of sessions that end while others run, before 6

| the last thing done | who takes over |
|---|---|
| 1 | plans anew; the number is left unused if the plan differs |
| 2 | looks for the name at the place: nothing is there, it was never launched, the next number is used |
| 3 | finds the job by its name, and writes 4 |
| 4, 5 | attaches by the reference, and polls |
| 6 | attaches, comes to the same verdict, asks and charges again |
| 7 | has nothing to look for, if it is written for each session |

| a call | fails before | its answer is lost | never answers |
|---|---|---|---|
| 2, 4, 7 | nothing is written | the log knows its own entry again | after its time-out as a lost answer |
| 3 | `NotLaunched`: a failed attempt | the job is found by its name | the same, once the client gives up |
| status | counts as running: the logs decide | the same | the same, until the stall time |
| 6 | `Unavailable`: it keeps running, and is attached to again | asked a second time | it ends by itself |

A number is used for one launch, and a name follows from the number: so no attempt is launched twice. A dispatcher that
stood still between 2 and 3 launches what its successor did not find: 4 is refused then, and the job is stopped, unless
the job-run log still has it in flight. Otherwise only cancelled, stalled and ended jobs are stopped. A drain, a lost
claim and a state that does not answer leave the job running; a job that the next dispatcher cannot attach to is watched
by its logs and its heartbeat, until it ends there or has made no progress for the stall time. A job in a worker is
stopped in all of these cases: no other dispatcher can watch it, and one that hangs would hold its worker for ever.

Session logs and heartbeats are the Spark job's; they are only read here, except for commits of an attempt that died.

**A session alone and a bundle differ in what shows progress** (`launcher/progress.py`), and whom a failure concerns:

| a member of a bundle                                      | then                                        |
|-----------------------------------------------------------|---------------------------------------------|
| failed, stalled, or ran when the Spark job crashed        | is tried again alone                        |
| found a service away, or was overtaken                    | is tried again, in a bundle                 |
| had not begun when the Spark job ended, others had        | runs in the next bundle: it had no failure  |
| had not begun, nor had any other                          | tried again, in a bundle: the launch failed |
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, assert_never

from compactor.log_context import LOG
from compactor.model.clock import Clock, chance
from compactor.model.errors import AnotherTry, Conflict, Denied, ErrorKind, Fenced, Invalid, LithifyError, Unavailable
from compactor.model.retries import Backoff
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.own_errors import NONE_SEEN, PlaceFactors
from compactor.planning.session_streams import Commit
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.sessions.bundle import UnloggedEnd
from compactor.sessions.session_journal import SessionJournal
from compactor.sessions.session_log import SessionFailed, SessionLogState, SessionSucceeded
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import with_region
from launcher.clusters import Cluster, RunningSparkJob, use_of
from launcher.clusters.workers import KIND as WORKER
from launcher.launch_journal import AttemptFailed, Launch, LaunchJournal, Retried
from launcher.outcomes import Cancelled, Failed, SessionEnd, Succeeded
from launcher.plan import Room
from launcher.poller import Poller
from launcher.progress import SessionLogs, folder_of, progress_of
from launcher.retrying import FailureCounts, GiveUp, RetryPolicy, TryAgain, what_follows
from launcher.spark_job import (
    ClusterReference,
    JobFailed,
    JobRunning,
    JobStatus,
    JobSucceeded,
    JobVanished,
    NoCapacity,
    NotLaunched,
    OutOfReach,
    SparkJob,
)
from launcher.verdict import Ended, Gone, Observation, Stalled, Wait, WatchTimers, judge

STOP_POLLS = Backoff(first_seconds=0.05, longest_seconds=5.0)
"""Pauses between two reads of a job's status that was asked to end: a process ends within a moment, a cluster takes a
minute, and each status is a request."""


class SessionCommand(Enum):
    RUN = "run"
    CANCEL = "cancel"
    STOP = "stop"
    """Stop their Spark job; the sessions may continue later."""
    LEAVE = "leave"
    """Stop watching them; their Spark job continues."""


class LeftOpen(Enum):
    """The state of sessions that have not ended and are not to run again here."""

    NONE = "none"
    """There are none."""
    RUNNING = "running"
    """Their Spark job may still run, to be attached."""
    STOPPED = "stopped"
    """Nothing of them runs; they may continue later."""


@dataclass(frozen=True)
class RunAgain:
    """A session that has not ended: it may run again after `seconds`."""

    session_id: str
    seconds: float = 0.0
    alone: bool = False
    on_spark: bool = False
    """It does not fit the workers."""


@dataclass(frozen=True)
class Control:
    """By whom sessions are run.

    Attributes:
        requeue: receives sessions that are to run again, or in another way
        open_sessions: the number of sessions of the job run that have not ended"""

    journal: LaunchJournal
    command: Callable[[], SessionCommand]
    requeue: Callable[[Sequence[RunAgain]], None]
    open_sessions: Callable[[], int] = lambda: 1


class ClusterStarts(Protocol):
    """What is known of a place's own launches: the time that they take to start, and how far sessions are off."""

    def observed(self, start_seconds: float | None, factors: PlaceFactors) -> None:
        """
        Args:
            start_seconds: of a cluster that was launched, to the first sign of its job; elsewhere what a session took
                beside its work
            factors: of a session, if one has ended"""

    def applied(self, room: Room) -> Room:
        """The settings with what is expected by them."""


class WarmStarts:
    """A `ClusterStarts` of workers, which are warm: nothing is to be learned of their start. What their last sessions
    say of the next ones is of this machine, and is forgotten with this process."""

    def __init__(self) -> None:
        self._factors = NONE_SEEN

    def observed(self, start_seconds: float | None, factors: PlaceFactors) -> None:
        self._factors = self._factors.then(factors)

    def applied(self, room: Room) -> Room:
        return replace(room, place_factors=self._factors)


@dataclass(frozen=True)
class LaunchDependencies:
    """
    Attributes:
        commits: commits of a session so far
        poller: shared by all launches of a dispatcher"""

    store: ObjectStore
    cluster: Cluster
    commits: Callable[[SessionSpec], Sequence[Commit]]
    poller: Poller
    timers: WatchTimers
    retry: RetryPolicy
    clock: Clock
    starts: ClusterStarts = field(default_factory=WarmStarts)

    def room(self) -> Room:
        """The resources of one session, or the settings of its cluster."""
        return self.starts.applied(self.cluster.resources())


class Settlement:
    """Outcomes of attempts, for one entry of the job-run log."""

    def __init__(self, retry: RetryPolicy, clock: Clock) -> None:
        self._retry = retry
        self._chance = chance(clock)
        self._at_ms = clock.now_ms()
        self.ends: dict[str, SessionEnd] = {}
        self._retried: list[Retried] = []
        self.reruns: list[RunAgain] = []

    def add_failed(
        self,
        session_id: str,
        attempt: int,
        failure_counts: FailureCounts,
        failed: AttemptFailed,
        *,
        was_launched: bool = True,
        blames_session: bool = False,
    ) -> None:
        """`blames_session`: the failure may be its own, and is kept from others. A service is away for all of them."""
        failure_counts = failure_counts.after(failed.error_kind, self._at_ms, progressed=failed.progressed)
        match what_follows(failed.error_kind, failure_counts, self._at_ms, self._retry, self._chance):
            case GiveUp(why):
                reasons = failed.reasons if why is None else (*failed.reasons, why)
                self.ends[session_id] = Failed(attempt=attempt, error_kind=failed.error_kind, reasons=reasons)
            case TryAgain(seconds):
                alone = blames_session and failed.error_kind.another_try is AnotherTry.A_FEW_TIMES
                self._retried.append(Retried(session_id, attempt + 1, failed, alone, was_launched))
                self.reruns.append(RunAgain(session_id, seconds, alone))

    def write(self, journal: LaunchJournal) -> None:
        if self.ends or self._retried:
            journal.settled(self.ends, self._retried, self._at_ms)


class JobOutOfReach:
    """A `RunningSparkJob` that cannot be observed or stopped from here."""

    description = "out of reach of this dispatcher"
    reference = ClusterReference(kind="out of reach", ids={})

    def status(self) -> JobStatus:
        return OutOfReach()

    def stop(self) -> None:
        """It stops when a later attempt has begun, which supersedes it."""


# ---------------------------------------------------------------------------------------------- the launch


class LaunchRun:
    """A launch that this dispatcher watches."""

    def __init__(self, launch: Launch, dependencies: LaunchDependencies, control: Control) -> None:
        self._launch = launch
        self._dependencies = dependencies
        self._store = dependencies.store
        self._clock = dependencies.clock
        self._journal = control.journal
        self._command = control.command
        cluster = launch.any_plan.cluster
        timers = dependencies.timers
        self._timers = timers if cluster is None else timers.after_cluster_start(cluster.start_seconds)
        self._open = dict(launch.members)
        self._reruns: list[RunAgain] = []
        self._launched_at_seconds: float | None = None
        self._progressed_at_seconds = self._clock.monotonic_seconds()
        self._waits_for_start = cluster is not None
        self._logs = SessionLogs(self._store, self._journal, self._clock)
        self._progress = progress_of(launch, self._logs, self._store, self._journal)

    @property
    def reruns(self) -> tuple[RunAgain, ...]:
        """Sessions that are to run again, after a failure."""
        return tuple(self._reruns)

    @property
    def not_settled(self) -> tuple[str, ...]:
        """Sessions that have neither ended nor failed."""
        return tuple(member.session_id for member in self._open.values())

    def launch(self, resources: Resources, cluster_plan: ClusterPlan | None) -> RunningSparkJob | None:
        """Writes 2 to 4 of the order above. None: it was not launched, and its sessions are settled. Raises
        `Unavailable` if it is unknown whether it was launched."""
        launch, cluster = self._launch, self._dependencies.cluster
        self._journal.launching(launch, cluster.place)
        self._launched_at_seconds = self._progressed_at_seconds = self._clock.monotonic_seconds()
        attempt = launch.members[0].attempt if launch.bundle_id is None else 1
        state = with_region(self._store.location)
        job = SparkJob(launch.name, state, launch.plan_key, attempt, resources, self._clock.now_ms())
        launched = launch_once(cluster, job, cluster_plan)
        if isinstance(launched, AttemptFailed):
            self._settle(dict.fromkeys(self._open, launched), blames_sessions=False)
            return None
        reference, running = launched
        try:
            self._journal.launched(launch, running.description, reference)
        except (Fenced, Unavailable, Conflict) as error:
            is_lost = isinstance(error, Fenced) and not self._journal.is_in_flight(launch)
            if is_lost or _is_watched_here_only(running):  # else another dispatcher watches it, now or later
                running.stop()
            raise
        return running

    def watch(self, job: RunningSparkJob) -> LeftOpen:
        """Polls until no session is open, or until a command ends it.

        Raises `Fenced` if another dispatcher has the job run, `Unavailable` if the state cannot be read for longer than
        a stall, or the job cannot be stopped now: it keeps running then. In all other cases it has ended afterwards,
        unless it is out of reach.
        """
        left_open: list[LeftOpen] = []
        status_is_free = self._dependencies.cluster.status_is_free

        def poll(log_is_due: bool) -> bool:
            found = self._poll(job, reads_status=status_is_free or log_is_due, log_is_due=log_is_due)
            left_open.extend(() if found is None else (found,))
            return found is not None

        try:
            self._dependencies.poller.until_done(poll, is_new=self._launched_at_seconds is not None)
        except (Fenced, Unavailable, Conflict):
            if _is_watched_here_only(job):
                self._end(job)
            raise  # another dispatcher may watch it, now or later
        except Exception:
            self._end(job)  # nobody would watch it
            raise
        return left_open[0]

    def settle_vanished(self) -> None:
        """The job has ended, and its end was not observed: settles the sessions that have ended in their logs."""
        self._settle_the_rest(None)

    # -- polling

    def _poll(self, job: RunningSparkJob, *, reads_status: bool, log_is_due: bool) -> LeftOpen | None:
        stopped = self._command()
        if stopped is not SessionCommand.RUN:
            return self._stop(stopped, job)
        status = self._status(job) if reads_status else JobRunning()
        if isinstance(status, JobRunning) and not log_is_due:
            return None
        if not self._observe(job):
            return None
        has_ended = self._open.keys() <= self._progress.ended.keys()
        verdict = judge(Observation(status, self._progress.has_begun, has_ended, self._quiet_seconds()), self._timers)
        match verdict:
            case Wait():
                return None
            case Ended():
                self._end_and_charge(job)
                self._settle_ended()
            case Gone(gone):
                self._end_and_charge(job)  # its children may have outlived it
                self._settle_the_rest(_reason_of_end(gone))
            case Stalled() if isinstance(status, OutOfReach):
                self._settle_the_rest(None)
            case Stalled(quiet_seconds, begun):
                symptom = "made no progress" if begun else "did not start"
                stalled = (ErrorKind.STALLED, f"{symptom} for {quiet_seconds:.0f} seconds")
                self._settle_the_rest(stalled, job, quiet_seconds)
            case _:
                assert_never(verdict)
        return LeftOpen.NONE

    def _status(self, job: RunningSparkJob) -> JobStatus:
        try:
            return job.status()
        except Unavailable as error:
            LOG.warning("spark_job_not_visible", name=self._launch.name, reason=str(error))
            return JobRunning()  # as its logs say, then

    def _observe(self, job: RunningSparkJob) -> bool:
        """Reads what shows progress, and settles sessions that have ended while others run. False: the state does not
        answer now, and the job may be well: there is no verdict then, until the stall time has passed."""
        try:
            if self._progress.read(self._open):
                self._progressed_at_seconds = self._clock.monotonic_seconds()
                self._note_start()
            if self._open.keys() - self._progress.ended:
                self._settle_ended()
        except Unavailable as error:
            if self._quiet_seconds() > self._timers.stall_seconds:
                raise
            LOG.warning("progress_not_visible", name=self._launch.name, reason=str(error))
            return False
        except Fenced:
            if self._launch.bundle_id is None:
                self._end(job)  # it is superseded; other members of a bundle may be watched by another dispatcher
            raise
        return True

    def _note_start(self) -> None:
        """Once, of a cluster that this dispatcher launched."""
        if self._waits_for_start and self._progress.has_begun and self._launched_at_seconds is not None:
            self._waits_for_start = False
            self._dependencies.starts.observed(self._progressed_at_seconds - self._launched_at_seconds, NONE_SEEN)

    def _quiet_seconds(self) -> float:
        return self._clock.monotonic_seconds() - self._progressed_at_seconds

    def _stop(self, stopped: SessionCommand, job: RunningSparkJob) -> LeftOpen:
        """Those that succeeded are settled. Others end if cancelled; else the next dispatcher continues."""
        is_cancelled = stopped is SessionCommand.CANCEL
        if stopped is SessionCommand.LEAVE or (isinstance(job, JobOutOfReach) and not is_cancelled):
            if _is_watched_here_only(job):
                self._end(job)
            return LeftOpen.RUNNING
        self._end_and_charge(job)
        states = self._logs.read_all(self._open)
        succeeded = {number: succeeded_in(state) for number, state in states.items()}
        self._settle({number: end for number, end in succeeded.items() if end is not None})
        self._with_commits({number: states[number] for number in self._open})
        if not is_cancelled:
            return LeftOpen.STOPPED
        self._settle(dict.fromkeys(self._open, Cancelled()))
        return LeftOpen.NONE

    def _end(self, job: RunningSparkJob) -> None:
        end_job(job, self._timers, self._clock)

    def _end_and_charge(self, job: RunningSparkJob) -> None:
        """What its nodes ran is charged however it ended, and to all of its sessions."""
        self._end(job)
        use = use_of(job, self._launch.any_plan.cluster)
        if use is not None:
            self._journal.charged(self._launch, use)

    # -- settling

    def _settle_ended(self) -> None:
        """Settles sessions whose end is known: by their logs, or by the bundle's heartbeat."""
        ended = {number: end for number, end in self._progress.ended.items() if number in self._open}
        states = self._with_commits({number: end.state for number, end in ended.items()})
        outcomes: dict[int, Succeeded | AttemptFailed | Cancelled] = {}
        for number, state in states.items():
            end = ended[number].unlogged or UnloggedEnd(error_kind=ErrorKind.CRASHED, reason="left no end in its log")
            reason = f"attempt {self._open[number].attempt}: {end.reason}"
            outcomes[number] = self._logged_outcome(number, state) or self._failed(
                number, state, end.error_kind, reason
            )
        self._settle(outcomes)

    def _settle_the_rest(
        self,
        why: tuple[ErrorKind, str] | None,
        stalled: RunningSparkJob | None = None,
        quiet_seconds: float = 0.0,
    ) -> None:
        """The Spark job has ended, or is `stalled` and ended here. A failure is attributed to running members of a
        bundle, not to members that had not begun.

        Args:
            why: the kind of the failure and its reason; None: the end was not observed, and nothing is attributed"""
        states = self._logs.read_all(self._open)
        open_states = {number: each for number, each in states.items() if self._logged_outcome(number, each) is None}
        begun = [number for number, state in open_states.items() if state.attempt == self._open[number].attempt]
        none_begun = not begun and len(open_states) == self._launch.size
        blamed: Collection[int] = () if why is None else open_states.keys() if none_begun else begun
        if stalled is not None:
            if blamed:
                self._journal.stalled(self._launch, [self._open[number] for number in blamed], quiet_seconds)
            self._end_and_charge(stalled)
        outcomes: dict[int, Succeeded | AttemptFailed | Cancelled] = {}
        for number, state in self._with_commits(states).items():
            outcome = self._logged_outcome(number, state)
            if outcome is None and why is not None and number in blamed:
                reason = f"{self._launch.subject(self._open[number].attempt)} {why[1]}"
                outcome = self._failed(number, state, why[0], reason)
            if outcome is not None:
                outcomes[number] = outcome
        self._settle(outcomes, blames_sessions=not none_begun)

    def _logged_outcome(self, number: int, state: SessionLogState) -> Succeeded | AttemptFailed | None:
        """By the session log; None: it has not ended there."""
        end = state.end
        if isinstance(end, SessionFailed) and end.attempt == self._open[number].attempt:
            return self._failed(number, state, end.error_kind, *end.reasons)
        return succeeded_in(state)  # of any attempt

    def _failed(self, number: int, state: SessionLogState, error_kind: ErrorKind, *reasons: str) -> AttemptFailed:
        attempt = self._open[number].attempt
        return AttemptFailed(error_kind, reasons, any(each.attempt == attempt for each in state.rounds_done))

    def _settle(
        self, outcomes: Mapping[int, Succeeded | AttemptFailed | Cancelled], *, blames_sessions: bool = True
    ) -> None:
        """Writes 7 for these sessions, in one entry."""
        if not outcomes:
            return
        settlement = Settlement(self._dependencies.retry, self._clock)
        for number, outcome in outcomes.items():
            member = self._open[number]
            if isinstance(outcome, AttemptFailed):
                blames = blames_sessions and self._launch.bundle_id is not None
                settlement.add_failed(
                    member.session_id, member.attempt, member.failure_counts, outcome, blames_session=blames
                )
            else:
                settlement.ends[member.session_id] = timed = self._timed(outcome)
                self._note_seconds(member.plan, timed)
        settlement.write(self._journal)
        self._reruns += settlement.reruns
        self._journal.attempts_ended([self._open.pop(number).session_id for number in outcomes])
        self._logs.forget(outcomes)

    def _timed(self, end: Succeeded | Cancelled) -> Succeeded | Cancelled:
        """With the time measured here, from the launch; the job itself can only estimate its launch."""
        if isinstance(end, Cancelled) or self._launched_at_seconds is None:
            return end
        seconds = self._clock.monotonic_seconds() - self._launched_at_seconds
        return end.model_copy(update={"result": end.result.model_copy(update={"seconds": seconds})})

    def _note_seconds(self, plan: SessionPlan, end: Succeeded | Cancelled) -> None:
        """Of a session alone, launched by this dispatcher, that ran without a break."""
        is_alone = self._launch.bundle_id is None and self._launched_at_seconds is not None
        if is_alone and isinstance(end, Succeeded) and end.result.work_seconds is not None:
            beside_seconds = max(end.result.seconds - end.result.work_seconds, 0.0)
            start_seconds = None if plan.cluster is not None else beside_seconds
            took = PlaceFactors.of_session(plan.plain_work_seconds, plan.work_seconds, end.result.work_seconds)
            self._dependencies.starts.observed(start_seconds, took)

    def _with_commits(self, states: Mapping[int, SessionLogState]) -> dict[int, SessionLogState]:
        """Logs commits that attempts may not have logged, because there may be no later attempt to do it. Returns the
        states after that. Their process has ended, or is about to be superseded, so they have no other writer. Failed
        members of a bundle have logged theirs before their ends."""
        numbers = [number for number, state in states.items() if self._may_lack_commits(number, state)]

        def log_commits(number: int) -> None:
            member, clock = self._open[number], self._clock
            spec = member.plan.spec
            try:
                commits = self._dependencies.commits(spec)
                SessionJournal(self._store, folder_of(spec), member.attempt, clock).found(commits)
            except LithifyError as error:
                LOG.warning("commits_not_logged", session_id=spec.session_id, attempt=member.attempt, reason=str(error))

        run_concurrently(self._store.location, log_commits, numbers)
        return {**states, **self._logs.read_all({number: self._open[number] for number in numbers})}

    def _may_lack_commits(self, number: int, state: SessionLogState) -> bool:
        if self._launch.bundle_id is None:
            return not isinstance(state.end, SessionSucceeded)
        return state.attempt > 0 and self._logged_outcome(number, state) is None


def _is_watched_here_only(job: RunningSparkJob) -> bool:
    """Whether no other dispatcher can attach to it."""
    return job.reference.kind == WORKER


def end_job(job: RunningSparkJob, timers: WatchTimers, clock: Clock) -> None:
    """Requests the end of a job and waits for it; repeats the request if it takes too long."""
    until_seconds = clock.monotonic_seconds() + timers.exit_seconds
    polls = 0
    job.stop()
    while isinstance(job.status(), JobRunning):
        if clock.monotonic_seconds() > until_seconds:
            LOG.warning("spark_job_does_not_end", cluster=job.description)
            return job.stop()
        polls += 1
        clock.sleep(STOP_POLLS.seconds(polls))
    return None


def launch_once(
    cluster: Cluster, job: SparkJob, cluster_plan: ClusterPlan | None
) -> tuple[ClusterReference, RunningSparkJob] | AttemptFailed:
    """Launches an observable job. Raises `Unavailable` if it is unknown whether it was launched."""
    try:
        reference = cluster.launch(job, cluster_plan)
    except (Invalid, Denied, NotLaunched) as error:
        return AttemptFailed(error.kind, error.reasons)
    except Unavailable as error:
        found = cluster.find(job.name)  # perhaps only the answer was lost
        if found is None:
            return AttemptFailed(error.kind, error.reasons)
        reference = found
    running = cluster.attach(reference)
    if running is None:
        raise Unavailable(f"what was just launched as {job.name} cannot be seen")
    return reference, running


def succeeded_in(state: SessionLogState) -> Succeeded | None:
    """The end of a session by its log; None: it has not succeeded."""
    if not isinstance(state.end, SessionSucceeded):
        return None
    return Succeeded(result=state.end.result)


def _reason_of_end(status: JobSucceeded | JobFailed | NoCapacity | JobVanished) -> tuple[ErrorKind, str]:
    """Of a job that ended before its sessions, from its cluster."""
    match status:
        case JobSucceeded():
            return ErrorKind.CRASHED, "exited with code 0, and there is an end missing in the session log"
        case JobFailed(error_kind, reason):
            return error_kind, reason
        case NoCapacity(reason):
            return ErrorKind.UNAVAILABLE, reason
        case JobVanished(reason):
            return ErrorKind.CRASHED, reason
        case _:
            assert_never(status)
