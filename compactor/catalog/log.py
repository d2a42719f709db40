"""The durable log: numbered immutable entries, created by put-if-absent, folded into a state. The one primitive.

An entry is one object, `<folder>/<number, 20 digits>.json`, from 1 without gaps. Whoever creates number n decided on
the fold of 1 .. n-1 and nothing else: that is the whole of concurrency control. An entry never changes and is never
deleted (a deleted name could be won a second time, by a writer that had stalled).

What may go wrong, and what settles it:

| the put of entry n ends as | meaning | then |
|---|---|---|
| created | ours | done |
| taken | another's, or our own: a store may repeat a put whose first answer was lost | read it, compare the entry id |
| unavailable | unknown | read it, compare the entry id; absent: put the same entry again, which is safe |

A `checkpoint` is the fold at one entry, kept so that a reader need not start from entry 1. It and the hint that names
the latest one are derived from the log: one that is missing, old or broken costs time, never an answer.

What the entries say is not known here: a `LogFormat` gives the actions, the fold and the form of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from pydantic import Field, JsonValue, TypeAdapter
from pydantic_core import to_json

from compactor.catalog.paths import LogObject
from compactor.clock import Clock
from compactor.document import Document
from compactor.errors import Conflict, Corrupt, Invalid, Unavailable
from compactor.object_store import ObjectStore

_log = structlog.get_logger(__name__)

ENTRY_FORMAT = 1
CHECKPOINT_FORMAT = 1

CHECKPOINT_ENTRIES = 32
"""A checkpoint is written at every multiple. A reader without a warm state reads at most this many entries after it."""

APPEND_ATTEMPTS_MAX = 1_000
"""Races one append may lose before it gives up. Each loss is another writer's success, so only starvation gets here."""

UNKNOWN_ATTEMPTS_MAX = 5
"""Tries to settle one put whose answer was lost. With their pauses (3 seconds at most) over, we say it is unknown."""

PAUSE_SECONDS_MIN = 0.005
PAUSE_SECONDS_MAX = 1.0
UNKNOWN_DOUBLINGS = 5
"""A service that did not answer needs more time than a rival: its first pause is up to 0.005 * 2**5 = 0.16 seconds."""

_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, Corrupt)
"""What reading a broken checkpoint can raise; a broken document is a ValueError."""

StateT = TypeVar("StateT")
ActionT = TypeVar("ActionT")


@dataclass(frozen=True)
class Entry(Generic[ActionT]):
    """One durable step of a log. `at_ms` never goes back within a log."""

    number: int
    entry_id: str
    at_ms: int
    actions: tuple[ActionT, ...]


@dataclass(frozen=True)
class Checkpoint(Generic[StateT]):
    """How a state is laid out as an Arrow table of typed columns. `from_table` raises `Corrupt` for any other table."""

    to_table: Callable[[StateT], pa.Table]
    from_table: Callable[[pa.Table], StateT]


@dataclass(frozen=True)
class LogFormat(Generic[StateT, ActionT]):
    """What distinguishes one kind of log from another: values and pure functions.

    checkpoint  None: these logs are short, and are always read from entry 1
    """

    name: str
    action_type: TypeAdapter[ActionT]
    initial: StateT
    apply: Callable[[StateT, ActionT], StateT]
    checkpoint: Checkpoint[StateT] | None = None


@dataclass(frozen=True)
class LogState(Generic[StateT]):
    """The fold of entries 1 .. entry_number. `at_ms` is that entry's time; both are 0 for the empty log."""

    entry_number: int
    state: StateT
    at_ms: int = 0


@dataclass(frozen=True)
class Appended(Generic[StateT, ActionT]):
    """What came of an append.

    entry  the entry that was written; None: `decide` found nothing to write
    after  the fold up to and with the entry; without one, the fold that `decide` saw
    """

    entry: Entry[ActionT] | None
    after: LogState[StateT]


class _EntryDocument(Document):
    format: int
    entry_number: int = Field(ge=1)
    entry_id: str
    at_ms: int
    actions: list[JsonValue]


class _Hint(Document):
    """The one object of a log that is overwritten."""

    format: Literal[1] = 1
    entry_number: int = Field(ge=1)


class DurableLog(Generic[StateT, ActionT]):
    """One log. Remembers the newest fold it has seen, so a second load reads only what was added since.

    Safe to share between threads: entries are immutable, so an older remembered fold is a slower one, not a wrong one.
    """

    def __init__(self, store: ObjectStore, folder: str, log_format: LogFormat[StateT, ActionT], clock: Clock) -> None:
        self.folder = folder
        self._store = store
        self._format = log_format
        self._clock = clock
        self._newest: LogState[StateT] = LogState(0, log_format.initial)

    def load(self, as_of: int | None = None) -> LogState[StateT]:
        """The fold of the log, or of its entries up to and with number `as_of` (`Invalid` if it has no such entry)."""
        if as_of is not None and as_of < 0:
            raise Invalid(f"there is no entry {as_of} in log {self.folder}: entries count from 1")
        log_state = self._nearest(as_of)
        while log_state.entry_number != as_of:
            entry = self._read(log_state.entry_number + 1)
            if entry is None:
                break
            log_state = self._apply(log_state, entry)
        self._remember(log_state)
        if as_of is not None and log_state.entry_number < as_of:
            raise Invalid(f"there is no entry {as_of} in log {self.folder}: it ends at entry {log_state.entry_number}")
        return log_state

    def entries(self, after: int = 0) -> Iterator[Entry[ActionT]]:
        """Entries from number `after` + 1 to the end, in order."""
        number = after + 1
        while (entry := self._read(number)) is not None:
            yield entry
            number += 1

    def entry_number_at(self, at_ms: int) -> int:
        """The last entry written at or before a time (ms since the epoch); 0 if the log began later."""
        before, after = 0, self.load().entry_number + 1
        while after - before > 1:
            middle = (before + after) // 2
            written_in_time = self.entry(middle).at_ms <= at_ms
            before, after = (middle, after) if written_in_time else (before, middle)
        return before

    def entry(self, number: int) -> Entry[ActionT]:
        """One entry that must exist (`Corrupt` if it does not)."""
        entry = self._read(number)
        if entry is None:
            raise Corrupt(f"entry {number} of log {self.folder} is missing, though later ones exist")
        return entry

    def append(self, decide: Callable[[LogState[StateT]], Sequence[ActionT]]) -> Appended[StateT, ActionT]:
        """Write one entry with the actions that `decide` returns for the fold before it.

        `decide` may be called many times, each time on a newer fold; it may raise (nothing is written then), or return
        no actions. Raises `Unavailable` where the outcome stayed unknown (the entry may stand, or yet appear), and
        `Conflict` after too many lost races.
        """
        entry_id = self._clock.new_id()
        before = self.load()
        for losses in range(APPEND_ATTEMPTS_MAX):
            actions = tuple(decide(before))
            if not actions:
                return Appended(None, before)
            at_ms = max(self._clock.now_ms(), before.at_ms)
            entry = Entry(before.entry_number + 1, entry_id, at_ms, actions)
            # Fold first: an action that cannot follow is a bug in `decide`, and must not become durable.
            after = self._apply(before, entry)
            if self._create(entry):
                self._remember(after)
                self._checkpoint_when_due(after)
                return Appended(entry, after)
            self._pause(losses)
            before = self.load()
        raise Conflict(
            f"{APPEND_ATTEMPTS_MAX} other writers were faster than this append to log {self.folder}: try again"
        )

    def write_checkpoint(self, log_state: LogState[StateT]) -> None:
        """Keep this fold beside the log, and point the hint at it. Nothing for a kind of log without checkpoints."""
        if self._format.checkpoint is None or log_state.entry_number == 0:
            return
        table = self._format.checkpoint.to_table(log_state.state)
        said = {
            "lithify.format": str(CHECKPOINT_FORMAT),
            "lithify.log": self._format.name,
            "lithify.entry_number": str(log_state.entry_number),
            "lithify.at_ms": str(log_state.at_ms),
        }
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(said), sink, compression="zstd", write_page_checksum=True)
        self._store.overwrite(self._checkpoint_key(log_state.entry_number), sink.getvalue().to_pybytes())
        self._store.overwrite(self._hint_key, _Hint(entry_number=log_state.entry_number).render())

    # -- entries

    def _create(self, entry: Entry[ActionT]) -> bool:
        """Whether the entry stands under its number; False: another writer's does. Raises `Unavailable` if unknown."""
        key, body = self._entry_key(entry.number), self._render(entry)
        failure: Unavailable | None = None
        for tries in range(UNKNOWN_ATTEMPTS_MAX):
            try:
                if self._store.put_if_absent(key, body):
                    return True
            except Unavailable as error:
                failure = error
            try:
                standing = self._read(entry.number)
            except Unavailable as error:
                failure, standing = error, None
            if standing is not None:
                return standing.entry_id == entry.entry_id
            self._pause(UNKNOWN_DOUBLINGS + tries)
        raise Unavailable(
            f"it is not known whether entry {entry.number} of log {self.folder} was written: {failure}"
        ) from failure

    def _read(self, number: int) -> Entry[ActionT] | None:
        key = self._entry_key(number)
        body = self._store.read(key)
        return None if body is None else self._parse(number, key, body)

    def _apply(self, log_state: LogState[StateT], entry: Entry[ActionT]) -> LogState[StateT]:
        state = log_state.state
        for action in entry.actions:
            try:
                state = self._format.apply(state, action)
            except Corrupt as error:
                raise Corrupt(f"entry {entry.number} of log {self.folder} cannot follow: {error}") from error
        return LogState(entry.number, state, entry.at_ms)

    def _render(self, entry: Entry[ActionT]) -> bytes:
        return to_json(
            {
                "format": ENTRY_FORMAT,
                "entry_number": entry.number,
                "entry_id": entry.entry_id,
                "at_ms": entry.at_ms,
                "actions": entry.actions,
            }
        )

    def _parse(self, number: int, key: str, body: bytes) -> Entry[ActionT]:
        document = _EntryDocument.parse_durable(body, key)
        if document.format != ENTRY_FORMAT:
            raise Invalid(f"{key} has format {document.format}, newer than this Lithify reads: upgrade it")
        if document.entry_number != number:
            raise Corrupt(f"{key} holds entry {document.entry_number}")
        try:
            actions = tuple(self._format.action_type.validate_json(to_json(action)) for action in document.actions)
        except ValueError as error:
            raise Corrupt(f"{key} does not hold actions of a {self._format.name} log: {error}") from error
        return Entry(number, document.entry_id, document.at_ms, actions)

    # -- folds to start from

    def _remember(self, log_state: LogState[StateT]) -> None:
        if log_state.entry_number > self._newest.entry_number:
            self._newest = log_state

    def _nearest(self, as_of: int | None) -> LogState[StateT]:
        """The latest fold at or before `as_of` that can be had without replaying the log."""
        newest = self._newest
        if newest.entry_number > 0 and (as_of is None or newest.entry_number <= as_of):
            return newest
        for entry_number in self._checkpoints_to_try(as_of):
            log_state = self._read_checkpoint(entry_number)
            if log_state is not None:
                return log_state
        return LogState(0, self._format.initial)

    def _checkpoints_to_try(self, as_of: int | None) -> list[int]:
        """Entry numbers, the latest first: where the hint points, and two where a checkpoint was due before that."""
        if self._format.checkpoint is None:
            return []
        hinted = self._read_hint()
        usable = hinted is not None and (as_of is None or hinted <= as_of)
        latest = hinted if usable else as_of
        if latest is None:
            return []
        due = latest // CHECKPOINT_ENTRIES * CHECKPOINT_ENTRIES
        numbers = [latest] if usable else []
        numbers += [due, due - CHECKPOINT_ENTRIES, due - 2 * CHECKPOINT_ENTRIES]
        return [number for number in dict.fromkeys(numbers) if number > 0]

    def _read_hint(self) -> int | None:
        body = self._store.read(self._hint_key)
        if body is None:
            return None
        try:
            return _Hint.parse_durable(body, self._hint_key).entry_number
        except Corrupt as error:
            _log.warning("checkpoint_hint_unreadable", log=self.folder, reason=str(error))
            return None

    def _read_checkpoint(self, entry_number: int) -> LogState[StateT] | None:
        if self._format.checkpoint is None:
            return None
        key = self._checkpoint_key(entry_number)
        body = self._store.read(key)
        if body is None:
            _log.warning("checkpoint_missing", log=self.folder, checkpoint=key)
            return None
        try:
            table = pq.read_table(pa.BufferReader(body), page_checksum_verification=True)
            said = table.schema.metadata or {}
            identity = (said.get(b"lithify.format"), said.get(b"lithify.log"), said.get(b"lithify.entry_number"))
            expected = (str(CHECKPOINT_FORMAT), self._format.name, str(entry_number))
            if identity != tuple(text.encode() for text in expected):
                raise Corrupt(f"it says that its format, log and entry are {identity}, not {expected}")
            state = self._format.checkpoint.from_table(table)
            return LogState(entry_number, state, int(said[b"lithify.at_ms"]))
        except _UNREADABLE as error:
            _log.warning("checkpoint_unreadable", log=self.folder, checkpoint=key, reason=str(error))
            return None

    def _checkpoint_when_due(self, log_state: LogState[StateT]) -> None:
        if log_state.entry_number % CHECKPOINT_ENTRIES:
            return
        try:
            self.write_checkpoint(log_state)
        except Unavailable as error:
            # The entry is durable, so the append has succeeded; the next reader replays a little more.
            _log.warning("checkpoint_not_written", log=self.folder, reason=str(error))

    # -- names and pauses

    @property
    def _hint_key(self) -> str:
        return LogObject(self.folder, "hint").key

    def _entry_key(self, number: int) -> str:
        return LogObject(self.folder, "entry", number).key

    def _checkpoint_key(self, number: int) -> str:
        return LogObject(self.folder, "checkpoint", number).key

    def _pause(self, doublings: int) -> None:
        """Writers that lost one race together do not meet again in the next: sleep a random part of a growing pause."""
        pause_seconds = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** min(doublings, 10))
        chance = int(self._clock.new_id()[:8], 16) / 0xFFFF_FFFF
        self._clock.sleep(pause_seconds * chance)
