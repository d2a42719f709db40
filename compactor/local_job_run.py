"""A whole job run in this process: pins its sessions, plans each, and runs them, here or on one Spark.

Sessions run one after the other. Only small ones run side by side, in threads, since they mostly wait, for an object
store or for the disk: each has its part of the memory, and an engine of its own.

The dispatcher does the same on many machines (`dispatcher/running/`); both write the same session logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog, Table
from compactor.engine.in_process import InProcessEngine
from compactor.engine.protocol import Engine
from compactor.events.publish_events import publish_event
from compactor.events.relay import EventSink, NoSink, Subject
from compactor.events.session_events import publish_session
from compactor.log_context import LOG, Logged, operator_log
from compactor.model.background import SharedLoop
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Invalid, LithifyError, Unavailable, refuse_if
from compactor.model.machine import usable_cores
from compactor.model.names import render_partition
from compactor.planning.session_planner import (
    MeasuredSession,
    PinnedSession,
    is_idle,
    measure_session,
    pin_sessions,
    pinned_session,
    plan_measured,
    rehash_of,
)
from compactor.planning.sizing import SESSION_SECONDS, Resources
from compactor.planning.spec import (
    JobRunResult,
    JobRunSpec,
    SessionFailure,
    SessionPlan,
    SessionResult,
    SessionSpec,
    violations,
)
from compactor.planning.time_model import without_start
from compactor.planning.where_to_run import SessionPlacement, choose_placements
from compactor.publishing.publication import log_refused, publish, publishers_of, with_gone_streams
from compactor.sessions.attempt import run_attempt_with_journal
from compactor.sessions.bundle import shares_core
from compactor.sessions.in_flight import refuse_beside_another
from compactor.sessions.keys import JobRunFolder
from compactor.sessions.session_journal import POLL_SECONDS, SessionJournal
from compactor.sessions.session_log import Heartbeat, Listener, ProgressReporter
from compactor.storage.concurrently import AT_ONCE, run_concurrently


@dataclass(frozen=True)
class _Planned:
    """A session's plan.

    Attributes:
        on_spark: it runs on a Spark that is started for such sessions; else on the given engine, or in this process
        side_by_side: it runs in this process, beside others, and was planned with its part of the memory"""

    plan: SessionPlan
    on_spark: bool = False
    side_by_side: bool = False


WAIT_POLL_SECONDS = 5.0
"""Interval of looks at a stream that another session has: short beside a session, and one or two requests each."""

SESSIONS_IN_A_FOLDER = 4
"""Small sessions side by side. More wait less for the disk, and more for each other's turn in Python."""

TASKS_AT_ONCE = 4
"""Tasks at a time of a session here, on an object store: while one waits for answers, another one computes."""


def run_here(
    run: JobRunSpec,
    lake: DeltaCatalog,
    clock: Clock,
    engine: Engine | None,
    listener: Listener | None = None,
    wait_seconds: float = 0.0,
) -> JobRunResult:
    """Runs every session: on `engine`, if it is given; else small ones in this process, and large ones on a Spark that
    is started for them. See `compact` for the errors.

    All sessions are planned before the first one runs. If a partition's input is bad, the others are compacted all the
    same; the error is raised when all have ended, with the outcome of the others as its `result`. Sessions whose stream
    another session has (`sessions/in_flight.py`) come last: they are planned anew when it has ended, or its time is
    over, and are refused when they have waited for `wait_seconds`.
    """
    sink = _sink(run, clock)
    sessions = pin_sessions(run, lake)
    started_at_seconds = clock.monotonic_seconds()
    work = _Work(run, lake, clock, engine, listener, sink)
    with _Engines(engine, _own_engine(lake), f"lithify {run.job_run_id}") as engines:
        work.run_all(sessions, engines, as_pinned=True)
        until_seconds = clock.monotonic_seconds() + wait_seconds
        while (blocked := work.blocked(sessions)) and (left := until_seconds - clock.monotonic_seconds()) > 0:
            work.tell_waiting(blocked)
            clock.sleep(min(left, WAIT_POLL_SECONDS))
            work.run_all(work.pin_again(blocked), engines, as_pinned=False)
    work.say_how_to_wait(sessions, wait_seconds)
    if work.destination is not None and work.destination.properties.publish:
        _publish_table(run, lake, work.destination, [session.spec for session in sessions], sink, clock)
    results, failed = work.results, work.failed
    ended = tuple(results[_id(session)] for session in sessions if _id(session) in results)
    in_error = [session for session in sessions if _id(session) in failed]
    failures = tuple(_failure(session, failed[_id(session)]) for session in in_error)
    outcome = JobRunResult(
        job_run_id=run.job_run_id,
        sessions=ended,
        failures=failures,
        seconds=clock.monotonic_seconds() - started_at_seconds,
        desired_sla=run.desired_sla,
    )
    if in_error:
        raise _together([failed[_id(session)] for session in in_error], outcome)
    return outcome


class _Work:
    """The sessions of a job run while they run: what came of each, by its id.

    Attributes:
        destination: the table, once a session has been planned, or there is nothing to do"""

    def __init__(
        self,
        run: JobRunSpec,
        lake: DeltaCatalog,
        clock: Clock,
        engine: Engine | None,
        listener: Listener | None,
        sink: EventSink,
    ) -> None:
        self.results: dict[str, SessionResult] = {}
        self.failed: dict[str, LithifyError] = {}
        self.destination: Table | None = None
        self._run = run
        self._lake = lake
        self._clock = clock
        self._engine = engine
        self._tell = ProgressReporter(listener)
        self._sink = sink
        self._attempts: Counter[str] = Counter()
        self._waits_for: dict[str, str] = {}

    def run_all(self, sessions: Sequence[PinnedSession], engines: _Engines, *, as_pinned: bool) -> None:
        """`as_pinned`: they were pinned just now, their logs are not read again."""
        plans = _plan_all(self._run, sessions, self._lake, self._clock, self._engine, self.failed, as_pinned=as_pinned)
        if self.destination is None and (plans or not self.failed):
            source = self._lake.table(self._run.source_table_id)
            self.destination = self._lake.create_table_like(self._run.destination_compacted_table_id, source)
        _warn_if_late(self._run, plans.values(), self._lake)
        at_work = [session for session in sessions if _id(session) in plans]
        numbers = {_id(session): number for number, session in enumerate(at_work, 1)}
        idle = [each for each in sessions if _id(each) not in plans and _id(each) not in self.failed]
        self.results.update({_id(each): _nothing_to_do(each) for each in idle})

        def run_one(
            session: PinnedSession, ready: Callable[[], tuple[SessionPlan, Engine]], beats: SharedLoop | None = None
        ) -> None:
            on_heartbeat = partial(self._tell, numbers[_id(session)], len(at_work), session.spec.partition)
            on_heartbeat(None)
            self._run_one(session, ready, on_heartbeat, beats, is_beside_others=plans[_id(session)].side_by_side)

        # Starting a thread takes as long as a small session's commit.
        with SharedLoop("heartbeats", POLL_SECONDS) as beats:

            def run_beside_others(session: PinnedSession) -> None:
                # A store that does not answer may hold up the heartbeats of one session, not of all.
                own = None if self._lake.location.is_remote else beats
                run_one(session, lambda: (plans[_id(session)].plan, InProcessEngine()), own)

            beside = [each for each in at_work if plans[_id(each)].side_by_side]
            at_once = AT_ONCE if self._lake.location.is_remote else SESSIONS_IN_A_FOLDER
            run_concurrently(self._lake.location, run_beside_others, beside, at_once, writes=True)
            for session in at_work:
                planned = plans[_id(session)]
                if not planned.side_by_side:
                    run_one(session, partial(engines.ready_for, planned), beats)

    def _run_one(
        self,
        session: PinnedSession,
        ready: Callable[[], tuple[SessionPlan, Engine]],
        on_heartbeat: Callable[[Heartbeat | None], None],
        beats: SharedLoop | None,
        *,
        is_beside_others: bool,
    ) -> None:
        launched_at_seconds = self._clock.monotonic_seconds()
        plan, chosen = ready()
        self._attempts[_id(session)] += 1
        attempt = self._attempts[_id(session)]
        with _set_aside(session, self.failed):
            try:
                before_seconds = self._clock.monotonic_seconds() - launched_at_seconds
                folder = JobRunFolder(plan.spec.job_run.job_run_id).session(plan.spec.session_id)
                is_brief = isinstance(chosen, InProcessEngine)
                journal = SessionJournal(
                    self._lake.store,
                    folder,
                    attempt,
                    self._clock,
                    on_heartbeat=on_heartbeat,
                    is_brief=is_brief,
                    beats=beats,
                )
                self.results[_id(session)] = run_attempt_with_journal(
                    journal,
                    plan,
                    self._lake,
                    chosen,
                    self._clock,
                    before_seconds,
                    shares_core=shares_core(self._lake, is_beside_others=is_beside_others),
                )
            finally:
                _publish(session.spec, self._lake, self._sink, self._clock)

    def blocked(self, sessions: Sequence[PinnedSession]) -> list[PinnedSession]:
        """The sessions whose stream another session has."""
        return [session for session in sessions if isinstance(self.failed.get(_id(session)), Conflict)]

    def pin_again(self, blocked: Sequence[PinnedSession]) -> list[PinnedSession]:
        """The same sessions with the work that is left by now. What came of them until now is forgotten."""
        again: list[PinnedSession] = []
        for session in blocked:
            del self.failed[_id(session)]
            with _set_aside(session, self.failed):
                again.append(pinned_session(session.spec, self._lake))
        return again

    def tell_waiting(self, blocked: Sequence[PinnedSession]) -> None:
        for number, session in enumerate(blocked, 1):
            reason = str(self.failed[_id(session)])
            if self._waits_for.get(_id(session)) != reason:
                self._waits_for[_id(session)] = reason
                operator_log("session_waits", session_id=_id(session), reason=reason)
                self._tell(number, len(blocked), session.spec.partition, None, waits_for=reason)

    def say_how_to_wait(self, sessions: Sequence[PinnedSession], wait_seconds: float) -> None:
        waited = (
            f"it has waited for {wait_seconds:g} s" if wait_seconds else "it waits with wait_seconds (--wait-seconds)"
        )
        for session in self.blocked(sessions):
            self.failed[_id(session)] = Conflict(f"{self.failed[_id(session)]}; {waited}")


class _Engines(ExitStack):
    """Sessions' engines. Spark starts when a session first needs it, and stops at the end of the context."""

    def __init__(self, given: Engine | None, own_engine: InProcessEngine, app_name: str) -> None:
        super().__init__()
        self._at_hand = given or own_engine
        self._app_name = app_name
        self._spark: Engine | None = None

    def ready_for(self, planned: _Planned) -> tuple[SessionPlan, Engine]:
        """The engine, and the plan with the time that is expected from now on."""
        if planned.on_spark and self._spark is None:
            # Only a job run that starts a Spark loads PySpark.
            with _needs_spark():
                from compactor.engine.local import local_spark
                from compactor.engine.spark import SparkEngine

            self._spark = SparkEngine(self.enter_context(local_spark(self._app_name)))
            return planned.plan, self._spark
        if not planned.on_spark or self._spark is None:
            return planned.plan, self._at_hand
        expected_sla = without_start(planned.plan.expected_sla, SESSION_SECONDS)
        return planned.plan.model_copy(update={"expected_sla": expected_sla, "predicted_seconds": None}), self._spark


def _own_engine(lake: DeltaCatalog) -> InProcessEngine:
    """For sessions that run in this process one after the other."""
    return InProcessEngine(TASKS_AT_ONCE if lake.location.is_remote else 1)


def _plan_all(
    run: JobRunSpec,
    sessions: Sequence[PinnedSession],
    lake: DeltaCatalog,
    clock: Clock,
    engine: Engine | None,
    failed: dict[str, LithifyError],
    *,
    as_pinned: bool,
) -> dict[str, _Planned]:
    """The plan of every session that has something to do, by its id. Those without it have failed, or nothing to do."""
    measured = _measure_all(sessions, lake, clock, failed, as_pinned=as_pinned)
    whole = InProcessEngine().resources()
    at_hand = _own_engine(lake).resources() if engine is None else replace(engine.resources(), start_seconds=0.0)
    placements: tuple[SessionPlacement | None, ...] = (None,) * len(measured)
    if engine is None:
        sizes = [each.size for each in measured.values()]
        placements = choose_placements(sizes, run.max_rows_per_round, whole.task_memory_bytes, usable_cores())
    on_spark = (
        _spark_resources() if any(placement is not None and placement.on_spark for placement in placements) else at_hand
    )
    part_bytes = whole.task_memory_bytes // AT_ONCE
    small = [placement is not None and placement.fits(part_bytes) for placement in placements]
    plans: dict[str, _Planned] = {}
    pinned = {_id(session): session for session in sessions}
    for (session_id, each), placement, is_small in zip(measured.items(), placements, small):
        with _set_aside(pinned[session_id], failed):
            runs_on_spark = placement is not None and placement.on_spark
            runs_beside_others = is_small and sum(small) > 1
            here = replace(at_hand, task_memory_bytes=part_bytes) if runs_beside_others else at_hand
            plan = plan_measured(each, on_spark if runs_on_spark else here)
            if is_idle(each, plan):
                continue
            if placement is not None:
                plan = plan.model_copy(update={"arithmetic": (*plan.arithmetic, placement.why)})
            plans[session_id] = _Planned(plan, runs_on_spark, runs_beside_others)
            if not runs_on_spark:
                at_hand = replace(at_hand, start_seconds=0.0)  # what a process loads, it loads once
    return plans


def _warn_if_late(run: JobRunSpec, plans: Collection[_Planned], lake: DeltaCatalog) -> None:
    """The cores of this machine are what they are, so a desired SLA that cannot be kept is said before the work."""
    beside = sum(each.plan.expected_sla for each in plans if each.side_by_side)
    at_once = AT_ONCE if lake.location.is_remote else 1  # in a folder they share the core, and its time is most of it
    expected_seconds = beside / at_once + sum(each.plan.expected_sla for each in plans if not each.side_by_side)
    if run.desired_sla is not None and expected_seconds > run.desired_sla:
        LOG.warning(
            "desired_sla_exceeded",
            desired_seconds=run.desired_sla,
            expected_seconds=round(expected_seconds, 1),
            cores=usable_cores(),
        )


def _measure_all(
    sessions: Sequence[PinnedSession],
    lake: DeltaCatalog,
    clock: Clock,
    failed: dict[str, LithifyError],
    *,
    as_pinned: bool,
) -> dict[str, MeasuredSession]:
    """The figures of every session that has something to do, by its id, in the order of sessions."""

    def measure(session: PinnedSession) -> MeasuredSession | None:
        with _set_aside(session, failed):
            refuse_beside_another(session.spec, lake, clock)
            return measure_session(session.spec, lake, as_pinned=as_pinned)
        return None

    # Of many streams the lake caches those that were read last. They come first here, and so the first ones are cached
    # when the sessions run.
    found = run_concurrently(lake.location, measure, [session for session in reversed(sessions) if session.work])
    return {each.spec.session_id: each for each in reversed(found) if each is not None}


def _spark_resources() -> Resources:
    with _needs_spark():
        from compactor.engine.local import local_resources  # only a job run that needs a Spark loads PySpark

    return local_resources()


@contextmanager
def _needs_spark() -> Iterator[None]:
    """Around an import of PySpark, which the package leaves to an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Invalid(
            f"this is worth a Spark on this machine, which needs a package that is not installed here ({error}): "
            "pip install 'lithify[spark]', or 'lithify[java]' where there is no Java either"
        ) from error


@contextmanager
def _set_aside(session: PinnedSession, failed: dict[str, LithifyError]) -> Iterator[None]:
    """Keeps an error for the end, but raises that of an unavailable lake, which would fail for every session."""
    try:
        yield
    except Unavailable:
        raise
    except LithifyError as error:
        failed[_id(session)] = error


def _id(session: PinnedSession) -> str:
    return session.spec.session_id


def _failure(session: PinnedSession, error: LithifyError) -> SessionFailure:
    return SessionFailure.from_facts(session.spec, error, error_kind=error.kind)


def _together(errors: Sequence[LithifyError], result: JobRunResult) -> LithifyError:
    """One error for all: of the first kind that is not the input's fault, if there is one."""
    first = next((error for error in errors if not isinstance(error, Invalid)), errors[0])
    reasons = [
        f"{render_partition(failure.partition)}: {reason}" if failure.partition else reason
        for failure in result.failures
        for reason in failure.reasons
    ]
    together = first if len(errors) == 1 and not result.failures[0].partition else type(first)(*reasons)
    together.result = result
    together.__cause__ = None if together is first else first
    return together


def _publish(spec: SessionSpec, lake: DeltaCatalog, sink: EventSink, clock: Clock) -> None:
    """Publishes the session's events. A failing topic is only logged: rows are committed, events in the log."""
    if isinstance(sink, NoSink):
        return
    with Logged("events_not_published", LithifyError, session_id=spec.session_id):
        publish_session(spec, lake.store, sink, clock)


def _publish_table(
    run: JobRunSpec, lake: DeltaCatalog, table: Table, specs: Sequence[SessionSpec], sink: EventSink, clock: Clock
) -> None:
    """Publishes the table for other engines, also what earlier job runs left unpublished. A failure is only logged and
    told: the rows are committed, and the next job run, or `lithify publish`, goes on."""
    streams = [table.stream(spec.partition) for spec in specs]
    about = Subject(run.job_run_id, run.source_table_id)
    with Logged("table_not_published", LithifyError, table=table.table_id):
        publishers = publishers_of(lake.store, table, clock)
        for outcome in publish(publishers, with_gone_streams(table, publishers, streams)):
            event = publish_event(about, table.table_id, outcome, clock.now_ms())
            if event is not None:
                sink.publish([event])
            log_refused(outcome)


def _sink(run: JobRunSpec, clock: Clock) -> EventSink:
    if run.sns_event_topic_arn is None:
        return NoSink()
    from compactor.events.aws.sns import SnsSink  # only a job run that publishes events loads botocore

    return SnsSink.open(run.sns_event_topic_arn, clock)


def rehash_here(
    lake: DeltaCatalog,
    stream: PartitionStream,
    hash_bucket_count: int | None,
    clock: Clock,
    engine: Engine | None = None,
) -> SessionResult | None:
    """Changes the hash bucket count of a compacted stream's index, as a job run of its own; None: as many as take half
    of a task's memory. Reads no data file. Returns None if no stream version is active.

    Raises `Invalid` for a stream that was never compacted, `Fenced` if a compactor works on it.
    """
    run = _rehash_run(lake, stream, hash_bucket_count, clock)
    return next(iter(run_here(run, lake, clock, engine).sessions), None)


def plan_rehash_here(
    lake: DeltaCatalog, stream: PartitionStream, hash_bucket_count: int | None, clock: Clock
) -> SessionPlan | None:
    """What `rehash_here` would do; None: nothing. Raises `Invalid` as that does."""
    run = _rehash_run(lake, stream, hash_bucket_count, clock)
    failed: dict[str, LithifyError] = {}
    plans = _plan_all(run, pin_sessions(run, lake), lake, clock, None, failed, as_pinned=True)
    for error in failed.values():
        raise error
    return next((each.plan for each in plans.values()), None)


def _rehash_run(lake: DeltaCatalog, stream: PartitionStream, hash_bucket_count: int | None, clock: Clock) -> JobRunSpec:
    compacted = stream.load().state.compacted
    if compacted is None:
        raise Invalid(f"{stream} has no index yet: compact it first")
    if not compacted.primary_keys:
        raise Invalid(f"{stream} has no key (primary_keys is empty), so there is no index to rehash")
    run = rehash_of(lake, stream, compacted, f"rehash-{clock.new_id()}", hash_bucket_count)
    refuse_if(violations(run))
    return run


def _nothing_to_do(session: PinnedSession) -> SessionResult:
    return SessionResult(
        session_id=session.spec.session_id,
        partition=session.spec.partition,
        rounds=0,
        rows_in=session.compacted_rows,
        rows_out=session.compacted_rows,
        rows_deduplicated=0,
        rows_deleted=0,
        seconds=0.0,
        expected_sla=0.0,
    )
