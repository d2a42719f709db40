"""A writer that collects: few entries, every answer as from `append`, nothing lost when it closes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from compactor import DeltaCatalog
from compactor.catalog.delta_writer import DeltaWriter
from compactor.lake import Table
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid, Unavailable
from tests.fakes.faulty_store import FaultyStore

ORDERS = "ACME.ORDERS.V1"
LONG_SECONDS = 3_600.0
WAIT_SECONDS = 60.0


@pytest.fixture
def store(lake: DeltaCatalog) -> FaultyStore:
    return FaultyStore(lake.store)


@pytest.fixture
def orders(store: FaultyStore) -> Table:
    return DeltaCatalog(store, SystemClock()).create_table(ORDERS)


@pytest.fixture
def patient(orders: Table) -> Iterator[DeltaWriter]:
    """It appends when it is told to, or full."""
    with orders.writer(seconds=LONG_SECONDS, deltas=5) as writer:
        yield writer


def rows(key: int) -> pa.Table:
    return pa.table({"id": [key]})


def ids(table: Table) -> list[str]:
    active = table.stream({}).load().state.active
    return [] if active is None else [delta.delta_id for delta in active.deltas]


def entries(table: Table) -> int:
    return table.stream({}).load().entry_number


def test_deltas_are_collected_until_there_are_enough(orders: Table, patient: DeltaWriter) -> None:
    pending = [patient.append({}, rows(number), delta_id=f"delta {number}") for number in range(5)]
    assert (
        [each.result(WAIT_SECONDS).delta_id for each in pending] == [each.delta_id for each in pending] == ids(orders)
    )
    assert entries(orders) == 1
    last = patient.append({}, rows(9))
    assert not last.is_done
    patient.flush()
    assert last.result(0).delta_id == ids(orders)[-1]


def test_what_is_collected_is_appended_in_time_though_nothing_follows(orders: Table) -> None:
    with orders.writer(seconds=0.01) as writer:
        assert writer.append({}, rows(1), "delete").result(WAIT_SECONDS).operation == "delete"


def test_bytes_make_it_append_too(orders: Table) -> None:
    with orders.writer(seconds=LONG_SECONDS, size_bytes=1_000) as writer:
        writer.append({}, rows(1))
        assert writer.append({}, pa.table({"id": range(1_000)})).result(WAIT_SECONDS).rows == 1_000
    assert entries(orders) == 1


def test_a_writer_that_closes_appends_what_it_has_and_takes_no_more(orders: Table) -> None:
    with orders.writer(seconds=LONG_SECONDS) as writer:
        pending = writer.append({}, pa.table({"id": [1]}).to_reader())
    assert pending.result(0).rows == 1
    with pytest.raises(Invalid, match="the writer is closed"):
        writer.append({}, rows(2))


def test_a_writer_that_closes_and_cannot_append_says_so(orders: Table, store: FaultyStore) -> None:
    writer = orders.writer(seconds=LONG_SECONDS)
    writer.append({}, rows(3))
    store.fail("put_if_absent", times=None)
    with pytest.raises(Unavailable):
        writer.close()


def test_a_bad_delta_keeps_no_other_from_being_appended(orders: Table, patient: DeltaWriter) -> None:
    sources = [rows(0), rows(1), pa.table({"id": ["text"]}), rows(3), rows(4)]
    pending = [patient.append({}, source, delta_id=f"delta {number}") for number, source in enumerate(sources)]
    with pytest.raises(Invalid, match="id"):
        pending[2].result(WAIT_SECONDS)
    assert [each.result(WAIT_SECONDS).delta_id for each in pending[:2] + pending[3:]] == ids(orders)
    assert ids(orders) == ["delta 0", "delta 1", "delta 3", "delta 4"]


def test_after_an_unknown_outcome_the_same_ids_are_given_again(
    orders: Table, patient: DeltaWriter, store: FaultyStore
) -> None:
    store.fail("put_if_absent", times=None)
    first = patient.append({}, rows(1), delta_id="delta 1")
    patient.flush()
    with pytest.raises(Unavailable):
        first.result(0)
    store.heal()
    again = patient.append({}, rows(1), delta_id="delta 1")
    patient.flush()
    assert again.result(0).delta_id == "delta 1"
    assert ids(orders) == ["delta 1"]


def test_threads_share_a_writer_and_the_order_of_each_stands(orders: Table) -> None:
    begin = threading.Barrier(4)
    with orders.writer(seconds=0.01, deltas=7) as writer:

        def give(thread: int) -> None:
            begin.wait(WAIT_SECONDS)
            for number in range(20):
                writer.append({}, rows(number), delta_id=f"{thread}.{number:02}")

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(give, range(4)))
    found = ids(orders)
    assert len(found) == 80
    for thread in range(4):
        own = [name for name in found if name.startswith(f"{thread}.")]
        assert own == sorted(own)


def test_limits_that_collect_nothing_are_refused_all_at_once(orders: Table) -> None:
    with pytest.raises(Invalid, match=r"seconds is 0: .*; deltas is -1: .*; size_bytes is 0: "):
        orders.writer(seconds=0, deltas=-1, size_bytes=0)
