"""Whether a table has lost its streams, or one of them: a folder may be restored, mounted or copied without them.

It is looked at where a stream has no log, before it is read as empty or gets its first entry: a second log would begin,
and the rows of the lost one be gone without a word. What shows that there was one:

    a hint below `dropped/`          of a table: of a drop, or the one that is put after entry 1 of the first stream
    delta files and compacted ones   a compaction reads deltas that a log names. Each kind alone shows nothing: an
                                     append writes its files before entry 1, and so does the first compaction of
                                     another table into this one
"""

import threading
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from itertools import islice

from compactor.catalog.keys import DropMark, StreamFolder, TableFolder
from compactor.model.errors import Corrupt, LithifyError
from compactor.storage.keys import decode_partition, encode_partition
from compactor.storage.object_store import ObjectStore, decoded_names, encoded_names

PARTITIONS_LOOKED_AT = 16

_MADE_BY_COMPACTIONS = frozenset({"compacted", "dead", "index"})


class FirstStream:
    """Whether a table has a stream, which is looked at once. Safe to share between threads."""

    def __init__(self, store: ObjectStore, folder: TableFolder) -> None:
        self._store = store
        self._folder = folder
        self._lock = threading.Lock()
        self._has_one: bool | None = None

    def check(self, stream: StreamFolder) -> None:
        """For a stream without a log. Raises `Corrupt` if it had one, or if its table had streams, and has none."""
        self._check_table()
        if _has_deltas_and_compacted(set(self._store.list_folders(f"{stream.data}/"))):
            root, log = self._store.location.root_uri, stream.log.removesuffix("log")
            raise Corrupt(
                f"{_lost(root, log, stream.data)}: it is neither read nor written without it. If a restore, a mount or "
                "a copy left it out, bring it back. If it never was there, an append and the first compaction into "
                f"{stream.table_id} were both cut off: delete {root}/{stream.data}/, and do them again"
            )

    def _check_table(self) -> None:
        if self._has_one is None:
            has_one = _has_stream(self._store, self._folder)
            if not has_one:
                refuse_lost(self._store, self._folder)
            self._has_one = has_one

    def before_first_entry(self, stream: StreamFolder) -> Callable[[], None] | None:
        """Checks, and returns what to call after entry 1 of the table's first stream."""
        self._check_table()
        return None if self._has_one else lambda: self._mark(stream)

    def _mark(self, stream: StreamFolder) -> None:
        with self._lock:  # several first entries may be written at a time: one of them puts the hint
            if self._has_one:
                return
            self._has_one = True
        with suppress(LithifyError):  # the entry is durable: the append has succeeded
            self._store.overwrite(DropMark(stream, 1, has_begun=True).key, b"")


def refuse_lost(store: ObjectStore, folder: TableFolder) -> None:
    """For a table without a stream. Raises `Corrupt` if it had one."""
    hint = next(iter(store.list(f"{folder.dropped}/")), None)
    trace = _deltas_with_compacted(store, folder) if hint is None else hint.key
    if trace is not None and not _has_stream(store, folder):  # the first one may have begun since the caller looked
        root = store.location.root_uri
        raise Corrupt(
            f"there is no log in {root}/{folder.streams}/, and {root}/{trace} shows that {folder.table_id} had one: it "
            "is neither read nor written without it. If a restore, a mount or a copy left it out, bring it back"
        )


def streams_without_log(store: ObjectStore, folder: TableFolder) -> Iterator[tuple[str, str]]:
    """The partitions, encoded, that have no log, and of which a compaction has read deltas: each with a sentence. Lists
    each folder without a log."""
    root, data = store.location.root_uri, folder.data
    names = [encode_partition(each) for each in decoded_names(store, f"{data}/", decode_partition)]
    with_log = set(encoded_names(store, f"{folder.streams}/"))  # listed later: its files come before a stream's log
    for name in names:
        if name not in with_log and _has_deltas_and_compacted(set(store.list_folders(f"{data}/{name}/"))):
            yield (
                name,
                f"{_lost(root, f'{folder.streams}/{name}/', f'{data}/{name}')}: its rows are not read. Bring it back",
            )


def _lost(root: str, log: str, data: str) -> str:
    return f"there is no log in {root}/{log}, and {root}/{data}/ shows that it had one"


def _has_stream(store: ObjectStore, folder: TableFolder) -> bool:
    return next(encoded_names(store, f"{folder.streams}/"), None) is not None


def _deltas_with_compacted(store: ObjectStore, folder: TableFolder) -> str | None:
    """A folder with delta files of a table that has compacted ones too; None: the first partitions have none."""
    data = f"{folder.data}/"
    for name in islice(encoded_names(store, data), PARTITIONS_LOOKED_AT):
        parts = set(store.list_folders(f"{data}{name}/"))
        if _has_deltas_and_compacted(parts) or (
            "delta" in parts and next(iter(store.list(f"{folder.open_files}/")), None) is not None
        ):
            return f"{data}{name}/"
    return None


def _has_deltas_and_compacted(folders: Set[str]) -> bool:
    return "delta" in folders and bool(folders & _MADE_BY_COMPACTIONS)
