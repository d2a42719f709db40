"""Events as JSON: their lines, and their fields as Arrow columns."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
from pydantic_core import from_json

from compactor.changes.change_batch import ChangesRefused, Int64s, Refusals
from compactor.changes.conversion import failures
from compactor.model.errors import Invalid
from compactor.tabular.json_depth import DEPTH_MAX, refuse_deep_lines

_BLOCK_BYTES = 16 * 1024 * 1024
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"{[\n"))
_BEGINS_AS_A_TIME = re.compile(r"\d{4}-\d\d-\d\d")


def lines_of(body: bytes, source_name: str) -> list[bytes]:
    """An event a line, without spaces around it; what is no event (an empty line, a tombstone `null`) is empty.

    Firehose writes events one behind the other, without a line's end: they are told apart here. Raises `Invalid`.
    """
    lines = [line.strip() for line in body.split(b"\n")]
    if b"}{" in body:
        lines = [event for number, line in enumerate(lines) for event in _events_of(line, number, source_name)]
    return [b"" if line == b"null" else line for line in lines]


def _events_of(line: bytes, number: int, source_name: str) -> Sequence[bytes]:
    if b"}{" not in line:
        return [line]
    text, decoder = line.decode(), json.JSONDecoder()
    found, begin = [], 0
    while begin < len(text):
        try:
            _, end = decoder.raw_decode(text, begin)
        except ValueError as error:
            raise not_json(number, source_name, error) from error
        found.append(text[begin:end].encode())
        begin = end + len(text[end:]) - len(text[end:].lstrip())
    return found


def not_json(number: int, source_name: str, error: Exception) -> ChangesRefused:
    return _refused_event(number, source_name, f"it is not JSON ({error})")


def event_of(line: bytes, number: int, source_name: str) -> Mapping[str, Any]:
    """Raises `ChangesRefused` for a line that is no JSON object."""
    try:
        event = from_json(line)
    except ValueError:
        # Python's parser takes what is nested deeper, and its errors say what it expects.
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise not_json(number, source_name, error) from error
    if not isinstance(event, dict):
        raise _refused_event(number, source_name, f"it is no change event but {type(event).__name__}")
    return event


def text_fields(event: Mapping[str, Any], but: Collection[str] = ()) -> list[pa.Field]:
    """Those of an event's fields that are text. Arrow would find that out for each value, and try it as a time.

    but  those that have another type
    """
    return [
        pa.field(name, pa.string())
        for name, value in event.items()
        if name not in but and isinstance(value, str) and not _BEGINS_AS_A_TIME.match(value)
    ]


def _refused_event(number: int, source_name: str, reason: str) -> ChangesRefused:
    return ChangesRefused([f"{source_name}, row {number + 1:,}: {reason}"], {number: [reason]})


def read_events(
    lines: Sequence[bytes],
    numbers: Int64s,
    schema: pa.Schema | None,
    source_name: str,
    *,
    only_these: bool = False,
) -> pa.Table:
    """A column for each field. None of the lines is empty.

    numbers     of the lines in their source
    schema      types of some fields; those of the others are inferred
    only_these  the others are left out

    Raises `Invalid`, with the rows where they fail by themselves.
    """
    try:
        return _parsed(lines, schema, source_name, only_these=only_these)
    except (pa.ArrowInvalid, Invalid) as error:
        failing = failures(
            len(lines), lambda first, last: _parsed(lines[first:last], schema, source_name, only_these=only_these)
        )
        refused = Refusals(source_name)
        for reason, rows in failing.items():
            refused.add(numbers[rows].tolist(), f"it is no change event of these columns ({reason})")
        refused.raise_if_any()
        raise Invalid(f"{source_name} is no change feed of these columns: {error}") from error


def _parsed(lines: Sequence[bytes], schema: pa.Schema | None, source_name: str, *, only_these: bool) -> pa.Table:
    body = b"\n".join(lines)
    if max(map(len, body.translate(None, _ALL_BUT_BRACKETS).split(b"\n"))) > DEPTH_MAX:
        refuse_deep_lines(source_name, body)
    longest = max(map(len, lines), default=0) + 2
    return pj.read_json(
        pa.py_buffer(body),
        read_options=pj.ReadOptions(block_size=max(_BLOCK_BYTES, 2 * longest)),
        parse_options=pj.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore" if only_these else "infer"
        ),
    )
