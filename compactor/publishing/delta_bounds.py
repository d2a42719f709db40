"""The bounds of columns in a log of Delta Lake (`published_bounds.py`)."""

import json
from collections.abc import Iterator

from compactor.catalog.keys import TableFolder
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Outdated
from compactor.publishing.delta_actions import AddFile, parse_commit
from compactor.publishing.delta_checkpoint import read_checkpoint
from compactor.publishing.delta_log import DeltaLog
from compactor.publishing.keys import DELTA_LOG_KEYS, DeltaLogCheckpoint, DeltaLogCommit, DeltaLogFolder
from compactor.publishing.published_bounds import PublishedObject
from compactor.storage.keys import parse_any
from compactor.storage.object_store import ObjectEntry, ObjectStore

_HOW = "publishing writes a checkpoint with every tenth version; then gc deletes what is below"


class DeltaBounds:
    def __init__(self, store: ObjectStore, table_id: str, clock: Clock) -> None:
        self._store = store
        self._root = f"{TableFolder(table_id).open_files}/"
        self._logged = [
            (each, parse_any(each.key, DELTA_LOG_KEYS)) for each in store.list(f"{DeltaLogFolder(table_id).key}/")
        ]
        state = DeltaLog(store, table_id, clock).load()
        self._shown = frozenset(self._root + path for path in state.adds)
        self._removed_at_ms = {self._root + each.path: each.deletion_timestamp for each in state.removed.values()}

    def objects(self) -> Iterator[PublishedObject]:
        for entry, path in self._logged:
            if path is None:
                yield PublishedObject(entry.key, None, None, "it has none of Lithify's names: delete it by hand")
            elif isinstance(path, DeltaLogCommit | DeltaLogCheckpoint):
                yield PublishedObject(entry.key, self._bounded(path), self._goes_from_ms(entry, path.version), _HOW)

    def shown_until_ms(self, path: str, stream: str, unnamed_at: int) -> int | None:
        return None if path in self._shown else self._removed_at_ms.get(path, 0)

    def _bounded(self, path: DeltaLogCommit | DeltaLogCheckpoint) -> dict[str, frozenset[str]] | None:
        body = self._store.read(path.key)
        if body is None:
            return {}  # deleted since it was listed
        try:
            if isinstance(path, DeltaLogCheckpoint):
                adds = list(read_checkpoint(body, path.version, path.key).adds.values())
            else:
                adds = [each for each in parse_commit(body, path.key) if isinstance(each, AddFile)]
            return {self._root + add.path: _bounded_columns(add) for add in adds}
        except (Corrupt, Outdated, ValueError):
            return None

    def _goes_from_ms(self, entry: ObjectEntry, version: int) -> int | None:
        """The log below a checkpoint goes when both are old."""
        later = [
            each.modified_at_ms
            for each, path in self._logged
            if isinstance(path, DeltaLogCheckpoint) and path.version > version
        ]
        return max(entry.modified_at_ms, min(later)) if later else None


def _bounded_columns(add: AddFile) -> frozenset[str]:
    stats = json.loads(add.stats or "{}")
    return frozenset({*stats.get("minValues", {}), *stats.get("maxValues", {})})
