"""Finds files that have landed and are in no delta: they were there before the notifications, or theirs was lost.

Each is announced by a `register` document on the queue, and taken in as all others: a stop in between loses none.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from compactor.catalog.delta_files import FileVersion, version_of_file
from compactor.catalog.retired import IDS_REFUSED_SECONDS, RefusedIds, id_digest
from compactor.changes.landing import delta_ids_of, id_of_file
from compactor.lake import DeltaCatalog, Table
from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, LithifyError
from compactor.model.names import PartitionValues
from compactor.storage.concurrently import run_concurrently
from compactor.storage.opening import open_store
from dispatcher.intake.queue import Queue

LOOK_SECONDS = 3_600.0
"""Interval between two looks for lost notifications."""

NOTIFIED_SECONDS = 900
"""Age of a file up to which its notification may still arrive."""

FIRST_LOOK_SECONDS = 24 * 3_600
"""The age of the oldest files of the first look; later ones go back to the look before."""

OBJECTS_A_LOOK = 100_000
"""Objects that one look lists. The next one goes on from there in a while."""

GOES_ON_SECONDS = 60.0

URIS_BYTES_MAX = 100_000
"""Bytes of the URIs of a `register` document, at most."""

Landings = Mapping[str, Sequence[Table]]
"""The tables that files land for, by folder."""


def folder_of(landings: Landings, uri: str) -> str | None:
    """The innermost folder that the file has landed in."""
    return max((each for each in landings if uri.startswith(each)), key=len, default=None)


def takers_of(tables: Sequence[Table], uri: str) -> list[Table]:
    """The tables of a folder that take files with such a name."""
    return [
        table
        for table in tables
        if not table.properties.landing_suffixes or uri.endswith(table.properties.landing_suffixes)
    ]


@dataclass(frozen=True)
class Looked:
    """
    Attributes:
        announced: files that are in no delta
        forgotten: files left out because they may be in a delta that was compacted and forgotten since
        is_whole: every folder was listed to its end
        troubles: folders that could not be listed, and tables that could not be read, with the reasons"""

    announced: int = 0
    forgotten: int = 0
    is_whole: bool = True
    troubles: tuple[str, ...] = ()


class KnownFiles:
    """The files that are in deltas of a table, or were: also in what was taken back, retired, or dropped."""

    def __init__(self, table: Table, lake: DeltaCatalog) -> None:
        def states(partition: PartitionValues) -> list[tuple[list[str], list[RefusedIds], bool]]:
            return [
                (
                    [*source.deltas.ids()] + [each.delta_id for each in source.retracted],
                    [] if source.retired is None else list(source.retired.refused),
                    source.retired is not None and source.retired.count > sum(map(len, source.retired.refused)),
                )
                for source in table.stream(partition).load().state.sources.values()
            ]

        found = run_concurrently(lake.location, states, table.partitions_even_dropped())
        self._ids = {each for stream in found for ids, _, _ in stream for each in ids}
        digests = [ids.array for stream in found for _, refused, _ in stream for ids in refused]
        self._retired = RefusedIds(0, np.sort(np.concatenate(digests)).tobytes() if digests else b"")
        self.has_forgotten = any(forgets for stream in found for _, _, forgets in stream)

    def __contains__(self, file_id: str) -> bool:
        return any(each in self._ids or id_digest(each) in self._retired for each in delta_ids_of(file_id))


class Listing:
    """Looks into the landing folders of a lake's tables. Not thread-safe."""

    def __init__(self, queue: Queue, lake: DeltaCatalog, clock: Clock) -> None:
        self._queue = queue
        self._lake = lake
        self._clock = clock
        self._due_seconds = clock.monotonic_seconds()
        self._since_ms = clock.now_ms() - FIRST_LOOK_SECONDS * 1_000
        self._going: Iterator[tuple[Table, str, int, str | None]] | None = None
        self._began_ms = 0
        self._troubles: list[str] = []

    def look_if_due(self, landings: Landings, unread: Mapping[str, LithifyError]) -> Looked:
        """A look for lost notifications, if the last one is long ago. `unread`: tables whose folders may be unknown."""
        if self._clock.monotonic_seconds() < self._due_seconds:
            return Looked()
        self._due_seconds = self._clock.monotonic_seconds() + LOOK_SECONDS
        if self._going is None:
            self._began_ms, self._going = self._clock.now_ms(), self._files(landings)
            self._begin(unread)
        part, self._going = self._going, None  # after an error it begins anew
        found = self._announce(islice(part, OBJECTS_A_LOOK), self._since_ms, self._began_ms - NOTIFIED_SECONDS * 1_000)
        if not found.is_whole:
            self._going = part
            self._due_seconds = self._clock.monotonic_seconds() + GOES_ON_SECONDS
        elif not self._troubles:
            self._since_ms = self._began_ms - NOTIFIED_SECONDS * 1_000
        return found

    def look_at_all(self, landings: Landings, unread: Mapping[str, LithifyError]) -> Looked:
        """All files that are there now, whatever their age."""
        self._begin(unread)
        return replace(self._announce(self._files(landings), 0, self._clock.now_ms()), is_whole=True)

    def _files(self, landings: Landings) -> Iterator[tuple[Table, str, int, str | None]]:
        """Table, URI, time in ms and ETag. A file that several tables take is told of when it is announced."""
        for folder, tables in landings.items():
            try:
                store = open_store(replace(self._lake.location, root_uri=folder.rstrip("/")))
                for entry in store.list(""):
                    uri = f"{folder}{entry.key}"
                    takers = takers_of(tables, uri) if entry.size_bytes and folder_of(landings, uri) == folder else []
                    if len(takers) == 1:
                        yield takers[0], uri, entry.modified_at_ms, entry.etag
            except LithifyError as error:
                self._set_aside(f"{folder} cannot be listed", error)

    def _begin(self, unread: Mapping[str, LithifyError]) -> None:
        self._troubles = []
        for table_id, error in unread.items():
            self._set_aside(f"table {table_id} cannot be read", error)

    def _set_aside(self, what: str, error: LithifyError) -> None:
        """The others go on. A look with troubles begins anew where this one did."""
        self._troubles.append(f"{what}: {error}")
        LOG.warning("not_looked_at", what=what, reason=str(error))

    def _announce(self, files: Iterator[tuple[Table, str, int, str | None]], from_ms: int, to_ms: int) -> Looked:
        """In the order of their modification, since of rows without sort keys the last ones win. All URIs are held for
        it."""
        known: dict[str, KnownFiles | None] = {}
        remembered_ms = self._clock.now_ms() - IDS_REFUSED_SECONDS * 1_000
        found: list[tuple[int, str]] = []
        listed = forgotten = 0
        for table, uri, modified_at_ms, etag in files:
            listed += 1
            if not from_ms <= modified_at_ms < to_ms:
                continue
            if table.table_id not in known:
                known[table.table_id] = self._known_files(table)
            held = known[table.table_id]
            if held is None:
                continue
            try:
                version = FileVersion("", etag) if etag else version_of_file(self._lake.location, uri)
            except Invalid:
                continue  # deleted since
            if id_of_file(uri, version) in held:
                continue
            if held.has_forgotten and modified_at_ms < remembered_ms:
                forgotten += 1
                continue
            found.append((modified_at_ms, uri))
        found.sort()
        for uris in _documents(uri for _, uri in found):
            self._queue.send(json.dumps({"register": {"files": uris}}, ensure_ascii=False))
        if found or forgotten:
            LOG.warning("files_found_by_listing", announced=len(found), forgotten=forgotten)
        return Looked(len(found), forgotten, listed < OBJECTS_A_LOOK, tuple(self._troubles))

    def _known_files(self, table: Table) -> KnownFiles | None:
        """None if the table cannot be read."""
        try:
            return KnownFiles(table, self._lake)
        except LithifyError as error:
            self._set_aside(f"table {table.table_id} cannot be read", error)
            return None


def _documents(uris: Iterable[str]) -> Iterator[list[str]]:
    """Those of one `register` document each."""
    waiting: list[str] = []
    size_bytes = 0
    for uri in uris:
        uri_bytes = len(uri.encode()) + 4
        if waiting and size_bytes + uri_bytes > URIS_BYTES_MAX:
            yield waiting
            waiting, size_bytes = [], 0
        waiting.append(uri)
        size_bytes += uri_bytes
    if waiting:
        yield waiting
