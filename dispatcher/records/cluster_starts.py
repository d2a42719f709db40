"""How long clusters take to start at one place (a kind and a region), learned from the launches of all dispatchers of a
state.

An observation is the time from a launch to the first sign of its job, by the clock of the dispatcher that watched both.
The last ones stand in one object of the state, which is overwritten: it is for predictions only, and where two
dispatchers write at once, one observation is lost.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import structlog
from pydantic import Field

from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import LithifyError
from compactor.model.names import counted
from compactor.planning.own_errors import OwnErrors
from compactor.planning.sizing import Resources
from compactor.planning.time_model import SLA_BUFFER
from compactor.storage.object_store import ObjectStore
from dispatcher.records.keys import ClusterStartsObject
from launcher.plan import Room

_log = structlog.get_logger(__name__)

STARTS_KEPT = 24
READ_AGAIN_SECONDS = 600.0
"""Age of what was read, after which the observations of other dispatchers are read, too."""


class ObservedStarts(Document):
    """`seconds`: of each start, the oldest first."""

    seconds: tuple[float, ...] = Field(default=(), max_length=STARTS_KEPT)


class LearnedStarts:
    """A `ClusterStarts` of one place. Thread-safe. A state that does not answer costs an observation, or leaves what
    was known before: it fails no session."""

    def __init__(self, store: ObjectStore, place: str, clock: Clock) -> None:
        self._store = store
        self._key = ClusterStartsObject(place).key
        self._clock = clock
        self._lock = threading.Lock()
        self._known = ObservedStarts()
        self._read_at_seconds: float | None = None

    def observed(self, seconds: float) -> None:
        with self._lock:
            self._read()
            self._known = ObservedStarts(seconds=(*self._known.seconds, round(seconds, 1))[-STARTS_KEPT:])
            try:
                self._store.overwrite(self._key, self._known.render())
            except LithifyError as error:
                _log.warning("cluster_start_not_noted", key=self._key, reason=str(error))

    def applied(self, room: Room) -> Room:
        """The settings with the start that is expected here: the prediction, and how much later than its buffer the
        latest of 99.3 % are, as for a table's own sessions."""
        if isinstance(room, Resources):
            return room
        with self._lock:
            if self._read_at_seconds is None or self._age_seconds() > READ_AGAIN_SECONDS:
                self._read()
            observed = self._known.seconds
        default_seconds = room.limits.start_seconds
        if not observed or not default_seconds:
            return room
        own = OwnErrors.of([seconds / default_seconds for seconds in observed])
        start_seconds = default_seconds * own.centre
        late_seconds = max(default_seconds * (own.bound or 0.0) - start_seconds * SLA_BUFFER, 0.0)
        note = (
            f"{counted(len(observed), 'cluster')} took {min(observed):,.0f} to {max(observed):,.0f} s to start here: "
            f"{start_seconds:,.0f} s are counted, and {late_seconds:,.0f} s more than 10 % for late ones"
        )
        limits = replace(room.limits, start_seconds=start_seconds, start_late_seconds=late_seconds)
        return replace(room, limits=limits, start_note=note)

    def _age_seconds(self) -> float:
        return self._clock.monotonic_seconds() - (self._read_at_seconds or 0.0)

    def _read(self) -> None:
        try:
            body = self._store.read(self._key)
            if body is not None:
                self._known = ObservedStarts.parse_durable(body, self._key)
        except LithifyError as error:
            _log.warning("cluster_starts_not_read", key=self._key, reason=str(error))
        self._read_at_seconds = self._clock.monotonic_seconds()
