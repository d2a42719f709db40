"""The command that starts a Spark job, word by word, and what a session gets of a machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from compactor.model.errors import Invalid
from compactor.planning.machine_share import GIB
from compactor.planning.sizing import Resources
from compactor.storage.location import StoreLocation
from launcher.clusters.drivers import find_program, find_spark_home
from launcher.spark_job import SparkJob, job_name
from launcher.submit import job_arguments, local_spark_conf, submit_arguments

TWO = Resources(task_memory_bytes=4 * GIB, tasks=2)
GOLDEN = Path(__file__).parents[2] / "golden" / "spark_submit_local.txt"

STATE = StoreLocation("s3://bucket/state")


def test_the_command_line_of_a_local_job_is_the_golden_one() -> None:
    job = SparkJob(
        "lithify run-1 run-1.1", StoreLocation("file:///state"), "job_runs/run-1/sessions/x/plan.json", 2, TWO
    )
    conf = local_spark_conf(TWO, 1 * GIB, "/scratch")
    command = submit_arguments("/spark/bin/spark-submit", "/packages/compactor/main.py", job, conf)
    assert "\n".join(command) + "\n" == GOLDEN.read_text()


def test_the_job_is_told_where_the_state_lies_and_nothing_else() -> None:
    state = StoreLocation("s3://state/root", "http://127.0.0.1:1", "eu-west-1")
    assert job_arguments(SparkJob("name", state, "plan.json", 3, TWO)) == (
        *("--state", "s3://state/root", "--state-endpoint-url", "http://127.0.0.1:1", "--state-region", "eu-west-1"),
        *("--plan", "plan.json", "--attempt", "3"),
    )


def test_the_installed_spark_is_found_without_importing_it() -> None:
    home = find_spark_home({})
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    assert find_program().name == "main.py"
    assert find_program().parent.name == "compactor"


def test_a_wrong_spark_home_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=rf"there is no {tmp_path}/bin/spark-submit: SPARK_HOME is {tmp_path}"):
        find_spark_home({"SPARK_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("session_id", "attempt", "begins"),
    [
        ("nightly.1", 2, "lithify-nightly-1-a2-"),
        ("Ärger/../x y.12", 1, "lithify-rger-x-y-12-a1-"),
        ("x" * 300, 123, "lithify-xxxx"),
        ("日本", 1, "lithify-a1-"),
    ],
)
def test_a_jobs_name_is_one_that_every_service_takes(session_id: str, attempt: int, begins: str) -> None:
    name = job_name(STATE, "run", session_id, attempt)
    assert name.startswith(begins)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{1,99}", name)


def test_each_attempt_has_a_name_of_its_own_and_always_the_same() -> None:
    other = StoreLocation("s3://other/state")
    attempts = [
        *(
            (state, run, session, attempt)
            for state in (STATE, other)
            for run in ("a", "b")
            for session in ("a.1", "a-1")
            for attempt in (1, 11)
        ),
    ]
    names = [job_name(*each) for each in attempts]
    assert len(set(names)) == len(attempts)
    assert names == [job_name(*each) for each in attempts]
