"""One session: brings a partition stream's compacted side up to the pinned source position, round by round.

    open       what is there, what is pending, can it work at all          (session_input)
    rehash     if the index has another hash bucket count than planned     (rehash, one commit)
    rounds     plan -> run -> commit, each on what the one before left     (round_planner, round_runner, round_commit)

The session owns no durable state of its own: after a crash the next attempt reads the compacted stream's log and goes
on after its last round. Whoever runs a session listens through a `SessionReport`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark import SparkContext

from compactor.catalog.actions import RoundCommitted
from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.transaction import Committed
from compactor.clock import Clock
from compactor.planning import DeltaFileRef, split_into_rounds
from compactor.rehash import rehash
from compactor.round_commit import commit_rehash, commit_round, complete
from compactor.round_planner import RoundTurn, plan_rehash, plan_round, read_point
from compactor.round_runner import run_round
from compactor.session_input import SessionInput, read_session_input
from compactor.sizing import SLA_BUFFER
from compactor.spec import SessionPlan, SessionResult, SessionSpec

SLA_CHANGE_SHARE = 0.1
"""A refined expected SLA is told when it differs from the last one told by more than this share."""


class SessionReport(Protocol):
    """Who is told how a session goes. Called in the order in which things become true, from one thread."""

    def started(self, rounds_done: int, rounds: int, rows: int, expected_sla: float) -> None: ...

    def step_started(self, round_number: int, rounds: int, step: str, tasks: int) -> None: ...

    def rehashed(self, entry_number: int, hash_bucket_count: int) -> None: ...

    def round_done(self, entry_number: int, completion: RoundCommitted, seconds: float) -> None: ...

    def expected_sla_changed(self, before: float, now: float) -> None: ...


@dataclass(frozen=True)
class SessionTools:
    """What a session works with."""

    lake: DeltaCatalog
    spark: SparkContext
    clock: Clock
    report: SessionReport


def run_session(plan: SessionPlan, tools: SessionTools) -> SessionResult:
    """Runs every round that is still to run. Raises what a round raises; what was committed before stays committed."""
    started = tools.clock.monotonic_seconds()
    session = read_session_input(plan.spec, tools.lake)
    rounds = _rounds(plan, session)
    done = completions_of(plan.spec, session)
    rounds_in_all = len(done) + len(rounds)
    rows = sum(ref.file.rows for ref in session.pending)
    tools.report.started(len(done), rounds_in_all, rows, plan.expected_sla)
    run = plan.spec.job_run
    tools.lake.create_table_like(run.destination_compacted_table_id, tools.lake.table(run.source_table_id))
    snapshot = _rehash_first(plan, session, tools) if rounds else session.snapshot
    pace = _Pace(tools, started, rows, plan.expected_sla)
    for place, files in enumerate(rounds):
        following = rounds[place + 1][0] if place + 1 < len(rounds) else None
        turn = RoundTurn(len(done) + 1, rounds_in_all, files, following, commit_id=tools.clock.new_id())
        committed, completion = _run_round(plan, session, snapshot, turn, tools)
        snapshot = committed.snapshot
        done.append(completion)
        pace.rows_done(sum(ref.file.rows for ref in files))
    seconds = tools.clock.monotonic_seconds() - started
    return summarise(plan, snapshot, done, seconds, pace.expected_sla)


def run_rehash(plan: SessionPlan, tools: SessionTools) -> StreamSnapshot:
    """Only brings the index to the planned hash bucket count; compacts nothing."""
    return _rehash_first(plan, read_session_input(plan.spec, tools.lake), tools)


def _rounds(plan: SessionPlan, session: SessionInput) -> tuple[tuple[DeltaFileRef, ...], ...]:
    """The files of each round to run. One round without files, if there is nothing to compact but files to clean."""
    rounds = tuple(split_into_rounds(session.pending, plan.max_rows_per_round))
    compacted, share = session.compacted, plan.spec.job_run.max_dead_row_share
    if not rounds and compacted is not None and compacted.has_more_dead_rows_than(share):
        return ((),)
    return rounds


def completions_of(spec: SessionSpec, session: SessionInput) -> list[RoundCommitted]:
    """The rounds that earlier attempts of this session have committed."""
    return [
        action
        for entry in session.destination.log.entries(after=spec.destination_entry_number)
        for action in entry.actions
        if isinstance(action, RoundCommitted) and action.session_id == spec.session_id
    ]


def summarise(
    plan: SessionPlan,
    snapshot: StreamSnapshot,
    completions: Sequence[RoundCommitted],
    seconds: float,
    expected_sla: float,
) -> SessionResult:
    """The result of a session from its completions: what came in before the first round, what is out after the last."""
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
        expected_sla=expected_sla,
        completions=tuple(completions),
    )


def _rehash_first(plan: SessionPlan, session: SessionInput, tools: SessionTools) -> StreamSnapshot:
    """Brings the inherited index to the planned hash bucket count, if it has another."""
    compacted = session.compacted
    if compacted is None or compacted.hash_bucket_count == plan.hash_bucket_count:
        return session.snapshot
    rehash_plan = plan_rehash(tools.lake.location, plan, session, compacted, tools.clock.new_id())
    tools.report.step_started(0, 0, "rehash", plan.hash_bucket_count)
    index_files = rehash(tools.spark, rehash_plan)
    committed = commit_rehash(
        session.destination,
        plan.spec,
        rehash_plan,
        read_point(session.snapshot),
        compacted.stream_version,
        index_files,
    )
    tools.report.rehashed(committed.entry_number, plan.hash_bucket_count)
    return committed.snapshot


def _run_round(
    plan: SessionPlan, session: SessionInput, snapshot: StreamSnapshot, turn: RoundTurn, tools: SessionTools
) -> tuple[Committed, RoundCommitted]:
    started = tools.clock.monotonic_seconds()
    round_plan = plan_round(tools.lake.location, plan, session, snapshot, turn)

    def step_started(step: str, tasks: int) -> None:
        tools.report.step_started(turn.number, turn.rounds, step, tasks)

    result = run_round(tools.spark, round_plan, tools.clock, step_started)
    completion = complete(plan.spec, round_plan, result)
    committed = commit_round(session.destination, round_plan, completion)
    seconds = tools.clock.monotonic_seconds() - started
    tools.report.round_done(committed.entry_number, completion, seconds)
    return committed, completion


class _Pace:
    """Refines the expected SLA from the rows that were done and the time that they took."""

    def __init__(self, tools: SessionTools, started: float, rows: int, expected_sla: float) -> None:
        self.expected_sla = expected_sla
        self._tools = tools
        self._started = started
        self._rows = rows
        self._done = 0

    def rows_done(self, rows: int) -> None:
        self._done += rows
        left = self._rows - self._done
        if not left or not self._done:
            return
        elapsed = self._tools.clock.monotonic_seconds() - self._started
        now = elapsed + elapsed / self._done * left * SLA_BUFFER
        if abs(now - self.expected_sla) > SLA_CHANGE_SHARE * self.expected_sla:
            self._tools.report.expected_sla_changed(self.expected_sla, now)
            self.expected_sla = now
