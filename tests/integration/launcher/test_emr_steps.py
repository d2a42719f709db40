"""The fake EMR runs a step's own command: what it downloads and unpacks before, and what it leaves to the program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.emr.request import start_job_run_request, step_command
from tests.fakes.emr_steps import (
    RunningStep,
    SparkSubmitSteps,
    pack_this_python,
    parse_submit,
    serverless_command,
)
from tests.unit.launcher.test_emr_request import ON_DEMAND, SERVERLESS_SETTINGS, SETTINGS, launch
from tests.waiting import wait_until

SUBMIT = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
case "$1" in */compactor/main.py) shift; exec "$PYSPARK_PYTHON" PROGRAM "$@" ;; esac
exit 9
"""
SUBMIT_ANY = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
case "$1" in */job-1/main.py) shift; exec "$PYSPARK_PYTHON" PROGRAM "$@" ;; esac
exit 9
"""
TELLS = """
import os, sys
print(sys.argv[1:], os.path.basename(os.getcwd()), os.path.exists("environment/bin/python"))
"""

STARTS_A_CHILD = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def steps(tmp_path: Path) -> SparkSubmitSteps:
    """A spark-submit that runs a program of the test's, with the Python that it is told."""
    home = tmp_path / "home" / "bin"
    home.mkdir(parents=True)
    submit = home / "spark-submit"
    submit.write_text(SUBMIT.replace("PROGRAM", str(tmp_path / "program.py")))
    submit.chmod(0o755)
    pack_this_python(tmp_path / "lithify.tar.gz")
    (tmp_path / "program.py").write_text(TELLS)
    return SparkSubmitSteps(tmp_path / "steps", tmp_path / "home")


def command(folder: Path) -> tuple[str, ...]:
    here = {"archive_uri": f"file://{folder}/lithify.tar.gz"}
    return tuple(step_command(launch(ON_DEMAND), SETTINGS.model_copy(update=here)))


def ended(step: RunningStep) -> int:
    wait_until(lambda: step.poll() is not None)
    exit_code = step.poll()
    assert exit_code is not None
    return exit_code


def test_a_step_runs_its_program_with_the_python_of_its_archive(steps: SparkSubmitSteps, tmp_path: Path) -> None:
    step = steps.start("s-1", command(tmp_path))
    assert ended(step) == 0
    arguments = list(parse_submit(command(tmp_path)).program_arguments)
    assert step.output_tail().splitlines() == [f"{arguments} s-1 True"]


@pytest.mark.parametrize("exit_code", [1, 2, 3])
def test_how_the_program_exits_is_how_the_step_does(steps: SparkSubmitSteps, tmp_path: Path, exit_code: int) -> None:
    (tmp_path / "program.py").write_text(f"import sys; sys.exit({exit_code})")
    assert ended(steps.start("s-1", command(tmp_path))) == exit_code


def test_a_step_whose_archive_is_not_there_fails_and_says_so(steps: SparkSubmitSteps, tmp_path: Path) -> None:
    (tmp_path / "lithify.tar.gz").unlink()
    step = steps.start("s-1", command(tmp_path))
    assert ended(step) != 0
    assert "lithify.tar.gz" in step.output_tail()


def test_a_step_that_is_stopped_is_gone_with_what_it_started(steps: SparkSubmitSteps, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STARTS_A_CHILD)
    step = steps.start("s-1", command(tmp_path))
    wait_until(lambda: bool(step.output_tail().strip()))
    child = int(step.output_tail())
    step.stop()
    assert ended(step) != 0
    wait_until(lambda: not is_running(child))


def is_running(process_id: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True, text=True, check=False)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


def test_a_job_of_serverless_finds_its_program_and_its_archive_beside_it(
    steps: SparkSubmitSteps, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text("raise SystemExit('spark-submit runs another program here')")
    here = {"archive_uri": f"file://{tmp_path}/lithify.tar.gz", "program_uri": f"file://{tmp_path}/main.py"}
    request = start_job_run_request(launch(ON_DEMAND), SERVERLESS_SETTINGS.model_copy(update=here))
    arguments = serverless_command(request["jobDriver"])  # type: ignore[arg-type]
    (tmp_path / "home" / "bin" / "spark-submit").write_text(SUBMIT_ANY.replace("PROGRAM", str(tmp_path / "program.py")))
    step = steps.start("job-1", arguments)
    assert ended(step) == 0, step.output_tail()
    assert step.output_tail().splitlines() == [f"{list(parse_submit(arguments).program_arguments)} job-1 True"]


def test_settings_of_yarn_and_of_nodes_are_left_out(steps: SparkSubmitSteps) -> None:
    kept = {value.split("=", 1)[0] for name, value in parse_submit(command(Path("/x"))).kept if name == "--conf"}
    assert "spark.python.daemon.module" in kept
    assert not {name for name in kept if name.startswith(("spark.yarn", "spark.executor", "spark.master"))}
