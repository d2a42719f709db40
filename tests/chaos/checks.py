"""What must be true when a run is over, whatever was done to it. Each check answers a sentence for all that is not so.

Judged from the logs, the files, the queues and the events alone, not by what any dispatcher says of itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compactor.catalog.actions import DeltaAdded, RoundCommitted
from compactor.events.relay import Event
from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog, Entry
from compactor.maintenance.garbage import delete_garbage, delete_unfinished, find_garbage, find_unfinished
from compactor.maintenance.verify import verify
from compactor.model.clock import SystemClock
from compactor.model.errors import LithifyError
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import SESSION_LOG, SessionAction, SessionStarted
from compactor.storage.keys import decode
from compactor.storage.object_store import ObjectStore, decoded_names
from dispatcher.records.job_run_log import JobRunAction, JobRunClaimed, JobRunEnded, JobRunState, JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import JobRunLogFolder
from dispatcher.records.sessions import SessionLaunching
from dispatcher.records.work_id import WorkId
from tests.builders import multiset
from tests.chaos.tables import COLUMNS, Fed, Table

HEARTBEAT = "lithify.heartbeat.emitted.v1"


@dataclass(frozen=True)
class Sent:
    """What was put on the queue.

    instructions  good ones, by job run id, each with its table
    refused       bodies that can never work, each sent once
    rivals        pairs of good bodies with one job run id: the first received is accepted, the other refused
    """

    instructions: Mapping[str, Table]
    refused: Sequence[str]
    rivals: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class JobRun:
    """The whole of a job run's logs, as they were read."""

    job_run_id: str
    entries: tuple[Entry[JobRunAction], ...]
    state: JobRunState
    sessions: Mapping[str, tuple[Entry[SessionAction], ...]]


@dataclass(frozen=True)
class Found:
    """What a run has left. `unreadable`: what could not be read of it, in sentences."""

    job_runs: Mapping[str, JobRun]
    open_job_runs: Sequence[str]
    unreadable: Sequence[str]


def job_run_ids(state: ObjectStore) -> list[str]:
    """Every job run that has a log, rejected ones too, without shards."""
    return sorted(name for name in decoded_names(state, "job_runs/", decode) if WorkId.parse(name).shard is None)


def read_all(state: ObjectStore) -> Found:
    """Every log of a dispatchers' state."""
    records = JobRunStore(state, SystemClock())
    job_runs, unreadable = {}, []
    for job_run_id in job_run_ids(state):
        try:
            job_runs[job_run_id] = _read_job_run(records, state, job_run_id)
        except LithifyError as error:
            unreadable.append(f"the log of {job_run_id}: {error}")
    return Found(job_runs, records.open_job_run_ids(), unreadable)


def _read_job_run(records: JobRunStore, state: ObjectStore, job_run_id: str) -> JobRun:
    log = records.log(job_run_id)
    folded = log.load().state
    sessions = {}
    for session_id in folded.sessions:
        folder = SessionFolder(job_run_id, session_id)
        session_log = DurableLog(state, folder.log, SESSION_LOG, SystemClock())
        session_log.load()
        sessions[session_id] = tuple(session_log.entries())
    return JobRun(job_run_id, tuple(log.entries()), folded, sessions)


# ---------------------------------------------------------------------------------------------------- instructions


def outcomes(found: Found, sent: Sent, killed_jobs: Mapping[str, int], attempts_max: int) -> Iterator[str]:
    """Every good instruction has exactly one end, a success; so many attempts may be killed before it need not be."""
    yield from found.unreadable
    for job_run_id in sent.instructions:
        run = found.job_runs.get(job_run_id)
        if run is None or run.state.accepted is None:
            yield f"{job_run_id} was sent, and there is no trace of it"
            continue
        ends = [action for entry in run.entries for action in entry.actions if isinstance(action, JobRunEnded)]
        if len(ends) != 1:
            yield f"{job_run_id} has {len(ends)} ends; it is {run.state.status}"
        elif run.state.status is not JobRunStatus.SUCCEEDED:
            killed = sum(times for plan, times in killed_jobs.items() if f"/{job_run_id}/" in plan)
            if killed < attempts_max:
                yield f"{job_run_id} {run.state.status}: {'; '.join(ends[0].outcome.reasons)[:600]}"


def no_more_than_sent(found: Found, sent: Sent) -> Iterator[str]:
    """Nothing runs that nobody asked for."""
    for job_run_id, run in found.job_runs.items():
        if run.state.accepted is not None and job_run_id not in sent.instructions:
            yield f"{job_run_id} was accepted, though nobody has sent it"


def dead_letters(found: Sequence[tuple[str, list[str]]], sent: Sent, waiting: int) -> Iterator[str]:
    """What can never work lies there, with reasons; nothing else does; nothing is left on the queue."""
    if waiting:
        yield f"{waiting} messages are still on the queue"
    copies = Counter(body for body, _ in found)
    for body, times in Counter(sent.refused).items():
        if copies[body] < times:
            yield f"of {times} messages {copies[body]} lie on the dead-letter queue: {body[:200]}"
    for pair in sent.rivals:
        there = sum(body in copies for body in pair)
        if there != 1:
            yield f"of two bodies with one job run id {there} lie on the dead-letter queue: {pair[1][:200]}"
    may_lie_there = {*sent.refused, *(body for pair in sent.rivals for body in pair)}
    for body, reasons in found:
        if body not in may_lie_there:
            yield f"a good message lies on the dead-letter queue: {body[:200]}, because {'; '.join(reasons)[:400]}"
        elif not reasons:
            yield f"a message lies on the dead-letter queue without a reason: {body[:200]}"


# ------------------------------------------------------------------------------------------------------------ rows


def rows(lake: DeltaCatalog, tables: Sequence[Table], fed: Fed) -> Iterator[str]:
    """No row is lost, none is there twice, none is an old one; and the index says where each is."""
    for table in tables:
        for name in table.partitions:
            if not fed.deltas[table.table_id, name]:
                continue
            stream = lake.table(table.table_id).stream(table.partition(name))
            where = f"{table.table_id} {name}".strip()
            if stream.load().state.compacted is None:
                yield f"{where} was never compacted"
                continue
            there = multiset(lake.table(table.table_id).scan(table.partition(name)).to_table(), COLUMNS)
            due = multiset(fed.expected(table, name), COLUMNS)
            if there != due:
                yield f"{where}: {_first(due - there)} are missing, {_first(there - due)} are too many"
            if table.is_real:
                yield from (f"{where}: {problem}" for problem in verify(stream).problems)


def _first(rows: Counter[tuple[str, ...]]) -> str:
    return f"{rows.total()} rows ({', '.join(map(str, list(rows)[:2]))})" if rows else "0 rows"


def books(lake: DeltaCatalog, tables: Sequence[Table], fed: Fed) -> Iterator[str]:
    """Each round begins with what the one before it left; every delta row came in once; no round is in there twice."""
    for table in tables:
        for name in table.partitions:
            if not fed.deltas[table.table_id, name]:
                continue
            rounds = list(_rounds(lake, table, name))
            where = f"{table.table_id} {name}".strip()
            before = 0
            for each in rounds:
                begins = each.counts.rows_before
                if begins != before:
                    yield f"{where}: a round of {each.session_id} begins with {begins} rows, not {before}"
                before = each.counts.rows_out
            arrived = sum(each.counts.rows_in - each.counts.rows_before for each in rounds)
            given = fed.rows[table.table_id, name]
            if arrived != given:
                yield f"{where}: {arrived} delta rows were taken in, of {given}"
            for what, times in Counter((each.session_id, each.round_number) for each in rounds).items():
                if times > 1:
                    yield f"{where}: round {what[1]} of {what[0]} was committed {times} times"


def rounds_of(lake: DeltaCatalog, table: Table) -> int:
    """How many rounds were committed to all of its partitions."""
    return sum(len(list(_rounds(lake, table, name))) for name in table.partitions)


def _rounds(lake: DeltaCatalog, table: Table, name: str) -> Iterator[RoundCommitted]:
    stream = lake.table(table.table_id).stream(table.partition(name))
    for entry in stream.log.entries():
        yield from (action for action in entry.actions if isinstance(action, RoundCommitted))


def files(lake: DeltaCatalog, tables: Sequence[Table], fed: Fed) -> Iterator[str]:
    """Nobody has cleared anything yet: every file that a log ever named is there."""
    there = {entry.key for entry in lake.store.list("tables/")}
    for table in tables:
        for name in table.partitions:
            if not fed.deltas[table.table_id, name]:
                continue
            stream = lake.table(table.table_id).stream(table.partition(name))
            for entry in stream.log.entries():
                for action in entry.actions:
                    for path in _paths(action):
                        if path not in there:
                            yield f"entry {entry.number} of {stream} names {path}, which is gone"


def _paths(action: object) -> list[str]:
    if isinstance(action, DeltaAdded):
        return [file.path for file in action.files]
    if isinstance(action, RoundCommitted):
        named = [file.path for file in action.files_added]
        return named + [path for file in action.index_files for path in file.paths]
    return []


def clear(lake: DeltaCatalog, tables: Sequence[Table]) -> int:
    """Delete all that no snapshot needs, without any grace; answers how many files that were."""
    count = 0
    for table in tables:
        if table.table_id in lake.tables():
            for garbage in find_garbage(lake.store, table.table_id, SystemClock(), grace_seconds=0):
                delete_garbage(lake.store, garbage)
                count += len(garbage.garbage)
    delete_unfinished(lake.store, find_unfinished(lake.store, SystemClock(), grace_seconds=0))
    return count


# ---------------------------------------------------------------------------------------------------------- fences


def fenced(found: Found) -> Iterator[str]:
    """Who was taken over has written nothing afterwards, in either log; an attempt's number is used once."""
    for run in found.job_runs.values():
        yield from _late_writes(run)
        launches = Counter(
            (action.session_id, action.attempt)
            for entry in run.entries
            for action in entry.actions
            if isinstance(action, SessionLaunching)
        )
        for (session_id, attempt), times in launches.items():
            if times > 1:
                yield f"attempt {attempt} of {session_id} was launched {times} times"
        for session_id, entries in run.sessions.items():
            newest = 0
            for entry in entries:
                for action in entry.actions:
                    if action.attempt < newest:
                        yield f"attempt {action.attempt} wrote {action.action} after attempt {newest} of {session_id}"
                    if isinstance(action, SessionStarted):
                        newest = max(newest, action.attempt)


def _late_writes(run: JobRun) -> Iterator[str]:
    epoch = 0
    for entry in run.entries:
        for action in entry.actions:
            if isinstance(action, JobRunClaimed):
                if action.epoch != epoch + 1:
                    yield f"{run.job_run_id}: epoch {action.epoch} follows epoch {epoch}"
                epoch = action.epoch
            elif getattr(action, "epoch", epoch) != epoch:
                yield f"{run.job_run_id}: {action.action} of a holder of another epoch than {epoch}"


def closed(found: Found) -> Iterator[str]:
    """No job run is open, and no marker says so of one that is not."""
    for run in found.job_runs.values():
        if run.state.status.is_open:
            yield f"{run.job_run_id} is still {run.state.status}"
    for job_run_id in found.open_job_runs:
        yield f"{job_run_id} is still marked as open"


# ---------------------------------------------------------------------------------------------------------- events

EVENT_OF_ACTION = {
    "job_run_accepted": "job_run.accepted",
    "job_run_rejected": "job_run.rejected",
    "job_run_repeated": "job_run.repeated",
    "job_run_paused": "job_run.paused",
    "job_run_waits_for_money": "job_run.waits_for_money",
    "job_run_resumed": "job_run.resumed",
    "session_planned": "session.planned",
    "session_launched": "session.launched",
    "session_stalled": "session.stalled",
    "session_retried": "session.retried",
    "session_started": "session.started",
    "round_done": "session.round_completed",
    "expected_sla_changed": "session.expected_sla_changed",
    "index_moved": "rehash.completed",
}
"""The event that publishes an action, if its name alone decides."""


def events(found: Found, published: Sequence[Event]) -> Iterator[str]:
    """Every entry with an event was published, and repeats were the same event."""
    by_id: dict[str, list[Event]] = defaultdict(list)
    for event in published:
        by_id[event.id].append(event)
    known: dict[str, str] = {}
    for run in found.job_runs.values():
        known |= _events_due(run)
    for event_id, name in known.items():
        if event_id not in by_id:
            yield f"{name} was never published: {event_id}"
        elif (kind := by_id[event_id][0].type) != f"lithify.{name}.v1":
            yield f"{event_id} was published as {kind}, not as {name}"
    for event_id, repeats in by_id.items():
        if len({event.render() for event in repeats}) > 1:
            yield f"{event_id} was published in {len(repeats)} different ways"
        if event_id not in known and repeats[0].type != HEARTBEAT:
            yield f"{repeats[0].type} {event_id} tells of nothing that is in a log"


def _events_due(run: JobRun) -> dict[str, str]:
    due = {}
    for entry in run.entries:
        for ordinal, action in enumerate(entry.actions):
            name = _event_of(action)
            if name is not None:
                due[f"{JobRunLogFolder(run.job_run_id).key}#{entry.number}.{ordinal}"] = name
    for session_id, entries in run.sessions.items():
        log_id = SessionFolder(run.job_run_id, session_id).log
        for logged in entries:
            for ordinal, what in enumerate(logged.actions):
                if what.action in EVENT_OF_ACTION:
                    due[f"{log_id}#{logged.number}.{ordinal}"] = EVENT_OF_ACTION[what.action]
    return due


def _event_of(action: JobRunAction) -> str | None:
    match action.action:
        case "job_run_claimed":
            return "job_run.started" if action.epoch == 1 else None
        case "job_run_ended":
            return f"job_run.{action.outcome.status}"
        case "session_ended":
            ended = {"succeeded": "succeeded", "nothing_to_do": "succeeded", "failed": "failed"}.get(action.end.end)
            return f"session.{ended}" if ended else None
        case name:
            return EVENT_OF_ACTION.get(name)


# --------------------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class Figures:
    """takeover_seconds  from the last word of a holder that lost its job run to the next holder's claim"""

    takeovers: int
    takeover_seconds_max: float
    attempts: int
    repeated_events: int
    unclaimed_seconds_max: float


def ended_before(found: Found, at_ms: int) -> int:
    """How many job runs had ended by then."""
    return sum(
        any(isinstance(action, JobRunEnded) for entry in run.entries if entry.at_ms < at_ms for action in entry.actions)
        for run in found.job_runs.values()
    )


def figures(found: Found, published: Sequence[Event]) -> Figures:
    takeovers: list[float] = []
    attempts, unclaimed = 0, [0.0]
    for run in found.job_runs.values():
        last_ms = run.entries[0].at_ms
        for entry in run.entries:
            for action in entry.actions:
                if isinstance(action, JobRunClaimed):
                    (takeovers if action.epoch > 1 else unclaimed).append((entry.at_ms - last_ms) / 1000)
                attempts += isinstance(action, SessionLaunching)
            last_ms = entry.at_ms
    repeats = Counter(event.id for event in published)
    return Figures(
        takeovers=len(takeovers),
        takeover_seconds_max=max(takeovers, default=0.0),
        attempts=attempts,
        repeated_events=repeats.total() - len(repeats),
        unclaimed_seconds_max=max(unclaimed),
    )
