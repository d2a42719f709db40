"""The bounds of columns in the manifests of an Apache Iceberg table (`published_bounds.py`)."""

from bisect import bisect_left
from collections.abc import Iterator

from compactor.model.clock import Clock
from compactor.model.errors import Corrupt
from compactor.publishing.iceberg_files import bounded_columns
from compactor.publishing.iceberg_log import IcebergLog
from compactor.publishing.keys import ICEBERG_KEYS, IcebergFolder, IcebergManifest, IcebergMetadata
from compactor.publishing.published_bounds import PublishedObject
from compactor.storage.concurrently import run_concurrently
from compactor.storage.keys import parse_any
from compactor.storage.object_store import ObjectEntry, ObjectStore

_HOW = "a round rewrites the file, and its publication the manifest; then gc deletes it"


class IcebergBounds:
    """`attempt_seconds`: from a manifest's writing to its commit, at most."""

    def __init__(self, store: ObjectStore, table_id: str, clock: Clock, attempt_seconds: int) -> None:
        self._store = store
        self._attempt_ms = attempt_seconds * 1_000
        listed = [(each, parse_any(each.key, ICEBERG_KEYS)) for each in store.list(f"{IcebergFolder(table_id).key}/")]
        self._unknown = [each for each, path in listed if path is None]
        self._manifests = [
            each for each, path in listed if isinstance(path, IcebergManifest) and path.content == "data"
        ]
        self._versions = sorted(
            (path.version, each.modified_at_ms)
            for each, path in listed
            if isinstance(path, IcebergMetadata) and path.version is not None
        )
        self._log = IcebergLog(store, table_id, clock)
        self._newest = self._log.load()
        self._hinted = self._log.hinted()

    def objects(self) -> Iterator[PublishedObject]:
        for entry in self._unknown:
            yield PublishedObject(entry.key, None, None, "it has none of Lithify's names: delete it by hand")
        last_named = self._last_named()
        for entry in self._manifests:
            bounded = self._bounded(entry)
            yield PublishedObject(entry.key, bounded, self._goes_from_ms(entry, last_named.get(entry.key)), _HOW)

    def shown_until_ms(self, path: str, stream: str, unnamed_at: int) -> int | None:
        if any(self._log.uri(path) in group.live_files for group in self._newest.groups.values()):
            return None
        if self._newest.positions.get(stream, 0) < unnamed_at:
            return 0  # it came and went between two publications
        readable = [each for each in self._versions if not self._hinted or each[0] <= self._hinted]
        place = bisect_left(readable, unnamed_at, key=lambda each: self._position_at(each[0], stream))
        return None if place == len(readable) else readable[place][1]

    def _position_at(self, version: int, stream: str) -> int:
        try:
            return self._log.at(version).positions.get(stream, 0)
        except Corrupt:  # an old version, half of which is deleted
            return 0

    def _last_named(self) -> dict[str, int]:
        """The last version that names a manifest, by its key."""
        versions = [version for version, _ in self._versions]
        named: dict[str, int] = {}
        for version, uris in zip(versions, run_concurrently(self._store.location, self._log.manifests_at, versions)):
            named |= dict.fromkeys(map(self._store.location.key_of, uris), version)
        return named

    def _goes_from_ms(self, entry: ObjectEntry, last_named: int | None) -> int | None:
        """None: the newest version names it, or the one that readers of the folder begin with."""
        unneeded_at_ms = entry.modified_at_ms + self._attempt_ms
        if last_named is None:
            return unneeded_at_ms
        later = [at_ms for version, at_ms in self._versions if version > last_named]
        if not later or self._hinted <= last_named:
            return None
        return max(unneeded_at_ms, later[0])

    def _bounded(self, entry: ObjectEntry) -> dict[str, frozenset[str]] | None:
        body = self._store.read(entry.key)
        if body is None:
            return {}  # deleted since it was listed
        try:
            found = bounded_columns(self._log.uri(entry.key), body)
        except Corrupt:
            return None
        return {self._store.location.key_of(uri): columns for uri, columns in found.items()}
