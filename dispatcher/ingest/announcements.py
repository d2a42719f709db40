"""What a message says of new files. Pure.

    Amazon S3, directly or through SNS (raw or not)   {"Records": [{"eventSource": "aws:s3", ...}]}
    Amazon S3 through EventBridge                     {"source": "aws.s3", "detail-type": "Object Created", ...}
    Amazon S3, when notifications are set up          {"Event": "s3:TestEvent"}
    anybody, of files                                 {"register": {"files": ["s3://bucket/key", ...]}}
    anybody, with rows                                {"register": {"table": "ACME.ORDERS.V1", "rows": [{...}, ...]}}

Keys are encoded as in a form but for EventBridge, which sends them as they are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus

from compactor.changes.json_lines import as_written, exact_json
from compactor.model.errors import Invalid

ROWS_BYTES_MAX = 200 * 1024
"""Bytes of the rows of a message, as JSON, at most: more are a file."""


@dataclass(frozen=True)
class Announced:
    """A file.

    Attributes:
        etag: of the version that is meant; None: the one that is there
        size_bytes: None: not known
        sequencer: orders the versions of one key, as text, without zeros at its end; None: not known
        at_ms: of S3's event; None: the message does not say it"""

    uri: str
    etag: str | None = None
    size_bytes: int | None = None
    sequencer: str | None = None
    at_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class AnnouncedRows:
    """Rows for a table. `lines`: JSON lines. `rows_id`: their sender's, to know them again; None: the message's.
    `at_ms`: when the message was sent; None: it does not say it."""

    table_id: str
    lines: bytes
    rows_id: str | None = None
    at_ms: int | None = field(default=None, compare=False)


def parse_announcements(body: str) -> list[Announced | AnnouncedRows]:
    """The new files that a message announces, or its rows; none for one that only tells that notifications are set up,
    or of other events. Raises `Invalid` for a message of another kind."""
    try:
        message = exact_json(body)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the message is not JSON ({error})") from error
    if not isinstance(message, dict):
        raise Invalid(f"the message is no object but {type(message).__name__}")
    try:
        return list(_files(message))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Invalid(f"the message lacks what its kind of announcement has: {error!r}") from error


def _files(message: Mapping[str, Any]) -> Iterator[Announced | AnnouncedRows]:
    if message.get("Type") == "Notification" and isinstance(message.get("Message"), str):
        yield from parse_announcements(message["Message"])
    elif message.get("Event") == "s3:TestEvent":
        return
    elif isinstance(message.get("Records"), list):
        for record in message["Records"]:
            yield from _of_record(record)
    elif message.get("source") == "aws.s3":
        if message["detail-type"] == "Object Created":
            detail = message["detail"]
            found = detail["object"]
            etag = found.get("etag", found.get("eTag"))
            yield from _object(detail["bucket"]["name"], found["key"], found, etag, message.get("time"))
    elif isinstance(message.get("register"), dict):
        yield from _of_register(message["register"])
    else:
        raise Invalid(
            'the message announces no file: it is neither a notification of S3, nor {"register": {"files": [...]}}'
        )


def _of_register(register: Mapping[str, Any]) -> Iterator[Announced | AnnouncedRows]:
    if set(register) == {"files"} and isinstance(register["files"], list):
        for uri in register["files"]:
            yield Announced(_text("a file", uri))
        return
    rows = register.get("rows")
    if not {"table", "rows"} <= set(register) <= {"table", "rows", "id"} or not isinstance(rows, list) or not rows:
        raise Invalid(
            'register says neither {"files": [...]} nor {"table": "...", "rows": [{...}, ...]}, which may have an "id"'
        )
    wrong = next((number for number, row in enumerate(rows, 1) if not isinstance(row, dict)), None)
    if wrong is not None:
        raise Invalid(f"row {wrong:,} of the message is no object with a value for each column")
    lines = b"".join(as_written(row) + b"\n" for row in rows)
    if len(lines) > ROWS_BYTES_MAX:
        raise Invalid(
            f"the message has {len(lines):,} bytes of rows, and {ROWS_BYTES_MAX:,} are the most: write a file"
        )
    rows_id = register.get("id")
    yield AnnouncedRows(_text("table", register["table"]), lines, None if rows_id is None else _text("id", rows_id))


def _of_record(record: Mapping[str, Any]) -> Iterator[Announced]:
    if record["eventSource"] != "aws:s3":
        raise Invalid(f"the message is of {record['eventSource']}, not of S3")
    if not record["eventName"].removeprefix("s3:").startswith("ObjectCreated:"):
        return
    found = record["s3"]["object"]
    key = unquote_plus(found["key"])
    yield from _object(record["s3"]["bucket"]["name"], key, found, found.get("eTag"), record.get("eventTime"))


def _object(bucket: str, key: str, found: Mapping[str, Any], etag: str | None, time: str | None) -> Iterator[Announced]:
    """Markers of folders are no files."""
    size_bytes = None if found.get("size") is None else int(found["size"])
    if key.endswith("/") or size_bytes == 0:
        return
    sequencer = found.get("sequencer")
    comparable = None if sequencer is None else _text("sequencer", sequencer).upper().rstrip("0")
    version = _text("etag", etag).strip('"') if etag else None
    at_ms = None if time is None else int(datetime.fromisoformat(time).timestamp() * 1_000)
    yield Announced(f"s3://{_text('bucket', bucket)}/{_text('key', key)}", version, size_bytes, comparable, at_ms)


def _text(name: str, value: object) -> str:
    """Raises `TypeError` for what is no text, `ValueError` for text that cannot be sent: JSON may have halves of
    characters."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text but {value!r}")
    value.encode()
    return value
