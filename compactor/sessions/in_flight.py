"""The plan of a session in the stream's log: what is in flight, and who may begin.

Only tables with the property `session_plans` have such entries. A plan is advisory: it shows which session runs, and
keeps a second compactor from useless work. Whether a round is committed is decided by its read point
(`catalog/transaction.py`), with a plan or without.

Who goes first:

| the plan in force is                        | a session that begins                                        |
|---------------------------------------------|--------------------------------------------------------------|
| none                                        | writes its own                                               |
| of an earlier or the same attempt at it     | replaces it: that attempt is gone, or is to be superseded    |
| of a later attempt at it                    | is fenced                                                    |
| of another session                          | is refused (`Conflict`: try again later)                     |
| the same, and its time is over              | replaces it                                                  |

Once its plan is replaced, an attempt commits nothing more. Two machines' clocks decide when the time of a plan is over;
if they differ, one of the two sessions works in vain, and no row is affected.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest

from compactor.catalog.actions import PlannedRound, SessionPlanAnnounced, SessionPlanEnded, StreamAction
from compactor.catalog.dropping import time_text
from compactor.catalog.snapshot import ReadPoint, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog
from compactor.catalog.transaction import overtaken
from compactor.log.durable_log import LogState
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Fenced, LithifyError
from compactor.planning.round_plan import DeltaFileRef
from compactor.planning.rounds import watermark_after
from compactor.planning.session_input import SessionInput
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.schemas.unify import render_schema

LASTS_SECONDS_MIN = 300
"""The shortest time of a plan. A session that is expected to take a few seconds takes longer if the store does not
answer, so a killed compaction delays others by this time at least."""

EXPECTED_SLAS = 4
"""A session that takes longer than this many times its expected SLA is considered dead."""


def planned(
    plan: SessionPlan, session: SessionInput, rounds: Sequence[Sequence[DeltaFileRef]], attempt: int, clock: Clock
) -> SessionPlanAnnounced:
    """The plan of an attempt for the log. `rounds`: the delta files of each round to run; none for a rehash alone."""
    read_point = ReadPoint.of(session.streams.snapshot)
    return SessionPlanAnnounced(
        plan_id=clock.new_id(),
        job_run_id=plan.spec.job_run.job_run_id,
        session_id=plan.spec.session_id,
        attempt=attempt,
        source_table_id=plan.spec.job_run.source_table_id,
        source_stream_version=plan.spec.source_stream_version,
        source_entry_number=plan.spec.source_entry_number,
        from_index_version=read_point.index_version,
        from_commit_id=read_point.round_commit_id,
        compacted_schema=render_schema(session.schema),
        hash_bucket_count=plan.hash_bucket_count,
        rounds=tuple(_round(files, after) for files, after in zip_longest(rounds, rounds[1:], fillvalue=())),
        at_ms=clock.now_ms(),
        lasts_seconds=max(LASTS_SECONDS_MIN, round(EXPECTED_SLAS * plan.expected_sla)),
    )


def _round(files: Sequence[DeltaFileRef], following: Sequence[DeltaFileRef]) -> PlannedRound:
    return PlannedRound(
        files=len(files),
        rows=sum(ref.file.rows for ref in files),
        processed=watermark_after(files, following[0] if following else None) if files else None,
    )


@contextmanager
def in_flight(stream: PartitionStream, plan: SessionPlanAnnounced, read: ReadPoint, clock: Clock) -> Iterator[None]:
    """Writes the plan, and ends it if the session fails. Raises `Conflict` if another session has one in force, and
    `Fenced` if a later attempt has, or the compacted side has changed since it was `read`."""

    def decide(at: LogState[StreamSnapshot]) -> Sequence[StreamAction]:
        refuse(at.state, plan.job_run_id, plan.session_id, clock.now_ms(), stream)
        other = at.state.in_flight
        if other is not None and other.is_of(plan.job_run_id, plan.session_id) and other.attempt > plan.attempt:
            raise Fenced(f"attempt {plan.attempt} was superseded by attempt {other.attempt} and stops")
        if ReadPoint.of(at.state) != read:
            raise Fenced(overtaken(stream))
        return [plan]

    stream.log.append(decide, stream.log.newest)
    try:
        yield
    except BaseException:  # also an interrupt: the next run need not wait for the time-out
        with suppress(LithifyError):
            stream.log.append(lambda at: _end(at.state, plan))
        raise


def _end(snapshot: StreamSnapshot, plan: SessionPlanAnnounced) -> Sequence[StreamAction]:
    is_in_force = snapshot.in_flight is not None and snapshot.in_flight.plan_id == plan.plan_id
    return [SessionPlanEnded(plan_id=plan.plan_id)] if is_in_force else []


def refuse_beside_another(spec: SessionSpec, lake: DeltaCatalog, clock: Clock) -> None:
    """Raises `Conflict` if another session has a plan in force, by the log as it was last read for this session."""
    run = spec.job_run
    destination = lake.table_like(run.destination_compacted_table_id, lake.table(run.source_table_id))
    stream = destination.stream(spec.partition)
    refuse(stream.log.newest.state, run.job_run_id, spec.session_id, clock.now_ms(), stream)


def refuse(snapshot: StreamSnapshot, job_run_id: str, session_id: str, now_ms: int, stream: PartitionStream) -> None:
    plan = snapshot.in_flight
    if plan is None or plan.is_of(job_run_id, session_id):
        return
    ends_at_ms = plan.at_ms + plan.lasts_seconds * 1000
    if now_ms < ends_at_ms:
        raise Conflict(
            f"{stream} is being compacted by job run {plan.job_run_id} since {time_text(plan.at_ms)}: try again when "
            f"it has ended; if it was killed, from {time_text(ends_at_ms)} on"
        )
