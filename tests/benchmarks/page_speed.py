"""How fast the page of `lithify serve` answers, how many requests it costs, and how much memory it takes:

    python -m tests.benchmarks.page_speed [--minutes 10] [--results FILE]

1,000 open sessions, a history of 365 days, and a store each of whose requests takes 30 ms. The page is a process of its
own over a real socket; it counts the requests that reach the store.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import linear_regression, median

import psutil

from compactor.model.clock import SystemClock
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.demo.stand_ins import free_ports
from dispatcher.records.history import EndedJobRun
from dispatcher.records.history_upkeep import HistoryUpkeep
from tests.benchmarks import report
from tests.benchmarks.machine import describe_machine
from tests.benchmarks.page_server import DELAY_SECONDS
from tests.benchmarks.report import Section, markdown_table
from tests.fakes.dispatch_desk import Desk, instruction
from tests.waiting import wait_until

JOB_RUNS, SESSIONS_EACH = 20, 50
DAYS, ENDED_A_DAY = 365, 20
VIEWERS, LOOK_SECONDS = 50, 5.0
DAY_MS = 86_400_000
TABLE = "BENCH.PAGE.V1"
PAGES = ("/", "/tables", "/history", "/money", "/prediction", "/api/v1/now")
GOALS = {"first byte, warm": 0.2, "whole page, warm": 1.0, "whole page, cold": 3.0}
REQUESTS_A_SECOND_MAX, MEMORY_MIB_MAX = 2.0, 250.0


def fill(folder: Path) -> None:
    """The state and the lake that are shown."""
    clock = SystemClock()
    desk = Desk(folder, clock=clock, state=open_store(parse_location(str(folder / "state"))))
    now_ms = clock.now_ms()
    for day in range(DAYS, 0, -1):
        desk.records.history.record(_ended(now_ms - day * DAY_MS, day))
    HistoryUpkeep(desk.records, clock).close_days()
    desk.append_days(TABLE, SESSIONS_EACH)
    for number in range(JOB_RUNS):
        desk.send(instruction(job_run_id=f"open-{number}", source_table_id=TABLE))
        desk.take()
        assert len(desk.job_run(f"open-{number}").sessions) == SESSIONS_EACH


def _ended(at_ms: int, day: int) -> list[EndedJobRun]:
    return [
        EndedJobRun(
            job_run_id=f"ended-{day}-{number}",
            status="failed" if number == 0 else "succeeded",
            table=f"BENCH.T{number}.V1",
            destination=None,
            accepted_at_ms=at_ms,
            ended_at_ms=at_ms + 60_000,
            seconds=60.0 + number,
            expected_sla=70.0,
            sessions=3,
            expected_usd=0.5,
            usd=0.4,
            reasons=("it failed for the benchmark",) if number == 0 else (),
        )
        for number in range(ENDED_A_DAY)
    ]


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, psutil.Process]]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.benchmarks.page_server", str(folder), str(port)]
    with subprocess.Popen(command) as process:
        try:
            wait_until(lambda: _is_up(port), every_seconds=0.2)
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()


def _is_up(port: int) -> bool:
    try:
        return ask(port, "/live").status == 200
    except OSError:
        return False


@dataclass(frozen=True)
class Answer:
    status: int
    first_byte_seconds: float
    seconds: float
    body: bytes


def ask(port: int, path: str) -> Answer:
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        first = time.perf_counter() - begun
        body = answer.read()
        return Answer(answer.status, first, time.perf_counter() - begun, body)
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Measured:
    """
    cold, warm      by path
    first_requests  of the first reading of every page, which the rate pays for before anything is read again
    memory_mib      at the begin, and at the end of each minute
    ages_seconds    how old what runs now was when a viewer looked: the median, and the most
    looks           of all viewers, the one that waited longest for its first byte last
    """

    cold: dict[str, Answer]
    warm: dict[str, Answer]
    first_requests: int
    requests_a_second: float
    memory_mib: tuple[float, ...]
    ages_seconds: tuple[float, float]
    looks: Sequence[Answer]

    @property
    def growth_mib_an_hour(self) -> float:
        """A line through the second half of the minutes."""
        late = self.memory_mib[len(self.memory_mib) // 2 :]
        return 0.0 if len(late) < 2 else linear_regression(range(len(late)), late).slope * 60


def measure(folder: Path, minutes: float) -> Measured:
    cold = {}
    for path in PAGES:
        with served(folder) as (port, _):
            cold[path] = ask(port, path)
    with served(folder) as (port, process):
        paths = [*PAGES, "/job-runs/open-0", f"/tables/{TABLE}"]
        for path in paths:
            ask(port, path)
        warm = {path: sorted((ask(port, path) for _ in range(9)), key=lambda each: each.seconds)[4] for path in PAGES}
        before, begun = _requests(port), time.perf_counter()
        until = begun + minutes * 60
        memory, ages = [process.memory_info().rss / 2**20], []
        looks = list[Answer]()
        viewers = [
            threading.Thread(target=_view, args=(port, paths, number, until, looks)) for number in range(VIEWERS)
        ]
        for each in viewers:
            each.start()
        while (left := until - time.perf_counter()) > 0:
            time.sleep(min(LOOK_SECONDS, left))
            ages.append(time.time() - json.loads(ask(port, "/api/v1/now").body)["read_at_ms"] / 1000)
            if time.perf_counter() - begun >= 60 * len(memory):
                memory.append(process.memory_info().rss / 2**20)
        for each in viewers:
            each.join()
        rate = (_requests(port) - before) / (time.perf_counter() - begun)
    looks.sort(key=lambda each: each.first_byte_seconds)
    return Measured(cold, warm, before, rate, tuple(memory), (median(ages), max(ages)), looks)


def _view(port: int, paths: Sequence[str], number: int, until: float, looks: list[Answer]) -> None:
    turn = number
    time.sleep(number * LOOK_SECONDS / VIEWERS)
    while time.perf_counter() < until:
        answer = ask(port, paths[turn % len(paths)])
        assert answer.status == 200, answer.body
        looks.append(replace(answer, body=b""))
        turn += 1
        time.sleep(LOOK_SECONDS)


def _requests(port: int) -> int:
    return int(ask(port, "/static-requests").body)


def section(measured: Measured, minutes: float, load: float) -> Section:
    scene = (
        f"`python -m tests.benchmarks.page_speed`: {JOB_RUNS * SESSIONS_EACH:,} open sessions of {JOB_RUNS} job runs, "
        f"{DAYS} days of history with {ENDED_A_DAY} job runs each, {DELAY_SECONDS * 1000:.0f} ms a request to the "
        f"store. Load average at the begin: {load:.1f}. Goals: first byte {GOALS['first byte, warm'] * 1000:.0f} ms "
        f"and whole page {GOALS['whole page, warm']:.0f} s warm, {GOALS['whole page, cold']:.0f} s cold."
    )
    rows = []
    for path, cold in measured.cold.items():
        warm = measured.warm[path]
        figures = (f"{warm.first_byte_seconds * 1000:.0f}", f"{warm.seconds * 1000:.0f}")
        rows.append((f"`{path}`", f"{cold.seconds:.2f}", *figures, f"{len(warm.body) / 1000:,.0f}"))
    table = markdown_table(["page", "cold, s", "warm: first byte, ms", "warm: whole, ms", "kB"], rows)
    memory, (middle_age, most_age) = measured.memory_mib, measured.ages_seconds
    viewers = (
        f"{VIEWERS} viewers for {minutes:g} minutes: {measured.requests_a_second:.2f} requests a second to the store "
        f"(goal {REQUESTS_A_SECOND_MAX:g}), after {measured.first_requests} for the first reading of every page, which "
        f"overviews pay for; what runs now was {middle_age:.0f} s old (median), {most_age:.0f} at most. "
        f"Of {len(measured.looks):,} looks, first byte: {_milliseconds(measured.looks)}. "
        f"Memory {memory[0]:.0f} MiB, {memory[len(memory) // 2]:.0f} in the middle, {memory[-1]:.0f} at the end, "
        f"{max(memory):.0f} at most (goal: flat, at most {MEMORY_MIB_MAX:.0f}); over the second half it grows by "
        f"{measured.growth_mib_an_hour:.1f} MiB an hour."
    )
    return "The page", "\n\n".join((scene, table, viewers))


def _milliseconds(looks: Sequence[Answer]) -> str:
    def of(share: float) -> str:
        return f"{looks[int(share * (len(looks) - 1))].first_byte_seconds * 1000:,.0f}"

    return f"{of(0.5)} ms (median), {of(0.99)} of 99 %, {of(1.0)} at most"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.page_speed", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the viewers")
    parser.add_argument("--results", type=Path, help="file to write to")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="lithify-page-") as folder:
        fill(Path(folder))
        measured = measure(Path(folder), options.minutes)
    sections = [section(measured, options.minutes, load)]
    report.show([report.machine_section(describe_machine()), *sections])
    if options.results is not None:
        report.write(options.results, sections)


if __name__ == "__main__":
    main(sys.argv[1:])
