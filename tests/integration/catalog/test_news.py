"""A job run over many streams looks at those that have something to compact, and misses none."""

from __future__ import annotations

import random
from contextlib import suppress

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.news import has_news
from compactor.lake import Table
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from compactor.model.names import LifecycleState
from compactor.planning.session_planner import pin_sessions
from dispatcher.intake.pinning import check_against_lake
from tests.builders import run_of
from tests.fakes.doomed_store import Doom, DoomedStore
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS, ELSEWHERE = "ACME.ORDERS.V1", "ACME.COMPACTED.V1"


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table(ORDERS, ["day"], properties={"news_hints": True})


def append(table: Table, day: str, key: int = 1) -> None:
    table.append({"day": day}, pa.table({"id": [key], "value": [f"value {key}"]}))


def run(lake: DeltaCatalog, share: float = 0.0) -> list[str]:
    """The days that were compacted."""
    result = compact(
        ORDERS,
        {"id"},
        delta_catalog_client=lake,
        max_dead_row_share=share,
        engine=UnrulyEngine(),
    )
    return [session.partition["day"] for session in result.sessions]


def days(table: Table) -> list[str]:
    assert table.properties.news_hints
    return sorted(partition["day"] for partition in table.each_partition(with_news=True))


def test_a_job_run_looks_only_at_streams_with_news(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    for day in range(9):
        append(orders, f"{day:02}")
    assert len(run(lake)) == 9
    assert days(orders) == []
    append(orders, "07")
    append(orders, "07")
    append(orders, "new / day")
    assert days(orders) == ["07", "new / day"]
    store = FaultyStore(lake.store)
    fresh = DeltaCatalog(store, clock)
    assert check_against_lake(run_of(lake, ORDERS), fresh.table(ORDERS)) == ()
    pinned = pin_sessions(run_of(lake, ORDERS), fresh)
    assert [each.spec.partition["day"] for each in pinned] == ["07", "new / day"]
    assert len(store.requests) < 30  # for 2 streams
    assert run(lake) == ["07", "new / day"]
    assert (days(orders), run(lake)) == ([], [])


def test_into_another_table_every_stream_is_looked_at(lake: DeltaCatalog, orders: Table) -> None:
    append(orders, "1")
    append(orders, "2")
    run(lake)
    assert len(pin_sessions(run_of(lake, ORDERS, destination_compacted_table_id=ELSEWHERE), lake)) == 2


def test_dead_rows_that_are_left_keep_the_hint(lake: DeltaCatalog, orders: Table) -> None:
    orders.append({"day": "1"}, pa.table({"id": range(10), "value": ["old"] * 10}))
    run(lake)
    append(orders, "1")
    run(lake, share=0.9)
    assert days(orders) == ["1"]
    assert run(lake) == ["1"]
    assert days(orders) == []


def test_a_writer_that_was_cut_off_before_its_entry_leaves_a_hint_and_one_after_it_too(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    append(orders, "1")
    run(lake)
    entry = orders.stream({"day": "1"}).load().entry_number + 1
    key = f"tables/{ORDERS}/streams/day=1/log/{entry:020d}.json"
    for when in ("before", "after"):
        doomed = DoomedStore(lake.store, Doom(key, when, "the process is killed"))
        with pytest.raises(Stopped):
            append(DeltaCatalog(doomed, clock).table(ORDERS), "1")
        assert days(orders) == ["1"]
    assert run(lake) == ["1"]


def test_a_hint_that_a_later_writer_has_put_is_not_cleared(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    """The compactor has read that nothing is left, and a writer comes before it deletes hints."""
    append(orders, "1")
    run(lake)
    stream = orders.stream({"day": "1"})
    read = stream.load()
    append(orders, "1")
    assert stream.news is not None
    stream.news.clear(read)
    assert days(orders) == ["1"]
    stream.news.clear(stream.load())
    assert days(orders) == ["1"]


@pytest.mark.parametrize("refused", [Unavailable, Denied])
def test_a_session_whose_hint_cannot_be_deleted_has_committed_and_the_next_one_deletes_it(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, refused: type[LithifyError]
) -> None:
    append(orders, "1")
    store = FaultyStore(lake.store)
    store.fail("delete", error=refused, times=None)
    assert run(DeltaCatalog(store, clock)) == ["1"]
    assert days(orders) == ["1"]
    append(orders, "1")
    assert run(lake) == ["1"]
    assert days(orders) == []


def test_no_entry_follows_a_hint_that_could_not_be_written(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    append(orders, "1")
    run(lake)
    store = FaultyStore(lake.store)
    table = DeltaCatalog(store, clock).table(ORDERS)
    store.fail("overwrite", times=None)
    before = orders.stream({"day": "1"}).load().entry_number
    with pytest.raises(Unavailable):
        append(table, "1")
    assert orders.stream({"day": "1"}).load().entry_number == before


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_a_stream_with_news_has_a_hint(
    seed: int, lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    chance = random.Random(seed)
    append(orders, "1")
    for _ in range(12):
        step = chance.choice(["append", "retract", "version", "release", "run", "run with dead rows"])
        partition = {"day": "1"}
        stream = orders.stream(partition)
        sources = stream.load().state.sources
        if step == "append":
            append(orders, "1", chance.randrange(5))
        elif step == "retract":
            deltas = [delta for source in sources.values() for delta in source.deltas]
            with suppress(Invalid):
                orders.retract(partition, chance.choice(deltas).delta_id if deltas else "none")
        elif step == "version":
            version = orders.create_stream_version(partition, LifecycleState.UNRELEASED)
            if chance.random() < 0.5:
                orders.append(partition, pa.table({"id": [1], "value": ["new"]}), stream_version=version)
        elif step == "release":
            waiting = [number for number, source in sources.items() if source.state is LifecycleState.UNRELEASED]
            if waiting:
                orders.release_stream_version(partition, waiting[-1])
        else:
            run(lake, share=0.9 if "dead" in step else 0.0)
        now = stream.load().state
        assert not has_news(now, ORDERS) or days(orders) == ["1"]
        (pinned,) = pin_sessions(run_of(lake, ORDERS).model_copy(update={"partitions": (partition,)}), lake)
        assert has_news(now, ORDERS) or not pinned.work


def test_no_user_can_set_hints_of_a_table_that_is_there(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.OTHER.V1", ["day"])
    with pytest.raises(Invalid, match="news_hints can only be set by create_table"):
        table.set_properties({"news_hints": True})


@pytest.mark.parametrize(
    ("partition_keys", "given", "expected"),
    [
        (["day"], {"compact_when": "nightly"}, True),
        (["day"], {"compact_when": "nightly", "news_hints": False}, False),
        (["day"], {}, None),
        ([], {"compact_when": "nightly"}, None),
    ],
)
def test_a_table_that_is_created_with_partitions_and_a_policy_has_news_hints_unless_its_creator_says_otherwise(
    lake: DeltaCatalog, partition_keys: list[str], given: dict[str, object], expected: bool | None
) -> None:
    created = [
        lake.create_table("ACME.KEPT.V1", partition_keys, primary_keys=["id"], properties=given) for _ in range(2)
    ]
    assert [table.properties.news_hints for table in created] == [expected, expected]


def test_of_a_published_table_every_stream_is_looked_at(lake: DeltaCatalog, orders: Table) -> None:
    append(orders, "1")
    append(orders, "2")
    run(lake)
    append(orders, "2")
    orders.set_properties({"publish": "delta"})
    assert run(lake) == ["1", "2"]


def test_a_stream_that_was_dropped_or_whose_deltas_were_retracted_has_no_hint(lake: DeltaCatalog) -> None:
    orders = lake.create_table(ORDERS, ["day"], properties={"news_hints": True})
    for day in "123":
        orders.append({"day": day}, pa.table({"id": [1]}), delta_id=day)
    orders.retract({"day": "1"}, "1")
    orders.drop_partitions({"day": "2"}, dry_run=False)
    assert days(orders) == ["3"]


def test_another_hash_bucket_count_reaches_streams_without_news(lake: DeltaCatalog, orders: Table) -> None:
    append(orders, "01")
    run(lake)
    result = compact(ORDERS, {"id"}, delta_catalog_client=lake, hash_bucket_count=7, engine=UnrulyEngine())
    assert [session.hash_bucket_count for session in result.sessions] == [7]
