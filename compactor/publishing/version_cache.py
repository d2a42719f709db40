"""The newest version of a published table that a publisher knows. Safe to share between threads."""

import threading
from typing import Generic, Protocol, TypeVar

from compactor.model.clock import Clock

CACHED_SECONDS_MAX = 1_800
"""Time for which a publisher may continue from a version. After a grace period, of an hour or more, garbage collection
may have deleted the versions that others published meanwhile: then their numbers seem free."""


class _Versioned(Protocol):
    @property
    def version(self) -> int: ...


VersionT = TypeVar("VersionT", bound=_Versioned)


class VersionCache(Generic[VersionT]):
    """`none`: what stands for no table."""

    def __init__(self, none: VersionT, clock: Clock) -> None:
        self._none = none
        self._clock = clock
        self._newest = none
        self._seen_at = self.now()
        self._lock = threading.Lock()

    @property
    def newest(self) -> VersionT:
        """The newest version, or none if it was seen too long ago. There may be newer ones."""
        with self._lock:
            return self._none if self._is_old() else self._newest

    @property
    def last(self) -> VersionT:
        """The same, however long ago: objects that it names never change."""
        return self._newest

    def seen(self, state: VersionT, at: tuple[float, float]) -> None:
        """`at`: what `now` was before this version was found to be the newest one."""
        with self._lock:
            if state.version >= self._newest.version or self._is_old():
                self._newest, self._seen_at = state, at

    def now(self) -> tuple[float, float]:
        """Of both clocks: one stands still while a machine sleeps, the other one may be set back."""
        return self._clock.monotonic_seconds(), self._clock.now_ms() / 1_000

    def _is_old(self) -> bool:
        return any(now - then > CACHED_SECONDS_MAX for now, then in zip(self.now(), self._seen_at))
