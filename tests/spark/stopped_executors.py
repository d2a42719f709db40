"""Executors that are stopped in the middle of a compaction, replaced by Spark, and go on: the rows must be right.

    python -m tests.spark.stopped_executors --rounds 20 --seed 1

Each round compacts a table on a local cluster of two executors, its lake on seaweedfs. At a moment that chance chooses,
one executor gets a SIGSTOP (its JVM, its Python workers, or both), stays stopped past `spark.network.timeout`, and goes
on: before the compaction has ended, or after it; its workers first, which so have some seconds before they are ended.
After the end every other request of theirs is refused, so that they fail in the middle of what they write.

Speculation is on, though Spark starts no second copy of a task on the same host; so where only workers are stopped,
which the executor's JVM does not notice, they go on before the end. A line of JSON says of each round what was found.
test_stopped_executors.py runs a few; the exit code is 1 where rows are wrong or `verify` finds a problem.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.catalog.keys import CompactedFilePath, DeltaFilePath
from compactor.engine.java_home import find_java_home
from compactor.engine.settings import JOB_SETTINGS, LOCAL_SETTINGS
from compactor.index.keys import IndexFilePath
from compactor.lake import Table
from compactor.maintenance.named_files import DATA_KEYS
from compactor.maintenance.verify import verify
from compactor.model.names import Operation
from compactor.storage.keys import parse_any
from compactor.storage.object_store import ObjectStore
from tests.builders import multiset
from tests.oracle import Row, surviving_rows
from tests.proxy import Proxy, Weather, proxy_before
from tests.servers import BUCKET, aws_environment, seaweedfs_server
from tests.waiting import wait_until

TIMEOUT_SECONDS = 5
GRACE_SECONDS = 3
ROWS = 40_000
ROWS_PER_FILE = 20_000
BYTES_WRITTEN = 20_000_000
"""About as many as a round uploads."""

REFUSING = Weather("error", every=2, status=403, code="AccessDenied")
SLOW = Weather(bytes_per_second=10_000_000)
"""So that an executor is often stopped while it writes."""

STOPPED = ("jvm", "workers", "all")
GOES_ON = ("before the end", "after the end")
SETTINGS = {
    "spark.network.timeout": f"{TIMEOUT_SECONDS}s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": f"{TIMEOUT_SECONDS}s",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    wrong = 0
    with ExitStack() as stack:
        stack.enter_context(aws_environment())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        server = stack.enter_context(seaweedfs_server(folder / "seaweedfs"))
        proxy = stack.enter_context(proxy_before(server))
        spark = stack.enter_context(_local_cluster())
        for number in range(options.seed, options.seed + options.rounds):
            found = _round(spark, server, proxy, random.Random(number))
            wrong += not found["right"]
            sys.stdout.write(json.dumps({"round": number, **found}) + "\n")
            sys.stdout.flush()
    return min(wrong, 1)


@contextmanager
def _local_cluster() -> Iterator[SparkSession]:
    os.environ["JAVA_HOME"] = str(find_java_home(os.environ, Path.home() / ".cache" / "lithify"))
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("lithify stopped executors").master("local-cluster[2,1,1024]")
    for name, value in {**JOB_SETTINGS, **LOCAL_SETTINGS, **SETTINGS}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def _round(spark: SparkSession, server: str, proxy: Proxy, chance: random.Random) -> dict[str, object]:
    started = time.monotonic()
    table_id = f"ACME.STOPPED_{chance.getrandbits(64):x}.V1"
    lake = DeltaCatalog.open(f"s3://{BUCKET}/lake", endpoint_url=server)
    table = lake.create_table(table_id)
    deltas = _deltas(chance)
    for operation, rows in deltas:
        table.append({}, pa.Table.from_pylist(rows), operation, rows_per_file=ROWS_PER_FILE)
    wait_until(lambda: len(_executors()) == 2)
    proxy.set_weather(SLOW)
    proxy.count_anew()
    what = chance.choice(STOPPED)
    goes_on = GOES_ON[0] if what == "workers" else chance.choice(GOES_ON)
    after_bytes = chance.uniform(0, BYTES_WRITTEN)
    failures = list[BaseException]()
    compaction = threading.Thread(target=_compact, args=(spark, proxy.url, table_id, failures))
    compaction.start()
    stopped = _stop_an_executor(compaction, proxy, after_bytes, what, chance)
    if goes_on == "before the end":
        compaction.join(TIMEOUT_SECONDS + chance.uniform(1, 4))
    else:
        compaction.join()
    was_running = compaction.is_alive()
    if not was_running:
        proxy.set_weather(REFUSING)
    _go_on(stopped)
    compaction.join()
    _await_silence(proxy)
    return {
        "stopped": what if stopped else "nothing",
        "after_bytes": int(after_bytes),
        "went_on": GOES_ON[0] if was_running else GOES_ON[1],
        "seconds": round(time.monotonic() - started, 1),
        **_found(table, deltas, failures),
        "files_of_two_attempts": _written_twice(lake.store, table),
    }


def _deltas(chance: random.Random) -> list[tuple[Operation, list[Row]]]:
    """Wide rows that hardly compress, so that files have several parts; then updates of some, and deletes of others."""

    def row(key: int, time: int) -> Row:
        return {"id": key, "time": time, "value": chance.randbytes(300).hex()}

    return [
        (Operation.UPSERT, [row(n, 1) for n in range(ROWS)]),
        (Operation.UPSERT, [row(n, 2) for n in range(0, ROWS, 3)]),
        (Operation.DELETE, [{"id": n, "time": 3} for n in range(0, ROWS, 5)]),
    ]


def _compact(spark: SparkSession, endpoint_url: str, table_id: str, failures: list[BaseException]) -> None:
    lake = DeltaCatalog.open(f"s3://{BUCKET}/lake", endpoint_url=endpoint_url)
    try:
        compact(
            table_id,
            {"id"},
            [("time", "ascending")],
            delta_catalog_client=lake,
            hash_bucket_count=4,
            rows_per_compacted_file=ROWS_PER_FILE,
            spark=spark,
        )
    except BaseException as error:  # noqa: BLE001  (told in the round's line)
        traceback.print_exception(error)
        failures.append(error)


def _executors() -> list[psutil.Process]:
    """The JVMs of the executors that Python workers belong to, or will."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name() == "java" and "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    return found


def _stop_an_executor(
    compaction: threading.Thread, proxy: Proxy, after_bytes: float, what: str, chance: random.Random
) -> list[psutil.Process]:
    """What was stopped; nothing, if the compaction ended before it had uploaded so much."""

    def is_time() -> bool:
        sent = sum(traffic.bytes_up for traffic in proxy.counted().values())
        return sent >= after_bytes or not compaction.is_alive()

    wait_until(is_time)
    executors = [each for each in _executors() if each.children(recursive=True)]
    if not compaction.is_alive() or not executors:
        return []
    executor = chance.choice(executors)
    stopped = ([executor] if what != "workers" else []) + (executor.children(recursive=True) if what != "jvm" else [])
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    return stopped


def _go_on(stopped: Sequence[psutil.Process]) -> None:
    """Those without children of their own first: the JVM and PySpark's daemon end workers that they do not know."""
    leaves = [process for process in stopped if process.is_running() and not process.children()]
    for process in (*leaves, None, *stopped):
        if process is None:
            time.sleep(GRACE_SECONDS)
            continue
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def _await_silence(proxy: Proxy) -> None:
    """Until nobody has asked the store for anything for two seconds: who went on has ended, or been ended."""
    while True:
        before = sum(traffic.requests for traffic in proxy.counted().values())
        time.sleep(2)
        if sum(traffic.requests for traffic in proxy.counted().values()) == before:
            return


def _found(
    table: Table, deltas: Sequence[tuple[Operation, list[Row]]], failures: Sequence[BaseException]
) -> dict[str, object]:
    expected = surviving_rows(
        [(position, operation, [rows]) for position, (operation, rows) in enumerate(deltas)],
        ["id"],
        [("time", "ascending")],
    )
    reasons = [f"{type(error).__name__}: {error}"[:500] for error in failures]
    problems: list[str] = []
    rows_right = False
    if not failures:
        columns = ["id", "time", "value"]
        problems = [str(problem) for problem in verify(table.stream({})).problems]
        rows_right = not problems and multiset(table.scan().to_table(), columns) == multiset(expected, columns)
    return {
        "right": rows_right and not problems and not failures,
        "rows": len(expected),
        "problems": problems[:5],
        "failures": reasons,
    }


def _written_twice(store: ObjectStore, table: Table) -> int:
    """Files that several attempts at a task have finished: each but one of them in vain."""
    attempts = defaultdict[object, int](int)
    for entry in store.list(f"{table.stream({}).folder.data}/"):
        path = parse_any(entry.key, DATA_KEYS)
        if isinstance(path, CompactedFilePath | IndexFilePath):
            attempts[replace(path, task_attempt="any")] += 1
        else:
            assert isinstance(path, DeltaFilePath)
    return sum(count > 1 for count in attempts.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
