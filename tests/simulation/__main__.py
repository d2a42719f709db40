"""`make sim`: simulated dispatchers and keepers; crash points of a session in every way; random schedules of crashes
and races.

    python -m tests.simulation [--seed N] [--schedules N] [--dispatchers N] [--dispatcher-seed N] [--keepers N]
                               [--keeper-seed N]

A schedule follows from its seed alone, and a failure names it: `make sim ARGS="--seed 7"` runs that one again,
`make sim ARGS="--dispatcher-seed 7"` those dispatchers, and `make sim ARGS="--keeper-seed 7"` those keepers.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from compactor.engine.local import local_spark
from compactor.engine.protocol import Engine
from compactor.engine.spark import SparkEngine
from tests.crash_points import HEARTBEAT, POINTS, POINTS_WITH_PLAN, Crash, build_lake, copy_of, crash_and_go_on
from tests.crashes import Lake
from tests.fakes.faulty_store import Stopped
from tests.fakes.unruly_engine import UnrulyEngine
from tests.simulation.publications import run_publications
from tests.simulation.schedule import run_schedule
from tests.simulation.seeds import run_seeds
from tests.simulation.years import run_years

SCHEDULES = 30
DISPATCHERS = 2_000
KEEPERS = 2_000
Case = tuple[str, Callable[[Path], object]]


def main() -> int:
    options = _parse()
    one = {"dispatcher": options.dispatcher_seed, "keeper": options.keeper_seed}
    counts = {"dispatcher": options.dispatchers, "keeper": options.keepers}
    is_one, wrong = any(seed is not None for seed in one.values()), list[int]()
    for of, seed in one.items():
        if options.seed is None and (seed is not None or not is_one):
            first, last = (1, counts[of]) if seed is None else (seed, seed)
            wrong += _simulate(of, first, last, options.ask if of == "dispatcher" else [])
    if is_one:
        return 1 if wrong else 0
    return 1 if _simulate_sessions(options) or wrong else 0


def _simulate(of: str, first: int, last: int, asks: Sequence[str]) -> list[int]:
    """The seeds that went wrong. `of`: dispatcher or keeper."""
    if last < first:
        return []
    started, digests, wrong = time.monotonic(), dict[int, str](), []
    for each in run_seeds(first, last, min(os.cpu_count() or 1, last - first + 1), asks, f"{of}s"):
        digests[each.seed] = each.digest
        if each.wrong is not None:
            wrong.append(each.seed)
            _say(f"--{of}-seed {each.seed}: WRONG: {each.wrong}")
        if len(digests) % 100 == 0 or first == last:
            _say(f"{len(digests):5} of {last - first + 1} seeds of {of}s, the last is {each.seed} {each.digest}")
    whole = hashlib.sha256("".join(digests[seed] for seed in sorted(digests)).encode()).hexdigest()
    missing = (last - first + 1) - len(digests)
    _say(f"{of}s: {len(digests)} seeds, {len(wrong)} wrong, {missing} missing, hash of all logs {whole}, ")
    _say(f"in {time.monotonic() - started:.0f} s")
    return wrong if not missing else [*wrong, -1]


def _simulate_sessions(options: argparse.Namespace) -> int:
    logging.getLogger("py4j").setLevel(logging.ERROR)
    threading.excepthook = _quiet_when_stopped
    failed = []
    started = time.monotonic()
    with local_spark("lithify simulation") as context, tempfile.TemporaryDirectory(prefix="lithify-sim-") as folder:
        engine = SparkEngine(context)
        context.setLogLevel("OFF")
        cases = list(_cases(options, Path(folder), engine))
        for number, (name, run) in enumerate(cases, 1):
            try:
                run(Path(folder) / str(number))
                end = "ok"
            except AssertionError as error:
                failed.append(name)
                end = f"WRONG: {error}"
            except Exception as error:  # noqa: BLE001  (any error: the other schedules still run)
                failed.append(name)
                end = f"{type(error).__name__}: {error}"
            _say(f"{number:4}/{len(cases)}  {name}: {end}")
    _say(f"{len(cases) - len(failed)} of {len(cases)} ended right, in {time.monotonic() - started:.0f} s")
    for name in failed:
        _say(f"  not right: {name}")
    return 1 if failed else 0


def _cases(options: argparse.Namespace, folder: Path, engine: Engine) -> Iterator[Case]:
    if options.seed is None:
        for session_plans in (False, True):
            prepared = build_lake(folder / f"prepared-{session_plans}", engine, session_plans=session_plans)
            for crash in every_crash(prepared):
                name = f"{crash}{', with a plan in the log' if session_plans else ''}"
                yield name, lambda place, crash=crash, of=prepared: crash_and_go_on(copy_of(of, place), crash, engine)  # type: ignore[misc]
    seeds = range(1, options.schedules + 1) if options.seed is None else [options.seed]
    for seed in seeds:
        yield f"--seed {seed}", lambda place, seed=seed: run_schedule(seed, place, engine)  # type: ignore[misc]
        yield f"--seed {seed}, published", lambda place, seed=seed: run_publications(seed, place, UnrulyEngine())  # type: ignore[misc]
        yield f"--seed {seed}, over weeks", lambda place, seed=seed: run_years(seed, place, UnrulyEngine())  # type: ignore[misc]


def every_crash(lake: Lake) -> Iterator[Crash]:
    for point in (*(POINTS_WITH_PLAN if lake.session_plans else POINTS), HEARTBEAT):
        for when in ("before", "after"):
            yield Crash(point, when, "one answer is lost")
            yield Crash(point, when, "the store is down from then on")
            yield Crash(point, when, "the process is killed")
            yield Crash(point, when, "the process is killed", "another job run")


def _quiet_when_stopped(args: threading.ExceptHookArgs) -> None:
    """Prints nothing when a killed process ends its heartbeat's thread."""
    if not issubclass(args.exc_type, Stopped):
        threading.__excepthook__(args)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description="Crashes and races of compaction sessions.")
    parser.add_argument("--seed", type=int, default=None, help="run this one random schedule and nothing else")
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="how many random schedules (%(default)s)")
    parser.add_argument("--dispatchers", type=int, default=DISPATCHERS, help="seeds of dispatchers (%(default)s)")
    parser.add_argument("--dispatcher-seed", type=int, default=None, help="these dispatchers and nothing else")
    parser.add_argument("--keepers", type=int, default=KEEPERS, help="seeds of keepers (%(default)s)")
    parser.add_argument("--keeper-seed", type=int, default=None, help="these keepers and nothing else")
    parser.add_argument("--ask", action="append", default=[], help="see Ask in tests/simulation/dispatchers.py")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
