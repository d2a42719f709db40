"""`make chaos`: three real dispatchers on a queue, under harm, and whether everything came out right.

    python -m tests.chaos [--minutes N] [--seed N] [--s3] [--spark] [--proof] [--list]

Signals to dispatchers and Spark jobs, duplicates and rubbish on the queue, a queue, a topic and stores that go away for
a while and answer 403: by a schedule that follows from the seed and the length alone. Exit code 0: all is right, 1: not
all.

`make proof` is `--proof`: instructions that are sent several times each, on ministack and an S3 server, while every
5 seconds a dispatcher is killed, and once a minute one stands still for three times as long as a claim lasts.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.proof import INSTRUCTIONS
from tests.chaos.run import SETTLE_SECONDS, Options, Verdict, run

FINDINGS_SHOWN_MAX = 12
MINUTES, PROOF_MINUTES = 3.0, 5.0


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    options = Options(
        given.seed,
        given.minutes * 60,
        given.s3 or given.proof,
        given.spark,
        given.settle_seconds,
        given.instructions if given.proof else None,
    )
    steps = options.steps()
    if given.list:
        for step in steps:
            _say(str(step))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="lithify-chaos-", dir=given.folder))
    _say(f"seed {given.seed}: {len(steps)} steps in {given.minutes:g} minutes (--list shows them); all files: {folder}")
    verdict = run(options, folder, _say)
    _show(verdict)
    if verdict.is_right and not given.keep:
        shutil.rmtree(folder)
    else:
        _say(f"logs, state and lake are in {folder}")
    return 0 if verdict.is_right else 1


def _show(verdict: Verdict) -> None:
    _say("")
    for name, findings in verdict.found.items():
        _say(f"{'WRONG' if findings else 'right'}  {name}")
        for finding in findings[:FINDINGS_SHOWN_MAX]:
            _say(f"         {finding}")
        if len(findings) > FINDINGS_SHOWN_MAX:
            _say(f"         and {len(findings) - FINDINGS_SHOWN_MAX} more")
    _say("")
    for name, value in verdict.figures.items():
        _say(f"{name}: {value}")
    _say("\neverything is right" if verdict.is_right else "\nNOT everything is right")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, help="of harm; what is left to do comes after it (3, of the proof 5)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed and minutes, the same schedule (1)")
    parser.add_argument("--s3", action="store_true", help="state and lake on an S3 server instead of a folder")
    parser.add_argument(
        "--spark", action="store_true", help="one table by real Spark sessions; the others by a stand-in"
    )
    parser.add_argument("--proof", action="store_true", help="the proof, in place of the chaos")
    parser.add_argument(
        "--instructions", type=int, default=INSTRUCTIONS, help=f"of the proof, in its first two thirds ({INSTRUCTIONS})"
    )
    parser.add_argument("--list", action="store_true", help="print the schedule and do nothing")
    parser.add_argument("--settle-seconds", type=float, default=SETTLE_SECONDS, help="for what is left to do (600)")
    parser.add_argument("--folder", type=Path, help="where everything is written (the system's own)")
    parser.add_argument("--keep", action="store_true", help="keep it also if all is right")
    found = parser.parse_args(arguments)
    if found.proof and found.spark:
        parser.error("--proof has no table for real Spark sessions: leave out --spark")
    found.minutes = found.minutes or (PROOF_MINUTES if found.proof else MINUTES)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
