"""`python -m tests.simulation.run_keepers FIRST LAST`: these seeds, one after the other, in this process.

One line for each seed: its number, the hash of its decisions, and the broken invariants. A seed gives the same line
everywhere if PYTHONHASHSEED is 0.
"""

from __future__ import annotations

import argparse
import logging
import sys

import structlog

from tests.simulation.keepers import DAYS, run_keepers


def main() -> int:
    options = _parse()
    if not options.log:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    is_right = True
    for seed in range(options.first, options.last + 1):
        keepers = run_keepers(seed, options.days)
        wrong = "; ".join(keepers.violations)
        is_right = is_right and not wrong
        sys.stdout.write(f"{seed} {keepers.digest} {f'WRONG: {wrong}' if wrong else 'right'}\n")
        sys.stdout.flush()
    return 0 if is_right else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run_keepers")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--days", type=float, default=DAYS, help="simulated days of a seed (%(default)s)")
    parser.add_argument("--log", action="store_true", help="the keepers' own log lines, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
