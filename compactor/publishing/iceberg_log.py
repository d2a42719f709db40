"""The versions of an Apache Iceberg table in a folder: `v<version>.metadata.json` by put-if-absent, and their hint.

    1. position deletes, manifests, the list of manifests   under names of this attempt; nothing names them yet
    2. v<version>.metadata.json                             the commit: put-if-absent
    3. version-hint.text                                    a hint, overwritten; readers of the folder begin there

A crash between 2 and 3 leaves the hint one version behind: each publish repairs it. An outcome of 2 that is unknown is
settled by reading the version back (`storage/create_once.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.snapshots import Snapshot

from compactor.log_context import Logged
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Unavailable
from compactor.publishing.iceberg_files import Group, Manifest, read_list, read_manifest
from compactor.publishing.iceberg_versions import IcebergVersions
from compactor.publishing.keys import IcebergFolder, IcebergMetadata
from compactor.publishing.version_cache import VersionCache
from compactor.storage.concurrently import run_concurrently
from compactor.storage.create_once import create_once
from compactor.storage.object_store import ObjectStore


@dataclass(frozen=True)
class IcebergState:
    """A version of the table, and what the manifests of its newest snapshot say. Version 0: there is no table."""

    version: int = 0
    metadata: TableMetadataV2 | None = None
    groups: Mapping[int, Group] = field(default_factory=dict)

    @property
    def positions(self) -> dict[str, int]:
        """The published entry of each stream's log, by encoded partition."""
        return {name: entry for group in self.groups.values() for name, entry in group.entries.items()}

    @property
    def snapshot(self) -> Snapshot | None:
        return None if self.metadata is None else self.metadata.current_snapshot()


class IcebergLog:
    """Caches the newest version that it has read or written. Safe to share between threads."""

    def __init__(self, store: ObjectStore, table_id: str, clock: Clock) -> None:
        self._store = store
        self._table_id = table_id
        self._clock = clock
        self._folder = IcebergFolder(table_id).key
        self._versions = IcebergVersions(store, table_id)
        self._cache = VersionCache(IcebergState(), clock)

    @property
    def location(self) -> str:
        return self.uri(self._folder)

    @property
    def newest(self) -> IcebergState:
        """The cached version, without reading; there may be newer ones."""
        return self._cache.newest

    def uri(self, key: str) -> str:
        return f"{self._store.location.root_uri}/{key}"

    # -- reading

    def load(self) -> IcebergState:
        """The newest version. Raises `Corrupt` if it is damaged."""
        began, known = self._cache.now(), self._cache.newest
        number, body = self._versions.newest(known.version)
        state = known if body is None else self._state(number, body, self._cache.last)
        self._cache.seen(state, began)
        return state

    def at(self, version: int) -> IcebergState:
        """An earlier version; one that does not exist is as none."""
        body = self._versions.read(version)
        return IcebergState() if body is None else self._state(version, body, self._cache.last)

    def manifests_at(self, version: int) -> list[str]:
        """The URIs of the manifests of a version; one that was deleted, or half of it, has none."""
        body = self._versions.read(version)
        snapshot = None if body is None else self._metadata(version, body).current_snapshot()
        listed = None if snapshot is None else self._store.read(self._store.location.key_of(snapshot.manifest_list))
        if snapshot is None or listed is None:
            return []
        return [each.manifest_path for each in read_list(snapshot.manifest_list, listed)]

    def hinted(self) -> int:
        """The version that readers of the folder see; 0: there is no hint."""
        return self._versions.hinted()

    def _state(self, version: int, body: bytes, known: IcebergState) -> IcebergState:
        metadata = self._metadata(version, body)
        return IcebergState(version, metadata, self._groups(metadata, known))

    def _metadata(self, version: int, body: bytes) -> TableMetadataV2:
        try:
            metadata = TableMetadataV2.model_validate_json(body)
        except ValueError as error:
            raise self._versions.damaged(version, error) from error
        self._versions.check_place(version, metadata.location)
        return metadata

    def _groups(self, metadata: TableMetadataV2, known: IcebergState) -> dict[int, Group]:
        """What the manifests of the newest snapshot say. Those of the known version are not read again."""
        snapshot = metadata.current_snapshot()
        if snapshot is None:
            raise Corrupt(f"{self._folder} has no snapshot: delete it, and publish the table again")
        listed = read_list(snapshot.manifest_list, self._read(snapshot.manifest_list))
        cached = {each.path: each for group in known.groups.values() for each in group.manifests}

        def read(described: ManifestFile) -> Manifest:
            found = cached.get(described.manifest_path)
            if found is not None:
                return found
            return read_manifest(self._read(described.manifest_path), described)

        groups: dict[int, Group] = {}
        for each in run_concurrently(self._store.location, read, listed):
            group = groups.get(each.group, Group())
            groups[each.group] = replace(group, deletes=each) if each.is_of_deletes else replace(group, files=each)
        return groups

    def _read(self, uri: str) -> bytes:
        key = self._store.location.key_of(uri)
        body = self._store.read(key)
        if body is None:
            raise Corrupt(f"{key} is missing: delete {self._folder}, and publish the table again")
        return body

    # -- writing

    def write(self, key: str, body: bytes) -> None:
        """Creates an object under a name that no other attempt uses, so that a taken name is our own write."""
        create_once(self._store, key, body, lambda _: True, self._clock)

    def commit(self, before: IcebergState, after: IcebergState, body: bytes) -> bool:
        """Writes the next version. False: another publisher wrote that version first, and nothing was written.

        Raises `Unavailable` if the outcome is unknown.
        """
        began, key = self._cache.now(), self._versions.key(before.version + 1)
        if not create_once(self._store, key, body, lambda existing: existing == body, self._clock):
            return False
        self._cache.seen(after, began)
        return True

    def repair_hint(self, version: int) -> None:
        """Moves the hint to this version, if it is behind. A failure only lets readers of the folder see an earlier
        version until the next publish."""
        with Logged("iceberg_hint_not_written", Unavailable, table=self._table_id, version=version):
            if self.hinted() < version:
                self._store.overwrite(IcebergMetadata(self._table_id, None).key, str(version).encode())
