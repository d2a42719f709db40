"""`python -m tests.simulation.run_dispatchers FIRST LAST`: these seeds, one after the other, in this process.

One line for each seed: its number, the hash of its log, and the broken invariants. A seed gives the same line
everywhere if PYTHONHASHSEED is 0.
"""

from __future__ import annotations

from tests.simulation import virtual_threads

virtual_threads.install()

import argparse  # noqa: E402  (what takes threads is imported after `install`)
import logging  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402

import pyarrow as pa  # noqa: E402
import structlog  # noqa: E402

from compactor.lake import DeltaCatalog  # noqa: E402
from dispatcher.intake.pinning import STREAMS_PINNED_MAX  # noqa: E402
from tests.fakes.manual_clock import ManualClock  # noqa: E402
from tests.simulation.dispatchers import Ask, Surroundings, World  # noqa: E402

TABLES = tuple(f"ACME.T{number}.V1" for number in range(3))
FEW = "ACME.FEW.V1"
FEW_STREAMS = 5
"""Of a table whose job runs are in bundles."""

MANY_EVERY = 10
"""Each so many seeds, one with hundreds of instructions."""

MANY = 200

WIDE = "ACME.WIDE.V1"
WIDE_EVERY = 50
"""Each so many seeds, one with job runs of a table with more streams than are pinned at once."""


def main() -> int:
    options = _parse()
    if not options.log:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    trace = sys.stdout.write if options.trace else None
    is_right = True
    with tempfile.TemporaryDirectory(prefix="lithify-sim-") as folder:
        lake = DeltaCatalog.open(folder)
        for table_id in TABLES:
            lake.create_table(table_id).append({}, pa.table({"id": [1]}))
        for table_id, streams in ((FEW, FEW_STREAMS), (WIDE, options.wide or STREAMS_PINNED_MAX + 2)):
            table = DeltaCatalog(lake.store, ManualClock()).create_table(table_id, ["day"])
            for day in range(streams):
                table.append({"day": str(day)}, pa.table({"id": [day]}))
        for seed in range(options.first, options.last + 1):
            many = MANY if seed % MANY_EVERY == 0 else None
            wide_table = WIDE if options.wide or seed % WIDE_EVERY == WIDE_EVERY - 1 else None
            around, asks = Surroundings(seed), frozenset(options.ask)
            world = World(around, lake, (*TABLES, FEW), many, wide=wide_table, asks=asks, trace=trace)
            try:
                world.run()
            except Exception as error:  # noqa: BLE001  (any error: the other seeds still run)
                world.wrong(f"{type(error).__name__}: {error}")
            if options.wide:
                most = max(world.sharing().values())
                sys.stdout.write(f"{seed} dispatchers at work on one job run at once: {most}\n")
            wrong = "; ".join(world.violations)
            is_right = is_right and not wrong
            sys.stdout.write(f"{seed} {world.digest} {f'WRONG: {wrong}' if wrong else 'right'}\n")
            sys.stdout.flush()
    return 0 if is_right else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run_dispatchers")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--ask", type=Ask, action="append", default=[], help=", ".join(Ask))
    parser.add_argument("--trace", action="store_true", help="each line of the log that the hash is of, too")
    parser.add_argument("--wide", type=int, help="job runs over so many streams, too; counts who shares one")
    parser.add_argument("--log", action="store_true", help="the dispatchers' own log lines, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
