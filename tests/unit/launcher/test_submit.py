"""The command that starts a Spark job, word by word, and what a session gets of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compactor.errors import Invalid
from compactor.object_store import StoreLocation
from compactor.sizing import Resources
from compactor.spark_settings import MIB
from launcher.clusters.local import find_program, find_spark_home
from launcher.spark_conf import GIB, TASK_MEMORY_BYTES_MAX, local_spark_conf, share_of_machine
from launcher.submit import SparkJob, job_arguments, submit_arguments

GOLDEN = Path(__file__).parents[2] / "golden" / "spark_submit_local.txt"


def test_the_command_line_of_a_local_job_is_the_golden_one() -> None:
    job = SparkJob("lithify run-1 run-1.1", StoreLocation("file:///state"), "job_runs/run-1/sessions/x/plan.json", 2)
    conf = local_spark_conf(Resources(task_memory_bytes=4 * GIB, tasks=2), 1 * GIB, "/scratch")
    command = submit_arguments("/spark/bin/spark-submit", "/packages/compactor/main.py", job, conf)
    assert "\n".join(command) + "\n" == GOLDEN.read_text()


def test_the_job_is_told_where_the_state_lies_and_nothing_else() -> None:
    state = StoreLocation("s3://state/root", "http://127.0.0.1:1", "eu-west-1")
    assert job_arguments(SparkJob("name", state, "plan.json", 3)) == (
        *("--state", "s3://state/root", "--state-endpoint-url", "http://127.0.0.1:1", "--state-region", "eu-west-1"),
        *("--plan", "plan.json", "--attempt", "3"),
    )


@pytest.mark.parametrize(
    ("memory_bytes", "cores", "sessions", "tasks", "task_memory_bytes", "driver_memory_bytes"),
    [
        (32 * GIB, 8, 2, 4, (16 * GIB - 16 * GIB // 10) // 4, 16 * GIB // 10),
        (4 * GIB, 2, 1, 2, (4 * GIB - 512 * MIB) // 2, 512 * MIB),
        (512 * GIB, 8, 1, 8, TASK_MEMORY_BYTES_MAX, 512 * GIB // 10),
        (8 * GIB, 1, 4, 1, 2 * GIB - 512 * MIB, 512 * MIB),
    ],
)
def test_a_session_gets_its_share_of_the_machine(
    memory_bytes: int, cores: int, sessions: int, tasks: int, task_memory_bytes: int, driver_memory_bytes: int
) -> None:
    resources, driver = share_of_machine(memory_bytes, cores, sessions)
    assert resources == Resources(task_memory_bytes, tasks)
    assert driver == driver_memory_bytes


def test_the_installed_spark_is_found_without_importing_it() -> None:
    home = find_spark_home({})
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    assert find_program().name == "main.py"
    assert find_program().parent.name == "compactor"


def test_a_wrong_spark_home_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=rf"there is no {tmp_path}/bin/spark-submit: SPARK_HOME is {tmp_path}"):
        find_spark_home({"SPARK_HOME": str(tmp_path)})
