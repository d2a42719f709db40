"""Runs the steps of a round on Spark. All calls of PySpark's private interface are in this room.

`records.py` serializes records; `storage_level` decides where Spark keeps records between two of its jobs.
Tried on Spark 3.5, 4.0 and 4.3: `make test-spark-3.5`, `make test`, `make test-spark-latest`.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, Generic

from pyspark import RDD, Accumulator, AccumulatorParam, Broadcast, SparkContext, StorageLevel

from compactor.engine.errors import spark_job
from compactor.engine.local import local_resources, runs_here
from compactor.engine.protocol import Addressed, Kept, KeptT, NoteT, Records, RecordT, ResultT, TaskT
from compactor.engine.records import RecordSerializer, on_one_machine, record_serializer, shuffle, unbatched
from compactor.planning.sizing import Resources

_LOOPBACK = "127.0.0.1"

SENT_WITH_FUNCTION_BYTES_MAX = 32 * 1024
"""Limit for all tasks' values together. A broadcast takes longer than sending this many bytes with each task."""

MEMORY_SHARE_MAX = 0.5
"""Share of the memory that is left for kept blocks. Spark counts kept blocks, but not all other memory: with a larger
share, a JVM ran out of memory while it loaded a block that was on its disk already."""


class SparkEngine:
    """An engine on a running Spark. `starting`: ends when its Python workers run; None: they do."""

    def __init__(self, context: SparkContext, starting: Thread | None = None) -> None:
        self._context = context
        self._starting = starting
        self._exchanged_before = False

    def resources(self) -> Resources:
        return local_resources(self._context)

    @contextmanager
    def exchange(self, spare_scratch_bytes: int | None = None) -> Iterator[SparkExchange]:
        if self._exchanged_before and not on_one_machine(self._context):
            release_scratch(self._context)
        self._exchanged_before = True
        with record_serializer(self._context, spare_scratch_bytes) as serializer, ExitStack() as closing:
            yield SparkExchange(self._context, serializer, closing)

    def translate_errors(self, activity: str) -> AbstractContextManager[None]:
        return spark_job(activity, self._context)

    def driver_hosts(self) -> tuple[str, str]:
        if runs_here(self._context):
            return _LOOPBACK, _LOOPBACK
        conf = self._context.getConf()
        host = conf.get("spark.driver.host") or _LOOPBACK
        return host, conf.get("spark.driver.bindAddress") or host

    def await_workers(self) -> bool:
        if self._starting is None:
            return False
        self._starting.join()
        return True

    def cores(self) -> int | None:
        """By the executors that are registered: Spark's scheduler counts their cores as they come and go."""
        return None if runs_here(self._context) else self._context.defaultParallelism

    def tasks_done(self) -> int:
        tracker = self._context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)


class SparkExchange:
    """A round's records. `closing`: resources that are released with them."""

    def __init__(self, context: SparkContext, serializer: RecordSerializer, closing: ExitStack) -> None:
        self.context = context
        self.serializer = serializer
        self._closing = closing

    def map(
        self, tasks: Sequence[TaskT], function: Callable[[TaskT], Iterable[Addressed[ResultT]]]
    ) -> SparkRecords[Addressed[ResultT]]:
        mapped = self.context.parallelize(tasks, max(len(tasks), 1)).flatMap(function)
        return SparkRecords(mapped, self)

    def values_of(self, tasks: Sequence[TaskT]) -> TaskValues[TaskT]:
        """The tasks' values, in the form in which they are sent."""
        pickled = tuple(pickle.dumps(task, pickle.HIGHEST_PROTOCOL) for task in tasks)
        if sum(map(len, pickled)) <= SENT_WITH_FUNCTION_BYTES_MAX:
            return TaskValues(pickled)
        broadcast = self.context.broadcast(pickled)
        self._closing.callback(broadcast.destroy)
        return TaskValues(broadcast)


@dataclass(frozen=True)
class TaskValues(Generic[TaskT]):
    """The value of each task of a step, pickled one by one: a task unpickles only its own.

    Few bytes are sent with the function. Many are broadcast: sent once to every machine, not with each task.
    """

    pickled: tuple[bytes, ...] | Broadcast[tuple[bytes, ...]]

    def of(self, partition: int) -> TaskT:
        pickled = self.pickled.value if isinstance(self.pickled, Broadcast) else self.pickled
        value: TaskT = pickle.loads(pickled[partition])
        return value


class SparkRecords(Records[RecordT]):
    """An RDD, and the exchange that it belongs to."""

    def __init__(self, rdd: RDD[RecordT], exchange: SparkExchange) -> None:
        self._rdd = rdd
        self._exchange = exchange

    def shuffle(self: SparkRecords[Addressed[ResultT]], partitions: int) -> SparkRecords[ResultT]:
        return SparkRecords(shuffle(self._rdd, partitions, self._exchange.serializer), self._exchange)

    def map(
        self, tasks: Sequence[TaskT], function: Callable[[TaskT, Iterable[RecordT]], Iterable[ResultT]]
    ) -> SparkRecords[ResultT]:
        task = partial(_one_task, function, self._exchange.values_of(tasks))
        return SparkRecords(self._rdd.mapPartitionsWithIndex(task), self._exchange)

    @contextmanager
    def keep(
        self,
        activity: str,
        tasks: Sequence[TaskT],
        function: Callable[[TaskT, Iterable[RecordT]], Generator[KeptT, None, NoteT]],
        bytes_max: int,
    ) -> Iterator[Kept[KeptT, NoteT]]:
        context = self._rdd.ctx
        notes: Accumulator[dict[int, NoteT]] = context.accumulator({}, _ByPartition())
        task = partial(_one_task, function, self._exchange.values_of(tasks))
        computed = self._rdd.mapPartitionsWithIndex(partial(_with_note, task, notes))
        kept = unbatched(computed, self._exchange.serializer).persist(storage_level(context, bytes_max))
        try:
            with spark_job(activity, context):
                # The JVM counts the records: `RDD.count` would send them to Python.
                kept._jrdd.count()  # noqa: SLF001
            in_order = tuple(notes.value[partition] for partition in range(kept.getNumPartitions()))
            yield Kept(SparkRecords(kept, self._exchange), in_order)
        finally:
            kept.unpersist()

    def collect(
        self, activity: str, tasks: Sequence[TaskT], function: Callable[[TaskT, Iterable[RecordT]], ResultT]
    ) -> list[ResultT]:
        with spark_job(activity, self._rdd.ctx):
            task = partial(_one_task, function, self._exchange.values_of(tasks))
            return self._rdd.mapPartitionsWithIndex(partial(_one_value, task)).collect()


class _ByPartition(AccumulatorParam[dict[int, NoteT]]):
    """Notes are sent separately from the records, so that the records need not be read for them. Spark may add a task's
    note twice: it is the same note."""

    def zero(self, value: dict[int, NoteT]) -> dict[int, NoteT]:
        return {}

    def addInPlace(self, value1: dict[int, NoteT], value2: dict[int, NoteT]) -> dict[int, NoteT]:  # noqa: N802
        return value1 | value2


def _one_task(
    function: Callable[[TaskT, Iterable[RecordT]], ResultT],
    values: TaskValues[TaskT],
    partition: int,
    records: Iterable[RecordT],
) -> ResultT:
    return function(values.of(partition), records)


def _with_note(
    function: Callable[[int, Iterable[RecordT]], Generator[KeptT, None, NoteT]],
    notes: Accumulator[dict[int, NoteT]],
    partition: int,
    records: Iterable[RecordT],
) -> Iterator[KeptT]:
    note = yield from function(partition, records)
    notes.add({partition: note})


def _one_value(
    function: Callable[[int, Iterable[RecordT]], ResultT], partition: int, records: Iterable[RecordT]
) -> Iterator[ResultT]:
    yield function(partition, records)


def storage_level(spark: SparkContext, needed_bytes: int) -> StorageLevel:
    """In memory if there is ample room for this many bytes, else on disk."""
    has_room = needed_bytes <= MEMORY_SHARE_MAX * storage_left_bytes(spark)
    return StorageLevel.MEMORY_AND_DISK if has_room else StorageLevel.DISK_ONLY


def release_scratch(spark: SparkContext) -> None:
    """Makes Spark delete the shuffle files of unreferenced RDDs now rather than in half an hour.

    Its cleaner learns of them from the JVM's garbage collection, which the driver of a session hardly needs. If records
    are in files of their own there is next to nothing to delete.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    gc.collect()  # PySpark keeps its RDDs in circles of references
    jvm.System.gc()


def storage_left_bytes(spark: SparkContext) -> int:
    """The memory left on all executors, as if each had as little as the one with the least.

    A cluster's driver, which is listed beside its executors, keeps nothing.
    """
    left = []
    status = spark._jsc.sc().getExecutorMemoryStatus().values().iterator()  # noqa: SLF001
    while status.hasNext():
        # Pairs of (maximum, remaining) memory.
        left.append(int(status.next()._2()))  # noqa: SLF001
    return min(left, default=0) * max(len(left) - 1, 1)
