"""A table of many files in a store in memory, of which some are garbage: logs and empty objects, without rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.catalog.actions import DeltaAdded, StreamAction, StreamVersionCreated
from compactor.catalog.keys import CompactedFilePath, DeltaFilePath, StreamFolder, TableFolder
from compactor.catalog.stream import PartitionStream
from compactor.model.files import DataFile
from compactor.model.names import ContentType, LifecycleState, Operation
from compactor.storage.object_store import ObjectStore
from tests.fakes.manual_clock import ManualClock

DAY_SECONDS = 24 * 3600
_PARQUET = ContentType.PARQUET


@dataclass(frozen=True)
class StreamShape:
    """
    old      files of the first delta, a month ago
    garbage  compacted files of that time, which no entry names
    recent   deltas of a file each, a minute apart, the last one now
    """

    old: int
    garbage: int
    recent: int

    @property
    def files(self) -> int:
        return self.old + self.garbage + self.recent


def write_streams(store: ObjectStore, table_id: str, count: int, shape: StreamShape, clock: ManualClock) -> None:
    """Streams `number=0`, `number=1`, and so on, all of one shape. The clock goes on by a month."""
    streams = [
        PartitionStream.open(store, TableFolder(table_id).stream({"number": str(number)}), clock)
        for number in range(count)
    ]
    for stream in streams:
        created = StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE)
        _append(store, stream, [created, _delta(stream.folder, 0, shape.old)])
        for number in range(shape.garbage):
            path = CompactedFilePath(stream.folder, 1, f"{number // 10:032x}", number + 1, _PARQUET, f"{number:016x}")
            store.put_if_absent(path.key, b"")
    clock.sleep(30 * DAY_SECONDS)
    for number in range(shape.recent):
        clock.sleep(60)
        for stream in streams:
            _append(store, stream, [_delta(stream.folder, number + 1, 1)])


def _append(store: ObjectStore, stream: PartitionStream, actions: Sequence[StreamAction]) -> None:
    for action in actions:
        for file in action.files if isinstance(action, DeltaAdded) else ():
            store.put_if_absent(file.path, b"")
    stream.log.append(lambda _: actions)


def _delta(folder: StreamFolder, position: int, files: int) -> DeltaAdded:
    return DeltaAdded(
        stream_version=1,
        position=position,
        operation=Operation.UPSERT,
        delta_id=f"delta {position}",
        content_digest=f"digest {position}",
        files=tuple(_file(folder, position, number + 1) for number in range(files)),
    )


def _file(folder: StreamFolder, position: int, number: int) -> DataFile:
    path = DeltaFilePath(folder, f"{position:032x}", number, _PARQUET).key
    return DataFile(file_number=number, path=path, content_type=_PARQUET, rows=1, size_bytes=1)
