"""Publishes a table as Apache Iceberg, format version 2: metadata and position deletes in a folder of their own, which
name the files of the lake by their URIs.

Streams are hashed into groups, each with one manifest of files and one of position deletes, so that many partitions do
not make many manifests; a commit writes those of groups that have changed. The header of a group's manifest of files
has the published entry of each stream's log: this is the only cursor. Of two publishers the slower one finds its
version taken, reads the winner's, and computes the remaining changes. `iceberg_log.py` has the order of writes.

`gc.enabled` is false, so that other engines refuse to expire snapshots, remove orphan files, and purge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.typedef import Record

from compactor.catalog.keys import OpenFilePath, partition_hash
from compactor.catalog.partition_split import Partitioning
from compactor.catalog.stream import PartitionStream
from compactor.index.deletion_vectors import read_dead_rows
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Corrupt
from compactor.model.files import DeletionVector
from compactor.model.names import OpenFormat
from compactor.publishing.changes import LiveFile
from compactor.publishing.delta_vectors import vector_id
from compactor.publishing.due_streams import DueStream, DueStreams, fitting_schema, outcome_of
from compactor.publishing.iceberg_files import (
    Commit,
    Group,
    deletes_entry,
    divided_anew,
    position_deletes,
    write_list,
    write_manifest,
)
from compactor.publishing.iceberg_log import IcebergLog, IcebergState
from compactor.publishing.iceberg_metadata import NextMetadata, arrow_schema_text, next_schema
from compactor.publishing.iceberg_partitions import IcebergPartitions, reasons_against_names
from compactor.publishing.iceberg_schema import bounds_of, not_read_as
from compactor.publishing.keys import (
    IcebergDeletes,
    IcebergFolder,
    IcebergManifest,
    IcebergManifestList,
    IcebergMetadata,
)
from compactor.publishing.protocol import NothingToPublish, Outcome, PublishedFile, PublishedState, Refused
from compactor.schemas.open_types import field_id
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore

COMMIT_ATTEMPTS_MAX = 100
"""Attempts of one publish to commit. Each that fails is the success of another publisher."""

GROUPS_MAX = 64
"""Groups of streams. Each group has a manifest."""


@dataclass(frozen=True)
class WrittenDeletes:
    """A position delete file that this publish has written, for the vector that Lithify has at a path."""

    uri: str
    size_bytes: int


@dataclass(frozen=True)
class Readable:
    """What readers may need who opened the table at a time or later.

    Attributes:
        metadata: keys of metadata and position deletes
        entries: by encoded partition, the published entry of each stream's log at that time, and the newest one:
            between them the log names every file that a version since then has"""

    metadata: frozenset[str] = frozenset()
    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class IcebergPublisher:
    """Publishes one table. Caches the published state, so that repeated publishes read no manifest twice.

    Args:
        private_columns: those whose bounds are not published"""

    format = OpenFormat.ICEBERG

    def __init__(
        self,
        store: ObjectStore,
        table_id: str,
        partitioning: Partitioning,
        clock: Clock,
        grace_seconds: float,
        private_columns: Collection[str] = (),
    ) -> None:
        self._store = store
        self._table_id = table_id
        self._partitioning = partitioning
        self._clock = clock
        self._grace_ms = int(grace_seconds * 1_000)
        self._log = IcebergLog(store, table_id, clock)
        self._due = DueStreams(private_columns)

    def publish(self, streams: Sequence[PartitionStream]) -> Outcome:
        folds = [(stream, stream.load()) for stream in streams]
        state = self._log.newest if self._log.newest.version else self._log.load()
        written: dict[str, WrittenDeletes] = {}
        for _ in range(COMMIT_ATTEMPTS_MAX):
            refused: list[Refused] = []
            due = self._due.find(folds, state.positions, refused)
            schema, due = fitting_schema(arrow_schema_text(state.metadata), due, refused, self._not_read_as)
            if not due:
                if state.version:
                    self._log.repair_hint(state.version)
                return NothingToPublish(self.format, state.version or None, tuple(refused))
            after = self._commit(state, schema, due, written)
            if after is not None and after.metadata is not None:
                self._log.repair_hint(after.version)
                self._due.published(due)
                done = outcome_of(self.format, after.version, after.metadata.last_updated_ms, due, refused)
                return replace(done, snapshot=after.metadata.current_snapshot_id)
            state = self._log.load()
        raise Conflict(f"{COMMIT_ATTEMPTS_MAX} other publishers of {self._table_id} were faster: publish again")

    def _not_read_as(self, narrow: pa.Schema, wide: pa.Schema) -> tuple[str, ...]:
        return (*not_read_as(narrow, wide), *reasons_against_names(self._partitioning, wide))

    def state(self) -> PublishedState:
        state = self._log.load()
        files = [
            self._published_file(entry, group.live_deletes.get(uri), self._partition_of(group, uri))
            for group in state.groups.values()
            for uri, entry in group.live_files.items()
        ]
        return PublishedState(state.version or None, state.positions, {file.path: file for file in files})

    def readable_since(self, since_ms: int) -> Readable:
        """See `Readable`. Lists the metadata.

        Versions since then are not read: what an attempt has written is kept for as long again, when it has ended.
        """
        listed = list(self._store.list(f"{IcebergFolder(self._table_id).key}/"))
        state = self._log.load()
        if not state.version:
            return Readable()
        parsed = {
            each.key: IcebergMetadata.parse_or_none(each.key) for each in listed
        }  # other programs write here, too
        paths = {key: path for key, path in parsed.items() if path is not None}
        modified_at_ms = {each.key: each.modified_at_ms for each in listed}
        old = [path.version or 0 for key, path in paths.items() if modified_at_ms[key] < since_ms]
        newest_then = self._log.at(max(old)) if any(old) else IcebergState()
        keys = self._named(newest_then) | self._named(state)
        hinted = self._log.hinted()
        if 0 < hinted < newest_then.version:  # readers of the folder still begin there
            newest_then = self._log.at(hinted)
            keys |= self._named(newest_then)
        first = newest_then.version or 1
        keys |= {key for key, path in paths.items() if path.version is None or path.version >= first}
        attempted_since_ms = since_ms - (self._clock.now_ms() - since_ms)
        keys |= {each.key for each in listed if each.key not in paths and each.modified_at_ms >= attempted_since_ms}
        then = newest_then.positions
        return Readable(frozenset(keys), {name: (then.get(name, last), last) for name, last in state.positions.items()})

    def _named(self, state: IcebergState) -> set[str]:
        """Keys of the manifests and position deletes of the newest snapshot."""
        if state.snapshot is None:
            return set()
        uris = [state.snapshot.manifest_list]
        for group in state.groups.values():
            uris += [each.path for each in group.manifests]
            uris += [entry.data_file.file_path for entry in group.live_deletes.values()]
        return {self._store.location.key_of(uri) for uri in uris}

    # -- a commit

    def _commit(
        self, state: IcebergState, schema: pa.Schema, due: Sequence[DueStream], written: dict[str, WrittenDeletes]
    ) -> IcebergState | None:
        """The next version; None: another publisher was faster."""
        commit_id = self._clock.new_id()
        snapshot = state.snapshot
        commit = Commit(
            snapshot_id=int(commit_id[-16:], 16) & (2**63 - 1),
            parent_snapshot_id=None if snapshot is None else snapshot.snapshot_id,
            sequence_number=1 if state.metadata is None else state.metadata.last_sequence_number + 1,
            schema=next_schema(state.metadata, schema, self._partitioning.keys),
            partitions=IcebergPartitions.of(self._partitioning, schema),
        )
        self._write_deletes(due, commit_id, written)
        groups = dict(state.groups)
        changed = defaultdict(list)
        for each in due:
            changed[int(partition_hash(each.stream.partition)[:8], 16) % GROUPS_MAX].append(each)
        elsewhere = {number for number, group in groups.items() if group.spec_ids != {commit.spec.spec_id}}
        pending: list[tuple[str, bytes]] = []
        for number in sorted(changed.keys() | elsewhere):
            rewrite = _Rewrite(groups.get(number, Group()), number, commit)
            if number in elsewhere:
                self._divide_anew(rewrite)
            for each in changed[number]:
                self._rewrite(rewrite, each, written, state)
            groups[number] = self._manifests(rewrite, commit_id, commit, pending)
        list_key = IcebergManifestList(self._table_id, commit_id).key
        manifests = [each.described for group in groups.values() for each in group.manifests]
        pending.append((list_key, write_list(self._log.uri(list_key), manifests, commit)))
        run_concurrently(self._store.location, lambda each: self._log.write(*each), pending)
        return self._next_version(state, schema, due, commit, self._log.uri(list_key), groups)

    def _next_version(
        self,
        state: IcebergState,
        schema: pa.Schema,
        due: Sequence[DueStream],
        commit: Commit,
        manifest_list: str,
        groups: Mapping[int, Group],
    ) -> IcebergState | None:
        before = 0 if state.metadata is None else state.metadata.last_updated_ms
        metadata, body = NextMetadata(
            location=self._log.location,
            commit=commit,
            rows_schema=schema,
            manifest_list=manifest_list,
            at_ms=max(self._clock.now_ms(), before),
            grace_ms=self._grace_ms,
            table_uuid=UUID(self._clock.new_id()),
        ).after(state.metadata, due, [each.described for group in groups.values() for each in group.manifests])
        after = IcebergState(state.version + 1, metadata, groups)
        return after if self._log.commit(state, after, body) else None

    def _write_deletes(self, due: Sequence[DueStream], commit_id: str, written: dict[str, WrittenDeletes]) -> None:
        """Position delete files of all vectors to publish, unless this publish has written them.

        Their names have the commit's id: garbage collection may delete what an earlier, failed commit has left.
        """

        def write(marked: tuple[LiveFile, DeletionVector]) -> WrittenDeletes:
            file, vector = marked
            body = position_deletes(self._log.uri(file.file.path), read_dead_rows(self._store.location, vector))
            key = IcebergDeletes(self._table_id, str(vector_id(vector.path)), commit_id).key
            self._log.write(key, body)
            return WrittenDeletes(self._log.uri(key), len(body))

        marked = [
            (file, file.vector)
            for each in due
            for file in each.after
            if file.vector is not None and file.vector.path not in written
        ]
        for (_, vector), found in zip(marked, run_concurrently(self._store.location, write, marked)):
            written[vector.path] = found

    def _rewrite(
        self, rewrite: _Rewrite, due: DueStream, written: Mapping[str, WrittenDeletes], state: IcebergState
    ) -> None:
        partition = rewrite.commit.partitions.record(due.stream.partition)
        for file in due.before:
            self._check(rewrite, file, due, state)
        for file in due.changes.removed:
            rewrite.remove(self._log.uri(file.file.path))
        for marked in due.changes.marked:
            rewrite.remove_deletes(self._log.uri(marked.before.file.path))
        for file in due.changes.added:
            rewrite.files_added.append(self._data_file(file, partition, due.stream.partition, rewrite.commit))
        for file in due.after:
            if file.vector is not None:
                deletes = written[file.vector.path]
                uri = self._log.uri(file.file.path)
                rewrite.deletes_added.append(
                    deletes_entry(deletes.uri, deletes.size_bytes, uri, partition, file.vector.rows)
                )
        rewrite.entries[due.name] = due.now.entry_number

    def _divide_anew(self, rewrite: _Rewrite) -> None:
        """Position deletes apply to files of the same spec, so both manifests get the new one."""
        for entries in (rewrite.files, rewrite.deletes):
            for uri, entry in entries.items():
                partition = self._partition_of(rewrite.before, uri)
                bounds = self._bounds_of_keys(partition, rewrite.commit) if entries is rewrite.files else {}
                entries[uri] = divided_anew(entry, rewrite.commit.partitions.record(partition), bounds)
        rewrite.is_divided_anew = True

    def _check(self, rewrite: _Rewrite, file: LiveFile, due: DueStream, state: IcebergState) -> None:
        """The published metadata must have the file, with the dead rows that the log says."""
        uri = self._log.uri(file.file.path)
        deletes = rewrite.deletes.get(uri)
        found = None if deletes is None else self._vector_id(deletes)
        expected = None if file.vector is None else str(vector_id(file.vector.path))
        if uri not in rewrite.files or found != expected:
            raise Corrupt(
                f"{IcebergFolder(self._table_id).key} does not have {file.file.path} as entry "
                f"{state.positions.get(due.name, 0)} of {due.stream} left it: delete that folder and publish the table "
                "again"
            )

    def _data_file(self, file: LiveFile, partition: Record, texts: Mapping[str, str], commit: Commit) -> DataFile:
        bounds, of_keys = bounds_of(file.file, commit.schema), self._bounds_of_keys(texts, commit)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._log.uri(file.file.path),
            file_format=FileFormat.PARQUET,
            partition=partition,
            record_count=file.file.rows,
            file_size_in_bytes=file.file.size_bytes,
            value_counts=bounds.value_counts,
            null_value_counts=bounds.null_value_counts,
            lower_bounds={**bounds.lower_bounds, **of_keys},
            upper_bounds={**bounds.upper_bounds, **of_keys},
        )

    def _bounds_of_keys(self, partition: Mapping[str, str], commit: Commit) -> dict[int, bytes]:
        """Those of keys that the spec has as a transform, so that engines prune by their own columns as well."""
        return {field_id(key): partition[key].encode() for key in commit.partitions.derived}

    def _manifests(self, rewrite: _Rewrite, commit_id: str, commit: Commit, pending: list[tuple[str, bytes]]) -> Group:
        """The group's manifests; adds those to write. A manifest of deletes without a change stays."""
        key = IcebergManifest(self._table_id, commit_id, rewrite.number, "data").key
        body, files = write_manifest(
            self._log.uri(key), ManifestContent.DATA, rewrite.file_rows, commit, rewrite.number, rewrite.entries
        )
        pending.append((key, body))
        deletes = rewrite.before.deletes if rewrite.deletes else None
        if rewrite.changes_deletes:
            key = IcebergManifest(self._table_id, commit_id, rewrite.number, "deletes").key
            body, deletes = write_manifest(
                self._log.uri(key), ManifestContent.DELETES, rewrite.delete_rows, commit, rewrite.number
            )
            pending.append((key, body))
        return Group(files, deletes)

    # -- published state

    def _partition_of(self, group: Group, uri: str) -> Mapping[str, str]:
        """Of a file. Fields of a partition spec need not have the values as text."""
        return group.partitions[OpenFilePath.parse(self._store.location.key_of(uri)).partition_hash]

    def _published_file(
        self, entry: ManifestEntry, deletes: ManifestEntry | None, partition: Mapping[str, str]
    ) -> PublishedFile:
        file = entry.data_file
        return PublishedFile(
            path=self._store.location.key_of(file.file_path),
            partition=partition,
            rows=file.record_count,
            dead_rows=0 if deletes is None else deletes.data_file.record_count,
            vector=None if deletes is None else self._store.location.key_of(deletes.data_file.file_path),
        )

    def _vector_id(self, deletes: ManifestEntry) -> str | None:
        path = IcebergDeletes.parse_or_none(self._store.location.key_of(deletes.data_file.file_path))
        return None if path is None else path.vector_id


class _Rewrite:
    """The entries of a group's new manifests."""

    def __init__(self, before: Group, number: int, commit: Commit) -> None:
        self.before = before
        self.number = number
        self.commit = commit
        self.files = dict(before.live_files)
        self.deletes = dict(before.live_deletes)
        self.entries = dict(before.entries)
        self.files_added: list[DataFile] = []
        self.deletes_added: list[DataFile] = []
        self._files_removed: list[ManifestEntry] = []
        self._deletes_removed: list[ManifestEntry] = []
        self.is_divided_anew = False

    def remove(self, uri: str) -> None:
        """Removes a file, and its position deletes."""
        self._files_removed.append(self.files.pop(uri))
        self.remove_deletes(uri)

    def remove_deletes(self, uri: str) -> None:
        removed = self.deletes.pop(uri, None)
        if removed is not None:
            self._deletes_removed.append(removed)

    @property
    def changes_deletes(self) -> bool:
        return bool(self.deletes_added or self._deletes_removed or (self.is_divided_anew and self.deletes))

    @property
    def file_rows(self) -> list[ManifestEntry]:
        return self._rows(self.files_added, self.files, self._files_removed)

    @property
    def delete_rows(self) -> list[ManifestEntry]:
        return self._rows(self.deletes_added, self.deletes, self._deletes_removed)

    def _rows(
        self, added: Sequence[DataFile], kept: Mapping[str, ManifestEntry], removed: Sequence[ManifestEntry]
    ) -> list[ManifestEntry]:
        commit = self.commit
        return [*map(commit.added, added), *kept.values(), *map(commit.deleted, removed)]
