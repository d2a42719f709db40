"""Runs the steps of a round in this process: no Spark, no Java, nothing to start.

For small sessions: `compact()` uses it for a session that takes less time than the start of a Spark, a Spark job can
run many such sessions, one per task, and tests run thousands. All records of a round are held in memory. Tasks run one
after the other, or a few side by side where they wait for an object store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar, cast

from compactor.engine.protocol import Addressed, Kept, KeptT, NoteT, Records, RecordT, ResultT, TaskT
from compactor.kernels.compilation import announce_compilation
from compactor.model.machine import usable_cores, usable_memory_bytes
from compactor.planning.machine_share import guest_share
from compactor.planning.sizing import Resources

ValueT = TypeVar("ValueT")


START_SECONDS = 0.8
"""The first session of a process takes this much longer, because it loads the kernels and libraries."""


@cache
def _announce_compilation() -> None:
    """Says why the first session on a processor takes half a minute longer: in the log, which Python shows on stderr
    where a program has set up none."""
    announce_compilation(logging.getLogger(__name__).warning)


class InProcessEngine:
    """An engine of about one core: threads share this process's."""

    _has_run = False

    def __init__(self, tasks_at_once: int = 1) -> None:
        """`tasks_at_once`: each has an equal part of the memory."""
        _announce_compilation()
        self._tasks_at_once = tasks_at_once
        self._tasks_done = 0
        self._lock = threading.Lock()

    def resources(self) -> Resources:
        share = guest_share(usable_memory_bytes(), cores=1)
        return replace(
            share,
            task_memory_bytes=share.task_memory_bytes // self._tasks_at_once,
            hash_buckets_min=usable_cores(),
            start_seconds=0.0 if InProcessEngine._has_run else START_SECONDS,
            in_process=True,
        )

    @contextmanager
    def exchange(self, spare_scratch_bytes: int | None = None) -> Iterator[InProcessExchange]:
        yield InProcessExchange(self)

    def translate_errors(self, activity: str) -> AbstractContextManager[None]:
        return nullcontext()

    def driver_hosts(self) -> None:
        return None

    def await_workers(self) -> bool:
        return False

    def cores(self) -> None:
        return None

    def tasks_done(self) -> int:
        return self._tasks_done

    # Tests of steps override these to simulate what a cluster does to tasks and records.

    def run_task(self, task: Callable[[], ResultT]) -> ResultT:
        result = task()
        with self._lock:
            self._tasks_done += 1
        InProcessEngine._has_run = True
        return result

    def run_tasks(self, tasks: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
        """Runs all tasks of a step. Raises the first error, after the tasks that had begun; an interrupt at once."""
        with self._lock:  # what is before a shuffle runs within a task of what is after it
            done_around, self._tasks_done = self._tasks_done, 0
        try:
            return self._run_tasks(tasks)
        finally:
            with self._lock:
                self._tasks_done = done_around

    def _run_tasks(self, tasks: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
        if self._tasks_at_once == 1 or len(tasks) == 1:
            return [self.run_task(task) for task in tasks]
        threads = ThreadPoolExecutor(self._tasks_at_once, thread_name_prefix="task")
        try:
            # Each in a copy of this context, so that log lines name the session.
            begun = [threads.submit(copy_context().run, self.run_task, task) for task in tasks]
            results = [each.result() for each in begun]
        except BaseException as error:
            threads.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            raise
        threads.shutdown()
        return results

    def send(self, value: ValueT) -> ValueT:
        """Passes a function, a task's value or a record to a task."""
        return value

    def order_of_arrival(self, records: list[RecordT]) -> list[RecordT]:
        """The order in which a shuffle delivers the records of one partition."""
        return records


class InProcessExchange:
    def __init__(self, engine: InProcessEngine) -> None:
        self._engine = engine

    def map(
        self, tasks: Sequence[TaskT], function: Callable[[TaskT], Iterable[Addressed[ResultT]]]
    ) -> InProcessRecords[Addressed[ResultT]]:
        def compute(partition: int) -> Iterator[Addressed[ResultT]]:
            return iter(self._engine.send(function)(self._engine.send(tasks[partition])))

        return InProcessRecords(self._engine, len(tasks), compute)


class InProcessRecords(Records[RecordT]):
    """Partitions that are computed when they are read."""

    def __init__(self, engine: InProcessEngine, partitions: int, compute: Callable[[int], Iterator[RecordT]]) -> None:
        self._engine = engine
        self._partitions = partitions
        self._compute = compute

    def shuffle(self: InProcessRecords[Addressed[ValueT]], partitions: int) -> InProcessRecords[ValueT]:
        arrived: list[list[ValueT]] | None = None
        lock = threading.Lock()  # the first task that reads runs those before the shuffle, the others wait

        def compute(partition: int) -> Iterator[ValueT]:
            nonlocal arrived
            with lock:
                if arrived is None:
                    sent: list[list[ValueT]] = [[] for _ in range(partitions)]
                    for records in self._run_all(lambda number: list(self._compute(number))):
                        for address, record in records:
                            sent[address].append(record)
                    arrived = sent
            return map(self._engine.send, self._engine.order_of_arrival(arrived[partition]))

        return InProcessRecords(self._engine, partitions, compute)

    def map(
        self, tasks: Sequence[TaskT], function: Callable[[TaskT, Iterable[RecordT]], Iterable[ResultT]]
    ) -> InProcessRecords[ResultT]:
        def compute(partition: int) -> Iterator[ResultT]:
            return iter(self._run(tasks, function, partition))

        return InProcessRecords(self._engine, self._partitions, compute)

    @contextmanager
    def keep(
        self,
        activity: str,
        tasks: Sequence[TaskT],
        function: Callable[[TaskT, Iterable[RecordT]], Generator[KeptT, None, NoteT]],
        bytes_max: int,
    ) -> Iterator[Kept[KeptT, NoteT]]:
        computed = self._run_all(lambda number: _drained(self._run(tasks, function, number)))
        kept = [records for records, _ in computed]

        def compute(partition: int) -> Iterator[KeptT]:
            return map(self._engine.send, kept[partition])

        try:
            yield Kept(InProcessRecords(self._engine, self._partitions, compute), tuple(note for _, note in computed))
        finally:
            kept.clear()

    def collect(
        self, activity: str, tasks: Sequence[TaskT], function: Callable[[TaskT, Iterable[RecordT]], ResultT]
    ) -> list[ResultT]:
        return self._run_all(lambda number: self._run(tasks, function, number))

    def _run(
        self, tasks: Sequence[TaskT], function: Callable[[TaskT, Iterable[RecordT]], ResultT], partition: int
    ) -> ResultT:
        return self._engine.send(function)(self._engine.send(tasks[partition]), self._compute(partition))

    def _run_all(self, task: Callable[[int], ResultT]) -> list[ResultT]:
        return self._engine.run_tasks([partial(task, number) for number in range(self._partitions)])


def _drained(task: Generator[KeptT, None, NoteT]) -> tuple[list[KeptT], NoteT]:
    """The records that a task yields, and the note that it returns."""
    records: list[KeptT] = []
    while True:
        try:
            records.append(next(task))
        except StopIteration as end:
            return records, cast("NoteT", end.value)
