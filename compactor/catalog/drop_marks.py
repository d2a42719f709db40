"""Hints that say which partitions of a table are dropped, so that a listing of its partitions reads no log.

A log is never deleted, so the folder of a dropped partition stays. The hints of a partition are empty objects
`tables/<table id>/dropped/<partition>/<entry number>`:

    1  entry n drops the stream
    2  put `<n>`              by the same writer; missing until then, the partition is listed, and empty
    3  put `<m>.begun`        by a writer whose entry m will be the first of the stream's next life
    4  write entry m
    5  put `<1>.begun`        after entry 1 of the table's first stream (`lost_streams.py`)

The partition is dropped unless the greatest number has `.begun`. A writer that stops between 3 and 4 leaves a
partition that is listed, and empty.
"""

from contextlib import suppress

from compactor.catalog.keys import DropMark, StreamFolder, TableFolder
from compactor.catalog.snapshot import StreamSnapshot
from compactor.log.durable_log import LogState
from compactor.model.errors import Invalid
from compactor.storage.keys import PartitionItems
from compactor.storage.object_store import ObjectStore


class DropMarks:
    """The hints of one partition stream."""

    def __init__(self, store: ObjectStore, folder: StreamFolder) -> None:
        self._store = store
        self._folder = folder

    def before_entry(self, before: LogState[StreamSnapshot], after: LogState[StreamSnapshot]) -> None:
        """Step 3; called before an entry is written."""
        if before.state.is_dropped and not after.state.is_dropped:
            self._store.overwrite(DropMark(self._folder, after.entry_number, has_begun=True).key, b"")

    def put(self, at: LogState[StreamSnapshot]) -> None:
        """Step 2. `at`: the stream at the entry that dropped it, or at a later one that left it dropped."""
        self._store.overwrite(DropMark(self._folder, at.entry_number).key, b"")


def dropped_partitions(store: ObjectStore, table_id: str) -> frozenset[PartitionItems]:
    """The partitions of a table that are dropped, by their hints."""
    newest: dict[PartitionItems, tuple[int, bool]] = {}
    for entry in store.list(f"{TableFolder(table_id).dropped}/"):
        with suppress(Invalid):  # not a name that Lithify writes
            mark = DropMark.parse(entry.key)
            partition = mark.stream.partition
            newest[partition] = max(newest.get(partition, (0, False)), (mark.entry_number, not mark.has_begun))
    return frozenset(partition for partition, (_, is_dropped) in newest.items() if is_dropped)
