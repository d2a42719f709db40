"""The AWS Glue Data Catalog over botocore. It translates the errors of botocore."""

from typing import Any, Protocol, Self

from botocore.exceptions import ClientError

from compactor.publishing.glue import GlueTable
from compactor.storage.aws.boto import Answer, open_client
from compactor.storage.aws.failures import code_of, translated

TRIES, READ_SECONDS = 3, 20


class _GlueClient(Protocol):
    @property
    def meta(self) -> Any: ...  # noqa: ANN401  (no types installed)
    def get_table(self, **request: object) -> Answer: ...
    def create_table(self, **request: object) -> Answer: ...
    def update_table(self, **request: object) -> Answer: ...


class BotoGlue:
    """A `GlueService`."""

    def __init__(self, client: _GlueClient) -> None:
        self._client = client
        written = client.meta.service_model.operation_model("UpdateTable").input_shape.members["TableInput"]
        self._written: frozenset[str] = frozenset(written.members)
        """The fields of a table that an update writes. What it lacks is gone afterwards."""

    @classmethod
    def open(cls, region: str | None = None, endpoint_url: str | None = None) -> Self:
        """`region`: None: that of the environment."""
        failure = "Glue cannot be reached"
        return cls(open_client("glue", failure, region, endpoint_url, tries=TRIES, read_seconds=READ_SECONDS))

    def table(self, database: str, name: str) -> GlueTable | None:
        with translated(f"Glue table {database}.{name} cannot be read"):
            try:
                found = self._client.get_table(DatabaseName=database, Name=name)["Table"]
            except ClientError as error:
                if code_of(error) == "EntityNotFoundException":
                    return None
                raise
        return GlueTable(
            name,
            found.get("StorageDescriptor", {}).get("Location", ""),
            found.get("Parameters", {}),
            found.get("VersionId", ""),
            {field: value for field, value in found.items() if field in self._written},
        )

    def create(self, database: str, table: GlueTable) -> bool:
        with translated(f"Glue table {database}.{table.name} cannot be created"):
            try:
                self._client.create_table(DatabaseName=database, TableInput=_definition(table))
            except ClientError as error:
                if code_of(error) == "AlreadyExistsException":
                    return False
                raise
        return True

    def update(self, database: str, table: GlueTable) -> bool:
        with translated(f"Glue table {database}.{table.name} cannot be updated"):
            try:
                self._client.update_table(
                    DatabaseName=database, TableInput=_definition(table), VersionId=table.version_id, SkipArchive=True
                )
            except ClientError as error:
                if code_of(error) in ("ConcurrentModificationException", "EntityNotFoundException"):
                    return False
                raise
        return True


def _definition(table: GlueTable) -> Answer:
    """Trino finds a table of Delta Lake by the `path` of its SerDe."""
    storage: Answer = {"Location": table.location, "Columns": [], "SerdeInfo": {"Parameters": {"path": table.location}}}
    return {
        "TableType": "EXTERNAL_TABLE",
        "StorageDescriptor": storage,
        **table.other,
        "Name": table.name,
        "Parameters": dict(table.parameters),
    }
