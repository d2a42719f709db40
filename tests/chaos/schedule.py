"""What is done in a run, and when: it follows from the seed and the length alone. Pure.

Work (deltas, instructions, duplicates, rubbish) and harm (signals to dispatchers and Spark jobs, services that go away)
come independently of each other. A dispatcher that is harmed is left alone until it stands again, and so is a service.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.tables import Table
from tests.proxy import Weather

DISPATCHERS = 3
FOLDERS = ("state", "lake")
WORK_PAUSE_SECONDS = 1.6
HARM_PAUSE_SECONDS = 2.4
START_SECONDS = 3.0
"""That dispatchers get to start before any harm."""


@dataclass(frozen=True)
class Instruct:
    """A delta for some partitions of a table, and an instruction to compact it. `chance` makes the rows."""

    table: Table
    number: int
    chance: int
    priority: int

    @property
    def job_run_id(self) -> str:
        return f"run-{self.number}"

    def __str__(self) -> str:
        return f"a delta for {self.table.table_id}, instruction {self.job_run_id}, priority {self.priority}"


@dataclass(frozen=True)
class Duplicate:
    """The document of an earlier instruction once more: as it was, or with other content under the same id."""

    number: int
    other_content: bool

    def __str__(self) -> str:
        return f"instruction run-{self.number} again{', with other content' if self.other_content else ''}"


@dataclass(frozen=True)
class Rubbish:
    """A message that can never work."""

    number: int
    kind: str

    def __str__(self) -> str:
        return f"rubbish on the queue: {self.kind}"


@dataclass(frozen=True)
class Kill:
    dispatcher: int

    def __str__(self) -> str:
        return f"SIGKILL to dispatcher {self.dispatcher}"


@dataclass(frozen=True)
class Terminate:
    dispatcher: int
    twice: bool

    def __str__(self) -> str:
        return f"SIGTERM to dispatcher {self.dispatcher}{', twice' if self.twice else ''}"


@dataclass(frozen=True)
class Pause:
    dispatcher: int
    seconds: float

    def __str__(self) -> str:
        return f"SIGSTOP to dispatcher {self.dispatcher}, for {self.seconds:.0f} s"


@dataclass(frozen=True)
class Resume:
    dispatcher: int

    def __str__(self) -> str:
        return f"SIGCONT to dispatcher {self.dispatcher}"


@dataclass(frozen=True)
class Start:
    dispatcher: int

    def __str__(self) -> str:
        return f"dispatcher {self.dispatcher} is started"


@dataclass(frozen=True)
class HarmJob:
    """To one of the Spark jobs that run then: SIGKILL to a process of it, or SIGSTOP to all of them for a while."""

    pick: int
    stops: bool

    def __str__(self) -> str:
        return f"{'SIGSTOP' if self.stops else 'SIGKILL'} to a Spark job"


@dataclass(frozen=True)
class ResumeJobs:
    def __str__(self) -> str:
        return "SIGCONT to every Spark job that was stopped"


@dataclass(frozen=True)
class Away:
    """A service that is away until `Back`: in some way, or, where there is no weather, altogether."""

    service: str
    weather: Weather | None
    seconds: float

    def __str__(self) -> str:
        if self.weather is None:
            return f"{self.service} is away, for {self.seconds:.0f} s"
        late = f"{self.weather.delay_seconds:g} s late"
        what = {"error": self.weather.code, "none": late}.get(self.weather.harm, self.weather.harm)
        share = f" of each {self.weather.every} requests one" if self.weather.every > 1 else ""
        return f"{self.service}{share}: {what}, for {self.seconds:.0f} s"


@dataclass(frozen=True)
class Back:
    service: str

    def __str__(self) -> str:
        return f"{self.service} is back"


Act = Instruct | Duplicate | Rubbish | Kill | Terminate | Pause | Resume | Start | HarmJob | ResumeJobs | Away | Back


@dataclass(frozen=True)
class Step:
    at_seconds: float
    act: Act

    def __str__(self) -> str:
        return f"{self.at_seconds:7.1f} s  {self.act}"


@dataclass(frozen=True)
class Request:
    """
    services       that can be away; FOLDERS only altogether
    claim_seconds  of the dispatchers: some are stopped for longer than that
    """

    seed: int
    seconds: float
    services: Sequence[str]
    tables: Sequence[Table]
    claim_seconds: float


def schedule(request: Request) -> list[Step]:
    """The steps in order of time. Everything that was stopped or is away is up again at the end."""
    work = _work(request, random.Random(f"{request.seed} work"))
    harm = _harm(request, random.Random(f"{request.seed} harm"))
    return sorted([*work, *harm], key=lambda step: step.at_seconds)


def _moments(chance: random.Random, begins: float, seconds: float, pause_seconds: float) -> Iterator[float]:
    now = begins
    while True:
        now += chance.uniform(0.3, 1.7) * pause_seconds
        if now >= seconds:
            return
        yield round(now, 1)


RUBBISH = (
    "not JSON",
    "half of a document",
    "unknown fields",
    "no such table",
    "an empty document",
    "a list",
    "a key column that is none",
    "a NUL in the lake's name",
    "a long id",
)


def _work(request: Request, chance: random.Random) -> Iterator[Step]:
    sent = 0
    yield Step(0.0, _instruct(request, chance, sent))
    for number, at_seconds in enumerate(_moments(chance, 0.0, request.seconds, WORK_PAUSE_SECONDS)):
        drawn = chance.random()
        if drawn < 0.70:
            sent += 1
            yield Step(at_seconds, _instruct(request, chance, sent))
        elif drawn < 0.85:
            yield Step(at_seconds, Duplicate(chance.randint(0, sent), other_content=chance.random() < 0.3))
        else:
            yield Step(at_seconds, Rubbish(number, chance.choice(RUBBISH)))


def _instruct(request: Request, chance: random.Random, number: int) -> Instruct:
    weights = [table.weight for table in request.tables]
    (table,) = chance.choices(request.tables, weights)
    return Instruct(table, number, chance.getrandbits(32), chance.choice([0, 0, 0, 10, 1_000]))


def _harm(request: Request, chance: random.Random) -> Iterator[Step]:
    free_at = dict.fromkeys([*range(DISPATCHERS), *request.services], 0.0)
    for at_seconds in _moments(chance, START_SECONDS, request.seconds * 0.95, HARM_PAUSE_SECONDS):
        drawn = chance.random()
        subjects: Sequence[int | str] = range(DISPATCHERS) if drawn < 0.6 else request.services
        if drawn >= 0.8:
            yield from _harm_to_job(at_seconds, chance)
            continue
        free = [each for each in subjects if free_at[each] <= at_seconds]
        if not free:
            continue
        subject = chance.choice(free)
        steps = (
            _harm_to_dispatcher(subject, at_seconds, request, chance)
            if isinstance(subject, int)
            else _absence(subject, at_seconds, chance)
        )
        free_at[subject] = steps[-1].at_seconds + 1.0
        yield from steps


def _harm_to_dispatcher(dispatcher: int, at_seconds: float, request: Request, chance: random.Random) -> list[Step]:
    drawn = chance.random()
    if drawn < 0.4:
        down_seconds = chance.uniform(0.2, 4.0)
        return [Step(at_seconds, Kill(dispatcher)), Step(round(at_seconds + down_seconds, 1), Start(dispatcher))]
    if drawn < 0.75:
        # Half of them longer than a claim: those come back as zombies.
        seconds = round(chance.uniform(0.3, 2.0) * request.claim_seconds, 1)
        return [
            Step(at_seconds, Pause(dispatcher, seconds)),
            Step(round(at_seconds + seconds, 1), Resume(dispatcher)),
        ]
    down_seconds = chance.uniform(0.2, 6.0)
    return [
        Step(at_seconds, Terminate(dispatcher, twice=chance.random() < 0.3)),
        Step(round(at_seconds + down_seconds, 1), Start(dispatcher)),
    ]


def _harm_to_job(at_seconds: float, chance: random.Random) -> list[Step]:
    stops = chance.random() < 0.3
    steps = [Step(at_seconds, HarmJob(chance.getrandbits(16), stops))]
    return [*steps, Step(round(at_seconds + chance.uniform(2.0, 15.0), 1), ResumeJobs())] if stops else steps


_CODES = ("ExpiredToken", "AccessDenied", "RequestExpired", "SignatureDoesNotMatch")
_WEATHERS = (
    *(Weather("error", status=403, code=code) for code in _CODES),
    *(2 * [Weather("error", status=503, code="ServiceUnavailable")]),
    Weather("request cut"),
    Weather("request cut", every=3),
    *(2 * [Weather("answer cut", every=3)]),
    *(2 * [Weather("silence")]),
    Weather(delay_seconds=1.0),
)


def _absence(service: str, at_seconds: float, chance: random.Random) -> list[Step]:
    weather = None if service in FOLDERS else chance.choice(_WEATHERS)
    seconds = round(chance.choice([1.5, 4.0, 10.0, 20.0]) * chance.uniform(0.7, 1.3), 1)
    return [Step(at_seconds, Away(service, weather, seconds)), Step(round(at_seconds + seconds, 1), Back(service))]
