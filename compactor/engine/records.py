"""Serializes records between Python and Spark's JVM: one by one, with arrays after the pickle rather than within it.

PySpark pickles what goes to one partition in batches of up to 10 MiB, and the JVM copies a batch half a dozen times
during a shuffle, which exceeds every cache. Single records of about half a megabyte are copied within a cache.

On one machine the JVM does not copy them at all: a large record is in a file, which the receiving task maps into its
memory, and only the file's name passes through Spark.

    with record_serializer(spark) as serializer:              deletes the record files at the end of the block
        shuffle(records, partitions, serializer)              in place of RDD.partitionBy
        one_by_one(records, serializer)                       before RDD.persist
"""

import os
import pickle
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
from pyspark import RDD, SparkContext
from pyspark.serializers import FramedSerializer, SpecialLengths, pack_long, read_int

from compactor.engine.record_files import RecordFiles, RecordLocation, mapped, record_files

RecordT = TypeVar("RecordT")

_ALIGNMENT_BYTES = 8
_LOCATION_BYTES = 3 * _ALIGNMENT_BYTES
_PROTOCOL = 5
_ONE_MACHINE = re.compile(r"local(\[[^,]*\])?")
"""Masters of a Spark whose tasks run on the driver's machine, once each: `local[2,4]` retries tasks, and
`local-cluster` has executors that may be lost."""

FILE_BYTES_MIN = 64 * 1024
"""The least bytes of a frame in a file. A smaller one passes through Spark in less time than it takes to create a file.
"""


class RecordSerializer(FramedSerializer):
    """A frame: the number of parts and each part's bytes as uint64; then the parts, padded to 8 bytes each.

    The first part is the pickle, the others are its arrays in order. Readers of a frame get writable arrays in its
    memory. A frame of no parts has the location of the frame in a file.

    Attributes:
        files: for large frames; None: no files are used
        file_bytes_min: the least bytes of a large frame"""

    def __init__(self, files: RecordFiles | None = None, file_bytes_min: int = 0) -> None:
        self._files = files
        self._file_bytes_min = file_bytes_min

    def dumps(self, obj: object) -> bytes:
        """Raises `Unavailable` if a file cannot be written."""
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
        """Reads until the JVM sends the end mark, or closes the driver's connection. `EOFError` within a frame."""
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
        _, start, size = frame[:_LOCATION_BYTES].view(np.uint64).tolist()
        frame = mapped(RecordLocation(Path(os.fsdecode(frame[_LOCATION_BYTES:].tobytes())), start, size))
        count = _part_count(frame)
    start = _ALIGNMENT_BYTES * (1 + count)
    parts = []
    for length in frame[_ALIGNMENT_BYTES:start].view(np.uint64).tolist():
        parts.append(frame[start : start + length].data)
        start += length + -length % _ALIGNMENT_BYTES
    return pickle.loads(parts[0], buffers=parts[1:])


def _part_count(frame: npt.NDArray[np.uint8]) -> int:
    return int(frame[:_ALIGNMENT_BYTES].view(np.uint64)[0])


def on_one_machine(spark: SparkContext) -> bool:
    """Whether large records are kept in files on this Spark."""
    return _ONE_MACHINE.fullmatch(spark.master or "") is not None


@contextmanager
def record_serializer(spark: SparkContext, spare_bytes_max: int | None = None) -> Iterator[RecordSerializer]:
    """The serializer of records for this Spark.

    Args:
        spare_bytes_max: of scratch files that may be kept for the next round; None: as many as are useful

    On one machine, large records are in files in Spark's scratch folder, which Spark deletes when it ends: driver and
    tasks end together, so no needed file is lost. A cluster may lose an executor and its disk, and Spark can only
    recompute records of its own shuffle; so there all records pass through it."""
    if not on_one_machine(spark):
        yield RecordSerializer()
        return
    with record_files(Path(spark._temp_dir), spare_bytes_max) as files:  # noqa: SLF001
        yield RecordSerializer(files, FILE_BYTES_MIN)


def unbatched(records: RDD[RecordT], serializer: RecordSerializer) -> RDD[RecordT]:
    """The same records, each a frame. For what `mapPartitionsWithIndex` returned, before it is used."""
    records._jrdd_deserializer = serializer  # noqa: SLF001
    return records


def shuffle(records: RDD[tuple[int, RecordT]], partitions: int, serializer: RecordSerializer) -> RDD[RecordT]:
    """Brings the record of each (partition, record) pair to its partition; their order is undefined.

    Like `RDD.partitionBy` in PySpark 3.5 to 4.3, without batches.
    """
    addressed = records.mapPartitionsWithIndex(partial(_address, serializer))
    addressed._bypass_serializer = True  # type: ignore[attr-defined]  # noqa: SLF001
    jvm: Any = records.ctx._jvm  # noqa: SLF001
    pairs = jvm.PairwiseRDD(addressed._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001
    by_partition = pairs.partitionBy(jvm.PythonPartitioner(partitions, 0))
    return RDD(jvm.PythonRDD.valueOfPair(by_partition), records.ctx, serializer)


def _address(serializer: RecordSerializer, _: int, records: Iterable[tuple[int, object]]) -> Iterator[bytes]:
    """For each record its partition and its frame, as the JVM's PairwiseRDD takes them."""
    for partition, record in records:
        yield pack_long(partition)  # type: ignore[no-untyped-call]
        yield serializer.dumps(record)
