"""One reading for all viewers, until it is too old; all readings of a store stay within one rate of requests.

A store that does not answer leaves the last reading in place, with the time since when it is the last one. Requests are
counted by a store of their own, which keeps what never changes, and refuses to write.
"""

import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from math import ceil
from typing import Any, Generic, NoReturn, TypeVar

from compactor.log.durable_log import DurableLog, Entry
from compactor.log.keys import EntryObject
from compactor.model.background import soon
from compactor.model.clock import Clock
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from compactor.storage.keys import parse_any
from compactor.storage.location import StoreLocation, key_bytes_max
from compactor.storage.object_store import ObjectEntry, ObjectStore
from dispatcher.records.keys import HistoryFile
from dispatcher.records.pauses import Pause

ActionT = TypeVar("ActionT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Commands:
    """For one state and one lake, by their URIs. `queue_url` None: the reader fills it in, as what is in capitals.
    `s3_endpoint_url` None: AWS's own."""

    state_uri: str
    lake_uri: str
    queue_url: str | None = None
    s3_endpoint_url: str | None = None

    def dispatch(self) -> str:
        return self._with_state("dispatch", *self._queue())

    def keeper(self) -> str:
        return self._with_state("keeper", "--lake", self.lake_uri, *self._queue())

    def keeper_log(self) -> str:
        return self._with_state("keeper", "log", "--lake", self.lake_uri)

    def history(self) -> str:
        return self._with_state("history")

    def retry(self, job_run_id: str) -> str:
        return self._with_state("retry", job_run_id)

    def resume(self, pause: Pause) -> str:
        if pause.table is not None:
            return self._with_state("resume", "--table", pause.table)
        return self._with_state("resume", pause.job_run_id if pause.job_run_id is not None else "--everything")

    def redrive(self, first_message_id: str | None = None) -> str:
        """Of one dead letter; None: shows all of them, and sends none."""
        rest = ("--dry-run",) if first_message_id is None else ("--id", first_message_id)
        return shlex.join(("lithify", "redrive", *self._queue(), *rest))

    def table(self, verb: str, table_id: str, *rest: str) -> str:
        """Of a table of the lake."""
        return shlex.join(("lithify", *verb.split(), table_id, "--lake", self.lake_uri, *self._endpoint(), *rest))

    def table_log(self, table_id: str, partition: Mapping[str, str]) -> str:
        return self.table("table log", table_id, *_each("--partition", partition.items()))

    def prove(self, table_id: str, primary_keys: Sequence[str]) -> str:
        """In all partitions."""
        return self.table(
            "privacy prove", table_id, *_each("--key", ((key, "VALUE") for key in primary_keys or ("COLUMN",)))
        )

    def _with_state(self, *words: str) -> str:
        return shlex.join(("lithify", *words, "--state", self.state_uri, *self._endpoint()))

    def _endpoint(self) -> tuple[str, ...]:
        return () if self.s3_endpoint_url is None else ("--s3-endpoint-url", self.s3_endpoint_url)

    def _queue(self) -> tuple[str, str]:
        return "--queue-url", "QUEUE_URL" if self.queue_url is None else self.queue_url


def _each(option: str, values: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (word for key, value in values for word in (option, f"{key}={value}"))


KEPT_BYTES_MAX = 8_000_000
"""Bytes of all objects that are kept; the one that nobody has read for longest goes."""

KEPT_OBJECT_BYTES_MAX = 500_000

_UNCHANGING = (EntryObject, HistoryFile)
"""Objects that are created once, and neither changed nor deleted."""


class CountedStore:
    """`requests`: so far. Safe to share between threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: dict[str, bytes] = {}
        self._kept_bytes = 0
        self._key_bytes_max = key_bytes_max(store.location)
        self.requests = 0

    @property
    def location(self) -> StoreLocation:
        return self._store.location

    def read(self, key: str) -> bytes | None:
        if self._is_too_long(key):
            return None
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self._kept[key] = kept  # the latest
                return kept
        self._count()
        body = self._store.read(key)
        if body is not None and len(body) <= KEPT_OBJECT_BYTES_MAX and parse_any(key, _UNCHANGING) is not None:
            self._keep(key, body)
        return body

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._count()
        return self._store.read_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        return iter(()) if self._is_too_long(prefix) else self._paged(self._store.list(prefix, start_after))

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        if self._is_too_long(prefix):
            return iter(())
        return self._paged(self._store.list_folders(prefix, even_empty=even_empty))

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Denied("the page only reads")

    put_if_absent = overwrite = delete = delete_many = unfinished = give_up = _refuse

    def _is_too_long(self, key: str) -> bool:
        """Nothing has such a key: an id that somebody typed is unknown."""
        return len(key.encode()) > self._key_bytes_max

    def _keep(self, key: str, body: bytes) -> None:
        with self._lock:
            self._kept_bytes += len(body) - len(self._kept.pop(key, b""))
            self._kept[key] = body
            while self._kept_bytes > KEPT_BYTES_MAX:
                self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))

    def _paged(self, listed: Iterator[ValueT]) -> Iterator[ValueT]:
        """A listing is a request for each 1,000 names on S3."""
        self._count()
        for number, each in enumerate(listed, 1):
            if number % 1_000 == 0:
                self._count()
            yield each

    def _count(self) -> None:
        with self._lock:
            self.requests += 1


SECONDS_MIN = 2.0
"""Age up to which a reading is new, if it takes few requests."""

NEXT_READING_MS = 20_000
"""From a reading of what is open now to the next one, while somebody looks (see `SharedReadings`)."""

AHEAD_SECONDS = 3_600.0
"""What was never read is read at once, as long as no more than the requests of this time are owed."""

WATCHED_SECONDS = 60.0
"""Time without a viewer after which the next one waits until it is read."""

READINGS_KEPT = 256
NAME_CHARACTERS_MAX = 4_096
"""Readings of longer names are of nothing that there is, cost no request, and are not kept."""

ENTRIES_MAX = 400
"""Entries of a log that are shown, the latest: a page of them can be read."""


class Rank(IntEnum):
    """Each kind of reading has requests of its own; what it leaves is for the others, the first of them before."""

    OPEN_NOW = 0
    ONE_THING = 1
    OVERVIEW = 2


RATE_SHARES = {Rank.OPEN_NOW: 0.5, Rank.ONE_THING: 0.3, Rank.OVERVIEW: 0.2}
"""Shares of the rate of requests."""


@dataclass(frozen=True)
class Reading(Generic[ValueT]):
    """
    Attributes:
        at_ms: when it was read
        failure: why it could not be read again; None: it could
        since_ms: of the first time that it could not"""

    value: ValueT
    at_ms: int
    failure: str | None = None
    since_ms: int | None = None

    def silence_at_ms(self, now_ms: int) -> int:
        """The time at which signs of life are judged: now, unless there should be a newer reading by now."""
        return self.at_ms if self.failure is not None else min(now_ms, self.at_ms + NEXT_READING_MS)


@dataclass
class _Kept:
    """A reading that is shared; `refused`: why there is none. `until_seconds`, `asked_seconds`: by the clock of this
    process; the latter of the last look at it. `beside`: for who does not wait. `has_changed`: an event says so."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reading: Reading[Any] | None = None
    refused: LithifyError | None = None
    until_seconds: float = 0.0
    asked_seconds: float = 0.0
    beside: Future[Reading[Any]] | None = None
    has_changed: bool = False


class SharedReadings:
    """Readings of one store. Safe to share between threads.

    Worked, at 1.2 requests a second: a reading of 12 requests is followed by 10 s in which none of its rank is read
    again, whoever asks; by 20 s where the others need theirs. What was never read is read at once, and the overviews
    pay for it, up to an hour ahead.
    """

    def __init__(
        self, store: ObjectStore, requests_a_second: float, clock: Clock, patience_seconds: float | None = None
    ) -> None:
        """
        Args:
            requests_a_second: on average, however many viewers there are
            patience_seconds: after which who looks again gets what there is, while it is read; None: everybody waits"""
        self.store = CountedStore(store)
        self._patience_seconds = patience_seconds
        self._requests_a_second = requests_a_second
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._owed = dict.fromkeys(Rank, 0.0)
        self._settled_at_seconds = clock.monotonic_seconds()

    def of(self, name: str, read: Callable[[], ValueT], rank: Rank = Rank.OVERVIEW) -> Reading[ValueT]:
        """Raises what `read` raises, if it was never read, or if what is read is gone."""
        kept = self._place(name)
        now_seconds = self._clock.monotonic_seconds()
        is_watched, kept.asked_seconds = now_seconds - kept.asked_seconds < WATCHED_SECONDS, now_seconds
        finished = self._finished(kept)
        if finished is not None:
            finished.result()  # who did not wait for it has not heard of its error
        before = kept.reading
        if before is None or self._patience_seconds is None or not is_watched:
            return self._newest(kept, read, rank)
        if kept.beside is not None or self._payer(kept, rank) is None:
            return before
        kept.beside = beside = soon(partial(self._newest, kept, read, rank))
        if not wait((beside,), self._patience_seconds).done:
            return before
        return (self._finished(kept) or beside).result()

    def _finished(self, kept: _Kept) -> Future[Reading[Any]] | None:
        """What was read for who did not wait, taken out: of several threads one gets it."""
        with self._lock:
            beside = kept.beside
            if beside is None or not beside.done():
                return None
            kept.beside = None
            return beside

    def _newest(self, kept: _Kept, read: Callable[[], ValueT], rank: Rank) -> Reading[ValueT]:
        with kept.lock:
            before = kept.reading
            paid_by = self._payer(kept, rank)
            if paid_by is None and kept.refused is not None:
                raise kept.refused.with_traceback(None)
            if paid_by is None and before is not None:
                return before
            if paid_by is None and (seconds := self._seconds_owed() - AHEAD_SECONDS) > 0:
                raise Unavailable(f"too much was asked for that was never read before: try again in {ceil(seconds)} s")
            kept.has_changed = False  # before it is read: what changes from here on is read next time
            requests = self.store.requests
            try:
                if self.store.location.is_missing_folder:
                    raise Unavailable(f"{self.store.location.root_uri} is not there")
                kept.reading, kept.refused = Reading(read(), self._clock.now_ms()), None
            except LithifyError as error:
                if before is None or isinstance(error, Invalid):
                    kept.reading, kept.refused = None, None if isinstance(error, Unavailable) else error
                    raise
                since_ms = before.since_ms if before.since_ms is not None else self._clock.now_ms()
                kept.reading = Reading(before.value, before.at_ms, str(error), since_ms)
            finally:
                self._owe(self.store.requests - requests, Rank.OVERVIEW if paid_by is None else paid_by)
                kept.until_seconds = self._clock.monotonic_seconds() + SECONDS_MIN
            return kept.reading

    def look_again(self, name: str) -> None:
        """The reading goes before the others when it is asked for next, as what is open now does."""
        with self._lock:
            kept = self._kept.get(name)
        if kept is not None:
            kept.has_changed = True

    def _payer(self, kept: _Kept, rank: Rank) -> Rank | None:
        """None: it is new enough, or requests are owed, or it was never read."""
        is_due = kept.has_changed or self._clock.monotonic_seconds() >= kept.until_seconds
        if not is_due or (kept.reading or kept.refused) is None:
            return None
        with self._lock:
            self._settle()
            ranks = (rank, Rank.OPEN_NOW) if kept.has_changed else (rank,)
            return next((each for each in ranks if self._owed[each] <= 0.0), None)

    def _seconds_owed(self) -> float:
        with self._lock:
            self._settle()
            return sum(self._owed.values()) / self._requests_a_second

    def _owe(self, requests: int, rank: Rank) -> None:
        with self._lock:
            self._settle()
            self._owed[rank] += requests

    def _settle(self) -> None:
        """The time since the last call pays for requests, each rank's share first."""
        now_seconds = self._clock.monotonic_seconds()
        paid = (now_seconds - self._settled_at_seconds) * self._requests_a_second
        self._settled_at_seconds = now_seconds
        left = 0.0
        for rank, share in RATE_SHARES.items():
            left += max(paid * share - self._owed[rank], 0.0)
            self._owed[rank] = max(self._owed[rank] - paid * share, 0.0)
        for rank in Rank:
            used = min(left, self._owed[rank])
            self._owed[rank] -= used
            left -= used

    def _place(self, name: str) -> _Kept:
        with self._lock:
            kept = self._kept.pop(name, None) or _Kept()
            if len(name) <= NAME_CHARACTERS_MAX:
                self._kept[name] = kept
            while len(self._kept) > READINGS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            return kept


def latest_entries(log: DurableLog[Any, ActionT]) -> tuple[Entry[ActionT], ...]:
    """The oldest of them first. Raises the log's errors."""
    last = log.load().entry_number
    return tuple(log.entries_between(max(last - ENTRIES_MAX + 1, 1), last))
