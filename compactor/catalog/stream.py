"""One partition stream: its log, and where its data lies. The catalog hands these out."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from compactor.catalog.actions import StreamAction
from compactor.catalog.checkpoint import CHECKPOINT
from compactor.catalog.log import DurableLog, LogFormat, LogState
from compactor.catalog.paths import StreamFolder
from compactor.catalog.snapshot import StreamSnapshot, apply
from compactor.clock import Clock
from compactor.names import render_partition
from compactor.object_store import ObjectStore, StoreLocation

STREAM_LOG: LogFormat[StreamSnapshot, StreamAction] = LogFormat(
    name="stream",
    action_type=TypeAdapter(StreamAction),
    initial=StreamSnapshot(),
    apply=apply,
    checkpoint=CHECKPOINT,
)

StreamLog = DurableLog[StreamSnapshot, StreamAction]


@dataclass(frozen=True)
class PartitionStream:
    """A partition stream of a table. It need not exist yet: it does once its log has an entry.

    folder  builds the names of the stream's data files and index files (`paths.py`)
    """

    location: StoreLocation
    folder: StreamFolder
    log: StreamLog

    @classmethod
    def open(cls, store: ObjectStore, folder: StreamFolder, clock: Clock) -> PartitionStream:
        return cls(store.location, folder, DurableLog(store, folder.log, STREAM_LOG, clock))

    @property
    def table_id(self) -> str:
        return self.folder.table_id

    @property
    def partition(self) -> dict[str, str]:
        return dict(self.folder.partition)

    def __str__(self) -> str:
        return f"{self.table_id} {render_partition(self.partition)}"

    def load(self, as_of: int | None = None) -> LogState[StreamSnapshot]:
        """The snapshot at the log's end, or at entry `as_of`."""
        return self.log.load(as_of)

    def uri_of(self, path: str) -> str:
        """The absolute URI of a file that the log names: relative paths are below the lake's root."""
        return path if "://" in path else f"{self.location.root_uri.rstrip('/')}/{path}"
