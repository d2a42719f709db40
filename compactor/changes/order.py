"""The columns by which a feed orders its changes, as values that a compaction can compare.

Sources write positions as text: a counter of DMS, a number of Oracle, a file and a position of MySQL, a log sequence
number of SQL Server. Compared as text `00000.23` would be above `00000.123`, and text is no sort key.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.partition_transforms import is_text
from compactor.changes.change_batch import ChangeBatch
from compactor.model.arrow_types import value_type
from compactor.model.errors import Invalid

_NUMBER = r"^[+-]?[0-9]+$"
_NUMBERED_FILE = r"^.*\.[0-9]+$"
_SQL_SERVER_LSN = r"^[0-9a-fA-F]{8}:[0-9a-fA-F]{8}:[0-9a-fA-F]{4}$"
_SQL_SERVER_LSN_BYTES = 10
_LARGEST_NUMBER = pa.decimal128(38, 0)


def with_ordered_columns(changes: ChangeBatch, sort_columns: Sequence[str], declared: pa.Schema | None) -> ChangeBatch:
    """The changes with sort columns that can be compared. Raises `Invalid` for text that is no position."""
    rows = changes.rows
    for name in sort_columns:
        place = rows.column_names.index(name) if name in rows.column_names else None
        if place is None or not is_text(value_type(rows.column(place).type)):
            continue
        kind = declared.field(name).type if declared is not None and declared.get_field_index(name) >= 0 else None
        values = _ordered(rows.column(place).cast(pa.string()), kind, f"{changes.source_name}: column {name!r}")
        rows = rows.set_column(place, name, values)
    return replace(changes, rows=rows)


def _ordered(text: pa.ChunkedArray, kind: pa.DataType | None, what: str) -> pa.ChunkedArray:
    """Numbers for numbers and numbered files, bytes for log sequence numbers of SQL Server."""
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    try:
        if text.null_count == len(text):
            # As of a full load: which kind of position it is, later files say.
            return pa.chunked_array([pa.nulls(len(text), kind or pa.null())])
        if _all_are(text, _NUMBER):
            return text.cast(kind or _LARGEST_NUMBER)
        if _all_are(text, _NUMBERED_FILE):
            return pc.replace_substring_regex(text, r"^.*\.", "").cast(kind or pa.int64())
        if _all_are(text, _SQL_SERVER_LSN):
            raw = [
                None if each is None else bytes.fromhex(each)
                for each in pc.replace_substring(text, ":", "").to_pylist()
            ]
            return pa.chunked_array([pa.array(raw, pa.binary())]).cast(kind or pa.binary(_SQL_SERVER_LSN_BYTES))
        if kind is not None and not is_text(kind):
            return text.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(f"{what} cannot be read as {kind}: {error}") from error
    raise Invalid(f"{what} is text that is no position: order changes by a number, a time, or a position of the log")


def _all_are(text: pa.ChunkedArray, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(text, pattern), skip_nulls=True).as_py() is not False
