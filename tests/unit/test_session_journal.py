"""What an attempt tells of itself, and when it falls silent."""

from __future__ import annotations

import pytest

from compactor.catalog.log import DurableLog
from compactor.catalog.paths import JobRunFolder
from compactor.errors import Fenced
from compactor.session_journal import SessionJournal
from compactor.session_log import SESSION_LOG, Heartbeat
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

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
