"""The checks of a delta's rows that its schema alone cannot answer. Pure.

partition  a column with the name of a partition key, or from which one is derived, has the partition's value
text       must be UTF-8; of a registered file most columns are not read, and not checked
marks      a column that marks deletes, in a delta of upserts, is reported: these rows are about to become live

Rows are given piece by piece as they are written, or, of a registered file, only the columns of `wanted`.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.feed import DELETES, IMAGES_BEFORE, UPSERTS
from compactor.catalog.partition_split import NO_PARTITIONS, Partitioning
from compactor.model.arrow_types import holds_text, value_type
from compactor.model.errors import Invalid
from compactor.model.files import ColumnStats
from compactor.model.names import Operation, PartitionValues, counted
from compactor.schemas.cast import cast_column

_MARKERS = frozenset(
    {"op", "_op", "__op", "op_type", "_op_type", "__deleted", "_change_type", "_change_operation_type", "_rowkind"}
)
"""Columns, in small letters, in which change feeds say what happened to a row: AWS DMS, Debezium, Delta Lake, OLake,
GoldenGate, Hudi, Flink."""

_IS_NO_ROW: Mapping[str, bool] = MappingProxyType(
    {
        **dict.fromkeys((*DELETES, *IMAGES_BEFORE, "true", "t", "truncate"), True),
        **dict.fromkeys((*UPSERTS, "false"), False),
    }
)
"""By the value of a marker, in small letters: whether its row is deleted, or is what was there before a change."""

_VALUES_MAX = 32
"""A column with more distinct values is no marker."""

_BEGINNING_OF_A_TIME = re.compile(r"\d{4}(-?\d\d(-?\d\d([T ]?\d\d(:?\d\d(:?\d\d)?)?)?)?)?")
"""A partition's value to which dates and times may belong: a year, a month, a day, an hour, a minute, a second."""


@dataclass
class _Marker:
    """A column that may say what happened to each row, with the number of rows of each of its values.

    Attributes:
        path: its name, or, of a field of a struct, both names
        is_envelope: whether a row is a change event of Debezium, and the columns are within it"""

    path: tuple[str, ...]
    is_envelope: bool
    counts: Counter[str | None] = field(default_factory=Counter)

    def add(self, rows: pa.Table) -> None:
        column = rows.column(self.path[0])
        for name in self.path[1:]:
            column = pc.struct_field(column, name)
        for each in pc.value_counts(cast_column(column, pa.string()).combine_chunks()).to_pylist():
            self.counts[each["values"]] += each["counts"]

    @property
    def is_one(self) -> bool:
        known = all(value is None or value.casefold() in _IS_NO_ROW for value in self.counts)
        return self.is_envelope or (known and len(self.counts) <= _VALUES_MAX)

    def warning(self, source_name: str) -> str | None:
        by_count = self.counts.most_common(_VALUES_MAX)
        each = ", ".join(f"{'null' if value is None else repr(value)} {count:,}" for value, count in by_count)
        name, rows = ".".join(self.path), sum(self.counts.values())
        if self.is_envelope:
            return (
                f"{source_name} seems to hold change events of Debezium (column {name!r}: {each}), and they are "
                "appended as they are, not the rows in them: if it does, take this delta back (lithify table retract), "
                "and append its events, as JSON lines, by --changes debezium, or append_changes"
            )
        marked = sum(self.counts[value] for value in self.counts if value and _IS_NO_ROW[value.casefold()])
        if not marked:
            return None
        return (
            f"column {name!r} of {source_name} seems to mark {counted(marked, 'row')} of {rows:,} as deleted or "
            f"replaced ({each}), and all of them are appended as upserts: if it does, take this delta back (lithify "
            f"table retract), and append it as changes: --changes {self._feed(name)}, or append_changes"
        )

    def _feed(self, column: str) -> str:
        """The feed by which these rows are applied, for a shell."""
        words = {"upserts": ["false"], "deletes": ["true"]} if {"true", "false"} & {*map(_small, self.counts)} else {}
        return shlex.quote(json.dumps({"format": "ops", "column": column, **words}, separators=(",", ":")))


class ArrivingRowsCheck:
    """The checks of one file, or of all rows of a writer: `add` raises `Invalid`, `warnings` is what is reported.

    Args:
        source_name: for messages
        is_published: whether other engines read the table: they would read a null as the partition's value"""

    def __init__(
        self,
        source_name: str,
        schema: pa.Schema,
        partition: PartitionValues,
        operation: Operation,
        *,
        is_published: bool = False,
        partitioning: Partitioning = NO_PARTITIONS,
    ) -> None:
        is_upsert = operation is Operation.UPSERT
        self._source_name = source_name
        self._schema = schema
        self._partition = {key: value for key, value in partition.items() if schema.get_field_index(key) >= 0}
        derived = {key: transform.column for key, transform in partitioning.transforms.items() if key in partition}
        self._derived = {key: column for key, column in derived.items() if schema.get_field_index(column) >= 0}
        self._partitioning, self._is_upsert, self._values = partitioning, is_upsert, partition
        self._nulls_differ = is_published and is_upsert
        self._text = [each.name for each in schema if holds_text(each.type)]
        self._markers = _markers(schema) if is_upsert else []
        self._rows = 0

    def wanted(self, bounds: Mapping[str, ColumnStats]) -> list[str]:
        """The columns whose values must be read of a file that has these bounds; of most files none."""
        keys = [key for key in self._partition if not self._is_settled(key, bounds.get(key))]
        return list(dict.fromkeys([*keys, *self._derived.values(), *(each.path[0] for each in self._markers)]))

    def add(self, rows: pa.Table) -> None:
        """Checks the next rows: of all columns, or of the wanted ones. Raises `Invalid`, with the row."""
        present = set(rows.column_names)
        for name in self._text:
            if name in present:
                self._check_text(name, rows.column(name))
        for key in self._partition:
            if key in present:
                self._check_partition(key, rows.column(key))
        for key, name in self._derived.items():
            if name in present:
                self._check_derived(key, name, rows)
        for marker in self._markers:
            marker.add(rows)
        self._markers = [each for each in self._markers if each.is_one]
        self._rows += rows.num_rows

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each column that marks deletes."""
        return tuple(each for marker in self._markers if (each := marker.warning(self._source_name)) is not None)

    def _check_text(self, name: str, column: pa.ChunkedArray) -> None:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Invalid(f"{self._source_name}: column {name!r} holds text that is not UTF-8: {error}") from error

    def _is_settled(self, key: str, stats: ColumnStats | None) -> bool:
        """Whether the bounds of the column show that every row has the partition's value."""
        if (
            stats is None
            or None in {stats.min_value, stats.max_value}
            or (self._nulls_differ and stats.null_count != 0)
        ):
            return False
        kind = value_type(self._schema.field(key).type)
        try:
            bounds = pa.chunked_array([pa.array([stats.min_value, stats.max_value]).cast(kind)])
        except pa.ArrowException:
            return False
        # The bounds of floats do not cover NaN.
        return not pa.types.is_floating(kind) and not pc.any(_differing(bounds, self._partition[key])).as_py()

    def _check_partition(self, key: str, column: pa.ChunkedArray) -> None:
        value = self._partition[key]
        differs = pc.fill_null(_differing(column, value), self._nulls_differ)
        position = pc.index(differs, pa.scalar(True)).as_py()
        if position >= 0:
            raise Invalid(
                f"{self._source_name} contradicts its partition {key}={value}: its column {key!r} is "
                f"{column[position].as_py()!r} in row {self._rows + position + 1:,}; append each row to its own "
                "partition, or rename the column"
            )

    def _check_derived(self, key: str, name: str, rows: pa.Table) -> None:
        """A delete may know no more than its key: its nulls are not checked."""
        known = rows if self._is_upsert else rows.filter(rows.column(name).is_valid())
        found = self._partitioning.partition_of(known, key, self._source_name)
        position = pc.index(pc.not_equal(found.cast(pa.string()), self._values[key]), pa.scalar(True)).as_py()
        if position >= 0:
            raise Invalid(
                f"{self._source_name} contradicts its partition {key}={self._values[key]}: its column {name!r} is "
                f"{known.column(name)[position].as_py()!r} in row {self._rows + position + 1:,}, which is of "
                f"{key}={found[position].as_py()}: append_rows finds the partition of each row"
            )


def _differing(column: pa.ChunkedArray, value: str) -> pa.ChunkedArray:
    """Which values are not the partition's; null for null. Dates and times are its values if it is their beginning;
    those of a zone, and nested values, are not compared."""
    kind = value_type(column.type)
    values = cast_column(column, kind)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return _none(values)
    if pa.types.is_temporal(kind):
        if getattr(kind, "tz", None) is not None or not _is_beginning(kind, value):
            return _none(values)
        digits = pc.replace_substring_regex(values.cast(pa.string()), "[^0-9]", "")
        return pc.invert(pc.starts_with(digits, re.sub(r"\D", "", value)))
    try:
        wanted = pa.scalar(value).cast(kind)
    except pa.ArrowException:
        return pc.is_valid(values)
    return pc.not_equal(values, wanted)


def _small(value: str | None) -> str | None:
    return None if value is None else value.casefold()


def _none(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(False), len(values))], pa.bool_())


def _is_beginning(kind: pa.DataType, value: str) -> bool:
    is_dated = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return is_dated and _BEGINNING_OF_A_TIME.fullmatch(value) is not None


def _markers(schema: pa.Schema) -> list[_Marker]:
    envelope = next((path for path in (("op",), ("payload", "op")) if _is_envelope(schema, path)), None)
    if envelope is not None:
        return [_Marker(envelope, is_envelope=True)]
    return [
        _Marker((each.name,), is_envelope=False)
        for each in schema
        if each.name.casefold() in _MARKERS and _may_mark(each.name, value_type(each.type))
    ]


def _may_mark(name: str, kind: pa.DataType) -> bool:
    return _is_text(kind) or (pa.types.is_boolean(kind) and name.casefold() == "__deleted")


def _is_envelope(schema: pa.Schema, path: tuple[str, ...]) -> bool:
    """Whether there are the fields of a change event of Debezium beside its `op`: rows in `before` or `after`."""
    fields = {each.name: value_type(each.type) for each in schema}
    for name in path[:-1]:
        within = fields.get(name)
        fields = {each.name: value_type(each.type) for each in within or ()} if _is_struct(within) else {}
    return _is_text(fields.get(path[-1])) and any(_is_struct(fields.get(name)) for name in ("before", "after"))


def _is_struct(kind: pa.DataType | None) -> bool:
    return bool(kind is not None and pa.types.is_struct(kind))


def _is_text(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
