"""What the demo does: fills two tables, sends an instruction for each, and lets a dispatcher work on both.

main thread      events -> board and screen, until both job runs have ended
loading thread   the paper's table, its instruction; TPC-H's orders, their instruction
dispatcher       what `lithify dispatch` runs, in a thread of its own; its Spark jobs are processes
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from compactor.names import Operation
from dispatcher.demo import paper_example as paper
from dispatcher.demo import tpch
from dispatcher.demo.board import Board
from dispatcher.demo.screen import Screen
from dispatcher.demo.stage import Stage

PAPER_JOB_RUN = "paper"
ORDERS_JOB_RUN = "orders"
JOB_RUNS = (PAPER_JOB_RUN, ORDERS_JOB_RUN)
LOOK_SECONDS = 0.1


class Play:
    """One performance. `deltas` are TPC-H's, once they are loaded."""

    def __init__(self, stage: Stage, screen: Screen, board: Board, scale_factor: float) -> None:
        self.deltas: tuple[tpch.OrdersDelta, ...] = ()
        self._stage = stage
        self._screen = screen
        self._board = board
        self._scale_factor = scale_factor

    def run(self, dispatch: Callable[[threading.Event], None], stops: threading.Event) -> bool:
        """Whether both job runs have ended; not, if `stops` was set before. Raises what made going on impossible."""
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

    def _watch(self, stops: threading.Event, loading: Future[None], dispatching: Future[None]) -> bool:
        while not stops.wait(LOOK_SECONDS):
            for event in self._stage.receive():
                self._screen.tell(event)
            if self._board.have_ended(JOB_RUNS):
                return True
            if dispatching.done() or (loading.done() and loading.exception() is not None):
                return False
        return False

    # -- loading

    def _load(self, stops: threading.Event) -> None:
        paper.load_table(self._stage.lake)
        self._screen.say(f"{paper.TABLE_ID}: 8 files in {len(paper.DELTAS)} deltas of 2 order days, as in the paper")
        self._send(PAPER_JOB_RUN, paper.INSTRUCTION)
        orders = tpch.generate_orders(self._scale_factor, self._stage.place.tpch)
        self.deltas = tpch.make_deltas(orders)
        table = self._stage.lake.create_table(tpch.TABLE_ID, [tpch.PARTITION_KEY], tpch.SCHEMA)
        for delta in self.deltas:
            for year, rows in tpch.by_year(delta.rows):
                if stops.is_set():
                    return
                source = rows if delta.operation is Operation.UPSERT else rows.select(tpch.DELETE_COLUMNS)
                table.append({tpch.PARTITION_KEY: year}, source, operation=delta.operation)
            self._screen.say(f"{tpch.TABLE_ID}: {delta.name}, {delta.operation} of {delta.rows.num_rows:,} rows")
        self._send(ORDERS_JOB_RUN, tpch.INSTRUCTION)

    def _send(self, job_run_id: str, instruction: Mapping[str, object]) -> None:
        stage = self._stage
        document = {
            **instruction,
            "delta_catalog": stage.lake.location.root_uri,
            "sns_event_topic_arn": stage.topic_arn,
            "job_run_id": job_run_id,
        }
        body = json.dumps(document, indent=2)
        file = stage.place.instructions / f"{job_run_id}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(body + "\n")
        stage.queue.send(body)
        self._screen.say(f"instruction {job_run_id!r} is on the queue ({stage.place.shown_path(file)})")
