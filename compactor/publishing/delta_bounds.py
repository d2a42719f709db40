"""The bounds of columns in a log of Delta Lake (`published_bounds.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Invalid, Outdated
from compactor.publishing.delta_actions import AddFile, parse_commit
from compactor.publishing.delta_checkpoint import read_checkpoint
from compactor.publishing.delta_log import DeltaLog
from compactor.publishing.published_bounds import PublishedObject
from compactor.storage.object_store import ObjectEntry, ObjectStore
from compactor.storage.paths import DeltaLogObject, TableFolder, parse

_HOW = "publishing writes a checkpoint with every tenth version; then gc deletes what is below"


class DeltaBounds:
    def __init__(self, store: ObjectStore, table_id: str, clock: Clock) -> None:
        self._store = store
        folder = TableFolder(table_id)
        self._root = f"{folder.open_files}/"
        self._logged = [(each, _parsed(each.key)) for each in store.list(f"{folder.delta_log}/")]
        state = DeltaLog(store, table_id, clock).load()
        self._shown = frozenset(self._root + path for path in state.adds)
        self._removed_at_ms = {self._root + each.path: each.deletion_timestamp for each in state.removed}

    def objects(self) -> Iterator[PublishedObject]:
        for entry, path in self._logged:
            if path is None:
                yield PublishedObject(entry.key, None, None, "it has none of Lithify's names: delete it by hand")
            elif path.version is not None:
                yield PublishedObject(entry.key, self._bounded(path), self._goes_from_ms(entry, path.version), _HOW)

    def shown_until_ms(self, path: str, stream: str, unnamed_at: int) -> int | None:
        return None if path in self._shown else self._removed_at_ms.get(path, 0)

    def _bounded(self, path: DeltaLogObject) -> dict[str, frozenset[str]] | None:
        body = self._store.read(path.key)
        if body is None:
            return {}  # deleted since it was listed
        try:
            if path.kind == "checkpoint":
                adds = list(read_checkpoint(body, path.version or 0, path.key).adds.values())
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
            if path is not None and path.kind == "checkpoint" and (path.version or 0) > version
        ]
        return max(entry.modified_at_ms, min(later)) if later else None


def _parsed(key: str) -> DeltaLogObject | None:
    """None: another name."""
    try:
        path = parse(key)
    except Invalid:
        return None
    return path if isinstance(path, DeltaLogObject) else None


def _bounded_columns(add: AddFile) -> frozenset[str]:
    stats = json.loads(add.stats or "{}")
    return frozenset({*stats.get("minValues", {}), *stats.get("maxValues", {})})
