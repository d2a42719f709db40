"""A standalone Spark of this machine: a master and workers as processes, that know nothing of Lithify."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from compactor.engine.java_home import find_java_home
from dispatcher.demo.stand_ins import free_ports
from launcher.archive import pack_archive
from launcher.clusters.drivers import find_spark_home
from tests.servers import ACCESS_KEY, SECRET_KEY
from tests.waiting import wait_until

FAMILY = "x86-64-v3" if platform.machine() == "x86_64" else "neoverse-n1"
"""A family of processors to which those of EMR's nodes belong: what archives are made for."""

START_SECONDS_MAX = 60.0


def packed_once(folder: Path) -> Path:
    """This environment as an archive for workers that need a Java and nothing else, which takes a minute: the processes
    of a run of tests make it once, in a folder of all of them."""
    archive = folder / "lithify.tar.gz"
    with (folder / "packing").open("w") as lock, tempfile.TemporaryDirectory(dir=folder) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            pack_archive(archive, Path(scratch), FAMILY, with_python=True)
    return archive


_CLEANUP = [f"-Dspark.worker.cleanup.{each}" for each in ("enabled=true", "interval=60", "appDataTtl=300")]
"""Each application has the environment unpacked in its work folders: a gigabyte for each worker. Five minutes, because
tests read what an application that has ended left there."""

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass
class StandaloneSpark:
    """
    folder       work folders of the workers lie below it
    environment  of all processes: a PATH, a Java, and the rights to read and write the lake
    """

    folder: Path
    environment: Mapping[str, str]
    master_port: int
    web_port: int
    workers: dict[int, psutil.Popen] = field(default_factory=dict)
    started: int = 0

    @property
    def master_url(self) -> str:
        return f"spark://127.0.0.1:{self.master_port}"

    def start_worker(self, cores: int = 1) -> None:
        self.started += 1
        folder, scratch = (self.folder / f"{name}-{self.started}" for name in ("worker", "scratch"))
        folder.mkdir()
        scratch.mkdir()  # beside the work folder: the worker cleans that of all that is no application's
        options = ["--cores", str(cores), "--memory", "2g", "--host", "127.0.0.1", "--work-dir", str(folder)]
        (port,) = free_ports(1)
        command = _command(_WORKER, *options, "--webui-port", str(port), self.master_url)
        environment = {**self.environment, "SPARK_LOCAL_DIRS": str(scratch)}
        with (folder / "log.txt").open("wb") as log:
            worker = psutil.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.workers[self.started] = worker

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker, its executors and their Python workers."""
        worker = self.workers.pop(number)
        for process in [worker, *worker.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        worker.wait()

    def executors(self, number: int) -> list[psutil.Process]:
        """The executors of a worker whose Python runs."""
        found = []
        for process in self.workers[number].children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                command = " ".join(process.cmdline())
                if "CoarseGrainedExecutorBackend" in command and process.children():
                    found.append(process)
        return found

    def master_state(self) -> dict[str, list[dict[str, object]]]:
        """What the master says of workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=10) as answer:
            state: dict[str, list[dict[str, object]]] = json.load(answer)
        return state

    def applications(self) -> list[str]:
        """The names of all applications that there ever were, and that are."""
        state = self.master_state()
        return [str(each["name"]) for each in (*state["activeapps"], *state["completedapps"])]

    def await_workers(self, count: int) -> None:
        def are_there() -> bool:
            with suppress(OSError, ValueError):
                return sum(each["state"] == "ALIVE" for each in self.master_state()["workers"]) >= count
            return False

        wait_until(are_there, START_SECONDS_MAX, every_seconds=0.1)


@contextmanager
def standalone_spark(folder: Path, workers: int = 2) -> Iterator[StandaloneSpark]:
    """Its workers have one core each, and their folders below `folder`."""
    folder.mkdir(parents=True)
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "JAVA_HOME": str(find_java_home(os.environ, Path.home() / ".cache" / "lithify")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **{name: os.environ[name] for name in ("JDK_JAVA_OPTIONS",) if name in os.environ},
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "SPARK_WORKER_OPTS": " ".join(_CLEANUP),
    }
    port, web_port = free_ports(2)
    spark = StandaloneSpark(folder, environment, port, web_port)
    command = _command(_MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port))
    with (folder / "master.txt").open("wb") as log:
        master = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(workers):
            spark.start_worker()
        spark.await_workers(workers)
        yield spark
    finally:
        for number in list(spark.workers):
            spark.kill_worker(number)
        master.kill()
        master.wait()


def _command(name: str, *options: str) -> list[str]:
    """In its own process: `spark-class` replaces itself by Java."""
    return [str(find_spark_home(os.environ) / "bin" / "spark-class"), name, *options]
