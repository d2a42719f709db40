"""Names that all packages share: table ids, partition values, operations, states, virtual columns."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from compactor.model.errors import Invalid

PARTITION_STREAM_POSITION = "partition_stream_position"
"""The default sort key: a virtual column that holds, for every row, its delta's stream position."""

PartitionValues = Mapping[str, str]
"""One string per partition key of a table; empty for a table without partition keys."""

_TABLE_ID = re.compile(r"(?P<owner>[^.]+)\.(?P<name>.+)\.V(?P<table_version>[1-9][0-9]{0,17})", re.DOTALL)


class Operation(StrEnum):
    """Whether a delta writes its rows or deletes their keys."""

    UPSERT = "upsert"
    DELETE = "delete"


class LifecycleState(StrEnum):
    """Of a stream version: unreleased -> active -> deprecated, never back."""

    UNRELEASED = "unreleased"
    ACTIVE = "active"
    DEPRECATED = "deprecated"


class SortOrder(StrEnum):
    """Which value of a sort key wins: the greatest (ascending) or the smallest (descending)."""

    ASCENDING = "ascending"
    DESCENDING = "descending"


class ContentType(StrEnum):
    """A tabular file format that PyArrow reads. The value is what users write."""

    PARQUET = "parquet"
    FEATHER = "feather"
    ORC = "orc"
    CSV = "csv"
    TSV = "tsv"
    JSON = "json"

    @property
    def file_suffix(self) -> str:
        """The file name suffix, without the dot."""
        return "arrow" if self is ContentType.FEATHER else self.value

    @property
    def is_text(self) -> bool:
        """Whether values are text without types: the types are known only after the whole file was read."""
        return self in {ContentType.CSV, ContentType.TSV, ContentType.JSON}


NOT_WRITTEN = frozenset({ContentType.JSON})
"""Content types that PyArrow reads and does not write."""


class OpenFormat(StrEnum):
    """A table format that other engines read, in which a table is published. The value is what users write."""

    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True)
class TableId:
    """`OWNER.NAME.Vn`, for example ACME.ORDERS.V1. Data, not a path: `compactor/storage/keys.py` encodes it."""

    owner: str
    name: str
    table_version: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `Invalid` for anything but OWNER.NAME.Vn with n from 1."""
        match = _TABLE_ID.fullmatch(text)
        if match is None:
            small = re.sub(r"\.v([1-9][0-9]*)$", r".V\1", text)
            meant = f" (did you mean {small}?)" if _TABLE_ID.fullmatch(small) else ""
            raise Invalid(f"{text!r} is not a table id{meant}: write OWNER.NAME.Vn, for example ACME.ORDERS.V1")
        return cls(match["owner"], match["name"], int(match["table_version"]))

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}.V{self.table_version}"


def render_partition(partition: PartitionValues) -> str:
    """A partition as text for people: `order_day=1995-04-03`, `region=EU/day=1`, or `(unpartitioned)`."""
    return "/".join(f"{key}={value}" for key, value in partition.items()) or "(unpartitioned)"


PARTITIONS_NAMED_MAX = 3


def by_values(partition: PartitionValues) -> tuple[str, ...]:
    """The key by which partitions are sorted."""
    return tuple(partition.values())


def no_such_partition(table_id: str, partition: PartitionValues, existing: Sequence[PartitionValues]) -> str:
    """The reason why a partition is refused, with some that exist."""
    shown = ", ".join(render_partition(each) for each in existing[:PARTITIONS_NAMED_MAX])
    more = len(existing) - PARTITIONS_NAMED_MAX
    there_are = f"there are {shown}{f' and {more:,} more' if more > 0 else ''}" if existing else "it has none yet"
    return f"{table_id} has no partition {render_partition(partition)}: {there_are}"


def is_unicode(value: object) -> bool:
    """Whether it is text with a UTF-8 form. Text with half of a surrogate pair has none, and fits into no log."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, for people: `1 row`, `12,000 rows`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
