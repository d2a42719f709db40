"""Liveness of dispatchers: each overwrites one object repeatedly, and the others watch whether it changes.

A dispatcher writes only while it works (`LivenessSignal`): the ticking thread writes, and stops when the receiving
thread hangs. A watcher (`Peers`) compares the object with its last content, and measures by its own monotonic clock
for how long it has not changed. The wall clocks of the machines and of the store have no effect.

A dispatcher writes its object before its first claim. So the owner of a claim that has no object is gone: it has
stopped, or died so long ago that its object was deleted.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import Field

from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, LithifyError, Outdated
from compactor.storage.object_store import ObjectStore
from dispatcher.records.keys import LiveDispatcher, LiveIngest

Signer = type[LiveDispatcher] | type[LiveIngest]

INGEST_SILENT_SECONDS = 300.0
"""Silence after which an ingest counts as gone, for display only."""

SIGNAL_SECONDS_MAX = 30.0
SIGNALS_IN_SILENCE = 10
"""Writes of the object that may fail in a row before others consider a dispatcher dead."""

FORGOTTEN_AFTER_SILENCES = 288
"""Silences after which the object of a dead dispatcher is deleted, a day by default. Until then it shows that the owner
of claims which were not found yet is gone."""


class SignOfLife(Document):
    """
    Attributes:
        beat: 1 higher each time, so that the object changes
        at_ms: by its own clock, for display only
        silent_seconds: after which the dispatcher of an unchanged object counts as dead
        workers: warm workers of it that run; None: it is to have none"""

    owner: str
    beat: int = Field(ge=1)
    at_ms: int
    silent_seconds: float = Field(gt=0)
    workers: int | None = None


class LivenessSignal:
    """This dispatcher's sign of life. Not thread-safe: for the ticking thread."""

    def __init__(
        self,
        store: ObjectStore,
        owner: str,
        silent_seconds: float,
        clock: Clock,
        workers: Callable[[], int | None] = lambda: None,
        signer: Signer = LiveDispatcher,
    ) -> None:
        """`workers`: how many workers run now."""
        self._store = store
        self._owner = owner
        self._key = signer(owner).key
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._workers = workers
        self._signals = 0
        self._signalled_at_seconds: float | None = None

    @property
    def has_signalled(self) -> bool:
        """Whether its object exists. Before that, the dispatcher must claim nothing."""
        return self._signals > 0

    def signal_when_due(self) -> None:
        """Writes the object when its time has come. Raises the store's errors."""
        now_seconds = self._clock.monotonic_seconds()
        every_seconds = min(SIGNAL_SECONDS_MAX, self._silent_seconds / SIGNALS_IN_SILENCE)
        if self._signalled_at_seconds is not None and now_seconds - self._signalled_at_seconds < every_seconds:
            return
        sign = SignOfLife(
            owner=self._owner,
            beat=self._signals + 1,
            at_ms=self._clock.now_ms(),
            silent_seconds=self._silent_seconds,
            workers=self._workers(),
        )
        self._store.overwrite(self._key, sign.render())
        self._signals += 1
        self._signalled_at_seconds = now_seconds

    def stop(self) -> None:
        """Deletes the object, since no claim is held any more. Raises the store's errors."""
        if self._signals:
            self._store.delete(self._key)


@dataclass
class _Watched:
    """
    Attributes:
        stamp: size and time of the object in the last listing: an unchanged object is not read
        changes: number of observed changes
        is_gone: it was silent for too long, and a last read found it unchanged"""

    body: bytes
    silent_seconds: float
    since_seconds: float
    stamp: tuple[int, int] | None = None
    changes: int = 1
    is_gone: bool = False


@dataclass(frozen=True)
class LastSignal:
    """The last sign of life, for display only. `at_ms`: by the store's clock. `sign` None: gone, or not to be read."""

    owner: str
    at_ms: int
    sign: SignOfLife | None

    def is_silent(self, now_ms: int) -> bool:
        """Whether it counts as gone: others take the job runs of such a dispatcher over."""
        return self.sign is not None and now_ms - self.at_ms > self.sign.silent_seconds * 1000


def last_signals(store: ObjectStore, signer: Signer = LiveDispatcher) -> tuple[LastSignal, ...]:
    """Of each dispatcher, or each ingest, by owner: a listing, and a read for each."""
    found = []
    for entry in store.list(signer.prefix()):
        body = store.read(entry.key)
        try:
            sign = None if body is None else SignOfLife.parse_durable(body, entry.key)
        except (Corrupt, Outdated):
            sign = None
        found.append(LastSignal(signer.parse(entry.key).owner, entry.modified_at_ms, sign))
    return tuple(sorted(found, key=lambda each: each.owner))


class Peers:
    """All other dispatchers that write a sign of life. Not thread-safe: for the ticking thread."""

    def __init__(self, store: ObjectStore, owner: str, silent_seconds: float, clock: Clock) -> None:
        """`silent_seconds`: for objects without that field."""
        self._store = store
        self.owner = owner
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._absent: set[str] = set()

    def poll(self, named: Iterable[str]) -> None:
        """Lists all objects, reads the changed ones. `named`: owners whose objects stay. Raises the store's errors."""
        listed = {}
        self._absent.clear()
        for entry in self._store.list(LiveDispatcher.prefix()):
            owner = LiveDispatcher.parse(entry.key).owner
            if owner != self.owner:
                listed[owner] = (entry.size_bytes, entry.modified_at_ms)
        for gone in self._watched.keys() - listed.keys():
            del self._watched[gone]
        for owner, stamp in listed.items():
            watched = self._watched.get(owner)
            if watched is None or watched.stamp != stamp:
                self._read(owner)
                if owner in self._watched:
                    self._watched[owner].stamp = stamp
        self._clear(frozenset(named))

    def is_gone(self, owner: str) -> bool:
        """Whether the owner of a claim has no object, or one that was unchanged for too long; the object is read before
        the answer is yes. This dispatcher itself counts as gone: job runs that it claimed and does not hold are not
        worked on."""
        watched = self._watched.get(owner)
        if owner == self.owner or owner in self._absent or (watched is not None and watched.is_gone):
            return True
        if watched is not None and not self._is_silent(watched):
            return False
        try:
            self._read(owner)
        except LithifyError as error:
            LOG.warning("dispatcher_not_watched", owner=owner, reason=str(error))
            return False
        watched = self._watched.get(owner)
        if watched is None:
            self._absent.add(owner)
            return True
        watched.is_gone = self._is_silent(watched)
        return watched.is_gone

    def has_seen_life(self, owner: str) -> bool:
        """Whether its object has changed since it was first seen, and recently."""
        watched = self._watched.get(owner)
        return watched is not None and watched.changes > 1 and not self._is_silent(watched)

    def is_assigned_here(self, job_run_id: str) -> bool:
        """Whether this dispatcher, of all live ones, takes over a job run whose owner is gone. Dispatchers that see the
        same ones alive agree, and each gets a share."""
        alive = [owner for owner, watched in self._watched.items() if not self._is_silent(watched)]
        return max((*alive, self.owner), key=lambda owner: _rank_of(owner, job_run_id)) == self.owner

    def _is_silent(self, watched: _Watched) -> bool:
        return self._clock.monotonic_seconds() - watched.since_seconds >= watched.silent_seconds

    def _read(self, owner: str) -> None:
        key = LiveDispatcher(owner).key
        body = self._store.read(key)
        watched = self._watched.get(owner)
        if body is None:
            self._watched.pop(owner, None)
        elif watched is None:
            self._watched[owner] = _Watched(body, self._silence_of(body, key), self._clock.monotonic_seconds())
        elif body != watched.body:
            watched.body, watched.silent_seconds = body, self._silence_of(body, key)
            watched.since_seconds = self._clock.monotonic_seconds()
            watched.changes += 1
            watched.is_gone = False

    def _silence_of(self, body: bytes, key: str) -> float:
        try:
            return SignOfLife.parse_durable(body, key).silent_seconds
        except (Corrupt, Outdated):  # the content does not matter: it changes while its dispatcher lives
            return self._silent_seconds

    def _clear(self, named: frozenset[str]) -> None:
        now_seconds = self._clock.monotonic_seconds()
        for owner, watched in list(self._watched.items()):
            silences = (now_seconds - watched.since_seconds) / watched.silent_seconds
            if owner not in named and silences >= FORGOTTEN_AFTER_SILENCES:
                self._store.delete(LiveDispatcher(owner).key)
                del self._watched[owner]


def _rank_of(owner: str, job_run_id: str) -> bytes:
    return hashlib.sha256(f"{owner}\n{job_run_id}".encode()).digest()
