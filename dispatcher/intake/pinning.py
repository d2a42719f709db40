"""Checks a job run against its lake, and pins its sources: stream by stream, or, of many streams, by time.

A job run over many streams is accepted without a read of each: its first entry has a time instead of sessions, and the
dispatcher that holds it finds them as it reaches them (`dispatcher/running/session_finding.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice

from compactor.catalog.tables import DeltaCatalog, Table
from compactor.model.clock import Clock
from compactor.model.errors import Invalid
from compactor.planning.session_planner import PinnedSession, check_tables, in_order, pin_sessions, streams_to_compact
from compactor.planning.spec import JobRunSpec
from dispatcher.intake.admission import Admission
from dispatcher.intake.lake_checks import check_against_lake
from dispatcher.records.sessions import SessionPin

STREAMS_PINNED_MAX = 64
"""Streams that are read before a job run is accepted: more than these take longer than a message should wait."""

CLOCKS_APART_MS = 600_000
"""How far the clocks of writers and dispatchers may be apart. What was appended before the instruction was sent must be
compacted; what was appended a little later may be."""


@dataclass(frozen=True)
class PinnedSources:
    """The fields of the same names in `JobRunAccepted`."""

    sessions: tuple[SessionPin, ...]
    pinned_until_ms: int | None = None


def pin_sources(
    run: JobRunSpec, lake: DeltaCatalog, source: Table, clock: Clock, admission: Admission | None = None
) -> PinnedSources:
    """Raises `Invalid` with every reason why the job run can never work on the lake as it is.

    admission  bounds on the files that it may read; None: it may read all
    """
    may_read = None if admission is None else partial(admission.may_read, run.lake)
    listed = None
    if run.partitions is None:
        listed = list(islice(streams_to_compact(run, source), STREAMS_PINNED_MAX + 1))
    _refuse_if(check_against_lake(run, source, may_read, listed))
    if listed is not None and len(listed) > STREAMS_PINNED_MAX:
        check_tables(run, lake, source)
        return PinnedSources((), clock.now_ms() + CLOCKS_APART_MS)
    pinned = pin_sessions(run, lake, source, run.partitions if listed is None else in_order(listed))
    if admission is not None:
        _refuse_if(admission.file_refusals(run.lake, pinned))
    return PinnedSources(pins(pinned))


def pins(sessions: Iterable[PinnedSession]) -> tuple[SessionPin, ...]:
    """The sessions of a job run that have work."""
    return tuple(SessionPin.from_facts(pinned.spec) for pinned in sessions if pinned.work)


def _refuse_if(reasons: Iterable[str]) -> None:
    found = tuple(reasons)
    if found:
        raise Invalid(*found)
