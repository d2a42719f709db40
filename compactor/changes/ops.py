"""Feeds of flat rows: a column says what each row does, and the others are the row. So are the files of AWS DMS."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.feed import Feed, FeedFormat
from compactor.changes.change_batch import Bools, ChangeBatch, FeedColumns, Int64s, Refusals, mask_of
from compactor.changes.latest import codes_of_keys
from compactor.model.errors import Invalid

OPERATION_COLUMN = "op"
DMS_COLUMN = "Op"
_NONE: Int64s = np.zeros(0, np.int64)
DMS_UPSERTS, DMS_DELETES = ("I", "U"), ("D",)


def changes_of_rows(rows: pa.Table, feed: Feed, source_name: str, columns: FeedColumns | None = None) -> ChangeBatch:
    """Raises `Invalid`, with the rows, for values of the column that the feed does not name. `columns`: by which a row
    that moves is deleted where it was, as the row before its update says; None: that is left out."""
    column = feed.column or OPERATION_COLUMN
    if column not in rows.column_names:
        raise Invalid(
            f"{source_name} has no column {column!r}, which says what each row does: name it in the feed, as in "
            '{"format": "ops", "column": "operation"}'
        )
    said = rows.column(column).cast(pa.string()).combine_chunks().dictionary_encode(null_encoding="encode")
    try:
        words = pc.utf8_lower(said.dictionary)
    except pa.ArrowInvalid as error:
        raise Invalid(f"{source_name}: column {column!r} holds text that is not UTF-8: {error}") from error
    upserts, deletes, skips = (
        mask_of(pc.is_in(words, pa.array([each.lower() for each in given], pa.string())))
        for given in (feed.upserts, feed.deletes, feed.skips)
    )
    codes = said.indices.to_numpy()
    refused = Refusals(source_name)
    for number in np.flatnonzero(~(upserts | deletes | skips)).tolist():
        word = said.dictionary[number].as_py()
        refused.add(codes == number, f"{column} is {word!r}, which is neither an upsert nor a delete")
    refused.raise_if_any()
    kept = rows.drop_columns([column])
    moved, pairs = _moved(kept, skips[codes], upserts[codes], columns) if columns and skips.any() else (_NONE, _NONE)
    places = np.sort(np.concatenate([np.flatnonzero(~skips[codes]), moved]))
    if len(places) == rows.num_rows and not len(moved):
        return ChangeBatch(source_name, kept, deletes[codes], places)
    taken = kept.take(places)
    ordered_as = np.arange(rows.num_rows)
    ordered_as[moved] = pairs
    for name in {*(columns.order if columns else ())}.intersection(taken.column_names) if len(moved) else ():
        taken = taken.set_column(taken.column_names.index(name), name, kept.column(name).take(ordered_as[places]))
    return ChangeBatch(source_name, taken, deletes[codes[places]] | np.isin(places, moved), places)


def _moved(rows: pa.Table, before: Bools, upserts: Bools, columns: FeedColumns) -> tuple[Int64s, Int64s]:
    """The numbers of rows before an update that was to another partition, and those of the rows after it.

    The row after an update is the next one of its key. Of that, columns that are partition columns, too, are left out.
    """
    keys = [name for name in columns.needed if name not in columns.placed]
    if not keys or not columns.placed or not {*columns.needed} <= {*rows.column_names}:
        return _NONE, _NONE
    there = np.ones(rows.num_rows, np.bool_)
    for name in (*keys, *(each for each in columns.placed if not columns.needed[each])):
        there &= mask_of(rows.column(name).is_valid())
    numbers = np.flatnonzero(there)
    codes = codes_of_keys(rows.select(keys).take(numbers), keys)
    by_key = np.argsort(codes, kind="stable")
    first, following = numbers[by_key[:-1]], numbers[by_key[1:]]
    pairs = np.flatnonzero((np.diff(codes[by_key]) == 0) & before[first] & upserts[following])
    first, following = first[pairs], following[pairs]
    differ = np.zeros(len(pairs), np.bool_)
    for name in columns.placed:
        was, now = (rows.column(name).take(each) for each in (first, following))
        differ |= ~mask_of(pc.equal(was, now)) & ~(mask_of(was.is_null()) & mask_of(now.is_null()))
    return first[differ], following[differ]


def changes_of_dms(rows: pa.Table, source_name: str) -> ChangeBatch:
    """Rows of a file of DMS. Without the column `Op` it is of the full load: every row is an upsert."""
    named = next((name for name in rows.column_names if name.casefold() == DMS_COLUMN.casefold()), None)
    if named is None:
        return ChangeBatch(source_name, rows, np.zeros(rows.num_rows, np.bool_), np.arange(rows.num_rows))
    return changes_of_rows(
        rows,
        Feed(format=FeedFormat.OPS, column=named, upserts=DMS_UPSERTS, deletes=DMS_DELETES, skips=()),
        source_name,
    )
