"""One partition stream: its log, and the location of its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue, TypeAdapter

from compactor.catalog.actions import StreamAction
from compactor.catalog.drop_marks import DropMarks
from compactor.catalog.keys import StreamFolder, TableFolder
from compactor.catalog.lost_streams import FirstStream
from compactor.catalog.news import NewsHints
from compactor.catalog.snapshot import StreamSnapshot, apply
from compactor.log.checkpoints import Described, SharedCheckpoint
from compactor.log.durable_log import DurableLog, LogFormat, LogState
from compactor.log.long_lists import LongLists
from compactor.model.clock import Clock
from compactor.model.names import render_partition
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

    from compactor.log.columns import ColumnCodec


# A short log has neither a checkpoint nor long lists: it is read without PyArrow.
def _describe(snapshot: StreamSnapshot) -> Described:
    from compactor.catalog import checkpoint

    return checkpoint.describe(snapshot)


def _restore(state: dict[str, JsonValue], rows: Mapping[str, pa.Table]) -> StreamSnapshot:
    from compactor.catalog import checkpoint

    return checkpoint.restore(state, rows)


def _columns_of_lists() -> dict[str, tuple[str, ColumnCodec]]:
    from compactor.catalog.checkpoint import FILE
    from compactor.log.columns import codec_of
    from compactor.model.files import DeletionVector, IndexFile

    return {
        "files": ("file", FILE),
        "files_added": ("file", FILE),
        "files_removed": ("file_number", codec_of(int)),
        "index_files": ("index_file", codec_of(IndexFile)),
        "deletion_vectors": ("deletion_vector", codec_of(DeletionVector)),
    }


STREAM_LOG: LogFormat[StreamSnapshot, StreamAction] = LogFormat(
    name="stream",
    action_type=TypeAdapter(StreamAction),
    initial=StreamSnapshot(),
    apply=apply,
    checkpoint=SharedCheckpoint(_describe, _restore),
    keeps_entries=False,
    long_lists=LongLists(_columns_of_lists),
    refuses_gaps=True,
)

StreamLog = DurableLog[StreamSnapshot, StreamAction]


@dataclass(frozen=True)
class PartitionStream:
    """A partition stream of a table. It exists once its log has an entry.

    Attributes:
        folder: builds the names of the stream's data files and index files (`compactor/catalog/keys.py`)
        others: of its table
        in_table: opens the stream of the same partition in another table
        news: the stream's hints; None: the table has no hints"""

    location: StoreLocation
    folder: StreamFolder
    log: StreamLog
    others: FirstStream
    in_table: Callable[[str], PartitionStream]
    news: NewsHints | None = None

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        folder: StreamFolder,
        clock: Clock,
        *,
        hints: bool = False,
        others: FirstStream | None = None,
    ) -> PartitionStream:
        """`hints`: whether the table has the property `news_hints`. Writers of a stream must pass it."""
        news, marks = NewsHints(store, folder) if hints else None, DropMarks(store, folder)
        streams = FirstStream(store, TableFolder(folder.table_id)) if others is None else others

        def before_entry(
            before: LogState[StreamSnapshot], after: LogState[StreamSnapshot]
        ) -> Callable[[], None] | None:
            afterwards = None if before.entry_number else streams.before_first_entry(folder)
            marks.before_entry(before, after)
            if news is not None:
                news.before_entry(before, after)
            return afterwards

        def in_table(table_id: str) -> PartitionStream:
            return cls.open(store, TableFolder(table_id).stream(dict(folder.partition)), clock)

        log = DurableLog(store, folder.log, STREAM_LOG, clock, before_entry)
        return cls(store.location, folder, log, streams, in_table, news)

    @property
    def table_id(self) -> str:
        return self.folder.table_id

    @property
    def partition(self) -> dict[str, str]:
        return dict(self.folder.partition)

    def __str__(self) -> str:
        return f"{self.table_id} {render_partition(self.partition)}"

    def load(self, as_of: int | None = None, ahead: int = 1) -> LogState[StreamSnapshot]:
        """The snapshot at the log's end, or at entry `as_of`. `ahead`: as `DurableLog.load`."""
        loaded = self.log.load(as_of, ahead)
        if not loaded.entry_number:
            self.others.check(self.folder)
        return loaded

    def compacted_sides(self, snapshot: StreamSnapshot) -> list[StreamSnapshot]:
        """The snapshot, and the state of this partition in each other table that its deltas are compacted into."""
        copies = {each.compacted_table_id for source in snapshot.sources.values() for each in source.taken}
        return [snapshot, *(self.in_table(table_id).load().state for table_id in sorted(copies))]

    def uri_of(self, path: str) -> str:
        """The absolute URI of a file that the log names: relative paths are below the lake's root."""
        return path if "://" in path else f"{self.location.root_uri.rstrip('/')}/{path}"
