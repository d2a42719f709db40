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
from launcher.archive import ENVIRONMENT, PYTHON, pack_archive
from launcher.clusters.drivers import find_spark_home
from launcher.spark_conf import local_spark_conf
from tests.benchmarks.startup_probe import TINY_ROWS

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
    runs = [_submit(folder / f"start-{number}") for number in range(repeats + 1)][1:]
    split = {name: statistics.median(run[end] - run[start] for run in runs) for name, start, end in _PARTS}
    split["an empty Spark job, when all is up"] = statistics.median(run["empty job"] for run in runs)
    for which in ("first", "second"):
        name = f"{which} session of {TINY_ROWS:,} rows in that Spark"
        split[name] = statistics.median(run[which] for run in runs)
    split["memory of a worker before any row, MiB"] = statistics.median(run["worker_mib"] for run in runs)
    return split | measure_cold_executor(folder / "archive")


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


def _load_kernels(folder: Path, variables: Mapping[str, str]) -> float:
    environment = {"PATH": os.defpath, "HOME": str(folder), **variables}
    began = time.monotonic()
    subprocess.run([PYTHON, "-m", "compactor.kernels.warm"], cwd=folder, env=environment, check=True)
    return time.monotonic() - began


def _submit(folder: Path) -> Seen:
    folder.mkdir(parents=True)
    conf = local_spark_conf(local_resources(), _DRIVER_MEMORY_BYTES, str(folder / "scratch"))
    program = Path(__file__).resolve().with_name("startup_probe.py")
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home(os.environ, Path.home() / ".cache" / "lithify")),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(program.parents[2]),
    }
    settings = [argument for name in sorted(conf) for argument in ("--conf", f"{name}={conf[name]}")]
    spark_submit = find_spark_home(os.environ) / "bin" / "spark-submit"
    stamps = folder / "stamps.json"
    submitted = time.time()
    finished = subprocess.run(
        [str(spark_submit), *settings, str(program), str(folder / "lake"), str(stamps)],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if finished.returncode:
        raise RuntimeError(f"the probe failed:\n{finished.stderr[-4_000:]}")
    seen: Seen = json.loads(stamps.read_text())
    shutil.rmtree(folder)
    return {**seen, "submitted": submitted}
