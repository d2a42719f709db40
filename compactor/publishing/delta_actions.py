"""The actions of Delta Lake's transaction log that are written here, and their fold.

A commit is one JSON object a line, each with one action. The fold of a table's commits is `DeltaState`; a checkpoint
(`delta_checkpoint.py`) is that fold as Parquet.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self, TypeAlias

from pydantic import ConfigDict, JsonValue
from pydantic.alias_generators import to_camel

from compactor.model.document import Document


class _Action(Document):
    """An action; its JSON has the names of Delta's protocol."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", strict=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class VectorReference(_Action):
    """The location of a deletion vector: a file below the table's root, named by a UUID (storage type `u`)."""

    storage_type: str
    path_or_inline_dv: str
    offset: int
    size_in_bytes: int
    cardinality: int


LogicalFile: TypeAlias = tuple[str, VectorReference | None]
"""What Delta's protocol takes for a file: its path, with one vector or none."""


class AddFile(_Action):
    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool = True
    stats: str | None = None
    deletion_vector: VectorReference | None = None

    @property
    def file(self) -> LogicalFile:
        return self.path, self.deletion_vector


class RemoveFile(_Action):
    """The file is no longer part of the table, or not with this vector."""

    path: str
    deletion_timestamp: int
    data_change: bool = True
    extended_file_metadata: bool = True
    partition_values: dict[str, str | None] = {}
    size: int = 0
    deletion_vector: VectorReference | None = None

    @property
    def file(self) -> LogicalFile:
        return self.path, self.deletion_vector


class Format(_Action):
    provider: str = "parquet"
    options: dict[str, str] = {}


class MetaData(_Action):
    id: str
    format: Format = Format()
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str] = {}
    created_time: int


class Features(_Action):
    """The protocol: which versions and features readers and writers must know."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


class Transaction(_Action):
    """How far a stream is published: `app_id` is the encoded partition, `version` the entry number of its log."""

    app_id: str
    version: int
    last_updated: int


class CommitInfo(_Action):
    """`lithify_commit_id`: by it a publisher recognises its own commit after a lost answer."""

    timestamp: int
    operation: str = "LITHIFY PUBLISH"
    operation_parameters: dict[str, str] = {}
    engine_info: str = "Lithify"
    is_blind_append: bool = False
    lithify_commit_id: str | None = None


DeltaAction: TypeAlias = AddFile | RemoveFile | MetaData | Features | Transaction | CommitInfo


class _Line(_Action):
    """One line of a commit; `extra` actions of other writers are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )

    commit_info: CommitInfo | None = None
    protocol: Features | None = None
    meta_data: MetaData | None = None
    txn: Transaction | None = None
    remove: RemoveFile | None = None
    add: AddFile | None = None

    @property
    def action(self) -> DeltaAction | None:
        return self.commit_info or self.protocol or self.meta_data or self.txn or self.remove or self.add


_NAMES: Mapping[type[DeltaAction], str] = MappingProxyType(
    {
        CommitInfo: "commitInfo",
        Features: "protocol",
        MetaData: "metaData",
        Transaction: "txn",
        RemoveFile: "remove",
        AddFile: "add",
    }
)


def render_commit(actions: Iterable[DeltaAction]) -> bytes:
    lines = [
        json.dumps({_NAMES[type(action)]: plain(action)}, separators=(",", ":"), ensure_ascii=False)
        for action in actions
    ]
    return ("\n".join(lines) + "\n").encode()


def plain(action: DeltaAction) -> dict[str, JsonValue]:
    """The action as JSON with Delta's names, without absent fields."""
    fields: dict[str, JsonValue] = action.model_dump(mode="json", by_alias=True, exclude_none=True)
    return fields


def parse_commit(body: bytes, where: str) -> list[DeltaAction]:
    """The actions of a commit. Raises `Corrupt` for a malformed commit, and `Outdated` for actions of other writers."""
    lines = [_Line.parse_durable(line, where) for line in body.splitlines() if line.strip()]
    return [line.action for line in lines if line.action is not None]


@dataclass(frozen=True)
class DeltaState:
    """The fold of the commits 0 .. version; version -1: there is no table.

    Attributes:
        adds: the live files, by path
        removed: files that only earlier versions have: their readers may still need them. None is live: of a file that
            a checkpoint adds and removes, some readers take the last one
        positions: the entry number of each stream's log that is published, by encoded partition
        at_ms: when the newest commit was written, by its writer's clock
        commit_id: of the newest commit"""

    version: int = -1
    features: Features | None = None
    metadata: MetaData | None = None
    adds: Mapping[str, AddFile] = field(default_factory=dict)
    removed: Mapping[LogicalFile, RemoveFile] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    at_ms: int = 0
    commit_id: str | None = None

    def after(self, version: int, actions: Sequence[DeltaAction]) -> Self:
        """The fold with one more commit."""
        adds, positions, removed = dict(self.adds), dict(self.positions), dict(self.removed)
        state = replace(self, version=version)
        for action in actions:
            match action:
                case RemoveFile():
                    adds.pop(action.path, None)
                    removed[action.file] = action
                case Transaction():
                    positions[action.app_id] = action.version
                case MetaData():
                    state = replace(state, metadata=action)
                case Features():
                    state = replace(state, features=action)
                case CommitInfo():
                    state = replace(state, at_ms=action.timestamp, commit_id=action.lithify_commit_id)
                case AddFile():
                    pass
        # A file with a new vector is removed and added in one commit, in any order.
        added = [action for action in actions if isinstance(action, AddFile)]
        adds |= {action.path: action for action in added}
        for action in added:  # restored
            removed.pop(action.file, None)
        return replace(state, adds=adds, positions=positions, removed=removed)
