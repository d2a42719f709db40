"""The table metadata of Apache Iceberg: the next version, from the one before it and a snapshot. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from compactor.publishing.due_streams import DueStream
from compactor.publishing.iceberg_files import Commit
from compactor.publishing.iceberg_schema import iceberg_schema
from compactor.schemas.unify import render_schema

SNAPSHOTS_MAX = 100
METADATA_BYTES_MAX = 128 << 10

_SCHEMA_KEY = "lithify.schema"
"""The table property with the Arrow schema of all published rows."""


def arrow_schema_text(metadata: TableMetadataV2 | None) -> str | None:
    return None if metadata is None else metadata.properties.get(_SCHEMA_KEY)


@dataclass(frozen=True)
class NextMetadata:
    """A new snapshot of the table.

    Attributes:
        rows_schema: the Arrow schema of all published rows
        grace_ms: older snapshots are not listed
        table_uuid: of a new table"""

    location: str
    commit: Commit
    rows_schema: pa.Schema
    manifest_list: str
    at_ms: int
    grace_ms: int
    table_uuid: UUID

    def after(
        self, before: TableMetadataV2 | None, due: Sequence[DueStream], manifests: Sequence[ManifestFile]
    ) -> tuple[TableMetadataV2, bytes]:
        """The metadata, and its bytes. Lists as many snapshots as fit into them."""
        schema = self.commit.schema
        known = [] if before is None else before.schemas
        schemas = [*known, *([] if schema.schema_id in {each.schema_id for each in known} else [schema])]
        snapshot = Snapshot(
            snapshot_id=self.commit.snapshot_id,
            parent_snapshot_id=self.commit.parent_snapshot_id,
            sequence_number=self.commit.sequence_number,
            timestamp_ms=self.at_ms,
            manifest_list=self.manifest_list,
            summary=_summary(due, manifests, None if before is None else before.current_snapshot()),
            schema_id=schema.schema_id,
        )
        earlier = [] if before is None else before.snapshots
        recent = [each for each in earlier if each.timestamp_ms >= self.at_ms - self.grace_ms]
        kept = [*recent[len(recent) - (SNAPSHOTS_MAX - 1) if len(recent) >= SNAPSHOTS_MAX else 0 :], snapshot]
        while True:
            metadata = self._listing(before, schemas, schema, kept)
            body = metadata.model_dump_json().encode()
            if len(body) <= METADATA_BYTES_MAX or len(kept) == 1:
                return metadata, body
            kept = kept[(len(kept) + 9) // 10 :]

    def _listing(
        self, before: TableMetadataV2 | None, schemas: Sequence[Schema], schema: Schema, snapshots: list[Snapshot]
    ) -> TableMetadataV2:
        used = {schema.schema_id, *(each.schema_id for each in snapshots)}
        spec = self.commit.spec
        specs = [*(each for each in (before.partition_specs if before else ()) if each.spec_id != spec.spec_id), spec]
        return TableMetadataV2(
            location=self.location,
            table_uuid=self.table_uuid if before is None else before.table_uuid,
            last_updated_ms=self.at_ms,
            last_column_id=schema.highest_field_id,
            schemas=[each for each in schemas if each.schema_id in used],
            current_schema_id=schema.schema_id,
            partition_specs=specs,
            default_spec_id=spec.spec_id,
            last_partition_id=max(each.last_assigned_field_id for each in specs),
            properties=_properties(schema, self.rows_schema),
            current_snapshot_id=self.commit.snapshot_id,
            snapshots=snapshots,
            snapshot_log=[
                SnapshotLogEntry(snapshot_id=each.snapshot_id, timestamp_ms=each.timestamp_ms) for each in snapshots
            ],
            sort_orders=[UNSORTED_SORT_ORDER],
            default_sort_order_id=UNSORTED_SORT_ORDER.order_id,
            refs={"main": self._main()},
            last_sequence_number=self.commit.sequence_number,
        )

    def _main(self) -> SnapshotRef:
        return SnapshotRef.model_validate({"snapshot-id": self.commit.snapshot_id, "type": SnapshotRefType.BRANCH})


def next_schema(before: TableMetadataV2 | None, rows_schema: pa.Schema, partition_keys: tuple[str, ...]) -> Schema:
    """The current schema, or one with the next id. An id is never used again: manifests have it, too."""
    if before is None:
        return iceberg_schema(rows_schema, partition_keys)
    next_id = max(each.schema_id for each in before.schemas) + 1
    wanted = iceberg_schema(rows_schema, partition_keys, next_id)
    return before.schema() if before.schema() == wanted else wanted


def _properties(schema: Schema, rows_schema: pa.Schema) -> dict[str, str]:
    return {
        "gc.enabled": "false",
        "schema.name-mapping.default": create_mapping_from_schema(schema).model_dump_json(),
        _SCHEMA_KEY: render_schema(rows_schema),
    }


def _summary(due: Sequence[DueStream], manifests: Sequence[ManifestFile], before: Snapshot | None) -> Summary:
    """What the snapshot has changed, and its totals."""
    added = [file.file for each in due for file in each.changes.added]
    removed = [file.file for each in due for file in each.changes.removed]
    only_adds = not removed and not any(each.changes.marked for each in due)
    size = sum(file.size_bytes for file in added) - sum(file.size_bytes for file in removed)
    known = before.summary if before is not None else None
    data, deletes = _totals(manifests, ManifestContent.DATA), _totals(manifests, ManifestContent.DELETES)
    figures: Mapping[str, int] = {
        "added-data-files": len(added),
        "deleted-data-files": len(removed),
        "added-records": sum(file.rows for file in added),
        "deleted-records": sum(file.rows for file in removed),
        "total-data-files": data[0],
        "total-records": data[1],
        "total-delete-files": deletes[0],
        "total-position-deletes": deletes[1],
        "total-equality-deletes": 0,
        "total-files-size": size + (int(known.additional_properties["total-files-size"]) if known is not None else 0),
    }
    operation = Operation.APPEND if only_adds else Operation.OVERWRITE
    return Summary(operation, **{name: str(figure) for name, figure in figures.items()})


def _totals(manifests: Sequence[ManifestFile], content: ManifestContent) -> tuple[int, int]:
    """Live files and their rows."""
    of_kind = [each for each in manifests if each.content == content]
    return (
        sum((each.added_files_count or 0) + (each.existing_files_count or 0) for each in of_kind),
        sum((each.added_rows_count or 0) + (each.existing_rows_count or 0) for each in of_kind),
    )
