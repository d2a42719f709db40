"""What the pages show, read for all viewers together (`shared.py`). Reads only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compactor.lake import DeltaCatalog, Table
from compactor.log.durable_log import DurableLog
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, LithifyError
from compactor.storage.object_store import ObjectStore
from dispatcher.intake.queue import Queue
from dispatcher.keeper.decision_log import DECISION_LOG, DecisionLog, decision_records
from dispatcher.keeper.keys import DecisionLogFolder, lake_name
from dispatcher.layout import partition_text
from dispatcher.operations.status import (
    DAY_UNREADABLE,
    OPEN,
    UNREADABLE,
    JobRunView,
    SessionView,
    each_once,
    view_all,
    view_job_run,
    view_recorded,
    view_running_sessions,
)
from dispatcher.operations.table_lag import TableLag, table_lag
from dispatcher.records.job_run_log import JobRunState, JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import LiveIngest
from dispatcher.records.lag_samples import LagHour, last_sampled, unsent_decisions
from dispatcher.records.liveness import LastSignal, last_signals
from dispatcher.records.pauses import Pause
from dispatcher.records.result import ResultDocument, result_document
from dispatcher.records.sessions import SessionPlanned
from dispatcher.scheduling.limits import Limits
from dispatcher.web import job_run_course as course
from dispatcher.web.feed import Changed
from dispatcher.web.job_run_course import Attempt, Course, EndedShard, ToldEvent
from dispatcher.web.money import DayOfMoney, MoneyHistory
from dispatcher.web.shared import Commands, Rank, Reading, SharedReadings, latest_entries
from dispatcher.web.table_readings import LagHistory, LogPage, OneTable, Tables, read_log_page, read_table, read_tables

STATE_REQUESTS_A_SECOND, LAKE_REQUESTS_A_SECOND = 1.4, 0.6
"""Most requests a second, on average: two together. Many tables do not make what runs now old."""

PATIENCE_SECONDS = 0.1
"""Time that a viewer who looks again waits: what takes longer to read is shown at the next look."""

ENDED_SHOWN = 50
ENDED_OF_HISTORY = 500

SESSIONS_SHOWN = 8
"""Running sessions that are shown beside their job runs: each is two requests or more."""

SESSIONS_WITH_ROUNDS = 20
"""Sessions of a job run whose rounds are shown one by one."""

DECISIONS_SHOWN = 20
PLANS_SHOWN, ATTEMPTS_SHOWN, SHARDS_SHOWN = 50, 200, 100

_NOW, _HISTORY, _MONEY, _JOB_RUN, _TABLE = "now", "history", "money", "job run {}", "table {}"
"""Names of readings."""

MISSED_SECONDS = 86_400
"""Silence after which a keeper or an ingest that has given a sign of life is missed."""


@dataclass(frozen=True)
class QueueCounts:
    """`messages` None: the queue cannot be asked, for the reason in `failure`. `dead_letters` None: likewise, or
    there is no such queue."""

    messages: int | None
    dead_letters: int | None
    failure: str | None = None


@dataclass(frozen=True)
class Now:
    """
    Attributes:
        sessions: some of those that run, by their job run
        ingests: that signal in this state, and have within a day
        keepers: when a keeper last looked at the tables of each lake, in ms; without those that have not for a day
        unsent: by lake, decisions of keepers that the queue had not taken by then
        queue: None: it is not known where the queue is"""

    job_runs: tuple[JobRunView, ...]
    sessions: dict[str, tuple[SessionView, ...]]
    pauses: tuple[Pause, ...]
    dispatchers: tuple[LastSignal, ...]
    ingests: tuple[LastSignal, ...]
    keepers: dict[str, int]
    unsent: dict[str, int]
    queue: QueueCounts | None

    @property
    def open_job_runs(self) -> list[JobRunView]:
        """Troubles first: what cannot be read, then what is late, what waits, and the others."""

        def is_open(view: JobRunView) -> bool:
            is_day = view.job_run_id.startswith(DAY_UNREADABLE)
            return view.status in OPEN or (view.status == UNREADABLE and not is_day)

        return sorted(filter(is_open, self.job_runs), key=_by_trouble)

    @property
    def ended_job_runs(self) -> list[JobRunView]:
        return [view for view in self.job_runs if view.status not in (*OPEN, UNREADABLE)]


NOTHING_KNOWN = Now((), {}, (), (), (), {}, {}, None)
"""The reading of a state that cannot be read."""


def _by_trouble(view: JobRunView) -> tuple[bool, bool, bool, float]:
    late_seconds = -view.eta_seconds if view.eta_seconds is not None else 0.0
    late_seconds = max(late_seconds, view.seconds_late(view.seconds) or 0.0)
    waits = view.waits_for is not None or view.paused is not None
    return view.status != UNREADABLE, late_seconds <= 0, not waits, -late_seconds


@dataclass(frozen=True)
class OneJobRun:
    """
    Attributes:
        state: the fold of its log
        courses: by session
        shards: those that have ended, the latest
        events: those of its log, the latest
        last_retry: the job run that runs it again; None: there is none"""

    view: JobRunView
    state: JobRunState
    courses: Mapping[str, Course]
    shards: Sequence[EndedShard]
    events: tuple[ToldEvent, ...]
    last_retry: str | None

    @property
    def result(self) -> ResultDocument | None:
        """What a workflow is answered; None: it has not ended."""
        state = self.state
        has_ended = state.ended is not None or state.rejected is not None
        return result_document(self.view.job_run_id, state) if has_ended else None

    @property
    def plans(self) -> list[tuple[str, SessionPlanned]]:
        """The last plan of each session that has one, by its partition: the first ones."""
        states = list(self.state.sessions.values())
        planned = [(self.partition_of(each.pin.session_id), each.plan) for each in states if each.plan is not None]
        return planned[:PLANS_SHOWN]

    @property
    def retried_sessions(self) -> list[tuple[str, Attempt]]:
        """Attempts of sessions that did not succeed at once."""
        return [
            (self.partition_of(session_id), attempt)
            for session_id, one in self.courses.items()
            if any(each.ended_at_ms and not each.ended_well and not each.is_cancelled for each in one.attempts)
            for attempt in one.attempts
        ][-ATTEMPTS_SHOWN:]

    def partition_of(self, session_id: str) -> str:
        found = self.state.sessions.get(session_id)
        return session_id if found is None else partition_text(dict(found.pin.partition))

    @property
    def shared_launches(self) -> dict[str, list[str]]:
        """Partitions whose sessions shared a launch."""
        found: dict[str, list[str]] = {}
        for session_id, each in self.courses.items():
            for bundle in dict.fromkeys(attempt.bundle for attempt in each.attempts if attempt.bundle is not None):
                found.setdefault(bundle, []).append(self.partition_of(session_id))
        return found


class Readings:
    """Safe to share between threads."""

    def __init__(
        self,
        state: ObjectStore,
        lake: DeltaCatalog,
        clock: Clock,
        queue: Queue | None = None,
        limits: Limits | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        """`queue`: of instructions, whose messages are counted. `limits`: those of the dispatchers, if known.
        `patience_seconds`: of who looks again."""
        limits = Limits() if limits is None else limits
        caps = {"all tables": limits.all, "a table": limits.table, "a dispatcher": limits.dispatcher}
        self.caps = {name: each.usd_per_day for name, each in caps.items() if each.usd_per_day is not None}
        queue_url, endpoint_url = None if queue is None else queue.name, lake.location.endpoint_url
        self.commands = Commands(state.location.root_uri, lake.location.root_uri, queue_url, endpoint_url)
        self._state = SharedReadings(state, STATE_REQUESTS_A_SECOND, clock, patience_seconds)
        self._of_lake = SharedReadings(lake.store, LAKE_REQUESTS_A_SECOND, clock, patience_seconds)
        self._records = JobRunStore(self._state.store, clock)
        self._lake = DeltaCatalog(self._of_lake.store, clock)
        self._clock = clock
        self._queue = queue
        self._money = MoneyHistory(self._records.history)
        self._lag = LagHistory(self._state.store, lake.location.root_uri)
        self._keepers: dict[str, int] = {}
        self._unsent: dict[str, int] = {}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def look_again(self, changed: Changed) -> None:
        """What an event names is read before the rest, when it is asked for next."""
        ended = (_HISTORY, _MONEY) if changed.has_ended else ()
        for name in (_NOW, _JOB_RUN.format(changed.job_run_id), *ended):
            self._state.look_again(name)
        if changed.table_id is not None:
            self._of_lake.look_again(_TABLE.format(changed.table_id))

    def now(self) -> Reading[Now]:
        return self._state.of(_NOW, self._now, Rank.OPEN_NOW)

    def history(self) -> Reading[tuple[JobRunView, ...]]:
        """Job runs that have ended, the latest first. What is not in the history yet is among those of `now`."""

        ended = self.now().value.ended_job_runs
        recorded = self._state.of(_HISTORY, lambda: tuple(view_recorded(self._records, ENDED_OF_HISTORY)))
        return replace(recorded, value=each_once(ended, recorded.value))

    def money(self) -> Reading[tuple[DayOfMoney, ...]]:
        """Of 30 days, the latest first."""
        return self._state.of(_MONEY, lambda: self._money.of(self._clock.now_ms()))

    def job_run(self, job_run_id: str) -> Reading[OneJobRun]:
        """Raises `Invalid` if there is no such job run."""
        return self._state.of(_JOB_RUN.format(job_run_id), lambda: self._job_run(job_run_id), Rank.ONE_THING)

    def tables(self) -> Reading[Tables]:
        def lag(table_id: str) -> TableLag:
            return table_lag(self._lake.store, self._table(table_id), self._clock)

        return self._of_lake.of("tables", lambda: read_tables(self._lake.tables(), lag))

    def table(self, table_id: str) -> Reading[OneTable]:
        """Raises `Invalid` if there is no such table."""

        def read() -> OneTable:
            return read_table(self._lake.store, self._table(table_id), self._clock)

        return self._of_lake.of(_TABLE.format(table_id), read, Rank.ONE_THING)

    def table_log(self, table_id: str, partition: str, before: int | None) -> Reading[LogPage]:
        """Raises `Invalid` if there is no such table or partition."""
        name = f"log {table_id} {partition} {before}"

        def read() -> LogPage:
            return read_log_page(self._table(table_id), partition, before)

        return self._of_lake.of(name, read, Rank.ONE_THING)

    def decisions(self, table_id: str) -> Reading[list[dict[str, object]]]:
        """Of the keeper on a table, the latest first."""
        folder = DecisionLogFolder(lake_name(self._lake.location), table_id)
        log: DecisionLog = DurableLog(self._records.store, folder.key, DECISION_LOG, self._clock)

        def read() -> list[dict[str, object]]:
            return decision_records(table_id, latest_entries(log), DECISIONS_SHOWN)[::-1]

        return self._state.of(f"decisions {table_id}", read, Rank.ONE_THING)

    def lag_hours(self, table_id: str) -> Reading[tuple[LagHour, ...]]:
        """Of 30 days."""
        return self._state.of(f"lag {table_id}", lambda: self._lag.of(table_id, self._clock.now_ms()))

    def _table(self, table_id: str) -> Table:
        """Without the place of the lake in what it raises: that is a path of the server's."""
        try:
            return self._lake.table(table_id)
        except Invalid as error:
            raise Invalid(str(error).replace(f" in {self._lake.location.root_uri}", "")) from error

    def _job_run(self, job_run_id: str) -> OneJobRun:
        view = view_job_run(self._records, job_run_id, self._clock)
        log = self._records.log(job_run_id if view.message_id is None else view.message_id)
        state, entries = log.load().state, latest_entries(log)
        courses = {key: Course(attempts) for key, attempts in course.attempts_of(entries).items()}
        for session in view.sessions[:SESSIONS_WITH_ROUNDS]:
            if session.rounds_done and session.session_id in courses:
                session_log = self._records.session_log(job_run_id, session.session_id)
                courses[session.session_id].rounds = course.rounds_of(latest_entries(session_log))
        last, _ = self._records.last_retry(job_run_id, state)
        shards = course.ended_shards(entries, view.accepted_at_ms)[-SHARDS_SHOWN:]
        events = tuple(course.events_of(log, entries, state, view.accepted_at_ms))
        return OneJobRun(view, state, courses, shards, events, None if last == job_run_id else last)

    def _now(self) -> Now:
        views = view_all(self._records, self._clock, ENDED_SHOWN)
        dispatchers = last_signals(self._records.store)
        return Now(
            views,
            self._sessions(views),
            tuple(self._records.pauses.all()),
            dispatchers,
            tuple(each for each in last_signals(self._records.store, LiveIngest) if each.at_ms >= self._oldest_ms()),
            self._last_looks(),
            dict(self._unsent),
            self._counted(),
        )

    def _sessions(self, views: Sequence[JobRunView]) -> dict[str, tuple[SessionView, ...]]:
        left, found = SESSIONS_SHOWN, dict[str, tuple[SessionView, ...]]()
        for view in sorted(views, key=_by_trouble):
            if view.status == JobRunStatus.RUNNING and left > 0:
                found[view.job_run_id] = view_running_sessions(self._records, view.job_run_id, self._clock, left)
                left -= len(found[view.job_run_id])
        return found

    def _oldest_ms(self) -> int:
        return self._clock.now_ms() - MISSED_SECONDS * 1000

    def _last_looks(self) -> dict[str, int]:
        """A listing from the last look on, and each new sample."""
        oldest_ms = self._oldest_ms()
        before = {lake: at_ms for lake, at_ms in self._keepers.items() if at_ms >= oldest_ms}
        since_ms = min(before.values(), default=oldest_ms)
        found = last_sampled(self._records.store, since_ms)
        new = {lake: at_ms for lake, at_ms in found.items() if self._keepers.get(lake) != at_ms}
        self._unsent |= {lake: unsent_decisions(self._records.store, lake, at_ms) for lake, at_ms in new.items()}
        self._keepers = {**before, **found}
        return dict(self._keepers)

    def _counted(self) -> QueueCounts | None:
        if self._queue is None:
            return None
        messages = None
        try:
            messages = self._queue.messages_left()
            return QueueCounts(messages, self._queue.dead_letters().messages_left())
        except LithifyError as error:
            has_none = messages is not None and isinstance(error, Invalid)
            return QueueCounts(messages, None, None if has_none else str(error))
