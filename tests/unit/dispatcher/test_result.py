"""What a workflow is told: whole where it fits, and never more than its service takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compactor.model.counts import SortKey
from compactor.model.errors import Corrupt
from compactor.model.names import SortOrder
from dispatcher.outbox.workflow_callbacks import AnswerSettings, WorkflowAnswers
from dispatcher.records.job_run_log import (
    JobRunAccepted,
    JobRunClaimed,
    JobRunEnded,
    JobRunRejected,
    JobRunState,
    Waiter,
    apply,
)
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.outcome import conclude
from dispatcher.records.result import Failure, ResultDocument, Success, answer_of, fitting_reasons, result_document
from dispatcher.records.sessions import SessionEnded
from dispatcher.workflow.callbacks import CAUSE_CHARACTERS_MAX, OUTPUT_BYTES_MAX
from launcher.outcomes import Succeeded
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_callbacks import MemoryCallbacks
from tests.fakes.memory_store import MemoryStore
from tests.plans import a_pin, a_result, a_run

URI = "s3://bucket/state/job_runs/run/result.json"
TABLE = "ACME.ORDERS.V1"


def succeeded(sessions: int) -> JobRunState:
    """A job run whose sessions have all succeeded."""
    spec = a_run(TABLE, sort_keys=(SortKey(column="at", order=SortOrder.ASCENDING),))
    pins = tuple(a_pin(f"run.{number}", {"day": f"day {number}"}) for number in range(sessions))
    accepted = JobRunAccepted(spec=spec, content_digest="d", message_id="m", sessions=pins, waiter=Waiter())
    state = apply(JobRunState(), accepted)
    state = apply(state, JobRunClaimed(owner="me", epoch=1, expires_at_ms=0))
    for pin in pins:
        counts = {"rows_in": 3, "rows_out": 2, "rows_deduplicated": 1}
        result = a_result(pin.session_id, partition=pin.partition, seconds=1.5, **counts)
        state = apply(state, SessionEnded(epoch=1, session_id=pin.session_id, end=Succeeded(result=result)))
    outcome = conclude(state)
    assert outcome is not None
    return apply(state, JobRunEnded(epoch=1, outcome=outcome, seconds=9.0))


def test_a_success_has_every_session_while_they_fit() -> None:
    answer = answer_of(result_document("run", succeeded(3)), URI)
    assert isinstance(answer, Success)
    document = json.loads(answer.output)
    assert (document["rows_in"], document["rounds"], document["result_uri"]) == (9, 3, None)
    assert [session["partition"] for session in document["sessions"]] == [{"day": f"day {n}"} for n in range(3)]


def test_a_success_that_is_too_large_says_where_the_whole_of_it_lies() -> None:
    clock, callbacks = ManualClock(), MemoryCallbacks()
    records = JobRunStore(MemoryStore(clock), clock)
    records.callbacks.keep("run", "m", callbacks.begin("token"))
    answers = WorkflowAnswers(records, callbacks, AnswerSettings(), clock)
    answers.notify("run", succeeded(2_000), is_ending=True)
    answers.answer_round()
    answer = callbacks.answers["token"]
    assert not isinstance(answer, Failure)
    document = json.loads(answer.output)
    assert (document["rows_in"], document["sessions"]) == (6_000, None)
    key = document["result_uri"].removeprefix(f"{records.store.location.root_uri}/")
    whole = ResultDocument.parse_durable(records.store.read(key) or b"", key)
    assert len(whole.sessions or ()) == 2_000
    assert len(whole.render()) > OUTPUT_BYTES_MAX


REASONS = st.lists(st.text(max_size=20_000), max_size=40)


@given(REASONS)
@example(["x" * 100_000])
@example(["ü\U0001f600" * 40_000])
@example(["", *["reason"] * 20_000])
def test_a_cause_is_json_within_its_limit_whatever_the_reasons_are(reasons: list[str]) -> None:
    rejected = JobRunRejected(message_id="m", requested_job_run_id="wanted", table=None, reasons=tuple(reasons))
    answer = answer_of(result_document("m", apply(JobRunState(), rejected)), URI)
    assert isinstance(answer, Failure)
    assert len(answer.cause) <= CAUSE_CHARACTERS_MAX
    cause = json.loads(answer.cause)
    assert (cause["job_run_id"], cause["status"]) == ("wanted", "rejected")
    if len(json.dumps(reasons)) < CAUSE_CHARACTERS_MAX - 200:
        assert cause["reasons"] == reasons
    elif cause["reasons"] != reasons:
        assert cause["reasons"][-1].endswith((" ...", " more"))


def test_an_open_job_run_has_no_result() -> None:
    with pytest.raises(Corrupt, match="has no result"):
        result_document("run", JobRunState())


@pytest.mark.parametrize("bytes_max", [0, 10, 58, 59, 60, 61, 100, 1_000, 8_192])
def test_reasons_that_fit_are_a_list_within_its_limit(bytes_max: int) -> None:
    reasons = ["a short one", "ä" * 300, "\U0001f600" * 9_000, "the last"]
    found = fitting_reasons(reasons, bytes_max)
    assert len(json.dumps(found)) - len("[]") <= bytes_max
    whole = [each for each in found if not each.endswith(" ...")]
    assert whole == reasons[: len(whole)]
