"""What an attempt tells of itself, and when it falls silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal

import pytest
from structlog.testing import capture_logs

from compactor.log.durable_log import DurableLog
from compactor.model.errors import ErrorKind, Fenced, Unavailable
from compactor.planning.session_streams import READ_FOOTERS
from compactor.sessions.keys import JobRunFolder
from compactor.sessions.session_journal import SessionJournal
from compactor.sessions.session_log import SESSION_LOG, Heartbeat, SessionFailed, describe_progress
from compactor.storage.location import StoreLocation
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.plans import a_result
from tests.waiting import wait_until

FOLDER = JobRunFolder("run").session("session")


def heartbeat(store: MemoryStore | FaultyStore) -> Heartbeat:
    key = FOLDER.heartbeat.key
    body = store.read(key)
    assert body is not None
    return Heartbeat.parse_durable(body, key)


def test_an_attempt_that_is_superseded_leaves_the_heartbeat_to_its_successor() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    first, second = (SessionJournal(store, FOLDER, number, clock) for number in (1, 2))

    def run_both() -> None:
        with first:
            first.started(0, 2, 10, 5.0)
            with second:
                second.started(1, 2, 5, 5.0)
                second.step_started(2, 2, "dedupe", 3)
            first.expected_sla_changed(5.0, 7.0)

    with pytest.raises(Fenced, match="attempt 1 was superseded by attempt 2 and stops"):
        run_both()
    assert (heartbeat(store).attempt, heartbeat(store).step) == (2, "dedupe")
    assert DurableLog(store, FOLDER.log, SESSION_LOG, clock).load().entry_number == 2


def test_an_attempt_that_fails_otherwise_leaves_its_last_heartbeat() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)

    def run() -> None:
        with SessionJournal(store, FOLDER, 1, clock) as journal:
            journal.started(0, 1, 10, 5.0)
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        run()
    assert (heartbeat(store).attempt, heartbeat(store).step) == (1, "planned")


def test_a_heartbeat_that_is_lost_fails_nothing() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    store.fail("overwrite", "heartbeat.json")
    with SessionJournal(store, FOLDER, 1, clock) as journal:
        journal.started(0, 1, 10, 5.0)
    assert store.read(FOLDER.heartbeat.key) is None


def test_a_brief_attempt_that_ends_before_a_heartbeat_is_due_writes_none() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    with SessionJournal(store, FOLDER, 1, clock, is_brief=True) as journal:
        journal.started(0, 1, 10, 5.0)
    assert store.read(FOLDER.heartbeat.key) is None


def test_the_first_heartbeat_says_when_it_was() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    with SessionJournal(store, FOLDER, 1, clock):
        pass
    assert (heartbeat(store).step, heartbeat(store).at_ms) == ("starting", clock.now_ms())


def test_heartbeats_continue_after_any_error_and_the_error_is_logged() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    answers: Iterator[int | Exception] = iter([ConnectionRefusedError("no gateway"), 7])
    answered = threading.Event()

    def tasks_done() -> int:
        answer = next(answers, None)
        if answer is None:
            answered.set()
            return 7
        if isinstance(answer, Exception):
            raise answer
        return answer

    journal = SessionJournal(store, FOLDER, 1, clock, poll_seconds=0.001)
    journal.count_with(tasks_done, lambda: 0)
    with capture_logs() as logs, journal:
        journal.step_started(1, 1, "dedupe", 9)
        assert answered.wait(30)
    assert heartbeat(store).tasks_done == 7
    assert [(line["event"], line["log_level"]) for line in logs] == [("heartbeat_failed", "warning")]
    assert "no gateway" in logs[0]["reason"]


def test_reading_before_the_first_step_is_reported_as_n_of_m_and_not_as_tasks() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    requested = threading.Event()

    def rows_in_tasks() -> int:
        requested.set()
        return 0

    journal = SessionJournal(store, FOLDER, 1, clock, poll_seconds=0.001)
    journal.count_with(lambda: 99, rows_in_tasks)
    with journal:
        journal.reading("read footers", 3)
        journal.read_one()
        journal.read_one()
        assert requested.wait(30)
        requested.clear()
        assert requested.wait(30)
    assert (heartbeat(store).step, heartbeat(store).tasks_done, heartbeat(store).tasks) == ("read footers", 2, 3)


def test_rows_within_a_task_move_the_heartbeat() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    rows, seen = iter([0, 10, 20]), threading.Event()

    def rows_in_tasks() -> int:
        now = next(rows, None)
        if now is None:
            seen.set()
            return 30
        return now

    journal = SessionJournal(store, FOLDER, 1, clock, poll_seconds=0.001)
    journal.count_with(lambda: 0, rows_in_tasks)
    with journal:
        journal.step_started(1, 1, "dedupe", 1)
        assert seen.wait(30)
    assert (heartbeat(store).tasks_done, heartbeat(store).rows_in_tasks) == (0, 30)


def test_a_heartbeat_of_an_earlier_release_is_read() -> None:
    earlier = (
        b'{"attempt":1,"at_ms":5,"round_number":1,"rounds":1,"step":"dedupe",'
        b'"tasks_done":1,"tasks":2,"rows_done":0,"rows":9}'
    )
    assert Heartbeat.parse_durable(earlier, "heartbeat.json").rows_in_tasks == 0


def test_how_far_an_attempt_is_reads_as_a_sentence_before_the_first_round_and_in_it() -> None:
    beat = Heartbeat(
        attempt=1, at_ms=5, round_number=0, rounds=0, step="starting", tasks_done=0, tasks=0, rows_done=0, rows=0
    )
    reading = beat.model_copy(update={"step": READ_FOOTERS, "tasks_done": 500, "tasks": 2_000})
    running = beat.model_copy(update={"round_number": 2, "rounds": 3, "step": "dedupe", "tasks_done": 0, "tasks": 1})
    assert [describe_progress(each) for each in (beat, reading, running)] == [
        "starting",
        "read footers, 500 of 2,000",
        "round 2 of 3, dedupe, 0 of 1 task",
    ]


# ------------------------------------------------------------------------- entries that are written beside the reads

FAR = StoreLocation("s3://lake/far")


class HeldStore(MemoryStore):
    """On an object store; creates nothing before `may_create` is set."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, FAR)
        self.may_create = threading.Event()

    def put_if_absent(self, key: str, body: bytes) -> bool:
        assert self.may_create.wait(30)
        return super().put_if_absent(key, body)


def test_on_an_object_store_a_session_goes_on_while_its_start_is_written_and_waits_for_it_before_it_commits() -> None:
    clock = ManualClock()
    store = HeldStore(clock)
    settled = threading.Event()
    with SessionJournal(store, FOLDER, 1, clock) as journal:
        journal.started(0, 1, 10, 5.0)
        log = DurableLog(store, FOLDER.log, SESSION_LOG, clock)
        assert log.load().entry_number == 0

        def settle() -> None:
            journal.settled()
            settled.set()

        settling = threading.Thread(target=settle)
        settling.start()
        assert not settled.is_set()
        store.may_create.set()
        settling.join()
        assert settled.is_set()
        assert log.load().entry_number == 1


def test_a_superseded_attempt_on_an_object_store_learns_of_it_before_it_commits_and_writes_no_end() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, FAR)
    with SessionJournal(store, FOLDER, 2, clock) as second:
        second.started(0, 1, 10, 5.0)
    with SessionJournal(store, FOLDER, 1, clock) as first:
        first.started(0, 1, 10, 5.0)
        with pytest.raises(Fenced, match="superseded by attempt 2"):
            first.settled()
        with pytest.raises(Fenced, match="superseded by attempt 2"):
            first.failed(ErrorKind.INVALID, ("a bad delta",))
    assert DurableLog(store, FOLDER.log, SESSION_LOG, clock).load().entry_number == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_start_that_cannot_be_written_fails_the_session_before_it_commits_and_its_end_is_written(
    when: Literal["before", "after"],
) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock, FAR))
    store.fail("put_if_absent", "/log/", when, times=None)
    store.fail("read", "/log/00000000000000000001", times=None)
    with SessionJournal(store, FOLDER, 1, clock) as journal:
        journal.started(0, 1, 10, 5.0)
        with pytest.raises(Unavailable):
            journal.settled()
        store.heal()
        journal.failed(ErrorKind.UNAVAILABLE, ("the store was away",))
    end = DurableLog(store, FOLDER.log, SESSION_LOG, clock).load().state.end
    assert isinstance(end, SessionFailed)
    assert end.reasons == ("the store was away",)


def test_a_start_whose_answer_was_lost_is_written_once() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock, FAR))
    store.fail("put_if_absent", "/log/", "after")
    with SessionJournal(store, FOLDER, 1, clock) as journal:
        journal.started(0, 1, 10, 5.0)
        journal.settled()
    assert DurableLog(store, FOLDER.log, SESSION_LOG, clock).load().entry_number == 1


RESULT = a_result()


def test_on_an_object_store_the_last_heartbeat_is_written_while_the_end_is() -> None:
    clock = ManualClock()
    store = HeldStore(clock)
    with SessionJournal(store, FOLDER, 1, clock) as journal:
        ending = threading.Thread(target=journal.succeeded, args=(RESULT,))
        ending.start()
        wait_until(lambda: store.read(FOLDER.heartbeat.key) is not None, every_seconds=0.001)
        assert DurableLog(store, FOLDER.log, SESSION_LOG, clock).load().entry_number == 0
        store.may_create.set()
        ending.join()
    assert DurableLog(store, FOLDER.log, SESSION_LOG, clock).load().entry_number == 1


def test_a_journal_that_beats_nowhere_writes_the_end_and_no_heartbeat() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, FAR)
    SessionJournal(store, FOLDER, 1, clock).succeeded(RESULT)
    assert DurableLog(store, FOLDER.log, SESSION_LOG, clock).load().entry_number == 1
    assert store.read(FOLDER.heartbeat.key) is None
