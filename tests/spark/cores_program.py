"""Run by test_cores_seen.py: a driver on a standalone Spark (the argument) that prints the cores that its engine sees,
at each line of its input."""

from __future__ import annotations

import sys

from pyspark import SparkConf, SparkContext

from compactor.engine.spark import SparkEngine
from compactor.model.clock import SystemClock

SECONDS_MAX = 120.0


def main(master_url: str) -> None:
    """Each line of the input is a number of cores: waits until it is seen, and prints what is seen then."""
    conf = SparkConf().setMaster(master_url).setAppName("cores").set("spark.driver.host", "127.0.0.1")
    settings = {"spark.executor.memory": "512m", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    context = SparkContext(conf=conf.setAll(list(settings.items())))
    engine, clock = SparkEngine(context), SystemClock()
    for line in sys.stdin:
        until = clock.monotonic_seconds() + SECONDS_MAX
        while engine.cores() != int(line) and clock.monotonic_seconds() < until:
            clock.sleep(0.1)
        sys.stdout.write(f"{engine.cores()}\n")
        sys.stdout.flush()
    context.stop()


if __name__ == "__main__":
    main(sys.argv[1])
