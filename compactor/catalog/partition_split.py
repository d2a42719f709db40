"""Divides rows among the partitions of a table, by the values of their partition columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.partition_transforms import IDENTITY, Transform
from compactor.model.errors import Invalid

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Partitioning:
    """How the rows of a table find their partitions.

    Attributes:
        transforms: of the keys that are derived from a column; every other key is a column
        default_partition: the value for rows whose column is null; None: they are refused"""

    keys: tuple[str, ...]
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    default_partition: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that say of which partition a row is."""
        return tuple(dict.fromkeys(self._transform(key).column for key in self.keys))

    @property
    def mixed_keys(self) -> frozenset[str]:
        """Derived keys whose default partition may hold rows with a value, too."""
        default = self.default_partition
        return frozenset(key for key, each in self.transforms.items() if default is not None and each.may_give(default))

    def takes_rows_of(self, other: Partitioning) -> bool:
        """Whether rows that lie by another partitioning lie by this one."""
        return not self.transforms or (self.transforms == other.transforms and other.mixed_keys <= self.mixed_keys)

    def reasons_against(self, columns: Sequence[str], partition: Mapping[str, str]) -> list[str]:
        """Why rows with these columns cannot be of a partition: columns are missing that would be null."""
        return [
            f"there is no column {each.column!r}, of which the partition's {key} is {each}: append the rows with it"
            for key, each in self.transforms.items()
            if each.column not in (*columns, *self.keys) and partition[key] != self.default_partition
        ]

    def split(self, rows: pa.Table, source_name: str) -> list[tuple[dict[str, str], Int64s]]:
        """The partitions that the rows are of, in the order of their values, and of each the row numbers, ascending.

        The value of a partition is the text of its column: of whole numbers, booleans and dates as Arrow writes them.

        Raises `Invalid`, with the row, for a column that is missing, null or of a type that has no one text.
        """
        if not self.keys:
            return [({}, np.arange(rows.num_rows))]
        columns = [self._values(rows, self._transform(key), source_name) for key in self.keys]
        if all(len(column.dictionary) == 1 for column in columns):  # as of most small files
            values = (column.dictionary[0].as_py() for column in columns)
            return [(dict(zip(self.keys, values, strict=True)), np.arange(rows.num_rows))]
        codes = np.zeros(rows.num_rows, np.int64)
        encoded = [(c.indices.to_numpy(zero_copy_only=False), c.dictionary.to_pylist()) for c in columns]
        for indices, texts in encoded:
            codes = renumbered(codes * len(texts) + indices) if len(self.keys) > 1 else indices
        order = np.argsort(codes.astype(np.min_scalar_type(int(codes.max(initial=0)))), kind="stable")
        begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
        found = []
        for numbers in np.split(order, begins[1:]) if len(begins) else []:
            values = (texts[indices[numbers[0]]] for indices, texts in encoded)
            found.append((dict(zip(self.keys, values, strict=True)), numbers))
        return sorted(_merged(found), key=lambda each: tuple(each[0].values()))

    def partition_of(self, rows: pa.Table, key: str, source_name: str) -> pa.DictionaryArray:
        """text (rows,): the values of one key."""
        return self._values(rows, self._transform(key), source_name)

    def _transform(self, key: str) -> Transform:
        return self.transforms.get(key) or Transform(IDENTITY, key)

    def _values(self, rows: pa.Table, transform: Transform, source_name: str) -> pa.DictionaryArray:
        name = transform.column
        if name not in rows.column_names:
            raise Invalid(f"{source_name} has no column {name!r}, by which its rows would find their partition")
        column = rows.column(name)
        reason = transform.reason_against(column.type)
        if reason is not None:
            raise Invalid(f"{source_name} cannot be divided among partitions: {reason}")
        plain = _plain(column)
        if plain.null_count:
            if self.default_partition is None:
                row = plain.is_null().index(True).as_py()
                raise Invalid(
                    f"{source_name} has no value of {name!r} in row {row + 1:,}: a row without it has no partition, "
                    "unless the table's property default_partition names one"
                )
            there = plain.is_valid().to_numpy(zero_copy_only=False)
            encoded = _encoded(transform, plain.drop_null(), np.flatnonzero(there), source_name)
            texts = pa.array([*encoded.dictionary.to_pylist(), self.default_partition], pa.string())
            numbers = np.full(len(plain), len(encoded.dictionary), np.int64)
            numbers[there] = encoded.indices.to_numpy(zero_copy_only=False)
            return pa.DictionaryArray.from_arrays(numbers, texts)
        return _encoded(transform, plain, range(len(plain)), source_name)


NO_PARTITIONS = Partitioning(())


def _encoded(transform: Transform, column: pa.Array, rows: Int64s | range, source_name: str) -> pa.DictionaryArray:
    """`rows`: their numbers in the source. Raises `Invalid` with the first row that fails."""
    try:
        encoded = transform.values(column).dictionary_encode()
        texts = transform.texts(encoded.dictionary)
        texts.validate(full=True)
    except (pa.ArrowInvalid, Invalid) as error:
        if len(column) > 1:  # the first half if that fails, too, else the second one
            half = len(column) // 2
            _encoded(transform, column[:half], rows[:half], source_name)
            _encoded(transform, column[half:], rows[half:], source_name)
        where = f"{source_name}: column {transform.column!r} has no partition in row {rows[0] + 1:,}"
        raise Invalid(f"{where}: {error}") from error
    return pa.DictionaryArray.from_arrays(encoded.indices, texts)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """In one piece, and no dictionary."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.array([], column.type)


def _merged(found: Sequence[tuple[dict[str, str], Int64s]]) -> list[tuple[dict[str, str], Int64s]]:
    """A value that is also the default partition's is one partition."""
    merged: dict[tuple[str, ...], list[Int64s]] = {}
    partitions = {tuple(partition.values()): partition for partition, _ in found}
    for partition, numbers in found:
        merged.setdefault(tuple(partition.values()), []).append(numbers)
    return [
        (partitions[values], numbers[0] if len(numbers) == 1 else np.sort(np.concatenate(numbers)))
        for values, numbers in merged.items()
    ]


def renumbered(codes: Int64s) -> Int64s:
    """The same codes from 0 on, without gaps, so that products of them stay small."""
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)
