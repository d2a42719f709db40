"""What is known of job runs: of many with few requests, and of each whatever is wrong with another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.events.types import Severity
from compactor.log.keys import EntryObject
from compactor.model.errors import Unavailable
from compactor.sessions.keys import SessionFolder
from dispatcher.cli.job_run_lines import job_run_lines
from dispatcher.cli.output import as_text
from dispatcher.operations.status import UNREADABLE, find_job_run, view_all, view_job_run
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.job_run_store import JobRunStore, WatchedJobRuns
from tests.fakes.dispatch_desk import TABLE, Desk, instruction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.small_cluster import Succeeds


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def ended_job_runs(desk: Desk, count: int) -> list[str]:
    desk.append([{"id": 1}])
    ids = [desk.accept(job_run_id=f"run {number}") for number in range(count)]
    desk.run()
    return ids


def test_an_overview_says_of_an_ended_job_run_what_is_said_of_it_alone(desk: Desk) -> None:
    ids = ended_job_runs(desk, 2)
    desk.append([{"id": 2}])
    desk.accept(job_run_id="waiting", desired_sla=60)
    desk.send(instruction(job_run_id="rejected", source_table_id="NO.SUCH.V1"))
    desk.take()
    overview = {view.job_run_id: view for view in view_all(desk.records, desk.clock)}
    assert len(overview) == 4
    for job_run_id in ids:
        alone = view_job_run(desk.records, job_run_id, desk.clock)
        assert overview[job_run_id] == alone.model_copy(update={"sessions": ()})
    assert {overview[each].status for each in ids} == {"succeeded"}
    assert overview["waiting"].desired_sla == 60


def test_a_rejected_document_is_found_under_the_id_that_it_gave_itself_with_its_reasons(desk: Desk) -> None:
    desk = desk.second(clock=ManualClock(), state=None, queue=None)
    for table in ("NO.SUCH.V1", "NO.OTHER.V1"):
        desk.send(instruction(job_run_id="mine", source_table_id=table))
        desk.take()
        desk.clock.sleep(1)
    view = view_job_run(desk.records, "mine", desk.clock)
    assert (view.job_run_id, view.status, view.requested_job_run_id) == ("mine", "rejected", "mine")
    assert "there is no table NO.OTHER.V1" in view.reasons[0]
    assert ["NO.OTHER.V1" in each.reasons[0] for each in view.rejections] == [True, False]


def test_rejected_documents_are_listed_under_their_own_id_beside_the_job_run_of_that_id(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.accept(job_run_id="mine")
    desk.run()
    messages = [desk.send(instruction(job_run_id="mine", priority=priority)) for priority in (1, 2)]
    nameless = desk.send("{")
    desk.take()
    before = view_all(desk.records, desk.clock)
    desk.publish(*messages, nameless)
    desk.run()
    for views in (before, view_all(desk.records, desk.clock)):
        found = [(view.job_run_id, view.status, view.message_id) for view in views]
        assert sorted(found, key=str) == sorted(
            [
                ("mine", "succeeded", None),
                *(("mine", "rejected", message_id) for message_id in messages),
                (nameless, "rejected", nameless),
            ],
            key=str,
        )


def test_of_a_job_run_is_told_which_documents_of_its_id_were_rejected(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.accept(job_run_id="mine")
    message_id = desk.send(instruction(job_run_id="mine", priority=7))
    desk.take()
    view = view_job_run(desk.records, "mine", desk.clock)
    assert view.status == "waiting"
    (rejection,) = view.rejections
    assert rejection.message_id == message_id
    assert "was used before, for other content" in rejection.reasons[0]
    assert any(
        "another document of this id was rejected" in as_text([line], None).plain for line in job_run_lines(view, None)
    )


@pytest.mark.parametrize("body", [b"not JSON", b'{"format": 9, "entry_number": 1}'], ids=["damaged", "newer"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_log_that_cannot_be_read_hides_no_other_job_run(desk: Desk, number: int, body: bytes) -> None:
    (good,) = ended_job_runs(desk, 1)
    log = desk.records.log("broken")
    if number == 2:
        desk.accept(job_run_id="broken")
    assert desk.state.put_if_absent(EntryObject(log.folder, number).key, body)
    desk.records.mark_over("broken")
    overview = {view.job_run_id: view for view in view_all(desk.records, desk.clock)}
    assert overview[good].status == JobRunStatus.SUCCEEDED
    broken = overview["broken"]
    assert broken.status == UNREADABLE
    assert f"{number:020d}.json" in broken.reasons[0]
    assert broken.table == (TABLE if number == 2 else None)


def test_a_store_that_does_not_answer_is_said_and_not_taken_for_unreadable_logs(desk: Desk) -> None:
    ended_job_runs(desk, 2)
    store = FaultyStore(desk.state)
    store.fail("read", times=None)
    with pytest.raises(Unavailable):
        view_all(JobRunStore(store, desk.clock), desk.clock)


# ------------------------------------------------------------------------------------------------------- desired SLA


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Desk]:
    """Time passes when a test says so."""
    desk = Desk(tmp_path, clock=ManualClock())
    yield desk
    desk.close()


def test_a_job_run_that_ends_later_than_desired_says_so_with_a_warning(slow: Desk) -> None:
    desk = slow
    desk.append([{"id": 1}])
    late = desk.accept(desired_sla=20)
    in_time = desk.accept(desired_sla=3_600)
    desk.clock.sleep(30)
    desk.run()
    ends = {event.jobrunid: event for event in desk.sink.events if "job_run.succeeded" in event.type}
    assert (ends[late].severity, ends[in_time].severity) == (Severity.WARNING, Severity.INFO)
    assert ends[late].attributes["severity"] == "warning"
    data = ends[late].data.model_dump()
    assert data["desired_sla"] == 20 < data["seconds"]


def test_the_expected_sla_of_a_job_run_is_the_greatest_of_its_sessions_with_their_waiting(slow: Desk) -> None:
    desk = slow
    desk.append([{"id": 1}])
    job_run_id = desk.accept(desired_sla=60)
    desk.clock.sleep(30)
    desk.run()
    (session,) = desk.job_run(job_run_id).sessions.values()
    assert session.plan is not None
    view = view_job_run(desk.records, job_run_id, desk.clock)
    assert view.expected_sla is not None
    assert view.expected_sla >= 30 + session.plan.expected_sla
    (planned,) = [event for event in desk.sink.events if "session.planned" in event.type]
    assert planned.data.model_dump()["waited_seconds"] >= 30
    (ended,) = [event for event in desk.sink.events if "job_run.succeeded" in event.type]
    assert ended.data.model_dump()["expected_sla"] == view.expected_sla


def test_a_status_of_one_job_run_takes_40_requests_and_one_look_of_watch_6(desk: Desk) -> None:
    hold = threading.Event()
    desk.cluster.behaves = lambda job: Succeeds(hold)
    desk.append([{"id": 1}])
    job_run_id = desk.accept()
    desk.tick_until(lambda: "session.launched" in desk.sink.names)
    store = FaultyStore(desk.state)
    view = view_job_run(JobRunStore(store, desk.clock), job_run_id, desk.clock)
    assert view.sessions[0].status == "running"
    assert len(store.requests) <= 40
    watched = WatchedJobRuns(store, desk.clock)
    log = SessionFolder(job_run_id, f"{job_run_id}.1").log

    def session_log_entries() -> int:
        return len(list(desk.state.list(f"{log}/")))

    known = session_log_entries()
    find_job_run(watched, job_run_id, desk.clock)
    for _ in range(5):
        store.requests.clear()
        known_next = session_log_entries()
        again = find_job_run(watched, job_run_id, desk.clock)
        assert again is not None
        assert again.sessions[0].status == "running"
        assert len(store.requests) <= 6 + session_log_entries() - known  # one more for each new entry
        known = known_next
    hold.set()
    desk.run()
    assert view_job_run(watched, job_run_id, desk.clock).status == "succeeded"
