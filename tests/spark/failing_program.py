"""A process with a Spark of its own in which one task fails at once, and the others end while it stops."""

from __future__ import annotations

import sys
import time

from py4j.protocol import Py4JJavaError

from compactor.engine.local import local_spark
from compactor.log_context import configure_logging

TASKS = 24


def task(number: int) -> int:
    if number == 0:
        raise ValueError("it is damaged")
    time.sleep(0.2 + number * 0.012)  # about when Spark has noticed, and stops
    return number


def main() -> None:
    configure_logging(as_json=False, level="error")
    try:
        with local_spark("lithify tests", f"local[{TASKS}]") as spark:
            spark.parallelize(range(TASKS), TASKS).map(task).collect()
    except Py4JJavaError as error:
        sys.stdout.write(f"{'it is damaged' in str(error)}\n")


if __name__ == "__main__":
    main()
