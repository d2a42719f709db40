"""What one dispatcher does with 100 small instructions a minute for 100 tables: how long each takes, from SendMessage
to its `job_run.succeeded`, and whether memory grows. Each is for 1,000 new rows of its table, in warm workers.

Queue and topic are ministack, lake and state are in a folder, all on the same cores.
"""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from compactor.lake import DeltaCatalog, Table
from compactor.storage.location import parse_location
from tests.benchmarks.one_dispatcher import Mail, dispatcher, open_mail
from tests.benchmarks.workers import ROWS, subscribe, take_events
from tests.servers import aws_environment

A_MINUTE = 100
MINUTES = 10
TABLES = 100

_SECONDS_MAX = 60.0
"""After the last instruction, for those that have not ended."""


@dataclass(frozen=True)
class AtARate:
    """
    seconds     of each instruction, in the order in which they were sent
    memory_mib  of the dispatcher and its workers together, without pages that others have too: after a tenth of the
                instructions, after half, and after all
    """

    seconds: tuple[float, ...]
    memory_mib: tuple[float, float, float]

    @property
    def median_p95_and_longest(self) -> tuple[float, float, float]:
        median, p95 = np.percentile(self.seconds, [50, 95])
        return float(median), float(p95), max(self.seconds)


def measure_rate(folder: Path, scale: float) -> AtARate:
    """Raises `RuntimeError` if an instruction fails, or does not end."""
    count = max(round(A_MINUTE * MINUTES * scale), 20)
    state, lake = (parse_location(str(folder / name)) for name in ("state", "lake"))
    catalog = DeltaCatalog.open(lake.root_uri)
    tables = [catalog.create_table(f"BENCH.RATE{number}.V1") for number in range(min(TABLES, count))]
    with aws_environment(), open_mail() as mail:
        run = _Run(mail, tables)
        with dispatcher(folder, state, lake, mail) as process:
            run.send(-1)  # it is answered once the dispatcher has started, and is not counted
            run.await_all()
            run.sent.clear()
            memory = [run.at_pace(each, process.pid) for each in np.split(np.arange(count), [count // 10, count // 2])]
            run.await_all()
            process.send_signal(signal.SIGTERM)
    first, half, last = memory
    return AtARate(tuple(run.seconds[number] for number in range(count)), (first, half, last))


class _Run:
    def __init__(self, mail: Mail, tables: list[Table]) -> None:
        self._mail = mail
        self._sqs = mail.sqs()
        self._tables = tables
        self._events_url = subscribe(mail)
        self._due_seconds = 0.0
        self.sent: dict[int, float] = {}
        self.seconds: dict[int, float] = {}

    def send(self, number: int) -> None:
        table = self._tables[number % len(self._tables)]
        first_id = (number // len(self._tables) + 1) * ROWS
        table.append({}, pa.table({"id": range(first_id, first_id + ROWS)}))
        document = {
            "schema_version": "1",
            "job_run_id": f"run-{number}",
            "source_table_id": table.table_id,
            "primary_keys": ["id"],
        }
        self.sent[number] = time.monotonic()
        self._sqs.send_message(QueueUrl=self._mail.queue_url, MessageBody=json.dumps(document))

    def at_pace(self, numbers: np.ndarray, process_id: int) -> float:
        """Returns the memory after them."""
        self._due_seconds = self._due_seconds or time.monotonic()
        for number in numbers.tolist():
            while time.monotonic() < self._due_seconds:
                self._take(0)
            self._due_seconds += 60 / A_MINUTE
            self.send(number)
        process = psutil.Process(process_id)
        held_bytes: int = sum(each.memory_full_info().uss for each in (process, *process.children()))
        return held_bytes / 2**20

    def await_all(self) -> None:
        until_seconds = time.monotonic() + _SECONDS_MAX
        while self.sent.keys() - self.seconds.keys():
            if time.monotonic() > until_seconds:
                raise RuntimeError(f"instructions did not end: {sorted(self.sent.keys() - self.seconds.keys())[:10]}")
            self._take(1)

    def _take(self, wait_seconds: int) -> None:
        for event in take_events(self._sqs, self._events_url, wait_seconds):
            number = int(event["jobrunid"].removeprefix("run-"))
            if event["type"] == "lithify.job_run.succeeded.v1":
                self.seconds[number] = time.monotonic() - self.sent[number]
            if event["type"] == "lithify.job_run.failed.v1":
                raise RuntimeError(f"{event['jobrunid']} failed: {event['data']}")
