"""Change events of Debezium, as JSON lines: envelopes, with the converter's schema around them or without, and rows
that `ExtractNewRecordState` has flattened.

The types of columns follow from the event's schema where it has one, else from the table's: an epoch is then taken in
the unit of the declared type. A column named `__source_lsn` is the event's `source.lsn`, as the flattened form names
it: so may the table's sort keys be called.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from operator import methodcaller
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.feed import DELETES, UPSERTS
from compactor.changes.change_batch import OR_DROPPED, Bools, ChangeBatch, FeedColumns, Int64s, Refusals, mask_of
from compactor.changes.conversion import converted
from compactor.changes.debezium_values import as_declared, json_type, logical, wire_type
from compactor.changes.json_lines import event_of, read_events, refused_event, text_lines_of
from compactor.model.errors import Invalid
from compactor.schemas.cast import joined

UNAVAILABLE = "__debezium_unavailable_value"
_UNAVAILABLE_TEXTS = pa.array(
    [
        UNAVAILABLE,
        base64.b64encode(UNAVAILABLE.encode()).decode(),
        str(UUID(bytes=md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3)),
        *(json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=each) for each in ((",", ":"), (", ", ": "))),
    ]
)
"""What stands for a value that was not sent, in columns of text, bytes, UUIDs and JSON."""
_NOT_SENT = (
    "was not sent, since a large column had not changed, so the row is not known whole: set REPLICA IDENTITY FULL, or "
    "use the reselect post processor"
)
_NO_ROW = "and no row: a document of MongoDB is flattened by ExtractNewDocumentState, with add.fields=op"
OF_SOURCE = "__source_"
_OPERATION, _DELETED = "__op", "__deleted"
_ADDED = re.compile(r"__(op|deleted|table|db|schema|ts_ms|ts_us|ts_ns)")
"""Columns that flattening adds and that are no part of the row."""

_IMAGES = ("before", "after")
_OF_NO_ROW = frozenset({"ddl", "tableChanges", "event_count"})
"""Fields of events that hold no row."""

_WRAPPED = (b'{"schema"', b'{ "schema"')
"""The beginning of a line that may have the schema around its event."""
_NO_PAYLOAD = re.compile(rb'"payload"\s*:\s*null\}$')


@dataclass(frozen=True)
class _Run:
    """Lines with the same schema. `first`: the number of the first line, from 0."""

    first: int
    lines: list[bytes]
    schema: Mapping[str, Any] | None


def changes_of_debezium(body: bytes, columns: FeedColumns, source_name: str) -> ChangeBatch:
    """Raises `Invalid`, with the rows, for events that change no row, and for rows of which a value is missing."""
    runs = [run for run in _runs(body, source_name) if run.lines]
    parts = [_changes_of_run(run, columns, source_name) for run in runs]
    if not parts:
        return ChangeBatch(source_name, pa.table({}), np.zeros(0, np.bool_), np.zeros(0, np.int64))
    begins = [f"{source_name}, from row {run.first + 1:,} on," for run in runs]
    return ChangeBatch(
        source_name,
        joined([(begin, each.rows) for begin, each in zip(begins, parts, strict=True)]),
        np.concatenate([each.deletes for each in parts]),
        np.concatenate([each.places for each in parts]),
    )


def _runs(body: bytes, source_name: str) -> Iterator[_Run]:
    """Tombstones (`null`) and empty lines are left out: the delete before a tombstone says which row is gone."""
    lines = text_lines_of(body, source_name)
    if b'"payload"' in body:
        lines = [b"" if _is_wrapped_tombstone(line) else line for line in lines]
    held: list[bytes] = []
    first, prefix, schema = 0, None, None
    for number, stripped in enumerate(lines):
        if not stripped:
            held.append(b"")
            continue
        if prefix is None or not stripped.startswith(prefix) or (schema is None and stripped.startswith(_WRAPPED)):
            its_prefix, its_schema = _schema_of(stripped, number, source_name)
            if its_prefix != prefix:
                if held:
                    yield _Run(first, held, schema)
                is_first = prefix is None
                first, held = number, []
                prefix, schema = its_prefix, its_schema
                if is_first and _are_of_one_run(lines[number:], prefix, schema):
                    held = lines[number:]
                    break
        held.append(stripped)
    if held:
        yield _Run(first, held, schema)


def _is_wrapped_tombstone(line: bytes) -> bool:
    return line.endswith(b"null}") and line.startswith(_WRAPPED) and _NO_PAYLOAD.search(line) is not None


def _are_of_one_run(lines: Sequence[bytes], prefix: bytes, schema: object) -> bool:
    """Whether all of them that are not empty begin so, and none may have a schema of its own."""
    begin = sum(map(methodcaller("startswith", prefix), lines))
    if schema is None and any(map(methodcaller("startswith", _WRAPPED), lines)):
        return False
    return bool(begin + lines.count(b"") == len(lines))


def _schema_of(line: bytes, number: int, source_name: str) -> tuple[bytes, Mapping[str, Any] | None]:
    """The beginning that lines of the same schema share, and the schema; of lines without one `{` and None."""
    event = event_of(line, number, source_name)
    if event.keys() != {"schema", "payload"}:
        return b"{", None
    if event["schema"] is None:
        reason = "its schema is null, and it has a payload: let the converter write all schemas, or none"
        raise refused_event(number, source_name, reason)
    found = re.match(rb'\{\s*"schema"\s*:', line)
    if found is None:
        raise Invalid(
            f"{source_name}, row {number + 1:,}: its payload stands before its schema; write the schema first"
        )
    _, length = json.JSONDecoder().raw_decode(line[found.end() :].decode().lstrip())
    skipped = len(line[found.end() :]) - len(line[found.end() :].lstrip())
    ends = found.end() + skipped + len(line[found.end() :].decode().lstrip()[:length].encode())
    return line[:ends], event["schema"]


def _changes_of_run(run: _Run, columns: FeedColumns, source_name: str) -> ChangeBatch:
    present = np.array([len(line) > 0 for line in run.lines], np.bool_)
    lines = [line for line in run.lines if line]
    numbers = np.flatnonzero(present) + run.first
    if not lines:
        return ChangeBatch(source_name, pa.table({}), np.zeros(0, np.bool_), numbers)
    refused = Refusals(source_name)
    events = _parsed(lines, numbers, run.schema, columns.declared, source_name)
    is_envelope = _is_envelope(events.column_names)
    events = _images_left(events, columns.without) if is_envelope else columns.left(events)
    if run.schema is None:  # with it every field is written
        _refuse_partial(events, lines, numbers, columns.declared, refused, image="after" if is_envelope else None)
    if is_envelope:
        changes = _of_envelopes(events, numbers, run.schema, columns, refused)
    else:
        changes = _of_flattened(events, numbers, run.schema, columns, refused)
    refused.raise_if_any()
    return changes


def _is_envelope(names: Collection[str]) -> bool:
    return "op" in names and not {*_IMAGES, "source"}.isdisjoint(names)


def _images_left(events: pa.Table, without: Collection[str]) -> pa.Table:
    """Envelopes without some columns of their rows."""
    for name in _IMAGES if without else ():
        at = events.schema.get_field_index(name)
        if at >= 0 and pa.types.is_struct(events.column(at).type):
            rows = events.column(at).combine_chunks()
            kept = [each for each in rows.type if each.name not in without]
            values = [pc.struct_field(rows, each.name) for each in kept]
            struct = pa.StructArray.from_arrays(values, fields=kept, mask=rows.is_null())
            events = events.set_column(at, name, struct)
    return events


def _refuse_partial(
    events: pa.Table,
    lines: Sequence[bytes],
    numbers: Int64s,
    declared: pa.Schema | None,
    refused: Refusals,
    *,
    image: str | None,
) -> None:
    """Refuses updates that lack a column which the table or an earlier event has. For Arrow null is the same as a
    column that is not there, so the name is looked for in the text.

    Args:
        image: the field that has the rows; None: they are flattened"""
    operation = _OPERATION if image is None else "op"
    if not {operation, image or operation} <= {*events.column_names}:
        return
    updates = mask_of(pc.equal(events.column(operation).cast(pa.string()), "u"))
    images = [] if image is None else [events.column(name) for name in _IMAGES if name in events.column_names]
    times = np.full(len(lines), int(image is None))
    for each in images:
        times += mask_of(each.is_valid())
    rows = events if image is None else _columns_of(events.column(image))
    of_table = set() if declared is None else {*declared.names}
    told = Counter(each.name for each in _fields_within(pa.struct(list(events.schema))))
    for name in rows.column_names:
        unsaid = mask_of(rows.column(name).is_null())
        lacking = unsaid & updates & ((np.cumsum(~unsaid) > 0) | (name in of_table))
        if name.startswith("__") or not lacking.any():
            continue
        quoted = json.dumps(name, ensure_ascii=False).encode() + b":"
        is_elsewhere = told[name] > (sum(name in _columns_of(each).column_names for each in images) or 1)
        for at in np.flatnonzero(lacking).tolist():
            line = lines[at]
            lacking[at] = (is_elsewhere or line.count(quoted) < times[at]) and not _has(line, name, image)
        refused.add(
            numbers[lacking].tolist(),
            f"the update has no {name!r}, so the row is not known whole: let the source send whole rows, {OR_DROPPED}",
        )


def _columns_of(column: pa.ChunkedArray) -> pa.Table:
    if not pa.types.is_struct(column.type):
        return pa.table({})
    struct = column.combine_chunks()
    return pa.table({each.name: pc.struct_field(struct, each.name) for each in struct.type if each.name})


def _fields_within(kind: pa.DataType) -> Iterator[pa.Field]:
    """At any depth."""
    if pa.types.is_list(kind):
        yield from _fields_within(kind.value_type)
    for each in kind if pa.types.is_struct(kind) else ():
        yield each
        yield from _fields_within(each.type)


def _has(line: bytes, name: str, image: str | None) -> bool:
    event = json.loads(line)
    return name in (event if image is None else event[image] or ())


def _parsed(
    lines: Sequence[bytes],
    numbers: Int64s,
    schema: Mapping[str, Any] | None,
    declared: pa.Schema | None,
    source_name: str,
) -> pa.Table:
    """The events, a column for each field of the envelope or of the flattened row."""
    explicit = None
    if schema is not None:
        explicit = pa.schema([("payload", wire_type(schema, lines))])
    elif declared is not None:
        flat = [(each.name, json_type(each.name, each.type, lines)) for each in declared]
        row = pa.struct([each for each in flat if not each[0].startswith(OF_SOURCE)])
        explicit = pa.schema([("before", row), ("after", row)] if _is_envelope(json.loads(lines[0])) else flat)
    told = () if explicit is None else _fields_within(pa.struct(list(explicit)))
    names = [re.escape(json.dumps(each.name).encode()) for each in told if pa.types.is_floating(each.type)]
    no_number = re.compile(rb"((?:" + b"|".join(names) + rb')\s*:\s*)"(NaN|-?Infinity)"')

    def fixed(lines: Sequence[bytes]) -> Sequence[bytes]:
        """PyArrow reads floats that JSON cannot hold, which Kafka Connect writes as text, without quotes."""
        return [no_number.sub(rb"\1\2", line) for line in lines] if names else lines

    only_these = schema is not None
    table = read_events(lines, numbers, explicit, source_name, only_these=only_these, images=_IMAGES, fixed=fixed)
    if schema is None:
        return table
    payload = table.column("payload").combine_chunks()
    kept = [each for each in payload.type if each.name]
    return pa.table({each.name: pc.struct_field(payload, each.name) for each in kept})


# ----------------------------------------------------------------------------------------------------------- envelopes


def _of_envelopes(
    events: pa.Table,
    numbers: Int64s,
    schema: Mapping[str, Any] | None,
    columns: FeedColumns,
    refused: Refusals,
) -> ChangeBatch:
    source_name = refused.source_name
    operations = events.column("op").cast(pa.string())
    upserts, deletes = (mask_of(pc.is_in(operations, pa.array(each))) for each in (UPSERTS, DELETES))
    for operation in pc.unique(operations.filter(pa.array(~(upserts | deletes)))).to_pylist():
        what = {"t": "the source was truncated", "m": "it is a message, and no row", None: "it is no change of a row"}
        advice = ": drop the table's partitions, and let Debezium skip it (skipped.operations=t)"
        of_one = mask_of(pc.is_null(operations) if operation is None else pc.equal(operations, operation))
        refused.add(
            numbers[of_one].tolist(),
            f"{what.get(operation, 'its op is unknown')} (op {operation!r}){advice if operation == 't' else ''}",
        )
    images = {
        name: _rows_of(events.column(name), name, (schema, columns.declared), refused, numbers)
        for name in _IMAGES
        if name in events.column_names
    }
    after, before = images.get("after"), images.get("before")
    for mask, name in ((upserts, "after"), (deletes, "before")):
        there = _is_there(events, name)
        refused.add(numbers[mask & ~there].tolist(), f"it has no {name!r}")
    refused.raise_if_any()
    added = _of_source(events, columns.order, source_name)
    if before is None and after is None:
        return ChangeBatch(source_name, pa.table({}), np.zeros(0, np.bool_), np.zeros(0, np.int64))
    parts: list[tuple[pa.Table, Bools, bool]] = []
    if before is not None:
        parts.append((_with(before, added), deletes, True))
        if after is not None:
            moved = upserts & _is_there(events, "before") & _differ(before, after, columns.needed)
            of_after = {name: after.column(name) for name in columns.order if name in after.column_names}
            own = {name: values for name, values in of_after.items() if name not in columns.needed}
            parts.append((_with(before, {**own, **added}), moved, True))
    if after is not None:
        parts.append((_with(after, added), upserts, False))
    names = [f"{source_name} ({'before' if is_delete else 'after'})" for _, _, is_delete in parts]
    tables = [(name, rows.filter(pa.array(mask))) for name, (rows, mask, _) in zip(names, parts, strict=True)]
    places = np.concatenate([numbers[mask] * 2 + (0 if is_delete else 1) for _, mask, is_delete in parts])
    is_deleted = np.concatenate([np.full(int(mask.sum()), is_delete) for _, mask, is_delete in parts])
    order = np.argsort(places, kind="stable")
    rows = joined(tables).take(order)
    return ChangeBatch(source_name, rows, is_deleted[order], places[order] // 2)


def _is_there(events: pa.Table, name: str) -> Bools:
    if name not in events.column_names:
        return np.zeros(events.num_rows, np.bool_)
    return np.asarray(pc.is_valid(events.column(name)).to_numpy(zero_copy_only=False), np.bool_)


def _rows_of(
    column: pa.ChunkedArray,
    name: str,
    types: tuple[Mapping[str, Any] | None, pa.Schema | None],
    refused: Refusals,
    numbers: Int64s,
) -> pa.Table | None:
    """The row images of one field; None: all are null, or none is a row."""
    if not pa.types.is_struct(column.type):
        refused.add(numbers[mask_of(column.is_valid())].tolist(), f"its {name!r} is {column.type}, {_NO_ROW}")
        return None
    struct = column.combine_chunks()
    schema, declared = types
    fields = () if schema is None else _fields_of(schema, name)
    found: dict[str, pa.Array] = {}
    for each in struct.type:
        values = pc.struct_field(struct, each.name)
        if name == "after":
            refused.add(numbers[unavailable(values)].tolist(), f"{each.name!r} {_NOT_SENT}")
        found[each.name] = _typed(values, each.name, (fields, declared), f" of {name!r}", numbers, refused.source_name)
    return pa.table(found)


def _typed(
    values: pa.Array,
    name: str,
    types: tuple[Sequence[Mapping[str, Any]], pa.Schema | None],
    of_what: str,
    numbers: Int64s,
    source_name: str,
) -> pa.Array:
    """A column with the type that the event's fields say, then the declared one."""
    fields, declared = types
    column = f"column {name!r}{of_what}"
    kind = None if declared is None or declared.get_field_index(name) < 0 else declared.field(name).type
    for field in fields:
        if field.get("field") == name:
            values = converted(values, partial(logical, field=field, column=column, kind=kind), numbers, source_name)
    if kind is not None:
        values = converted(values, partial(as_declared, kind=kind, column=column), numbers, source_name)
    return values


def unavailable(values: pa.Array) -> Bools:
    """bool (rows,): values that were not sent. A list of one such value is one, or of the bytes of the text; so is a
    map of the text."""
    kind = values.type
    if pa.types.is_string(kind):
        return mask_of(pc.is_in(values, _UNAVAILABLE_TEXTS))
    found = np.zeros(len(values), np.bool_)
    if pa.types.is_struct(kind) and kind.get_field_index(UNAVAILABLE) >= 0:
        return mask_of(pc.struct_field(values, UNAVAILABLE).is_valid())
    if not pa.types.is_list(kind):
        return found
    lengths = pc.list_value_length(values)
    alone = mask_of(pc.equal(lengths, 1))
    found[alone] = unavailable(values.filter(pa.array(alone)).flatten())
    if pa.types.is_integer(kind.value_type):
        as_long = np.flatnonzero(mask_of(pc.equal(lengths, len(UNAVAILABLE))))
        found[as_long] = [each == [*UNAVAILABLE.encode()] for each in values.take(as_long).to_pylist()]
    return found


def _fields_of(schema: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    return next((each.get("fields", ()) for each in schema.get("fields", ()) if each.get("field") == name), ())


def _differ(before: pa.Table, after: pa.Table, needed: Collection[str]) -> Bools:
    """Rows of which one of these columns was another before."""
    differ = np.zeros(after.num_rows, np.bool_)
    for name in needed:
        if name in before.column_names and name in after.column_names:
            was, now = before.column(name), after.column(name)
            differ |= mask_of(was.is_valid()) & ~mask_of(pc.equal(was, now))
    return differ


def _of_source(
    events: pa.Table,
    sort_columns: Sequence[str],
    source_name: str,
) -> dict[str, pa.ChunkedArray]:
    """The order columns that the events' source has. Raises `Invalid` if none of the events has one."""
    found: dict[str, pa.ChunkedArray] = {}
    for name in sort_columns:
        if not name.startswith(OF_SOURCE):
            continue
        source = events.column("source") if "source" in events.column_names else None
        field = name.removeprefix(OF_SOURCE)
        names = () if source is None else [each.name for each in source.type]
        if source is None or field not in names:
            raise Invalid(
                f"the changes of {source_name} have no source.{field}, by which the table orders the rows of a key"
            )
        found[name] = pc.struct_field(source, field)
    return found


def _with(rows: pa.Table, added: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    """With these columns, in place of those that it has."""
    for name, values in added.items():
        at = rows.schema.get_field_index(name)
        rows = rows.append_column(name, values) if at < 0 else rows.set_column(at, name, values)
    return rows


# ----------------------------------------------------------------------------------------------------------- flattened


def _of_flattened(
    rows: pa.Table, numbers: Int64s, schema: Mapping[str, Any] | None, columns: FeedColumns, refused: Refusals
) -> ChangeBatch:
    names, source_name = rows.column_names, refused.source_name
    fields = () if schema is None else schema.get("fields", ())
    if _OF_NO_ROW.intersection(names) and not {_DELETED, _OPERATION}.intersection(names):
        refused.add(numbers.tolist(), "it is a change of the schema, or begins or ends a transaction: leave it out")
        refused.raise_if_any()
    if _DELETED not in names and _OPERATION not in names:
        raise Invalid(
            f"{source_name} has neither {_OPERATION!r} nor {_DELETED!r}, so that its deletes cannot be told: set "
            "delete.tombstone.handling.mode=rewrite, or add.fields=op"
        )
    deletes = np.zeros(rows.num_rows, np.bool_)
    if _DELETED in names:
        deletes |= mask_of(pc.equal(rows.column(_DELETED).cast(pa.string()), "true"))
    if _OPERATION in names:
        operations = rows.column(_OPERATION).cast(pa.string())
        known = mask_of(pc.is_in(operations, pa.array([*UPSERTS, *DELETES])))
        refused.add(numbers[~known].tolist(), f"{_OPERATION} is neither an upsert nor a delete")
        deletes |= mask_of(pc.is_in(operations, pa.array(DELETES)))
    found = {}
    for name in names:
        if _ADDED.fullmatch(name) and name not in columns.order:
            continue
        values = rows.column(name).combine_chunks()
        refused.add(numbers[unavailable(values) & ~deletes].tolist(), f"{name!r} {_NOT_SENT}")
        found[name] = _typed(values, name, (fields, columns.declared), "", numbers, source_name)
    return ChangeBatch(source_name, pa.table(found), deletes, numbers)
