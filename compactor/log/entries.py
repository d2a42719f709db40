"""The entries of a log as objects: how one is rendered, created, read and kept, with its long lists beside it."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from compactor.log.keys import EntryObject, ListsObject
from compactor.log.long_lists import ListsBeside, LongLists
from compactor.model.clock import Clock
from compactor.model.document import Document, not_understood, written_by_newer
from compactor.model.errors import Conflict, Corrupt
from compactor.storage.create_once import create_once
from compactor.storage.object_store import ObjectEntry, ObjectStore

ENTRY_FORMAT, WITH_LISTS_FORMAT = 1, 2

ENTRY_BYTES_MAX = 1_000_000
"""An entry that is longer leaves its long lists to an object beside it."""

ENTRIES_KEPT = 32
"""Entries that a log caches: the first, which has the log's start time, and the newest."""

ActionT = TypeVar("ActionT")


@dataclass(frozen=True)
class Entry(Generic[ActionT]):
    """One entry of a log. `at_ms` never decreases within a log."""

    number: int
    entry_id: str
    at_ms: int
    actions: tuple[ActionT, ...]


class _EntryDocument(Document):
    format: int
    entry_number: int = Field(ge=1)
    entry_id: str
    at_ms: int
    actions: list[JsonValue]
    lists: ListsBeside | None = None


class EntryFolder(Generic[ActionT]):
    """The entries of one log. Safe to share between threads.

    Attributes:
        kept: entries that are cached, by number"""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        log_name: str,
        action_type: TypeAdapter[ActionT],
        clock: Clock,
        *,
        keeps_entries: bool,
        long_lists: LongLists | None,
    ) -> None:
        self.kept: dict[int, Entry[ActionT]] = {}
        self._store = store
        self._folder = folder
        self._log_name = log_name
        self._action_type = action_type
        self._clock = clock
        self._keeps_entries = keeps_entries
        self._long_lists = long_lists
        self._lock = threading.Lock()

    def key(self, number: int) -> str:
        return EntryObject(self._folder, number).key

    def create(self, entry: Entry[ActionT]) -> bool:
        """Whether the entry was created; False: its number is another writer's. Raises `Unavailable` if unknown."""
        key = self.key(entry.number)

        def is_ours(body: bytes) -> bool:
            return self.keep(self._parse(entry.number, key, body)).entry_id == entry.entry_id

        return create_once(self._store, key, self._with_short_lists(entry), is_ours, self._clock)

    def _with_short_lists(self, entry: Entry[ActionT]) -> bytes:
        """The entry, with long lists written beside it."""
        body, long_lists = self._render(entry), self._long_lists
        if long_lists is None or len(body) <= ENTRY_BYTES_MAX:
            return body
        actions, rows = long_lists.left_out_of(entry.actions)
        if not rows:
            return body
        beside = long_lists.render(rows)
        key = ListsObject(self._folder, entry.number, entry.entry_id).key
        if not create_once(self._store, key, beside, lambda found: found == beside, self._clock):
            raise Conflict(f"{key} has the lists of another entry, though no id is given twice")
        return self._render(replace(entry, actions=tuple(actions)), ListsBeside.of(beside, rows))

    def read(self, number: int) -> Entry[ActionT] | None:
        kept = self.kept.get(number)
        if kept is not None:
            return kept
        key = self.key(number)
        body = self._store.read(key)
        return None if body is None else self.keep(self._parse(number, key, body))

    def keep(self, entry: Entry[ActionT]) -> Entry[ActionT]:
        """Caches a durable entry, if its kind of log does so."""
        if self._keeps_entries:
            with self._lock:
                self.kept[entry.number] = entry
                if len(self.kept) > ENTRIES_KEPT:
                    del self.kept[min(number for number in self.kept if number > 1)]
        return entry

    def _render(self, entry: Entry[ActionT], lists: ListsBeside | None = None) -> bytes:
        document = {
            "format": ENTRY_FORMAT if lists is None else WITH_LISTS_FORMAT,
            "entry_number": entry.number,
            "entry_id": entry.entry_id,
            "at_ms": entry.at_ms,
            "actions": entry.actions,
        }
        return to_json(document if lists is None else {**document, "lists": lists})

    def _parse(self, number: int, key: str, body: bytes) -> Entry[ActionT]:
        document = _EntryDocument.parse_durable(body, key)
        lists, long_lists = document.lists, self._long_lists
        known = ENTRY_FORMAT if lists is None or long_lists is None else WITH_LISTS_FORMAT
        if document.format != known:
            raise written_by_newer(key, f"it has format {document.format}")
        if document.entry_number != number:
            raise Corrupt(f"{key} holds entry {document.entry_number}")
        try:
            actions = tuple(self._action_type.validate_json(to_json(action)) for action in document.actions)
        except ValidationError as error:
            raise not_understood(error, key, f"actions of a {self._log_name} log") from error
        if lists is not None and long_lists is not None:
            beside = ListsObject(self._folder, number, document.entry_id).key
            actions = tuple(long_lists.filled_in(actions, lists, self._store.read(beside), beside))
        return Entry(number, document.entry_id, document.at_ms, actions)

    def lists_of_none(self) -> Iterator[ObjectEntry]:
        """Lists of entries that were not written, or not yet."""
        return (found for found, lists in self._lists() if not self._is_of_entry(lists))

    def damaged_lists(self) -> Iterator[str]:
        """What is wrong with long lists that lie beside entries, a sentence each. Reads all of them."""
        for _, lists in self._lists():
            try:
                if self._is_of_entry(lists):
                    self.read(lists.entry_number)
            except Corrupt as error:
                yield str(error)

    def _lists(self) -> Iterator[tuple[ObjectEntry, ListsObject]]:
        listed = self._store.list(f"{self._folder}/lists/") if self._long_lists is not None else ()
        found = ((each, ListsObject.parse_or_none(each.key)) for each in listed)
        return ((each, lists) for each, lists in found if lists is not None)

    def _is_of_entry(self, lists: ListsObject) -> bool:
        key = self.key(lists.entry_number)
        body = self._store.read(key)
        return body is not None and _EntryDocument.parse_durable(body, key).entry_id == lists.entry_id
