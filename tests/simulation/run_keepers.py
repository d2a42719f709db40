"""`python -m tests.simulation.run_keepers FIRST LAST`: these seeds, one after the other, in this process.

One line for each seed: its number, the hash of its decisions, and the broken invariants. A seed gives the same line
everywhere if PYTHONHASHSEED is 0.
"""

from __future__ import annotations

from tests.simulation import virtual_threads

virtual_threads.install()

import argparse  # noqa: E402  (what takes threads is imported after `install`)
import logging  # noqa: E402
import sys  # noqa: E402

import structlog  # noqa: E402

from tests.simulation.keepers import DAYS, Break, break_on_purpose, run_keepers, without_rows  # noqa: E402


def main() -> int:
    options = _parse()
    if not options.log:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    without_rows()
    for what in options.ask:
        break_on_purpose(what)
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
    parser.add_argument("--ask", type=Break, action="append", default=[], help=", ".join(Break))
    parser.add_argument("--log", action="store_true", help="the keepers' own log lines, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
