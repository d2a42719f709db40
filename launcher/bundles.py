"""Bundles small sessions of a job run: selects the small ones, and runs these in one Spark job.

    sessions --planned--> small --as many as the bounds allow--> one bundle (`bundle_run.py`)
                 |
                 +--> large, or the only small one: each in a Spark job of its own (`session_launcher.py`)
                 +--> nothing to do, or can never run: ended here

| a member of a bundle                                      | then                                        |
|-----------------------------------------------------------|---------------------------------------------|
| failed, stalled, or ran when the Spark job crashed        | is tried again alone                        |
| found a service away, or was overtaken                    | is tried again, in a bundle                 |
| had not begun when the Spark job ended, others had        | runs in the next bundle: it had no setback  |
| had not begun, nor had any other                          | tried again, in a bundle: the launch failed |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from compactor.catalog.tables import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.model.errors import Conflict, Corrupt, Invalid, Unavailable, kind_of
from compactor.planning.bundle_plan import BundleBounds, BundlePlan, SmallSession, bundled
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.sessions.session_log import SESSION_LOG, SessionState, SessionSucceeded
from compactor.storage.location import StoreLocation
from compactor.storage.paths import BundleFolder, SessionFolder
from compactor.storage.side_by_side import side_by_side
from launcher.attempt import AttemptFailed, JobOutOfReach, Orders, stopped_by, without_completions
from launcher.bundle_run import (
    BundleDependencies,
    BundleJournal,
    BundleRun,
    FailedMember,
    LeftOpen,
    RetriedMember,
    RunAgain,
)
from launcher.clusters import RunningSparkJob
from launcher.outcomes import Failed, NothingToDo, SessionEnd, Succeeded
from launcher.plan import (
    BundleRoom,
    LargeSession,
    Room,
    SmallPlanner,
    plan_for_cluster,
    plan_in_one_task,
    plan_shared_job,
    room_for_bundles,
)
from launcher.session_launcher import SessionTask
from launcher.spark_job import InFlight

_log = structlog.get_logger(__name__)

Requeue = Callable[[Sequence[RunAgain]], None]
"""Receives sessions that are to run again, or in another way."""

_Planned = SmallSession | LargeSession | SessionEnd | AttemptFailed


class BundleLauncher:
    """Thread-safe; each bundle runs in the thread that calls `run`."""

    def __init__(
        self,
        dependencies: BundleDependencies,
        plan: SmallPlanner,
        open_lake: Callable[[StoreLocation], DeltaCatalog],
        bounds: BundleBounds,
    ) -> None:
        self.bounds = bounds
        self._dependencies = dependencies
        self._store = dependencies.store
        self._cluster = dependencies.cluster
        self._clock = dependencies.clock
        self._plan = plan
        self._open_lake = open_lake

    def run(self, tasks: Sequence[SessionTask], journal: BundleJournal, orders: Orders, requeue: Requeue) -> LeftOpen:
        """Runs sessions of one job run: each through its next attempt, or passes it to `requeue`.

        Raises `Fenced` if another dispatcher has the job run, and `Unavailable` if the state's store does not answer.
        """
        if stopped_by(orders()) is not None:
            return LeftOpen.STOPPED
        location = self._store.location
        lake = self._open_lake(tasks[0].spec.job_run.lake).for_one_run()
        log_states = list(zip(tasks, side_by_side(location, self._session_state, tasks), strict=True))
        room = self._room()
        if room is None:
            requeue([RunAgain(task.spec.session_id, alone=True) for task in tasks])
            return LeftOpen.NONE
        resources = room.resources
        planned = side_by_side(lake.location, lambda each: self._planned(*each, lake, resources), log_states)
        requeue(self._settle_unbundled(tasks, planned, journal))
        small = [each for each in planned if isinstance(each, SmallSession)]
        members = bundled(small, resources.tasks, self.bounds)
        if len(members) == 1:  # it gains nothing by a bundle
            members = ()
        requeue([*self._outside_bundle(tasks, planned, members)])
        if not members:
            return LeftOpen.NONE
        shared = plan_shared_job(self._clock.new_id(), members, room)
        wait_seconds = journal.wait_seconds(shared.cluster_plan)
        if wait_seconds is not None:
            requeue([RunAgain(member.plan.spec.session_id, wait_seconds) for member in members])
            return LeftOpen.NONE
        ids = {member.plan.spec.session_id for member in members}
        setbacks = {task.spec.session_id: task.setbacks for task in tasks if task.spec.session_id in ids}
        bundle = BundleRun(shared.plan, setbacks, self._dependencies, journal, orders)
        job = bundle.launch(room)
        left_open = LeftOpen.NONE if job is None else bundle.watch(job)
        requeue(bundle.reruns)
        return left_open

    def attach(
        self,
        bundle_id: str,
        tasks: Sequence[SessionTask],
        journal: BundleJournal,
        orders: Orders,
        requeue: Requeue,
    ) -> LeftOpen:
        """Attaches to sessions that another dispatcher launched, or was about to launch, as members of this bundle.
        Raises as `run`.
        """
        key = BundleFolder(tasks[0].spec.job_run.job_run_id, bundle_id).plan.key
        body = self._store.read(key)
        in_flight = tasks[0].in_flight
        if body is None or in_flight is None:
            requeue([RunAgain(task.spec.session_id) for task in tasks])
            return LeftOpen.NONE
        setbacks = {task.spec.session_id: task.setbacks for task in tasks}
        bundle = BundleRun(BundlePlan.parse_durable(body, key), setbacks, self._dependencies, journal, orders)
        job = self._job_of(in_flight)
        left_open = LeftOpen.NONE
        if job is None:
            bundle.never_launched()
        else:
            journal.attached(bundle_id, job.description)
            left_open = bundle.watch(job)
        requeue(bundle.reruns)
        return left_open

    def _job_of(self, in_flight: InFlight) -> RunningSparkJob | None:
        """None: its cluster never launched it."""
        reference = in_flight.reference
        if reference is None:
            if in_flight.name is None or in_flight.place != self._cluster.place:
                return JobOutOfReach()
            reference = self._cluster.find(in_flight.name)
            if reference is None:
                return None
        return self._cluster.attach(reference) or JobOutOfReach()

    def _session_state(self, task: SessionTask) -> SessionState:
        """The session log of earlier attempts; empty if no number was taken."""
        if task.attempt == 0:
            return SessionState()
        folder = SessionFolder(task.spec.job_run.job_run_id, task.spec.session_id)
        return DurableLog(self._store, folder.log, SESSION_LOG, self._clock).load().state

    def _room(self) -> BundleRoom | None:
        """None: there is no cluster. A session that is launched alone has the reason."""
        try:
            return room_for_bundles(self._cluster.resources())
        except Invalid as error:
            _log.warning("no_cluster_for_bundles", reason=str(error))
            return None

    def _planned(self, task: SessionTask, before: SessionState, lake: DeltaCatalog, resources: Resources) -> _Planned:
        if isinstance(before.end, SessionSucceeded):  # after its dispatcher died
            return Succeeded(result=without_completions(before.end.result))
        attempt = max(task.attempt, before.attempt)
        if task.setbacks.unwatched >= self._dependencies.retry.max_unwatched:
            return LargeSession(("its launches ended unseen",))  # alone it comes to its end
        try:
            planned = self._plan(task.spec, lake, resources)
        except (Unavailable, Conflict) as error:
            return AttemptFailed(error.kind, (str(error),))
        except (Invalid, Corrupt) as error:
            return Failed(attempt=task.attempt, error_kind=error.kind, reasons=error.reasons)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is this session's alone)
            _log.error("session_broke", session_id=task.spec.session_id, exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            return Failed(attempt=task.attempt, error_kind=kind_of(error), reasons=(reason,))
        return replace(planned, attempt=attempt + 1) if isinstance(planned, SmallSession) else planned

    def _settle_unbundled(
        self, tasks: Sequence[SessionTask], planned: Sequence[_Planned], journal: BundleJournal
    ) -> list[RunAgain]:
        """Records sessions that end without an attempt, and those that could not be planned now."""
        ends: dict[str, SessionEnd] = {}
        retried: list[RetriedMember] = []
        reruns: list[RunAgain] = []
        at_ms = self._clock.now_ms()
        for task, plan in zip(tasks, planned, strict=True):
            session_id = task.spec.session_id
            follows: _Planned | RunAgain = plan
            if isinstance(plan, AttemptFailed):
                failed = FailedMember(session_id, task.setbacks, plan, began=False)
                follows = self._dependencies.after_failure(failed, at_ms)
                if isinstance(follows, RunAgain):
                    reruns.append(follows)
                    retried.append(RetriedMember(session_id, task.attempt + 1, plan, alone=False))
            if isinstance(follows, Succeeded | NothingToDo | Failed):
                ends[session_id] = follows
        if ends or retried:
            journal.settled(ends, retried, at_ms)
        return reruns

    def _outside_bundle(
        self, tasks: Sequence[SessionTask], planned: Sequence[_Planned], members: Sequence[SmallSession]
    ) -> Iterator[RunAgain]:
        """Alone if it must be; in the next bundle if this one is full."""
        bundled_ids = {member.plan.spec.session_id for member in members}
        for task, plan in zip(tasks, planned, strict=True):
            session_id = task.spec.session_id
            if isinstance(plan, LargeSession):
                yield RunAgain(session_id, alone=True)
            elif isinstance(plan, SmallSession) and session_id not in bundled_ids:
                yield RunAgain(session_id, alone=not members)


@dataclass(frozen=True)
class PlannedJobRun:
    """Sessions in the requested order. spark_job_seconds: the expected seconds of each Spark job, in order."""

    plans: tuple[SessionPlan | NothingToDo, ...]
    spark_job_seconds: tuple[float, ...]


def plan_as_dispatched(
    specs: Sequence[SessionSpec], lake: DeltaCatalog, room: Room, bounds: BundleBounds
) -> PlannedJobRun:
    """Plans sessions as a dispatcher would now. Raises `Invalid` for sessions that can never run."""
    plans: dict[str, SessionPlan | NothingToDo] = {}
    seconds: list[float] = []
    small: list[SmallSession] = []
    if bounds.allow_bundles and len(specs) > 1:
        shared_room = room_for_bundles(room)
        for spec in specs:
            found = plan_in_one_task(spec, lake, shared_room.resources)
            if isinstance(found, SmallSession):
                small.append(found)
            elif isinstance(found, NothingToDo):
                plans[spec.session_id] = found
        while len(small) > 1:
            members = bundled(small, shared_room.resources.tasks, bounds)
            if len(members) == 1:
                break
            bundle = plan_shared_job("dry-run", members, shared_room).plan
            plans |= {member.plan.spec.session_id: member.plan for member in bundle.members}
            seconds.append(max(member.plan.expected_sla for member in bundle.members))
            small = [each for each in small if each.plan.spec.session_id not in plans]
    for spec in specs:
        if spec.session_id not in plans:
            alone = plan_for_cluster(spec, lake, room)
            plans[spec.session_id] = alone
            seconds += [] if isinstance(alone, NothingToDo) else [alone.expected_sla]
    return PlannedJobRun(tuple(plans[spec.session_id] for spec in specs), tuple(seconds))
