"""One round, one entry: the guarantees of a committed round, on every kind of store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from compactor.catalog.snapshot import ReadPoint
from compactor.catalog.stream import PartitionStream
from compactor.catalog.transaction import Committed, Conflicted, commit
from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.errors import Unavailable
from compactor.storage.object_store import ObjectStore
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.rounds import a_rehash, a_round, commit_now

ORDERS = "ACME.ORDERS.V1"


@pytest.fixture
def stream(store: ObjectStore) -> PartitionStream:
    return DeltaCatalog(store, SystemClock()).create_table(ORDERS).stream({})


def again(store: ObjectStore) -> PartitionStream:
    return DeltaCatalog(store, SystemClock()).table(ORDERS).stream({})


def commit_ids(stream: PartitionStream) -> list[str]:
    return [getattr(action, "commit_id", "-") for entry in stream.log.entries() for action in entry.actions]


def test_a_round_and_the_next_are_committed(stream: PartitionStream, store: ObjectStore) -> None:
    first = commit_now(stream, a_round(stream, "one"))
    second = commit_now(stream, a_round(stream, "two"))
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert (first.entry_number, second.entry_number) == (1, 2)
    assert second.snapshot == again(store).load().state


def test_appends_between_plan_and_commit_never_conflict(store: ObjectStore) -> None:
    table = DeltaCatalog(store, SystemClock()).create_table(ORDERS)
    stream = table.stream({})
    read = ReadPoint.of(stream.load().state)
    round_one = a_round(stream, "one")
    table.append({}, pa.table({"id": [1]}))
    table.append({}, pa.table({"id": [2]}))
    assert commit(again(store), round_one, read) == Committed(3, again(store).load().state)


@pytest.mark.parametrize("rival", ["round", "rehash"])
def test_a_rival_in_between_conflicts_and_nothing_is_written(
    stream: PartitionStream, store: ObjectStore, rival: str
) -> None:
    commit_now(stream, a_round(stream, "base"))
    read = ReadPoint.of(stream.load().state)
    mine = a_round(stream, "mine")
    commit_now(stream, a_round(stream, "rival") if rival == "round" else a_rehash(stream, "rival"))
    outcome = commit(again(store), mine, read)
    assert isinstance(outcome, Conflicted)
    assert outcome.entry_number == 2
    assert "index version 1 of round base; the stream is at index version 2" in outcome.reason
    assert commit_ids(stream) == ["base", "rival"]


def test_a_first_commit_that_lost_names_no_round_before_it(stream: PartitionStream, store: ObjectStore) -> None:
    read = ReadPoint.of(stream.load().state)
    commit_now(stream, a_round(stream, "rival"))
    outcome = commit(again(store), a_round(stream, "mine"), read)
    assert isinstance(outcome, Conflicted)
    assert "read no compacted round; the stream is at index version 1 of round rival" in outcome.reason


def test_a_commit_that_is_repeated_finds_itself(stream: PartitionStream, store: ObjectStore) -> None:
    commit_now(stream, a_round(stream, "base"))
    read = ReadPoint.of(stream.load().state)
    mine = a_round(stream, "mine")
    first = commit(stream, mine, read)
    assert commit(again(store), mine, read) == first
    commit_now(stream, a_rehash(stream, "later"))
    commit_now(stream, a_round(stream, "still later"))
    assert commit(again(store), mine, read) == first
    assert commit_ids(stream) == ["base", "mine", "later", "still later"]


def test_of_compactors_that_race_one_commits_and_the_others_conflict(
    stream: PartitionStream, store: ObjectStore, request: pytest.FixtureRequest
) -> None:
    if "moto" in request.node.name:
        pytest.skip("moto does not hold a key between its check and its put")
    rounds = [a_round(stream, f"by {number}") for number in range(5)]
    with ThreadPoolExecutor(5) as threads:
        outcomes = list(threads.map(lambda each: commit(again(store), each, ReadPoint(None, None)), rounds))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Committed"] + ["Conflicted"] * 4
    assert len(commit_ids(stream)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unknown_outcome_is_settled_by_committing_again(store: ObjectStore, when: str) -> None:
    faulty = FaultyStore(store)
    stream = DeltaCatalog(faulty, ManualClock()).create_table(ORDERS).stream({})
    mine = a_round(stream, "mine")
    faulty.fail("put_if_absent", when="before" if when == "before" else "after", times=None)
    faulty.fail("read", "00000000000000000001.json", times=None)
    with pytest.raises(Unavailable):
        commit(stream, mine, ReadPoint(None, None))
    faulty.heal()
    assert not [verb for verb, _ in faulty.requests if verb == "delete"]
    assert commit(stream, mine, ReadPoint(None, None)) == Committed(1, again(store).load().state)
    assert commit_ids(again(store)) == ["mine"]


def test_a_committer_that_stops_anywhere_and_starts_again_commits_once(store: ObjectStore) -> None:
    DeltaCatalog(store, SystemClock()).create_table(ORDERS)
    for number in (0, 1):
        mine = a_round(again(store), f"mine {number}")
        read = ReadPoint.of(again(store).load().state)
        faulty = FaultyStore(store)
        faulty.stop_at(number)
        with pytest.raises(Stopped):
            commit(again(faulty), mine, read)
        assert isinstance(commit(again(store), mine, read), Committed)
    assert commit_ids(again(store)) == ["mine 0", "mine 1"]
