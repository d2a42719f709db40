"""The history: a record of each job run that has ended and of each rejected document, in one log per day.

    ended, published --recorded--> the day's log, with tables as checkpoints --day is over--> closed: one Parquet file
                                                                                            of the day, final

A job run is recorded before its last marker is removed, so after any crash it has a marker, a record, or both. It
belongs to the day of its end. A closed day never changes: a job run that comes too late for its day is recorded on the
first later day that is not closed. A second recording visits the same days in the same order, and finds the record.

Overviews read one file for each closed day and one log for each open day, instead of one log for each job run.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, TypeAdapter

from compactor.events.types import bounded
from compactor.log.checkpoints import WholeCheckpoint
from compactor.log.columns import RecordCodec
from compactor.log.durable_log import DurableLog, LogFormat, LogState
from compactor.log_context import Logged
from compactor.model.clock import Clock, date_of
from compactor.model.document import Document
from compactor.model.errors import Corrupt, LithifyError, Outdated
from compactor.storage.concurrently import run_many
from compactor.storage.object_store import ObjectStore
from dispatcher.records.job_run_log import JobRunState, JobRunStatus
from dispatcher.records.keys import CleanedDay, HistoryDayLog, HistoryFile
from dispatcher.records.outcome import expected_usd, used_usd

RECORDS_PER_ENTRY = 500
"""Records in one entry, which stays below a few megabytes however many job runs end at once."""

CHECKPOINT_ENTRIES = 16
"""Entries between two checkpoints. An overview reads all records after the last checkpoint."""

NEWEST_MAX = 512
"""Records of a day that are held as objects, at most; more of them become columns."""

LOGS_KEPT = 4
"""Logs of days that are cached, with what was read of them."""

DAYS_TRIED_MAX = 36_600
"""Closed days that one record may find before it is given up: a hundred years."""

_CLOSED = b"lithify.day_closed"


class EndedJobRun(Document):
    """One job run, as overviews show it. For a rejected document `job_run_id` is the id of its message.

    Attributes:
        seconds: from its acceptance to its end, of which it was paused for `paused_seconds`
        sessions, rounds, rows_*: over all sessions that succeeded
        waiters: workflows that waited for it
        requested_job_run_id: the job run id in a rejected document"""

    job_run_id: str
    status: str
    table: str | None
    destination: str | None
    accepted_at_ms: int
    ended_at_ms: int
    seconds: float
    expected_sla: float | None = None
    desired_sla: int | None = None
    priority: int = 0
    nothing_to_do: bool = False
    sessions: int = 0
    rounds: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_deduplicated: int = 0
    rows_deleted: int = 0
    expected_usd: float | None = None
    usd: float | None = None
    cancel_requested: bool = False
    waiters: int = 0
    predecessor: str | None = None
    requested_job_run_id: str | None = None
    reasons: tuple[str, ...] = ()
    paused_seconds: float = 0.0

    @property
    def own_id(self) -> str:
        """Of a rejected document: the id that it gave itself, if it did."""
        return self.requested_job_run_id or self.job_run_id

    @property
    def message_id(self) -> str | None:
        """Of a rejected document."""
        return self.job_run_id if self.status == JobRunStatus.REJECTED else None

    @property
    def day(self) -> str:
        return day_of(self.ended_at_ms)


def day_of(at_ms: int) -> str:
    return date_of(at_ms).isoformat()


def ended_job_run(job_run_id: str, state: JobRunState, accepted_at_ms: int) -> EndedJobRun | None:
    """The record of a job run; None if it has not ended, or is a shard of one. Pure."""
    if state.rejected is not None:
        return EndedJobRun(
            job_run_id=job_run_id,
            status=JobRunStatus.REJECTED.value,
            table=state.rejected.table,
            destination=None,
            accepted_at_ms=accepted_at_ms,
            ended_at_ms=accepted_at_ms,
            seconds=0.0,
            waiters=len(state.waiters),
            requested_job_run_id=state.rejected.requested_job_run_id,
            reasons=bounded(state.rejected.reasons),
        )
    if state.accepted is None or state.ended is None or state.accepted.shard is not None:
        return None
    spec, outcome = state.accepted.spec, state.ended.outcome
    ended_at_ms = accepted_at_ms + round(state.ended.seconds * 1000)
    return EndedJobRun.from_facts(
        outcome,
        state.ended,
        state.accepted,
        spec,
        job_run_id=job_run_id,
        table=spec.source_table_id,
        destination=spec.destination_compacted_table_id,
        accepted_at_ms=accepted_at_ms,
        ended_at_ms=ended_at_ms,
        expected_usd=expected_usd(state),
        usd=used_usd(state, ended_at_ms),
        cancel_requested=state.cancel is not None,
        waiters=len(state.waiters),
        reasons=bounded(outcome.reasons),
    )


# ------------------------------------------------------------------------------------------------- the log of a day


class JobRunsRecorded(Document):
    action: Literal["job_runs_recorded"] = "job_runs_recorded"
    job_runs: tuple[EndedJobRun, ...]


class DayClosed(Document):
    """The last entry of the log."""

    action: Literal["day_closed"] = "day_closed"


HistoryAction = Annotated[JobRunsRecorded | DayClosed, Field(discriminator="action")]


_RECORD = RecordCodec(EndedJobRun)


def _to_table(job_runs: Sequence[EndedJobRun]) -> pa.Table:
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(_RECORD.to_array(job_runs))])


def _from_table(table: pa.Table) -> list[EndedJobRun]:
    return [
        each
        for batch in table.combine_chunks().to_batches()
        for each in _RECORD.to_values(batch.to_struct_array())
        if each is not None
    ]


@dataclass(frozen=True)
class DayState:
    """The records of a day, each once. A busy day has a hundred thousand, and every dispatcher holds them: as columns
    they take an eighth of the memory, and a checkpoint does not encode them again.

    Attributes:
        earlier: as columns
        newest: by job run id, recorded after those, in the order in which they were recorded"""

    earlier: pa.Table = field(default_factory=lambda: _to_table(()))
    newest: Mapping[str, EndedJobRun] = field(default_factory=lambda: MappingProxyType({}))
    is_closed: bool = False

    def without(self, job_runs: Sequence[EndedJobRun]) -> list[EndedJobRun]:
        """Those of the job runs that are not recorded."""
        left = {each.job_run_id: each for each in job_runs if each.job_run_id not in self.newest}
        wanted = pa.array(left, pa.string())
        known = self.earlier.column("job_run_id").filter(pc.is_in(self.earlier.column("job_run_id"), value_set=wanted))
        for each in known.to_pylist():
            del left[each]
        return list(left.values())

    def table(self) -> pa.Table:
        return pa.concat_tables([self.earlier, _to_table(tuple(self.newest.values()))])

    def records(self) -> list[EndedJobRun]:
        return [*_from_table(self.earlier), *self.newest.values()]


HistoryLog = DurableLog[DayState, HistoryAction]


def apply(state: DayState, action: HistoryAction) -> DayState:
    """The state after one more action. Raises `Corrupt` if the action cannot follow."""
    if state.is_closed:
        raise Corrupt(f"{action.action} follows the end of the day")
    if isinstance(action, DayClosed):
        return replace(state, is_closed=True)
    added = {each.job_run_id: each for each in state.without(action.job_runs)}
    if len(added) < len(action.job_runs):
        twice = sorted({each.job_run_id for each in action.job_runs} - added.keys())
        raise Corrupt(f"job runs are recorded twice: {', '.join(twice)}")
    after = replace(state, newest=MappingProxyType({**state.newest, **added}))
    return after if len(after.newest) < NEWEST_MAX else DayState(after.table())


def _checkpoint_of(state: DayState) -> pa.Table:
    return state.table().replace_schema_metadata({_CLOSED: str(state.is_closed).lower()})


def _state_of(table: pa.Table) -> DayState:
    is_closed = (table.schema.metadata or {}).get(_CLOSED) == b"true"
    found = table.replace_schema_metadata(None)
    as_now = DayState().earlier.schema
    return DayState(found if found.schema == as_now else _to_table(_from_table(found)), is_closed=is_closed)


HISTORY_LOG: LogFormat[DayState, HistoryAction] = LogFormat(
    name="history",
    action_type=TypeAdapter(HistoryAction),
    initial=DayState(),
    apply=apply,
    checkpoint=WholeCheckpoint(_checkpoint_of, _state_of),
    checkpoint_entries=CHECKPOINT_ENTRIES,
    keeps_entries=False,
)


# ------------------------------------------------------------------------------------------------------ all the days


class CleanedNote(Document):
    """`kept`: job runs of the day whose plans, heartbeats and cursors were not deleted."""

    at_ms: int
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedDay:
    """`job_runs`: the latest end first. `failure`: why the day cannot be read."""

    day: str
    job_runs: tuple[EndedJobRun, ...]
    failure: str | None = None


class History:
    """The history of one dispatcher state. Thread-safe."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._log = lru_cache(LOGS_KEPT)(self._open_log)

    # -- writing

    def record(self, ended: Iterable[EndedJobRun]) -> None:
        """Records each job run once, durably. Job runs that are recorded already are skipped."""
        by_day: defaultdict[str, dict[str, EndedJobRun]] = defaultdict(dict)
        for each in ended:
            by_day[each.day][each.job_run_id] = each
        for day, job_runs in by_day.items():
            known = list(job_runs.values())
            for start in range(0, len(known), RECORDS_PER_ENTRY):
                self._record_from(day, known[start : start + RECORDS_PER_ENTRY])

    def _record_from(self, day: str, job_runs: Sequence[EndedJobRun]) -> None:
        """Records on this day, or on the first later day that is not closed."""
        left = list(job_runs)
        for _ in range(DAYS_TRIED_MAX):
            left = self._record_on(day, left)
            if not left:
                return
            day = (date.fromisoformat(day) + timedelta(days=1)).isoformat()
        raise Corrupt(f"the history is closed until {day}: {len(left)} job runs cannot be recorded")

    def _record_on(self, day: str, job_runs: Sequence[EndedJobRun]) -> list[EndedJobRun]:
        """Records on this day. Returns the job runs that were not recorded, since the day is closed."""

        def decide(before: LogState[DayState]) -> Sequence[HistoryAction]:
            missing = [] if before.state.is_closed else before.state.without(job_runs)
            return [JobRunsRecorded(job_runs=tuple(missing))] if missing else []

        # What is recorded stays recorded, and a closed day stays closed: the last fold read is as good as the newest.
        log = self._log(day)
        return log.append(decide, log.newest if log.newest.entry_number else None).after.state.without(job_runs)

    def close(self, day: str) -> None:
        """Closes the day: it never changes again, and has a file. Idempotent."""

        def decide(before: LogState[DayState]) -> Sequence[HistoryAction]:
            return [] if before.state.is_closed else [DayClosed()]

        after = self._log(day).append(decide).after.state
        rows = _checkpoint_of(after).sort_by([("ended_at_ms", "ascending"), ("job_run_id", "ascending")])
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
        self._store.put_if_absent(HistoryFile(day).key, sink.getvalue().to_pybytes())

    def mark_cleaned(self, day: str, kept: tuple[str, ...]) -> None:
        self._store.put_if_absent(CleanedDay(day).key, CleanedNote(at_ms=self._clock.now_ms(), kept=kept).render())

    # -- reading

    def closed_days(self) -> list[str]:
        """The days that have a file."""
        return sorted(HistoryFile.parse(entry.key).day for entry in self._store.list(HistoryFile.prefix()))

    def days(self) -> list[str]:
        """Every day on which a job run was recorded."""
        return sorted(self._store.list_folders(HistoryDayLog.prefix()))

    def cleaned_days(self) -> list[str]:
        return sorted(CleanedDay.parse(entry.key).day for entry in self._store.list(CleanedDay.prefix()))

    def is_cleaned(self, ended: EndedJobRun) -> bool:
        """Whether the job run's plans, heartbeats and cursors were deleted with those of its day."""
        key = CleanedDay(ended.day).key
        body = self._store.read(key)
        if body is None or ended.job_run_id in CleanedNote.parse_durable(body, key).kept:
            return False
        return any(each.job_run_id == ended.job_run_id for each in self.job_runs_of(ended.day))

    def read(self, first: str | None = None, last: str | None = None) -> Iterator[RecordedDay]:
        """The days from `first` to `last`, the latest first. Reads several days at a time."""
        closed = frozenset(self.closed_days())
        days = [day for day in self.days() if (first or day) <= day <= (last or day)]
        days.reverse()
        yield from run_many(self._store.location, lambda day: self._read_day(day, has_file=day in closed), days)

    def job_runs_of(self, day: str) -> tuple[EndedJobRun, ...]:
        """All job runs of a closed day. Raises `Corrupt` if they cannot be read."""
        found = self._read_day(day, has_file=True)
        if found.failure is not None:
            raise Corrupt(found.failure)
        return found.job_runs

    def _read_day(self, day: str, *, has_file: bool) -> RecordedDay:
        rows = self._read_file(day) if has_file else None
        if rows is None:
            try:
                rows = self._log(day).load().state.records()
            except (Corrupt, Outdated) as error:
                return RecordedDay(day, (), str(error))
        rows.sort(key=lambda each: (each.ended_at_ms, each.job_run_id), reverse=True)
        return RecordedDay(day, tuple(rows))

    def _read_file(self, day: str) -> list[EndedJobRun] | None:
        """The rows of the day's file; None: there is no readable file, and the log must be read."""
        key = HistoryFile(day).key
        body = self._store.read(key)
        if body is None:
            return None
        with Logged(
            "history_file_unreadable", pa.ArrowException, OSError, ValueError, KeyError, LithifyError, file=key
        ):
            table = pq.read_table(pa.BufferReader(body), page_checksum_verification=True)
            known = [name for name in table.column_names if name in EndedJobRun.model_fields]
            return _from_table(table.select(known))
        return None

    def _open_log(self, day: str) -> HistoryLog:
        return DurableLog(self._store, HistoryDayLog(day).key, HISTORY_LOG, self._clock)
