"""Events as JSON: their lines, and their fields as Arrow columns."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
from pydantic_core import from_json, to_json

from compactor.changes.change_batch import ChangesRefused, Int64s, Refusals
from compactor.changes.conversion import failing, failures
from compactor.model.errors import Invalid
from compactor.tabular.json_depth import DEPTH_MAX, refuse_deep_lines
from compactor.tabular.text import promote_json
from compactor.tabular.whole_numbers import has_great_floats, types_in_json

_BLOCK_BYTES = 16 * 1024 * 1024
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"{[\n"))
_ROW = re.compile(r" in row (\d+)$")
"""Arrow counts rows from 0."""
_WITHOUT_LINES = re.compile(rb"\}\{")
"""The pattern of objects without a line between them. It is found in a third of the time of the same text with `in`."""
_NEXT = re.compile(r"\}\s*(?=\{)")
"""The end of an object before another one."""
_BEGINS_AS_A_TIME = re.compile(r"\d{4}-\d\d-\d\d")


def lines_of(body: bytes) -> list[bytes]:
    """An event a line, without spaces around it; what is no event (an empty line, a tombstone `null`) is empty.

    Firehose writes events one behind the other, without a line's end: they are told apart here.
    """
    lines = [line.strip() for line in body.split(b"\n")]
    if _WITHOUT_LINES.search(body):
        lines = [event for line in lines for event in _events_of(line)]
    return [b"" if line == b"null" else line for line in lines]


def _events_of(line: bytes) -> Sequence[bytes]:
    """What cannot be read ends where the next event may begin, and is refused as an event."""
    if b"}{" not in line:
        return [line]
    text, decoder = line.decode(errors="surrogateescape"), json.JSONDecoder()
    found, begin = [], 0
    while begin < len(text):
        try:
            _, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            next_one = _NEXT.search(text, begin)
            end = len(text) if next_one is None else next_one.end()
        found.append(text[begin:end].encode(errors="surrogateescape"))
        begin = end
        while text[begin : begin + 1].isspace():
            begin += 1
    return found


def text_lines_of(body: bytes, source_name: str) -> list[bytes]:
    """See `lines_of`. Raises `ChangesRefused` with the events that are not UTF-8, which Arrow takes."""
    lines = lines_of(body)
    try:
        _validate(body)
    except pa.ArrowInvalid:
        refused = Refusals(source_name)
        wrong = failing(len(lines), lambda first, last: _validate(b"\n".join(lines[first:last])))
        refused.add(wrong, "it is not UTF-8")
        refused.raise_if_any()
    return lines


def _validate(text: bytes) -> None:
    """Raises `pa.ArrowInvalid`. Arrow looks at the bytes where they are; decoded, they may take four times as many."""
    ends = pa.array([0, len(text)]).buffers()[1]
    pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(text)]).validate(full=True)


def event_of(line: bytes, number: int, source_name: str) -> Mapping[str, Any]:
    """Raises `ChangesRefused` for a line that is no JSON object."""
    try:
        event = from_json(line)
    except ValueError:
        # Python's parser takes what is nested deeper, and its errors say what it expects.
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise refused_event(number, source_name, f"it is not JSON ({error})") from error
    if not isinstance(event, dict):
        raise refused_event(number, source_name, f"it is no change event but {type(event).__name__}")
    return event


class _Fraction(str):
    """A number as it is written: a float would change decimals of many digits."""


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number in JSON")


def exact_json(text: str | bytes) -> Any:  # noqa: ANN401  (it is JSON)
    """What `as_written` writes as it was. Raises `ValueError`, also for NaN, which is no JSON."""
    return json.loads(text, parse_float=_Fraction, parse_constant=_refuse_constant)


def as_written(value: object) -> bytes:
    """JSON."""
    if isinstance(value, _Fraction):
        return value.encode()
    if isinstance(value, dict):
        return b"{" + b",".join(to_json(name) + b":" + as_written(each) for name, each in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(as_written, value)) + b"]"
    return to_json(value)


def text_fields(event: Mapping[str, Any], but: Collection[str] = ()) -> list[pa.Field]:
    """Those of an event's fields that are text. Arrow would find that out for each value, and try it as a time.

    Args:
        but: those that have another type"""
    return [
        pa.field(name, pa.string())
        for name, value in event.items()
        if name not in but and isinstance(value, str) and not _BEGINS_AS_A_TIME.match(value)
    ]


def refused_event(number: int, source_name: str, reason: str) -> ChangesRefused:
    return ChangesRefused([f"{source_name}, row {number + 1:,}: {reason}"], {number: [reason]})


def read_events(
    lines: Sequence[bytes],
    numbers: Int64s,
    schema: pa.Schema | None,
    source_name: str,
    *,
    only_these: bool = False,
    images: Collection[str] = (),
    fixed: Callable[[Sequence[bytes]], Sequence[bytes]] | None = None,
) -> pa.Table:
    """A column for each field. None of the lines is empty.

    Args:
        numbers: of the lines in their source
        schema: types of some fields; those of the others are inferred: text stays text, also if it looks like a time,
            and whole numbers beyond 64 bits are decimals
        only_these: the others are left out
        images: fields that hold the same columns
        fixed: makes lines that can be read, of some that cannot

    Raises `Invalid`, with the rows where they fail by themselves."""

    def parsed(first: int, last: int) -> pa.Table:
        return _parsed(lines[first:last], schema, source_name, only_these=only_these, images=images)

    try:
        return parsed(0, len(lines))
    except (ValueError, Invalid) as error:
        if fixed is not None:
            lines = fixed(lines)
            return read_events(lines, numbers, schema, source_name, only_these=only_these, images=images)
        failing = failures(len(lines), parsed)
        refused = Refusals(source_name)
        for reason, rows in failing.items():
            refused.add(numbers[rows].tolist(), f"it is no change event of these columns ({reason})")
        refused.raise_if_any()
        told = _ROW.sub(lambda row: f" in row {numbers[int(row[1])] + 1:,}", str(error))
        raise Invalid(f"{source_name} is no change feed of these columns: {told}") from error


def _parsed(
    lines: Sequence[bytes],
    schema: pa.Schema | None,
    source_name: str,
    *,
    only_these: bool,
    images: Collection[str],
) -> pa.Table:
    body = b"\n".join(lines)
    if max(map(len, body.translate(None, _ALL_BUT_BRACKETS).split(b"\n"))) > DEPTH_MAX:
        refuse_deep_lines(source_name, body)
    longest = max(map(len, lines), default=0) + 2
    options = pj.ReadOptions(block_size=max(_BLOCK_BYTES, 2 * longest))

    def read(explicit: pa.Schema | None) -> pa.Table:
        others = "ignore" if only_these else "infer"
        parse = pj.ParseOptions(explicit_schema=explicit, unexpected_field_behavior=others)
        try:
            return pj.read_json(pa.py_buffer(body), read_options=options, parse_options=parse)
        except pa.ArrowNotImplementedError as error:
            raise Invalid(f"{error}: declare another type") from error

    table = read(schema)
    if only_these:
        return table
    wanted = _types_meant(table, schema, images, body, source_name)
    return table if wanted.equals(table.schema) else read(wanted)


def _types_meant(
    found: pa.Table, declared: pa.Schema | None, images: Collection[str], body: bytes, source_name: str
) -> pa.Schema:
    """The types of fields where Arrow has inferred others: see `read_events`."""
    kinds = dict(zip(found.schema.names, found.schema.types, strict=True))
    great = {name: kind for name, kind in kinds.items() if has_great_floats(found.column(name))}
    if great:
        kinds |= types_in_json(source_name, body, great)
    told = {} if declared is None else dict(zip(declared.names, declared.types, strict=True))
    kinds = {name: _told(kind, told.get(name)) for name, kind in kinds.items()}
    rows = {name: kinds[name] for name in images if name in kinds and pa.types.is_struct(kinds[name])}
    columns: dict[str, pa.DataType] = {}
    for field in (each for row in rows.values() for each in row):
        columns[field.name] = promote_json(columns.get(field.name, field.type), field.type) or field.type
    for name, row in rows.items():
        # Null is as good as any type, and not worth a second reading.
        kinds[name] = pa.struct(
            [(each.name, each.type if pa.types.is_null(each.type) else columns[each.name]) for each in row]
        )
    return pa.schema(list(kinds.items()))


def _told(inferred: pa.DataType, declared: pa.DataType | None) -> pa.DataType:
    """The declared type, if there is one, at any depth; text for a time, which only a text can have been."""
    if pa.types.is_struct(inferred) and (declared is None or pa.types.is_struct(declared)):
        fields = {} if declared is None else {each.name: each.type for each in declared}
        return pa.struct([(each.name, _told(each.type, fields.get(each.name))) for each in inferred])
    if pa.types.is_list(inferred) and (declared is None or pa.types.is_list(declared)):
        return pa.list_(_told(inferred.value_type, None if declared is None else declared.value_type))
    if declared is not None:
        return declared
    return pa.string() if pa.types.is_timestamp(inferred) else inferred
