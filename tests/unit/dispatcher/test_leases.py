"""Leases of sessions that are attached to again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.model.clock import Clock
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import MarkedJobRun
from dispatcher.scheduling.leases import LeaseRequest, Leases
from dispatcher.scheduling.limits import Limits
from tests.fakes.faulty_store import FaultyStore, When
from tests.fakes.memory_store import MemoryStore

RUNS = LeaseRequest(MarkedJobRun("run", 0, 7, "one", 1, "table", ("stream",)), {"run.1": "stream"})


@pytest.fixture
def store(clock: Clock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def leases(store: FaultyStore, clock: Clock) -> Leases:
    return Leases(JobRunStore(store, clock), "one", Limits(), 1.0, clock)


def test_a_session_that_runs_already_keeps_its_lease(leases: Leases) -> None:
    taken = leases.take(RUNS, [], {}).lease
    assert leases.adopt(RUNS) == taken


def test_a_session_that_was_tried_again_apart_keeps_its_own_lease(leases: Leases) -> None:
    """Whoever attaches to it ends that one, and not the lease under which its former companions still run."""
    both = replace(RUNS, streams={"run.1": "stream", "run.2": "other stream"})
    apart = replace(RUNS, streams={"run.2": "other stream"})
    shared, own = leases.take(both, [], {}).lease, leases.take(apart, [], {}).lease
    assert leases.adopt(apart) == own
    assert leases.adopt(RUNS) == shared


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lease_whose_end_got_no_answer_is_not_that_of_a_session_that_is_attached_to(
    leases: Leases, store: FaultyStore, when: When
) -> None:
    taken = leases.take(RUNS, [], {}).lease
    assert taken is not None
    store.fail("put_if_absent", "turns/log", when, times=None)
    store.fail("read", "turns/log", times=None)
    leases.end(taken, 0.0)
    store.heal()
    adopted = leases.adopt(RUNS)
    leases.catch_up()
    assert leases.now().turns == {adopted.turn_id: adopted}
