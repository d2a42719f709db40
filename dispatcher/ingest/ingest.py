"""Takes announced files in. The order of durable writes:

    1  changes that are refused, in the quarantine of a table that has one
    2  the delta files of all files that were collected, in the lake: one of many small ones
    3  one entry in the log of each partition stream that they have rows for
    4  the messages of files that are durable are deleted
    5  copies of those of files that cannot be taken in, among the dead letters, with the reasons
    6  these messages are deleted

Messages of a table that cannot be read or written for now stay on the queue, the others go on. Files of a table follow
one another by their times: S3's event, else when the message was sent.

The id of an append is the file's URI and version, or that of rows in a message, and the entry names those of a delta.
So a file that is announced twice, or whose message comes again after a stop at any of these writes, is in exactly one
delta of each stream; and by S3's sequencers a version that comes late is not written over a newer one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from compactor.catalog.delta_files import begin_files, is_at_hand, version_of_file
from compactor.changes.landing import LandedFile, LandedSource, divide, divide_together, read_file
from compactor.changes.quarantine import Quarantine, quarantine_of
from compactor.changes.sources import FeedSource
from compactor.lake import DeltaCatalog, Table
from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Denied, Invalid, LithifyError, Outdated, Unavailable, reason_of
from compactor.storage.concurrently import run_concurrently
from dispatcher.ingest.announcements import Announced, AnnouncedRows, parse_announcements
from dispatcher.ingest.listing import Landings, Listing, Looked, folder_of, takers_of
from dispatcher.intake.queue import Queue, QueueMessage

TABLES_KNOWN_SECONDS = 60.0
"""Age at which it is read again which tables files land for."""

VISIBILITY_SECONDS = 600
MESSAGES_AT_ONCE = 10
RECEIVES_AT_ONCE = 8
"""Requests for messages while more of them wait than one request gives. botocore's client has ten connections."""

WAIT_SECONDS_MAX = 20

FILES_READ_AT_ONCE = 64
READ_AT_ONCE_SHARE = 16
"""Files that are read side by side have together no more than this part of the bytes of a collection, in storage."""

UNKNOWN_BYTES = 1024**2
"""The size that a file is taken to have, if its announcement does not say it."""


@dataclass(frozen=True)
class IngestSettings:
    """What ends a collection: its time, once no more messages wait, or so many files or bytes.

    Attributes:
        collect_seconds: a file is durable about so long after its message"""

    collect_seconds: float = 10.0
    files_max: int = 1_000
    bytes_max: int = 256 * 1024**2


@dataclass(frozen=True)
class Ingested:
    """What became of one collection. `left_out`: files whose names no table of their folder takes; `waiting`: messages
    that stay on the queue."""

    messages: int = 0
    files: int = 0
    rows: int = 0
    superseded: int = 0
    left_out: int = 0
    refused: int = 0
    quarantined_rows: int = 0
    waiting: int = 0


_Landing = Announced | AnnouncedRows
_FoundT = TypeVar("_FoundT")


@dataclass(eq=False)
class _Message:
    """`reasons`: why files of it cannot be taken in; `waits_for`: why others cannot yet."""

    message: QueueMessage
    files: tuple[_Landing, ...] = ()
    reasons: list[str] = field(default_factory=list)
    waits_for: list[str] = field(default_factory=list)


class Ingest:
    """One of any number that take messages of one queue. Not thread-safe."""

    def __init__(self, queue: Queue, lake: DeltaCatalog, settings: IngestSettings, clock: Clock) -> None:
        self._queue = queue
        self._lake = lake
        self._settings = settings
        self._clock = clock
        self._landings: Landings = {}
        self._by_id: dict[str, Table] = {}
        self._unread: dict[str, LithifyError] = {}
        self._listing = Listing(queue, lake, clock)
        self._known_until_seconds = 0.0

    def collect_once(self) -> Ingested:
        """Collects messages, and takes their files in. Raises `Unavailable`, after which the messages come again."""
        messages = self._collect()
        if not messages:
            return Ingested()
        by_table, left_out = self._by_table(messages)
        done = Ingested(messages=len(messages), left_out=left_out)
        for table, files in by_table:
            try:
                done = self._take(table, files, done)
            except (Denied, Outdated) as error:
                LOG.warning("table_waits", table_id=table.table_id, reason=str(error))
                for message in set(chain.from_iterable(files.values())):
                    message.waits_for += error.reasons
        return self._settle(messages, done)

    def _by_table(self, messages: Sequence[_Message]) -> tuple[list[tuple[Table, dict[_Landing, list[_Message]]]], int]:
        """The files of each table with the messages that announce them, and how many files no table takes."""
        found: dict[str, tuple[Table, dict[_Landing, list[_Message]]]] = {}
        left_out = 0
        for message in messages:
            for file in message.files:
                try:
                    table = self._table_of(file)
                except (Invalid, Corrupt) as error:
                    message.reasons += error.reasons
                except (Denied, Outdated) as error:
                    message.waits_for += error.reasons
                else:
                    if table is None:
                        left_out += 1
                    else:
                        _, files = found.setdefault(table.table_id, (table, {}))
                        files.setdefault(file, []).append(message)
        return list(found.values()), left_out

    def _settle(self, messages: Sequence[_Message], done: Ingested) -> Ingested:
        """Deletes messages, but those that wait. The queue itself would take one among the dead letters after its last
        delivery, without a reason."""
        deliveries_max = self._queue.deliveries_max
        for each in messages:
            if each.waits_for and deliveries_max is not None and each.message.delivery_count >= deliveries_max:
                each.reasons, each.waits_for = each.reasons + each.waits_for, []
        left = [each for each in messages if not each.waits_for]
        refused = [each for each in left if each.reasons]
        self._queue.delete_all([each.message for each in left if not each.reasons])
        for each in refused:
            LOG.warning("file_refused", message_id=each.message.message_id, reasons=each.reasons)
            self._queue.dead_letter(each.message, each.reasons)
        self._queue.delete_all([each.message for each in refused])
        found = replace(done, refused=len(refused), waiting=len(messages) - len(left))
        LOG.info("files_ingested", **vars(found))
        return found

    def look_for_lost(self) -> Looked:
        """Announces files whose notifications were lost, if the last look is long ago."""
        landings = self._tables()
        return self._listing.look_if_due(landings, self._unread)

    def look_at_all(self) -> Looked:
        """Announces every file that has landed, whenever that was, and is in no delta."""
        landings = self._tables()
        return self._listing.look_at_all(landings, self._unread)

    def _table_of(self, landing: _Landing) -> Table | None:
        """None for a file that no table of its folder takes. Raises `Invalid` if several do, or it is in no folder, and
        the error of a table that cannot be read, if it is or may be that one's."""
        landings = self._tables()
        if isinstance(landing, AnnouncedRows):
            return self._readable(landing.table_id)
        folder = folder_of(landings, landing.uri)
        takers = [] if folder is None else takers_of(landings[folder], landing.uri)
        if not takers and self._unread:
            # A file waits for a table that can be read later; for one that is damaged it does not.
            table_id, error = min(self._unread.items(), key=lambda each: isinstance(each[1], Corrupt))
            raise type(error)(f"{landing.uri} may land for {table_id}, which cannot be read: {error}")
        if folder is None:
            raise Invalid(f"{landing.uri} lands for no table: set the property landing of its table")
        if len(takers) > 1:
            named = ", ".join(each.table_id for each in takers)
            raise Invalid(
                f"{landing.uri} lands for {named}: let the property landing of one name {folder}, or let their "
                "landing_suffixes differ"
            )
        return self._readable(takers[0].table_id) if takers else None

    def _readable(self, table_id: str) -> Table:
        """Raises what it fails with, if it cannot be read."""
        if table_id in self._unread:
            raise self._unread[table_id]
        if table_id not in self._by_id:
            self._by_id[table_id] = self._lake.table(table_id)
        return self._by_id[table_id]

    def _collect(self) -> list[_Message]:
        settings, began = self._settings, self._clock.monotonic_seconds()
        messages: list[_Message] = []
        files = size_bytes = 0
        requests = 1
        while True:
            left = settings.collect_seconds - (self._clock.monotonic_seconds() - began)
            # Without a wait SQS asks some of its servers only, and may find no message although there are some.
            wait = min(max(int(left), 1), WAIT_SECONDS_MAX) if left > 0 or not messages else 0
            received = self._receive(requests, wait)
            more_wait = len(received) > requests * MESSAGES_AT_ONCE // 2
            for each in received:
                message = _Message(each)
                try:
                    message.files = tuple(_identified(one, each) for one in parse_announcements(each.body))
                except Invalid as error:
                    message.reasons += error.reasons
                messages.append(message)
                files += len(message.files)
                size_bytes += sum(map(_size_bytes, message.files))
            is_full = files >= settings.files_max or size_bytes >= settings.bytes_max
            if is_full or (left <= 0 and not more_wait):
                return messages
            room = -(-(settings.files_max - files) // MESSAGES_AT_ONCE)
            requests = min(RECEIVES_AT_ONCE, room) if more_wait else 1

    def _receive(self, requests: int, wait_seconds: int) -> list[QueueMessage]:
        """Only a request that is alone waits for long."""

        def receive(wait_seconds: int) -> Sequence[QueueMessage]:
            return self._queue.receive(MESSAGES_AT_ONCE, wait_seconds, VISIBILITY_SECONDS)

        if requests == 1:
            return list(receive(wait_seconds))
        with ThreadPoolExecutor(requests) as threads:
            answers = threads.map(receive, [min(wait_seconds, 1)] * requests)
            return [message for answer in answers for message in answer]

    def _tables(self) -> Landings:
        """Of each folder one, if tables do not contradict one another."""
        now_seconds = self._clock.monotonic_seconds()
        if now_seconds >= self._known_until_seconds:
            self._unread = {}
            tables = [table for table_id in self._lake.tables() if (table := self._opened(table_id)) is not None]
            found: dict[str, list[Table]] = {}
            for table in tables:
                for folder in table.properties.landing:
                    found.setdefault(folder, []).append(table)
            self._landings = found
            self._by_id = {each.table_id: each for each in tables}
            self._known_until_seconds = now_seconds + TABLES_KNOWN_SECONDS
        return self._landings

    def _opened(self, table_id: str) -> Table | None:
        """None for a table that was dropped meanwhile. One that cannot be read is set aside, with the landing that it
        had: the others go on."""
        try:
            return self._lake.table(table_id)
        except Invalid:
            return None
        except (Corrupt, Denied, Outdated) as error:
            LOG.warning("table_not_read", table_id=table_id, reason=str(error))
            self._unread[table_id] = error
            return self._by_id.get(table_id)

    def _take(self, table: Table, files: Mapping[_Landing, Sequence[_Message]], done: Ingested) -> Ingested:
        """As many files of a table as memory is for with one entry for each stream."""
        landed: list[tuple[LandedFile, Sequence[_Message]]] = []
        held_bytes = 0
        try:
            quarantine = quarantine_of(table.properties.quarantine, None, self._lake.location, self._clock)
        except Invalid as error:
            for file, messages in files.items():
                _refuse(messages, _name(file), error)
            return done

        newest = _newest_of_each(files)
        done = replace(done, superseded=done.superseded + len(files) - len(newest))
        parts = list(_read_together(newest, self._settings.bytes_max))
        self._begin(parts[:1])
        for number, together in enumerate(parts, 1):
            self._begin(parts[number : number + 1])
            for file, found in self._landed(table, together, quarantine):
                if isinstance(found, LithifyError):
                    _refuse(files[file], _name(file), found)
                elif found is not None:
                    landed.append((found, files[file]))
                    held_bytes += found.size_bytes
                else:
                    done = replace(done, superseded=done.superseded + 1)
            if held_bytes >= self._settings.bytes_max or len(landed) >= self._settings.files_max:
                done, landed, held_bytes = _append(table, landed, done), [], 0
        return _append(table, landed, done) if landed else done

    def _begin(self, parts: Sequence[Sequence[_Landing]]) -> None:
        """Requests files, so that they are there when the part before them is divided."""
        files = [file.uri for part in parts for file in part if isinstance(file, Announced)]
        begin_files(self._lake.location, files)

    def _landed(
        self, table: Table, files: Sequence[_Landing], quarantine: Quarantine | None
    ) -> list[tuple[_Landing, LandedFile | LithifyError | None]]:
        """What became of each; None: another version is there than the one that was announced."""
        location = self._lake.location

        def read(file: _Landing) -> LandedSource | LithifyError | None:
            return self._tried(file, lambda: self._read(table, file))

        # Small files are there: to read them in threads would take longer.
        far = [file for file in files if isinstance(file, Announced) and not is_at_hand(location, file.uri)]
        of_far = dict(zip(far, run_concurrently(location, read, far), strict=True))
        found = [(file, of_far[file] if file in of_far else read(file)) for file in files]
        there = [(file, each) for file, each in found if isinstance(each, LandedSource)]
        divided: Sequence[LandedFile | LithifyError | None] | None = divide_together(table, [each for _, each in there])
        if divided is None:

            def divide_alone(read: tuple[_Landing, LandedSource]) -> LandedFile | LithifyError | None:
                return self._tried(read[0], lambda: divide(table, read[1], quarantine))

            divided = run_concurrently(location, divide_alone, there)
        left = [(file, each) for file, each in found if not isinstance(each, LandedSource)]
        return [*zip((file for file, _ in there), divided, strict=True), *left]

    def _read(self, table: Table, file: _Landing) -> LandedSource | None:
        location = self._lake.location
        if isinstance(file, AnnouncedRows):
            return LandedSource(f"{file.rows_id}", FeedSource(_name(file), file.lines))
        version = version_of_file(location, file.uri, was_read=True)
        if file.etag is not None and version.etag is not None and file.etag != version.etag.strip('"'):
            LOG.info("file_superseded", uri=file.uri, announced=file.etag, found=version.etag)
            return None
        return read_file(table, location, file.uri, version, file.sequencer)

    def _tried(self, file: _Landing, step: Callable[[], _FoundT | None]) -> _FoundT | LithifyError | None:
        """Its result, or the error that is the file's own. Raises `Unavailable`."""
        try:
            try:
                return step()
            except (Invalid, Corrupt):
                if isinstance(file, AnnouncedRows) or file.etag is None:
                    raise
                if (version_of_file(self._lake.location, file.uri).etag or file.etag).strip('"') == file.etag:
                    raise
                LOG.info("file_superseded", uri=file.uri, announced=file.etag)
                return None
        except (Invalid, Corrupt, Denied) as error:
            return error
        except LithifyError:
            raise
        except Exception as error:  # noqa: BLE001  (one file may not end the service, whatever is wrong with it)
            return _defect(error)


def _newest_of_each(files: Iterable[_Landing]) -> list[_Landing]:
    """In their order, without files of which a later version is announced, too: S3 orders the versions of a key by
    their sequencers, and announces them in any order."""
    found = sorted(files, key=lambda file: file.at_ms or 0)
    newest: dict[str, str] = {}
    for file in found:
        if isinstance(file, Announced):
            newest[file.uri] = max(newest.get(file.uri, ""), file.sequencer or "")
    return [
        file
        for file in found
        if isinstance(file, AnnouncedRows) or file.sequencer is None or newest[file.uri] == file.sequencer
    ]


def _read_together(files: Sequence[_Landing], bytes_max: int) -> Iterator[list[_Landing]]:
    """Parts of the files that are read side by side, so that their rows have room."""
    part: list[_Landing] = []
    left_bytes = bytes_max // READ_AT_ONCE_SHARE
    for file in files:
        size_bytes = _size_bytes(file) or UNKNOWN_BYTES
        if part and (size_bytes > left_bytes or len(part) == FILES_READ_AT_ONCE):
            yield part
            part, left_bytes = [], bytes_max // READ_AT_ONCE_SHARE
        part.append(file)
        left_bytes -= size_bytes
    if part:
        yield part


def _append(table: Table, landed: list[tuple[LandedFile, Sequence[_Message]]], done: Ingested) -> Ingested:
    """With one entry for each stream; if one of the files cannot be appended, each by itself."""
    try:
        superseded = table.append_joined([arrival for each, _ in landed for arrival in each.arrivals])
    except Unavailable:
        raise
    except Exception:  # noqa: BLE001  (of one of the files: see below)
        landed, superseded = [each for each in landed if _is_taken_alone(table, *each)], []
    if superseded:
        LOG.info("files_superseded", delta_ids=superseded)
    late, before = Counter(superseded), len(landed)
    landed = [each for each in landed if not each[0].arrivals or Counter(each[0].delta_ids) - late]
    quarantined = sum(each.quarantined_rows for each, _ in landed)
    return replace(
        done,
        files=done.files + len(landed),
        superseded=done.superseded + before - len(landed),
        rows=done.rows + sum(each.rows for each, _ in landed),
        quarantined_rows=done.quarantined_rows + quarantined,
    )


def _identified(landing: _Landing, message: QueueMessage) -> _Landing:
    """What the message knows of it. It is the same when that comes again, also as a copy."""
    origin = message.origin
    found = landing if landing.at_ms is not None else replace(landing, at_ms=origin.sent_at_ms)
    if isinstance(found, AnnouncedRows) and found.rows_id is None:
        return replace(found, rows_id=f"message:{origin.message_id}")
    return found


def _size_bytes(landing: _Landing) -> int:
    return len(landing.lines) if isinstance(landing, AnnouncedRows) else landing.size_bytes or 0


def _name(landing: _Landing) -> str:
    return f"rows {landing.rows_id}" if isinstance(landing, AnnouncedRows) else landing.uri


def _is_taken_alone(table: Table, file: LandedFile, messages: Sequence[_Message]) -> bool:
    try:
        table.append_joined(file.arrivals)
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001  (the others go on)
        _refuse(messages, file.file_id, error if isinstance(error, LithifyError) else _defect(error))
        return False
    return True


def _defect(error: Exception) -> Invalid:
    LOG.exception("file_not_taken_in")
    return Invalid(f"it cannot be taken in, by a defect of Lithify ({reason_of(error)}): report it")


def _refuse(messages: Sequence[_Message], uri: str, error: LithifyError) -> None:
    reasons = error.reasons if isinstance(error, Invalid) else (str(error),)
    for message in messages:
        message.reasons += [reason if uri in reason else f"{uri}: {reason}" for reason in reasons]
