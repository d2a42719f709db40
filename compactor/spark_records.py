"""How records pass between Python and Spark's JVM: one by one, arrays beside their pickle rather than within.

PySpark pickles what goes to one partition in batches of up to 10 MiB, and the JVM copies a batch half a dozen times on
its way through a shuffle: outside of every cache. Records that stay what they are, and are half a megabyte or so, are
copied within one. So a whole table took 7 % less time, a tenth of what its first two steps took.

On one machine the JVM need not copy them at all: a large record lies in a file, which whoever gets it maps into its
memory, and only the file's name passes through Spark. So a whole table took another 13 % less.

    with record_serializer(spark) as serializer:              where the records lie; their files end with the block
        shuffle(records, partitions, partition_of, serializer)  in place of RDD.partitionBy
        one_by_one(records, serializer)                         before RDD.persist
"""

from __future__ import annotations

import os
import pickle
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, singledispatch
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
from pyspark import RDD, SparkContext
from pyspark.serializers import FramedSerializer, SpecialLengths, pack_long, read_int

from compactor.record_files import Place, RecordFiles, mapped, record_files

RecordT = TypeVar("RecordT")

_ALIGNMENT_BYTES = 8
_PLACE_BYTES = 3 * _ALIGNMENT_BYTES
_PROTOCOL = 5
_ONE_MACHINE = re.compile(r"local(\[[^,]*\])?")
"""Masters of a Spark whose tasks run beside its driver, each only once: `local[2,4]` tries four times, and
`local-cluster` has executors that may be lost."""

FILE_BYTES_MIN = 64 * 1024
"""Of a frame that lies in a file. One that is smaller passes through Spark in less time than a file takes to make."""


class RecordSerializer(FramedSerializer):
    """A frame: uint64 numbers, of parts and of each part's bytes; then the parts, padded to 8 bytes each.

    The first part is the pickle, the others are arrays in the order in which it asks for them. Whoever reads a frame
    gets arrays that lie in it, and may be written to. A frame of no parts says where the frame lies in a file.

    files           where large frames lie; None: none does
    file_bytes_min  what is large
    """

    def __init__(self, files: RecordFiles | None = None, file_bytes_min: int = 0) -> None:
        self._files = files
        self._file_bytes_min = file_bytes_min

    def dumps(self, obj: object) -> bytes:
        """Raises `Unavailable` where a file cannot be written."""
        arrays: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(obj, _PROTOCOL, buffer_callback=arrays.append)
        parts = [memoryview(pickled), *(array.raw() for array in arrays)]
        frame: list[bytes | memoryview] = [_numbers(len(parts), *map(len, parts))]
        for part in parts:
            frame += [part, bytes(-len(part) % _ALIGNMENT_BYTES)]
        if self._files is None or sum(map(len, frame)) < self._file_bytes_min:
            return b"".join(frame)
        place = self._files.append(frame)
        return _numbers(0, place.start, place.size) + os.fsencode(place.path)

    def loads(self, obj: bytes) -> object:
        return _unpickle(np.frombuffer(bytearray(obj), np.uint8))

    def load_stream(self, stream: BinaryIO) -> Iterator[object]:
        """Until the JVM says that this was all or, in the driver, closes the connection. `EOFError` within a frame."""
        while (length := _next_length(stream)) is not None:
            frame = np.empty(length, np.uint8)
            filled = 0
            while filled < length:
                count = stream.readinto(frame[filled:])  # type: ignore[attr-defined]
                if not count:
                    raise EOFError
                filled += count
            yield _unpickle(frame)


def _next_length(stream: BinaryIO) -> int | None:
    try:
        length: int = read_int(stream)  # type: ignore[no-untyped-call]
    except EOFError:
        return None
    return None if length == SpecialLengths.END_OF_DATA_SECTION else length


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _unpickle(frame: npt.NDArray[np.uint8]) -> object:
    count = _part_count(frame)
    if not count:
        _, start, size = frame[:_PLACE_BYTES].view(np.uint64).tolist()
        frame = mapped(Place(Path(os.fsdecode(frame[_PLACE_BYTES:].tobytes())), start, size))
        count = _part_count(frame)
    start = _ALIGNMENT_BYTES * (1 + count)
    parts = []
    for length in frame[_ALIGNMENT_BYTES:start].view(np.uint64).tolist():
        parts.append(frame[start : start + length].data)
        start += length + -length % _ALIGNMENT_BYTES
    return pickle.loads(parts[0], buffers=parts[1:])


def _part_count(frame: npt.NDArray[np.uint8]) -> int:
    return int(frame[:_ALIGNMENT_BYTES].view(np.uint64)[0])


@contextmanager
def record_serializer(spark: SparkContext) -> Iterator[RecordSerializer]:
    """The way that records take on this Spark, for as long as they are needed.

    On one machine large ones lie in files, in Spark's own scratch folder, which goes with it: driver and tasks live and
    die together there, so no file is lost that is still asked for. A cluster may lose an executor and its disk, and has
    what passed through Spark's shuffle made again; so there everything does.
    """
    if _ONE_MACHINE.fullmatch(spark.master or "") is None:
        yield RecordSerializer()
        return
    with record_files(Path(spark._temp_dir)) as files:  # noqa: SLF001
        yield RecordSerializer(files, FILE_BYTES_MIN)


def one_by_one(records: RDD[RecordT], serializer: RecordSerializer) -> RDD[RecordT]:
    """The same records, each a frame. For what `mapPartitionsWithIndex` returned, before it is used."""
    records._jrdd_deserializer = serializer  # noqa: SLF001
    return records


@singledispatch
def shuffle(
    records: RDD[tuple[int, RecordT]],
    partitions: int,
    partition_of: Callable[[int], int],
    serializer: RecordSerializer,
) -> RDD[tuple[int, RecordT]]:
    """Brings (key, value) records to the partition of their key; in which order they come is not said.

    As `RDD.partitionBy` does it in PySpark 3.5 to 4.3, but for the batches. What stands in for Spark registers its own.
    """
    addressed = records.mapPartitionsWithIndex(partial(_address, partition_of, serializer))
    addressed._bypass_serializer = True  # type: ignore[attr-defined]  # noqa: SLF001
    jvm: Any = records.ctx._jvm  # noqa: SLF001
    pairs = jvm.PairwiseRDD(addressed._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001
    by_partition = pairs.partitionBy(jvm.PythonPartitioner(partitions, 0))
    return RDD(jvm.PythonRDD.valueOfPair(by_partition), records.ctx, serializer)


def _address(
    partition_of: Callable[[int], int], serializer: RecordSerializer, _: int, records: Iterable[tuple[int, object]]
) -> Iterator[bytes]:
    """For each record its partition and its frame, as the JVM's PairwiseRDD takes them."""
    for key, value in records:
        yield pack_long(partition_of(key))  # type: ignore[no-untyped-call]
        yield serializer.dumps((key, value))
