"""Numbered immutable entries, created by put-if-absent, folded into a state. All durable facts are in such logs.

An entry is one object, `<folder>/<number, 20 digits>.json`, from 1 without gaps. The writer of entry n decided on the
fold of entries 1 .. n-1: there is no other concurrency control. An entry never changes and is never deleted (a stalled
writer could create a deleted entry a second time).

**The order of durable writes** of an append: first the long lists of its entry, if any (`log/long_lists.py`), then the
entry. A writer that dies in between leaves lists that no entry names: garbage collection finds them
(`unneeded_objects`).

A put whose outcome is unknown is settled by the entry's id (`storage/create_once.py`).

A `checkpoint` is the stored fold at one entry, so that a reader need not start from entry 1 (`log/checkpoints.py`).

This module does not know the content of entries: a `LogFormat` has the actions, the fold and the checkpoint's form.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from compactor.log.checkpoints import CHECKPOINT_ENTRIES, MERGED_ENTRIES, Checkpoint, CheckpointFolder, LogState
from compactor.log.entries import Entry, EntryFolder
from compactor.log.keys import HintObject
from compactor.log.long_lists import LongLists
from compactor.log_context import Logged
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Corrupt, Invalid, Unavailable
from compactor.model.retries import Backoff
from compactor.storage.concurrently import AT_ONCE, run_concurrently
from compactor.storage.object_store import ObjectEntry, ObjectStore

__all__ = ["CHECKPOINT_ENTRIES", "Appended", "DurableLog", "Entry", "LogFormat", "LogState"]

ENTRIES_AT_ONCE = 16
"""Entries that are read at the same time, since each read from an object store has a latency."""

LISTED_MAX = 1_000
"""Objects in one page of a listing. Of a log with more, the checkpoint is read first, and then what comes after it."""

NUMBER_DIGITS = 20

FIRST_STRIDE = 4
"""Entries between the first two looks for the entry of a time."""

APPEND_ATTEMPTS_MAX = 1_000
"""Races that one append may lose before it gives up. Each is another writer's success, so this means starvation."""

RACING = Backoff(first_seconds=0.005, longest_seconds=1.0, jitter=1.0)
"""Pauses after a lost race: random, so that the writers that lost it do not collide again."""

StateT = TypeVar("StateT")
ActionT = TypeVar("ActionT")


@dataclass(frozen=True)
class LogFormat(Generic[StateT, ActionT]):
    """The content of one kind of log: values and pure functions.

    Attributes:
        checkpoint: None: these logs are short, and are always read from entry 1
        checkpoint_entries: between two checkpoints
        keeps_entries: whether entries are cached, the first and the newest; not where they are large
        long_lists: the lists that a long entry leaves out; None: entries of such logs are short
        refuses_gaps: whether a log that is read first, and goes on after its end, is `Corrupt`: else what is after the
            missing entry is lost without a word"""

    name: str
    action_type: TypeAdapter[ActionT]
    initial: StateT
    apply: Callable[[StateT, ActionT], StateT]
    checkpoint: Checkpoint[StateT] | None = None
    checkpoint_entries: int = CHECKPOINT_ENTRIES
    keeps_entries: bool = True
    long_lists: LongLists | None = None
    refuses_gaps: bool = False


@dataclass(frozen=True)
class Appended(Generic[StateT, ActionT]):
    """The result of an append.

    Attributes:
        entry: the written entry; None: `decide` returned no actions
        after: the fold including the entry; without an entry the fold that `decide` got"""

    entry: Entry[ActionT] | None
    after: LogState[StateT]


class DurableLog(Generic[StateT, ActionT]):
    """One log. It caches the newest fold that it has read, so a second load reads only later entries.

    Safe to share between threads: entries are immutable, so an older cached fold costs time and is never wrong.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        log_format: LogFormat[StateT, ActionT],
        clock: Clock,
        before_entry: Callable[[LogState[StateT], LogState[StateT]], Callable[[], None] | None] | None = None,
    ) -> None:
        """`before_entry` is called with the folds before and after an entry, just before its write, which may fail;
        what it returns is called once the entry is durable."""
        self._before_entry = before_entry
        self.folder = folder
        self._store = store
        self._format = log_format
        self._clock = clock
        self._checkpoints = CheckpointFolder(
            store, folder, log_format.name, log_format.checkpoint, clock, log_format.checkpoint_entries
        )
        self._newest: LogState[StateT] = LogState(0, log_format.initial)
        self._times_ms: dict[int, int] = {}
        self._entries = EntryFolder(
            store,
            folder,
            log_format.name,
            log_format.action_type,
            clock,
            keeps_entries=log_format.keeps_entries,
            long_lists=log_format.long_lists,
        )

    @property
    def newest(self) -> LogState[StateT]:
        """The cached fold, without reading the log, which may have newer entries."""
        return self._newest

    def load(self, as_of: int | None = None, ahead: int = 1) -> LogState[StateT]:
        """The fold of the log, or of its entries up to number `as_of` (`Invalid` if there is none).

        Args:
            ahead: entries requested at a time: one more than are expected, as a missing one is the end"""
        if as_of is not None and as_of < 0:
            raise Invalid(f"there is no entry {as_of} in log {self.folder}: entries count from 1")
        if self._is_short() and as_of is None:
            log_state = self._load_ahead(2)  # of which one is missing as a rule
        elif self._has_not_begun():
            log_state = LogState(0, self._format.initial)
        elif as_of is None and self._is_listed():
            log_state = self._load_listed()
        elif as_of is None and ahead > 1 and self._store.location.is_remote:
            log_state = self._load_ahead(ahead)
        else:
            log_state = self._replay(self._nearest(as_of), as_of)
            if self._format.refuses_gaps and as_of is None and self._newest.entry_number == 0:
                end = log_state.entry_number + 1
                if self._store.read(self._entries.key(end + 1)) is not None:
                    self.entry(end)  # written meanwhile, or lost: a copied folder may lack files
        self._remember(log_state)
        if as_of is not None and log_state.entry_number < as_of:
            raise Invalid(f"there is no entry {as_of} in log {self.folder}: it ends at entry {log_state.entry_number}")
        return log_state

    def load_past(self, number: int) -> LogState[StateT]:
        """The fold of the log, of which entry `number` exists (`Invalid` if it does not)."""
        known = self._newest.entry_number
        missing = number - known
        if known == 0 or missing >= ENTRIES_AT_ONCE:
            self.load(as_of=number)  # the next load continues from it
            missing = 0
        log_state = self.load(ahead=max(missing, 0) + 1)
        return log_state if log_state.entry_number >= number else self.load(as_of=number)

    def _has_not_begun(self) -> bool:
        """Whether entry 1 is missing. Checked first where entries are cached: most missing logs never existed."""
        return self._format.keeps_entries and self._newest.entry_number == 0 and self._entries.read(1) is None

    def _is_listed(self) -> bool:
        """Whether a listing finds the log's end faster than requests for one entry after the other."""
        return self._store.location.is_remote and self._newest.entry_number == 0

    def _is_short(self) -> bool:
        """Whether this is a remote log without a cached state that probably has an entry or two."""
        return self._is_listed() and self._format.keeps_entries and self._format.checkpoint is None

    def _load_ahead(self, count: int) -> LogState[StateT]:
        """The requests for so many entries after the cached fold are sent together."""
        log_state = self._newest
        first = log_state.entry_number + 1
        for entry in run_concurrently(self._store.location, self._entries.read, range(first, first + count)):
            if entry is None:
                return log_state
            log_state = self._apply(log_state, entry)
        return self._replay(log_state, None)

    def _load_listed(self) -> LogState[StateT]:
        """The fold of a remote log without a cached state: one listing, then entries and checkpoint in parallel.

        Entries that are written after the listing are left to the next load.
        """
        listed = list(islice(self._store.list(f"{self.folder}/"), LISTED_MAX))
        is_all = len(listed) < LISTED_MAX
        has_checkpoint = any(entry.key == HintObject(self.folder).key for entry in listed)
        if is_all and not has_checkpoint:
            return self._replay_listed(LogState(0, self._format.initial), listed)
        if not is_all:
            log_state = self._checkpoints.nearest(None) or LogState(0, self._format.initial)
            return self._replay_listed(log_state, self._listed_after(log_state.entry_number))
        with ThreadPoolExecutor(1) as thread:
            checkpoint = thread.submit(self._checkpoints.nearest, None)
            last = max(_numbers_of(self.folder, listed), default=0)
            due = last // self._format.checkpoint_entries * self._format.checkpoint_entries
            read = self._read_all([number for number in _numbers_of(self.folder, listed) if number > due])
            log_state = checkpoint.result() or LogState(0, self._format.initial)
        return self._replay_listed(log_state, listed, read)

    def _replay_listed(
        self,
        log_state: LogState[StateT],
        listed: Sequence[ObjectEntry],
        read: Mapping[int, Entry[ActionT]] = MappingProxyType({}),
    ) -> LogState[StateT]:
        """`read`: entries that were read already. Ends before the first missing number, as a log does, or raises."""
        numbers = [number for number in _numbers_of(self.folder, listed) if number > log_state.entry_number]
        entries = {**read, **self._read_all([number for number in numbers if number not in read])}
        while (entry := entries.get(log_state.entry_number + 1)) is not None:
            log_state = self._apply(log_state, entry)
        if self._format.refuses_gaps and log_state.entry_number < max(entries, default=0):
            self.entry(log_state.entry_number + 1)
        return log_state

    def _read_all(self, numbers: Sequence[int]) -> dict[int, Entry[ActionT]]:
        found = run_concurrently(self._store.location, self._entries.read, numbers)
        return {entry.number: entry for entry in found if entry is not None}

    def _listed_after(self, number: int) -> list[ObjectEntry]:
        return list(self._store.list(f"{self.folder}/", self._entries.key(number)))

    def _replay(self, log_state: LogState[StateT], as_of: int | None) -> LogState[StateT]:
        while as_of is not None and as_of - log_state.entry_number > 1:  # entries up to `as_of` exist
            first = log_state.entry_number + 1
            numbers = range(first, min(first + ENTRIES_AT_ONCE, as_of + 1))
            found = run_concurrently(self._store.location, self._entries.read, numbers)
            for entry in found:
                if entry is None:
                    return log_state
                log_state = self._apply(log_state, entry)
        news = 0
        while log_state.entry_number != as_of:
            news += log_state.entry_number + 1 not in self._entries.kept
            entry = self._entries.read(log_state.entry_number + 1)
            if entry is None:
                break
            log_state = self._apply(log_state, entry)
            if as_of is None and self._store.location.is_remote and news > 1:
                # After two new entries there may be many more.
                return self._replay_listed(log_state, self._listed_after(log_state.entry_number))
        return log_state

    def load_until(self, is_last: Callable[[StateT], bool]) -> LogState[StateT]:
        """The fold up to the first entry for which `is_last` holds; like `load` if there is none. Saves the request for
        the next entry, which does not exist. Of a log that is not cached, the first entries are requested together: it
        has at least a beginning and an end."""
        log_state = self._newest
        begun: dict[int, Entry[ActionT] | None] = {}
        if log_state.entry_number == 0 and self._store.location.is_remote:
            begun = dict(zip((1, 2), run_concurrently(self._store.location, self._entries.read, (1, 2)), strict=True))
        while not is_last(log_state.state):
            number = log_state.entry_number + 1
            entry = begun[number] if number in begun else self._entries.read(number)
            if entry is None:
                break
            log_state = self._apply(log_state, entry)
        self._remember(log_state)
        return log_state

    def entries(self, after: int = 0) -> Iterator[Entry[ActionT]]:
        """Entries from number `after` + 1 to the end, in order."""
        number = after + 1
        while (entry := self._entries.read(number)) is not None:
            yield entry
            number += 1

    def entries_between(self, first: int, last: int, at_once: int = AT_ONCE) -> Iterator[Entry[ActionT]]:
        """Entries `first` to `last`, in order, many read at a time. All must exist (`Corrupt` otherwise)."""
        for start in range(first, last + 1, at_once):
            numbers = range(start, min(start + at_once, last + 1))
            yield from run_concurrently(self._store.location, self.entry, numbers, at_once)

    def check_whole(self, log_state: LogState[StateT]) -> None:
        """Raises `Corrupt` if this fold of the log lacks something that was written: if entry 1 is missing, or if
        entries come after the missing one at which it ends. Takes two requests, one if entry 1 was read."""
        has_first = not log_state.entry_number or 1 in self._times_ms
        if not has_first and self._store.read(self._entries.key(1)) is None:
            raise _lacks(self.folder, 1)
        after = self._entries.key(log_state.entry_number) if log_state.entry_number else None
        listed = next(iter(self._store.list(f"{self.folder}/", after)), None)
        next_number = log_state.entry_number + 1
        if listed is None or listed.key == self._entries.key(next_number):  # the next one was written meanwhile
            return
        if not log_state.entry_number or _numbers_of(self.folder, [listed]):
            raise _lacks(self.folder, next_number)

    def entry_number_at(self, at_ms: int, end: LogState[StateT] | None = None) -> int:
        """The last entry written at or before a time (ms since the epoch); 0 if the log began later.

        Args:
            end: a fold of this log that was just read; None: it is read now. Times that earlier calls have read are
                known"""
        end = self.load() if end is None else end
        if end.at_ms <= at_ms:
            return end.entry_number
        if self._time_ms(1) > at_ms:
            return 0
        known = {number: known_ms for number, known_ms in self._times_ms.items() if number < end.entry_number}
        known[end.entry_number] = end.at_ms
        before = max(number for number, known_ms in known.items() if known_ms <= at_ms)
        after = min(number for number, known_ms in known.items() if known_ms > at_ms)
        # Most logs grow evenly: the first look is at where the entry would be then, the next ones are ever farther
        # from there, until it lies between two of them.
        first, last = before, after
        middle = before + (after - before) * (at_ms - known[before]) // (known[after] - known[before])
        stride = FIRST_STRIDE
        while after - before > 1:
            middle = min(max(middle, before + 1), after - 1)
            is_before = self._time_ms(middle) <= at_ms
            before, after = (middle, after) if is_before else (before, middle)
            is_between = before > first and after < last
            middle = (before + after) // 2 if is_between else middle + (stride if is_before else -stride)
            stride *= 2
        return before

    def _time_ms(self, number: int) -> int:
        if number not in self._times_ms:
            self._times_ms[number] = self.entry(number).at_ms
        return self._times_ms[number]

    def stored_at_ms(self, number: int) -> int:
        """The store's time of an entry that must exist (`Corrupt` if it does not). Its writer may have had another."""
        listed = next(iter(self._store.list(f"{self.folder}/", self._entries.key(number - 1))), None)
        if listed is None or listed.key != self._entries.key(number):
            raise _lacks(self.folder, number)
        return listed.modified_at_ms

    def entry(self, number: int) -> Entry[ActionT]:
        """One entry that must exist (`Corrupt` if it does not)."""
        entry = self._entries.read(number)
        if entry is None:
            raise _lacks(self.folder, number)
        return entry

    def append(
        self, decide: Callable[[LogState[StateT]], Sequence[ActionT]], before: LogState[StateT] | None = None
    ) -> Appended[StateT, ActionT]:
        """Write one entry with the actions that `decide` returns for the fold before it.

        `decide` may be called many times, each time on a newer fold; it may raise (then nothing is written), or return
        no actions. Raises `Unavailable` if the outcome is unknown (the entry may exist, or appear later), and
        `Conflict` after too many lost races.

        Args:
            before: a fold of this log that was just read, for the first decision; None: it is read now. With an
                outdated fold the entry's number is taken and the log is read again, but a decision to write nothing is
                final"""
        entry_id = self._clock.new_id()
        before = self.load() if before is None else before
        for losses in range(1, APPEND_ATTEMPTS_MAX + 1):
            actions = tuple(decide(before))
            if not actions:
                return Appended(None, before)
            at_ms = max(self._clock.now_ms(), before.at_ms)
            entry = Entry(before.entry_number + 1, entry_id, at_ms, actions)
            # Fold before the write: an action that cannot follow is a bug in `decide`, and must not become durable.
            after = self._apply(before, entry)
            afterwards = None if self._before_entry is None else self._before_entry(before, after)
            if self._entries.create(entry):
                self._entries.keep(entry)
                self._remember(after)
                self._checkpoint_when_due(after)
                if afterwards is not None:
                    afterwards()
                return Appended(entry, after)
            RACING.sleep(losses, self._clock)
            before = self.load()
        raise Conflict(
            f"{APPEND_ATTEMPTS_MAX} other writers were faster than this append to log {self.folder}: try again"
        )

    def write_checkpoint(self, log_state: LogState[StateT]) -> None:
        """Writes this fold as a checkpoint (`log/checkpoints.py`)."""
        self._checkpoints.write(log_state)

    def keep_checkpoint(self, log_state: LogState[StateT]) -> None:
        """Writes this fold as a checkpoint, beside the multiples, for somebody who needs it much later. One at a
        multiple is there: it is kept if the one of the next entry is."""
        if log_state.entry_number > MERGED_ENTRIES and log_state.entry_number % self._format.checkpoint_entries:
            self._write_if_possible(log_state)

    def checkpoint_after(self, number: int) -> int | None:
        """The first checkpoint after an entry, if it is nearer than all before it, as far as this process knows."""
        return self._checkpoints.nearest_after(number)

    def unneeded_objects(self) -> Iterator[ObjectEntry]:
        """Objects of checkpoints that the newest one does not need, and lists of entries that were not written. Recent
        ones may belong to an active writer. For a log that was just loaded: a checkpoint that is newer than the one
        known here may need what is older."""
        yield from self._checkpoints.unneeded()
        yield from self._entries.lists_of_none()

    def damaged_lists(self) -> Iterator[str]:
        """What is wrong with long lists that lie beside entries, a sentence each. Reads all of them."""
        return self._entries.damaged_lists()

    def _apply(self, log_state: LogState[StateT], entry: Entry[ActionT]) -> LogState[StateT]:
        state = log_state.state
        for action in entry.actions:
            try:
                state = self._format.apply(state, action)
            except Corrupt as error:
                raise Corrupt(f"entry {entry.number} of log {self.folder} cannot follow: {error}") from error
        return LogState(entry.number, state, entry.at_ms)

    # -- cached folds and checkpoints

    def _remember(self, log_state: LogState[StateT]) -> None:
        if log_state.entry_number > self._newest.entry_number:
            self._newest = log_state

    def _nearest(self, as_of: int | None) -> LogState[StateT]:
        """The latest cached or checkpointed fold at or before `as_of`."""
        newest = self._newest
        if newest.entry_number > 0 and (as_of is None or newest.entry_number <= as_of):
            return newest
        return self._checkpoints.nearest(as_of) or LogState(0, self._format.initial)

    def _checkpoint_when_due(self, log_state: LogState[StateT]) -> None:
        if log_state.entry_number % self._format.checkpoint_entries == 0:
            self._write_if_possible(log_state)

    def _write_if_possible(self, log_state: LogState[StateT]) -> None:
        # The entry is durable, so the append has succeeded; the next reader replays more entries.
        with Logged("checkpoint_not_written", Unavailable, log=self.folder):
            self.write_checkpoint(log_state)


def _numbers_of(folder: str, listed: Sequence[ObjectEntry]) -> list[int]:
    """Of the entries among what was listed."""
    names = (entry.key.removeprefix(f"{folder}/").removesuffix(".json") for entry in listed)
    return [int(name) for name in names if len(name) == NUMBER_DIGITS and name.isdigit()]


def _lacks(folder: str, number: int) -> Corrupt:
    return Corrupt(
        f"entry {number} of log {folder} is missing, though later ones exist: if a restore, a mount or a copy left it "
        "out, bring it back"
    )
