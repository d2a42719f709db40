"""Checks a job run against its lake, and pins its sources: stream by stream, or, of many streams, by time.

A job run over many streams is accepted without a read of each: its first entry has a time instead of sessions, and the
dispatcher that holds it finds them as it reaches them (`dispatcher/running/session_finding.py`).

The check reads logs and one file's schema per partition stream. Defects that only reading every file shows are found by
the session: a missing key column before it writes anything, a corrupt file in the round that reads it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa

from compactor.catalog.key_columns import check_key_columns
from compactor.catalog.snapshot import SourceStream
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog, Table
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Invalid, refuse_if
from compactor.model.files import DataFile
from compactor.model.names import Operation, by_values
from compactor.planning.session_planner import (
    PinnedSession,
    StreamsRead,
    check_tables,
    pin_sessions,
    streams_to_compact,
)
from compactor.planning.spec import JobRunSpec
from compactor.schemas.unify import unify_schemas
from compactor.tabular import TabularFile, read_schema
from dispatcher.intake.admission import Admission
from dispatcher.records.sessions import SessionPin

STREAMS_CHECKED_MAX = 32
"""Streams whose columns are checked: all nearly always have the same; if one has others, its own session reports it."""

ENTRIES_EXPECTED = 2
"""Entries of a stream's log since the last instruction for it: the commit of that, and a delta."""


def check_against_lake(
    job_run: JobRunSpec,
    table: Table,
    may_read: Callable[[str], bool] | None = None,
    listed: Sequence[dict[str, str]] | None = None,
    read: StreamsRead | None = None,
) -> tuple[str, ...]:
    """Every reason why this job run can never work on the lake as it is; empty if there is none.

    Args:
        table: its source
        may_read: whether a file with this absolute URI may be opened here, or is passed over; None: every file may
        listed: the first of the partitions of a job run that names none, if they were just listed
        read: to which the streams that are read here are added"""
    reasons: list[str] = []
    if job_run.partitions is not None:
        streams, reasons = table.look_up(job_run.partitions)
    else:
        first = islice(streams_to_compact(job_run, table), STREAMS_CHECKED_MAX) if listed is None else listed
        streams = [table.stream(partition) for partition in first]
    checked, read = streams[:STREAMS_CHECKED_MAX], {} if read is None else read
    return (*reasons, *_check_columns(job_run, _schemas(table, checked, may_read, read)))


def _check_columns(job_run: JobRunSpec, schemas: Iterator[tuple[str, pa.Schema]]) -> tuple[str, ...]:
    try:
        named = list(schemas)
        schema = unify_schemas(named) if named else None
    except (Invalid, Corrupt) as error:  # its session would fail with the same sentence
        return error.reasons
    return () if schema is None else check_key_columns(schema, job_run.primary_keys, job_run.custom_sort_keys)


def _schemas(
    table: Table, streams: list[PartitionStream], may_read: Callable[[str], bool] | None, read: StreamsRead
) -> Iterator[tuple[str, pa.Schema]]:
    """The declared schema, and that of the newest upsert of each stream."""
    if table.schema is not None:
        yield f"the schema of {table.table_id}", table.schema
    known: set[str | None] = set()
    for stream in streams:
        read[stream.folder] = stream.load(ahead=ENTRIES_EXPECTED + 1)
        active = read[stream.folder].state.active
        file = _newest_upserted_file(active) if active is not None else None
        uri = stream.uri_of(file.path) if file is not None else ""
        if file is not None and (may_read is None or may_read(uri)) and file.schema_fingerprint not in known:
            known |= {file.schema_fingerprint} - {None}
            yield uri, read_schema(stream.location, TabularFile.of(uri, file), table.schema)


def _newest_upserted_file(active: SourceStream) -> DataFile | None:
    for delta in reversed(active.deltas):
        if delta.operation is Operation.UPSERT and delta.files:
            return delta.files[-1]
    return None


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

    Args:
        admission: bounds on the files that it may read; None: it may read all"""
    may_read = None if admission is None else partial(admission.may_read, run.lake)
    listed = None
    if run.partitions is None:
        listed = list(islice(streams_to_compact(run, source), STREAMS_PINNED_MAX + 1))
    read: StreamsRead = {}
    refuse_if(check_against_lake(run, source, may_read, listed, read))
    if listed is not None and len(listed) > STREAMS_PINNED_MAX:
        check_tables(run, lake, source)
        return PinnedSources((), clock.now_ms() + CLOCKS_APART_MS)
    wanted = run.partitions if listed is None else sorted(listed, key=by_values)
    pinned = pin_sessions(run, lake, source, wanted, read=read)
    if admission is not None:
        refuse_if(list(admission.file_refusals(run.lake, pinned)))
    return PinnedSources(pins(pinned))


def pins(sessions: Iterable[PinnedSession]) -> tuple[SessionPin, ...]:
    """The sessions of a job run that have work."""
    return tuple(SessionPin.from_facts(pinned.spec) for pinned in sessions if pinned.work)
