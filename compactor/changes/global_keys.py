"""Global keys: a key has one row in all partitions, although its changes do not say where it was. Pure.

The rows that the table has of a batch's keys are looked up, and compared with the batch's by the table's sort keys: the
last one keeps the key, and every other partition that has it gets a delete, in the order of that last one. So a batch
may be given again, and an older one later; but a key whose delete came before its older upsert comes back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from compactor.catalog.partition_split import Partitioning
from compactor.changes.change_batch import Bools, ChangeBatch, Int64s
from compactor.changes.latest import codes_of_keys, last_of_each_key
from compactor.model.arrow_types import value_type
from compactor.model.counts import SortKey
from compactor.model.names import Operation
from compactor.schemas.cast import cast_column

Parts = Sequence[tuple[dict[str, str], pa.Table, Operation]]

_PLACE = SortKey(column="__place_in_the_batch")
"""Between changes with equal sort values, such as the two of a row that moves, the later one wins."""


def with_places(changes: Sequence[ChangeBatch]) -> list[ChangeBatch]:
    """With a column that numbers the rows of all sources, which the last of `sort_keys_with_place` names."""
    numbered, first = [], 0
    for each in changes:
        places = pa.array(np.arange(first, first + each.rows.num_rows))
        numbered.append(replace(each, rows=each.rows.append_column(_PLACE.column, places)))
        first += each.rows.num_rows
    return numbered


def sort_keys_with_place(sort_keys: Sequence[SortKey]) -> list[SortKey]:
    return [*sort_keys, _PLACE]


def without_places(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([_PLACE.column])


@dataclass(frozen=True)
class _Held:
    """Rows of keys and where they are. `partitions`: numbers of them, -1: not known; `is_row`: no delete."""

    rows: pa.Table
    partitions: Int64s
    is_row: Bools


def deletes_elsewhere(
    parts: Parts,
    without_partition: pa.Table | None,
    living: pa.Table | None,
    partitioning: Partitioning,
    primary_keys: Sequence[str],
    sort_keys: Sequence[SortKey],
) -> list[tuple[dict[str, str], pa.Table]]:
    """By partition, the deletes of keys that another partition has now, or that are gone.

    Args:
        parts: of a batch, with each key once in a partition, and with places
        without_partition: deletes of a batch that say no partition, with places
        living: rows of the table, with key, sort and partition columns"""
    order = sort_keys_with_place(sort_keys)
    columns = list(dict.fromkeys([*primary_keys, *(key.column for key in order)]))
    known: list[dict[str, str]] = []
    held: list[_Held] = []

    def add(rows: pa.Table, partition: dict[str, str] | None, *, is_row: bool) -> None:
        number = -1
        if partition is not None:
            number = known.index(partition) if partition in known else len(known)
            known.extend([partition] if number == len(known) else [])
        count = rows.num_rows
        held.append(_Held(without_dictionaries(rows.select(columns)), np.full(count, number), np.full(count, is_row)))

    if living is not None and living.num_rows:
        living = living.append_column(_PLACE.column, pa.nulls(living.num_rows, pa.int64()))
        for partition, numbers in partitioning.split(living, "the table"):
            add(living.take(numbers), partition, is_row=True)
    of_table = sum(each.rows.num_rows for each in held)
    for partition, rows, operation in parts:
        add(rows, partition, is_row=operation is Operation.UPSERT)
    if without_partition is not None:
        add(without_partition, None, is_row=False)
    if not held:
        return []
    rows = pa.concat_tables([each.rows for each in held], promote_options="permissive").combine_chunks()
    found = _deletes(rows, held, known, of_table, primary_keys, order)
    return [(partition, without_places(deletes)) for partition, deletes in found]


def _deletes(
    rows: pa.Table,
    held: Sequence[_Held],
    known: Sequence[dict[str, str]],
    of_table: int,
    primary_keys: Sequence[str],
    sort_keys: Sequence[SortKey],
) -> list[tuple[dict[str, str], pa.Table]]:
    partitions = np.concatenate([each.partitions for each in held])
    is_row = np.concatenate([each.is_row for each in held])
    codes = codes_of_keys(rows, primary_keys)
    last = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    winners = last_of_each_key(rows, primary_keys, sort_keys)
    last[codes[winners]] = winners
    winner = last[codes]
    in_batch = np.zeros(len(last), np.bool_)
    in_batch[codes[of_table:]] = True
    loses = is_row & in_batch[codes] & (partitions != partitions[winner])
    found = []
    for number, partition in enumerate(known):
        losers = np.flatnonzero(loses & (partitions == number))
        if len(losers):
            # A key is there twice if the table and the batch have it in the same partition.
            _, firsts = np.unique(codes[losers], return_index=True)
            found.append((partition, rows.take(winner[losers[np.sort(firsts)]])))
    return found


def without_dictionaries(rows: pa.Table) -> pa.Table:
    """Columns that are encoded by a dictionary cannot be joined with others."""
    return pa.table([cast_column(column, value_type(column.type)) for column in rows.columns], rows.column_names)
