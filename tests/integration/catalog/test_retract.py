"""A delta is taken back, or it is compacted: never both, whoever is at work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import DeltasTaken
from compactor.lake import Table
from compactor.log.durable_log import CHECKPOINT_ENTRIES
from compactor.model.errors import Corrupt, Fenced, Invalid
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan
from compactor.storage.object_store import ObjectStore
from tests.builders import pinned_session
from tests.conftest import Command
from tests.fakes.attempts import plan_session, run_attempt
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS, ELSEWHERE = "ACME.ORDERS.V1", "ACME.COMPACTED.V1"


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    orders = lake.create_table(ORDERS)
    orders.append({}, rows(1, "good"), delta_id="good")
    orders.append({}, rows(1, "bad"), delta_id="bad", position=None)
    return orders


def rows(key: int, value: str) -> pa.Table:
    return pa.table({"id": [key], "value": [value]})


def run(lake: DeltaCatalog, destination: str = ORDERS) -> None:
    compact(
        ORDERS,
        {"id"},
        delta_catalog_client=lake,
        destination_compacted_table_id=destination,
        hash_bucket_count=1,
        engine=UnrulyEngine(),
    )


def values_in(lake: DeltaCatalog, table_id: str = ORDERS) -> list[object]:
    return [row["value"] for row in lake.table(table_id).scan().to_table().to_pylist()]


def delta_ids(table: Table) -> list[str]:
    return [delta.delta_id for delta in table.stream({}).load().state.sources[1].deltas]


def pinned_plan(lake: DeltaCatalog, destination: str = ORDERS) -> SessionPlan:
    spec = pinned_session(lake, ORDERS, destination_compacted_table_id=destination, hash_bucket_count=1)
    return plan_session(spec, lake, Resources(task_memory_bytes=1 << 30, tasks=2))


class ActingStore:
    """A store that does something once, before the first object is written whose key has `part`."""

    def __init__(self, store: ObjectStore, part: str, act: Callable[[], object]) -> None:
        self._store, self._part, self._act = store, part, act
        self.acted = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if self._part in key and not self.acted:
            self.acted = True
            self._act()
        return self._store.put_if_absent(key, body)


def test_a_retracted_delta_is_never_compacted_and_retracting_it_again_is_a_no_op(
    lake: DeltaCatalog, orders: Table
) -> None:
    orders.retract({}, "bad")
    entries = orders.stream({}).load().entry_number
    orders.retract({}, "bad")
    assert orders.stream({}).load().entry_number == entries
    assert delta_ids(orders) == ["good"]
    run(lake)
    assert values_in(lake) == ["good"]


def test_neither_its_id_nor_its_position_is_given_again(lake: DeltaCatalog, orders: Table) -> None:
    position = orders.stream({}).load().state.sources[1].deltas[-1].position
    orders.retract({}, "bad")
    with pytest.raises(Invalid, match="delta id 'bad' was taken back: give a new delta a new id"):
        orders.append({}, rows(1, "bad"), delta_id="bad")
    with pytest.raises(Invalid, match=f"position {position} is not above {position}"):
        orders.append({}, rows(1, "late"), position=position)
    assert orders.append({}, rows(1, "next")).position > position


def test_a_stream_that_could_not_be_compacted_is_put_right(lake: DeltaCatalog, orders: Table) -> None:
    broken = orders.append({}, rows(2, "x"), delta_id="broken")
    path = Path(f"{lake.location.root_uri.removeprefix('file://')}/{broken.files[0].path}")
    pq.write_table(pa.table({"id": ["text"], "value": ["x"]}), path)
    with pytest.raises(Corrupt, match=r"1\.parquet was changed or replaced .* retract delta 'broken'"):
        run(lake)
    orders.retract({}, "broken")
    run(lake)
    assert values_in(lake) == ["bad"]


def test_a_compacted_delta_cannot_be_retracted(lake: DeltaCatalog, orders: Table) -> None:
    run(lake)
    with pytest.raises(Invalid, match=r"'bad' cannot be taken back: a compaction into ACME.ORDERS.V1 has it"):
        orders.retract({}, "bad")
    with pytest.raises(Invalid, match="there is no delta 'none' in this partition stream"):
        orders.retract({}, "none")
    assert values_in(lake) == ["bad"]


def test_a_delta_compacted_into_another_table_cannot_be_retracted(lake: DeltaCatalog, orders: Table) -> None:
    run(lake, ELSEWHERE)
    taken = orders.stream({}).load().state.sources[1].taken
    assert [(each.compacted_table_id, each.position) for each in taken] == [
        (ELSEWHERE, orders.stream({}).load().state.sources[1].last_position)
    ]
    with pytest.raises(Invalid, match=r"'bad' cannot be taken back: a compaction into ACME.COMPACTED.V1 has it"):
        orders.retract({}, "bad")
    later = orders.append({}, rows(2, "later"), delta_id="later")
    orders.retract({}, later.delta_id)
    run(lake, ELSEWHERE)
    assert values_in(lake, ELSEWHERE) == ["bad"]


@pytest.mark.parametrize("destination", [ORDERS, ELSEWHERE])
def test_a_session_that_was_pinned_before_leaves_out_what_was_taken_back_since(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, destination: str
) -> None:
    plan = pinned_plan(lake, destination)
    orders.retract({}, "bad")
    fresh = DeltaCatalog(lake.store, clock)
    result = run_attempt(plan, fresh, lake.store, UnrulyEngine(), 1, clock)
    assert (result.rows_in, result.rows_out) == (1, 1)
    assert values_in(lake, destination) == ["good"]


@pytest.mark.parametrize("destination", [ORDERS, ELSEWHERE])
def test_a_session_that_has_read_what_is_taken_back_commits_nothing_and_goes_on_without(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, destination: str
) -> None:
    plan = pinned_plan(lake, destination)
    acting = ActingStore(
        lake.store, "/streams/", lambda: DeltaCatalog(lake.store, clock).table(ORDERS).retract({}, "bad")
    )
    with pytest.raises(Fenced, match="'bad' was taken back"):
        run_attempt(plan, DeltaCatalog(acting, clock), lake.store, UnrulyEngine(), 1, clock)  # type: ignore[arg-type]
    assert acting.acted
    fresh = DeltaCatalog(lake.store, clock)
    run_attempt(plan, fresh, lake.store, UnrulyEngine(), 2, clock)
    assert values_in(lake, destination) == ["good"]


def test_a_delta_of_a_commit_in_another_table_cannot_be_retracted(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    plan = pinned_plan(lake, ELSEWHERE)
    refusals: list[str] = []

    def retract() -> None:
        with pytest.raises(Invalid) as refusal:
            DeltaCatalog(lake.store, clock).table(ORDERS).retract({}, "bad")
        refusals.append(str(refusal.value))

    acting = ActingStore(lake.store, f"{ELSEWHERE}/streams/", retract)
    run_attempt(plan, DeltaCatalog(acting, clock), lake.store, UnrulyEngine(), 1, clock)  # type: ignore[arg-type]
    assert "a compaction into ACME.COMPACTED.V1 has it, or is about to" in refusals[0]
    assert values_in(lake, ELSEWHERE) == ["bad"]
    taken = [a for entry in orders.stream({}).log.entries() for a in entry.actions if isinstance(a, DeltasTaken)]
    assert len(taken) == 1


def test_it_is_remembered_by_checkpoints(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    orders.retract({}, "bad")
    for number in range(CHECKPOINT_ENTRIES):
        orders.append({}, rows(number, "x"))
    fresh = DeltaCatalog(lake.store, clock).table(ORDERS).stream({}).load().state
    assert fresh == orders.stream({}).load().state
    assert [each.delta_id for each in fresh.sources[1].retracted] == ["bad"]


def test_the_command_takes_a_delta_back(lake: DeltaCatalog, orders: Table, command: Command) -> None:
    place = ("--lake", lake.location.root_uri)
    result = command("table", "retract", ORDERS, "--delta", "bad", *place, "--output", "json")
    assert (result.exit_code, json.loads(result.out)["retracted"]) == (0, True)
    assert delta_ids(lake.table(ORDERS)) == ["good"]
    run(lake)
    result = command("table", "retract", ORDERS, "--delta", "good", *place)
    assert (result.exit_code, result.out) == (2, "")
    assert "cannot be taken back" in result.err
