"""Runs a session's Spark job on this machine: `spark-submit` as a process of its own, in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from compactor.clock import Clock
from compactor.errors import Invalid, Unavailable
from compactor.sizing import Resources
from compactor.spark_settings import QUICK_JVM
from launcher.spark_conf import local_spark_conf
from launcher.submit import SparkJob, submit_arguments

OUTPUT_TAIL_BYTES = 4_096
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class LocalClusterSettings:
    """
    resources            of one session
    driver_memory_bytes  the JVM's heap
    spark_home           a folder with bin/spark-submit
    java_home            of a Java that this Spark runs on
    work_folder          where output (logs/) and Spark's scratch files (scratch/) go
    environment          what the processes inherit
    stop_seconds         from asking a job to end to killing it
    """

    resources: Resources
    driver_memory_bytes: int
    spark_home: Path
    java_home: Path
    work_folder: Path
    environment: Mapping[str, str]
    stop_seconds: float = 10.0


class LocalCluster:
    """Every launch is a fresh process group, so that stopping one ends the shell, the JVM and the Python workers."""

    def __init__(self, settings: LocalClusterSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def resources(self) -> Resources:
        return self._settings.resources

    def launch(self, job: SparkJob) -> LocalSparkJob:
        settings = self._settings
        scratch = settings.work_folder / "scratch"
        output = settings.work_folder / "logs" / f"{self._clock.now_ms()}-{self._clock.new_id()[:8]}.log"
        conf = local_spark_conf(settings.resources, settings.driver_memory_bytes, str(scratch))
        spark_submit = settings.spark_home / "bin" / "spark-submit"
        arguments = submit_arguments(str(spark_submit), str(find_program()), job, conf)
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("wb") as sink:
                process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=self._process_environment(scratch),
                    start_new_session=True,
                )
        except (FileNotFoundError, PermissionError) as error:
            raise Invalid(f"{spark_submit} cannot be started: {error.strerror}; is SPARK_HOME right?") from error
        except OSError as error:
            raise Unavailable(f"{spark_submit} cannot be started now: {error.strerror}") from error
        return LocalSparkJob(process, output, settings.stop_seconds, self._clock)

    def _process_environment(self, scratch: Path) -> dict[str, str]:
        inherited = self._settings.environment
        packages = str(find_program().parent.parent)
        return {
            **inherited,
            "SPARK_HOME": str(self._settings.spark_home),
            "JAVA_HOME": str(self._settings.java_home),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            # Of the JVM that only puts the job's own command together.
            "SPARK_LAUNCHER_OPTS": " ".join(QUICK_JVM),
            "TMPDIR": str(scratch),
            "PYTHONPATH": os.pathsep.join(filter(None, (packages, inherited.get("PYTHONPATH")))),
        }


class LocalSparkJob:
    """A process group. The group's number is the process's own, so it can be signalled after the process has ended."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, stop_seconds: float, clock: Clock) -> None:
        self._process = process
        self._output = output
        self._stop_seconds = stop_seconds
        self._clock = clock

    @property
    def reference(self) -> str:
        return f"local process {self._process.pid}, output in {self._output}"

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        self._signal(signal.SIGTERM)
        deadline = self._clock.monotonic_seconds() + self._stop_seconds
        while self._process.poll() is None and self._clock.monotonic_seconds() < deadline:
            self._clock.sleep(POLL_SECONDS)
        # Also after a quiet end: what the job started may have outlived it.
        self._signal(signal.SIGKILL)
        self._process.wait()

    def output_tail(self) -> str:
        try:
            with self._output.open("rb") as output:
                output.seek(max(0, self._output.stat().st_size - OUTPUT_TAIL_BYTES))
                return output.read().decode(errors="replace")
        except OSError as error:
            return f"({self._output} cannot be read: {error.strerror})"

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # everybody in the group has gone


def find_program() -> Path:
    """The Spark job's program: `compactor/main.py` of the package that this process runs from."""
    spec = find_spec("compactor")
    if spec is None or spec.origin is None:
        raise Invalid("the package compactor cannot be found: is Lithify installed?")
    return Path(spec.origin).with_name("main.py")


def find_spark_home(environment: Mapping[str, str]) -> Path:
    """SPARK_HOME where it is set, else the Spark inside the installed pyspark, found without importing it."""
    named = environment.get("SPARK_HOME")
    if named:
        home, hint = Path(named), f"SPARK_HOME is {named}"
    else:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise Invalid("there is no Spark: install pyspark, or set SPARK_HOME to a Spark installation")
        home, hint = Path(spec.origin).parent, "pyspark is installed without Spark's own programs"
    if not (home / "bin" / "spark-submit").is_file():
        raise Invalid(f"there is no {home / 'bin' / 'spark-submit'}: {hint}")
    return home
