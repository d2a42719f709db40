"""What runs the steps of a round: four operations on records, on Spark (`spark.py`) or in this process.

    with engine.exchange() as exchange:
        addressed = exchange.map(tasks, function)                (partition, record) pairs, from a task each
        grouped = addressed.shuffle(partitions)                  every record once, in its partition
        with grouped.keep(activity, tasks, function, bytes_max) as kept:    computed now, once
            kept.notes                                           what each task returned, by partition
            kept.records.map(tasks, function)                    a task per partition
                .collect("materialize", tasks, function)         one value per partition, to the caller

`tasks` has one value per task, its own argument. Arguments that all tasks of a step share are part of the function. On
a cluster a task receives the function and its own value only.

Nothing runs before `keep` or `collect`. An engine may run any task more than once, on any machine, at the same time
as itself; so a task is a function of its input, and writes under names that no other attempt uses. Shuffled records
arrive in any order, kept records in the order in which they were yielded. They belong to the task that receives them,
which may write to their arrays, but to arrays of a kept record only if no other task reads it. Functions, the tasks'
values and records are pickled if a task runs in another process.

tests/contract/test_engine.py tests every engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from compactor.model.errors import LithifyError
from compactor.planning.sizing import Resources

KeptT = TypeVar("KeptT")
KeptT_co = TypeVar("KeptT_co", covariant=True)
NoteT = TypeVar("NoteT")
NoteT_co = TypeVar("NoteT_co", covariant=True)
RecordT = TypeVar("RecordT")
RecordT_co = TypeVar("RecordT_co", covariant=True)
ResultT = TypeVar("ResultT")
TaskT = TypeVar("TaskT")

Addressed = tuple[int, RecordT]


class Records(Protocol[RecordT_co]):
    """Records in partitions, numbered from 0. `tasks` arguments have one value for each partition, in order."""

    def shuffle(self: Records[Addressed[RecordT]], partitions: int) -> Records[RecordT]:
        """Moves each record to its partition."""

    def map(
        self, tasks: Sequence[TaskT], function: Callable[[TaskT, Iterable[RecordT_co]], Iterable[ResultT]]
    ) -> Records[ResultT]:
        """`function(task, records)` yields the records that replace those of a partition."""

    def keep(
        self,
        activity: str,
        tasks: Sequence[TaskT],
        function: Callable[[TaskT, Iterable[RecordT_co]], Generator[KeptT, None, NoteT]],
        bytes_max: int,
    ) -> AbstractContextManager[Kept[KeptT, NoteT]]:
        """Runs the tasks now. Their records are kept until the block ends; what a task returns is its note.

        Args:
            activity: names the step in errors
            bytes_max: of all that is kept, at the most"""

    def collect(
        self, activity: str, tasks: Sequence[TaskT], function: Callable[[TaskT, Iterable[RecordT_co]], ResultT]
    ) -> list[ResultT]:
        """Runs the tasks now and returns their values in the order of partitions."""


@dataclass(frozen=True)
class Kept(Generic[KeptT_co, NoteT_co]):
    """Records that were computed and are kept, and each partition's note."""

    records: Records[KeptT_co]
    notes: tuple[NoteT_co, ...]


class Exchange(Protocol):
    """Holds the records of one round between its tasks."""

    def map(
        self, tasks: Sequence[TaskT], function: Callable[[TaskT], Iterable[Addressed[ResultT]]]
    ) -> Records[Addressed[ResultT]]:
        """A partition per task."""


class Engine(Protocol):
    """`keep` and `collect` raise `Unavailable` if tasks were lost and a retry may help, and a task's error of ours."""

    def resources(self) -> Resources:
        """A session's resources."""

    def exchange(self, spare_scratch_bytes: int | None = None) -> AbstractContextManager[Exchange]:
        """For one round: the records that tasks exchanged are deleted when the block ends.

        Args:
            spare_scratch_bytes: of scratch files that may be left for the next round; None: as many as help"""

    def translate_errors(self, activity: str) -> AbstractContextManager[None]:
        """Translates the loss of the engine, in code that uses it, into an error of ours."""

    def driver_hosts(self) -> tuple[str, str] | None:
        """The hosts by which tasks reach this process and on which it listens; None: tasks run in it."""

    def await_workers(self) -> bool:
        """Returns when the first tasks can run. False: they could when the engine was made."""

    def cores(self) -> int | None:
        """Cores on which tasks can run now, as nodes come and go; None: they do not change. Thread-safe."""

    def tasks_done(self) -> int:
        """Ended tasks of the running steps, as a sign of progress. Thread-safe."""


class TaskRunner(Protocol[TaskT, ResultT]):
    """Calls one function for each of many elements, in tasks, as many at a time as there are cores. For one use.
    tests/contract/test_task_runner.py holds every implementation to this."""

    def run(
        self,
        elements: Sequence[TaskT],
        function: Callable[[TaskT, bool], ResultT],
        groups: Sequence[Sequence[int]] = (),
    ) -> Mapping[int, LithifyError]:
        """Starts them in order and returns when all have ended. The function gets the element, and whether an earlier
        task may have run it. The function and the elements are pickled.

        Args:
            groups: positions of elements that share a task, where their calls run side by side in threads: each
                position once. Without groups each element has a task of its own. If a group's process dies, its
                elements get tasks of their own

        Returns the positions of elements whose task killed its process, each with the error: they are not retried, and
        other elements are not affected. Raises errors that end the engine and errors of the function."""

    def ended(self) -> Mapping[int, ResultT]:
        """The function's results so far, by the position of the element. Thread-safe."""


_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Iteration)(?::|$)(?<!SparkException:)")


def sentence_of(error: Exception) -> str:
    """One line of an unexpected error: the error that the task raised, without Spark's stack; else its first line."""
    lines = str(error).splitlines()
    raised = [line for line in lines if _RAISED.match(line)]
    return raised[-1] if raised else next(iter(lines), "")
