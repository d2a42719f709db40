"""What workflows are told that wait for job runs: heartbeats, one answer each, and nobody else's secrets."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import structlog

from compactor.lake import DeltaCatalog
from compactor.log_context import configure_logging
from compactor.model.errors import Denied, Unavailable
from compactor.storage.location import StoreLocation
from dispatcher.intake.intake import Rejected
from dispatcher.main import _dependencies
from dispatcher.outbox.workflow_callbacks import GONE_REASON, AnswerSettings, WorkflowAnswers
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus, Waiter
from dispatcher.records.keys import OPEN_JOB_RUNS, TaskToken
from dispatcher.records.result import Failure, Success
from dispatcher.stops import Stops
from tests.fakes.dispatch_desk import ANSWERS_AT_ONCE, Desk, instruction
from tests.fakes.faulty_store import FaultyStore, Verb, When
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.moving_clock import MovingClock
from tests.fakes.small_cluster import Crashes, Hangs, Succeeds

TOKEN = "AQCEAAAAKgAAAAMAAAAAAAAAAS-secret"
OTHER = "AQCEAAAAKgAAAAMAAAAAAAAAAS-another"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.callbacks.begin(TOKEN)
    desk.callbacks.begin(OTHER)
    desk.append([{"id": 1}, {"id": 2}])
    yield desk
    desk.close()


def success(desk: Desk, token: str = TOKEN) -> dict[str, object]:
    answer = desk.callbacks.answers[token]
    assert isinstance(answer, Success), answer
    document: dict[str, object] = json.loads(answer.output)
    return document


def failure(desk: Desk, token: str = TOKEN) -> tuple[str, dict[str, object]]:
    answer = desk.callbacks.answers[token]
    assert isinstance(answer, Failure), answer
    return answer.error, json.loads(answer.cause)


def repeat(desk: Desk, job_run_id: str, **fields: object) -> None:
    """As a receiver does with a document that asks for a job run again."""
    desk.send(instruction(job_run_id=job_run_id, **fields))
    desk.take()
    if not desk.job_run(job_run_id).status.is_open:
        desk.controller.offer(job_run_id)


# ------------------------------------------------------------------------------------------------------- answers


def test_a_workflow_gets_the_result_document_of_a_job_run_that_succeeded(desk: Desk) -> None:
    job_run_id = desk.accept(job_run_id="nightly", task_token=TOKEN)
    desk.run()
    document = success(desk)
    assert (document["job_run_id"], document["status"], document["rows_out"]) == (job_run_id, "succeeded", 2)
    sessions = document["sessions"]
    assert isinstance(sessions, list)
    assert [(each["partition"], each["rounds"], each["rows_in"]) for each in sessions] == [({}, 1, 2)]
    assert desk.records.callbacks.waiting(job_run_id) == {}
    assert [each.answer for each in desk.records.callbacks.answers(job_run_id).values()] == ["succeeded"]
    assert desk.records.open_job_run_ids() == []


def test_a_workflow_gets_error_and_cause_of_a_job_run_that_failed(desk: Desk) -> None:
    desk.cluster.behaves = lambda _: Crashes(exit_code=7)
    job_run_id = desk.accept(task_token=TOKEN)
    desk.run()
    error, cause = failure(desk)
    assert error == "Lithify.JobRunFailed"
    assert (cause["job_run_id"], cause["status"]) == (job_run_id, "failed")
    assert "exited with code 7" in str(cause["reasons"])


def test_a_workflow_is_told_that_its_job_run_was_cancelled(desk: Desk) -> None:
    desk.cluster.behaves = lambda _: Hangs()
    job_run_id = desk.accept(task_token=TOKEN)
    desk.tick_until(lambda: bool(desk.cluster.launched))
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not needed")])
    desk.run()
    assert failure(desk) == (
        "Lithify.JobRunCancelled",
        {"job_run_id": job_run_id, "table": "ACME.ORDERS.V1", "status": "cancelled", "reasons": ["not needed"]},
    )


def test_a_workflow_is_told_at_once_that_its_document_was_rejected(desk: Desk) -> None:
    desk.send(instruction(job_run_id="wrong", task_token=TOKEN, primary_keys=["no such column"], prioritty=1))
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    desk.publish(rejected.message_id)
    desk.run()
    error, cause = failure(desk)
    assert error == "Lithify.JobRunRejected"
    assert (cause["job_run_id"], cause["status"]) == ("wrong", "rejected")
    assert "prioritty" in str(cause["reasons"])
    assert desk.records.open_job_run_ids() == []


def test_a_document_that_asks_for_other_content_under_a_used_id_is_rejected_and_its_workflow_told(desk: Desk) -> None:
    desk.accept(job_run_id="used")
    desk.run()
    desk.send(instruction(job_run_id="used", priority=7, task_token=TOKEN))
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    desk.publish(rejected.message_id)
    desk.run()
    error, cause = failure(desk)
    assert error == "Lithify.JobRunRejected"
    assert "was used before, for other content" in str(cause["reasons"])


def test_a_repeated_document_with_a_new_token_adds_a_waiter(desk: Desk) -> None:
    held = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(held)
    desk.accept(job_run_id="nightly", task_token=TOKEN)
    desk.tick_until(lambda: bool(desk.cluster.launched))
    repeat(desk, "nightly", task_token=OTHER)
    held.set()
    desk.run()
    assert success(desk, TOKEN) == success(desk, OTHER)
    assert len(desk.job_run("nightly").waiters) == 2


def test_a_repeated_document_is_answered_also_after_the_end(desk: Desk) -> None:
    desk.accept(job_run_id="nightly")
    desk.run()
    assert desk.records.open_job_run_ids() == []
    repeat(desk, "nightly", task_token=OTHER)
    desk.run()
    assert success(desk, OTHER)["status"] == "succeeded"
    assert desk.records.open_job_run_ids() == []


class MarkerStore(MemoryStore):
    """Calls `before_closing` once, just before the marker of an open job run is deleted."""

    before_closing: Callable[[], None] | None = None

    def delete(self, key: str) -> None:
        is_of_its_holder = key.startswith(OPEN_JOB_RUNS) and ",first," in key
        if is_of_its_holder and self.before_closing is not None:
            called, self.before_closing = self.before_closing, None
            called()
        super().delete(key)


def test_a_workflow_that_asks_while_the_marker_of_the_ended_run_goes_is_answered(tmp_path: Path) -> None:
    clock = ManualClock()
    state = MarkerStore(clock)
    desk = Desk(tmp_path, clock=clock, state=state)
    desk.append([{"id": 1}])
    desk.callbacks.begin(OTHER)
    job_run_id = desk.accept(job_run_id="nightly")

    def ask() -> None:
        desk.send(instruction(job_run_id="nightly", task_token=OTHER))
        desk.take()

    state.before_closing = ask
    desk.run()
    desk.run()
    assert success(desk, OTHER)["job_run_id"] == job_run_id
    assert desk.records.open_job_run_ids() == []
    desk.close()


# ---------------------------------------------------------------------------------------------------- heartbeats


def running_desk(tmp_path: Path, **fields: object) -> tuple[Desk, str]:
    """A job run that is held, as workflows are told of it. Its sessions are the test's; time stands still."""
    desk = Desk(tmp_path, clock=ManualClock())
    desk.callbacks.begin(TOKEN)
    desk.callbacks.begin(OTHER)
    desk.append([{"id": 1}])
    job_run_id = desk.accept(job_run_id="run", task_token=TOKEN, **fields)
    desk.answers.notify(job_run_id, desk.job_run(job_run_id))
    desk.answers.answer_round()
    desk.callbacks.beats.clear()
    return desk, job_run_id


def beats_after(desk: Desk, job_run_id: str, seconds: float) -> int:
    """Heartbeats of the first token within these seconds, while a session progresses every second."""
    before = desk.callbacks.beats[TOKEN]
    for _ in range(round(seconds)):
        desk.move_on(1)
        desk.answers.progressed(job_run_id)
        desk.answers.answer_round()
    return desk.callbacks.beats[TOKEN] - before


def test_heartbeats_are_sent_at_a_third_of_the_time_out_while_sessions_progress(tmp_path: Path) -> None:
    desk, job_run_id = running_desk(tmp_path, task_heartbeat_seconds=60)
    assert beats_after(desk, job_run_id, 59) == 2
    assert beats_after(desk, job_run_id, 60) == 3
    desk.close()


def test_the_shortest_time_out_that_any_waiter_asks_for_counts_for_all(tmp_path: Path) -> None:
    desk, job_run_id = running_desk(tmp_path, task_heartbeat_seconds=600)
    repeat(desk, job_run_id, task_token=OTHER, task_heartbeat_seconds=30)
    desk.answers.notify(job_run_id, desk.job_run(job_run_id))
    assert beats_after(desk, job_run_id, 60) == 6
    assert desk.callbacks.beats[OTHER] == 6
    desk.close()


def test_no_heartbeat_is_sent_while_no_session_progresses(tmp_path: Path) -> None:
    desk, job_run_id = running_desk(tmp_path, task_heartbeat_seconds=30)
    beats_after(desk, job_run_id, 10)  # what the launch was worth
    before = desk.callbacks.beats[TOKEN]
    for _ in range(100):
        desk.move_on(1)
        desk.answers.answer_round()
    assert desk.callbacks.beats[TOKEN] == before
    assert beats_after(desk, job_run_id, 1) == 1
    desk.close()


def test_a_workflow_that_asks_for_no_heartbeats_gets_none(tmp_path: Path) -> None:
    desk, job_run_id = running_desk(tmp_path)
    repeat(desk, job_run_id, task_token=OTHER, task_heartbeat_seconds=30)
    desk.answers.notify(job_run_id, desk.job_run(job_run_id))
    assert beats_after(desk, job_run_id, 60) == 0
    assert desk.callbacks.beats[OTHER] == 6
    desk.close()


def test_a_real_sessions_progress_is_reported(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.callbacks.begin(TOKEN)
    desk.append([{"id": 1}])
    held = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(held)
    desk.accept(task_token=TOKEN, task_heartbeat_seconds=3)
    desk.tick_until(lambda: bool(desk.cluster.launched))
    desk.move_on(1)
    desk.tick_until(lambda: desk.callbacks.beats[TOKEN] > 0)
    held.set()
    desk.run()
    assert success(desk)["status"] == "succeeded"
    desk.close()


# ------------------------------------------------------------------------------------------- workflows that give up


def test_a_token_that_has_timed_out_ends_its_waiter_and_not_the_run(tmp_path: Path) -> None:
    desk, job_run_id = running_desk(tmp_path, task_heartbeat_seconds=30)
    desk.callbacks.give_up(TOKEN)
    beats_after(desk, job_run_id, 30)
    calls = desk.callbacks.calls
    beats_after(desk, job_run_id, 300)
    assert desk.callbacks.calls == calls
    assert [each.answer for each in desk.records.callbacks.answers(job_run_id).values()] == ["gone"]
    assert desk.job_run(job_run_id).status.is_open
    assert desk.job_run(job_run_id).cancel is None
    desk.close()


def abandoned(tmp_path: Path, **fields: object) -> tuple[Desk, str]:
    desk, job_run_id = running_desk(tmp_path, task_heartbeat_seconds=30, **fields)
    desk.answers = WorkflowAnswers(
        desk.records, desk.callbacks, replace(ANSWERS_AT_ONCE, cancel_abandoned=True), desk.clock
    )
    desk.answers.notify(job_run_id, desk.job_run(job_run_id))
    return desk, job_run_id


def test_a_setting_cancels_the_run_that_no_workflow_waits_for_any_more(tmp_path: Path) -> None:
    desk, job_run_id = abandoned(tmp_path)
    desk.callbacks.give_up(TOKEN)
    beats_after(desk, job_run_id, 30)
    desk.answers.answer_round()
    cancel = desk.job_run(job_run_id).cancel
    assert cancel is not None
    assert cancel.reason == GONE_REASON
    desk.close()


def test_a_run_that_another_workflow_waits_for_is_not_cancelled(tmp_path: Path) -> None:
    desk, job_run_id = abandoned(tmp_path)
    repeat(desk, job_run_id, task_token=OTHER)
    desk.answers.notify(job_run_id, desk.job_run(job_run_id))
    desk.callbacks.give_up(TOKEN)
    beats_after(desk, job_run_id, 90)
    assert desk.job_run(job_run_id).cancel is None
    desk.close()


def test_a_run_that_somebody_asked_for_without_a_workflow_is_not_cancelled(tmp_path: Path) -> None:
    desk, job_run_id = abandoned(tmp_path)
    repeat(desk, job_run_id)
    desk.callbacks.give_up(TOKEN)
    beats_after(desk, job_run_id, 90)
    assert desk.job_run(job_run_id).cancel is None
    desk.close()


# ------------------------------------------------------------------------------------------ what fails on the way


@pytest.mark.parametrize("error", [Unavailable("throttled"), Denied("AccessDenied")], ids=repr)
def test_a_service_in_trouble_is_tried_again_and_keeps_nothing_else_waiting(desk: Desk, error: Exception) -> None:
    desk.callbacks.error = error
    job_run_id = desk.accept(task_token=TOKEN)
    desk.tick_until(lambda: desk.job_run(job_run_id).ended is not None)
    desk.tick_until(lambda: "job_run.succeeded" in desk.sink.names)
    desk.tick()
    assert desk.answers.last_error is error
    assert desk.records.open_job_run_ids() == [job_run_id]  # whoever finds the marker answers
    desk.callbacks.error = None
    desk.run()
    assert success(desk)["status"] == "succeeded"
    assert desk.answers.last_error is None
    assert desk.records.open_job_run_ids() == []


def test_a_service_in_trouble_is_left_alone_for_longer_each_time_and_for_half_a_minute_at_most(tmp_path: Path) -> None:
    desk, job_run_id = running_desk(tmp_path, task_heartbeat_seconds=3)
    desk.answers = WorkflowAnswers(desk.records, desk.callbacks, AnswerSettings(), desk.clock)
    desk.answers.notify(job_run_id, desk.job_run(job_run_id))
    desk.callbacks.error = Unavailable("throttled")
    tried_at, calls = [], 0
    for second in range(200):
        beats_after(desk, job_run_id, 1)
        if desk.callbacks.calls > calls:
            calls = desk.callbacks.calls
            tried_at.append(second)
    pauses = [later - earlier for earlier, later in pairwise(tried_at)]
    assert pauses[:4] == [1, 2, 4, 8]
    assert max(pauses) == 30
    desk.close()


def test_a_service_in_trouble_is_no_trouble_once_no_workflow_waits_here(desk: Desk) -> None:
    desk.callbacks.error = Unavailable("no answer")
    job_run_id = desk.accept(task_token=TOKEN)
    desk.tick_until(lambda: desk.answers.last_error is not None)
    desk.answers.answer_round()
    assert desk.answers.last_error is not None
    desk.answers.leave(job_run_id)  # as when its claim is lost
    desk.answers.answer_round()
    assert desk.answers.last_error is None


def test_a_dispatcher_that_died_before_it_could_answer_leaves_that_to_the_next(desk: Desk) -> None:
    desk.callbacks.error = Unavailable("no answer")
    job_run_id = desk.accept(task_token=TOKEN)
    desk.tick_until(lambda: desk.job_run(job_run_id).ended is not None)
    desk.tick_until(lambda: "job_run.succeeded" in desk.sink.names)
    desk.callbacks.error = None
    second = desk.second()
    second.tick()
    second.move_on(desk.settings.claim_seconds)
    second.run()
    assert success(second)["job_run_id"] == job_run_id
    second.close()


def test_an_answer_whose_receipt_was_lost_is_given_again_and_found_taken(desk: Desk) -> None:
    desk.callbacks.loses_answers = 0
    held = threading.Event()
    desk.cluster.behaves = lambda _: Succeeds(held)
    job_run_id = desk.accept(task_token=TOKEN)
    desk.tick_until(lambda: bool(desk.cluster.launched))
    desk.callbacks.loses_answers = 1_000
    held.set()
    desk.tick_until(lambda: TOKEN in desk.callbacks.answers)
    desk.callbacks.loses_answers = 0
    desk.run()
    assert success(desk)["status"] == "succeeded"
    assert [each.answer for each in desk.records.callbacks.answers(job_run_id).values()] == ["gone"]


@pytest.mark.parametrize(
    ("verb", "key"),
    [("put_if_absent", "task_tokens/"), ("put_if_absent", "answered_waiters/"), ("delete", "task_tokens/")],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_state_that_fails_at_any_write_of_a_waiter_loses_no_answer(
    tmp_path: Path, verb: Verb, key: str, when: When
) -> None:
    clock = MovingClock()
    state = FaultyStore(MemoryStore(clock))
    desk = Desk(tmp_path, clock=clock, state=state)
    desk.append([{"id": 1}])
    desk.callbacks.begin(TOKEN)
    state.fail(verb, key, when, times=2)
    desk.send(instruction(job_run_id="run", task_token=TOKEN))
    desk.tick_until(lambda: taken_at_last(desk))
    desk.run()
    assert success(desk)["status"] == "succeeded"
    assert desk.records.callbacks.waiting("run") == {}
    assert [entry.key for entry in desk.state.list("task_tokens/")] == []
    assert desk.records.open_job_run_ids() == []
    desk.close()


def taken_at_last(desk: Desk) -> bool:
    desk.take()
    desk.move_on(60)
    return desk.job_run("run").status is not JobRunStatus.ABSENT


# -------------------------------------------------------------------------------------------------- the secret


@pytest.mark.parametrize("as_json", [True, False])
def test_a_token_is_in_no_object_but_its_own_and_in_no_log_line(tmp_path: Path, as_json: bool) -> None:
    """Through acceptance, a bug that keeps the document in its frames, a rejection, a failure and heartbeats."""
    lines = io.StringIO()
    desk = Desk(tmp_path)
    breaks = [ZeroDivisionError("a bug")]

    def open_lake(location: StoreLocation) -> DeltaCatalog:
        if breaks:
            raise breaks.pop()
        return desk.lake

    desk = desk.second(open_lake=open_lake)
    tokens = {TOKEN, OTHER, "third-secret-token"}
    for token in tokens:
        desk.callbacks.begin(token)
    desk.append([{"id": 1}])
    before = structlog.get_config()
    configure_logging(as_json=as_json, level="debug", stream=lines)
    try:
        desk.callbacks.error = Unavailable("not now")
        desk.cluster.behaves = lambda _: Crashes(exit_code=7)
        desk.send(instruction(job_run_id="run", task_token=TOKEN))
        desk.tick_until(lambda: taken_at_last(desk))
        repeat(desk, "run", task_token=OTHER)
        desk.send(instruction(job_run_id="wrong", task_token="third-secret-token", unknown=1))
        desk.take()
        desk.tick_until(lambda: desk.job_run("run").ended is not None)
        desk.tick()
    finally:
        structlog.configure(**before)
        configure_logging(as_json=False)
    assert "a bug" in lines.getvalue()
    holders = {
        entry.key.split("/")[0]
        for entry in desk.state.list("")
        for token in tokens
        if token.encode() in (desk.state.read(entry.key) or b"") or token in entry.key
    }
    assert holders == {"task_tokens"}
    text = lines.getvalue() + "".join(event.render().decode() for event in desk.sink.events)
    assert not any(token in text for token in tokens)
    desk.callbacks.error = None
    desk.run()
    assert tokens == set(desk.callbacks.answers)
    assert not any(True for _ in desk.state.list("task_tokens/"))
    desk.close()


def test_waiters_are_recorded_in_the_log_without_their_token(desk: Desk) -> None:
    job_run_id = desk.accept(task_token=TOKEN, task_heartbeat_seconds=90)
    assert list(desk.job_run(job_run_id).waiters.values()) == [Waiter(heartbeat_seconds=90)]


def test_the_state_that_a_verb_opens_keeps_task_tokens_to_its_own_user(tmp_path: Path) -> None:
    state = _dependencies({}, Stops()).store(str(tmp_path / "state"), None, None)
    token = TaskToken("run", "message")
    state.put_if_absent(token.key, b"secret")
    assert (tmp_path / "state" / token.key).stat().st_mode & 0o077 == 0
