"""A lake's tables that are published as Apache Iceberg, by their names in SQL, with their newest metadata. Reads only.

A table has the name that it has in Glue (`acme_orders_v1`). Its namespace is its `glue_database`, or else the lake's
name, so that a query over Glue is the same query here. A table is shown while it has the property `publish=iceberg`,
from its first published version on.

What a caller asks of one table is read anew each time: its definition, and its newest version. A listing looks at every
table, so it is cached for a time that grows with their number.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import JsonValue, TypeAdapter

from compactor.catalog.definition import TableDefinition
from compactor.catalog.dropping import DefinitionLog, definition_log
from compactor.log_context import Logged
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Denied, Invalid, Outdated, Unavailable
from compactor.model.names import OpenFormat
from compactor.publishing.glue import glue_name, name_in_sql
from compactor.publishing.iceberg_versions import IcebergVersions
from compactor.storage.concurrently import run_concurrently
from compactor.storage.keys import decode
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore, decoded_names

TABLES_A_SECOND = 20
"""Tables that listings look at, on average, however many callers there are: a listing of 1,000 tables is cached for 50
seconds. Each table takes a request or two."""

IcebergJson: TypeAlias = dict[str, JsonValue]
_JSON: TypeAdapter[IcebergJson] = TypeAdapter(IcebergJson)


@dataclass(frozen=True, order=True)
class PublishedTable:
    namespace: str
    name: str
    table_id: str = field(compare=False)


@dataclass(frozen=True)
class PublishedMetadata:
    """A version of a table.

    Attributes:
        uri: of the object that has it
        body: the object's bytes
        parsed: the same as JSON"""

    uri: str
    body: bytes
    parsed: IcebergJson


@dataclass(frozen=True)
class _Listing:
    """`until_seconds`: the time of the monotonic clock at which it is too old."""

    tables: Sequence[PublishedTable] = ()
    table_ids: Sequence[str] = ()
    until_seconds: float = float("-inf")


class PublishedLake:
    """One lake. Safe to share between threads."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.name = lake_name(store.location.root_uri)
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._listing = _Listing()
        self._definitions: dict[str, DefinitionLog] = {}
        self._with_versions: set[str] = set()

    @property
    def location(self) -> StoreLocation:
        return self._store.location

    def tables(self) -> Sequence[PublishedTable]:
        """The published tables, in order; changes are seen once the listing is too old.

        A table that cannot be read is left out. Raises `Denied` or `Unavailable` if the lake cannot be listed.
        """
        with self._lock:
            if self._clock.monotonic_seconds() >= self._listing.until_seconds:
                self._listing = self._list()
            return self._listing.tables

    def find(self, namespace: str, name: str) -> Sequence[PublishedTable]:
        """The published tables of this name, as of now. More than one: their ids differ by case, say.

        Raises an error if a table that may have this name cannot be read.
        """
        known = self._listing.table_ids
        found = self._named(known, namespace, name)
        if not found:
            listed = self._table_ids()
            found = self._named([each for each in listed if each not in set(known)], namespace, name)
        return found

    def newest(self, table: PublishedTable) -> PublishedMetadata | None:
        """The newest version; None: there is none any more.

        Raises `Corrupt` if it is damaged, or the lake was moved since.
        """
        versions = IcebergVersions(self._store, table.table_id)
        version, body = versions.newest()
        if body is None:
            return None
        try:
            parsed = _JSON.validate_json(body)
        except ValueError as error:
            raise versions.damaged(version, error) from error
        versions.check_place(version, str(parsed.get("location")))
        return PublishedMetadata(f"{self.location.root_uri}/{versions.key(version)}", body, parsed)

    def _list(self) -> _Listing:
        table_ids = self._table_ids()
        found = run_concurrently(self.location, self._shown_or_logged, table_ids)
        seconds = (1 + len(table_ids)) / TABLES_A_SECOND
        self._definitions = {each: log for each, log in self._definitions.items() if each in set(table_ids)}
        tables = sorted(each for each in found if each is not None)
        return _Listing(tables, table_ids, self._clock.monotonic_seconds() + seconds)

    def _table_ids(self) -> list[str]:
        if self.location.is_missing_folder:
            raise Unavailable(f"{self.location.root_uri} is not there")
        return sorted(decoded_names(self._store, "tables/", decode))

    def _shown_or_logged(self, table_id: str) -> PublishedTable | None:
        with Logged("table_left_out_of_catalog", Corrupt, Denied, Invalid, Outdated, table=table_id, lake=self.name):
            return self._shown(table_id)
        return None

    def _shown(self, table_id: str) -> PublishedTable | None:
        """None: it is not published, or nothing of it is yet."""
        log = self._definitions.setdefault(table_id, definition_log(self._store, table_id, self._clock))
        definition = log.load().state
        if definition is None or not _is_published(definition, table_id):
            self._with_versions.discard(table_id)
            return None
        if not self._has_version(table_id):
            return None
        namespace = definition.properties.glue_database or self.name
        return PublishedTable(namespace, glue_name(table_id, OpenFormat.ICEBERG), table_id)

    def _has_version(self, table_id: str) -> bool:
        if table_id not in self._with_versions and IcebergVersions(self._store, table_id).newest()[0]:
            self._with_versions.add(table_id)
        return table_id in self._with_versions

    def _named(self, table_ids: Iterable[str], namespace: str, name: str) -> list[PublishedTable]:
        candidates = [each for each in table_ids if glue_name(each, OpenFormat.ICEBERG) == name]
        found = [self._shown(each) for each in candidates]
        return [each for each in found if each is not None and each.namespace == namespace]


def _is_published(definition: TableDefinition, table_id: str) -> bool:
    """A folder that was copied has the definition of another table."""
    is_there = definition.dropped_at_ms is None and definition.table_id == table_id
    return is_there and OpenFormat.ICEBERG in definition.properties.publish


def lake_name(root_uri: str) -> str:
    """Of small letters, digits and `_`: the last part of its URI."""
    return name_in_sql(root_uri.rpartition("/")[2]) or "lake"
