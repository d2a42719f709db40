"""Runs seeds of simulated dispatchers or keepers in processes of their own: one that simulates has no real threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class SeedResult:
    """`digest`: of the log of everything that happened; the same whenever the seed is run."""

    seed: int
    digest: str
    wrong: str | None


def run_seeds(
    first: int,
    last: int,
    processes: int = 1,
    asks: Sequence[str] = (),
    of: str = "dispatchers",
    days: float | None = None,
) -> Iterator[SeedResult]:
    """As they end; each process takes an equal part, in one piece: heavy seeds have numbers that end alike. `days`:
    simulated ones, of keepers."""
    bounds = [first + (last + 1 - first) * number // processes for number in range(processes + 1)]
    options = [argument for ask in asks for argument in ("--ask", ask)]
    options += [] if days is None else ["--days", str(days)]
    command = [sys.executable, "-m", f"tests.simulation.run_{of}"]
    running = [
        subprocess.Popen(
            [*command, str(begin), str(end - 1), *options],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for begin, end in pairwise(bounds)
    ]
    try:
        while any(each.stdout is not None and not each.stdout.closed for each in running):
            for each in running:
                if each.stdout is None or each.stdout.closed:
                    continue
                line = each.stdout.readline()
                if line:
                    yield _parse(line)
                else:
                    each.stdout.close()
    finally:
        for each in running:
            each.kill()
            each.wait()


def _parse(line: str) -> SeedResult:
    seed, digest, verdict = line.rstrip("\n").split(" ", 2)
    return SeedResult(int(seed), digest, None if verdict == "right" else verdict.removeprefix("WRONG: "))
