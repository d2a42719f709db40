"""The process of one contestant: starts it, then does what each line of its input says, and answers with a line.

    python -m tests.benchmarks.child <contestant> <file with the task>

Whatever a library prints goes to standard error, so that standard output holds answers alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.contestant import Answer, Call, Contestant, Task

OURS, SPARK, DUCKDB, DUCKDB_JOIN, FLOOR = "lithify", "Spark window", "DuckDB QUALIFY", "DuckDB semi join", "floor"
DELTA_LAKE, LANCE = "deltalake MERGE", "Lance merge_insert"


def main(name: str, task_file: str) -> None:
    with os.fdopen(os.dup(1), "w") as answers, ExitStack() as stack:
        os.dup2(2, 1)
        contestant = _start(name, Task.parse_durable(Path(task_file).read_bytes(), task_file), stack)
        started = time.time_ns() // 1_000_000
        _say(answers.fileno(), Answer(seconds=0, started_ms=started, ended_ms=started))
        for line in sys.stdin:
            _say(answers.fileno(), _do(contestant, Call.parse_durable(line.encode(), "standard input")))


def _start(name: str, task: Task, stack: ExitStack) -> Contestant:
    """Libraries are imported here, each only for whom it is needed."""
    if name == OURS:
        from compactor.engine.local import local_spark
        from compactor.engine.spark import SparkEngine
        from tests.benchmarks.ours import Ours

        # Where a task may be tried twice, records take the way that they take on a cluster.
        master = f"local[{task.cores},2]" if task.through_spark else None
        return Ours(task, SparkEngine(stack.enter_context(local_spark("benchmark", master))))
    from tests.benchmarks.competitors import DuckDb, DuckDbSemiJoin, Floor, SparkWindow
    from tests.benchmarks.peers import DeltaLakeMerge, LanceMerge

    kinds: dict[str, Callable[[Task], Contestant]] = {
        SPARK: SparkWindow,
        DUCKDB: DuckDb,
        DUCKDB_JOIN: DuckDbSemiJoin,
        FLOOR: Floor,
        DELTA_LAKE: DeltaLakeMerge,
        LANCE: LanceMerge,
    }
    return kinds[name](task)


def _do(contestant: Contestant, call: Call) -> Answer:
    started, started_ms = time.perf_counter(), time.time_ns() // 1_000_000
    (contestant.prepare if call.verb == "prepare" else contestant.run)(Path(call.folder))
    answer = Answer(seconds=time.perf_counter() - started, started_ms=started_ms, ended_ms=time.time_ns() // 1_000_000)
    return contestant.describe(Path(call.folder), answer) if call.verb == "run" else answer


def _say(descriptor: int, answer: Answer) -> None:
    os.write(descriptor, answer.render() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
