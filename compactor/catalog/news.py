"""Hints that a stream has something to compact: a job run over many streams reads the logs of these only.

A table with the property `news_hints` stores an object `tables/<table id>/news/<partition>/<entry number>` for each
such stream:

    1  create the hint of entry n     before the entry, by the writer of an entry that gives the stream work
    2  write entry n
    3  delete hints up to entry c     by a reader that found no work in the stream at entry c

Step 3 never deletes a needed hint: later hints have greater numbers, since entry c exists. So every stream with work
has a hint. A needless one (its writer lost a race or was killed, or it could not be deleted) costs one read of the log.

The property is set when a table is created, or later by `compactor/maintenance/late_hints.py`.
"""

from collections.abc import Iterator
from contextlib import suppress

from compactor.catalog.keys import NewsHint, StreamFolder, TableFolder
from compactor.catalog.snapshot import StreamSnapshot
from compactor.log.durable_log import LogState
from compactor.log_context import Logged
from compactor.model.errors import Denied, Invalid, Unavailable
from compactor.storage.object_store import ObjectStore


def has_news(snapshot: StreamSnapshot, table_id: str) -> bool:
    """Whether a compaction of the stream into its own table has work: deltas that are not compacted, or dead rows."""
    compacted, active = snapshot.compacted, snapshot.active
    if compacted is not None and compacted.deletion_vectors:
        return True
    if active is None or not active.deltas:
        return False
    if compacted is None or compacted.source_table_id != table_id:
        return True
    processed, last = compacted.processed, active.deltas[-1].position
    if compacted.source_stream_version != active.stream_version:
        return compacted.source_stream_version < active.stream_version
    if snapshot.skips(active.stream_version, last):
        return any(
            not snapshot.skips(active.stream_version, delta.position)
            for delta in active.deltas.above(processed.whole_position)
        )
    return last > processed.whole_position


class NewsHints:
    """The hints of one partition stream."""

    def __init__(self, store: ObjectStore, folder: StreamFolder) -> None:
        self._store = store
        self._folder = folder

    def before_entry(self, before: LogState[StreamSnapshot], after: LogState[StreamSnapshot]) -> None:
        """Step 1; called before an entry is written."""
        if not has_news(before.state, self._folder.table_id):
            self.put(after)

    def put(self, at: LogState[StreamSnapshot]) -> None:
        """If the stream has work at this entry."""
        if has_news(at.state, self._folder.table_id):
            self._store.overwrite(NewsHint(self._folder, at.entry_number).key, b"")

    def clear(self, at: LogState[StreamSnapshot]) -> None:
        """Step 3, if the stream has no work at this entry. A hint that cannot be deleted stays, and fails nothing."""
        if has_news(at.state, self._folder.table_id):
            return
        last = NewsHint(self._folder, at.entry_number).key
        with Logged("news_hints_not_cleared", Denied, Unavailable, stream=self._folder.news):
            for entry in list(self._store.list(f"{self._folder.news}/")):
                if entry.key <= last:
                    self._store.delete(entry.key)


def partitions_with_news(store: ObjectStore, table_id: str) -> Iterator[dict[str, str]]:
    """The partitions of a table that have a hint, each once. They are listed as the caller takes them."""
    last: StreamFolder | None = None
    for entry in store.list(f"{TableFolder(table_id).news}/"):
        with suppress(Invalid):  # not a name that Lithify writes
            hint = NewsHint.parse(entry.key)
            if hint.stream != last:  # hints of one stream are listed together
                last = hint.stream
                yield dict(last.partition)
