"""A table that was created without news hints gets them, and no stream with something to compact is missed."""

from __future__ import annotations

import random
from contextlib import suppress

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.news import has_news
from compactor.catalog.properties import GRACE_SECONDS
from compactor.catalog.tables import PROPERTIES_KNOWN_SECONDS
from compactor.lake import Table
from compactor.maintenance.late_hints import give_hints
from compactor.model.errors import Unavailable
from compactor.model.names import LifecycleState
from compactor.storage.object_store import ObjectStore
from tests.fakes.doomed_store import Doom, DoomedStore, When
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"
WAIT_SECONDS = 2 * GRACE_SECONDS + PROPERTIES_KNOWN_SECONDS
LOG, NEWS = f"tables/{ORDERS}/log", f"tables/{ORDERS}/news"


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table(ORDERS, ["day"])


def append(table: Table, day: str, key: int = 1) -> None:
    table.append({"day": day}, pa.table({"id": [key], "value": [f"value {key}"]}))


def give(lake: DeltaCatalog, clock: ManualClock, store: ObjectStore | None = None) -> None:
    on = DeltaCatalog(store or lake.store, clock)
    give_hints(on.store, on.table(ORDERS), clock, GRACE_SECONDS)


def run(lake: DeltaCatalog) -> list[str]:
    """The days that were compacted."""
    result = compact(ORDERS, {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())
    return [session.partition["day"] for session in result.sessions]


def hinted(lake: DeltaCatalog) -> list[str]:
    """The days with a hint, whether or not readers rely on them."""
    return sorted({entry.key.split("/")[3].removeprefix("day=") for entry in lake.store.list(f"{NEWS}/")})


def has_hints(lake: DeltaCatalog) -> bool | None:
    return lake.table(ORDERS).properties.news_hints


def test_readers_rely_on_hints_once_every_writer_puts_them(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    for day in "123":
        append(orders, day)
    run(lake)
    append(orders, "1")
    give(lake, clock)
    append(lake.table(ORDERS), "2")
    assert (hinted(lake), has_hints(lake)) == (["2"], None)
    assert run(lake) == ["1", "2", "3"], "every stream is looked at"
    append(lake.table(ORDERS), "3")
    clock.sleep(WAIT_SECONDS - 0.001)
    give(lake, clock)
    assert has_hints(lake) is None
    clock.sleep(0.001)
    give(lake, clock)
    assert (hinted(lake), has_hints(lake)) == (["3"], True)
    assert (run(lake), run(lake)) == (["3"], [])
    entries = len(list(lake.store.list(LOG)))
    give(lake, clock)
    assert len(list(lake.store.list(LOG))) == entries


def test_deltas_of_before_the_hints_are_found_with_them(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    append(orders, "1")
    append(orders, "2")
    give(lake, clock)
    append(lake.table(ORDERS), "2")
    assert hinted(lake) == []
    clock.sleep(WAIT_SECONDS)
    give(lake, clock)
    assert run(lake) == ["1", "2"]


def test_a_writer_that_opened_the_table_before_puts_hints_after_a_minute(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    for day in "12":
        append(orders, day)
    run(lake)
    partition = {"day": "2"}
    version = orders.create_stream_version(partition, LifecycleState.UNRELEASED)
    orders.append(partition, pa.table({"id": [2], "value": ["new"]}), stream_version=version)
    give(lake, clock)
    clock.sleep(PROPERTIES_KNOWN_SECONDS)
    orders.release_stream_version(partition, version)
    append(orders, "1")
    assert hinted(lake) == ["1", "2"]


def test_a_restore_puts_a_hint_though_its_table_was_opened_before(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    append(orders, "1")
    before = orders.stream({"day": "1"}).load().entry_number
    run(lake)
    orders.stream({"day": "1"})
    give(lake, clock)
    orders.restore(before, {"day": "1"}, dry_run=False)
    assert hinted(lake) == ["1"]


@pytest.mark.parametrize("news_hints", [True, False])
def test_what_the_creator_said_stays(lake: DeltaCatalog, clock: ManualClock, news_hints: bool) -> None:
    lake.create_table(ORDERS, ["day"], properties={"news_hints": news_hints})
    for _ in range(2):
        give(lake, clock)
        clock.sleep(WAIT_SECONDS)
    assert has_hints(lake) is news_hints
    assert len(list(lake.store.list(LOG))) == 1


def test_hints_that_are_refused_meanwhile_begin_anew_when_they_are_allowed_again(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    give(lake, clock)
    lake.table(ORDERS).set_properties({"news_hints": False})
    assert not lake.table(ORDERS).definition.puts_hints
    clock.sleep(WAIT_SECONDS)
    give(lake, clock)
    assert has_hints(lake) is False
    lake.table(ORDERS).set_properties({"news_hints": None})
    append(lake.table(ORDERS), "1")
    give(lake, clock)
    assert (hinted(lake), has_hints(lake)) == ([], None)
    clock.sleep(WAIT_SECONDS)
    give(lake, clock)
    assert (hinted(lake), has_hints(lake)) == (["1"], True)


def test_a_table_without_partition_keys_or_that_is_dropped_gets_none(lake: DeltaCatalog, clock: ManualClock) -> None:
    orders = lake.create_table(ORDERS)
    give(lake, clock)
    assert not lake.table(ORDERS).definition.puts_hints
    other = lake.create_table("ACME.OTHER.V1", ["day"])
    lake.drop_table("ACME.OTHER.V1", dry_run=False)
    give_hints(lake.store, other, clock, GRACE_SECONDS)
    assert len(list(lake.store.list("tables/ACME.OTHER.V1/log"))) == 2
    assert orders.properties.news_hints is None


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "key",
    [f"{LOG}/{2:020d}.json", f"{LOG}/{3:020d}.json", f"{NEWS}/day=1/{1:020d}", f"{NEWS}/day=3/{1:020d}"],
)
def test_it_may_be_cut_off_at_each_write(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, key: str, when: When
) -> None:
    for day in "123":
        append(orders, day)
    doomed = DoomedStore(lake.store, Doom(key, when, "the process is killed"))
    for _ in range(2):
        with suppress(Stopped):
            give(lake, clock, doomed)
        assert has_hints(lake) is None or hinted(lake) == ["1", "2", "3"]
        clock.sleep(WAIT_SECONDS)
    assert doomed.met
    for _ in range(2):
        give(lake, clock)
        clock.sleep(WAIT_SECONDS)
    assert has_hints(lake)
    assert run(lake) == ["1", "2", "3"]


def test_a_stream_that_cannot_be_read_keeps_readers_from_relying_on_hints(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    append(orders, "1")
    append(orders, "2")
    give(lake, clock)
    clock.sleep(WAIT_SECONDS)
    store = FaultyStore(lake.store)
    store.fail("read", "streams/day=2", times=None)
    with pytest.raises(Unavailable):
        give(lake, clock, store)
    assert has_hints(lake) is None


class History:
    """What may happen to a table, at random. A write takes a grace period at most, also that of `news_hints_begun`."""

    def __init__(self, seed: int, lake: DeltaCatalog, clock: ManualClock) -> None:
        self.chance, self.lake, self.clock = random.Random(seed), lake, clock
        lake.create_table(ORDERS, ["day"])
        self._writers = [DeltaCatalog(self.lake.store, self.clock).table(ORDERS) for _ in range(3)]

    def step(self) -> None:
        self.clock.sleep(self.chance.choice([0.0, 1.0, 30.0, GRACE_SECONDS / 3]))
        happens = self.chance.choice(
            [self._append, self._append_for_days, self._append_for_days, self._run, self._give, self._give, self._drop]
        )
        with suppress(Stopped):
            happens(str(self.chance.randrange(8)))

    def missed(self) -> set[str]:
        """The days that have something to compact, of which readers do not know."""
        table = self.lake.table(ORDERS)
        if not table.properties.news_hints:
            return set()
        with_news = {each["day"] for each in table.partitions() if has_news(table.stream(each).load().state, ORDERS)}
        return with_news - set(hinted(self.lake))

    def _store(self) -> FaultyStore:
        """Whose user may be cut off."""
        store = FaultyStore(self.lake.store)
        if self.chance.random() < 0.3:
            store.stop_at(self.chance.randrange(1, 6))
        return store

    def _is_there(self, day: str) -> bool:
        return {"day": day} in self.lake.table(ORDERS).partitions()

    def _append(self, day: str) -> None:
        append(self.chance.choice(self._writers), day, self.chance.randrange(9))

    def _append_for_days(self, day: str) -> None:
        """Its entry is written days after it began; calls meet it."""
        store = DoomedStore(self.lake.store)
        table = DeltaCatalog(store, self.clock).table(ORDERS)
        next_entry = table.stream({"day": day}).load().entry_number + 1

        def days_pass() -> None:
            left = 0.99 * GRACE_SECONDS
            for _ in range(self.chance.randrange(3)):
                passed = self.chance.uniform(0, left)
                self.clock.sleep(passed)
                left -= passed
                self._give(day)

        store.just_before(f"tables/{ORDERS}/streams/day={day}/log/{next_entry:020d}.json", days_pass)
        append(table, day)

    def _run(self, day: str) -> None:
        if not self._is_there(day):
            return
        lake = DeltaCatalog(self._store(), self.clock)
        compact(ORDERS, {"id"}, partitions=[{"day": day}], delta_catalog_client=lake, engine=UnrulyEngine())

    def _give(self, _: str) -> None:
        """The entry may name a time of a grace period ago."""
        lake = DeltaCatalog(self._store(), self.clock)
        table = lake.table(ORDERS)
        is_begun = table.definition.hints_begun_at_ms is not None
        late_ms = 0 if is_begun else self.chance.choice([0, 990 * GRACE_SECONDS])
        self.clock.set_ms(self.clock.now_ms() - late_ms)
        try:
            give_hints(lake.store, table, self.clock, GRACE_SECONDS)
        finally:
            self.clock.set_ms(self.clock.now_ms() + late_ms)

    def _drop(self, day: str) -> None:
        if self._is_there(day) and self.chance.random() < 0.3:
            self.chance.choice(self._writers).drop_partitions({"day": day}, dry_run=False)


@pytest.mark.parametrize("seed", range(12))
def test_once_readers_rely_on_hints_no_stream_with_news_lacks_one(
    seed: int, lake: DeltaCatalog, clock: ManualClock
) -> None:
    history = History(seed, lake, clock)
    for _ in range(60):
        history.step()
        assert history.missed() == set()
    for _ in range(3):
        give(history.lake, history.clock)
        history.clock.sleep(WAIT_SECONDS)
    assert has_hints(history.lake)
    assert history.missed() == set()
