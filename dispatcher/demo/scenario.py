"""The demo's scenario: it fills two tables, sends an instruction for each, and runs a dispatcher that compacts both.

main thread      shows events, until both job runs have ended
loading thread   appends the paper's table and TPC-H's orders, and sends the instruction of each
dispatcher       a thread with the dispatcher of `lithify dispatch`; its Spark jobs are processes
"""

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from compactor.model.names import Operation
from dispatcher.demo import paper_example as paper
from dispatcher.demo import tpch
from dispatcher.demo.environment import DemoEnvironment
from dispatcher.demo.screen import Screen
from dispatcher.records.job_run_events import (
    JobRunCancelledEvent,
    JobRunFailedEvent,
    JobRunRejectedEvent,
    JobRunSucceededEvent,
)

PAPER_JOB_RUN = "paper"
ORDERS_JOB_RUN = "orders"
JOB_RUNS = (PAPER_JOB_RUN, ORDERS_JOB_RUN)
ENDS = (JobRunSucceededEvent, JobRunFailedEvent, JobRunRejectedEvent, JobRunCancelledEvent)
LOOK_SECONDS = 0.1
FIRST_TABLE_SECONDS = 10.0
"""Longest wait of the second table for the first one's end."""


class Scenario:
    """Runs once. `deltas` are TPC-H's, once they are loaded."""

    def __init__(self, environment: DemoEnvironment, screen: Screen, scale_factor: float) -> None:
        self.deltas: tuple[tpch.OrdersDelta, ...] = ()
        self._environment = environment
        self._screen = screen
        self._ended: set[str] = set()
        self._scale_factor = scale_factor

    def run(self, dispatch: Callable[[threading.Event], object], stops: threading.Event) -> bool:
        """Whether both job runs have ended, before `stops` was set. Raises what the loading or the dispatcher
        raised."""
        with ThreadPoolExecutor(2, thread_name_prefix="demo") as threads:
            loading = threads.submit(self._load, stops)
            dispatching = threads.submit(dispatch, stops)
            try:
                ended = self._watch(stops, loading, dispatching)
            finally:
                stops.set()
        loading.result()
        dispatching.result()
        return ended

    def _watch(self, stops: threading.Event, loading: Future[None], dispatching: Future[object]) -> bool:
        while not stops.wait(LOOK_SECONDS):
            for event in self._environment.receive():
                self._screen.show_event(event)
                if isinstance(event.data, ENDS):
                    self._ended.add(event.jobrunid)
            if self._ended.issuperset(JOB_RUNS):
                return True
            if dispatching.done() or (loading.done() and loading.exception() is not None):
                return False
        return False

    # -- loading

    def _load(self, stops: threading.Event) -> None:
        paper.load_table(self._environment.lake)
        self._screen.show_step(
            f"{paper.TABLE_ID}: 8 files in {len(paper.DELTAS)} deltas of 2 order days, as in the paper"
        )
        self._send(PAPER_JOB_RUN, paper.INSTRUCTION)
        self._await_first_table(stops)
        orders = tpch.generate_orders(self._scale_factor, self._environment.folder.tpch)
        self.deltas = tpch.make_deltas(orders)
        table = self._environment.lake.create_table(tpch.TABLE_ID, [tpch.PARTITION_KEY], tpch.SCHEMA)
        for delta in self.deltas:
            for year, rows in tpch.by_year(delta.rows):
                if stops.is_set():
                    return
                source = rows if delta.operation is Operation.UPSERT else rows.select(tpch.DELETE_COLUMNS)
                table.append({tpch.PARTITION_KEY: year}, source, operation=delta.operation)
            self._screen.show_step(f"{tpch.TABLE_ID}: {delta.name}, {delta.operation} of {delta.rows.num_rows:,} rows")
        self._send(ORDERS_JOB_RUN, tpch.INSTRUCTION)

    def _await_first_table(self, stops: threading.Event) -> None:
        """The orders take seconds to make, in this process: dispatcher and workers start faster without that."""
        looks = round(FIRST_TABLE_SECONDS / LOOK_SECONDS)
        while looks and PAPER_JOB_RUN not in self._ended and not stops.wait(LOOK_SECONDS):
            looks -= 1

    def _send(self, job_run_id: str, instruction: Mapping[str, object]) -> None:
        environment = self._environment
        body = instruction_for(environment, job_run_id, instruction)
        file = write_instruction(environment, job_run_id, body)
        environment.queue.send(body)
        self._screen.show_step(f"instruction {job_run_id!r} is on the queue ({environment.folder.shown_path(file)})")


def instruction_for(environment: DemoEnvironment, job_run_id: str, instruction: Mapping[str, object]) -> str:
    """The whole document, with the environment's lake and topic."""
    document = {
        **instruction,
        "delta_catalog": environment.lake.location.root_uri,
        "sns_event_topic_arn": environment.topic_arn,
        "job_run_id": job_run_id,
    }
    return json.dumps(document, indent=2)


def write_instruction(environment: DemoEnvironment, job_run_id: str, body: str) -> Path:
    file = environment.folder.instructions / f"{job_run_id}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(body + "\n")
    return file
