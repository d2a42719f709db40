"""The newest version of a published Apache Iceberg table, and its bytes. Knows neither manifests nor PyIceberg.

Versions count up without gaps, and the hint is never ahead of the newest one: it is overwritten after the version that
it names. So the newest version is the last one that exists from the hint on.
"""

from compactor.model.errors import Corrupt
from compactor.publishing.keys import IcebergFolder, IcebergMetadata
from compactor.storage.object_store import ObjectStore


class IcebergVersions:
    """The versions of one table. Caches nothing."""

    def __init__(self, store: ObjectStore, table_id: str) -> None:
        self._store = store
        self._table_id = table_id
        self._folder = IcebergFolder(table_id).key

    def key(self, version: int) -> str:
        return IcebergMetadata(self._table_id, version).key

    def read(self, version: int) -> bytes | None:
        """The metadata of a version; None if it does not exist."""
        return self._store.read(self.key(version))

    def newest(self, known: int = 0) -> tuple[int, bytes | None]:
        """The newest version, and its bytes.

        Args:
            known: a version that existed moments ago: the search begins there. If there is no later one, it is returned
                without bytes

        Version 0: there is no table."""
        version, body = (known, None) if known else self._start()
        while (later := self.read(version + 1)) is not None:
            version, body = version + 1, later
        return version, body

    def _start(self) -> tuple[int, bytes | None]:
        """A version to look for later ones from."""
        hinted = self.hinted()
        body = self.read(hinted) if hinted else None
        if body is not None:
            return hinted, body
        listed = self._listed()
        return (listed, self.read(listed)) if listed else (0, None)

    def hinted(self) -> int:
        """The version that readers of the folder see; 0: there is no hint."""
        body = self._store.read(IcebergMetadata(self._table_id, None).key)
        text = b"" if body is None else body.strip()
        return int(text) if text.isdigit() else 0

    def _listed(self) -> int:
        """The newest listed version; 0: there is none. Files that other programs have written are passed over."""
        found = [IcebergMetadata.parse_or_none(each.key) for each in self._store.list(f"{self._folder}/metadata/v")]
        return max((each.version or 0 for each in found if each is not None), default=0)

    def check_place(self, version: int, location: str) -> None:
        """Raises `Corrupt` unless a version's metadata, which have this location, are of this lake."""
        expected = f"{self._store.location.root_uri}/{self._folder}"
        if location != expected:
            raise Corrupt(
                f"{self.key(version)} was written for a lake at {location.removesuffix(f'/{self._folder}')}, and its "
                f"URIs lead there: delete {self._folder}, and publish the table again"
            )

    def damaged(self, version: int, error: Exception) -> Corrupt:
        return Corrupt(f"{self.key(version)} is damaged: {error}; delete {self._folder}, and publish the table again")
