"""Job runs whose sessions run on EMR: queue, dispatcher and boto3 against the fake service. Steps are threads here.

What the same way costs with processes, kills and a real Spark is in `tests/spark/killed_dispatchers.py`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.events.types import SessionSucceededEvent
from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.planning.bundle_plan import BundlePlan
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan
from compactor.planning.where_to_run import WorkerPool
from compactor.sessions.keys import BundleFolder, SessionFolder
from compactor.storage.location import StoreLocation
from compactor.storage.opening import open_store
from dispatcher.records.job_run_events import SessionPlannedEvent
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from launcher.clusters.workers import Workers, WorkersSettings
from launcher.poller import PollerSettings
from launcher.spark_job import InFlight, SparkJob, job_name
from tests.conftest import Command
from tests.contract.cluster_places import AwsService, Does, EmrPlace, EmrServerlessPlace
from tests.e2e.conftest import REPOSITORY, House, Mailroom
from tests.fakes.dispatch_desk import instruction
from tests.fakes.emr_account import (
    NO_CAPACITY,
    OVER_QUOTA,
    ROLE_WITHOUT_RIGHTS,
    EmrAccount,
    Mishap,
)
from tests.fakes.emr_server import emr_server
from tests.fakes.emr_serverless_account import ServerlessAccount
from tests.fakes.emr_steps import ScriptedSteps
from tests.servers import BUCKET, REGION, seaweedfs_server
from tests.unit.launcher.test_emr_request import ON_DEMAND
from tests.unit.launcher.test_emr_settings import EMR
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

DAYS = "ACME.DAYS.V1"


@pytest.fixture(scope="module")
def aws_service(endpoint_url: str) -> Iterator[AwsService]:
    clock, steps = SystemClock(), ScriptedSteps()
    with emr_server(EmrAccount(clock, steps), ServerlessAccount(clock, steps)) as server:
        yield AwsService.open(server)


@pytest.fixture
def place(house: House, aws_service: AwsService) -> EmrPlace:
    found = EmrPlace(aws_service, house.state)
    found.jobs_do(Does.RUNS_SESSION)
    found.let_go()
    return found


def dispatch(house: House, place: EmrPlace | EmrServerlessPlace) -> None:
    house.dispatcher(until_idle=True, on_aws=place.cluster())(threading.Event())


@contextmanager
def dispatching(house: House, place: EmrPlace, stops: threading.Event | None = None) -> Iterator[Future[object]]:
    """Runs a dispatcher beside the block, until nothing is left or `stops` is set. After the block its jobs may end.

    It asks for its jobs less often than others do, since it shares the process with those that wait for it.
    """
    house.launcher = replace(house.launcher, poller=PollerSettings(poll_seconds=0.05, look_seconds=0.05))
    stops = threading.Event() if stops is None else stops
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(house.dispatcher(until_idle=True, on_aws=place.cluster()), stops)
        try:
            yield running
        except BaseException:
            stops.set()
            raise
        finally:
            place.let_go()
        running.result(60)


def session_events(mailroom: Mailroom, what: str) -> list[str]:
    """The reasons that events of this type give."""
    found = [event.data for event in mailroom.events() if event.type == f"lithify.session.{what}.v1"]
    return ["; ".join(data.reasons) for data in found]  # type: ignore[attr-defined]


def test_a_document_becomes_a_compacted_table_on_a_cluster_of_its_own(
    house: House, mailroom: Mailroom, place: EmrPlace
) -> None:
    house.append([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    house.append([{"id": 1, "v": "c"}])
    job_run_id = mailroom.send(instruction())

    dispatch(house, place)

    assert house.rows() == [{"id": 1, "v": "c"}, {"id": 2, "v": "b"}]
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    (request,) = place.server.requests_of("RunJobFlow")
    (session,) = house.job_run(job_run_id).sessions.values()
    assert session.plan is not None
    assert session.plan.cluster is not None
    groups = {each["InstanceRole"]: each for each in request["Instances"]["InstanceGroups"]}
    assert groups["CORE"]["InstanceType"] == session.plan.cluster.instance_type
    assert groups["CORE"]["InstanceCount"] == session.plan.cluster.core_nodes
    wait_until(lambda: place.running() == 0)


@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.release)])
def test_small_instructions_start_no_cluster_beside_workers(
    house: House, mailroom: Mailroom, place: EmrPlace, count: int
) -> None:
    tables = [house.lake.create_table(f"ACME.SMALL_{number}.V1") for number in range(count)]
    for number, table in enumerate(tables):
        table.append({}, pa.table({"id": [1, 2, 1], "v": [number, number, number + 1]}))
    job_runs = [mailroom.send(instruction(source_table_id=table.table_id)) for table in tables]

    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    pool = WorkerPool(workers=2, memory_bytes=256 << 20)
    settings = WorkersSettings(pool, 1 << 30, house.folder / "work", environment)
    workers = Workers(settings, SystemClock())
    house.dispatcher(until_idle=True, on_aws=place.cluster(), workers=workers)(threading.Event())

    assert {house.job_run(job_run_id).status for job_run_id in job_runs} == {JobRunStatus.SUCCEEDED}
    for number, table in enumerate(tables):
        rows = table.scan().to_table().sort_by("id").to_pylist()
        assert rows == [{"id": 1, "v": number + 1}, {"id": 2, "v": number}]
    assert place.server.requests_of("RunJobFlow") == []


@pytest.mark.parametrize(
    ("mishap", "says"),
    [
        (NO_CAPACITY, "found no capacity"),
        (ROLE_WITHOUT_RIGHTS, "met a role that lacks a right"),
        (OVER_QUOTA, "met a quota"),
    ],
    ids=["capacity", "role", "quota"],
)
def test_a_temporary_failure_is_reported_by_an_event_and_retried(
    house: House, mailroom: Mailroom, place: EmrPlace, mishap: Mishap, says: str
) -> None:
    house.append([{"id": 1, "v": "a"}])
    place.server.emr.mishaps.append(mishap)
    job_run_id = mailroom.send(instruction())

    dispatch(house, place)

    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    (reason,) = session_events(mailroom, "retried")
    assert says in reason
    assert mishap.message in reason
    assert len(place.server.requests_of("RunJobFlow")) == 2


def test_a_cluster_that_vanishes_is_reported_by_an_event_and_followed_by_another(
    house: House, mailroom: Mailroom, aws_service: AwsService
) -> None:
    place = EmrPlace(aws_service, house.state)
    place.jobs_do(Does.RUNS_SESSION)
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())

    def in_flight() -> InFlight | None:
        sessions = house.job_run(job_run_id).sessions.values() if place.launches() == 1 else ()
        return next((session.in_flight for session in sessions), None)

    with dispatching(house, place):
        wait_until(lambda: (launched := in_flight()) is not None and launched.reference is not None)
        launched = in_flight()
        assert launched is not None
        assert launched.reference is not None
        place.make_vanish(launched.reference)
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    (reason,) = session_events(mailroom, "retried")
    assert "attempt 1 vanished" in reason
    assert launched.reference.ids["cluster_id"] in reason
    assert len(place.server.requests_of("RunJobFlow")) == 2


def test_a_job_run_that_is_cancelled_leaves_no_cluster(
    house: House, mailroom: Mailroom, aws_service: AwsService, command: Command
) -> None:
    place = EmrPlace(aws_service, house.state)
    place.jobs_do(Does.RUNS_SESSION)
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    with dispatching(house, place) as running:
        wait_until(lambda: place.launches() == 1)
        assert command("cancel", job_run_id, "--state", str(house.folder / "state")).exit_code == 0
        running.result(60)
    assert house.job_run(job_run_id).status is JobRunStatus.CANCELLED
    wait_until(lambda: place.running() == 0)
    assert house.rows() == []


def append_days(lake: DeltaCatalog, days: int) -> None:
    table = lake.create_table(DAYS, ["day"])
    for day in range(days):
        table.append({"day": str(day)}, pa.table({"id": [1, 2, 1], "v": ["a", "b", "c"]}))


def rows_of_day(lake: DeltaCatalog, day: int) -> set[tuple[int, str]]:
    rows = lake.table(DAYS).scan({"day": str(day)}).to_table().to_pylist()
    assert len(rows) == 2
    return {(row["id"], row["v"]) for row in rows}


@pytest.mark.parametrize("kind", [EmrPlace, EmrServerlessPlace])
def test_small_sessions_share_a_cluster_and_its_cost(
    house: House, mailroom: Mailroom, aws_service: AwsService, kind: type[EmrPlace | EmrServerlessPlace]
) -> None:
    place = kind(aws_service, house.state)
    place.jobs_do(Does.RUNS_SESSION)
    place.let_go()
    append_days(house.lake, 5)
    job_run_id = mailroom.send(instruction(source_table_id=DAYS))

    dispatch(house, place)

    job_run = house.job_run(job_run_id)
    assert job_run.status is JobRunStatus.SUCCEEDED
    assert [rows_of_day(house.lake, day) for day in range(5)] == [{(1, "c"), (2, "b")}] * 5
    assert len(place.server.requests_of("RunJobFlow")) + len(place.server.requests_of("StartJobRun")) == 1
    (bundle,) = {session.bundle for session in job_run.sessions.values()}
    data = [event.data for event in mailroom.events()]
    planned = [each for each in data if isinstance(each, SessionPlannedEvent)]
    ended = [each for each in data if isinstance(each, SessionSucceededEvent)]
    assert {each.bundle for each in planned} == {bundle}
    assert [each.cluster is not None and each.cluster.cost.total_usd > 0 for each in planned] == [True] * 5
    assert [each.cost is not None and each.cost.total_usd > 0 for each in ended] == [True] * 5
    assert all(each.expected_cost is not None for each in ended)
    parts = {paid.use for session in job_run.sessions.values() for paid in session.paid}
    assert [part is not None and part.usd > 0 for part in parts] == [True], "equal ones, of what the nodes ran"
    wait_until(lambda: place.running() == 0)


@pytest.mark.parametrize("days", [1, 3], ids=["a session", "a bundle"])
def test_jobs_and_plans_have_the_regions_of_state_and_lake(
    house: House, mailroom: Mailroom, aws_service: AwsService, tmp_path: Path, days: int
) -> None:
    """The nodes of a cluster may know of none."""
    with seaweedfs_server(tmp_path / "s3") as url:
        house.lake = DeltaCatalog.open(f"s3://{BUCKET}/lake", endpoint_url=url)
        house.state = open_store(StoreLocation(f"s3://{BUCKET}/state", endpoint_url=url))
        house.records = JobRunStore(house.state, house.clock)
        assert (house.lake.location.region, house.state.location.region) == (None, None)
        place = EmrPlace(aws_service, house.state)
        place.jobs_do(Does.RUNS_SESSION)
        place.let_go()
        append_days(house.lake, days)
        job_run_id = mailroom.send(instruction(source_table_id=DAYS))

        dispatch(house, place)

        assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
        (request,) = place.server.requests_of("RunJobFlow")
        arguments = request["Steps"][0]["HadoopJarStep"]["Args"]
        given = dict(pairwise(arguments))
        assert given["--state-region"] == REGION
        body, key = house.state.read(given["--plan"]), given["--plan"]
        assert body is not None
        plans = (
            [SessionPlan.parse_durable(body, key)]
            if days == 1
            else [member.plan for member in BundlePlan.parse_durable(body, key).members]
        )
        assert [plan.spec.job_run.lake.region for plan in plans] == [REGION] * days


# ---------------------------------------------------------------------------------------------------------- sweep


def launch(house: House, place: EmrPlace, job_run_id: str, attempt: int = 1) -> str:
    """A cluster that waits, as a dispatcher of this state launches it. Answers its name."""
    location, session_id = house.state.location, f"{job_run_id}.1"
    name = job_name(location, job_run_id, session_id, attempt)
    key = SessionFolder(job_run_id, session_id).plan(attempt).key
    place.jobs_do(Does.WAITS)
    place.cluster().launch(SparkJob(name, location, key, attempt, Resources(1 << 30, 1)), ON_DEMAND)
    return name


def launch_bundle(house: House, place: EmrPlace, job_run_id: str) -> str:
    location, key = house.state.location, BundleFolder(job_run_id, "b-1").plan.key
    name = job_name(location, job_run_id, f"{job_run_id}.bundle.b-1", 1)
    place.jobs_do(Does.WAITS)
    place.cluster().launch(SparkJob(name, location, key, 1, Resources(1 << 30, 1)), ON_DEMAND)
    return name


@pytest.mark.parametrize("launched", [launch, launch_bundle], ids=["a session's", "a bundle's"])
def test_a_dispatcher_ends_what_nobody_owns(
    house: House, aws_service: AwsService, launched: Callable[[House, EmrPlace, str], str]
) -> None:
    place = EmrPlace(aws_service, house.state)
    launched(house, place, "gone")
    stops = threading.Event()
    dispatcher = house.dispatcher(until_idle=False, on_aws=place.cluster(), cluster_sweep_seconds=0.2)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(dispatcher, stops)
        try:
            wait_until(lambda: place.running() == 0)
        finally:
            stops.set()
        running.result(60)
    assert len(place.server.requests_of("TerminateJobFlows")) >= 1


def settings_file(house: House, place: EmrPlace, **changes: object) -> str:
    file = house.folder / "emr.json"
    file.write_text(json.dumps({**EMR, "region": REGION, "endpoint_url": place.server.url, **changes}))
    return str(file)


def clusters_of(house: House, place: EmrPlace, *more: str) -> tuple[int, dict[str, str]]:
    """What each cluster is said to be, by its name."""
    result = house.lithify(
        *("clusters", "--state", str(house.folder / "state"), "--cluster-settings", settings_file(house, place)),
        *("--output", "json", *more),
    )
    return result.exit_code, {each["name"]: each["standing"] for each in json.loads(result.out)["clusters"]}


def test_the_verb_shows_what_runs_and_ends_what_nobody_owns_only_when_it_is_told_to(
    house: House, mailroom: Mailroom, aws_service: AwsService
) -> None:
    place = EmrPlace(aws_service, house.state)
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    stops = threading.Event()
    place.jobs_do(Does.WAITS)
    with dispatching(house, place, stops):
        wait_until(lambda: place.launches() == 1)
        (session_id,) = house.job_run(job_run_id).sessions
        owned = job_name(house.state.location, job_run_id, session_id, 1)
        ownerless = launch(house, place, "gone")

        both = {owned: "owned", ownerless: "ownerless"}
        assert clusters_of(house, place) == (0, both)
        assert place.running() == 2
        ended = clusters_of(house, place, "--end", "--seconds-between-looks", "1")
        assert ended == (0, {owned: "owned", ownerless: "ended"})
        wait_until(lambda: place.running() == 1)
        assert clusters_of(house, place) == (0, {owned: "owned"})
        stops.set()


def test_the_verb_says_in_words_what_to_do(house: House, aws_service: AwsService, command: Command) -> None:
    place = EmrPlace(aws_service, house.state)
    arguments = ["clusters", "--state", str(house.folder / "state"), "--cluster-settings", settings_file(house, place)]
    assert "No cluster of this state runs." in command(*arguments).out
    launch(house, place, "gone")
    assert "To end 1 cluster that no open session owns, add --end." in command(*arguments).out
    place.let_go()


def test_the_cluster_of_a_bundle_is_owned_while_one_of_its_sessions_is_open(
    house: House, mailroom: Mailroom, aws_service: AwsService
) -> None:
    place = EmrPlace(aws_service, house.state)
    append_days(house.lake, 3)
    job_run_id = mailroom.send(instruction(source_table_id=DAYS))
    place.jobs_do(Does.RUNS_SESSION)
    with dispatching(house, place):
        wait_until(lambda: place.launches() == 1)
        code, seen = clusters_of(house, place, "--end", "--seconds-between-looks", "1")
        assert (code, list(seen.values())) == (0, ["owned"])
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED


# --------------------------------------------------------------------------------------------------- bad settings


def refused(command: Command, house: House, *options: str) -> Sequence[str]:
    result = command("dispatch", "--queue-url", "http://127.0.0.1:9/1/q", *house.options(), *options)
    assert result.exit_code == 2, result
    return result.err.splitlines()


def test_everything_that_is_wrong_with_a_cluster_is_refused_together_before_anything_is_asked(
    house: House, place: EmrPlace, command: Command, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"region": "us-east-1", "priced_on": "2999-01-01", "instance_types": [], "prize": 1}')
    file = settings_file(house, place, release_label="7.13", subnet_ids=["vpc-1"], service_role="a role")
    lines = refused(
        *(command, house, "--cluster-settings", file, "--limits", '{"session": {"nodes_min": 3, "nodes": 2}}'),
        *("--price-file", str(prices)),
    )
    for reason in (
        "release_label is '7.13': write one like emr-7.13.0",
        "subnet_ids: 'vpc-1' is no subnet",
        "service_role is 'a role': write its name, or arn:",
        "at least 3 nodes and at most 2",
        "prize",
        "/state is a folder of this machine, which the nodes of a cluster cannot reach: write s3://bucket/prefix",
        "/lake is a folder of this machine",
    ):
        assert any(reason in line for line in lines), (reason, lines)
    assert place.server.requests == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--instance-type", "m5.large"), "instance type 'm5.large' is unknown"),
        (("--limits", '{"session": {"nodes": 0}}'), "session.nodes is 0: it must be greater than or equal to 1"),
        (("--limits", '{"session": {"usd": 0}}'), "session.usd is 0: it must be greater than 0"),
        (
            ("--limits", '{"session": {"vcpus": 3}}'),
            "r5.xlarge has 4 vCPUs, and a session may take 3",
        ),
        (("--master-url", "spark://here:7077"), "--master-url and --cluster-settings name two places for sessions"),
        (("--cluster-settings", "nowhere.json"), "nowhere.json cannot be read: No such file or directory"),
    ],
)
def test_a_limit_or_a_type_that_makes_no_sense_is_refused_with_what_to_write(
    house: House, place: EmrPlace, command: Command, options: Sequence[str], reason: str
) -> None:
    lines = refused(command, house, "--cluster-settings", settings_file(house, place), *options)
    assert any(reason in line for line in lines), lines
    assert place.server.requests == []
