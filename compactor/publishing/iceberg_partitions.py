"""How a published table of Apache Iceberg is divided: its partition spec, and the values of a partition in it. Pure.

Every partition key is a text column of the table. A key that is derived from another column is a field of the spec with
its transform over that column where this is sure, so that engines prune by the column; else, as any other key, the
identity of its own column. What is sure can change with the table's types and properties, and the spec with it: its id
has a bit for each key that is a transform, and ids of fields follow from the key, so equal specs have equal ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.typedef import Record

from compactor.catalog.partition_split import Partitioning
from compactor.catalog.partition_transforms import Transform
from compactor.schemas.open_types import field_id

_FIRST_FIELD_ID = 1_000
_KEYS_WITH_A_BIT = 31


@dataclass(frozen=True)
class IcebergPartitions:
    """`derived`: the keys whose transforms are published, each with the transform and the type of its column."""

    keys: tuple[str, ...]
    derived: Mapping[str, tuple[Transform, pa.DataType]]

    @classmethod
    def of(cls, partitioning: Partitioning, rows: pa.Schema) -> Self:
        """`rows`: the schema of all published rows, of open types."""
        found = {
            key: (each, rows.field(each.column).type)
            for key, each in partitioning.transforms.items()
            if key in partitioning.keys[:_KEYS_WITH_A_BIT] and _is_sure(key, each, partitioning, rows)
        }
        return cls(partitioning.keys, found)

    @property
    def spec(self) -> PartitionSpec:
        bits = sum(1 << at for at, key in enumerate(self.keys) if key in self.derived)
        return PartitionSpec(*map(self._field, range(len(self.keys)), self.keys), spec_id=bits)

    def _field(self, at: int, key: str) -> PartitionField:
        if key not in self.derived:
            return PartitionField(field_id(key), _FIRST_FIELD_ID + at, IdentityTransform(), key)
        transform, _ = self.derived[key]
        width = "" if transform.width is None else f"[{transform.width}]"
        theirs = parse_transform(f"{transform.name}{width}")
        return PartitionField(
            field_id(transform.column), _FIRST_FIELD_ID + len(self.keys) + at, theirs, field_name(key)
        )

    def record(self, partition: Mapping[str, str]) -> Record:
        """The values of a partition, in the order of the spec's fields."""
        return Record(*(self._value(key, partition[key]) for key in self.keys))

    def _value(self, key: str, text: str) -> int | str | None:
        """A text that no value has is the default partition's, whose rows are null."""
        if key not in self.derived:
            return text
        transform, kind = self.derived[key]
        return transform.value_of(text, kind)


def field_name(key: str) -> str:
    """The name of a field with a transform: Iceberg refuses that of a column, and the key is one."""
    return f"{key}_partition"


def reasons_against_names(partitioning: Partitioning, rows: pa.Schema) -> list[str]:
    """Why rows with these columns cannot be published: engines refuse a partition field with the name of a column."""
    names = {name.casefold(): name for name in rows.names}
    return [
        f"column {names[field_name(key).casefold()]!r} has the name of the partition field of {key}: rename it"
        for key in partitioning.transforms
        if field_name(key).casefold() in names
    ]


def _is_sure(key: str, transform: Transform, partitioning: Partitioning, rows: pa.Schema) -> bool:
    """Whether every row of a partition has the partition's value, by Iceberg's transform of the published column.

    Not of a partition key, which no row needs to have; not if the default partition may hold both nulls and a value;
    not of decimals: a value means another one in a column of another scale, and deltas may have had one.
    """
    if transform.column in partitioning.keys or key in partitioning.mixed_keys:
        return False
    if transform.column not in rows.names:
        return False
    kind = rows.field(transform.column).type
    return not pa.types.is_decimal(kind) and transform.reason_against(kind) is None
