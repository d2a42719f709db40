"""Runs a program of Lithify at a later time: `python -m tests.roles.later MODULE [ARGUMENT ...]`.

DAYS_LATER: by how many days its clock is ahead of the machine's. Requests are signed by the machine's own.
"""

from __future__ import annotations

import os
import runpy
import sys

from compactor.model.clock import SystemClock

DAYS_LATER = "DAYS_LATER"
_MS_PER_DAY = 86_400_000


def main(module: str, arguments: list[str], days: float) -> None:
    now_ms = SystemClock.now_ms
    SystemClock.now_ms = lambda self: now_ms(self) + int(days * _MS_PER_DAY)  # type: ignore[method-assign]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:], float(os.environ.get(DAYS_LATER, "0")))
