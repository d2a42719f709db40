"""Collects the garbage of a lake: retires deltas and deletes files, table by table.

Each table stands for itself: an error at one is noted, and the others are collected all the same.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from compactor.catalog.keys import TableFolder
from compactor.catalog.properties import GRACE_SECONDS, NO_PROPERTIES, TableProperties
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog
from compactor.maintenance.garbage import (
    StreamGarbage,
    delete_garbage,
    delete_unfinished,
    find_dropped_garbage,
    find_garbage,
    find_unfinished,
)
from compactor.maintenance.retirement import StreamRetired, StreamRetirement, retention_of
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Denied, LithifyError
from compactor.model.names import counted
from compactor.storage.concurrently import run_concurrently, run_many
from compactor.storage.object_store import ObjectStore, UnfinishedWrite

TABLES_AT_ONCE = 4
"""Tables of a remote lake that are collected at the same time: each searches several streams at once."""

DELETES_AT_ONCE = 8
"""Streams of a table whose garbage is deleted at the same time, while others are searched."""


@dataclass(frozen=True)
class NotCollected:
    """What could not be done for a table; `table_id` None: for unfinished writes, which belong to no table."""

    table_id: str | None
    reason: str


@dataclass
class GracePeriods:
    """`seconds`: for tables that set none; None: the default. `counts_for_all`: and for those that do."""

    seconds: float | None = None
    counts_for_all: bool = False
    longest_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.longest_seconds = self._default_seconds

    @property
    def _default_seconds(self) -> float:
        return GRACE_SECONDS if self.seconds is None else self.seconds

    def seconds_of(self, properties: TableProperties) -> float:
        own = properties.gc_grace_seconds
        seconds = self._default_seconds if own is None or self.counts_for_all else own
        self.longest_seconds = max(self.longest_seconds, seconds)
        return seconds


@dataclass(frozen=True)
class CollectedStream:
    """The garbage of a stream, what was retired of it, and why files could not be deleted, by key."""

    table_id: str
    garbage: StreamGarbage
    retired: StreamRetired | None
    not_deleted: dict[str, str]


@dataclass
class Collection:
    """One run over the tables of a lake. Safe to share between threads.

    Attributes:
        deletes: whether files are deleted; False: they are only found
        add: is told of each stream, by one thread at a time
        show: is told what is done now
        retired: deltas that are retired, or may be
        streams: so many were searched
        found_files: garbage; `deleted_files` of them were deleted"""

    lake: DeltaCatalog
    clock: Clock
    grace: GracePeriods
    deletes: bool
    add: Callable[[CollectedStream], None] = lambda _: None
    show: Callable[[str], None] = lambda _: None
    retired: list[StreamRetired] = field(default_factory=list)
    unfinished: list[tuple[str, UnfinishedWrite]] = field(default_factory=list)
    failed: list[NotCollected] = field(default_factory=list)
    streams: int = 0
    seen_files: int = 0
    found_files: int = 0
    deleted_files: int = 0
    unknown_files: int = 0
    knows_every_grace: bool = True
    _not_retired: set[str] = field(default_factory=set)
    """Tables of which a stream could not be retired."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect_tables(self, table_ids: Sequence[str], dropped: Sequence[str]) -> None:
        """Collects these tables, and the dropped ones. Does not raise errors of tables."""
        run_concurrently(self.lake.location, self.collect, table_ids, TABLES_AT_ONCE)
        run_concurrently(self.lake.location, self.collect_dropped, dropped, TABLES_AT_ONCE)

    def collect(self, table_id: str) -> None:
        """Retires and deletes what one table no longer needs. Does not raise errors of the table."""
        self.show(table_id)
        properties = None
        with self._reported(table_id):
            properties = _properties_of(self.lake, table_id)
        if properties is None:
            self.knows_every_grace = False
            return
        with self._lock:
            grace_seconds = self.grace.seconds_of(properties)
        kept_seconds = properties.retention_seconds
        retired: dict[str, StreamRetired] = {}
        retire = partial(self._retire, retention_of(kept_seconds, grace_seconds), retired)
        with self._reported(table_id):
            found = find_garbage(self.lake.store, table_id, self.clock, grace_seconds, kept_seconds, retire)

            def add(garbage: StreamGarbage) -> None:
                self._add(table_id, garbage, retired.get(garbage.stream))

            for _ in run_many(self.lake.location, add, found, DELETES_AT_ONCE):
                pass

    def collect_dropped(self, table_id: str) -> None:
        """Deletes the data of a dropped table, once nobody can need it. Does not raise errors of the table."""
        with self._reported(table_id):
            definition = self.lake.definition_even_dropped(table_id)
            if definition is not None:
                with self._lock:
                    grace_seconds = self.grace.seconds_of(definition.properties)
                garbage = find_dropped_garbage(self.lake.store, definition, self.clock, grace_seconds)
                self._add(table_id, garbage, None)

    def give_up_unfinished(self, store: ObjectStore) -> None:
        """Writes that began before the longest grace of all tables; if one is not known, none. Raises `Denied` if they
        may not be listed, which needs a separate right."""
        if not self.knows_every_grace:
            return
        with self._reported(None):
            writes = find_unfinished(store, self.clock, self.grace.longest_seconds)
            self.unfinished += [(store.location.root_uri, write) for write in writes]
            if self.deletes:
                delete_unfinished(store, writes)
                self.deleted_files += len(writes)

    def _retire(self, retention_seconds: float, retired: dict[str, StreamRetired], stream: PartitionStream) -> None:
        """The stream is searched whether it can be retired or not; after an error no other of its table is retired."""
        if stream.table_id in self._not_retired:
            return
        retirement = StreamRetirement(self.lake.store, stream, self.clock)
        try:
            found = retirement.retire(retention_seconds) if self.deletes else retirement.find(retention_seconds)
        except LithifyError as error:
            with self._lock:
                is_first = stream.table_id not in self._not_retired
                self._not_retired.add(stream.table_id)
                if is_first:
                    self.failed.append(NotCollected(stream.table_id, str(error)))
            return
        if found:
            retired[str(stream)] = StreamRetired(str(stream), stream.partition, found)
            self.retired.append(retired[str(stream)])

    def _add(self, table_id: str, garbage: StreamGarbage, retired: StreamRetired | None) -> None:
        count = len(garbage.garbage)
        not_deleted: dict[str, str] = {}
        if self.deletes and count:
            self.show(f"{garbage.stream}: deleting {counted(count, 'file')}")
            not_deleted = delete_garbage(self.lake.store, garbage)
        with self._lock:
            self.streams += 1
            self.seen_files += garbage.kept_files + count
            self.found_files += count
            self.unknown_files += len(garbage.unknown)
            self.deleted_files += count - len(not_deleted) if self.deletes else 0
            if not_deleted:
                first = next(iter(not_deleted.values()))
                what = f"{len(not_deleted):,} of {counted(count, 'file')} of {garbage.stream} could not be deleted"
                self.failed.append(NotCollected(table_id, f"{what}, the first: {first}"))
            self.add(CollectedStream(table_id, garbage, retired, not_deleted))
        self.show(garbage.stream)

    @contextmanager
    def _reported(self, table_id: str | None) -> Iterator[None]:
        try:
            yield
        except LithifyError as error:
            if table_id is None and isinstance(error, Denied):
                raise
            failed = NotCollected(table_id, str(error))
            if failed not in self.failed:  # what can neither be retired nor searched
                self.failed.append(failed)


def _properties_of(lake: DeltaCatalog, table_id: str) -> TableProperties:
    """Raises `Corrupt` if the definition is lost: nothing says then for how long its files are to be kept. `Invalid`
    for a folder that is a copy: its log names the files of another table."""
    if lake.definition_even_dropped(table_id) is not None:
        return lake.table(table_id).properties
    folder = TableFolder(table_id)
    if not {"compacted", "data", "streams"} & set(lake.store.list_folders(f"{folder.key}/")):
        return NO_PROPERTIES
    raise Corrupt(
        f"{lake.location.root_uri}/{folder.key} has files, and there is no definition of {table_id} in "
        f"{folder.definition_log}/: nothing is deleted. If it was lost, by a restore, a mount or a copy, bring it back"
    )
