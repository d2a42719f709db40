"""The transaction log of a Delta Lake table: commits by put-if-absent, checkpoints, and the fold of both.

A put whose outcome is unknown is settled by the commit's id (`storage/create_once.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from compactor.log_context import LOG, Logged
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Unavailable
from compactor.publishing.delta_actions import CommitInfo, DeltaAction, DeltaState, parse_commit, render_commit
from compactor.publishing.delta_checkpoint import read_checkpoint, write_checkpoint
from compactor.publishing.keys import DeltaLogCheckpoint, DeltaLogCommit, DeltaLogFolder, DeltaLogHint
from compactor.publishing.version_cache import VersionCache
from compactor.storage.create_once import create_once
from compactor.storage.object_store import ObjectStore

CHECKPOINT_VERSIONS = 10
"""A checkpoint is written at every multiple."""

TOMBSTONES_KEPT_MS = 30 * 24 * 3_600_000
"""A checkpoint leaves out files that were removed longer ago: the grace period of garbage collection has passed."""


class DeltaLog:
    """Caches the newest fold that it has read or written. Safe to share between threads."""

    def __init__(self, store: ObjectStore, table_id: str, clock: Clock) -> None:
        self._store = store
        self._table_id = table_id
        self._clock = clock
        self._cache = VersionCache(DeltaState(), clock)

    @property
    def newest(self) -> DeltaState:
        """The cached fold, without reading the log, which may have newer versions."""
        return self._cache.newest

    def load(self) -> DeltaState:
        """The fold of the log. Raises `Corrupt` if a version is missing or damaged."""
        began, known = self._cache.now(), self._cache.newest
        state = self._replay(known if known.version >= 0 else self._from_checkpoint())
        if state.version < 0:
            state = self._replay(self._from_listing())
        self._cache.seen(state, began)
        return state

    def _replay(self, state: DeltaState) -> DeltaState:
        while (actions := self._read(state.version + 1)) is not None:
            state = state.after(state.version + 1, actions)
        return state

    def commit(self, before: DeltaState, actions: Sequence[DeltaAction], commit_id: str) -> DeltaState | None:
        """The fold with the next version; None: another publisher wrote that version first, and nothing was written.

        Raises `Unavailable` if the outcome is unknown.
        """
        began, version = self._cache.now(), before.version + 1
        info = CommitInfo(timestamp=max(self._clock.now_ms(), before.at_ms), lithify_commit_id=commit_id)
        whole = (info, *actions)
        if not self._create(version, render_commit(whole), commit_id):
            return None
        state = before.after(version, whole)
        self._cache.seen(state, began)
        if version and version % CHECKPOINT_VERSIONS == 0:
            self._checkpoint(state)
        return state

    def _create(self, version: int, body: bytes, commit_id: str) -> bool:
        key = DeltaLogCommit(self._table_id, version).key

        def is_ours(existing: bytes) -> bool:
            found = parse_commit(existing, key)
            return any(isinstance(each, CommitInfo) and each.lithify_commit_id == commit_id for each in found)

        return create_once(self._store, key, body, is_ours, self._clock)

    def _read(self, version: int) -> list[DeltaAction] | None:
        key = DeltaLogCommit(self._table_id, version).key
        body = self._store.read(key)
        return None if body is None else parse_commit(body, key)

    # -- checkpoints

    def _checkpoint(self, state: DeltaState) -> None:
        """Writes a checkpoint, after the commit. A failure only makes the next reader slower."""
        oldest = state.at_ms - TOMBSTONES_KEPT_MS
        kept = {file: each for file, each in state.removed.items() if each.deletion_timestamp >= oldest}
        body, rows = write_checkpoint(replace(state, removed=kept))
        with Logged("delta_checkpoint_not_written", Unavailable, table=self._table_id):
            self._store.overwrite(DeltaLogCheckpoint(self._table_id, state.version).key, body)
            hint = json.dumps({"version": state.version, "size": rows})
            self._store.overwrite(DeltaLogHint(self._table_id).key, hint.encode())

    def _from_checkpoint(self) -> DeltaState:
        hint = self._store.read(DeltaLogHint(self._table_id).key)
        if hint is None:
            return DeltaState()
        try:
            version = int(json.loads(hint)["version"])
            found = self._read_checkpoint(version)
        except (ValueError, KeyError, TypeError, Corrupt) as error:
            LOG.warning("delta_checkpoint_unreadable", table=self._table_id, reason=str(error))
            return DeltaState()
        return found or DeltaState()

    def _read_checkpoint(self, version: int) -> DeltaState | None:
        key = DeltaLogCheckpoint(self._table_id, version).key
        body = self._store.read(key)
        return None if body is None else read_checkpoint(body, version, key)

    def _from_listing(self) -> DeltaState:
        """The newest listed checkpoint, also one that the hint does not name. Called only if there is no version 0.
        Without a checkpoint the log must be empty then: readers would take a new version 0 beside later ones for
        another table."""
        folder = DeltaLogFolder(self._table_id).key
        keys = [each.key for each in self._store.list(f"{folder}/") if not each.key.endswith("_checkpoint")]
        checkpoints = [DeltaLogCheckpoint.parse(key) for key in keys if key.endswith(".checkpoint.parquet")]
        logged = [DeltaLogCommit.parse(key) for key in keys if not key.endswith(".checkpoint.parquet")]
        for version in sorted((each.version for each in checkpoints), reverse=True):
            state = self._read_checkpoint(version)
            if state is not None:
                return state
        if logged:
            raise Corrupt(
                f"{folder} has commits, but no version 0 and no checkpoint: delete that folder, and publish again"
            )
        return DeltaState()
