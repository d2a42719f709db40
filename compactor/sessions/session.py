"""One session: brings a partition stream's compacted side up to the pinned source position, round by round.

The ladder of names; each has one owner, one durable record, and one thing that ends it:

    name         what it is                           owner                     durable record         ended by
    -----------  -----------------------------------  ------------------------  ---------------------  -----------------
    instruction  a document on the queue              the intake                job-run log, entry 1   acknowledgement
    job run      one instruction's work, one outcome  a dispatcher, by a claim  job-run log            job_run_ended
    session      one partition stream of it           the session launcher      session log            session_ended
    attempt      one launch of a session              the cluster               session log: started   its verdict
    round        one commit of a session              this module               one entry of the       round_committed
                                                                                stream's log
    step         hash bucket, dedupe, materialize     the round runner          figures in the round   its last task
    task         one function call on one machine     the engine                none: it may be run    its value
                                                                                again, anywhere

The steps of a session:

    open       read the current state and the pending deltas, check the input          (session_input)
    plan       one entry, if the table has `session_plans`                                 (in_flight)
    rehash     if the index has another hash bucket count than planned     (rehash, one commit)
    rounds     plan -> run -> commit, each based on the one before     (round_planner, round_runner, round_commit)

The session owns no durable state of its own: after a crash the next attempt reads the compacted stream's log and
continues after its last round. A `SessionReport` receives the progress.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from compactor.catalog.actions import TIMINGS_KEPT, IndexRehashed, RoundCommitted, SessionTiming
from compactor.catalog.snapshot import CompactedStream, ReadPoint, StreamSnapshot
from compactor.catalog.tables import DeltaCatalog
from compactor.catalog.transaction import Committed
from compactor.engine.protocol import Engine
from compactor.log.durable_log import LogState
from compactor.log_context import bound
from compactor.model.clock import Clock
from compactor.planning.cluster_plan import StoreUse, store_use
from compactor.planning.round_plan import DeltaFileRef
from compactor.planning.round_planner import RoundTurn, plan_rehash, plan_round
from compactor.planning.session_input import SessionInput, read_session_input
from compactor.planning.session_streams import Commit, ReadReport, SessionStreams, commits_of
from compactor.planning.spec import SessionPlan, SessionResult
from compactor.sessions.in_flight import in_flight, planned
from compactor.sessions.pace import FIRST_PASS_SHARE, ExpectedWork, Pace, Worked
from compactor.sessions.round_commit import commit_rehash, commit_round, complete
from compactor.sessions.round_runner import rehash, run_round
from compactor.sessions.session_journal import rows_arrived
from compactor.task_progress import ProgressAddress


class SessionReport(ReadReport, Protocol):
    """Receives the progress of a session, in the order of events, from one thread. `settled` is called before each
    durable write of the session: what was reported until then is durable when it returns, or it raises why not."""

    def started(self, rounds_done: int, rounds: int, rows: int, expected_sla: float) -> None: ...

    def found(self, commits: Sequence[Commit]) -> None:
        """Commits of earlier attempts, each with its entry number: a crashed attempt may not have logged its last
        one."""

    def step_started(self, round_number: int, rounds: int, step: str, tasks: int) -> None: ...

    def rehashed(self, entry_number: int, hash_bucket_count: int) -> None: ...

    def round_done(self, entry_number: int, completion: RoundCommitted, seconds: float) -> None: ...

    def expected_sla_changed(self, before: float, now: float) -> None: ...

    def share_done(self, share: float) -> None:
        """Of the attempt's work, from 0 to 1."""

    def settled(self) -> None: ...

    def follow(self, rows_reported: Callable[[int], None], watch: Callable[[], None]) -> None:
        """`rows_reported` is called with the total whenever tasks have reported more rows, from any thread; `watch`
        every moment."""


@dataclass(frozen=True)
class SessionDependencies:
    """The dependencies of a session.

    Attributes:
        progress: where running tasks report rows
        before_seconds: from its launch to here, a part of its expected SLA; what the engine's workers take to start
            after that is added
        attempt: its number, from 1
        shares_core: others run beside it on its core: how long it takes says nothing of the next session"""

    lake: DeltaCatalog
    engine: Engine
    clock: Clock
    report: SessionReport
    progress: ProgressAddress | None = None
    before_seconds: float = 0.0
    attempt: int = 1
    shares_core: bool = False


def run_session(plan: SessionPlan, dependencies: SessionDependencies) -> SessionResult:
    """Runs every remaining round. Raises the errors of a round; earlier commits remain."""
    started = dependencies.clock.monotonic_seconds() - dependencies.before_seconds
    session = read_session_input(plan.spec, dependencies.lake, dependencies.report, known_schemas=plan.known_schemas)
    rounds, destination = session.rounds(plan), session.streams.destination
    found = commits_of(plan.spec, destination, dependencies.report, destination.log.newest)
    done = [action for _, action in found if isinstance(action, RoundCommitted)]
    had_buckets = _hash_buckets_before(plan, session.streams, found)
    rounds_in_all = len(done) + len(rounds)
    rows = sum(ref.file.rows for ref in session.streams.pending)
    dependencies.report.started(len(done), rounds_in_all, rows, plan.expected_sla)
    dependencies.report.found(found)
    run = plan.spec.job_run
    dependencies.lake.create_table_like(
        run.destination_compacted_table_id, dependencies.lake.table(run.source_table_id)
    )
    before_seconds = dependencies.before_seconds
    if rounds and dependencies.engine.await_workers():
        before_seconds = dependencies.clock.monotonic_seconds() - started
    pace = Pace(
        _expected_work(plan, rounds, before_seconds),
        lambda: dependencies.clock.monotonic_seconds() - started,
        dependencies.report.expected_sla_changed,
        dependencies.report.share_done,
    )
    pace.earlier_attempts([(rows_arrived(each), sum(step.seconds for step in each.steps.values())) for each in done])
    dependencies.report.follow(pace.rows_reported, lambda: pace.cores_seen(dependencies.engine.cores()))
    has_work = bool(session.streams.work())
    with _announced(plan, session, rounds, dependencies) if has_work else nullcontext(session) as session:
        snapshot = _rehash_first(plan, session, dependencies) if has_work else session.streams.snapshot
        for number, files in enumerate(rounds):
            following = rounds[number + 1][0] if number + 1 < len(rounds) else None
            turn = RoundTurn(len(done) + 1, rounds_in_all, files, following, commit_id=dependencies.clock.new_id())
            with bound(round=turn.number):
                committed, completion = _run_round(plan, session, snapshot, turn, dependencies, pace)
            snapshot = committed.snapshot
            done.append(completion)
            pace.round_done()
    if rounds and destination.news is not None:
        destination.news.clear(LogState(committed.entry_number, snapshot))
    seconds = dependencies.clock.monotonic_seconds() - started
    result = summarise(plan, snapshot, done, seconds).model_copy(update={"work_seconds": pace.work_seconds()})
    has_changed = had_buckets is not None and had_buckets != result.hash_bucket_count
    return result.model_copy(update={"rehashed_from": had_buckets if has_changed else None})


@contextmanager
def _announced(
    plan: SessionPlan,
    session: SessionInput,
    rounds: Sequence[Sequence[DeltaFileRef]],
    dependencies: SessionDependencies,
) -> Iterator[SessionInput]:
    """The session with its plan, which is in the stream's log meanwhile, if its table has `session_plans`."""
    streams = session.streams
    if not streams.destination_table.properties.session_plans:
        yield session
        return
    dependencies.report.settled()
    entry = planned(plan, session, rounds, dependencies.attempt, dependencies.clock)
    with in_flight(streams.destination, entry, ReadPoint.of(streams.snapshot), dependencies.clock):
        yield replace(session, plan_id=entry.plan_id)


def summarise(
    plan: SessionPlan,
    snapshot: StreamSnapshot,
    completions: Sequence[RoundCommitted],
    seconds: float,
) -> SessionResult:
    """The result of a session from its completions: input of the first round, output of the last. It is held against
    what was planned; what was expected of it while it ran is in its log."""
    live_rows = snapshot.compacted.rows if snapshot.compacted else 0
    arrived = sum(each.counts.rows_in - each.counts.rows_before for each in completions)
    return SessionResult(
        session_id=plan.spec.session_id,
        partition=plan.spec.partition,
        rounds=len(completions),
        rows_in=completions[0].counts.rows_before + arrived if completions else live_rows,
        rows_out=completions[-1].counts.rows_out if completions else live_rows,
        rows_deduplicated=sum(each.counts.rows_deduplicated for each in completions),
        rows_deleted=sum(each.counts.rows_deleted for each in completions),
        seconds=seconds,
        expected_sla=plan.expected_sla,
        completions=tuple(completions),
        hash_bucket_count=snapshot.compacted.hash_bucket_count if snapshot.compacted else None,
        store=_store_use(completions),
        expected_cost=plan.cluster.cost if plan.cluster is not None else None,
    )


def _hash_buckets_before(plan: SessionPlan, streams: SessionStreams, found: Sequence[Commit]) -> int | None:
    """The hash bucket count of the index that the session, all of its attempts together, found; None: there was none.
    An earlier attempt has changed it only if the log says so: else the snapshot of now has it."""
    before = streams.snapshot
    if any(isinstance(action, IndexRehashed) for _, action in found):
        before = streams.destination.load(plan.spec.destination_entry_number).state
    return None if before.compacted is None else before.compacted.hash_bucket_count


def _store_use(completions: Sequence[RoundCommitted]) -> StoreUse:
    """The store use of rounds, from their entries: as much is read as is written, since each replaced file was
    read, and the deltas too."""
    added = [file for each in completions for file in each.files_added]
    index = [file for each in completions for file in each.index_files if file.run == each.index_version]
    bytes_written = sum(file.size_bytes for file in added) + sum(file.bytes_at_rest for file in index)
    return store_use(
        rounds=len(completions),
        files_read=2 * len(added) + len(index),
        bytes_read=bytes_written,
        files_written=len(added) + len(index),
        bytes_written=bytes_written,
    )


def _rehash_first(plan: SessionPlan, session: SessionInput, dependencies: SessionDependencies) -> StreamSnapshot:
    """Rehashes the inherited index to the planned hash bucket count, if it has another."""
    streams, compacted = session.streams, session.streams.compacted
    if compacted is None or compacted.hash_bucket_count == plan.hash_bucket_count:
        return streams.snapshot
    rehash_plan = plan_rehash(dependencies.lake.location, plan, session, compacted, dependencies.clock.new_id())
    dependencies.report.step_started(0, 0, "rehash", plan.hash_bucket_count)
    index_files = rehash(dependencies.engine, rehash_plan)
    dependencies.report.settled()
    committed = commit_rehash(
        streams.destination,
        plan.spec,
        rehash_plan,
        ReadPoint.of(streams.snapshot),
        compacted.stream_version,
        index_files,
        plan_id=session.plan_id,
    )
    dependencies.report.rehashed(committed.entry_number, plan.hash_bucket_count)
    return committed.snapshot


def _expected_work(plan: SessionPlan, rounds: Sequence[Sequence[DeltaFileRef]], before_seconds: float) -> ExpectedWork:
    return ExpectedWork(
        expected_sla=plan.expected_sla,
        before_seconds=before_seconds,
        rounds=tuple(sum(ref.file.rows for ref in files) for files in rounds),
        rows_written=plan.expected_rows_written,
        first_pass_share=FIRST_PASS_SHARE if plan.first_pass_share is None else plan.first_pass_share,
        tasks=plan.tasks,
    )


def timings_after(
    compacted: CompactedStream | None, plan: SessionPlan, worked: Worked | None
) -> tuple[SessionTiming, ...]:
    """What the next round says of the last sessions: this one's time replaces what its earlier round said. `worked`
    None: it is not comparable with the prediction."""
    before = () if compacted is None else compacted.last_round.timings
    if worked is None or not plan.work_seconds or plan.place is None or not worked.share:
        return before
    last = None if compacted is None else compacted.last_round
    if last is not None and worked.rounds > 1 and last.session_id == plan.spec.session_id:
        before = before[:-1]
    now = SessionTiming(
        place=plan.place,
        predicted_seconds=plan.work_seconds * worked.share,
        seconds=max(worked.seconds, 0.0),
        is_corrected=None if plan.plain_work_seconds is None else plan.plain_work_seconds != plan.work_seconds,
    )
    return (*before, now)[-TIMINGS_KEPT:]


def _run_round(
    plan: SessionPlan,
    session: SessionInput,
    snapshot: StreamSnapshot,
    turn: RoundTurn,
    dependencies: SessionDependencies,
    pace: Pace,
) -> tuple[Committed, RoundCommitted]:
    started = dependencies.clock.monotonic_seconds()
    round_plan = plan_round(dependencies.lake.location, plan, session, snapshot, turn)
    round_plan = replace(round_plan, progress=dependencies.progress)

    def step_started(step: str, tasks: int) -> None:
        pace.pass_started(second=step == "materialize")
        dependencies.report.step_started(turn.number, turn.rounds, step, tasks)

    result = run_round(dependencies.engine, round_plan, dependencies.clock, step_started)
    worked = None if dependencies.shares_core else pace.worked()
    timings = timings_after(snapshot.compacted, plan, worked)
    completion = complete(plan.spec, round_plan, result, dependencies.clock.now_ms(), timings)
    dependencies.report.settled()
    committed = commit_round(
        session.streams.destination, session.streams.source, round_plan, completion, session.plan_id
    )
    seconds = dependencies.clock.monotonic_seconds() - started
    dependencies.report.round_done(committed.entry_number, completion, seconds)
    return committed, completion
