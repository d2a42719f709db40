"""Which files the log of a partition stream names: at an entry, by an action, and which no later entry can name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self, assert_never

from compactor.catalog.actions import (
    DeltaAdded,
    DeltaRetracted,
    DeltasRetired,
    DeltasTaken,
    IndexRehashed,
    RestoredSide,
    RoundCommitted,
    SessionPlanAnnounced,
    SessionPlanEnded,
    StreamAction,
    StreamDropped,
    StreamRestored,
    StreamVersionCreated,
    StreamVersionDeprecated,
    StreamVersionReleased,
)
from compactor.catalog.keys import CompactedFilePath, DeltaFilePath, OpenFilePath
from compactor.catalog.snapshot import StreamSnapshot
from compactor.index.keys import KEYS, DeletionVectorPath, IndexFilePath, IndexPointersPath
from compactor.model.clock import CLOCKS_DIFFER_MS
from compactor.storage.keys import parse_any
from compactor.storage.object_store import ObjectEntry

DATA_KEYS = (DeltaFilePath, CompactedFilePath, OpenFilePath, *KEYS)


def paths_of_snapshot(snapshot: StreamSnapshot) -> list[str]:
    paths = [path for source in snapshot.sources.values() for path in source.deltas.paths()]
    if snapshot.compacted is not None:
        paths += [file.path for file in snapshot.compacted.files.values()]
        paths += [path for file in snapshot.compacted.index_files for path in file.paths]
        paths += [vector.path for vector in snapshot.compacted.deletion_vectors]
    return paths


def _paths_of_side(restored: RestoredSide) -> list[str]:
    paths = [file.path for file in restored.files]
    paths += [path for file in restored.index_files for path in file.paths]
    return paths + [vector.path for vector in restored.deletion_vectors]


def paths_of_action(action: StreamAction) -> list[str]:
    match action:
        case DeltaAdded():
            return [file.path for file in action.files]
        case RoundCommitted():
            paths = [file.path for file in action.files_added]
            paths += [path for file in action.index_files for path in file.paths]
            return paths + [vector.path for vector in action.deletion_vectors]
        case IndexRehashed():
            return [path for file in action.index_files for path in file.paths]
        case StreamVersionCreated() | StreamVersionReleased() | StreamVersionDeprecated():
            return []
        case DeltaRetracted() | DeltasTaken() | DeltasRetired():
            return []
        case SessionPlanAnnounced() | SessionPlanEnded() | StreamDropped():
            return []
        case StreamRestored():
            return [] if action.compacted is None else _paths_of_side(action.compacted)
        case _:
            assert_never(action)


def keeps_deltas(earlier: StreamSnapshot, later: StreamSnapshot) -> bool:
    """Whether the later snapshot of a log has every delta that was added since the earlier one."""
    for version, source in later.sources.items():
        left = [each.position for each in source.retracted]
        left += [] if source.retired is None else [source.retired.position]
        known = earlier.sources[version].last_position if version in earlier.sources else None
        if left and (known is None or max(left) > known):
            return False
    return earlier.reset == later.reset


@dataclass(frozen=True)
class FilesOfEarlierRounds:
    """Tells files that no round or rehash after a snapshot can name, of those that the snapshot itself does not name.

    A round or rehash writes its files after the entry of the one before it (FORMAT.md, section 10): so a later one
    names none that is older than the files of the snapshot's last round. Within the time by which clocks may differ the
    file's name has to say so, too: numbers of compacted files and versions of the index only grow.

    Attributes:
        written_ms: the store's time of the newest file of the snapshot's last round; 0: not known, no file is told
        commit_ids: of rounds and rehashes that began before, as far as their index files are known"""

    written_ms: int = 0
    next_file_number: int = 0
    last_index_version: int = 0
    commit_ids: Collection[str] = ()

    @classmethod
    def of(cls, snapshot: StreamSnapshot, later: StreamSnapshot, old: Mapping[str, ObjectEntry], root: str) -> Self:
        """`old`: files by key, those of the snapshot among them. `root`: what precedes a key in a path that has it."""
        compacted, now = snapshot.compacted, later.compacted
        if compacted is None or now is None or compacted.stream_version != now.stream_version:
            return cls()
        last_round = [path.removeprefix(root) for path in paths_of_action(compacted.last_round)]
        index = [path for path in map(_index_path, (*last_round, *old)) if path is not None]
        return cls(
            max((old[key].modified_at_ms for key in last_round if key in old), default=0),
            compacted.next_file_number,
            snapshot.last_index_version,
            {path.commit_id for path in index if path.index_version <= snapshot.last_index_version},
        )

    def has(self, file: ObjectEntry) -> bool:
        age_ms = self.written_ms - file.modified_at_ms
        return age_ms > CLOCKS_DIFFER_MS or (age_ms > 0 and self._has_name(file.key))

    def _has_name(self, key: str) -> bool:
        match parse_any(key, DATA_KEYS):
            case DeltaFilePath():
                return True
            case (CompactedFilePath() | OpenFilePath()) as path:
                return path.file_number < self.next_file_number
            case (IndexFilePath() | IndexPointersPath()) as path:
                return path.index_version <= self.last_index_version
            case DeletionVectorPath() as path:
                return path.commit_id in self.commit_ids
            case _:
                return False


def _index_path(key: str) -> IndexFilePath | IndexPointersPath | None:
    return IndexFilePath.parse_or_none(key) or IndexPointersPath.parse_or_none(key) if "/index/" in key else None
