"""Jobs on this machine: real processes, of a shell script that stands where spark-submit stands."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid
from compactor.model.machine import usable_cores
from compactor.planning.sizing import Resources
from compactor.storage.location import StoreLocation
from launcher.clusters.drivers import Driver, ScratchFolder, is_locked, read_record, sweep
from launcher.clusters.local import LocalCluster, LocalClusterSettings
from launcher.clusters.supervisor import process_started
from launcher.spark_job import ClusterReference, JobFailed, JobRunning, JobStatus, JobSucceeded, JobVanished, SparkJob
from tests.waiting import wait_until

NONE: Mapping[str, str] = MappingProxyType({})
REPOSITORY = Path(__file__).parents[3]
JOB = SparkJob("a job", StoreLocation("file:///state"), "plan.json", 1, Resources(1, 1))


def cluster(
    folder: Path,
    script: str,
    stop_seconds: float = 5.0,
    environment: Mapping[str, str] = NONE,
    unattended_seconds: float = 3_600.0,
) -> LocalCluster:
    program = folder / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    settings = LocalClusterSettings(
        resources=Resources(1, 1),
        driver_memory_bytes=1 << 30,
        spark_home=folder / "spark",
        java_home=Path("/a/java"),
        work_folder=folder / "work",
        environment={"PATH": "/usr/bin:/bin", "INHERITED": "yes", **environment},
        stop_seconds=stop_seconds,
        unattended_seconds=unattended_seconds,
        logs_kept=3,
    )
    return LocalCluster(settings, SystemClock())


def launch(place: LocalCluster, job: SparkJob = JOB) -> Driver:
    attached = place.attach(place.launch(job))
    assert attached is not None
    return attached


def driver_and_children(job: Driver) -> list[psutil.Process]:
    """Without the supervisor beside them."""
    return list(psutil.Process(int(job.reference.ids["pid"])).children(recursive=True))


def end_of(job: Driver) -> JobStatus:
    wait_until(lambda: not isinstance(job.status(), JobRunning))
    return job.status()


def reason_of(status: JobStatus) -> str:
    assert isinstance(status, JobFailed)
    return status.reason


def runs(process: psutil.Process) -> bool:
    """Whoever was killed may take a moment to be gone, and then be a zombie until somebody asks for its exit code."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_job_that_ends_has_its_exit_code_and_its_last_words(tmp_path: Path) -> None:
    job = launch(cluster(tmp_path, 'echo "$@"; echo "$JAVA_HOME $INHERITED" >&2; exit 4'))
    reason = reason_of(end_of(job))
    assert "exited with code 4" in reason
    assert "--plan plan.json --attempt 1" in reason
    assert "/a/java yes" in reason


def test_stopping_ends_all_that_the_job_started(tmp_path: Path) -> None:
    job = launch(cluster(tmp_path, "sleep 600 & sleep 600"))
    wait_until(lambda: len(driver_and_children(job)) == 3)
    processes = driver_and_children(job)
    job.stop()
    assert not isinstance(end_of(job), JobRunning)
    wait_until(lambda: not any(runs(process) for process in processes))


def test_a_job_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    job = launch(cluster(tmp_path, 'trap "" TERM; echo ready; while true; do sleep 0.1; done', stop_seconds=0.3))
    wait_until(lambda: "ready" in job.output_tail())
    job.stop()
    assert reason_of(end_of(job)) == "was ended from outside (SIGTERM): it was asked to"


def test_a_job_whose_supervisor_was_killed_runs_on_and_can_be_stopped(tmp_path: Path) -> None:
    job = launch(cluster(tmp_path, "sleep 600 & sleep 600"))
    wait_until(lambda: len(driver_and_children(job)) == 3)
    processes = driver_and_children(job)
    record = tmp_path / "work" / "jobs" / f"{JOB.name}.json"
    wait_until(lambda: (noted := read_record(record)) is not None and noted.group == processes[0].pid)
    supervisor = psutil.Process(int(job.reference.ids["pid"]))
    supervisor.kill()
    wait_until(lambda: not runs(supervisor))
    assert job.status() == JobRunning()
    job.stop()
    wait_until(lambda: not any(runs(process) for process in processes))
    assert not isinstance(end_of(job), JobRunning)


def test_a_job_that_nobody_looks_at_any_more_is_ended(tmp_path: Path) -> None:
    """Whatever hangs, and whoever forgot it."""
    place = cluster(tmp_path, "sleep 600", unattended_seconds=0.0)
    reference = place.launch(JOB)
    supervisor = psutil.Process(int(reference.ids["pid"]))
    record = tmp_path / "work" / "jobs" / f"{JOB.name}.json"
    wait_until(lambda: (noted := read_record(record)) is not None and noted.group is not None)
    for _ in range(3):  # as its clock does every 20 seconds
        supervisor.send_signal(signal.SIGALRM)
        time.sleep(0.1)
    job = place.attach(reference)
    assert job is not None
    assert reason_of(end_of(job)) == "was ended from outside (SIGTERM): no dispatcher has polled it for too long"


def test_only_the_end_of_a_long_output_is_kept_in_mind(tmp_path: Path) -> None:
    job = launch(cluster(tmp_path, "yes line | head -n 100000; echo last; exit 1"))
    end_of(job)
    tail = job.output_tail()
    assert len(tail) == 4_096
    assert tail.endswith("last\n")


def test_a_spark_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    broken = cluster(tmp_path, "")
    (tmp_path / "spark" / "bin" / "spark-submit").unlink()
    with pytest.raises(Invalid, match="spark-submit cannot be started: No such file or directory"):
        broken.launch(JOB)


def test_a_session_is_planned_with_what_is_free_where_scratch_files_will_lie(tmp_path: Path) -> None:
    found = cluster(tmp_path, "exit 0").resources()
    assert found.driver_memory_bytes == 1 << 30
    assert found.scratch_bytes is not None
    assert 0 < found.scratch_bytes <= psutil.disk_usage(str(tmp_path)).total // usable_cores()


def logs(folder: Path) -> list[Path]:
    return sorted((folder / "work" / "logs").iterdir())


def scratch(folder: Path) -> list[Path]:
    return sorted((folder / "work" / "scratch").iterdir())


def test_scratch_files_go_with_their_job_and_so_does_what_a_good_one_said(tmp_path: Path) -> None:
    script = """
        echo "$@"; mkdir "$TMPDIR/blocks"; head -c 9000 /dev/zero > "$TMPDIR/blocks/b"
        while [ -e "$HOLD" ]; do sleep 0.02; done
    """
    hold = tmp_path / "hold"
    hold.touch()
    job = launch(cluster(tmp_path, script, environment={"HOLD": str(hold)}))
    (folder, _) = scratch(tmp_path)
    wait_until(lambda: (folder / "blocks" / "b").exists() and (folder / "blocks" / "b").stat().st_size == 9_000)
    assert f"spark.local.dir={folder}" in job.output_tail()
    hold.unlink()
    assert end_of(job) == JobSucceeded()
    assert scratch(tmp_path) == []
    assert logs(tmp_path) == []


def test_of_jobs_that_did_not_end_well_the_last_logs_and_records_are_kept(tmp_path: Path) -> None:
    place = cluster(tmp_path, "echo no; exit 1")
    names = [f"job-{number}" for number in (3, 1, 2, 6, 5, 4)]
    for name in names:
        end_of(launch(place, replace(JOB, name=name)))
    assert logs(tmp_path) == sorted(tmp_path / "work" / "logs" / f"{name}.log" for name in names[-4:])  # three, and it
    assert len(list((tmp_path / "work" / "jobs").iterdir())) == 4
    assert logs(tmp_path)[0].read_text() == "no\n"


def test_a_spark_job_of_a_killed_dispatcher_continues_and_cleans_up(tmp_path: Path) -> None:
    script = 'touch "$TMPDIR/used"; while [ -e "$HOLD" ]; do sleep 0.02; done'
    cluster(tmp_path, script, environment={"HOLD": str(tmp_path / "hold")})
    (tmp_path / "hold").touch()
    program = textwrap.dedent(f"""
        import os, pathlib
        from tests.integration.launcher.test_local_cluster import JOB, cluster
        folder = pathlib.Path({str(tmp_path)!r})
        place = cluster(folder, {script!r}, environment={{"HOLD": str(folder / "hold")}})
        print(place.launch(JOB).model_dump_json(), flush=True)
        os.kill(os.getpid(), 9)
    """)
    command = [sys.executable, "-c", program]
    killed = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -9
    reference = ClusterReference.model_validate_json(killed.stdout)
    wait_until(lambda: any(folder.is_dir() and (folder / "used").exists() for folder in scratch(tmp_path)))

    sweep(tmp_path / "work" / "scratch")
    assert len(scratch(tmp_path)) == 2
    job = cluster(tmp_path, "").attach(reference)  # the next dispatcher on this machine
    assert job is not None
    assert job.status() == JobRunning()
    (tmp_path / "hold").unlink()
    assert end_of(job) == JobSucceeded()
    assert scratch(tmp_path) == []


def test_of_another_machine_nothing_can_be_said_and_of_one_that_started_anew_all_is_gone(tmp_path: Path) -> None:
    place = cluster(tmp_path, "sleep 600")
    reference = place.launch(JOB)
    ids = dict(reference.ids)
    assert place.attach(reference.model_copy(update={"ids": {**ids, "host": "elsewhere"}})) is None
    restarted = place.attach(reference.model_copy(update={"ids": {**ids, "run": "before"}}))
    assert restarted is not None
    assert isinstance(restarted.status(), JobVanished)
    restarted.stop()
    job = place.attach(reference)
    assert job is not None
    assert job.status() == JobRunning()
    job.stop()
    end_of(job)


def test_another_process_with_the_number_of_a_job_is_not_taken_for_it(tmp_path: Path) -> None:
    place = cluster(tmp_path, "sleep 600")
    reference = place.launch(JOB)
    other = subprocess.Popen(["sleep", "600"])
    while process_started(other.pid) == reference.ids["started"]:  # within one tick of the system's clock
        other.kill()
        other.wait()
        other = subprocess.Popen(["sleep", "600"])
    taken = place.attach(reference.model_copy(update={"ids": {**reference.ids, "pid": str(other.pid)}}))
    assert taken is not None
    job = place.attach(reference)
    assert job is not None
    job.stop()
    end_of(job)
    taken.stop()
    assert other.poll() is None
    end_of(taken)
    other.kill()
    other.wait()


def test_a_job_that_cannot_be_launched_leaves_no_scratch_folder(tmp_path: Path) -> None:
    broken = cluster(tmp_path, "")
    (tmp_path / "spark" / "bin" / "spark-submit").unlink()
    with pytest.raises(Invalid):
        broken.launch(JOB)
    assert scratch(tmp_path) == []


def test_a_scratch_folder_that_cannot_be_created_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with pytest.raises(FileExistsError):
        ScratchFolder.claim(tmp_path, "job")
    assert not is_locked(tmp_path, "job")
    ScratchFolder.claim(tmp_path, "job").remove()
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_that_are_launched_at_once_both_find_that_another_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = cluster(tmp_path, "")
    end_of(launch(place))
    both_have_looked, poll = threading.Barrier(2), subprocess.Popen.poll

    def poll_together(process: subprocess.Popen[bytes]) -> int | None:
        exit_code = poll(process)
        both_have_looked.wait(60)
        return exit_code

    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as threads:
        patched.setattr(subprocess.Popen, "poll", poll_together)
        jobs = list(threads.map(partial(launch, place), [replace(JOB, name=name) for name in ("one", "two")]))
    assert [end_of(job) for job in jobs] == [JobSucceeded()] * 2


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ({"LC_ALL": "C"}, "C.UTF-8"),
        ({}, "C.UTF-8"),
        ({"LANG": "POSIX"}, "C.UTF-8"),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
        ({"LC_ALL": "de_DE.utf8"}, "de_DE.utf8"),
        ({"LANG": "en_GB.UTF-8"}, ""),
    ],
    ids=str,
)
def test_java_reads_names_as_utf_8_whatever_the_locale(tmp_path: Path, named: dict[str, str], given: str) -> None:
    job = launch(cluster(tmp_path, 'echo "<$LC_ALL>"; exit 1', environment=named))
    end_of(job)
    assert job.output_tail() == f"<{given}>\n"
