"""A Spark job that notes when it got how far: what `startup.py` submits. Imports nothing before it has looked."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

TINY_ROWS = 1_000
ON_CLUSTER = "on-cluster"

Seen = dict[str, float]


def probe(lake: Path, stamps: Path, program: float, *, on_cluster: bool) -> None:
    """Runs under spark-submit; notes when it got how far. `on_cluster`: workers have what an archive has."""
    from compactor.engine.pyspark_path import prefer_unpacked_pyspark

    prefer_unpacked_pyspark()
    from pyspark import SparkContext

    from compactor.engine.prestart import prestart_workers

    pyspark_imported = time.time()
    context = SparkContext.getOrCreate()
    up = time.time()
    prestart_workers(context)
    import compactor.catalog.tables  # noqa: F401  (what the real job imports beside, and in this order)

    imported = time.time()
    first_task = context.parallelize([0], 1).map(_time_of_task if on_cluster else _look_around).collect()[0]
    before = time.perf_counter()
    context.parallelize([0], 1).count()
    seen = {"program": program, "pyspark": pyspark_imported, "context": up, "imported": imported, **first_task}
    seen["empty job"] = time.perf_counter() - before
    seen |= {"first": _tiny_session(lake / "1", context), "session": time.time()}
    seen["second"] = _tiny_session(lake / "2", context)
    stamps.write_text(json.dumps(seen))


def _look_around(_: int) -> Seen:
    """In a task: when it, its worker and the daemon that forked the worker began."""
    task = time.time()
    import psutil

    worker = psutil.Process()
    # psutil knows the time of boot in whole seconds.
    correction = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - psutil.boot_time()
    return {
        "task": task,
        "worker": worker.create_time() + correction,
        "daemon": psutil.Process(worker.ppid()).create_time() + correction,
        "worker_mib": worker.memory_info().rss / 2**20,
    }


def _time_of_task(_: int) -> Seen:
    return {"task": time.time()}


def _tiny_session(lake: Path, context: SparkContext) -> float:
    import pyarrow as pa

    from compactor.engine.spark import SparkEngine
    from compactor.lake import DeltaCatalog
    from compactor.local_job_run import run_here
    from compactor.model.clock import SystemClock
    from compactor.planning.spec import JobRunSpec

    catalog = DeltaCatalog.open(lake)
    table_id = "BENCHMARK.TINY.V1"
    catalog.create_table(table_id).append({}, pa.table({"key": range(TINY_ROWS), "value": range(TINY_ROWS)}))
    run = JobRunSpec(
        job_run_id="tiny",
        source_table_id=table_id,
        primary_keys=("key",),
        lake=catalog.location,
        destination_compacted_table_id=table_id,
    )
    before = time.perf_counter()
    run_here(run, catalog, SystemClock(), SparkEngine(context))
    return time.perf_counter() - before


if __name__ == "__main__":
    probe(Path(sys.argv[1]), Path(sys.argv[2]), time.time(), on_cluster=sys.argv[3:] == [ON_CLUSTER])
