"""kill -9 of a worker while it writes, of its executor, of a driver: the rows come out right, and hardly any twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from compactor.engine.java_home import find_java_home
from compactor.engine.protocol import Engine
from tests.builders import TABLE_ID
from tests.crash_points import OPTIONS, ROUNDS
from tests.crashes import Lake, attempt, check_books, check_rows, commits, uncommitted
from tests.spark import compact_program, retrying_program
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that ends with the test, and everything it started with it."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home(os.environ, Path.home() / ".cache" / "lithify")),
        "PYTHONPATH": str(REPOSITORY),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / "said").open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        tree: list[psutil.Process] = []
        try:
            yield process
        finally:
            with suppress(psutil.NoSuchProcess):
                tree = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait()
            for each in tree:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(tree, timeout=30)


def writers(lake: Lake, part: str) -> list[int]:
    """The processes that are writing files of this part of the lake: a file that is not whole bears its writer's id."""
    names = [path.name for path in lake.folder.glob(f"tables/*/data/_/{part}/**/.*.partial")]
    return [int(name.removesuffix(".partial").rpartition(".")[2].split("-")[0]) for name in names]


def test_a_worker_that_is_killed_while_it_writes_is_replaced_and_the_rows_are_right(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", [])
    lake.append(retrying_program.deltas())
    with running(retrying(lake, retrying_program.IN_ONE_PROCESS), tmp_path) as process:
        killed = kill_one_writer_of_each(lake, process, lambda writer: writer)
        assert process.returncode == 0, (tmp_path / "said").read_text()[-4_000:]
    assert "compacted" in killed
    check_rows(lake)
    assert uncommitted(lake) == set()
    assert len(commits(lake)) == 1


def test_an_executor_that_is_killed_while_it_writes_is_replaced_and_the_rows_are_right(tmp_path: Path) -> None:
    """With it go the survivors that it kept and the records that it shuffled: Spark has them made again elsewhere."""
    lake = Lake(tmp_path / "lake", [])
    lake.append(retrying_program.deltas())
    with running(retrying(lake, retrying_program.EXECUTORS_APART), tmp_path) as process:
        killed = kill_one_writer_of_each(lake, process, executor_of)
        assert process.returncode == 0, (tmp_path / "said").read_text()[-4_000:]
    assert "compacted" in killed
    check_rows(lake)
    assert uncommitted(lake) == set()
    assert len(commits(lake)) == 1


def retrying(lake: Lake, master: str) -> list[str]:
    return [sys.executable, retrying_program.__file__, str(lake.folder), master]


def executor_of(writer: psutil.Process) -> psutil.Process:
    """The JVM of the executor that a Python worker belongs to."""
    return next(each for each in writer.parents() if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()))


def kill_one_writer_of_each(
    lake: Lake, process: subprocess.Popen[bytes], victim_of: Callable[[psutil.Process], psutil.Process]
) -> dict[str, psutil.Process]:
    """Kills who first writes the index, and who first writes compacted files; waits for the process's end."""
    killed: dict[str, psutil.Process] = {}

    def kill() -> bool:
        for part in ("index", "compacted"):
            for pid in writers(lake, part)[: 0 if part in killed else 1]:
                with suppress(psutil.NoSuchProcess, StopIteration):
                    victim = victim_of(psutil.Process(pid))
                    victim.kill()
                    killed[part] = victim
        return process.poll() is not None

    wait_until(kill, 240)
    return killed


def committed(lake: Lake, at_least: int) -> Callable[[], bool]:
    return lambda: len(commits(lake)) >= at_least


@pytest.mark.parametrize(
    "stand", [pytest.param(0, id="in the rehash", marks=pytest.mark.release), pytest.param(2, id="after round 1")]
)
def test_a_driver_that_is_killed_leaves_its_committed_rounds_and_the_next_run_does_the_rest(
    stand: int, pending_lake: Lake, engine: Engine, tmp_path: Path
) -> None:
    lake, before = pending_lake, len(commits(pending_lake))
    command = compact_program.command_to_compact(
        lake.location,
        TABLE_ID,
        ["id"],
        sort_keys=[["time", "ascending"]],
        hash_bucket_count=OPTIONS.hash_bucket_count,
        max_rows_per_round=OPTIONS.max_rows_per_round,
        rows_per_compacted_file=10,
    )
    with running(command, tmp_path) as process:
        wait_until(committed(lake, before + stand) if stand else lambda: session_logs(lake) > before)
        assert process.poll() is None, (tmp_path / "said").read_text()[-4_000:]
        started_by_it = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        _, left = psutil.wait_procs(started_by_it, timeout=60)
        assert left == [], "what a driver has started ends with it"
    assert commits(lake)[before:] != [] or not stand
    check_books(lake)
    in_vain = uncommitted(lake)
    assert len(in_vain) <= 1, "at most one round, or one rehash, is lost"
    attempt(lake.plan(OPTIONS, "run 2"), lake, engine, 1)
    check_rows(lake)
    assert uncommitted(lake) == in_vain
    assert len(commits(lake)) - before == 1 + ROUNDS


def session_logs(lake: Lake) -> int:
    """How many sessions have told their start."""
    return len(list(lake.folder.glob("job_runs/*/sessions/*/log/*001.json")))
