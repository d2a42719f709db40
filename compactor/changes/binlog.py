"""Change events of MySQL's binlog, as JSON: those of Maxwell, and flat messages of Canal.

Both have the row after a change in `data` and, of an update, the earlier values of what changed in `old`, so that a row
which moves to another partition, or gets another key, is deleted where it was.

A column named `__source_xid` is the event's field `xid`: so may the table's sort keys be called. `__source_file` and
`__source_pos` are the two parts of Maxwell's `position`.
"""

import base64
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.partition_transforms import is_binary, is_text
from compactor.changes.change_batch import OR_DROPPED, Bools, ChangeBatch, FeedColumns, Int64s, Refusals, mask_of
from compactor.changes.conversion import converted
from compactor.changes.debezium import OF_SOURCE
from compactor.changes.debezium_values import DECIMAL_DIGITS_MAX
from compactor.changes.json_lines import as_written, event_of, exact_json, read_events, text_fields, text_lines_of
from compactor.model.errors import Invalid
from compactor.schemas.cast import cast_column, joined

_UPSERTS = ("insert", "update", "bootstrap-insert")
_DELETES = ("delete",)
_IMAGES = ("data", "old")
_NO_CHANGES = ("bootstrap-start", "bootstrap-complete")
_LAST_OF_ITS_TRANSACTION = (1 << 63) - 1
"""Maxwell gives no `xoffset` to the row that ends a transaction, which is its last."""


_Texts = tuple[Sequence[bytes], Int64s, Int64s | None]
"""Lines, and the line and place there of each row; None: each event is of one row."""


def changes_of_maxwell(body: bytes, columns: FeedColumns, source_name: str) -> ChangeBatch:
    """Raises `Invalid`, with the rows, for events that change no row, and for rows of which a value is missing."""
    lines, numbers = _lines(body, source_name)
    if not lines:
        return _nothing(source_name)
    declared = columns.declared
    typed = [] if declared is None else [(each.name, _wire_type(each.type)) for each in _columns(declared)]
    rows = [(name, pa.struct(typed)) for name in _IMAGES] if typed else []
    first = event_of(lines[0], int(numbers[0]), source_name)
    schema, texts_of = pa.schema([*text_fields(first, _IMAGES), *rows]), [name for name, kind in typed if is_text(kind)]
    events = read_events(lines, numbers, schema, source_name, images=_IMAGES, fixed=partial(_readable, names=texts_of))
    upserts, deletes = _operations(events, numbers, source_name)
    is_row = upserts | deletes
    after = _typed(columns.left(_rows(events, "data", is_row)), declared, numbers[is_row], source_name)
    before = _typed(columns.left(_rows(events, "old", is_row)), declared, numbers[is_row], source_name)
    updates = _is(_words(events), ("update",))
    texts = (lines, np.flatnonzero(is_row), None)
    _refuse_partial(after, texts, numbers[is_row], updates[is_row], columns, source_name)
    order = _order_columns(events.filter(pa.array(is_row)), columns.order, source_name)
    found = _Rows(after, before, deletes[is_row], numbers[is_row])
    return _batch(found, order, columns.needed, texts, source_name)


def _readable(lines: Sequence[bytes], names: Collection[str]) -> Sequence[bytes]:
    """Without `primary_key`, a list of values of any type, and with MySQL's columns of JSON, which Maxwell writes as
    that, as text where the table declares it. `names`: of the table's columns of text."""
    events = [_exact_event(line) for line in lines]
    rows = [row for event in events for name in _IMAGES if isinstance(row := event.get(name), dict)]
    of_json = {name for row in rows for name in names if type(row.get(name)) not in (str, NoneType)}

    def written(line: bytes, event: dict[str, Any]) -> bytes:
        try:
            for row in (event[name] for name in _IMAGES if isinstance(event.get(name), dict)):
                row |= {name: as_written(row[name]).decode() for name in of_json if row.get(name) is not None}
            return as_written({name: event[name] for name in event if name != "primary_key"}) if event else line
        except (ValueError, RecursionError):  # half a character, which the reader refuses
            return line

    return list(map(written, lines, events))


def _exact_event(line: bytes) -> dict[str, Any]:
    """Empty for what is none, as the reader finds."""
    try:
        event = exact_json(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def changes_of_canal(body: bytes, columns: FeedColumns, source_name: str) -> ChangeBatch:
    """See `changes_of_maxwell`. Values are text: their types are the table's, else those of `mysqlType`."""
    lines, numbers = _lines(body, source_name)
    if not lines:
        return _nothing(source_name)
    events = _messages(lines, numbers, source_name)
    upserts, deletes = _operations(events, numbers, source_name)
    places, within, before_at = _places_of_rows(events, (numbers, upserts | deletes), source_name)
    after, before = (
        columns.left(_rows_of_lists(events, name, at)) for name, at in (("data", None), ("old", before_at))
    )
    declared, updates = columns.declared, _is(_words(events), ("update",))[places]
    _refuse_partial(after, (lines, places, within), numbers[places], updates, columns, source_name)
    types = _types_of_mysql(events)
    after = _typed(after, declared, numbers[places], source_name, types)
    before = _typed(before, declared, numbers[places], source_name, types)
    fields = events.drop_columns([*_IMAGES, *({"mysqlType", "sqlType"} & {*events.column_names})])
    order = _order_columns(fields.take(places), columns.order, source_name)
    found = _Rows(after, before, deletes[places], numbers[places])
    return _batch(found, order, columns.needed, (lines, places, within), source_name)


def _messages(lines: Sequence[bytes], numbers: Int64s, source_name: str) -> pa.Table:
    """The messages of one table, with lists of rows of text in `data` and `old`."""
    first = event_of(lines[0], int(numbers[0]), source_name)
    given = first.get("data")
    names = dict.fromkeys(given[0]) if isinstance(given, list) and given and isinstance(given[0], dict) else {}
    while True:
        rows = pa.list_(pa.struct([(name, pa.string()) for name in names]))
        explicit = [*text_fields(first, _IMAGES), *((name, rows) for name in _IMAGES)]
        events = read_events(lines, numbers, pa.schema(explicit), source_name)
        found = (each.name for name in _IMAGES for each in events.schema.field(name).type.value_type)
        more = dict.fromkeys(name for name in found if name not in names)
        if not more:
            return events
        names |= more  # of later messages: Arrow has made of their text what it looks like


def _places_of_rows(
    events: pa.Table, changes: tuple[Int64s, Bools], source_name: str
) -> tuple[Int64s, Int64s, pa.Array]:
    """Of each row of `data` its event, its place there, and that of its earlier values in all of `old`; null: it has
    none. `changes`: the numbers of the events, and which of them change rows."""
    numbers, are_changes = changes
    rows, earlier = (_lengths(events.column(name)) for name in ("data", "old"))
    refused = Refusals(source_name)
    refused.add(numbers[are_changes & (rows == 0)].tolist(), "its data has no rows")
    refused.add(numbers[(earlier > 0) & (earlier != rows)].tolist(), "its old has not as many rows as its data")
    refused.raise_if_any()
    places = np.repeat(np.arange(len(rows)), rows)
    within = np.arange(len(places)) - np.repeat(np.cumsum(rows) - rows, rows)
    before_at = (np.cumsum(earlier) - earlier)[places] + within
    return places, within, pa.array(before_at, mask=earlier[places] == 0)


def _lengths(lists: pa.ChunkedArray) -> Int64s:
    return np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy(), np.int64)


def _rows_of_lists(events: pa.Table, name: str, at: pa.Array | None) -> pa.Table:
    """The rows of all lists. `at`: those that are wanted, if not all are."""
    rows = events.column(name).combine_chunks().flatten()
    rows = rows if at is None else rows.take(at)
    return pa.table({each.name: pa.chunked_array([pc.struct_field(rows, each.name)]) for each in rows.type})


def _has_null(rows: pa.Table) -> Bools:
    found = np.zeros(rows.num_rows, np.bool_)
    for column in rows.columns:
        if column.null_count:
            found |= mask_of(column.is_null())
    return found


def _types_of_mysql(events: pa.Table) -> dict[str, str]:
    """The types that the last messages name, by column."""
    if "mysqlType" not in events.column_names or not pa.types.is_struct(events.schema.field("mysqlType").type):
        return {}
    told = events.column("mysqlType").combine_chunks()
    last = {each.name: pc.struct_field(told, each.name).drop_null()[-1:].to_pylist() for each in told.type}
    return {name: str(kind) for name, kinds in last.items() for kind in kinds}


def _lines(body: bytes, source_name: str) -> tuple[list[bytes], Int64s]:
    """The events, and their numbers from 0."""
    lines = text_lines_of(body, source_name)
    if all(lines):
        return lines, np.arange(len(lines))
    return [line for line in lines if line], np.array([at for at, line in enumerate(lines) if line], np.int64)


def _nothing(source_name: str) -> ChangeBatch:
    return ChangeBatch(source_name, pa.table({}), np.zeros(0, np.bool_), np.zeros(0, np.int64))


def _operations(events: pa.Table, numbers: Int64s, source_name: str) -> tuple[Bools, Bools]:
    """Which events are upserts and which deletes. Raises `Invalid` for those that are neither."""
    if "type" not in events.column_names:
        raise Invalid(f"{source_name} has no field 'type', which says what each event does")
    said = _words(events)
    upserts, deletes, nothing = (_is(said, words) for words in (_UPSERTS, _DELETES, _NO_CHANGES))
    known = upserts | deletes | nothing
    refused = Refusals(source_name)
    words = events.column("type")
    for word in pc.unique(words.filter(pa.array(~known))).to_pylist():
        of_word = mask_of(pc.is_null(words) if word is None else pc.equal(words, word))
        refused.add(numbers[of_word].tolist(), f"it is no change of a row (type {word!r})")
    if "isDdl" in events.column_names:
        is_ddl = mask_of(events.column("isDdl").cast(pa.bool_()))
        refused.add(numbers[is_ddl & known].tolist(), "it is a change of the schema (isDdl)")
    refused.raise_if_any()
    return upserts, deletes


def _words(events: pa.Table) -> pa.DictionaryArray:
    return events.column("type").cast(pa.string()).combine_chunks().dictionary_encode()


def _is(said: pa.DictionaryArray, words: Sequence[str]) -> Bools:
    known = mask_of(pc.is_in(pc.utf8_lower(said.dictionary), pa.array(words)))
    found: Bools = np.append(known, False)[said.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)]
    return found


def _rows(events: pa.Table, name: str, is_row: Bools) -> pa.Table:
    if name not in events.column_names or not pa.types.is_struct(events.schema.field(name).type):
        return pa.table({})
    struct = events.column(name).combine_chunks()
    struct = struct if is_row.all() else struct.filter(pa.array(is_row))
    return pa.table({each.name: pc.struct_field(struct, each.name) for each in struct.type})


def _columns(declared: pa.Schema) -> list[pa.Field]:
    return [each for each in declared if not each.name.startswith(OF_SOURCE)]


def _names(declared: pa.Schema | None) -> list[str]:
    return [] if declared is None else [each.name for each in _columns(declared)]


# ------------------------------------------------------------------------------------------------------------- values


def _wire_type(kind: pa.DataType) -> pa.DataType:
    """The type by which JSON is read, of a declared one: times, dates and bytes are text in it, a bool is 0 or 1."""
    if pa.types.is_boolean(kind):
        return pa.int64()
    return pa.string() if pa.types.is_temporal(kind) or is_binary(kind) else kind


def _typed(
    rows: pa.Table,
    declared: pa.Schema | None,
    numbers: Int64s,
    source_name: str,
    types: Mapping[str, str] | None = None,
) -> pa.Table:
    """The rows with the types of the table, else of the source. `types`: of MySQL's, where values are text."""
    for at, name in enumerate(rows.column_names):
        if declared is not None and declared.get_field_index(name) >= 0:
            kind, of = declared.field(name).type, "declared as"
        else:
            kind, of = rows.column(at).type, ""
            if types is not None:
                kind, of = arrow_type(types.get(name, "")), f"{types.get(name)} in MySQL (declare text to keep it), so"
        what = f"column {name!r} is {of} {kind}"
        if is_binary(kind) and pa.types.is_string(rows.column(at).type):
            convert = partial(_bytes, kind=kind, what=what, is_base64=types is None)
        else:
            convert = partial(_cast, kind=kind, what=what)
        rows = rows.set_column(at, name, converted(rows.column(at), convert, numbers, source_name))
    return rows


def _bytes(values: pa.ChunkedArray, kind: pa.DataType, what: str, *, is_base64: bool) -> pa.ChunkedArray:
    """Maxwell writes bytes in base64, Canal a character for each byte."""
    try:
        found = [
            None if each is None else base64.b64decode(each, validate=True) if is_base64 else each.encode("latin-1")
            for each in values.to_pylist()
        ]
        return pa.chunked_array([pa.array(found, kind)])
    except ValueError as error:
        raise Invalid(f"{what}, and is text that holds no bytes: {error}") from error


def _cast(values: pa.ChunkedArray, kind: pa.DataType, what: str) -> pa.ChunkedArray:
    if values.type == kind:
        return values
    try:
        if pa.types.is_boolean(kind) and pa.types.is_string(values.type):
            return values.cast(pa.int64()).cast(kind)
        if pa.types.is_date(kind) and pa.types.is_string(values.type):
            return pc.replace_substring_regex(values, _MIDNIGHT, "").cast(kind)
        return cast_column(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(f"{what}, and cannot be read as that: {error}") from error


_MIDNIGHT = r" 00:00:00(\.0+)?$"
"""The time of day of a time that is a date."""

_KINDS: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year"), pa.int64()),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    **dict.fromkeys(("datetime", "timestamp"), pa.timestamp("us")),
}
_SIZES = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def arrow_type(mysql_type: str) -> pa.DataType:
    """Of a column of MySQL, such as `decimal(10,2)` or `bigint(20) unsigned`. Text for what has no such type here."""
    word = re.split(r"[ (]", mysql_type.strip().lower())[0]
    if word in ("decimal", "numeric"):
        sizes = _SIZES.search(mysql_type)
        digits, scale = (int(sizes[1]), int(sizes[2] or 0)) if sizes else (10, 0)
        return pa.decimal128(digits, scale) if digits <= DECIMAL_DIGITS_MAX else pa.string()
    if word == "bigint" and "unsigned" in mysql_type.lower():
        return pa.uint64()
    return _KINDS.get(word, pa.string())


# -------------------------------------------------------------------------------------------------------------- order


def _order_columns(events: pa.Table, sort_columns: Sequence[str], source_name: str) -> dict[str, pa.ChunkedArray]:
    """Raises `Invalid` if none of the events has one."""
    found: dict[str, pa.ChunkedArray] = {}
    for name in sort_columns:
        if not name.startswith(OF_SOURCE):
            continue
        field = name.removeprefix(OF_SOURCE)
        if field in ("file", "pos") and "position" in events.column_names:
            parts = pc.split_pattern(events.column("position"), ":", max_splits=1, reverse=True).combine_chunks()
            found[name] = pc.list_element(parts, int(field == "pos"))
        elif field in events.column_names:
            found[name] = _with_last_offsets(events, field)
        else:
            raise Invalid(
                f"the changes of {source_name} have no {field!r}, by which the table orders the rows of a key"
            )
    return found


def _with_last_offsets(events: pa.Table, field: str) -> pa.ChunkedArray:
    values = events.column(field)
    if field != "xoffset" or "commit" not in events.column_names:
        return values
    is_last = pc.and_(events.column("commit").fill_null(False), values.is_null())
    return pc.if_else(is_last, pa.scalar(_LAST_OF_ITS_TRANSACTION, values.type), values)


# ------------------------------------------------------------------------------------------------------- whole changes


def _partial(missing: Collection[str]) -> str:
    names = ", ".join(repr(name) for name in sorted(missing))
    return (
        f"the update has no {names}, so the row is not known whole: set binlog_row_image=FULL (and output_nulls=true "
        f"in Maxwell), {OR_DROPPED}"
    )


def _refuse_partial(
    after: pa.Table, texts: _Texts, numbers: Int64s, updates: Bools, columns: FeedColumns, source_name: str
) -> None:
    """Raises `Invalid` for updates that lack a column which an earlier row of the file or the table has. A value that
    is null may be one that is not there, so the text of such a row is read again.

    Args:
        numbers: of the events of the rows
        updates: bool (rows,)"""
    lines, places, within = texts
    of_table = {*_names(columns.declared)}.difference(columns.without)
    known = of_table.union(after.column_names)
    may_lack = _has_null(after) | (len(known) > after.num_columns)
    if not (may_lack & updates).any():
        return
    refused, seen = Refusals(source_name), of_table
    for at, is_update in enumerate(updates.tolist()):
        if not may_lack[at] or (seen == known and not is_update):
            seen = known
            continue
        data = json.loads(lines[places[at]]).get("data") or ()
        there = known & {*(data if within is None else data[within[at]])}
        if is_update and not seen <= there:
            refused.add([int(numbers[at])], _partial(seen - there))
        seen = seen | there
    refused.raise_if_any()


@dataclass(frozen=True)
class _Rows:
    """What events say of rows; of a delete `after` is the row before it.

    Attributes:
        before: null: the column had the same value, or null
        deletes: bool (rows,)
        numbers: int64 (rows,): of their events"""

    after: pa.Table
    before: pa.Table
    deletes: Bools
    numbers: Int64s


def _batch(
    found: _Rows,
    order: Mapping[str, pa.ChunkedArray],
    needed: Mapping[str, bool],
    texts: _Texts,
    source_name: str,
) -> ChangeBatch:
    after, deletes, numbers = found.after, found.deletes, found.numbers
    moved, old = np.zeros(after.num_rows, np.bool_), after
    for name, may_be_null in needed.items():
        if name not in found.before.column_names or name not in after.column_names:
            continue
        earlier, now = found.before.column(name), after.column(name)
        is_told = mask_of(earlier.is_valid())
        changed = is_told & ~mask_of(pc.equal(earlier, now))
        if may_be_null:
            was_null = _was_null(name, ~is_told & mask_of(now.is_valid()) & ~deletes, texts)
            is_told, changed = is_told | was_null, changed | was_null
        moved |= changed & ~deletes
        was = pc.if_else(pa.array(is_told), earlier, now)
        old = old.set_column(old.column_names.index(name), name, was)
    for name, values in order.items():
        after, old = after.append_column(name, values), old.append_column(name, values)
    if not moved.any():  # putting rows in order is slow
        return ChangeBatch(source_name, after, deletes, numbers)
    rows = joined([(f"{source_name}, before its updates,", old.filter(pa.array(moved))), (source_name, after)])
    places = np.concatenate([numbers[moved] * 2, numbers * 2 + 1])
    is_deleted = np.concatenate([np.ones(int(moved.sum()), np.bool_), deletes])
    in_order = np.argsort(places, kind="stable")
    return ChangeBatch(source_name, rows.take(in_order), is_deleted[in_order], places[in_order] // 2)


def _was_null(name: str, unsaid: Bools, texts: _Texts) -> Bools:
    """Of the rows in which Arrow has found no earlier value those whose `old` has null in the column. For Arrow null is
    the same as a column that is not there, so the text is read again, where it may name the column twice."""
    lines, places, within = texts
    quoted = json.dumps(name, ensure_ascii=False).encode()
    found = np.zeros(len(unsaid), np.bool_)
    for at in np.flatnonzero(unsaid).tolist():
        line = lines[places[at]]
        if line.count(quoted) > 1 or b"\\" in line:
            old = json.loads(line).get("old") or {}
            found[at] = name in (old if within is None or not old else old[within[at]] or ())
    return found
