"""The guarantees of every cluster, and of launches by a launcher that dies at any moment."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.errors import ErrorKind, Unavailable
from compactor.planning.bundle_plan import BundleBounds
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from compactor.planning.session_planner import pin_sessions
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import Heartbeat, SessionLog
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from launcher.clusters import Cluster, RunningSparkJob
from launcher.launch import Control, LaunchDependencies, LeftOpen, SessionCommand
from launcher.launch_journal import Launch, Member, Retried
from launcher.outcomes import Cancelled, SessionEnd, Succeeded
from launcher.plan import LackOfMemory, plan_for_cluster, plan_in_one_task, session_commits
from launcher.poller import Poller, PollerSettings
from launcher.retrying import RetryPolicy
from launcher.session_launcher import Planners, SessionLauncher, SessionTask
from launcher.sizing.desired_sla import DesiredSla
from launcher.spark_job import (
    ClusterReference,
    InFlight,
    JobFailed,
    JobRunning,
    JobStatus,
    JobSucceeded,
    JobVanished,
    NoCapacity,
    SparkJob,
    job_name,
)
from launcher.verdict import WatchTimers
from tests.builders import run_of
from tests.contract.cluster_places import (
    RESOURCES,
    AwsService,
    ClusterUnderTest,
    Does,
    EmrPlace,
    EmrServerlessPlace,
    LocalPlace,
    SmallPlace,
    StandalonePlace,
)
from tests.fakes.emr_account import EmrAccount
from tests.fakes.emr_server import emr_server
from tests.fakes.emr_serverless_account import ServerlessAccount
from tests.fakes.emr_steps import ScriptedSteps
from tests.servers import aws_environment
from tests.waiting import wait_until

TABLE = "ACME.ORDERS.V1"
SESSION = "run.1"
PLACES = [
    "small",
    "local",
    pytest.param("emr", marks=pytest.mark.servers),
    pytest.param("emr_serverless", marks=pytest.mark.servers),
]
"""Implementations, by name: the fake, processes of this machine, and both services of EMR over boto3. A standalone
cluster's are the same processes, which run elsewhere: what it adds to them is in one test of a launch."""


@dataclass
class Tried:
    """A place, and a session that may run there: a lake with one delta, and a state, in folders."""

    folder: Path
    place: ClusterUnderTest
    state: LocalStore

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.lake = DeltaCatalog.open(str(self.folder / "lake"))
        self.lake.create_table(TABLE).append({}, pa.table({"id": [1, 2], "v": ["a", "b"]}))
        run = run_of(self.lake, TABLE, job_run_id="run")
        (pinned,) = pin_sessions(run, self.lake)
        self.spec = pinned.spec.model_copy(update={"session_id": SESSION})

    def plan(self) -> SessionPlan:
        plan = plan_for_cluster(self.spec, self.lake, self.place.room)
        assert isinstance(plan, SessionPlan)
        return plan

    def job(self, attempt: int = 1) -> SparkJob:
        plan = self.plan()
        key = SessionFolder("run", SESSION).plan(attempt).key
        self.state.put_if_absent(key, plan.render())
        name = job_name(self.state.location, "run", SESSION, attempt)
        return SparkJob(name, self.state.location, key, attempt, RESOURCES)

    def launch(self, does: Does = Does.WAITS, attempt: int = 1) -> ClusterReference:
        self.place.jobs_do(does)
        return self.place.cluster().launch(self.job(attempt), self.plan().cluster)

    def launcher(self, cluster: Cluster) -> SessionLauncher:
        def plan(spec: SessionSpec, lack: LackOfMemory | None, desired: DesiredSla | None) -> object:
            return plan_for_cluster(spec, self.lake, self.place.room, lack, desired=desired)

        dependencies = LaunchDependencies(
            self.state,
            cluster,
            lambda spec: session_commits(spec, self.lake),
            Poller(PollerSettings(0.02, 0.05), self.clock),
            WatchTimers(exit_seconds=20),
            RetryPolicy(),
            self.clock,
        )
        planners = Planners(plan, plan_in_one_task, lambda _: self.lake)  # type: ignore[arg-type]
        return SessionLauncher(dependencies, planners, BundleBounds(sessions=1))

    def rounds(self) -> int:
        entries = self.lake.table(TABLE).stream({}).log.entries()
        return sum(action.action == "round_committed" for entry in entries for action in entry.actions)


@pytest.fixture(scope="module")
def emr_service() -> Iterator[AwsService]:
    clock, steps = SystemClock(), ScriptedSteps()
    with aws_environment(), emr_server(EmrAccount(clock, steps), ServerlessAccount(clock, steps)) as server:
        yield AwsService.open(server)


@pytest.fixture(params=PLACES)
def tried(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tried]:
    state = LocalStore(StoreLocation(f"file://{tmp_path / 'state'}"))
    place: ClusterUnderTest
    match request.param:
        case "small":
            place = SmallPlace(state)
        case "standalone":
            place = StandalonePlace(tmp_path / "place")
        case "local":
            place = LocalPlace(tmp_path / "place")
        case "emr":
            place = EmrPlace(request.getfixturevalue("emr_service"), state)
        case _:
            place = EmrServerlessPlace(request.getfixturevalue("emr_service"), state)
    tried = Tried(tmp_path, place, state)
    yield tried
    wait_until(lambda: place.running() == 0)  # whatever a test did, nothing of it is left


def attached(tried: Tried, reference: ClusterReference) -> RunningSparkJob:
    """As another dispatcher sees it."""
    job = tried.place.cluster().attach(ClusterReference.model_validate_json(reference.model_dump_json()))
    assert job is not None
    return job


def end_of(job: RunningSparkJob) -> JobStatus:
    wait_until(lambda: not isinstance(job.status(), JobRunning))
    return job.status()


# ---------------------------------------------------------------------------------------------------------- the cluster


@pytest.mark.parametrize("tried", [*PLACES, "standalone"], indirect=True)
def test_a_job_that_is_launched_twice_runs_once(tried: Tried) -> None:
    first = tried.launch()
    again = tried.launch()
    assert again == first
    wait_until(lambda: tried.place.launches() == 1)
    tried.place.let_go()
    assert end_of(attached(tried, first)) == JobSucceeded()
    assert tried.launch() == first  # nor after it has ended
    assert tried.place.launches() == 1


def test_a_job_of_another_dispatcher_is_found_by_its_name_only(tried: Tried) -> None:
    reference = tried.launch()
    other = tried.place.cluster()
    assert other.find(tried.job(1).name) == reference
    assert other.find(tried.job(2).name) is None
    tried.place.let_go()
    assert end_of(attached(tried, reference)) == JobSucceeded()
    assert other.find(tried.job(1).name) == reference


def test_a_reference_is_a_document(tried: Tried) -> None:
    reference = tried.launch()
    assert json.loads(reference.model_dump_json())["kind"]
    assert attached(tried, reference).reference == reference
    assert attached(tried, reference).description
    tried.place.let_go()


def test_a_reference_of_another_place_cannot_be_attached(tried: Tried) -> None:
    reference = tried.launch()
    assert tried.place.cluster().attach(ClusterReference(kind="elsewhere", ids=reference.ids)) is None
    tried.place.let_go()


@pytest.mark.parametrize(
    ("does", "kind"),
    [(Does.FAILS, ErrorKind.CRASHED), (Does.IS_INVALID, ErrorKind.INVALID), (Does.IS_OVERTAKEN, ErrorKind.FENCED)],
)
def test_every_observer_gets_the_reason_of_a_failed_job(tried: Tried, does: Does, kind: ErrorKind) -> None:
    reference = tried.launch(does)
    for _ in range(2):
        status = end_of(attached(tried, reference))
        assert isinstance(status, JobFailed)
        assert status.error_kind is kind
        assert status.reason


def test_a_job_that_is_stopped_ends_and_may_be_stopped_again_by_anybody(tried: Tried) -> None:
    reference = tried.launch()
    job = attached(tried, reference)
    wait_until(lambda: tried.place.running() == 1)
    assert job.status() == JobRunning()
    job.stop()
    assert isinstance(end_of(job), JobFailed)
    job.stop()
    attached(tried, reference).stop()
    assert isinstance(attached(tried, reference).status(), JobFailed)
    wait_until(lambda: tried.place.running() == 0)


def test_a_job_that_has_ended_may_be_stopped_and_has_ended_well_all_the_same(tried: Tried) -> None:
    reference = tried.launch()
    tried.place.let_go()
    job = attached(tried, reference)
    assert end_of(job) == JobSucceeded()
    job.stop()
    assert job.status() == JobSucceeded()


def test_a_vanished_job_is_reported_as_vanished(tried: Tried) -> None:
    reference = tried.launch()
    wait_until(lambda: tried.place.running() == 1)
    tried.place.make_vanish(reference)
    assert isinstance(end_of(attached(tried, reference)), JobVanished)
    attached(tried, reference).stop()


def test_where_there_is_no_room_somebody_says_so_and_nothing_runs(tried: Tried) -> None:
    """Some clusters report it at the request, others only later."""
    try:
        reference = tried.launch(Does.FINDS_NO_ROOM)
    except Unavailable as error:
        assert "cannot be started now" in str(error)  # noqa: PT017  (one of two good answers)
        assert tried.place.launches() == 0
        return
    status = end_of(attached(tried, reference))
    assert isinstance(status, NoCapacity)
    assert status.reason


# ------------------------------------------------------------------------------------------- a launcher that dies


class Died(BaseException):
    """The dispatcher's process is gone. Not an Exception, as a kill -9 is not."""


@dataclass
class Written:
    """The durable records of a session's launches, and the write at which the launcher dies."""

    dies: str = ""
    done: list[str] = field(default_factory=list)
    attempt: int = 0
    in_flight: InFlight | None = None
    ends: list[SessionEnd] = field(default_factory=list)
    charges: list[ClusterUse] = field(default_factory=list)

    def at(self, moment: str) -> None:
        self.done.append(moment)
        if moment == self.dies:
            raise Died(moment)

    def planned(self, launch: Launch) -> None: ...

    def wait_seconds(self, cluster: ClusterPlan | None) -> float | None:
        """It may be launched now."""
        self.at("after 1, the plan")
        return None

    def launching(self, launch: Launch, place: str) -> None:
        self.attempt = launch.members[0].attempt
        self.in_flight = InFlight(self.attempt, launch.name, place)
        self.at("after 2, launching")

    def launched(self, launch: Launch, cluster: str, reference: ClusterReference) -> None:
        self.at("after 3, the launch")
        assert self.in_flight is not None
        self.in_flight = InFlight(self.attempt, self.in_flight.name, self.in_flight.place, reference)
        self.at("after 4, launched")

    def is_in_flight(self, launch: Launch) -> bool:
        return self.in_flight is not None and self.in_flight.attempt == launch.members[0].attempt

    def attached(self, launch: Launch, cluster: str) -> None:
        self.done.append("attached")

    def stalled(self, launch: Launch, members: Collection[Member], quiet_seconds: float) -> None:
        self.done.append("stalled")

    def charged(self, launch: Launch, use: ClusterUse) -> None:
        assert self.in_flight is not None, "before its end is recorded"
        assert launch.name == self.in_flight.name
        self.charges.append(use)

    def settled(self, ends: Mapping[str, SessionEnd], retried: Sequence[Retried], at_ms: int) -> None:
        self.in_flight = None
        self.ends += ends.values()
        self.done += [f"retried: {each.failed.reasons}" for each in retried]

    def attempts_ended(self, session_ids: Collection[str]) -> None: ...

    def progressed(self, members: Collection[Member], heartbeat: Heartbeat | None = None) -> None:
        if "watching" in self.dies and heartbeat is not None:
            raise Died

    def session_read(self, member: Member, log: SessionLog) -> None: ...


MOMENTS = ["after 1, the plan", "after 2, launching", "after 3, the launch", "after 4, launched", "5, watching"]


def run(tried: Tried, written: Written, command: SessionCommand = SessionCommand.RUN) -> SessionEnd | LeftOpen:
    """The end of the session; else what is left open of it, NONE if it is to run again."""
    task = SessionTask(tried.spec, written.attempt, in_flight=written.in_flight)
    control = Control(written, lambda: command, lambda _: None)
    left_open = tried.launcher(tried.place.cluster()).run([task], control)
    return written.ends[-1] if written.ends else left_open


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_session_is_launched_once_if_its_launcher_dies_at_any_point_and_the_successor_sees_its_end(
    tried: Tried, moment: str
) -> None:
    tried.place.jobs_do(Does.RUNS_SESSION)
    written = Written(dies=moment)
    with pytest.raises(Died):
        run(tried, written)
    written.dies = ""
    launched = MOMENTS.index(moment) >= 2
    if launched:
        wait_until(lambda: tried.place.launches() == 1)
    tried.place.let_go()

    outcome = run(tried, written)

    assert isinstance(outcome, Succeeded), outcome
    assert ("attached" in written.done) == launched
    assert tried.place.launches() == 1
    assert tried.rounds() == 1
    assert outcome.result.rows_out == 2


def charge_of(tried: Tried, written: Written) -> ClusterUse | None:
    """Checked to be what the service of the place says, at the prices of its nodes."""
    cluster = tried.plan().cluster
    if cluster is None:
        assert written.charges == []
        return None
    (use,) = written.charges
    assert use.usd > 0
    if cluster.primary_instance_type is None:
        assert use.vcpu_hours > 0
        assert (use.on_demand_seconds, use.spot_seconds) == (0, 0)
    else:
        assert use.vcpu_hours == 0
        assert use.on_demand_seconds >= 60 * (cluster.nodes + 1)
        node_hours = use.on_demand_seconds / (cluster.nodes + 1) / 3600
        assert use.usd == pytest.approx(cluster.rates.usd_hour * node_hours)
    return use


def test_a_session_is_charged_with_what_its_nodes_have_run_where_a_service_says_so(tried: Tried) -> None:
    tried.place.jobs_do(Does.RUNS_SESSION)
    tried.place.let_go()
    written = Written()
    assert isinstance(run(tried, written), Succeeded)
    charge_of(tried, written)


def test_an_attempt_that_failed_is_charged_like_one_that_succeeded(tried: Tried) -> None:
    tried.place.jobs_do(Does.FAILS)
    written = Written()
    assert run(tried, written) is LeftOpen.NONE
    assert [each[:8] for each in written.done if "retried" in each] == ["retried:"]
    charge_of(tried, written)


@pytest.mark.parametrize("command", [SessionCommand.CANCEL, SessionCommand.STOP])
def test_an_attempt_that_was_stopped_is_charged_by_the_successor_that_stopped_it(
    tried: Tried, command: SessionCommand
) -> None:
    tried.place.jobs_do(Does.RUNS_SESSION)
    written = Written(dies="after 4, launched")
    with pytest.raises(Died):
        run(tried, written)
    wait_until(lambda: tried.place.running() == 1)
    run(tried, written, command)
    charge_of(tried, written)


@pytest.mark.parametrize("moment", MOMENTS[2:])
def test_a_successor_can_stop_the_job_of_a_launcher_that_died_at_any_point(tried: Tried, moment: str) -> None:
    tried.place.jobs_do(Does.RUNS_SESSION)
    written = Written(dies=moment)
    with pytest.raises(Died):
        run(tried, written)
    wait_until(lambda: tried.place.running() == 1)
    written.dies = ""

    assert run(tried, written, SessionCommand.LEAVE) is LeftOpen.RUNNING
    assert tried.place.running() == 1
    assert run(tried, written, SessionCommand.CANCEL) == Cancelled()
    wait_until(lambda: tried.place.running() == 0)
    assert tried.rounds() == 0


def test_a_job_that_vanished_with_its_launcher_is_followed_by_the_next_attempt(tried: Tried) -> None:
    tried.place.jobs_do(Does.RUNS_SESSION)
    written = Written(dies="after 4, launched")
    with pytest.raises(Died):
        run(tried, written)
    written.dies = ""
    wait_until(lambda: tried.place.running() == 1)
    assert written.in_flight is not None
    assert written.in_flight.reference is not None
    tried.place.make_vanish(written.in_flight.reference)
    wait_until(lambda: tried.place.running() == 0)
    tried.place.let_go()

    outcome = run(tried, written)
    while outcome is LeftOpen.NONE:  # it was seen to run for a moment longer than its session
        outcome = run(tried, written)
    assert isinstance(outcome, Succeeded)
    assert written.attempt == 2
    assert tried.rounds() == 1


def test_a_cluster_that_cannot_be_asked_keeps_the_session_as_it_is(
    tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown launch is not treated as a launch that never happened."""
    written = Written(dies="after 3, the launch")
    with pytest.raises(Died):
        run(tried, written)
    written.dies = ""
    cluster = tried.place.cluster()

    def find(name: str) -> ClusterReference | None:
        raise Unavailable("no answer")

    monkeypatch.setattr(cluster, "find", find)
    task = SessionTask(tried.spec, written.attempt, in_flight=written.in_flight)
    with pytest.raises(Unavailable):
        tried.launcher(cluster).run([task], Control(written, lambda: SessionCommand.RUN, lambda _: None))
    assert written.attempt == 1
    run(tried, written, SessionCommand.CANCEL)
