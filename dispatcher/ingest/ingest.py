"""Takes announced files in. The order of durable writes:

    1  changes that are refused, in the quarantine of a table that has one
    2  the delta files of all files that were collected, in the lake
    3  one entry in the log of each partition stream that they have rows for
    4  copies of messages of files that cannot be taken in, among the dead letters, with the reasons
    5  the messages are deleted

A delta's id is the file's URI and version. So a file that is announced twice, or whose message comes again after a stop
at any of these writes, is in exactly one delta of each stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import structlog

from compactor.catalog.delta_files import version_of_file
from compactor.changes.landing import LandedFile, deltas_of_file
from compactor.changes.quarantine import quarantine_of
from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Denied, Invalid, LithifyError
from dispatcher.ingest.announcements import Announced, parse_announcements
from dispatcher.intake.queue import Queue, QueueMessage

_log = structlog.get_logger(__name__)

TABLES_KNOWN_SECONDS = 60.0
"""Age at which it is read again which tables files land for."""

VISIBILITY_SECONDS = 600
MESSAGES_AT_ONCE = 10
WAIT_SECONDS_MAX = 20


@dataclass(frozen=True)
class IngestSettings:
    """What ends a collection: its time, or so many files or bytes.

    collect_seconds  a file is durable about so long after its message
    """

    collect_seconds: float = 10.0
    files_max: int = 1_000
    bytes_max: int = 256 * 1024**2


@dataclass(frozen=True)
class Ingested:
    """What became of one collection."""

    messages: int = 0
    files: int = 0
    rows: int = 0
    superseded: int = 0
    refused: int = 0
    quarantined_rows: int = 0


@dataclass
class _Message:
    """`reasons`: why files of it cannot be taken in."""

    message: QueueMessage
    files: tuple[Announced, ...] = ()
    reasons: list[str] = field(default_factory=list)


class Ingest:
    """One of any number that take messages of one queue. Not thread-safe."""

    def __init__(self, queue: Queue, lake: DeltaCatalog, settings: IngestSettings, clock: Clock) -> None:
        self._queue = queue
        self._lake = lake
        self._settings = settings
        self._clock = clock
        self._landings: Mapping[str, Sequence[Table]] = {}
        self._known_until_seconds = 0.0

    def collect_once(self) -> Ingested:
        """Collects messages, and takes their files in. Raises `Unavailable` if the lake or the queue does not answer:
        the messages come again."""
        messages = self._collect()
        if not messages:
            return Ingested()
        landings = self._tables()
        by_table: dict[str, dict[Announced, list[_Message]]] = {}
        tables: dict[str, Table] = {}
        for message in messages:
            for file in message.files:
                folder = max((each for each in landings if file.uri.startswith(each)), key=len, default=None)
                if folder is None:
                    message.reasons.append(f"{file.uri} lands for no table: set the property landing of its table")
                    continue
                first, *others = landings[folder]
                if others:
                    named = ", ".join(each.table_id for each in landings[folder])
                    message.reasons.append(
                        f"{file.uri} lands for {named}: let the property landing of one name {folder}"
                    )
                    continue
                tables[first.table_id] = first
                by_table.setdefault(first.table_id, {}).setdefault(file, []).append(message)
        done = Ingested(messages=len(messages))
        for table_id, files in by_table.items():
            done = self._take(tables[table_id], files, done)
        refused = sum(bool(message.reasons) for message in messages)
        for message in messages:
            if message.reasons:
                _log.warning("file_refused", message_id=message.message.message_id, reasons=message.reasons)
                self._queue.dead_letter(message.message, message.reasons)
            self._queue.delete(message.message)
        found = replace(done, refused=refused)
        _log.info("files_ingested", **vars(found))
        return found

    def _collect(self) -> list[_Message]:
        settings, began = self._settings, self._clock.monotonic_seconds()
        messages: list[_Message] = []
        files = size_bytes = 0
        while True:
            left = settings.collect_seconds - (self._clock.monotonic_seconds() - began)
            wait = min(max(int(left), 1), WAIT_SECONDS_MAX) if left > 0 else 0
            received = self._queue.receive(MESSAGES_AT_ONCE, wait, VISIBILITY_SECONDS)
            for each in received:
                message = _Message(each)
                try:
                    message.files = tuple(parse_announcements(each.body))
                except Invalid as error:
                    message.reasons += error.reasons
                messages.append(message)
                files += len(message.files)
                size_bytes += sum(file.size_bytes or 0 for file in message.files)
            if files >= settings.files_max or size_bytes >= settings.bytes_max or left <= 0:
                return messages

    def _tables(self) -> Mapping[str, Sequence[Table]]:
        """By the folder in which their files land; of each one, if tables do not contradict one another."""
        now_seconds = self._clock.monotonic_seconds()
        if now_seconds >= self._known_until_seconds:
            tables = [self._lake.table(table_id) for table_id in self._lake.tables()]
            found: dict[str, list[Table]] = {}
            for table in tables:
                for folder in table.properties.landing:
                    found.setdefault(folder, []).append(table)
            self._landings = found
            self._known_until_seconds = now_seconds + TABLES_KNOWN_SECONDS
        return self._landings

    def _take(self, table: Table, files: Mapping[Announced, Sequence[_Message]], done: Ingested) -> Ingested:
        """All files of a table with one entry for each stream; if one of them cannot be appended, each by itself."""
        landed: list[tuple[LandedFile, Sequence[_Message]]] = []
        superseded = 0
        location = self._lake.location
        quarantine = quarantine_of(table.properties.quarantine, None, location, self._clock)
        for file in sorted(files, key=lambda each: (each.sequencer or "", each.uri)):
            try:
                version = version_of_file(location, file.uri)
                if file.etag is not None and version.etag is not None and file.etag != version.etag.strip('"'):
                    _log.info("file_superseded", uri=file.uri, announced=file.etag, found=version.etag)
                    superseded += 1
                    continue
                landed.append((deltas_of_file(table, location, file.uri, version, quarantine), files[file]))
            except (Invalid, Corrupt, Denied) as error:
                _refuse(files[file], file.uri, error)
        try:
            table.append_many(*_joined([each for each, _ in landed]))
        except Invalid:
            landed = [each for each in landed if _is_taken_alone(table, *each)]
        rows = sum(part.num_rows for each, _ in landed for _, part, _ in each.deltas)
        return replace(
            done,
            files=done.files + len(landed),
            rows=done.rows + rows,
            superseded=done.superseded + superseded,
            quarantined_rows=done.quarantined_rows + sum(each.quarantined_rows for each, _ in landed),
        )


def _joined(files: Sequence[LandedFile]) -> tuple[list[tuple[dict[str, str], pa.Table, str]], list[str]]:
    """Deltas and ids; a version that was announced twice is given once."""
    once = {each.file_id: each for each in files}.values()
    return [delta for each in once for delta in each.deltas], [one for each in once for one in each.delta_ids]


def _is_taken_alone(table: Table, file: LandedFile, messages: Sequence[_Message]) -> bool:
    try:
        table.append_many(*_joined([file]))
    except Invalid as error:
        _refuse(messages, file.file_id, error)
        return False
    return True


def _refuse(messages: Sequence[_Message], uri: str, error: LithifyError) -> None:
    reasons = error.reasons if isinstance(error, Invalid) else (str(error),)
    for message in messages:
        message.reasons += [reason if uri in reason else f"{uri}: {reason}" for reason in reasons]
