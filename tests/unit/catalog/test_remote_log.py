"""What reading a log on an object store costs, where each request takes a round trip."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from compactor.log.checkpoints import CHECKPOINT_ENTRIES, WholeCheckpoint
from compactor.log.durable_log import DurableLog, LogFormat
from compactor.log.keys import EntryObject, HintObject, WholeCheckpointObject
from compactor.model.document import Document
from compactor.storage.location import StoreLocation
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore


class Counted(Document):
    action: Literal["counted"] = "counted"
    number: int


Log = DurableLog[tuple[int, ...], Counted]

NUMBERS: LogFormat[tuple[int, ...], Counted] = LogFormat(
    name="numbers",
    action_type=TypeAdapter(Counted),
    initial=(),
    apply=lambda numbers, action: (*numbers, action.number),
    checkpoint=WholeCheckpoint(
        lambda numbers: pa.table({"number": pa.array(numbers, pa.int64())}),
        lambda table: tuple(table.column("number").to_pylist()),
    ),
    keeps_entries=False,
)
ENTRY = ".json"


@pytest.fixture
def store() -> FaultyStore:
    return remote_store()


def remote_store() -> FaultyStore:
    return FaultyStore(MemoryStore(ManualClock(), StoreLocation("s3://lake/x")))


def log_over(store: FaultyStore) -> Log:
    return DurableLog(store, "numbers", NUMBERS, ManualClock())


def append(log: Log, *numbers: int) -> None:
    for number in numbers:
        _append_one(log, number)


def _append_one(log: Log, number: int) -> None:
    log.append(lambda _: [Counted(number=number)])


def test_a_log_of_which_nothing_is_known_costs_a_listing_and_its_entries(store: FaultyStore) -> None:
    append(log_over(store), *range(9))
    store.requests.clear()

    assert log_over(store).load().state == tuple(range(9))

    assert store.count("list") == 1
    assert store.count("read") == store.count("read", ENTRY) == 9


def test_a_log_that_never_began_costs_a_listing(store: FaultyStore) -> None:
    assert log_over(store).load().entry_number == 0
    assert store.requests == [("list", "numbers/")]


def test_a_known_end_is_continued_from(store: FaultyStore) -> None:
    writer, reader = log_over(store), log_over(store)
    append(writer, *range(5))
    reader.load()
    store.requests.clear()
    reader.load()
    assert store.requests == [("read", EntryObject("numbers", 6).key)]

    append(writer, 5)
    store.requests.clear()
    assert reader.load().state == tuple(range(6))
    assert store.requests == [("read", EntryObject("numbers", number).key) for number in (6, 7)]

    append(writer, 6, 7, 8, 9)
    store.requests.clear()
    assert reader.load().state == tuple(range(10))
    assert store.count("list") == 1
    assert store.count("read") == store.count("read", ENTRY) == 4


def test_a_writer_asks_for_nothing_but_its_own_entry_where_it_knows_the_end(store: FaultyStore) -> None:
    log = log_over(store)
    append(log, 0)
    store.requests.clear()
    log.append(lambda _: [Counted(number=1)], log.newest)
    assert [verb for verb, _ in store.requests] == ["put_if_absent"]


def test_of_a_log_with_a_checkpoint_only_later_entries_are_read(store: FaultyStore) -> None:
    append(log_over(store), *range(CHECKPOINT_ENTRIES + 3))
    store.requests.clear()
    assert log_over(store).load().state == tuple(range(CHECKPOINT_ENTRIES + 3))
    assert store.count("list") == 1
    assert store.count("read", ENTRY) == 3


def test_of_a_log_of_thousands_of_entries_one_page_is_listed_beside_those_after_the_checkpoint(
    store: FaultyStore,
) -> None:
    append(log_over(store), *range(1_100))
    store.requests.clear()
    assert log_over(store).load().state == tuple(range(1_100))
    assert store.count("list") == 2
    assert store.count("read", ENTRY) == 1_100 % CHECKPOINT_ENTRIES


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=5),
    st.sets(st.sampled_from(["hint", "checkpoint"])),
)
def test_whatever_is_known_lost_or_appended_meanwhile_the_fold_is_that_of_all_entries(
    appended: list[tuple[int, bool]], lost: set[str]
) -> None:
    store = remote_store()
    writer, reader = log_over(store), log_over(store)
    written: list[int] = []
    for count, reads in appended:
        numbers = [len(written) + place for place in range(count)]
        append(writer, *numbers)
        written += numbers
        if "hint" in lost:
            store.delete(HintObject("numbers").key)
        if "checkpoint" in lost:
            store.delete(WholeCheckpointObject("numbers", CHECKPOINT_ENTRIES).key)
        if reads:
            assert reader.load().state == tuple(written)
        assert log_over(store).load().state == tuple(written)
        assert log_over(store).load(as_of=len(written)).state == tuple(written)
