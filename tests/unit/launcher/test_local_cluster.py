"""Jobs on this machine: real processes, of a shell script that stands where spark-submit stands."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from compactor.clock import SystemClock
from compactor.errors import Invalid
from compactor.object_store import StoreLocation
from compactor.sizing import Resources
from launcher.clusters.local import LocalCluster, LocalClusterSettings
from launcher.submit import SparkJob
from tests.waiting import wait_until

JOB = SparkJob("a job", StoreLocation("file:///state"), "plan.json", 1)


def cluster(folder: Path, script: str, stop_seconds: float = 5.0) -> LocalCluster:
    program = folder / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    settings = LocalClusterSettings(
        resources=Resources(1, 1),
        driver_memory_bytes=1 << 30,
        spark_home=folder / "spark",
        java_home=Path("/a/java"),
        work_folder=folder / "work",
        environment={"PATH": "/usr/bin:/bin", "INHERITED": "yes"},
        stop_seconds=stop_seconds,
    )
    return LocalCluster(settings, SystemClock())


def children(job_reference: str) -> list[psutil.Process]:
    pid = int(job_reference.split()[2].rstrip(","))
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def runs(process: psutil.Process) -> bool:
    """Whoever was killed may take a moment to be gone, and then be a zombie until somebody asks for its exit code."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_job_that_ends_has_its_exit_code_and_its_last_words(tmp_path: Path) -> None:
    job = cluster(tmp_path, 'echo "$@"; echo "$JAVA_HOME $INHERITED" >&2; exit 3').launch(JOB)
    wait_until(lambda: job.poll() is not None)
    assert job.poll() == 3
    assert "--plan plan.json --attempt 1" in job.output_tail()
    assert "/a/java yes" in job.output_tail()
    job.stop()
    job.stop()


def test_stopping_ends_all_that_the_job_started(tmp_path: Path) -> None:
    job = cluster(tmp_path, "sleep 600 & sleep 600").launch(JOB)
    wait_until(lambda: len(children(job.reference)) == 3)
    processes = children(job.reference)
    job.stop()
    assert job.poll() is not None
    wait_until(lambda: not any(runs(process) for process in processes))


def test_a_job_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    job = cluster(tmp_path, 'trap "" TERM; echo ready; while true; do sleep 0.1; done', stop_seconds=0.3).launch(JOB)
    wait_until(lambda: "ready" in job.output_tail())
    job.stop()
    assert job.poll() == -9


def test_only_the_end_of_a_long_output_is_kept_in_mind(tmp_path: Path) -> None:
    job = cluster(tmp_path, "yes line | head -n 100000; echo last").launch(JOB)
    wait_until(lambda: job.poll() is not None)
    tail = job.output_tail()
    assert len(tail) == 4_096
    assert tail.endswith("last\n")


def test_a_spark_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    broken = cluster(tmp_path, "")
    (tmp_path / "spark" / "bin" / "spark-submit").unlink()
    with pytest.raises(Invalid, match="spark-submit cannot be started: No such file or directory"):
        broken.launch(JOB)
