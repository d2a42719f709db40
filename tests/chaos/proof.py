"""What is done in a proof, and when: it follows from the seed, the length and the number of instructions. Pure.

Each instruction is sent one to five times, some of them within a second and some minutes later, while every few seconds
one of the dispatchers is killed and started again, and once a minute one is stopped for longer than a claim lasts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.chaos.schedule import (
    DISPATCHERS,
    START_SECONDS,
    Duplicate,
    Instruct,
    Kill,
    Pause,
    Resume,
    Start,
    Step,
)
from tests.chaos.tables import Table

INSTRUCTIONS = 200
SENT_MAX = 5
KILL_SECONDS = 5.0
DOWN_SECONDS = 0.5
STOP_EVERY_SECONDS = 60.0
STOP_SECONDS = 30.0
FIRST_STOP_SECONDS = 12.0


def schedule(seed: int, seconds: float, tables: Sequence[Table], instructions: int) -> list[Step]:
    """The steps in order of time. No dispatcher is stopped at the end."""
    work = _work(seconds, tables, instructions, random.Random(f"{seed} proof"))
    harm = _harm(seconds, random.Random(f"{seed} proof harm"))
    return sorted([*work, *harm], key=lambda step: step.at_seconds)


def _work(seconds: float, tables: Sequence[Table], instructions: int, chance: random.Random) -> Iterator[Step]:
    weights = [table.weight for table in tables]
    moments = sorted(round(chance.uniform(0.0, seconds * 2 / 3), 1) for _ in range(instructions))
    for number, at_seconds in enumerate(moments):
        (table,) = chance.choices(tables, weights)
        yield Step(at_seconds, Instruct(table, number, chance.getrandbits(32), chance.choice([0, 0, 0, 10])))
        for _ in range(chance.randint(1, SENT_MAX) - 1):
            is_soon = chance.random() < 0.5
            again_at = at_seconds + chance.uniform(0.0, 1.0) if is_soon else chance.uniform(at_seconds, seconds)
            yield Step(round(again_at, 1) + 0.05, Duplicate(number, other_content=False))


def _harm(seconds: float, chance: random.Random) -> Iterator[Step]:
    """While one stands still, the same one is killed again and again: the third lives long enough to take over."""
    spared_from: dict[float, tuple[int, int]] = {}
    for at_seconds in _every(FIRST_STOP_SECONDS, STOP_EVERY_SECONDS, seconds):
        if at_seconds + STOP_SECONDS < seconds:
            stopped, lives = chance.sample(range(DISPATCHERS), 2)
            spared_from[at_seconds] = (stopped, lives)
            yield Step(at_seconds, Pause(stopped, STOP_SECONDS))
            yield Step(at_seconds + STOP_SECONDS, Resume(stopped))
    for at_seconds in _every(START_SECONDS + KILL_SECONDS, KILL_SECONDS, seconds):
        stops = [each for at, each in spared_from.items() if -KILL_SECONDS < at_seconds - at <= STOP_SECONDS]
        spared = stops[0] if stops else ()
        killed = chance.choice([each for each in range(DISPATCHERS) if each not in spared])
        yield Step(at_seconds, Kill(killed))
        yield Step(at_seconds + DOWN_SECONDS, Start(killed))


def _every(first: float, pause: float, until: float) -> Iterator[float]:
    at_seconds = first
    while at_seconds < until:
        yield at_seconds
        at_seconds += pause
