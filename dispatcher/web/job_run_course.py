"""The course of a job run's sessions: what each attempt waited for, when it was launched, its rounds and its end. Pure:
made of the entries of the job-run log and of the session logs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from compactor.events.relay import Event
from compactor.log.durable_log import Entry
from compactor.sessions.session_log import RoundDone, SessionAction
from dispatcher.operations.event_text import event_text
from dispatcher.records.claims import JobRunLog
from dispatcher.records.job_run_events import job_run_events, subject_of
from dispatcher.records.job_run_log import JobRunAction, JobRunOutcome, JobRunSharded, JobRunState, ShardEnded
from dispatcher.records.keys import JobRunLogFolder
from dispatcher.records.sessions import SessionEnded, SessionLaunched, SessionLaunching, SessionRetried, SessionStalled
from launcher.outcomes import Cancelled, NothingToDo, Succeeded


@dataclass
class Attempt:
    """
    Attributes:
        launching_at_ms, launched_at_ms: when it took its number, and when its cluster had it; the latter None: never
        ended_at_ms: None: it runs
        ended_well: None: it runs, or another dispatcher found it gone
        bundle: of the sessions that shared its launch; None: it had a launch of its own"""

    number: int
    launching_at_ms: int
    launched_at_ms: int | None = None
    ended_at_ms: int | None = None
    ended_well: bool | None = None
    is_cancelled: bool = False
    bundle: str | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Round:
    """A committed round, by its machine's clock."""

    number: int
    attempt: int
    ended_at_ms: int
    seconds: float


@dataclass
class Course:
    attempts: list[Attempt] = field(default_factory=list)
    rounds: Sequence[Round] = ()


def attempts_of(entries: Sequence[Entry[JobRunAction]]) -> dict[str, list[Attempt]]:
    """By session. An attempt whose end nobody recorded ends where the next one is launched."""
    found: dict[str, list[Attempt]] = {}
    for entry in entries:
        for action in entry.actions:
            match action:
                case SessionLaunching():
                    attempts = found.setdefault(action.session_id, [])
                    if attempts and attempts[-1].ended_at_ms is None:
                        attempts[-1].ended_at_ms = action.at_ms
                    attempts.append(Attempt(action.attempt, action.at_ms, bundle=action.bundle))
                case SessionLaunched() | SessionStalled() | SessionRetried() | SessionEnded():
                    attempts = found.get(action.session_id, [])
                    if attempts and attempts[-1].ended_at_ms is None:
                        _note(attempts[-1], action, entry.at_ms)
                case _:
                    pass
    return found


def _note(
    attempt: Attempt, action: SessionLaunched | SessionStalled | SessionRetried | SessionEnded, at_ms: int
) -> None:
    match action:
        case SessionLaunched():
            attempt.launched_at_ms = at_ms
        case SessionStalled():
            attempt.reasons = (f"no progress for {action.quiet_seconds:.0f} s",)
        case SessionRetried():
            attempt.ended_at_ms, attempt.ended_well = action.failed_at_ms, False
            attempt.reasons = (*attempt.reasons, *action.reasons)
        case SessionEnded():
            attempt.ended_at_ms = action.at_ms if action.at_ms is not None else at_ms
            attempt.ended_well = isinstance(action.end, Succeeded | NothingToDo)
            attempt.is_cancelled = isinstance(action.end, Cancelled)


@dataclass(frozen=True)
class EndedShard:
    """A part of a job run over many streams. `opened_at_ms`: from then on a dispatcher may take it."""

    number: int
    opened_at_ms: int
    ended_at_ms: int
    outcome: JobRunOutcome


def ended_shards(entries: Sequence[Entry[JobRunAction]], accepted_at_ms: int) -> list[EndedShard]:
    """In the order of their ends. Shards that were opened before these entries count from the acceptance on."""
    opened: list[int] = []
    found = []
    for entry in entries:
        for action in entry.actions:
            if isinstance(action, JobRunSharded):
                at_ms = entry.at_ms if opened or entries[0].number == 1 else accepted_at_ms
                opened += [at_ms] * (action.opened - len(opened))
            elif isinstance(action, ShardEnded):
                opened_at_ms = opened[action.number] if action.number < len(opened) else accepted_at_ms
                found.append(EndedShard(action.number, opened_at_ms, entry.at_ms, action.outcome))
    return found


def rounds_of(entries: Sequence[Entry[SessionAction]]) -> list[Round]:
    return [
        Round(action.round_number, action.attempt, entry.at_ms, action.seconds)
        for entry in entries
        for action in entry.actions
        if isinstance(action, RoundDone)
    ]


@dataclass(frozen=True)
class ToldEvent:
    """An event of the job-run log for people. `what`: its type without what all types share."""

    event: Event
    at_ms: int
    what: str
    text: str


def events_of(
    log: JobRunLog, entries: Sequence[Entry[JobRunAction]], state: JobRunState, accepted_at_ms: int
) -> Iterator[ToldEvent]:
    """In the order of the log: what its topic is told, with the same ids."""
    job_run_id = JobRunLogFolder.parse(log.folder).job_run_id
    build = job_run_events(subject_of(job_run_id, state), log.folder, state, accepted_at_ms)
    for entry in entries:
        for event in build(entry):
            what = event.type.removeprefix("lithify.").rpartition(".v")[0].replace(".", " ").replace("_", " ")
            yield ToldEvent(event, entry.at_ms, what, event_text(event.data))
