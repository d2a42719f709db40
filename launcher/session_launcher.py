"""Runs sessions of one job run: plans their next attempts, launches these, alone or together, and watches them.

    sessions --planned--> small: in a worker, one or many together --+
                 |                                                    +--> launch (`launcher/launch.py`) --> settled,
                 +------> one: in a Spark job of its own -------------+        or run again
                 +------> many: the small ones together --------------+
                                the others run again, on Spark or alone
                                nothing to do, or can never run: ended here

`choose_place` in compactor/planning/where_to_run.py says which sessions run in workers, if there are any.

    a launch of another dispatcher -- attached --> watched; what is then neither ended nor failed is launched anew

Every attempt has its own plan, made from the current stream and this cluster's resources; so it runs with the plan's
memory and cores under any dispatcher. Pauses are not slept here: `requeue` releases the thread.

Each decision is recorded in a `LaunchJournal` before the next step, so that a dispatcher that takes a session over
knows its state. The journal then raises `Fenced`: the Spark job is left to the new owner, and nothing more is recorded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from compactor.catalog.tables import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.log_context import LOG
from compactor.model.errors import Conflict, Corrupt, ErrorKind, Invalid, Unavailable, kind_of, reason_of
from compactor.planning.bundle_plan import BundleBounds, BundlePlan, SmallSession, bundled, plan_bundle
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.planning.where_to_run import WorkerPool, why_together_on_spark
from compactor.sessions.keys import BundleFolder
from compactor.sessions.session_log import SESSION_LOG, SessionLogState
from compactor.storage.concurrently import run_concurrently
from compactor.storage.location import StoreLocation
from compactor.storage.opening import with_region
from launcher.clusters import RunningSparkJob
from launcher.clusters.workers import gone_worker
from launcher.launch import (
    Control,
    JobOutOfReach,
    LaunchDependencies,
    LaunchRun,
    LeftOpen,
    RunAgain,
    SessionCommand,
    Settlement,
    succeeded_in,
)
from launcher.launch_journal import AttemptFailed, Launch, Member
from launcher.outcomes import Cancelled, Failed, NothingToDo
from launcher.plan import (
    BundleRoom,
    LackOfMemory,
    LargeSession,
    Planner,
    SmallPlanner,
    WorkerPlanner,
    plan_of,
    plan_shared_job,
    room_for_bundles,
    room_in_time,
)
from launcher.poller import PollerSettings
from launcher.progress import folder_of
from launcher.retrying import FailureCounts, RetryPolicy
from launcher.sizing.desired_sla import DesiredSla
from launcher.spark_job import InFlight, JobVanished, job_name
from launcher.verdict import WatchTimers


@dataclass(frozen=True)
class SessionLauncherSettings:
    poller: PollerSettings = field(default_factory=PollerSettings)
    timers: WatchTimers = field(default_factory=WatchTimers)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True)
class Planners:
    """
    Attributes:
        plan: of a session in a Spark job of its own
        plan_small: of one that may share a Spark job, with the lake as it was just read"""

    plan: Planner
    plan_small: SmallPlanner
    open_lake: Callable[[StoreLocation], DeltaCatalog]


@dataclass(frozen=True)
class SessionTask:
    """A session to run, with the state of its earlier attempts.

    Attributes:
        attempt: the last one launched, 0: none
        failure_counts: their failures
        in_flight: the last one, if its end is not recorded
        bundle_id: of its bundle, if it is in flight in one
        on_spark: it does not run in a worker
        desired: what is left of its job run's desired SLA; None: it has none"""

    spec: SessionSpec
    attempt: int = 0
    failure_counts: FailureCounts = field(default_factory=FailureCounts)
    in_flight: InFlight | None = None
    bundle_id: str | None = None
    on_spark: bool = False
    desired: DesiredSla | None = None

    @property
    def session_id(self) -> str:
        return self.spec.session_id


_Planned = SessionPlan | SmallSession | LargeSession | NothingToDo | Failed | AttemptFailed


@dataclass(frozen=True)
class WorkerLaunches:
    """`dependencies`: of launches in the workers of `pool`. `plan`: of a session that may run there. `start_seconds`:
    from a launch that comes now to the beginning of its job. `running`: workers that run now."""

    dependencies: LaunchDependencies
    pool: WorkerPool
    plan: WorkerPlanner
    start_seconds: Callable[[], float] = lambda: 0.0
    running: Callable[[], int | None] = lambda: None


class SessionLauncher:
    """Runs sessions in the thread that calls `run`. One launcher serves many threads."""

    def __init__(
        self,
        dependencies: LaunchDependencies,
        planners: Planners,
        bounds: BundleBounds,
        workers: WorkerLaunches | None = None,
    ) -> None:
        """`dependencies`: of launches on Spark; `workers`: of those in workers, if there are any."""
        self.bounds = bounds
        self.workers = workers
        self._dependencies = dependencies
        self._store = dependencies.store
        self._cluster = dependencies.cluster
        self._clock = dependencies.clock
        self._planners = planners

    def run(self, tasks: Sequence[SessionTask], control: Control) -> LeftOpen:
        """Runs sessions of one job run, each through its next attempt, or passes it to `requeue`. What is in flight is
        one launch, that of a bundle or of one session alone, and is watched.

        Raises `Fenced` if another dispatcher has the job run, and `Unavailable` if the state's store does not answer.
        """
        watched = [task for task in tasks if task.in_flight is not None]
        if not watched:
            return self._start(tasks, control)
        control.requeue([RunAgain(task.session_id) for task in tasks if task.in_flight is None])
        left_open, not_settled = self._watch_in_flight(watched, control)
        if left_open is not LeftOpen.NONE or not not_settled:
            return left_open
        if watched[0].bundle_id is not None:  # the next bundle may have others, too
            control.requeue([RunAgain(task.session_id) for task in not_settled])
            return LeftOpen.NONE
        return self._start(not_settled, control)

    # -- launches of other dispatchers

    def _watch_in_flight(
        self, tasks: Sequence[SessionTask], control: Control
    ) -> tuple[LeftOpen, Sequence[SessionTask]]:
        """Watches the launch of these tasks. Returns those that are neither ended nor failed, too."""
        launch = self._launch_of(tasks)
        if launch is None:
            return LeftOpen.NONE, tasks
        job = self._job_of(launch, tasks[0].in_flight, control)
        if job is None:
            return LeftOpen.NONE, tasks
        run, left_open = LaunchRun(launch, self._dependencies, control), LeftOpen.NONE
        if isinstance(job.status(), JobVanished):
            LOG.warning("attempt_vanished", name=launch.name, cluster=job.description)
            run.settle_vanished()
        else:
            left_open = run.watch(job)
        control.requeue(run.reruns)
        return left_open, [task for task in tasks if task.session_id in run.not_settled]

    def _launch_of(self, tasks: Sequence[SessionTask]) -> Launch | None:
        """None: there is no plan, so it was never launched."""
        if tasks[0].bundle_id is None:
            (task,) = tasks
            attempt = max(task.attempt, self._session_state(task).attempt)
            plan = self._read_plan(task, attempt)
            return None if plan is None else self._launch_alone(task, Member(attempt, plan, task.failure_counts))
        key = BundleFolder(tasks[0].spec.job_run.job_run_id, tasks[0].bundle_id).plan.key
        body = self._store.read(key)
        return None if body is None else self._launch_together(BundlePlan.parse_durable(body, key), tasks)

    def _job_of(self, launch: Launch, in_flight: InFlight | None, control: Control) -> RunningSparkJob | None:
        """None: its cluster never launched it."""
        if in_flight is None:
            return None
        job: RunningSparkJob | None = gone_worker(in_flight)
        if job is not None:
            return job
        if launch.bundle_id is None and launch.members[0].attempt != in_flight.attempt:
            # A later one than in the job-run log: launched by a dispatcher that has lost the claim since.
            return JobOutOfReach()
        if in_flight.reference is not None:
            job = self._cluster.attach(in_flight.reference)
        elif in_flight.name is not None and in_flight.place == self._cluster.place:
            found = self._cluster.find(in_flight.name)
            if found is None:
                return None
            job = self._cluster.attach(found)
            if job is not None:
                control.journal.launched(launch, job.description, found)
        if job is None:
            LOG.warning("launch_out_of_reach", name=launch.name, place=in_flight.place)
            return JobOutOfReach()
        control.journal.attached(launch, job.description)
        return job

    # -- the next attempts

    def _start(self, tasks: Sequence[SessionTask], control: Control) -> LeftOpen:
        """For sessions without a running attempt."""
        states = run_concurrently(self._store.location, self._session_state, tasks)
        settlement = Settlement(self._dependencies.retry, self._clock)
        left: list[SessionTask] = []
        for task, state in zip(tasks, states, strict=True):
            end = succeeded_in(state) or self._given_up(task)  # it succeeded after its dispatcher died
            if end is None:
                left.append(replace(task, attempt=max(task.attempt, state.attempt)))
            else:
                settlement.ends[task.session_id] = end
        command = control.command()
        if command is SessionCommand.CANCEL:
            settlement.ends |= {task.session_id: Cancelled() for task in left}
        settlement.write(control.journal)
        if not left or command is SessionCommand.CANCEL:
            return LeftOpen.NONE
        if command is not SessionCommand.RUN:
            return LeftOpen.STOPPED if command is SessionCommand.STOP else LeftOpen.RUNNING
        if self.workers is not None and not left[0].on_spark:
            return self._start_in_worker(left, control, self.workers)
        return self._start_alone(left[0], control) if len(tasks) == 1 else self._start_together(left, control)

    def _given_up(self, task: SessionTask) -> Failed | None:
        unwatched = task.failure_counts.unwatched
        if unwatched < self._dependencies.retry.max_unwatched:
            return None
        reason = f"it was launched {task.attempt} times, and {unwatched} times in a row its end was not observed"
        return Failed(attempt=task.attempt, error_kind=ErrorKind.CRASHED, reasons=(reason,))

    def _start_alone(self, task: SessionTask, control: Control) -> LeftOpen:
        lack = self._lack_of_memory(task)
        planned = self._planned(task, lambda: self._planners.plan(task.spec, lack, task.desired))
        if not isinstance(planned, SessionPlan):
            if lack is not None and isinstance(planned, Failed) and planned.error_kind is not ErrorKind.BUG:
                why = f"{lack.attempts} attempts ran out of memory, and no smaller plan will do"
                reasons = (why, *planned.reasons)
                planned = planned.model_copy(update={"error_kind": ErrorKind.OUT_OF_MEMORY, "reasons": reasons})
            self._settle_unplanned([(task, planned)], control)
            return LeftOpen.NONE
        member = Member(self._write_plan(planned, task), planned, task.failure_counts)
        launch = self._launch_alone(task, member)
        wait_seconds = control.journal.wait_seconds(planned.cluster)
        if wait_seconds is not None:
            control.journal.planned(launch)
            control.requeue([RunAgain(task.session_id, wait_seconds)])
            return LeftOpen.NONE
        return self._run(
            launch, BundleRoom(Resources(planned.task_memory_bytes, planned.tasks), planned.cluster), control
        )

    def _start_in_worker(self, tasks: Sequence[SessionTask], control: Control, workers: WorkerLaunches) -> LeftOpen:
        """Those that do not run there run again on Spark."""
        lake = self._planners.open_lake(tasks[0].spec.job_run.lake).for_one_run()
        pool = replace(workers.pool, place_factors=workers.dependencies.room().place_factors)
        planned = self._plan_each(
            tasks, lake, lambda task: workers.plan(task.spec, lake, pool, task.failure_counts.failures)
        )
        small = [each for _, each in planned if isinstance(each, SmallSession)]
        reruns = [RunAgain(task.session_id, on_spark=True) for task, each in planned if isinstance(each, LargeSession)]
        why_not = (
            why_together_on_spark([each.seconds for each in small], control.open_sessions(), pool) if small else None
        )
        if why_not is not None:
            LOG.info("sessions_not_in_workers", sessions=len(small), reason=why_not)
            reruns += [RunAgain(each.plan.spec.session_id, on_spark=True) for each in small]
            small = []
        members = bundled(small, 1, replace(self.bounds, seconds=pool.seconds))
        together = {member.plan.spec.session_id for member in members}
        reruns += [RunAgain(each.plan.spec.session_id) for each in small if each.plan.spec.session_id not in together]
        self._settle_unplanned(planned, control)
        control.requeue(reruns)
        if not members:
            return LeftOpen.NONE
        room = BundleRoom(Resources(pool.memory_bytes, tasks=1))
        if len(members) > 1:
            plan = plan_bundle(self._clock.new_id(), members, 1, workers.start_seconds(), in_worker=True)
            launch = self._launch_together(plan, tasks)
            self._store.put_if_absent(launch.plan_key, plan.render())
            return self._run(launch, room, control, workers.dependencies)
        (alone,) = members
        (task,) = [task for task in tasks if task.session_id in together]
        plan_alone = plan_of(alone, workers.start_seconds())
        member = Member(self._write_plan(plan_alone, task), plan_alone, task.failure_counts)
        return self._run(self._launch_alone(task, member), room, control, workers.dependencies)

    def _plan_each(
        self,
        tasks: Sequence[SessionTask],
        lake: DeltaCatalog,
        plan: Callable[[SessionTask], SmallSession | LargeSession | NothingToDo],
    ) -> list[tuple[SessionTask, _Planned]]:
        def plan_next(task: SessionTask) -> _Planned:
            planned = self._planned(task, lambda: plan(task))
            return replace(planned, attempt=task.attempt + 1) if isinstance(planned, SmallSession) else planned

        return list(zip(tasks, run_concurrently(lake.location, plan_next, tasks), strict=True))

    def _start_together(self, tasks: Sequence[SessionTask], control: Control) -> LeftOpen:
        room = self._room()
        if room is None:
            control.requeue([RunAgain(task.session_id, alone=True) for task in tasks])
            return LeftOpen.NONE
        lake = self._planners.open_lake(tasks[0].spec.job_run.lake).for_one_run()
        planned = self._plan_each(tasks, lake, lambda task: self._planners.plan_small(task.spec, lake, room.resources))
        self._settle_unplanned(planned, control)
        small = [each for _, each in planned if isinstance(each, SmallSession)]
        members = bundled(small, room.resources.tasks, self.bounds)
        if len(members) == 1:  # it gains nothing by a bundle
            members = ()
        control.requeue([*_outside_bundle(planned, members)])
        if not members:
            return LeftOpen.NONE
        in_time = room_in_time(members, room, self._dependencies.room(), _most_urgent(tasks))
        shared = plan_shared_job(self._clock.new_id(), members, in_time)
        wait_seconds = control.journal.wait_seconds(shared.cluster_plan)
        if wait_seconds is not None:
            control.requeue([RunAgain(member.plan.spec.session_id, wait_seconds) for member in members])
            return LeftOpen.NONE
        launch = self._launch_together(shared.plan, tasks)
        self._store.put_if_absent(launch.plan_key, shared.plan.render())
        return self._run(launch, in_time, control)

    def _run(
        self, launch: Launch, room: BundleRoom, control: Control, dependencies: LaunchDependencies | None = None
    ) -> LeftOpen:
        run = LaunchRun(launch, dependencies or self._dependencies, control)
        job = run.launch(room.resources, room.cluster_plan)
        left_open = LeftOpen.NONE if job is None else run.watch(job)
        open_ids = run.not_settled if left_open is LeftOpen.NONE else ()
        control.requeue([*run.reruns, *map(RunAgain, open_ids)])
        return left_open

    def _planned(self, task: SessionTask, plan: Callable[[], _Planned]) -> _Planned:
        """`AttemptFailed`: the lake cannot be read now."""
        try:
            return plan()
        except (Unavailable, Conflict) as error:
            return AttemptFailed(error.kind, error.reasons)
        except (Invalid, Corrupt) as error:
            return Failed(attempt=task.attempt, error_kind=error.kind, reasons=error.reasons)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is this session's alone)
            LOG.error("session_broke", session_id=task.session_id, exc_info=error)
            return Failed(attempt=task.attempt, error_kind=kind_of(error), reasons=(reason_of(error),))

    def _settle_unplanned(self, planned: Sequence[tuple[SessionTask, _Planned]], control: Control) -> None:
        """Records sessions that end without an attempt, and those that could not be planned now."""
        settlement = Settlement(self._dependencies.retry, self._clock)
        for task, found in planned:
            if isinstance(found, AttemptFailed):
                settlement.add_failed(task.session_id, task.attempt, task.failure_counts, found, was_launched=False)
            elif isinstance(found, NothingToDo | Failed):
                settlement.ends[task.session_id] = found
        settlement.write(control.journal)
        control.requeue(settlement.reruns)

    def _room(self) -> BundleRoom | None:
        """None: there is no cluster. A session that is launched alone has the reason."""
        try:
            return room_for_bundles(self._dependencies.room())
        except Invalid as error:
            LOG.warning("no_cluster_for_bundles", reason=str(error))
            return None

    def _lack_of_memory(self, task: SessionTask) -> LackOfMemory | None:
        if not task.failure_counts.out_of_memory:
            return None
        first = self._read_plan(task, 1)
        return LackOfMemory(task.failure_counts.out_of_memory, first.hash_bucket_count if first is not None else 1)

    # -- what is stored

    def _session_state(self, task: SessionTask) -> SessionLogState:
        """The session log of earlier attempts; empty if no number was taken, which is written before the launch."""
        if task.attempt == 0:
            return SessionLogState()
        return DurableLog(self._store, folder_of(task.spec).log, SESSION_LOG, self._clock).load().state

    def _read_plan(self, task: SessionTask, attempt: int) -> SessionPlan | None:
        key = folder_of(task.spec).plan(attempt).key
        body = self._store.read(key)
        return None if body is None else SessionPlan.parse_durable(body, key)

    def _write_plan(self, plan: SessionPlan, task: SessionTask) -> int:
        """The number of the attempt for the plan: after the last attempt, the first one without a plan.

        The dispatcher that planned an attempt may still launch it, with its own plan.
        """
        body, number = plan.render(), task.attempt + 1
        while not self._store.put_if_absent(folder_of(task.spec).plan(number).key, body):
            if self._store.read(folder_of(task.spec).plan(number).key) == body:
                break
            number += 1
        return number

    def _launch_alone(self, task: SessionTask, member: Member) -> Launch:
        job_run_id, session_id = task.spec.job_run.job_run_id, task.session_id
        name = job_name(with_region(self._store.location), job_run_id, session_id, member.attempt)
        return Launch(name, folder_of(task.spec).plan(member.attempt).key, {0: member})

    def _launch_together(self, plan: BundlePlan, tasks: Sequence[SessionTask]) -> Launch:
        """Of a bundle's plan, the members that are tasks here."""
        job_run_id = tasks[0].spec.job_run.job_run_id
        failure_counts = {task.session_id: task.failure_counts for task in tasks}
        name = job_name(
            with_region(self._store.location), job_run_id, f"{job_run_id}.bundle.{plan.bundle_id}", attempt=1
        )
        members = {
            number: Member(member.attempt, member.plan, failure_counts[member.plan.spec.session_id])
            for number, member in enumerate(plan.members)
            if member.plan.spec.session_id in failure_counts
        }
        key = BundleFolder(job_run_id, plan.bundle_id).plan.key
        return Launch(name, key, members, len(plan.members), plan.bundle_id)


def _most_urgent(tasks: Sequence[SessionTask]) -> DesiredSla | None:
    found = [task.desired for task in tasks if task.desired is not None]
    return min(found, key=lambda desired: desired.left_seconds, default=None)


def _outside_bundle(
    planned: Sequence[tuple[SessionTask, _Planned]], members: Sequence[SmallSession]
) -> Iterator[RunAgain]:
    """Alone if it must be; in the next bundle if this one is full."""
    bundled_ids = {member.plan.spec.session_id for member in members}
    for task, plan in planned:
        if isinstance(plan, LargeSession):
            yield RunAgain(task.session_id, alone=True)
        elif isinstance(plan, SmallSession) and task.session_id not in bundled_ids:
            yield RunAgain(task.session_id, alone=not members)
