"""The words that cross rooms: table ids, partition values, operations, states, and names of virtual columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from compactor.errors import Invalid

PARTITION_STREAM_POSITION = "partition_stream_position"
"""The default sort key: a virtual column that holds, for every row, its delta's stream position."""

PartitionValues = Mapping[str, str]
"""One string per partition key of a table; empty for a table without partition keys."""

_TABLE_ID = re.compile(r"(?P<owner>[^.]+)\.(?P<name>.+)\.V(?P<table_version>[1-9][0-9]*)", re.DOTALL)


class Operation(StrEnum):
    """What a delta does with its rows."""

    UPSERT = "upsert"
    DELETE = "delete"


class LifecycleState(StrEnum):
    """Of a stream version: unreleased -> active -> deprecated, never back."""

    UNRELEASED = "unreleased"
    ACTIVE = "active"
    DEPRECATED = "deprecated"


class SortOrder(StrEnum):
    """Which end of a sort key's order is last, and so wins: the greatest value (ascending) or the smallest."""

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
        """What a file of this type is called after its dot."""
        return "arrow" if self is ContentType.FEATHER else self.value

    @property
    def is_text(self) -> bool:
        """Whether values are text without types: what a file holds is known when all of it was read."""
        return self in {ContentType.CSV, ContentType.TSV, ContentType.JSON}


@dataclass(frozen=True)
class TableId:
    """`OWNER.NAME.Vn`, for example ACME.CUSTOMER_ORDERS.V1. Data, not a path: `catalog/paths.py` encodes it."""

    owner: str
    name: str
    table_version: int

    @classmethod
    def parse(cls, text: str) -> TableId:
        """Raises `Invalid` for anything but OWNER.NAME.Vn with n from 1."""
        match = _TABLE_ID.fullmatch(text)
        if match is None:
            raise Invalid(f"{text!r} is not a table id: write OWNER.NAME.Vn, for example ACME.ORDERS.V1")
        return cls(match["owner"], match["name"], int(match["table_version"]))

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}.V{self.table_version}"


def render_partition(partition: PartitionValues) -> str:
    """A partition for a person's eyes: `order_day=1995-04-03`, `region=EU/day=1`, or `(unpartitioned)`."""
    return "/".join(f"{key}={value}" for key, value in partition.items()) or "(unpartitioned)"
