"""`lithify demo` as a user runs it, on real Spark; the commands that it prints; and its end by Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.fakes.spark_submit import make_spark_home
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
LITHIFY = Path(sys.executable).with_name("lithify")
SMALL = ("--scale-factor", "0.002")


def environment(**more: str) -> dict[str, str]:
    """As a login shell has it, with a foreign AWS account in it: the demo must not touch that."""
    foreign = {"AWS_PROFILE": "production", "AWS_ENDPOINT_URL": "http://192.0.2.1", "AWS_REGION": "eu-west-1"}
    return {**os.environ, **foreign, "PYTHONPATH": str(REPOSITORY), **more}


def demo(folder: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LITHIFY), "demo", *SMALL, *options],
        cwd=folder, env=environment(**more), capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def printed_commands(answer: str) -> list[str]:
    return [line.strip() for line in answer.splitlines() if line.startswith(f"  {LITHIFY} ")]


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_compacts_both_tables_and_its_commands_work_after_it(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nright  ") == 2
    assert "78010912  1995-04-04  DELIVERED" in done.stdout
    assert done.stdout.count("session.succeeded") == 9
    lines = done.stdout.splitlines()
    table = lines[lines.index("What the sessions did") + 1 :][:11]
    assert table[0].endswith(" place")
    assert all(" worker process " in line for line in table[1:-1]), table
    assert [path.name for path in tmp_path.iterdir()] == [".lithify-demo"]

    commands = printed_commands(done.stdout)
    assert len(commands) == 7
    for command in commands:
        ran = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, (command, ran.stderr)
        assert ran.stdout.strip()


@pytest.mark.servers
def test_ctrl_c_ends_everything_that_the_demo_started(tmp_path: Path) -> None:
    spark_home = make_spark_home(tmp_path / "spark_home")
    process = subprocess.Popen(
        [str(LITHIFY), "demo", *SMALL, "--folder", "here"],
        cwd=tmp_path,
        env=environment(SPARK_HOME=str(spark_home)),
        stdout=subprocess.PIPE,
        text=True,
    )
    of_demo = psutil.Process(process.pid)
    wait_until(lambda: len(_workers(of_demo)) > 0)
    workers = _workers(of_demo)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert output.rstrip().endswith("Stopped before its end. What was done until then is in here.")
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("mode", [(), ("--s3",)], ids=["folder", "s3"])
def test_the_queue_is_left_up_to_play_with_and_the_printed_commands_use_it(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    spark_home = make_spark_home(tmp_path / "spark_home")
    process = subprocess.Popen(
        [str(LITHIFY), "demo", *SMALL, *mode, "--keep-serving", "-o", "jsonl"],
        cwd=tmp_path,
        env=environment(SPARK_HOME=str(spark_home)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    commands = json.loads(process.stdout.readline())["follow_up"]["commands"]
    played = subprocess.run(
        ["sh", "-e", "-c", "\n".join(commands)],
        cwd=tmp_path, env=environment(SPARK_HOME=str(spark_home)), capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert played.returncode == 0, played.stderr
    assert "next  succeeded" in played.stdout
    assert process.returncode == 0
    assert errors.rstrip().endswith("Ctrl-C here ends them.")


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    done = demo(tmp_path, "--folder", ".")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not empty" in done.stderr


def _workers(of_demo: psutil.Process) -> list[psutil.Process]:
    return [child for child in of_demo.children() if "compactor.worker" in _command_line(child)]


def _command_line(process: psutil.Process) -> list[str]:
    """Empty for a process that has ended in the meantime: the demo starts others as well, which live for a moment."""
    try:
        words: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return []
    return words


@pytest.mark.long
def test_the_keeper_keeps_the_lag_of_a_table_small_while_writers_append(tmp_path: Path) -> None:
    done = demo(tmp_path, "--keeper", "--seconds", "15", "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads(done.stdout)
    assert kept["holds"]
    assert kept["decisions"] >= 1
    assert kept["usd"] > 0
    assert kept["pending_deltas"] == 0
    assert kept["files"] <= 8
    assert "decisions, $" in done.stderr


@pytest.mark.long
def test_tables_stay_equal_to_those_of_a_shop_whose_changes_land_as_files(tmp_path: Path) -> None:
    done = demo(tmp_path, "--changes", "--seconds", "6", "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    played = json.loads(done.stdout)
    assert played["holds"]
    for table in played["tables"]:
        assert table["lake_rows"] == table["shop_rows"] > 0
        assert (table["differing"], table["pending_deltas"]) == (0, 0)
        assert table["files"] >= 1
    assert "the shop closes" in done.stderr
