"""The last change of each key of each partition. Pure.

A compaction keeps the last of a key's rows by the table's sort keys, then by stream position and place. So of the
changes in one batch all but the last are of no effect, and those that are left have a key once: whether the upserts or
the deletes of an entry come first makes no difference, and the order within a batch is exact.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.partition_split import Partitioning, renumbered
from compactor.changes.change_batch import ChangeBatch, Int64s, Refusals
from compactor.model.arrow_types import value_type
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid
from compactor.model.names import Operation, SortOrder
from compactor.schemas.cast import cast_column, joined

DENSE_SPREAD = 16
"""Keys that are whole numbers within so many times the number of rows are their own codes, without a hash table."""


def latest_changes(
    changes: Sequence[ChangeBatch],
    partitioning: Partitioning,
    primary_keys: Sequence[str],
    sort_keys: Sequence[SortKey],
) -> list[tuple[dict[str, str], pa.Table, Operation]]:
    """By partition, its upserts and its deletes, each in the order of their places. Deletes have key, partition and
    sort columns only.

    Args:
        changes: of each source, whole, in the order in which they are applied where sort keys do not decide
        sort_keys: columns that every source has"""
    rows = joined([(each.source_name, each.rows) for each in changes]).combine_chunks()
    deletes = np.concatenate([each.deletes for each in changes])
    sort_columns = [key.column for key in sort_keys]
    keyed = rows.select(list(dict.fromkeys([*primary_keys, *sort_columns])))
    of_delete = list(dict.fromkeys([*primary_keys, *partitioning.columns, *sort_columns]))
    found: list[tuple[dict[str, str], pa.Table, Operation]] = []
    for partition, numbers in partitioning.split(rows, changes[0].source_name):
        last = numbers[last_of_each_key(keyed.take(numbers), primary_keys, sort_keys)]
        upserts, deleted = last[~deletes[last]], last[deletes[last]]
        if len(upserts):
            found.append((partition, rows.take(upserts), Operation.UPSERT))
        if len(deleted):
            found.append((partition, rows.select(of_delete).take(deleted), Operation.DELETE))
    return found


def deletes_without_partition(
    changes: Sequence[ChangeBatch], partitioning: Partitioning
) -> tuple[list[ChangeBatch], pa.Table | None]:
    """The changes that say where their row is, and the rows of the deletes that do not; None: every change does."""
    placed: list[ChangeBatch] = []
    lost: list[tuple[str, pa.Table]] = []
    for each in changes:
        unknown = np.zeros(each.rows.num_rows, np.bool_)
        for name in partitioning.columns:
            if name not in each.rows.column_names:
                unknown[:] = True
            else:
                unknown |= np.asarray(each.rows.column(name).is_null().to_numpy(zero_copy_only=False), np.bool_)
        unknown &= each.deletes
        lost += [(each.source_name, each.rows.filter(pa.array(unknown)))] if unknown.any() else []
        if not unknown.all():
            rows = each.rows.filter(pa.array(~unknown)) if unknown.any() else each.rows
            placed.append(replace(each, rows=rows, deletes=each.deletes[~unknown], places=each.places[~unknown]))
    return placed, joined(lost) if lost else None


def refuse_incomplete(
    changes: ChangeBatch,
    partitioning: Partitioning,
    primary_keys: Sequence[str],
    sort_columns: Sequence[str],
    *,
    finds_keys: bool = False,
) -> None:
    """Raises `Invalid` for changes of which it is not known which row they are of, where it is, or, of a delete, when
    it was: with null it would be older than every row of its key. An upsert without order is of a full load.

    Args:
        finds_keys: a delete need not say where its row is"""
    refused = Refusals(changes.source_name)
    if not changes.rows.num_rows:
        return
    for name in (*primary_keys, *partitioning.columns, *sort_columns):
        if name not in changes.rows.column_names:
            if finds_keys and name not in {*primary_keys, *sort_columns} and changes.deletes.all():
                continue
            raise Invalid(f"{changes.source_name} has no column {name!r}, without which no change can be applied")
        missing = np.asarray(changes.rows.column(name).is_null().to_numpy(zero_copy_only=False), np.bool_)
        if name in primary_keys:
            refused.add(changes.places[missing].tolist(), f"the key column {name!r} has no value")
        elif name in partitioning.columns and partitioning.default_partition is None:
            missing = missing & ~changes.deletes if finds_keys else missing
            what = (
                "so its partition is not known (let the source log whole rows, as REPLICA IDENTITY FULL does, or say "
                "keys_are_global)"
            )
            refused.add(changes.places[missing].tolist(), f"{name!r} has no value, {what}")
        elif name in sort_columns:
            what = "and the table orders the rows of a key by it: the delete would be older than every row"
            refused.add(
                changes.places[missing & changes.deletes].tolist(), f"a delete has no value of {name!r}, {what}"
            )
    refused.raise_if_any()


def last_of_each_key(rows: pa.Table, primary_keys: Sequence[str], sort_keys: Sequence[SortKey]) -> Int64s:
    """Row numbers, ascending."""
    if rows.num_rows == 0:
        return np.zeros(0, np.int64)
    codes = codes_of_keys(rows, primary_keys)
    ranks = [_ranks(_decoded(rows.column(key.column)), key) for key in sort_keys]
    places = np.arange(rows.num_rows)
    if len(ranks) > 1 or (ranks and (ranks[0][1:] < ranks[0][:-1]).any()):
        places = np.lexsort(tuple(reversed(ranks)))
    last = np.full(int(codes.max()) + 1, -1, np.min_scalar_type(-len(codes)))
    last[codes[places]] = places  # of a code that is there again, NumPy keeps the last
    return np.sort(last[last >= 0]).astype(np.int64)


def codes_of_keys(rows: pa.Table, primary_keys: Sequence[str]) -> Int64s:
    """int64 (rows,): the same number for the same key, from 0 on, and below `DENSE_SPREAD` * rows."""
    codes = np.zeros(rows.num_rows, np.int64)
    for number, key in enumerate(primary_keys):
        column = _decoded(rows.column(key))
        if len(primary_keys) == 1 and rows.num_rows and _are_int64s(column):
            values = np.asarray(column.to_numpy(), np.int64)
            lowest = int(values.min())
            if int(values.max()) - lowest < DENSE_SPREAD * rows.num_rows:
                return values - lowest
        if pa.types.is_floating(column.type):
            column = pc.add(column.cast(pa.float64()), 0.0)  # -0.0 is the key 0.0
        encoded = column.combine_chunks().dictionary_encode()
        within = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = within if number == 0 else renumbered(codes * len(encoded.dictionary) + within)
    return codes


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without the source's dictionary, which may have a value twice."""
    return cast_column(column, value_type(column.type))


def _are_int64s(column: pa.ChunkedArray) -> bool:
    """Whole numbers that an int64 holds, none null."""
    return bool(pa.types.is_integer(column.type) and column.type != pa.uint64() and column.null_count == 0)


def _ranks(column: pa.ChunkedArray, key: SortKey) -> Int64s:
    """int64 (rows,): greater for what survives; null and NaN are the lowest of all, as in a compaction."""
    if _are_int64s(column):
        values = np.asarray(column.to_numpy(), np.int64)
        return values if key.order is SortOrder.ASCENDING else ~values
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    encoded = column.combine_chunks().dictionary_encode()
    ascending = pc.sort_indices(encoded.dictionary).to_numpy()
    in_order = ascending if key.order is SortOrder.ASCENDING else ascending[::-1]
    ranks = np.empty(len(in_order) + 1, np.int64)
    ranks[in_order], ranks[-1] = np.arange(1, len(in_order) + 1), 0
    places = encoded.indices.fill_null(len(in_order)).to_numpy(zero_copy_only=False)
    return np.asarray(ranks[places], np.int64)
