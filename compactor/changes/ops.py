"""Feeds of flat rows: a column says what each row does, and the others are the row. So are the files of AWS DMS."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.feed import Feed, FeedFormat
from compactor.changes.change_batch import ChangeBatch, Refusals, mask_of
from compactor.model.errors import Invalid

OPERATION_COLUMN = "op"
DMS_COLUMN = "Op"
DMS_UPSERTS, DMS_DELETES = ("I", "U"), ("D",)


def changes_of_rows(rows: pa.Table, feed: Feed, source_name: str) -> ChangeBatch:
    """Raises `Invalid`, with the rows, for values of the column that the feed does not name."""
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
    places = np.flatnonzero(~skips[codes])
    kept = rows.drop_columns([column])
    kept = kept if len(places) == rows.num_rows else kept.take(places)
    return ChangeBatch(source_name, kept, deletes[codes[places]], places)


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
