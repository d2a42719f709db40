"""`make sim`: every crash point of a session in every way, then random schedules of crashes and races.

    python -m tests.simulation [--seed N] [--schedules N]

A schedule follows from its seed alone, and a failure names it: `make sim ARGS="--seed 7"` runs that one again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from compactor.local_spark import local_spark
from tests.crash_points import HEARTBEAT, POINTS, Crash, build_lake, copy_of, crash_and_go_on
from tests.fakes.faulty_store import Stopped
from tests.simulation.schedule import run_schedule

SCHEDULES = 30
Case = tuple[str, Callable[[Path], object]]


def main() -> int:
    options = _parse()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    threading.excepthook = _quiet_when_stopped
    failed = []
    started = time.monotonic()
    with local_spark("lithify simulation") as context, tempfile.TemporaryDirectory(prefix="lithify-sim-") as folder:
        spark = SparkSession(context)
        context.setLogLevel("OFF")
        cases = list(_cases(options, Path(folder), spark))
        for number, (name, run) in enumerate(cases, 1):
            try:
                run(Path(folder) / str(number))
                end = "ok"
            except AssertionError as error:
                failed.append(name)
                end = f"WRONG: {error}"
            except Exception as error:  # noqa: BLE001  (whatever it is, the other schedules still run)
                failed.append(name)
                end = f"{type(error).__name__}: {error}"
            _say(f"{number:4}/{len(cases)}  {name}: {end}")
    _say(f"{len(cases) - len(failed)} of {len(cases)} ended right, in {time.monotonic() - started:.0f} s")
    for name in failed:
        _say(f"  not right: {name}")
    return 1 if failed else 0


def _cases(options: argparse.Namespace, folder: Path, spark: SparkSession) -> Iterator[Case]:
    if options.seed is None:
        prepared = build_lake(folder / "prepared", spark)
        for crash in every_crash():
            yield str(crash), lambda place, crash=crash: crash_and_go_on(copy_of(prepared, place), crash, spark)  # type: ignore[misc]
    seeds = range(1, options.schedules + 1) if options.seed is None else [options.seed]
    for seed in seeds:
        yield f"--seed {seed}", lambda place, seed=seed: run_schedule(seed, place, spark)  # type: ignore[misc]


def every_crash() -> Iterator[Crash]:
    for point in (*POINTS, HEARTBEAT):
        for when in ("before", "after"):
            yield Crash(point, when, "one answer is lost")
            yield Crash(point, when, "the store is down from then on")
            yield Crash(point, when, "the process is killed")
            yield Crash(point, when, "the process is killed", "another job run")


def _quiet_when_stopped(args: threading.ExceptHookArgs) -> None:
    """A killed process takes its heartbeat's thread along: nothing to tell."""
    if not issubclass(args.exc_type, Stopped):
        threading.__excepthook__(args)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description="Crashes and races of compaction sessions.")
    parser.add_argument("--seed", type=int, default=None, help="run this one random schedule and nothing else")
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="how many random schedules (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
