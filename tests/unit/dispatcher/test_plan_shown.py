"""`lithify plan`: its total, and the machine that it is asked to plan for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.engine.in_process import InProcessEngine
from compactor.model.clock import SystemClock
from compactor.planning.machine_share import GIB, session_share
from compactor.planning.session_planner import pin_sessions
from compactor.planning.spec import SessionPlan
from launcher.clusters.local import LocalCluster, LocalClusterSettings
from launcher.plan import makespan_seconds, plan_for_cluster
from tests.builders import run_of
from tests.conftest import Command

TABLE = "ACME.ORDERS.V1"
DAYS = ("1995-04-03", "1995-04-04", "1995-04-05")

Plan = Any

ON_SPARK = ("--workers", "0")
ONE_DAY = [{"day": DAYS[0]}]
"""Its session is alone: it does not share a Spark job."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Three days: two with a delta of two rows each, one of which has nothing to do any more."""
    table = DeltaCatalog.open(str(tmp_path / "lake")).create_table(TABLE, partition_keys=["day"])
    for day in DAYS[:2]:
        table.append({"day": day}, pa.table({"id": [1, 2]}))
    table.create_stream_version({"day": DAYS[2]}, state="active")
    return tmp_path / "lake"


def document(lake: Path, **fields: object) -> str:
    file = lake.parent / "document.json"
    file.write_text(json.dumps({"schema_version": "1", "source_table_id": TABLE, "primary_keys": ["id"], **fields}))
    return str(file)


def planned(command: Command, lake: Path, *options: str, **fields: object) -> Plan:
    result = command("plan", document(lake, **fields), "--lake", str(lake), "-o", "json", *options)
    assert result.exit_code == 0, result.err
    return json.loads(result.out)


def test_small_sessions_run_in_workers_and_it_says_why(command: Command, lake: Path) -> None:
    answer = planned(command, lake, "--cores", "2", "--memory-gib", "8")
    one, two, _ = answer["sessions"]
    assert answer["total"]["expected_sla"] == max(one["expected_sla"], two["expected_sla"]) < 5
    for each in (one, two):
        assert each["arithmetic"][-1].startswith("in a worker: 0.")
    in_one = planned(command, lake, "--cores", "2", "--memory-gib", "8", "--workers", "1")
    assert [each["arithmetic"][-1][:27] for each in in_one["sessions"][:2]] == [
        "number 1 of 2 sessions in o",
        "number 2 of 2 sessions in o",
    ]


def test_more_workers_than_the_memory_holds_are_refused_with_the_figures(command: Command, lake: Path) -> None:
    options = ("--memory-gib", "4", "--workers", "3")
    result = command("plan", document(lake), "--lake", str(lake), *options)
    assert result.exit_code == 2
    assert "--workers 3: 341 MiB are left for each, of 4.0 GiB for all sessions, and a worker needs 512" in result.err


def test_without_workers_small_sessions_share_a_spark_job_and_it_says_so(command: Command, lake: Path) -> None:
    answer = planned(command, lake, *ON_SPARK)
    one, two, _ = answer["sessions"]
    assert answer["total"]["expected_sla"] == max(one["expected_sla"], two["expected_sla"])
    for each in (one, two):
        assert "of 2 sessions in one Spark job" in each["arithmetic"][-1]


def test_a_session_that_takes_too_long_for_a_worker_is_planned_on_spark_with_the_reason(
    command: Command, lake: Path
) -> None:
    catalog = DeltaCatalog.open(str(lake))
    catalog.table(TABLE).append({"day": DAYS[0]}, pa.table({"id": range(5_000_000)}))
    options = ("--cores", "2", "--memory-gib", "64", "--worker-seconds", "1")
    (large,) = planned(command, lake, *options, partitions=ONE_DAY)["sessions"]
    assert "s in a worker, and 1 s or more are for Spark" in large["arithmetic"][-1]


def test_its_total_is_of_all_sessions(command: Command, lake: Path) -> None:
    answer = planned(command, lake, "--cores", "1")
    one, two, nothing = answer["sessions"]
    assert [each["delta_rows"] for each in answer["sessions"]] == [2, 2, 0]
    assert [each["partition"] for each in answer["sessions"]] == [{"day": day} for day in DAYS]
    assert nothing["nothing_to_do"]
    total = answer["total"]
    assert (total["sessions"], total["nothing_to_do"], total["delta_rows"]) == (3, 1, 4)
    assert total["expected_sla"] == max(one["expected_sla"], two["expected_sla"])
    assert total["within_desired_sla"] is None


def test_sessions_side_by_side_take_as_long_as_the_longest(command: Command, lake: Path) -> None:
    answer = planned(command, lake, "--max-sessions", "2", "--cores", "4", "--memory-gib", "8")
    assert answer["total"]["expected_sla"] == max(each.get("expected_sla", 0) for each in answer["sessions"])


def test_it_plans_for_the_cores_and_the_memory_that_it_is_told_of(command: Command, lake: Path) -> None:
    small = planned(command, lake, "--cores", "2", "--memory-gib", "4", *ON_SPARK, partitions=ONE_DAY)["sessions"][0]
    large = planned(command, lake, "--cores", "8", "--memory-gib", "64", *ON_SPARK, partitions=ONE_DAY)["sessions"][0]
    assert (small["tasks"], large["tasks"]) == (2, 8)
    assert small["task_memory_bytes"] < large["task_memory_bytes"]


def test_it_counts_on_the_scratch_folder_and_the_driver_that_a_dispatcher_with_its_options_has(
    command: Command, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_folder = tmp_path / "not" / "made" / "yet"
    monkeypatch.setattr("launcher.clusters.local.free_disk_bytes", {work_folder: 7 * GIB}.__getitem__)  # it changes
    machine = session_share(8 * GIB, 2, 2)
    settings = LocalClusterSettings(
        resources=machine[0],
        driver_memory_bytes=machine[1],
        spark_home=Path("a/spark"),
        java_home=Path("a/java"),
        work_folder=work_folder,
        environment={},
    )
    cluster = LocalCluster(settings, SystemClock())
    options = ("--cores", "2", "--memory-gib", "8", "--max-sessions", "2", "--work-folder", str(work_folder), *ON_SPARK)
    arithmetic = planned(command, lake, *options, partitions=ONE_DAY)["sessions"][0]["arithmetic"]
    catalog = DeltaCatalog.open(str(lake))
    run = run_of(catalog, TABLE)
    dispatched = plan_for_cluster(pin_sessions(run, catalog)[0].spec, catalog, cluster.resources())
    assert isinstance(dispatched, SessionPlan)
    assert tuple(arithmetic) == dispatched.arithmetic
    assert "not known" not in " ".join(arithmetic)
    assert not work_folder.exists()


@pytest.mark.parametrize(
    ("desired_sla", "holds", "verdict"),
    [(3_600, True, "within the desired 3,600 s"), (1, False, "s more than the desired 1 s on these cores")],
)
def test_its_verdict_is_about_the_whole_job_run(
    command: Command, lake: Path, desired_sla: int, holds: bool, verdict: str
) -> None:
    assert planned(command, lake, *ON_SPARK, desired_sla=desired_sla)["total"]["within_desired_sla"] is holds
    result = command("plan", document(lake, desired_sla=desired_sla), "--lake", str(lake), *ON_SPARK)
    assert result.out.count("desired") == 1
    assert verdict in result.out.splitlines()[-1]
    assert "3 sessions, 1 of them with nothing to do" in result.out
    assert "4 delta rows for 0 compacted rows" in result.out


def test_a_session_begins_where_one_has_ended() -> None:
    assert makespan_seconds([], 2) == 0
    assert makespan_seconds([5, 3, 4], 1) == 12
    assert makespan_seconds([5, 3, 4], 2) == 7
    assert makespan_seconds([5, 3, 4], 9) == 5


# -- a cluster for each session


def test_an_emr_cluster_is_chosen_for_each_session_and_its_money_is_told(command: Command, lake: Path) -> None:
    types = ("--instance-type", "r5.xlarge", "--instance-type", "r6g.xlarge")
    options = ("--cluster", "emr", *types, "--limits", '{"session": {"nodes": 3}}', *ON_SPARK)
    answer = planned(command, lake, *options)
    one, two, nothing = answer["sessions"]
    assert one["cluster"]["instance_type"] == "r6g.xlarge"
    assert one["expected_usd"] == one["cluster"]["cost"]["total_usd"] > 0
    assert one["expected_sla"] == one["cluster"]["expected_sla"] > one["cluster"]["start_seconds"]
    assert nothing["expected_usd"] is None
    assert answer["total"]["expected_usd"] == pytest.approx(one["expected_usd"] + two["expected_usd"])
    result = command("plan", document(lake), "--lake", str(lake), *options)
    assert "1 x r6g.xlarge and 1 x r6g.xlarge for the driver" in result.out
    assert f"${answer['total']['expected_usd']:,.4f} expected in all" in result.out


def test_on_this_machine_no_cluster_is_launched_and_no_money_is_told(command: Command, lake: Path) -> None:
    answer = planned(command, lake)
    assert answer["sessions"][0]["cluster"] is None
    assert answer["total"]["expected_usd"] is None


def test_limits_prices_and_instance_types_are_refused_together_with_exit_code_2(command: Command, lake: Path) -> None:
    prices = lake.parent / "prices.json"
    prices.write_text('{"region": "r", "priced_on": "2999-01-01", "instance_types": [], "colour": 1}')
    result = command(
        *("plan", document(lake), "--lake", str(lake), "--cluster", "emr"),
        *("--limits", '{"session": {"nodes_min": 3, "nodes": 2}}', "--spot-share", "2", "--price-file", str(prices)),
    )
    assert result.exit_code == 2
    for reason in ("at least 3 nodes and at most 2", "the share of nodes on Spot is 2", "colour"):
        assert reason in result.err
    assert (
        "'m5.large' is unknown"
        in command("plan", document(lake), "--lake", str(lake), "--cluster", "emr", "--instance-type", "m5.large").err
    )


@pytest.mark.parametrize("limits", ['{"session": {"usd": 0.001}}', '{"all": {"usd_per_day": 0.001}}'])
def test_a_session_that_may_not_cost_as_much_is_refused_before_anything_is_launched(
    command: Command, lake: Path, limits: str
) -> None:
    options = ("--cluster", "emr", "--limits", limits, *ON_SPARK)
    result = command("plan", document(lake), "--lake", str(lake), *options)
    assert result.exit_code == 2
    assert "and may cost $0.0010" in result.err


def test_limits_that_no_dispatcher_would_take_are_refused_by_a_plan_too(command: Command, lake: Path) -> None:
    limits = '{"session": {"usd": 5}, "job_run": {"usd": 1}}'
    result = command("plan", document(lake), "--lake", str(lake), "--cluster", "emr", "--limits", limits)
    assert result.exit_code == 2
    assert "session.usd 5 is above job_run.usd 1: lower the one, or raise the other" in result.err


def test_a_session_whose_records_fit_no_scratch_folder_is_refused_with_both_figures(
    command: Command, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.clusters.local.free_disk_bytes", lambda folder: 100)
    result = command("plan", document(lake, partitions=ONE_DAY), "--lake", str(lake), *ON_SPARK)
    assert result.exit_code == 2
    said = " ".join(result.err.split())
    assert "2 rows, whose round takes 136 bytes of scratch folders, which have 100, and a file is not cut" in said
    assert "write files of at most 1 rows, or give executors more disk" in said


def test_limits_of_clusters_are_refused_where_no_cluster_is_planned(command: Command, lake: Path) -> None:
    limits = '{"session": {"usd": 1, "nodes": 3}}'
    for given in (("--limits", limits), ("--spot-share", "0.5"), ("--instance-type", "r5.xlarge")):
        result = command("plan", document(lake), "--lake", str(lake), *given)
        assert result.exit_code == 2
        assert "add --cluster emr" in result.err


def test_limits_that_no_instance_type_fits_into_are_refused_with_the_other_limits(command: Command, lake: Path) -> None:
    limits = '{"session": {"vcpus": 2}}'
    options = ("--cluster", "emr", "--limits", limits, *ON_SPARK)
    result = command("plan", document(lake), "--lake", str(lake), *options)
    assert result.exit_code == 2
    assert "1 node of the smallest possible instance type r5.xlarge has 4 vCPUs, and a session may take 2" in result.err


def test_an_index_that_is_to_be_rehashed_is_work(command: Command, lake: Path) -> None:
    compact(TABLE, {"id"}, delta_catalog_client=DeltaCatalog.open(lake), engine=InProcessEngine())
    assert planned(command, lake)["total"]["nothing_to_do"] == len(DAYS)
    one, two, untouched = planned(command, lake, hash_bucket_count=31)["sessions"]
    for each in (one, two):
        assert not each["nothing_to_do"]
        assert each["hash_bucket_count"] == 31
        assert "rehashed from" in each["arithmetic"][0]
    assert untouched["nothing_to_do"], "it has no index"


def test_a_rehash_is_planned_alone_priced_and_without_the_deltas_that_have_come(command: Command, lake: Path) -> None:
    catalog = DeltaCatalog.open(lake)
    compact(TABLE, {"id"}, delta_catalog_client=catalog, hash_bucket_count=7, engine=InProcessEngine())
    catalog.table(TABLE).append({"day": DAYS[0]}, pa.table({"id": [3]}))
    one, two, untouched = planned(command, lake, operation="rehash", hash_bucket_count=31)["sessions"]
    for each in (one, two):
        assert (each["hash_bucket_count"], each["delta_rows"]) == (31, 0)
        assert each["arithmetic"][0] == "the index is rehashed from 7 to 31 hash buckets, as asked for"
        assert "its rows take 0.0 GB of scratch folders; no data file is read" in each["arithmetic"]
    assert untouched["nothing_to_do"], "it has no index"
    fitting = planned(command, lake, *ON_SPARK, "--cores", "3", operation="rehash", partitions=ONE_DAY)["sessions"][0]
    assert fitting["arithmetic"][0].startswith("the index is rehashed from 7 to as many hash buckets as take half of a")
    assert fitting["hash_bucket_count"] == 1
    on_emr = planned(command, lake, "--cluster", "emr", operation="rehash", partitions=ONE_DAY)
    assert on_emr["total"]["expected_usd"] > 0
    same = planned(command, lake, operation="rehash", hash_bucket_count=7)
    assert same["total"]["nothing_to_do"] == len(DAYS)


def test_a_rehash_to_what_the_index_has_is_nothing_to_do(command: Command, lake: Path) -> None:
    options = (*ON_SPARK, "--cores", "3")
    compact(TABLE, {"id"}, delta_catalog_client=DeltaCatalog.open(lake), hash_bucket_count=1, engine=InProcessEngine())
    assert planned(command, lake, *options, operation="rehash", partitions=ONE_DAY)["total"]["nothing_to_do"] == 1


def test_a_rehash_without_an_index_does_not_say_that_no_delta_is_pending(command: Command, lake: Path) -> None:
    result = command("plan", document(lake, operation="rehash", hash_bucket_count=7), "--lake", str(lake))
    said = " ".join(result.out.split())
    assert "nothing to do: there is no index, or it has the hash buckets that it should have; a rehash" in said
    assert "no delta is pending" not in said


def test_a_rehash_that_says_how_rows_are_compacted_is_refused(command: Command, lake: Path) -> None:
    file = document(lake, operation="rehash", max_rows_per_round=5, max_dead_row_share=0.5)
    result = command("plan", file, "--lake", str(lake))
    assert result.exit_code == 2
    for name in ("max_rows_per_round", "max_dead_row_share"):
        assert f"{name} is about rows, and a rehash moves none: leave it out" in result.err
    wrong = command("plan", document(lake, operation="clean"), "--lake", str(lake))
    assert "operation must be 'compact' or 'rehash', not \"clean\"" in wrong.err
