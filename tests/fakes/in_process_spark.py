"""The few operations of Spark that a round uses, on lists in this process: hundreds of times faster on small tables.

What Spark does to a value is done to it as well: functions and elements are pickled between driver and tasks, the
blocks that meet in a partition come in any order, a persisted partition is computed once, and a task may be run twice.
tests/contract/test_spark.py holds this and the real Spark to the same behaviour.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pyspark import Accumulator, AccumulatorParam, cloudpickle

from compactor.spark_records import RecordSerializer, shuffle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ElementT = TypeVar("ElementT")
ResultT = TypeVar("ResultT")
ValueT = TypeVar("ValueT")
KeyedT = TypeVar("KeyedT", bound=tuple[int, object])

# Not the numbers that Spark gives to its own.
_accumulator_numbers = itertools.count(1_000_000)

Task = Callable[[int], Iterator[ElementT]]


def in_process_spark(seed: int = 0) -> SparkSession:
    """What `compact()` takes in place of a SparkSession."""
    return cast("SparkSession", InProcessSpark(seed))


class InProcessSpark:
    """In place of a SparkSession and of its SparkContext. `seed` decides the order of blocks, and what is run twice;
    with an odd one large records lie in files, with an even one none does."""

    defaultParallelism = 2  # noqa: N815  (Spark's name)

    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.master = "local[2]" if seed % 2 else "local[2,4]"
        self._scratch = tempfile.TemporaryDirectory()

    @property
    def _temp_dir(self) -> str:
        return self._scratch.name

    @property
    def sparkContext(self) -> InProcessSpark:  # noqa: N802
        return self

    def parallelize(self, elements: Iterable[ElementT], partitions: int) -> InProcessRdd[ElementT]:
        """Consecutive elements in each partition, as Spark slices them."""
        given = list(elements)
        cuts = [len(given) * number // partitions for number in range(partitions + 1)]
        pickled = [_dump(given[cuts[number] : cuts[number + 1]]) for number in range(partitions)]
        return InProcessRdd(self, partitions, lambda number: iter(cloudpickle.loads(pickled[number])))

    def accumulator(self, value: ValueT, param: AccumulatorParam[ValueT]) -> Accumulator[ValueT]:
        """Spark's own: in the process where it was made, it unpickles as itself."""
        return Accumulator(next(_accumulator_numbers), value, param)

    @property
    def _jsc(self) -> InProcessSpark:
        return self

    def sc(self) -> InProcessSpark:
        return self

    def getExecutorMemoryStatus(self) -> InProcessSpark:  # noqa: N802
        """Nobody: nothing is kept in any JVM."""
        return self

    def values(self) -> InProcessSpark:
        return self

    def iterator(self) -> InProcessSpark:
        return self

    def hasNext(self) -> bool:  # noqa: N802
        return False

    def statusTracker(self) -> InProcessSpark:  # noqa: N802
        return self

    def getActiveStageIds(self) -> Sequence[int]:  # noqa: N802
        return ()


class InProcessRdd(Generic[ElementT]):
    """Partitions that are computed when asked for. Names and signatures are Spark's."""

    def __init__(self, spark: InProcessSpark, partitions: int, task: Task[ElementT]) -> None:
        self._spark = spark
        self._partitions = partitions
        self._task = task
        self._jrdd_deserializer = RecordSerializer()

    def map(self, function: Callable[[ElementT], ResultT]) -> InProcessRdd[ResultT]:
        send = _sent(function)
        return InProcessRdd(self._spark, self._partitions, lambda number: map(send(), self._task(number)))

    def flatMap(self, function: Callable[[ElementT], Iterable[ResultT]]) -> InProcessRdd[ResultT]:  # noqa: N802
        send = _sent(function)

        def run(number: int) -> Iterator[ResultT]:
            return (result for element in self._task(number) for result in send()(element))

        return InProcessRdd(self._spark, self._partitions, run)

    def mapPartitionsWithIndex(  # noqa: N802
        self, function: Callable[[int, Iterator[ElementT]], Iterable[ResultT]]
    ) -> InProcessRdd[ResultT]:
        send = _sent(function)
        return InProcessRdd(self._spark, self._partitions, lambda number: iter(send()(number, self._task(number))))

    def persist(self, storage_level: object) -> InProcessRdd[ElementT]:
        kept: dict[int, list[bytes]] = {}
        send = _sent(self._jrdd_deserializer)

        def run(number: int) -> Iterator[ElementT]:
            serializer = send()
            if number not in kept:
                kept[number] = [serializer.dumps(element) for element in self._task(number)]
            return (cast("ElementT", serializer.loads(element)) for element in kept[number])

        return InProcessRdd(self._spark, self._partitions, run)

    def unpersist(self) -> InProcessRdd[ElementT]:
        return self

    def collect(self) -> list[ElementT]:
        return [cloudpickle.loads(_dump(element)) for element in self._compute_all()]

    @property
    def _jrdd(self) -> InProcessRdd[ElementT]:
        return self

    def count(self) -> int:
        return len(list(self._compute_all()))

    def _compute_all(self) -> Iterator[ElementT]:
        """Every partition's elements, of some of them computed a second time: Spark may do that to any task."""
        for number in range(self._partitions):
            elements = list(self._task(number))
            if self._spark.chance.random() < 0.1:
                elements = list(self._task(number))
            yield from elements


def _shuffle(
    records: InProcessRdd[KeyedT], partitions: int, partition_of: Callable[[int], int], serializer: RecordSerializer
) -> InProcessRdd[KeyedT]:
    shuffled: dict[int, list[bytes]] = {}
    send = _sent(serializer)

    def run(number: int) -> Iterator[KeyedT]:
        if not shuffled:
            shuffled.update({each: [] for each in range(partitions)})
            sent = send()
            for record in records._compute_all():
                shuffled[partition_of(record[0])].append(sent.dumps(record))
        blocks = list(shuffled[number])
        records._spark.chance.shuffle(blocks)
        return (cast("KeyedT", serializer.loads(block)) for block in blocks)

    return InProcessRdd(records._spark, partitions, run)


# Not the subtype of an RDD that a checker would like to see.
cast("Any", shuffle).register(InProcessRdd, _shuffle)


def _dump(value: object) -> bytes:
    pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return pickled


def _sent(function: ValueT) -> Callable[[], ValueT]:
    """The function as a task gets it: pickled by the driver, and unpickled for every use."""
    pickled = _dump(function)
    return lambda: cloudpickle.loads(pickled)
