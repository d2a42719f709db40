"""Quarantines refused changes: they go into a file, with their reasons, and the source is read as if it lacked them.

A line of the file is JSON: `source`, `row` (from 1, as in errors), `reasons`, and `change`: the event as it was
written, or the columns of the row. The file is durable before the first entry of its batch. Its name has a digest of
its content, so a repeated batch writes it once, and no file replaces another.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from pydantic_core import to_json

from compactor.catalog.property_checks import reasons_against_quarantine
from compactor.changes.change_batch import ChangeBatch, ChangesRefused
from compactor.changes.dms_csv import DmsTexts
from compactor.changes.json_lines import lines_of
from compactor.changes.sources import FeedSource
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, refuse_if
from compactor.schemas.cast import python_rows
from compactor.storage.create_once import create_once
from compactor.storage.keys import Hex, Key
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store

_DIGEST_CHARACTERS = 16


class QuarantineFile(Key, template="{table_id}/{batch_id}-{digest}.jsonl"):
    """A batch's refused changes, below the folder of a quarantine."""

    table_id: str
    batch_id: str
    digest: Hex


@dataclass(frozen=True)
class RefusedChange:
    """row: its number in the source, from 0; change: JSON."""

    source_name: str
    row: int
    reasons: Sequence[str]
    change: bytes

    def line(self) -> bytes:
        told = json.dumps({"source": self.source_name, "row": self.row + 1, "reasons": list(self.reasons)})
        return told[:-1].encode() + b', "change": ' + self.change + b"}\n"


@dataclass(frozen=True)
class Quarantine:
    """The folder of refused changes."""

    store: ObjectStore
    clock: Clock

    @classmethod
    def open(cls, folder: str | Path, location: StoreLocation, clock: Clock) -> Self:
        """`location`: of the lake, whose S3 service is the folder's, too. Raises `Invalid` if it is no folder."""
        at = parse_location(str(folder), endpoint_url=location.endpoint_url, region=location.region)
        return cls(open_store(at), clock)

    def put(self, table_id: str, batch_id: str, refused: Sequence[RefusedChange]) -> str:
        """Returns the URI of the file. Raises `Unavailable` if it may not be there: then nothing may be appended."""
        body = b"".join(each.line() for each in refused)
        key = QuarantineFile(table_id, batch_id, sha256(body).hexdigest()[:_DIGEST_CHARACTERS]).key
        uri = f"{self.store.location.root_uri}/{key}"
        if not create_once(self.store, key, body, body.__eq__, self.clock):
            raise Invalid(f"{uri} is there, and is not what was quarantined: remove it, and append the changes again")
        return uri


def quarantine_of(
    said: str | None, given: str | Path | None, location: StoreLocation, clock: Clock
) -> Quarantine | None:
    """That of a call, or of the table's property; None without either. Raises `Invalid` for a property that names a
    folder of one machine for a lake of many."""
    if given is None:
        refuse_if(reasons_against_quarantine(location, said))
    folder = said if given is None else given
    return None if folder is None else Quarantine.open(folder, location, clock)


def read_applicable(
    source: FeedSource, read: Callable[[FeedSource], ChangeBatch]
) -> tuple[ChangeBatch, list[RefusedChange]]:
    """The changes of a source without those that are refused; and these, in their order.

    Args:
        read: raises `ChangesRefused` for changes that it finds. It is called again without them, until it finds none:
            once more for each kind of reason"""
    left: _Lines | _Rows | None = None
    refused: list[RefusedChange] = []
    while True:
        try:
            return read(source), sorted(refused, key=lambda each: each.row)
        except ChangesRefused as error:
            if left is None:
                name, content = source.source_name, source.content
                left = _Lines(name, content) if isinstance(content, bytes) else _Rows(name, content)
            found = left.take_out(error.rows)
            if not found:
                raise
            refused += found
            source = replace(source, content=left.content)


class _Lines:
    """The events of a source; one that was taken out is an empty line."""

    def __init__(self, source_name: str, text: bytes) -> None:
        self._source_name = source_name
        self._lines = lines_of(text)

    @property
    def content(self) -> bytes:
        return b"\n".join(self._lines)

    def take_out(self, rows: Mapping[int, Sequence[str]]) -> list[RefusedChange]:
        found = []
        for row, reasons in rows.items():
            if self._lines[row]:
                found.append(RefusedChange(self._source_name, row, reasons, _as_json(self._lines[row])))
                self._lines[row] = b""
        return found


class _Rows:
    """The rows of a source, and their numbers in it."""

    def __init__(self, source_name: str, rows: pa.Table | DmsTexts) -> None:
        self._source_name = source_name
        self.content = rows
        self._numbers = np.arange(rows.num_rows)

    def take_out(self, rows: Mapping[int, Sequence[str]]) -> list[RefusedChange]:
        """`rows`: by their places among those that are left."""
        wrong = np.array(sorted(rows), np.int64)
        found = []
        taken = self.content.take(wrong)
        values_of = taken.as_written() if isinstance(taken, DmsTexts) else python_rows(taken, replaces_bytes=True)
        for at, values in zip(wrong.tolist(), values_of, strict=True):
            change = to_json(values, bytes_mode="base64", inf_nan_mode="strings", fallback=str)
            found.append(RefusedChange(self._source_name, int(self._numbers[at]), rows[at], change))
        self.content = self.content.take(np.delete(np.arange(self.content.num_rows), wrong))
        self._numbers = np.delete(self._numbers, wrong)
        return found


def _as_json(line: bytes) -> bytes:
    """The event as it was written; as text, if it is no JSON."""
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError):
        return json.dumps(line.decode(errors="replace")).encode()
    return line
