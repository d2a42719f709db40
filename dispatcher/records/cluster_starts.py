"""How long launches take to start at one place (a kind and a region, or a machine), and how far its sessions are off
their predictions, learned from the launches of all dispatchers of a state.

| place                            | its start is                                                     |
|----------------------------------|------------------------------------------------------------------|
| a cluster is launched            | from a launch to the first sign of its job                       |
| this machine, a standalone Spark | what a session took beside its work: until its executors' Python |
|                                  | runs, and from its last commit until it is seen to have ended    |

All are seconds of the dispatcher that watched them. The last ones stand in one object of the state, which is
overwritten: it is for predictions only, and where two dispatchers write at once, one observation is lost.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from pydantic import Field

from compactor.log_context import Logged
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import LithifyError
from compactor.model.names import counted
from compactor.planning.own_errors import ENOUGH, FACTORS_KEPT, FIRST_RUN_HIGH, FIRST_RUN_LOW, OwnErrors, PlaceFactors
from compactor.planning.sizing import Resources
from compactor.planning.time_model import SLA_BUFFER
from compactor.storage.object_store import ObjectStore
from dispatcher.records.keys import ClusterStartsObject
from launcher.plan import Room

STARTS_KEPT = 24
READ_AGAIN_SECONDS = 600.0
"""Age of what was read, after which the observations of other dispatchers are read, too."""


class ObservedStarts(Document):
    """`seconds`: of each start, the oldest first. `factors`, `corrected_factors`: as in `PlaceFactors`."""

    seconds: tuple[float, ...] = Field(default=(), max_length=STARTS_KEPT)
    factors: tuple[float, ...] = Field(default=(), max_length=FACTORS_KEPT)
    corrected_factors: tuple[float, ...] = Field(default=(), max_length=FACTORS_KEPT)

    @property
    def place_factors(self) -> PlaceFactors:
        return PlaceFactors(self.factors, self.corrected_factors)


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

    def observed(self, start_seconds: float | None, factors: PlaceFactors) -> None:
        with self._lock:
            self._read()
            seconds = () if start_seconds is None else (round(start_seconds, 1),)
            of_all = self._known.place_factors.then(factors)
            self._known = ObservedStarts(
                seconds=(*self._known.seconds, *seconds)[-STARTS_KEPT:],
                factors=tuple(round(each, 3) for each in of_all.plain),
                corrected_factors=tuple(round(each, 3) for each in of_all.corrected),
            )
            with Logged("cluster_start_not_noted", LithifyError, key=self._key):
                self._store.overwrite(self._key, self._known.render())

    def applied(self, room: Room) -> Room:
        """The settings with the start that is expected here: the prediction, and how much later than its buffer the
        latest of 99.3 % are, as for a table's own sessions; and with the factors of all tables' sessions."""
        with self._lock:
            if self._read_at_seconds is None or self._age_seconds() > READ_AGAIN_SECONDS:
                self._read()
            known = self._known
        if isinstance(room, Resources):
            start = _expected_start(known.seconds, room.start_seconds)
            return replace(
                room,
                start_seconds=start.seconds,
                start_late_seconds=start.late_seconds,
                start_note=start.note,
                place_factors=known.place_factors,
            )
        start = _expected_start(known.seconds, room.limits.start_seconds)
        limits = replace(room.limits, start_seconds=start.seconds, start_late_seconds=start.late_seconds)
        return replace(room, limits=limits, start_note=start.note, place_factors=known.place_factors)

    def _age_seconds(self) -> float:
        return self._clock.monotonic_seconds() - (self._read_at_seconds or 0.0)

    def _read(self) -> None:
        with Logged("cluster_starts_not_read", LithifyError, key=self._key):
            body = self._store.read(self._key)
            if body is not None:
                self._known = ObservedStarts.parse_durable(body, self._key)
        self._read_at_seconds = self._clock.monotonic_seconds()


@dataclass(frozen=True)
class _ExpectedStart:
    seconds: float
    late_seconds: float
    note: str | None


def _expected_start(observed: Sequence[float], default_seconds: float) -> _ExpectedStart:
    """`default_seconds` are a guess, which the first launch replaces. Of fewer than `ENOUGH` the longest is expected.

    Worked: 18, 18, 19, 19, 21, 21, 22 and 22 s: 20 s are counted, and 3 more than 10 % for late ones.
    """
    if not default_seconds:
        return _ExpectedStart(0.0, 0.0, None)
    if not observed:
        low, high = default_seconds * FIRST_RUN_LOW, default_seconds * FIRST_RUN_HIGH
        note = f"no start was observed here yet: it may take {low:,.0f} to {high:,.0f} s"
        return _ExpectedStart(default_seconds, 0.0, note)
    seconds = max(observed) if len(observed) < ENOUGH else median(observed)
    bound = OwnErrors.of([each / seconds for each in observed]).bound if seconds else None
    late_seconds = 0.0 if bound is None else max(seconds * bound - seconds * SLA_BUFFER, 0.0)
    note = (
        f"{counted(len(observed), 'launch', 'launches')} took {min(observed):,.0f} to {max(observed):,.0f} s to start "
        f"here: {seconds:,.0f} s are counted, and {late_seconds:,.0f} s more than 10 % for late ones"
    )
    return _ExpectedStart(seconds, late_seconds, note)
