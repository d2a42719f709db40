"""Where the time goes from spark-submit to a session's first task; `startup_probe.py` is the job that is submitted. And
what an executor pays in addition that finds only a Java and a Python on its machine.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from compactor.engine.java_home import find_java_home
from compactor.engine.local import local_resources
from compactor.engine.settings import MIB
from compactor.planning.machine_share import GIB
from compactor.planning.sizing import Resources
from launcher.archive import ENVIRONMENT, PYTHON, pack_archive
from launcher.clusters.drivers import find_spark_home
from launcher.submit import local_spark_conf, standalone_spark_conf
from tests.benchmarks.startup_probe import ON_CLUSTER, TINY_ROWS
from tests.standalone_spark import FAMILY, standalone_spark

_DRIVER_MEMORY_BYTES = 1_024 * MIB

ANOTHER_PROCESSOR = {"NUMBA_CPU_NAME": "generic"}
"""What numba has compiled for this machine's processor is not for this one."""

Seen = dict[str, float]
Split = dict[str, float]

_PARTS = (
    ("spark-submit to the first line of our program (JVM, then Python)", "submitted", "program"),
    ("what is imported before Spark (PySpark)", "program", "pyspark"),
    ("Spark's context", "pyspark", "context"),
    ("at the same time: our other imports", "context", "imported"),
    ("at the same time: until the workers' daemon starts", "context", "daemon"),
    ("the daemon's imports", "daemon", "worker"),
    ("spark-submit to the first task of ours, in all", "submitted", "task"),
    ("spark-submit to the end of a session of 1,000 rows, in all", "submitted", "session"),
)


def measure_startup(folder: Path, repeats: int) -> Split:
    """Medians, in seconds, of each part; and of a tiny session's first and second run, when all is up."""
    runs = [_submit_here(folder / f"start-{number}") for number in range(repeats + 1)][1:]
    split = {name: statistics.median(run[end] - run[start] for run in runs) for name, start, end in _PARTS}
    split["an empty Spark job, when all is up"] = statistics.median(run["empty job"] for run in runs)
    for which in ("first", "second"):
        name = f"{which} session of {TINY_ROWS:,} rows in that Spark"
        split[name] = statistics.median(run[which] for run in runs)
    split["memory of a worker before any row, MiB"] = statistics.median(run["worker_mib"] for run in runs)
    return split | measure_cold_executor(folder / "archive") | measure_cold_worker(folder / "standalone", repeats)


def measure_cold_executor(folder: Path) -> Split:
    """Seconds until the environment of an archive is unpacked and its kernels are loaded, as a worker loads them; and
    until they are compiled where the processor is another one than the archive was made for.
    """
    folder.mkdir(parents=True)
    archive = pack_archive(folder / "lithify.tar.gz", folder / "scratch").path
    began = time.monotonic()
    with tarfile.open(archive) as packed:
        packed.extractall(folder / ENVIRONMENT, filter="fully_trusted")
    split = {"an executor from an archive: unpacking it": time.monotonic() - began}
    split["an executor from an archive: the kernels, loaded"] = _load_kernels(folder, {})
    split["the same on another processor, where they are compiled"] = _load_kernels(folder, ANOTHER_PROCESSOR)
    shutil.rmtree(folder)
    return split


def measure_cold_worker(folder: Path, repeats: int) -> Split:
    """Medians of a standalone Spark of two workers, which get and unpack the archive for each application anew."""
    folder.mkdir(parents=True)
    archive = pack_archive(folder / "lithify.tar.gz", folder / "scratch", FAMILY).path
    resources = Resources(task_memory_bytes=GIB, tasks=2)
    with standalone_spark(folder / "spark") as spark:
        conf = standalone_spark_conf(
            spark.master_url,
            str(archive),
            resources,
            _DRIVER_MEMORY_BYTES,
            str(folder),
            executor_cores=None,
            driver_host="127.0.0.1",
        )
        runs = [_submit(folder / f"start-{number}", conf, PYTHON, ON_CLUSTER) for number in range(repeats)]
    shutil.rmtree(folder)
    return {
        f"a standalone worker with nothing of Lithify: spark-submit to {what}": statistics.median(
            run[end] - run["submitted"] for run in runs
        )
        for what, end in (("the first task of ours", "task"), ("the end of a session of 1,000 rows", "session"))
    }


def _load_kernels(folder: Path, variables: Mapping[str, str]) -> float:
    environment = {"PATH": os.defpath, "HOME": str(folder), **variables}
    began = time.monotonic()
    subprocess.run([PYTHON, "-m", "compactor.kernels.warm"], cwd=folder, env=environment, check=True)
    return time.monotonic() - began


def _submit_here(folder: Path) -> Seen:
    conf = local_spark_conf(local_resources(), _DRIVER_MEMORY_BYTES, str(folder / "scratch"))
    return _submit(folder, conf, sys.executable)


def _submit(folder: Path, conf: Mapping[str, str], python: str, *arguments: str) -> Seen:
    """`python`: of the workers."""
    folder.mkdir(parents=True)
    program = Path(__file__).resolve().with_name("startup_probe.py")
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home(os.environ, Path.home() / ".cache" / "lithify")),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(program.parents[2]),
    }
    settings = [argument for name in sorted(conf) for argument in ("--conf", f"{name}={conf[name]}")]
    spark_submit = find_spark_home(os.environ) / "bin" / "spark-submit"
    stamps = folder / "stamps.json"
    submitted = time.time()
    finished = subprocess.run(
        [str(spark_submit), *settings, str(program), str(folder / "lake"), str(stamps), *arguments],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if finished.returncode:
        raise RuntimeError(f"the probe failed:\n{finished.stderr[-4_000:]}")
    seen: Seen = json.loads(stamps.read_text())
    shutil.rmtree(folder)
    return {**seen, "submitted": submitted}
