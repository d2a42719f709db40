"""Tables of the AWS Glue Data Catalog that lead engines to the published metadata of a table.

    Apache Iceberg   `metadata_location` names the newest version. It moves forward only, by an update that names the
                     version of the Glue table that was read: another update in between, and it is read again
    Delta Lake       the location of the table, written once: readers find the newest version there

Partitions are never registered: the metadata have them. Glue is last in the order of writes, and only follows: after a
failure or a crash it leads to an earlier version, until the next publish, even one that finds nothing to do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from compactor.catalog.keys import TableFolder
from compactor.model.errors import Conflict, Invalid, Unavailable
from compactor.model.names import OpenFormat
from compactor.publishing.keys import IcebergFolder, IcebergMetadata
from compactor.storage.object_store import ObjectStore

ATTEMPTS_MAX = 10
"""Attempts of one call to update a table, if others are faster or answers are lost."""

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9_]")

_TYPE, _METADATA_LOCATION = "table_type", "metadata_location"


@dataclass(frozen=True)
class GlueTable:
    """A table of Glue.

    Attributes:
        version_id: of this state of it; an update has to name the newest one. Empty: not created yet
        location: of its files
        parameters: as engines read them
        other: the remaining definition, as Glue has it, so that an update changes nothing else"""

    name: str
    location: str
    parameters: Mapping[str, str]
    version_id: str = ""
    other: Mapping[str, object] = field(default_factory=dict)


class GlueService(Protocol):
    """The Glue Data Catalog of an account in a region.

    Every call raises `Denied` or `Unavailable`; after the latter a write may have been made.
    """

    def table(self, database: str, name: str) -> GlueTable | None: ...

    def create(self, database: str, table: GlueTable) -> bool:
        """False: there is a table of this name. Raises `Invalid` if there is no such database."""

    def update(self, database: str, table: GlueTable) -> bool:
        """Replaces the table. False: its version is not the newest one any more, or it is gone."""


def name_in_sql(text: str) -> str:
    """The text in small letters, digits and `_`, which no engine has to quote."""
    return _NOT_IN_A_NAME.sub("_", text.lower())


def glue_name(table_id: str, format_: OpenFormat) -> str:
    """The name in Glue, of small letters, digits and `_`: `acme_orders_v1`, and `acme_orders_v1_delta`."""
    name = name_in_sql(table_id)
    return f"{name}_{format_}" if format_ is OpenFormat.DELTA else name


class GluePointer:
    """Leads Glue's readers to one table in one format."""

    def __init__(
        self, service: GlueService, database: str, store: ObjectStore, table_id: str, format_: OpenFormat
    ) -> None:
        self._service = service
        self._database = database
        self._store = store
        self._table_id = table_id
        self._format = format_
        self._name = glue_name(table_id, format_)

    def follow(self, version: int) -> None:
        """Leads to this published version, or to a later one.

        Raises `Invalid` if the Glue table is not this table's or there is no such database, `Denied`, `Unavailable`,
        and `Conflict` if others change it all the time.
        """
        lost: Unavailable | None = None
        for _ in range(ATTEMPTS_MAX):
            existing = self._service.table(self._database, self._name)
            if existing is not None:
                self._check_own(existing)
                if self._is_led(existing, version):
                    return
            try:
                if self._write(existing, version):
                    return
            except Unavailable as error:  # it may have been written
                lost = error
        if lost is not None:
            raise lost
        raise Conflict(f"Glue table {self._shown} is changed by others all the time: publish again")

    def _write(self, existing: GlueTable | None, version: int) -> bool:
        if existing is None:
            return self._service.create(
                self._database, GlueTable(self._name, self._location, self._parameters(version))
            )
        changed = replace(existing, parameters={**existing.parameters, **self._parameters(version)})
        return self._service.update(self._database, changed)

    def _check_own(self, existing: GlueTable) -> None:
        """Another table may have the same name: of somebody else, of another lake, or with an id that differs by a
        letter's case."""
        found = existing.parameters.get(_TYPE, "no type").casefold()
        if found != self._format or existing.location.rstrip("/") != self._location:
            raise Invalid(
                f"Glue table {self._shown} is another one ({found}, at {existing.location or 'no location'}), not "
                f"{self._table_id} at {self._location}: drop it in Glue, or set glue_database to another database"
            )

    def _is_led(self, existing: GlueTable, version: int) -> bool:
        """Whether the table leads to this version already, or to a later one."""
        if self._format is OpenFormat.DELTA:
            return True
        root = f"{self._store.location.root_uri}/"
        key = existing.parameters.get(_METADATA_LOCATION, "").removeprefix(root)
        metadata = IcebergMetadata.parse_or_none(key)
        if metadata is None or metadata.table_id != self._table_id or metadata.version is None:
            return False  # of another writer
        # A later version that is not there was of metadata that were deleted, and made again from version 1.
        return metadata.version == version or (metadata.version > version and self._store.read(key) is not None)

    def _parameters(self, version: int) -> dict[str, str]:
        match self._format:
            case OpenFormat.DELTA:
                # Athena reads the first, Spark and Trino the second.
                return {"EXTERNAL": "TRUE", _TYPE: "DELTA", "spark.sql.sources.provider": "delta"}
            case OpenFormat.ICEBERG:
                metadata = IcebergMetadata(self._table_id, version).key
                location = f"{self._store.location.root_uri}/{metadata}"
                return {"EXTERNAL": "TRUE", _TYPE: "ICEBERG", _METADATA_LOCATION: location}

    @property
    def _location(self) -> str:
        folder = TableFolder(self._table_id)
        key = folder.open_files if self._format is OpenFormat.DELTA else IcebergFolder(self._table_id).key
        return f"{self._store.location.root_uri}/{key}"

    @property
    def _shown(self) -> str:
        return f"{self._database}.{self._name}"
