"""The state machine of a job run, and who may move it."""

from __future__ import annotations

import pytest

from compactor.log.durable_log import DurableLog
from compactor.model.errors import Corrupt, ErrorKind, Fenced
from dispatcher.records.claims import Claim, NotClaimed, claim_job_run
from dispatcher.records.job_run_log import (
    JOB_RUN_LOG,
    CancelRequested,
    JobRunAccepted,
    JobRunAction,
    JobRunClaimed,
    JobRunEnded,
    JobRunOutcome,
    JobRunRejected,
    JobRunReleased,
    JobRunState,
    JobRunStatus,
    apply,
)
from dispatcher.records.outcome import conclude
from dispatcher.records.sessions import (
    SessionEnded,
    SessionLaunched,
    SessionLaunching,
    SessionPin,
    SessionRetried,
)
from launcher.outcomes import Cancelled, Failed, NothingToDo, SessionEnd, Succeeded
from launcher.retrying import FailureCounts
from launcher.spark_job import ClusterReference
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.plans import a_pin, a_result, a_run

SPEC = a_run()

REFERENCE = ClusterReference(kind="local", ids={"pid": "7"})


def pin(number: int) -> SessionPin:
    return a_pin(f"run.{number}", {"day": str(number)})


def accepted(sessions: int = 2) -> JobRunAccepted:
    pins = tuple(pin(number) for number in range(1, sessions + 1))
    return JobRunAccepted(spec=SPEC, content_digest="d", message_id="m", sessions=pins)


def fold(*actions: JobRunAction) -> JobRunState:
    state = JobRunState()
    for action in actions:
        state = apply(state, action)
    return state


def claimed(epoch: int = 1) -> JobRunClaimed:
    return JobRunClaimed(owner=f"owner {epoch}", epoch=epoch)


def launching(attempt: int = 1, epoch: int = 1) -> SessionLaunching:
    return SessionLaunching(
        epoch=epoch, session_id="run.1", attempt=attempt, at_ms=attempt * 1_000, name=f"a{attempt}", place="here"
    )


def retried(error_kind: ErrorKind, failed_at_ms: int = 5_000) -> SessionRetried:
    return SessionRetried(
        epoch=1, session_id="run.1", attempt=2, error_kind=error_kind, reasons=(), failed_at_ms=failed_at_ms
    )


def ended(session: int, end: SessionEnd, epoch: int = 1) -> SessionEnded:
    return SessionEnded(epoch=epoch, session_id=f"run.{session}", end=end)


def success(session: int, rows_in: int = 10, rows_out: int = 7) -> Succeeded:
    return Succeeded(
        result=a_result(
            f"run.{session}",
            partition={"day": str(session)},
            rows_in=rows_in,
            rows_out=rows_out,
            rows_deduplicated=rows_in - rows_out,
            expected_sla=2.0,
        )
    )


FAILURE = Failed(attempt=3, error_kind=ErrorKind.CRASHED, reasons=("it crashed",))


def test_a_job_run_goes_from_waiting_to_running_and_back_when_it_is_released() -> None:
    assert fold().status is JobRunStatus.ABSENT
    assert fold(accepted()).status is JobRunStatus.WAITING
    assert fold(accepted(), claimed()).status is JobRunStatus.RUNNING
    assert fold(accepted(), claimed(), JobRunReleased(epoch=1)).status is JobRunStatus.WAITING


def test_a_rejected_job_run_can_become_nothing_else() -> None:
    rejected = JobRunRejected(message_id="m", requested_job_run_id=None, table=None, reasons=("no",))
    assert fold(rejected).status is JobRunStatus.REJECTED
    for next_action in (accepted(), rejected, claimed(), CancelRequested(reason="x")):
        with pytest.raises(Corrupt):
            fold(rejected, next_action)


@pytest.mark.parametrize(
    "late",
    [
        JobRunReleased(epoch=1),
        launching(),
        ended(1, NothingToDo()),
        claimed(epoch=1),
        claimed(epoch=4),
    ],
)
def test_an_action_of_an_earlier_epoch_is_refused(late: JobRunAction) -> None:
    with pytest.raises(Corrupt):
        fold(accepted(), claimed(1), claimed(2), late)


def test_nothing_is_written_about_a_session_that_has_ended_or_never_was() -> None:
    running = (accepted(), claimed())
    with pytest.raises(Corrupt):
        fold(*running, ended(1, NothingToDo()), ended(1, NothingToDo()))
    with pytest.raises(Corrupt):
        fold(*running, ended(3, NothingToDo()))


def test_attempts_and_failures_are_counted_apart() -> None:
    state = fold(
        accepted(1),
        claimed(),
        launching(),
        SessionLaunched(epoch=1, session_id="run.1", attempt=1, cluster="here", reference=REFERENCE),
        retried(ErrorKind.CRASHED),
        launching(2),
        claimed(2),
        launching(3, epoch=2),
    )
    session = state.sessions["run.1"]
    assert (session.attempt, session.failure_counts, session.cluster) == (
        3,
        FailureCounts(failures=1, unwatched=1),
        None,
    )


def test_the_first_request_to_cancel_stands() -> None:
    state = fold(accepted(), CancelRequested(reason="first"), claimed(), CancelRequested(reason="second"))
    assert state.cancel == CancelRequested(reason="first")
    assert state.status is JobRunStatus.RUNNING


def test_there_is_no_outcome_while_a_session_is_open() -> None:
    assert conclude(fold(accepted(2), claimed(), ended(1, NothingToDo()))) is None


def test_rows_are_summed_over_the_sessions_that_succeeded() -> None:
    outcome = conclude(fold(accepted(2), claimed(), ended(1, success(1)), ended(2, success(2, 5, 5))))
    assert outcome is not None
    assert outcome.status == "succeeded"
    assert (outcome.sessions, outcome.rounds, outcome.rows_in, outcome.rows_out) == (2, 2, 15, 12)
    assert not outcome.nothing_to_do


def test_one_failed_session_fails_the_job_run_and_is_named_by_its_partition() -> None:
    outcome = conclude(fold(accepted(2), claimed(), ended(1, success(1)), ended(2, FAILURE)))
    assert outcome is not None
    assert outcome.status == "failed"
    assert outcome.failed_sessions == ("run.2",)
    assert outcome.reasons == ("day=2: it crashed",)
    assert outcome.rows_out == 7


def test_a_cancelled_session_cancels_the_job_run_and_says_why() -> None:
    cancel = CancelRequested(reason="not now")
    outcome = conclude(fold(accepted(2), cancel, claimed(), ended(1, FAILURE), ended(2, Cancelled())))
    assert outcome is not None
    assert outcome.status == "cancelled"
    assert outcome.reasons == ("not now", "day=1: it crashed")


@pytest.mark.parametrize("sessions", [0, 2])
def test_a_job_run_whose_sessions_had_nothing_to_do_succeeds_with_nothing_done(sessions: int) -> None:
    ends = [ended(number, NothingToDo()) for number in range(1, sessions + 1)]
    outcome = conclude(fold(accepted(sessions), claimed(), *ends))
    assert outcome == JobRunOutcome(
        status="succeeded",
        nothing_to_do=True,
        sessions=0,
        rounds=0,
        rows_in=0,
        rows_out=0,
        rows_deduplicated=0,
        rows_deleted=0,
    )


# -------------------------------------------------------------------------------------------------------- claims


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def open_log(store: MemoryStore, clock: ManualClock) -> DurableLog[JobRunState, JobRunAction]:
    return DurableLog(store, "job_runs/run/log", JOB_RUN_LOG, clock)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    store = MemoryStore(clock)
    open_log(store, clock).append(lambda _: [accepted()])
    return store


def claim(store: MemoryStore, clock: ManualClock, owner: str) -> Claim:
    claim = try_claim(store, clock, owner)
    assert isinstance(claim, Claim), claim
    return claim


def try_claim(store: MemoryStore, clock: ManualClock, owner: str, *gone: str) -> Claim | NotClaimed:
    return claim_job_run(open_log(store, clock), owner, gone.__contains__)


def test_a_claim_keeps_others_away_until_its_owner_is_gone(store: MemoryStore, clock: ManualClock) -> None:
    claim(store, clock, "first")
    assert try_claim(store, clock, "second") == NotClaimed("first holds it in epoch 1")
    taken = try_claim(store, clock, "second", "first")
    assert isinstance(taken, Claim)
    assert taken.epoch == 2


def test_a_dispatcher_that_was_taken_over_is_fenced_and_writes_nothing(store: MemoryStore, clock: ManualClock) -> None:
    first = claim(store, clock, "first")
    assert isinstance(try_claim(store, clock, "second", "first"), Claim)
    before = open_log(store, clock).load().entry_number
    over = "epoch 1 of job_runs/run/log is over: second holds it in epoch 2"
    with pytest.raises(Fenced, match=over):
        first.write(lambda _: [launching()])
    with pytest.raises(Fenced, match=over):
        first.release()
    assert open_log(store, clock).load().entry_number == before


def test_a_late_holder_goes_on_while_nobody_has_taken_over(store: MemoryStore, clock: ManualClock) -> None:
    first = claim(store, clock, "first")
    clock.sleep(1_000)
    first.write(lambda _: [launching()])
    assert first.log.load().state.sessions["run.1"].attempt == 1


def test_a_released_job_run_is_free_at_once(store: MemoryStore, clock: ManualClock) -> None:
    claim(store, clock, "first").release()
    assert claim(store, clock, "second").epoch == 2


def test_an_ended_job_run_cannot_be_claimed(store: MemoryStore, clock: ManualClock) -> None:
    first = claim(store, clock, "first")
    first.write(lambda _: [ended(1, NothingToDo()), ended(2, NothingToDo())])

    def end(state: JobRunState) -> list[JobRunEnded]:
        outcome = conclude(state)
        assert outcome is not None
        return [JobRunEnded(epoch=1, outcome=outcome, seconds=1.0)]

    first.write(end)
    assert try_claim(store, clock, "second") == NotClaimed("it is succeeded")
    with pytest.raises(Fenced, match="it is succeeded"):
        first.release()
