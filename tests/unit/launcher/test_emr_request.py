"""What EMR is asked for, letter by letter, and what botocore and the service's own rules say of it.

`python -m tests.unit.launcher.test_emr_request` writes the golden files anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from compactor.model.errors import Invalid
from compactor.planning.cluster_plan import ClusterPlan, Cost, PaidRates
from compactor.planning.machine_share import GIB
from compactor.planning.sizing import Resources
from compactor.sessions.keys import BundleFolder, SessionFolder
from compactor.storage.location import StoreLocation
from launcher.emr.request import ClusterLaunch, JsonObject, run_job_flow_request, start_job_run_request
from launcher.emr.settings import EmrServerlessSettings, EmrSettings, SecurityGroups, state_digest, tags_of
from launcher.spark_job import SparkJob
from tests.fakes.emr_account import check_job_flow
from tests.fakes.emr_server import EMR, SERVERLESS
from tests.fakes.emr_shapes import check_request
from tests.fakes.emr_steps import parse_submit, serverless_command

GOLDEN = Path(__file__).parents[2] / "golden" / "emr"

SETTINGS = EmrSettings(
    kind="emr",
    region="eu-west-1",
    release_label="emr-7.13.0",
    subnet_ids=("subnet-0123456789abcdef0",),
    service_role="EMR_DefaultRole",
    instance_profile="EMR_EC2_DefaultRole",
    archive_uri="s3://code/lithify.tar.gz",
    log_uri="s3://logs/emr/",
)
WITH_EVERYTHING = SETTINGS.model_copy(
    update={
        "release_label": "emr-spark-8.0.0",
        "subnet_ids": ("subnet-0123456789abcdef0", "subnet-0123456789abcdef1"),
        "use_fleets": True,
        "security_configuration": "encrypted",
        "security_groups": SecurityGroups(primary="sg-01234567", nodes="sg-89abcdef", service_access="sg-0000000a"),
        "tags": {"cost-centre": "42"},
        "spark_settings": {"spark.hadoop.fs.s3a.threads.max": "64"},
    }
)
SERVERLESS_SETTINGS = EmrServerlessSettings(
    kind="emr_serverless",
    region="eu-west-1",
    application_id="00f1abcdefgh2345",
    execution_role_arn="arn:aws:iam::123456789012:role/jobs",
    archive_uri="s3://code/lithify.tar.gz",
    program_uri="s3://code/main.py",
    log_uri="s3://logs/emr/",
)
RATES = PaidRates(
    instances_usd_hour=2.4,
    surcharge_usd_hour=0.6,
    volumes_usd_hour=0.1,
    put_usd_1000=0.005,
    get_usd_1000=0.0004,
    storage_usd_gib_month=0.023,
    priced_on="2026-11-01",
)
COST = Cost(
    seconds=600,
    instances_usd=0.4,
    surcharge_usd=0.1,
    volumes_usd=0.02,
    requests_usd=0.01,
    storage_usd=0.0,
    start_usd=0.3,
    total_usd=0.53,
    priced_on="2026-11-01",
)
ON_DEMAND = ClusterPlan(
    region="eu-west-1",
    instance_type="r6g.4xlarge",
    nodes=3,
    nodes_max=6,
    primary_instance_type="r6g.xlarge",
    executors_per_node=2,
    executor_cores=8,
    executor_heap_bytes=4 * GIB,
    executor_overhead_bytes=52 * GIB,
    task_memory_bytes=6 * GIB,
    driver_heap_bytes=4 * GIB,
    driver_overhead_bytes=4 * GIB,
    scratch_volumes_per_node=2,
    scratch_volume_gib=128,
    start_seconds=420.0,
    expected_sla=660.0,
    rates=RATES,
    cost=COST,
)
WITH_SPOT = ON_DEMAND.model_copy(update={"spot_nodes": 2})


def launch(plan: ClusterPlan, own_tags: Mapping[str, str] = MappingProxyType({}), name: str = "") -> ClusterLaunch:
    state = StoreLocation("s3://state/root", None, "eu-west-1")
    key = SessionFolder("nightly", "nightly.1").plan(2).key
    job = SparkJob(name or "lithify-nightly-1-a2-5f0c9d1e7a3b", state, key, 2, Resources(6 * GIB, 48))
    return ClusterLaunch(job, tags_of(job, "host/1/abc", own_tags), plan)


def requests() -> dict[str, JsonObject]:
    everything = launch(WITH_SPOT, WITH_EVERYTHING.tags)
    return {
        "groups_on_demand": run_job_flow_request(launch(ON_DEMAND), SETTINGS),
        "groups_with_spot": run_job_flow_request(launch(WITH_SPOT), SETTINGS),
        "fleets_with_everything": run_job_flow_request(everything, WITH_EVERYTHING, ["r6gd.4xlarge"]),
        "serverless": start_job_run_request(launch(ON_DEMAND), SERVERLESS_SETTINGS),
    }


def rendered(request: JsonObject) -> str:
    return json.dumps(request, indent=2, sort_keys=True) + "\n"


NAMES = sorted(requests())
OF_CLUSTERS = [name for name in NAMES if name != "serverless"]


@pytest.mark.parametrize("name", NAMES)
def test_a_request_is_the_golden_one(name: str) -> None:
    assert rendered(requests()[name]) == (GOLDEN / f"{name}.json").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_request_is_one_that_boto3_and_the_service_take(name: str) -> None:
    request = requests()[name]
    if name == "serverless":
        check_request(SERVERLESS.operation_model("StartJobRun"), request)
    else:
        check_request(EMR.operation_model("RunJobFlow"), request)
        check_job_flow(request)


@pytest.mark.parametrize("name", OF_CLUSTERS)
def test_a_cluster_ends_with_its_one_step_whatever_comes_of_it(name: str) -> None:
    request: Any = requests()[name]
    (step,) = request["Steps"]
    assert step["ActionOnFailure"] == "TERMINATE_CLUSTER"
    assert request["Instances"]["KeepJobFlowAliveWhenNoSteps"] is False
    assert request["Instances"]["TerminationProtected"] is False
    assert request["AutoTerminationPolicy"] == {"IdleTimeout": 600}


@pytest.mark.parametrize("name", NAMES)
def test_the_job_runs_with_the_python_of_the_archive_and_yarn_tries_nothing_again(name: str) -> None:
    request: Any = requests()[name]
    command = (
        serverless_command(request["jobDriver"])
        if name == "serverless"
        else request["Steps"][0]["HadoopJarStep"]["Args"]
    )
    submit = parse_submit(command)
    assert submit.archives == ("s3://code/lithify.tar.gz#environment",)
    assert submit.program_arguments[-2:] == ("--attempt", "2")
    python = "./environment/bin/python"
    if name == "serverless":
        assert submit.program == "s3://code/main.py"
        assert submit.conf["spark.emr-serverless.driverEnv.PYSPARK_PYTHON"] == python
        assert submit.conf["spark.executorEnv.PYSPARK_PYTHON"] == python
    else:
        assert submit.conf["spark.pyspark.driver.python"] == submit.conf["spark.pyspark.python"] == python
        assert submit.conf["spark.yarn.maxAppAttempts"] == "1"


@pytest.mark.parametrize("name", NAMES)
def test_there_are_as_many_tasks_as_planned_from_the_start_and_more_only_where_nodes_may_come(name: str) -> None:
    request: Any = requests()[name]
    command = (
        serverless_command(request["jobDriver"])
        if name == "serverless"
        else request["Steps"][0]["HadoopJarStep"]["Args"]
    )
    conf = parse_submit(command).conf
    cores = int(conf["spark.executor.cores"])
    executors = [int(conf[f"spark.dynamicAllocation.{each}Executors"]) for each in ("initial", "min", "max")]
    assert [each * cores for each in executors] == [48, 48, 96]


def test_a_worker_of_serverless_has_8_gb_a_vcpu() -> None:
    request: Any = requests()["serverless"]
    conf = parse_submit(serverless_command(request["jobDriver"])).conf
    memory = [int(conf[f"spark.executor.{each}"].removesuffix("g")) for each in ("memory", "memoryOverhead")]
    assert (int(conf["spark.executor.cores"]), sum(memory)) == (2, 16)


@pytest.mark.parametrize(("overhead_gib", "vcpus"), [(4, 2), (26, 4), (56, 8), (57, 16)])
def test_the_driver_of_serverless_has_as_many_vcpus_as_its_memory_needs(overhead_gib: int, vcpus: int) -> None:
    plan = ON_DEMAND.model_copy(
        update={"driver_heap_bytes": 4 * GIB, "driver_overhead_bytes": overhead_gib * GIB, "task_memory_bytes": 2**30}
    )
    request: Any = start_job_run_request(launch(plan), SERVERLESS_SETTINGS)
    conf = parse_submit(serverless_command(request["jobDriver"])).conf
    assert (conf["spark.driver.cores"], conf["spark.driver.memoryOverhead"]) == (str(vcpus), f"{overhead_gib}g")
    too_much = plan.model_copy(update={"driver_overhead_bytes": 200 * GIB})
    with pytest.raises(
        Invalid, match=r"planned with 204 GiB, and one on EMR Serverless has at most 120: ask for fewer"
    ):
        start_job_run_request(launch(too_much), SERVERLESS_SETTINGS)


def test_spot_nodes_are_task_nodes_and_what_passes_between_tasks_lies_on_demand() -> None:
    request: Any = requests()["groups_with_spot"]
    found = {
        (group["InstanceRole"], group["Market"]): group["InstanceCount"]
        for group in request["Instances"]["InstanceGroups"]
    }
    assert found == {("MASTER", "ON_DEMAND"): 1, ("CORE", "ON_DEMAND"): 1, ("TASK", "SPOT"): 2}
    limits = request["ManagedScalingPolicy"]["ComputeLimits"]
    assert (limits["MinimumCapacityUnits"], limits["MaximumCapacityUnits"]) == (3, 6)
    assert limits["MaximumOnDemandCapacityUnits"] == limits["MaximumCoreCapacityUnits"] == 1


def test_the_tags_say_whose_attempt_it_is_and_of_which_state() -> None:
    tags = launch(ON_DEMAND).tags
    assert tags["lithify-state"] == state_digest(StoreLocation("s3://state/root"))
    assert (tags["lithify-job-run"], tags["lithify-session"], tags["lithify-attempt"]) == ("nightly", "nightly.1", "2")
    assert tags["lithify-owner"] == "host/1/abc"


def test_the_tags_of_a_bundle_name_it_in_place_of_a_session_so_that_earlier_releases_do_not_end_it() -> None:
    job = SparkJob("name", StoreLocation("s3://state"), BundleFolder("nightly", "b-1").plan.key, 1, Resources(GIB, 1))
    tags = tags_of(job, "owner", {})
    assert (tags["lithify-job-run"], tags["lithify-bundle"]) == ("nightly", "b-1")
    assert "lithify-session" not in tags


def test_ids_that_no_tag_takes_are_cleaned_in_tags() -> None:
    key = SessionFolder("日本#" + "x" * 300, "s").plan(1).key
    job = SparkJob("name", StoreLocation("s3://state"), key, 1, Resources(GIB, 1))
    tags = tags_of(job, "owner", {})
    assert tags["lithify-job-run"] == "-" + "x" * 255


def test_state_stores_are_told_apart() -> None:
    places = [
        StoreLocation("s3://state"),
        StoreLocation("s3://state/a"),
        StoreLocation("s3://state", "http://127.0.0.1:1"),
    ]
    assert len({state_digest(place) for place in places}) == 3


def test_a_job_run_is_started_once_with_a_token_that_follows_from_its_name() -> None:
    one: Any = requests()["serverless"]
    other: Any = start_job_run_request(launch(ON_DEMAND, name="another"), SERVERLESS_SETTINGS)
    assert one["clientToken"] != other["clientToken"]
    assert len(one["clientToken"]) == 64


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, request in requests().items():
        (GOLDEN / f"{name}.json").write_text(rendered(request))
