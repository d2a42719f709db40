"""Events as JSON: their lines, and their fields as Arrow columns."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.json as pj

from compactor.model.errors import Invalid

_BLOCK_BYTES = 16 * 1024 * 1024


def lines_of(body: bytes, source_name: str) -> list[bytes]:
    """An event a line, without spaces around it; what is no event (an empty line, a tombstone `null`) is empty.

    Firehose writes events one behind the other, without a line's end: they are told apart here. Raises `Invalid`.
    """
    lines = [line.strip() for line in body.split(b"\n")]
    if any(b"}{" in line for line in lines):
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


def not_json(number: int, source_name: str, error: Exception) -> Invalid:
    return Invalid(f"{source_name}, row {number + 1:,}: it is not JSON ({error})")


def read_events(
    lines: Sequence[bytes], schema: pa.Schema | None, source_name: str, *, only_these: bool = False
) -> pa.Table:
    """A column for each field. None of the lines is empty.

    schema      types of some fields; those of the others are inferred
    only_these  the others are left out
    """
    body = b"\n".join(lines) + b"\n"
    longest = max((len(line) for line in lines), default=0) + 2
    try:
        return pj.read_json(
            pa.py_buffer(body),
            read_options=pj.ReadOptions(block_size=max(_BLOCK_BYTES, 2 * longest)),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore" if only_these else "infer"
            ),
        )
    except pa.ArrowInvalid as error:
        raise Invalid(f"{source_name} is no change feed of these columns: {error}") from error
