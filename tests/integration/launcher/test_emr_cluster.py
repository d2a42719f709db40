"""Clusters on EMR and EMR Serverless: launched, found, watched and ended, through boto3 on the fake service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from compactor.model.errors import Denied, ErrorKind, Invalid, Unavailable
from compactor.planning.sizing import Resources
from compactor.sessions.keys import SessionFolder
from compactor.storage.location import StoreLocation
from launcher.aws.emr import BotoEmr, BotoEmrServerless
from launcher.clusters.emr import SEARCH_PAUSES_SECONDS, EmrCluster, EmrJob
from launcher.clusters.emr_serverless import EmrServerlessCluster
from launcher.emr.settings import EmrServerlessSettings, EmrSettings
from launcher.launch import launch_once
from launcher.launch_journal import AttemptFailed
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom
from launcher.spark_job import (
    ClusterReference,
    JobFailed,
    JobRunning,
    JobSucceeded,
    JobVanished,
    NoCapacity,
    SparkJob,
    job_name,
)
from launcher.submit import job_arguments
from launcher.sweep import Owners, Sweep
from tests.fakes.emr_account import (
    BOOTSTRAP_FAILED,
    NO_CAPACITY,
    OVER_QUOTA,
    ROLE_WITHOUT_RIGHTS,
    SPOT_LOST,
    EmrAccount,
    Mishap,
)
from tests.fakes.emr_server import AnswerLost, Away, Denies, EmrServer, Throttled, emr_server
from tests.fakes.emr_serverless_account import NO_SERVERLESS_CAPACITY, ServerlessAccount
from tests.fakes.emr_steps import ScriptedSteps, parse_submit
from tests.fakes.manual_clock import ManualClock
from tests.servers import REGION, aws_environment
from tests.unit.launcher.test_emr_request import ON_DEMAND, SERVERLESS_SETTINGS, SETTINGS, WITH_SPOT

pytestmark = pytest.mark.servers

STATE = StoreLocation("s3://state/root")
APPLICATION = "00abcdefgh123456"
UNTIL_IT_RUNS = 200.0
UNTIL_IT_IS_GONE = 60.0


def job_of(session_id: str = "run-1.1", attempt: int = 1, state: StoreLocation = STATE) -> SparkJob:
    name = job_name(state, "run-1", session_id, attempt)
    return SparkJob(name, state, SessionFolder("run-1", session_id).plan(attempt).key, attempt, Resources(1 << 30, 2))


@dataclass(frozen=True)
class Boto:
    """Clients take long to make, so tests share them."""

    emr: BotoEmr
    serverless: BotoEmrServerless

    def without_retries(self) -> BotoEmr:
        return BotoEmr(self.emr._single_try, self.emr._single_try)


@dataclass
class Service:
    server: EmrServer
    boto: Boto
    clock: ManualClock
    steps: ScriptedSteps
    settings: EmrSettings = field(init=False)
    serverless_settings: EmrServerlessSettings = field(init=False)

    def __post_init__(self) -> None:
        here = {"region": REGION, "endpoint_url": self.server.url}
        self.settings = SETTINGS.model_copy(update=here)
        self.serverless_settings = SERVERLESS_SETTINGS.model_copy(update=here | {"application_id": APPLICATION})

    def cluster(self, owner: str = "first") -> EmrCluster:
        return EmrCluster(self.boto.emr, self.settings, ClusterRoom(), owner, self.clock)

    def serverless(self, owner: str = "first") -> EmrServerlessCluster:
        return EmrServerlessCluster(self.boto.serverless, self.serverless_settings, ClusterRoom(), owner, self.clock)

    def launched(self, cluster: EmrCluster, job: SparkJob | None = None) -> EmrJob:
        running = cluster.attach(cluster.launch(job or job_of(), ON_DEMAND))
        assert running is not None
        return running

    def runs(self, job: EmrJob) -> None:
        """Until its step runs."""
        self.clock.sleep(UNTIL_IT_RUNS)
        assert job.status() == JobRunning()

    def names_live(self) -> list[str]:
        return [cluster.request["Name"] for cluster in self.server.emr.live()]


@pytest.fixture(scope="module")
def empty_server() -> Iterator[tuple[EmrServer, Boto]]:
    clock, steps = ManualClock(), ScriptedSteps()
    with aws_environment(), emr_server(EmrAccount(clock, steps), ServerlessAccount(clock, steps)) as server:
        boto = Boto(BotoEmr.open(REGION, server.url), BotoEmrServerless.open(APPLICATION, REGION, server.url))
        yield server, boto


@pytest.fixture
def service(empty_server: tuple[EmrServer, Boto]) -> Service:
    server, boto = empty_server
    clock, steps = ManualClock(), ScriptedSteps()
    server.reset(EmrAccount(clock, steps), ServerlessAccount(clock, steps, (APPLICATION,)))
    return Service(server, boto, clock, steps)


# ------------------------------------------------------------------------------------------------------------ EMR


def test_a_session_gets_a_cluster_that_ends_with_its_step(service: Service) -> None:
    job = service.launched(service.cluster())
    assert job.status() == JobRunning()
    service.runs(job)
    ((command, step),) = service.steps.started
    assert parse_submit(command).program_arguments == job_arguments(job_of())
    step.exit_code = 0
    assert job.status() == JobSucceeded()
    service.clock.sleep(UNTIL_IT_IS_GONE)
    assert job.status() == JobSucceeded()
    assert service.server.emr.live() == []


@pytest.mark.parametrize("is_fleet", [True, False])
def test_nodes_on_spot_that_ec2_does_not_grant_cost_nothing_and_those_in_their_place_what_they_cost_on_demand(
    service: Service, is_fleet: bool
) -> None:
    service.settings = service.settings.model_copy(update={"use_fleets": is_fleet})
    service.server.emr.spot_is_short = True
    reference = service.cluster().launch(job_of(), WITH_SPOT)
    job = service.cluster("second").attach(reference)
    assert job is not None
    service.clock.sleep(1_200)
    use, prices = job.use(WITH_SPOT), ClusterRoom().prices
    assert use is not None
    replaced = 2 * 600 if is_fleet else 0  # after the ten minutes that a fleet waits for Spot
    assert (use.on_demand_seconds, use.spot_seconds, use.spot_usd) == (
        1_200 * (1 + WITH_SPOT.core_nodes) + replaced,
        0,
        0,
    )
    worker = prices.instance_type(WITH_SPOT.instance_type)
    primary = prices.instance_type(WITH_SPOT.primary_instance_type or "")
    paid = 1_200 * primary.usd_hour() + (1_200 * WITH_SPOT.core_nodes + replaced) * worker.usd_hour()
    assert use.instances_usd == pytest.approx(paid / 3_600)


def test_an_attempt_is_launched_once_whoever_asks(service: Service) -> None:
    first = service.cluster().launch(job_of(), ON_DEMAND)
    assert service.cluster("second").launch(job_of(), ON_DEMAND) == first
    assert service.cluster("second").launch(job_of(attempt=2), ON_DEMAND) != first
    assert service.names_live() == [job_of().name, job_of(attempt=2).name]


def test_an_attempt_whose_cluster_has_ended_is_not_launched_again_and_is_found_for_days(service: Service) -> None:
    cluster = service.cluster()
    job = service.launched(cluster)
    job.stop()
    service.clock.sleep(UNTIL_IT_IS_GONE)
    assert cluster.launch(job_of(), ON_DEMAND) == job.reference
    service.clock.sleep(3 * 86_400)
    assert cluster.find(job_of().name) == job.reference
    assert len(service.server.requests_of("RunJobFlow")) == 1


def test_fleets_may_have_any_type_that_is_like_the_planned_one(service: Service) -> None:
    service.settings = service.settings.model_copy(update={"use_fleets": True})
    service.cluster().launch(job_of(), ON_DEMAND)
    (request,) = service.server.requests_of("RunJobFlow")
    core = request["Instances"]["InstanceFleets"][1]
    types = [each["InstanceType"] for each in core["InstanceTypeConfigs"]]
    assert types[0] == "r6g.4xlarge"
    assert {each.split(".")[1] for each in types} == {"4xlarge"}
    assert len(types) > 3


def test_where_money_is_limited_fleets_have_no_type_that_costs_more_than_the_planned_one(service: Service) -> None:
    service.settings = service.settings.model_copy(update={"use_fleets": True})
    room = ClusterRoom(ClusterLimits(usd_max=10))
    plan = ON_DEMAND.model_copy(update={"instance_type": "r5.4xlarge"})
    EmrCluster(service.boto.emr, service.settings, room, "first", service.clock).launch(job_of(), plan)
    (request,) = service.server.requests_of("RunJobFlow")
    core = request["Instances"]["InstanceFleets"][1]
    types = [each["InstanceType"] for each in core["InstanceTypeConfigs"]]
    assert types == ["r5.4xlarge", "r6i.4xlarge", "r6g.4xlarge", "r6gd.4xlarge"]


def test_a_job_without_a_cluster_in_its_plan_is_refused(service: Service) -> None:
    with pytest.raises(Invalid, match="has no cluster in its plan"):
        service.cluster().launch(job_of())
    with pytest.raises(Invalid, match="has no cluster in its plan"):
        service.serverless().launch(job_of())


@pytest.mark.parametrize("unlisted_seconds", [0.0, 60.0])
def test_a_lost_answer_to_a_launch_launches_no_second_cluster(service: Service, unlisted_seconds: float) -> None:
    """Also while EMR's listings do not have the new cluster yet."""
    service.server.emr.unlisted_seconds = unlisted_seconds
    service.server.faults.append(AnswerLost("RunJobFlow"))
    launched = launch_once(service.cluster(), job_of(), ON_DEMAND)
    assert isinstance(launched, tuple)
    assert service.names_live() == [job_of().name]
    assert launched[0].ids == {"cluster_id": service.server.emr.live()[0].cluster_id}
    assert len(service.server.requests_of("RunJobFlow")) == 1


def test_a_successor_finds_a_cluster_that_was_launched_just_now(service: Service) -> None:
    service.server.emr.unlisted_seconds = 60.0
    reference = service.cluster().launch(job_of(), ON_DEMAND)
    assert service.cluster("second").find(job_of().name) == reference


def test_a_launch_that_never_arrived_is_a_failed_attempt_once_no_listing_can_lag_any_more(service: Service) -> None:
    service.server.faults.append(Away("RunJobFlow"))
    began_ms = service.clock.now_ms()
    failed = launch_once(service.cluster(), job_of(), ON_DEMAND)
    assert isinstance(failed, AttemptFailed)
    assert failed.error_kind is ErrorKind.UNAVAILABLE
    assert service.clock.now_ms() - began_ms == sum(SEARCH_PAUSES_SECONDS) * 1000
    assert len(service.server.requests_of("RunJobFlow")) == 1


def test_a_launch_that_was_refused_is_not_searched_for(service: Service) -> None:
    service.server.faults.append(Throttled("RunJobFlow"))
    failed = launch_once(service.cluster(), job_of(), ON_DEMAND)
    assert failed == AttemptFailed(
        ErrorKind.UNAVAILABLE, ("EMR launches no cluster: Rate exceeded (ThrottlingException)",)
    )
    assert [name for name, _ in service.server.requests] == ["ListClusters", "ListClusters", "RunJobFlow"]


def test_a_cluster_is_found_among_many_by_its_name(service: Service) -> None:
    cluster = service.cluster()
    wanted = cluster.launch(job_of("run-1.77"), ON_DEMAND)
    for number in range(60):
        cluster._service.run_job_flow(request_of_somebody_else(service, f"cluster {number}"))
    assert cluster.find(job_of("run-1.77").name) == wanted
    assert cluster.find(job_of("run-1.78").name) is None


def request_of_somebody_else(service: Service, name: str) -> dict[str, object]:
    (ours, *_) = service.server.requests_of("RunJobFlow")
    return {**ours, "Name": name, "Tags": []}


def test_a_cluster_of_the_same_name_that_lithify_did_not_launch_is_left_alone(service: Service) -> None:
    cluster = service.cluster()
    service.launched(cluster, job_of("run-1.2"))
    cluster._service.run_job_flow(request_of_somebody_else(service, job_of().name))
    assert cluster.find(job_of().name) is None


def test_a_dispatcher_attaches_to_what_another_launched(service: Service) -> None:
    reference = service.cluster().launch(job_of(), ON_DEMAND)
    again = ClusterReference.model_validate_json(reference.model_dump_json())
    job = service.cluster("second").attach(again)
    assert job is not None
    service.runs(job)
    service.steps.started[0][1].exit_code = 0
    assert job.status() == JobSucceeded()
    assert service.cluster().attach(again.model_copy(update={"region": "eu-west-1"})) is None
    assert service.cluster().attach(again.model_copy(update={"kind": "local"})) is None


@pytest.mark.parametrize(
    ("mishap", "kind"),
    [
        (NO_CAPACITY, NoCapacity),
        (OVER_QUOTA, NoCapacity),
        (ROLE_WITHOUT_RIGHTS, ErrorKind.DENIED),
        (BOOTSTRAP_FAILED, ErrorKind.CRASHED),
        (SPOT_LOST, ErrorKind.UNAVAILABLE),
    ],
    ids=lambda value: value.message if isinstance(value, Mishap) else "",
)
def test_a_cluster_that_came_to_nothing_says_why(
    service: Service, mishap: Mishap, kind: type[NoCapacity] | ErrorKind
) -> None:
    service.server.emr.mishaps.append(mishap)
    job = service.launched(service.cluster())
    for _ in range(10):
        service.clock.sleep(60)
        status = job.status()
    assert isinstance(status, NoCapacity | JobFailed)
    assert mishap.message in status.reason
    assert isinstance(status, NoCapacity) if kind is NoCapacity else status.error_kind is kind  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("exit_code", "output", "kind"),
    [
        (1, "ValueError: no", ErrorKind.CRASHED),
        (137, "", ErrorKind.OUT_OF_MEMORY),
        (1, "java.lang.OutOfMemoryError: Java heap space", ErrorKind.OUT_OF_MEMORY),
        (3, "", ErrorKind.FENCED),
        (2, "there is no such table", ErrorKind.INVALID),
    ],
)
def test_a_step_that_failed_says_why_and_where_its_log_lies(
    service: Service, exit_code: int, output: str, kind: ErrorKind
) -> None:
    job = service.launched(service.cluster())
    service.runs(job)
    step = service.steps.started[0][1]
    step.output, step.exit_code = output, exit_code
    status = job.status()
    assert isinstance(status, JobFailed)
    assert status.error_kind is kind
    assert output in status.reason
    assert "stderr.gz" in status.reason


def test_a_cluster_is_stopped_and_may_be_asked_to_again(service: Service) -> None:
    job = service.launched(service.cluster())
    service.runs(job)
    job.stop()
    job.stop()
    assert job.status() == JobRunning()  # its machines still go away
    service.clock.sleep(UNTIL_IT_IS_GONE)
    assert isinstance(job.status(), JobFailed)
    assert service.steps.started[0][1].stopped
    job.stop()


def test_a_cluster_terminated_by_others_is_reported(service: Service) -> None:
    job = service.launched(service.cluster())
    service.runs(job)
    service.server.emr.terminate_job_flows({"JobFlowIds": [job.reference.ids["cluster_id"]]})
    service.clock.sleep(UNTIL_IT_IS_GONE)
    status = job.status()
    assert isinstance(status, JobFailed)
    assert "terminated by somebody" in status.reason


def test_a_cluster_that_emr_has_forgotten_has_vanished(service: Service) -> None:
    cluster = service.cluster()
    job = service.launched(cluster)
    service.server.emr.clusters.clear()
    assert isinstance(job.status(), JobVanished)
    job.stop()


def test_a_cluster_that_cannot_be_ended_is_reported_with_its_location(service: Service) -> None:
    job = service.launched(service.cluster())
    service.server.emr.clusters[job.reference.ids["cluster_id"]].protected = True
    with pytest.raises(Unavailable, match=r"EMR cluster j-\d+ in us-east-1, logs at s3://.* cannot be ended"):
        job.stop()


def test_a_service_that_refuses_now_is_unavailable_and_one_that_denies_is_denied(service: Service) -> None:
    cluster = EmrCluster(service.boto.without_retries(), service.settings, ClusterRoom(), "first", service.clock)
    job = service.launched(cluster)
    service.server.faults.append(Throttled("DescribeCluster"))
    with pytest.raises(Unavailable, match="cannot be described"):
        job.status()
    service.server.faults.append(Denies("DescribeCluster"))
    with pytest.raises(Denied):
        job.status()
    assert job.status() == JobRunning()


def test_a_request_that_can_never_work_is_invalid(service: Service) -> None:
    service.settings = service.settings.model_copy(update={"release_label": "emr-seven"})
    with pytest.raises(Invalid, match="release label is invalid"):
        service.cluster().launch(job_of(), ON_DEMAND)


def test_two_places_differ_by_region_and_endpoint(service: Service) -> None:
    here = service.cluster().place
    service.settings = service.settings.model_copy(update={"region": "eu-west-1"})
    assert service.cluster().place != here


# ----------------------------------------------------------------------------------------------------- Serverless


def test_a_session_gets_a_job_run_on_serverless(service: Service) -> None:
    cluster = service.serverless()
    job = cluster.attach(cluster.launch(job_of(), ON_DEMAND))
    assert job is not None
    for _ in range(4):
        assert job.status() == JobRunning()
        service.clock.sleep(10)
    ((command, step),) = service.steps.started
    assert parse_submit(command).program_arguments == job_arguments(job_of())
    step.exit_code = 0
    assert job.status() == JobSucceeded()


def test_a_job_run_is_started_once_whoever_asks_and_whatever_was_lost(service: Service) -> None:
    service.server.faults.append(AnswerLost("StartJobRun"))
    first = service.serverless().launch(job_of(), ON_DEMAND)
    assert service.serverless("second").launch(job_of(), ON_DEMAND) == first
    assert service.serverless().find(job_of().name) == first
    assert len(service.server.serverless.job_runs) == 1


@pytest.mark.parametrize(
    ("details", "kind"),
    [
        (NO_SERVERLESS_CAPACITY, NoCapacity),
        ("Job failed. ExitCode: 137.", ErrorKind.OUT_OF_MEMORY),
        ("Job failed. ExitCode: 1.", ErrorKind.CRASHED),
    ],
)
def test_a_job_run_that_failed_says_why(service: Service, details: str, kind: type[NoCapacity] | ErrorKind) -> None:
    service.server.serverless.mishaps.append(details)
    cluster = service.serverless()
    job = cluster.attach(cluster.launch(job_of(), ON_DEMAND))
    assert job is not None
    service.clock.sleep(60)
    status = job.status()
    assert isinstance(status, NoCapacity) if kind is NoCapacity else status.error_kind is kind  # type: ignore[union-attr]


def test_a_job_run_is_stopped_and_may_be_asked_to_again(service: Service) -> None:
    cluster = service.serverless()
    job = cluster.attach(cluster.launch(job_of(), ON_DEMAND))
    assert job is not None
    job.stop()
    job.stop()
    service.clock.sleep(60)
    assert isinstance(job.status(), JobFailed)
    job.stop()
    assert cluster.find(job_of().name) == job.reference
    assert cluster.find(job_of(attempt=2).name) is None


# ---------------------------------------------------------------------------------------------------------- sweep


@dataclass
class Swept:
    """A sweep, and the attempts that logs name."""

    service: Service
    owned: set[str] = field(default_factory=set)
    unreadable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.sweep = Sweep(self.service.cluster(), STATE, self.owners, self.service.clock, interval_seconds=300)

    def owners(self, job_run_tags: frozenset[str]) -> Owners:
        return Owners(frozenset(self.owned), self.unreadable)

    def look_and_end(self) -> list[str]:
        """The names of what was ended."""
        return [job.name for job in self.sweep.end(self.sweep.look().to_end)]


def test_a_job_without_an_owner_is_ended_after_two_looks_an_interval_apart(service: Service) -> None:
    swept = Swept(service)
    owned, ownerless = job_of("run-1.1"), job_of("run-1.2")
    for job in (owned, ownerless):
        service.launched(service.cluster(), job)
    swept.owned.add(owned.name)
    assert swept.look_and_end() == []
    service.clock.sleep(299)
    assert swept.look_and_end() == []
    service.clock.sleep(1)
    assert swept.look_and_end() == [ownerless.name]
    service.clock.sleep(UNTIL_IT_IS_GONE)
    assert service.names_live() == [owned.name]
    assert swept.look_and_end() == []


def test_a_look_alone_ends_nothing(service: Service) -> None:
    swept = Swept(service)
    service.launched(service.cluster())
    for _ in range(3):
        look = swept.sweep.look()
        service.clock.sleep(400)
    assert [job.name for job in look.to_end] == [job_of().name]
    assert service.names_live() == [job_of().name]
    assert service.server.requests_of("TerminateJobFlows") == []


def test_a_cluster_whose_log_entry_came_late_is_kept(service: Service) -> None:
    swept = Swept(service)
    service.launched(service.cluster())
    assert [job.name for job in swept.sweep.look().ownerless] == [job_of().name]
    assert swept.sweep.ownerless_count == 1
    swept.owned.add(job_of().name)
    service.clock.sleep(300)
    assert swept.look_and_end() == []
    assert swept.sweep.ownerless_count == 0
    swept.owned.clear()  # the two looks are counted anew
    assert swept.look_and_end() == []


def test_the_clusters_of_another_state_store_are_never_touched(service: Service) -> None:
    swept = Swept(service)
    service.launched(service.cluster(), job_of(state=StoreLocation("s3://another/root")))
    assert swept.sweep.look().ownerless == ()
    service.clock.sleep(300)
    assert swept.look_and_end() == []


def test_jobs_that_lithify_did_not_launch_are_never_ended(service: Service) -> None:
    swept = Swept(service)
    job = service.launched(service.cluster())
    service.cluster()._service.run_job_flow(request_of_somebody_else(service, job_of("run-1.9").name))
    swept.owned.add(job_of().name)
    swept.look_and_end()
    service.clock.sleep(300)
    assert swept.look_and_end() == []
    assert len(service.names_live()) == 2
    job.stop()


def test_the_clusters_of_a_job_run_whose_log_cannot_be_read_are_kept(service: Service) -> None:
    swept = Swept(service, unreadable=("run-1",))
    service.launched(service.cluster())
    swept.look_and_end()
    service.clock.sleep(300)
    assert swept.look_and_end() == []


def test_an_earlier_attempt_that_still_runs_is_ended(service: Service) -> None:
    swept = Swept(service)
    for attempt in (1, 2):
        service.launched(service.cluster(), job_of(attempt=attempt))
    swept.owned.add(job_of(attempt=2).name)
    swept.look_and_end()
    service.clock.sleep(300)
    assert swept.look_and_end() == [job_of(attempt=1).name]


def test_a_cluster_that_cannot_be_ended_is_looked_at_again(service: Service) -> None:
    swept = Swept(service)
    job = service.launched(service.cluster())
    fake = service.server.emr.clusters[job.reference.ids["cluster_id"]]
    fake.protected = True
    swept.look_and_end()
    service.clock.sleep(300)
    assert swept.look_and_end() == []
    fake.protected = False
    assert swept.look_and_end() == [job_of().name]


@pytest.mark.parametrize(("billed_after_seconds", "is_told"), [(0, True), (12, True), (10**6, False)])
def test_the_bill_of_serverless_is_read_though_it_comes_some_seconds_after_the_end(
    service: Service, billed_after_seconds: float, is_told: bool
) -> None:
    service.server.serverless.billed_after_seconds = billed_after_seconds
    cluster = service.serverless()
    job = cluster.attach(cluster.launch(job_of(), ON_DEMAND))
    assert job is not None
    service.clock.sleep(UNTIL_IT_RUNS)
    assert job.status() == JobRunning()
    service.clock.sleep(1_800)
    service.steps.started[0][1].exit_code = 0
    assert job.status() == JobSucceeded()
    ended_at_seconds = service.clock.monotonic_seconds()
    use = job.use(ON_DEMAND)
    assert (use is not None and use.usd > 4 * 0.5 * 0.052624) == is_told
    assert service.clock.monotonic_seconds() - ended_at_seconds <= 30


def test_ownerless_job_runs_of_serverless_are_ended_likewise(service: Service) -> None:
    cluster = service.serverless()
    cluster.launch(job_of(), ON_DEMAND)
    sweep = Sweep(cluster, STATE, lambda _: Owners(frozenset()), service.clock, interval_seconds=300)
    assert [job.name for job in sweep.look().ownerless] == [job_of().name]
    service.steps.ends_with = None
    service.clock.sleep(300)
    assert [job.name for job in sweep.end(sweep.look().to_end)] == [job_of().name]
    service.clock.sleep(60)
    assert service.server.serverless.live() == []
