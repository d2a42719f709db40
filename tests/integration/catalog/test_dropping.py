"""A dropped partition or table is hidden at once and everywhere, nothing brings it back, and gc takes its data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.definition import TableDefinition
from compactor.engine.in_process import InProcessEngine
from compactor.lake import Table
from compactor.maintenance.garbage import delete_garbage, find_dropped_garbage, find_garbage
from compactor.maintenance.retirement import StreamRetirement, retention_of
from compactor.maintenance.verify import verify
from compactor.model.errors import Denied, Fenced, Invalid, Unavailable
from compactor.planning.session_planner import PinnedSession, pin_sessions
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunResult, SessionResult
from dispatcher.intake.pinning import pin_sources
from tests.builders import figures_of_stream, run_of
from tests.fakes.attempts import plan_session, run_attempt
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.held_engine import HeldEngine
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine
from tests.proofs import prove_many

ORDERS, COPY = "ACME.ORDERS.V1", "ACME.COPY.V1"
MONDAY, TUESDAY = {"day": "monday"}, {"day": "tuesday"}
DAY_SECONDS = 24 * 3600
GRACE_SECONDS = 7 * DAY_SECONDS
RESOURCES = Resources(task_memory_bytes=1 << 30, tasks=1)


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    """Three rows on Monday, of which one is not compacted, and one on Tuesday."""
    orders = lake.create_table(ORDERS, ["day"], primary_keys=["id"])
    append(orders, MONDAY, 1)
    append(orders, MONDAY, 2)
    append(orders, TUESDAY, 3)
    run(lake)
    append(orders, MONDAY, 4)
    return orders


def append(table: Table, partition: dict[str, str], key: int, delta_id: str | None = None) -> None:
    table.append(partition, pa.table({"id": [key]}), delta_id=delta_id or f"delta {key}")


def run(lake: DeltaCatalog, into: str | None = None, engine: InProcessEngine | None = None) -> JobRunResult:
    return compact(
        ORDERS,
        {"id"},
        delta_catalog_client=lake,
        destination_compacted_table_id=into,
        hash_bucket_count=1,
        engine=engine or UnrulyEngine(),
    )


def attempt(pinned: PinnedSession, lake: DeltaCatalog, clock: ManualClock) -> SessionResult:
    plan = plan_session(pinned.spec, lake, RESOURCES)
    return run_attempt(plan, lake, lake.store, UnrulyEngine(), 1, clock)


def keys(table: Table, partition: dict[str, str] | None = None, view: str = "compacted") -> list[int]:
    rows = table.scan(partition, view=view).to_table()
    return sorted(rows["id"].to_pylist()) if rows.num_columns else []


def again(lake: DeltaCatalog, clock: ManualClock, store: FaultyStore | None = None) -> DeltaCatalog:
    """Another process, which has read nothing yet."""
    return DeltaCatalog(store or lake.store, clock)


def collect(lake: DeltaCatalog, clock: ManualClock) -> list[str]:
    """Deletes garbage as `lithify gc --delete` does; what went."""
    gone = []
    for table_id in lake.tables():
        properties = lake.table(table_id).properties
        retention = retention_of(properties.retention_seconds, properties.grace_seconds)
        for partition in lake.table(table_id).partitions():
            StreamRetirement(lake.store, lake.table(table_id).stream(partition), clock).retire(retention)
        for garbage in find_garbage(lake.store, table_id, clock, GRACE_SECONDS):
            delete_garbage(lake.store, garbage)
            gone += [file.key for file in garbage.garbage]
    for definition in map(lake.definition_even_dropped, lake.dropped_tables()):
        assert isinstance(definition, TableDefinition)
        garbage = find_dropped_garbage(lake.store, definition, clock, GRACE_SECONDS)
        delete_garbage(lake.store, garbage)
        gone += [file.key for file in garbage.garbage]
    return gone


def data(lake: DeltaCatalog, part: str = "data/day=monday/") -> list[str]:
    return [entry.key for entry in lake.store.list(f"tables/{ORDERS}/{part}")]


# -- partitions


def test_a_dropped_partition_is_hidden_from_every_list_and_view(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    foretold = orders.drop_partitions(MONDAY)
    assert keys(orders, view="merged") == [1, 2, 3, 4]
    dropped = orders.drop_partitions(MONDAY, dry_run=False)
    assert dropped.partitions == foretold.partitions
    assert (dropped.rows, dropped.pending_rows, dropped.files) == (2, 3, 5)
    for table in (orders, again(lake, clock).table(ORDERS)):
        assert table.partitions() == [TUESDAY]
        assert [*table.each_partition(with_news=False)] == [TUESDAY]
        assert keys(table) == keys(table, view="merged") == [3]
        assert keys(table, MONDAY) == keys(table, MONDAY, view="merged") == []
        assert figures_of_stream(table, MONDAY).pending_rows == 0
        assert table.lookup(MONDAY, {"id": 1}) is None
    assert [session.partition for session in run(lake).sessions] == [TUESDAY]
    assert pin_sources(run_of(lake, ORDERS), lake, orders, clock).sessions == ()


def test_rows_of_a_dropped_partition_can_be_read_as_of_a_time_before_until_gc_takes_its_files(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    before_ms = clock.now_ms()
    clock.sleep(60)
    goes_at_ms = orders.drop_partitions(MONDAY, dry_run=False).goes_at_ms
    entries = data(lake, "streams/")
    clock.sleep(GRACE_SECONDS - 60)
    assert collect(lake, clock) == []
    rows = orders.scan(as_of=before_ms).to_table()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]
    clock.sleep(120)
    assert clock.now_ms() > goes_at_ms
    assert set(collect(lake, clock)) >= {key for key in data(lake) if "monday" in key}
    assert data(lake) == []
    assert set(entries) <= set(data(lake, "streams/"))  # log entries stay
    assert keys(orders) == [3]


def test_a_partition_that_is_written_again_after_its_drop_begins_empty(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    writer = again(lake, clock).table(ORDERS)
    assert keys(writer, MONDAY) == [1, 2]
    orders.drop_partitions(MONDAY, dry_run=False)
    append(writer, MONDAY, 9)
    assert keys(orders, MONDAY, view="merged") == [9]
    assert orders.partitions() == [MONDAY, TUESDAY]
    run(lake)
    assert keys(orders) == [3, 9]
    append(orders, MONDAY, 10)
    run(lake)
    assert (keys(orders, MONDAY), verify(orders.stream(MONDAY)).problems) == ([9, 10], ())
    orders.drop_partitions(MONDAY, dry_run=False)
    assert orders.partitions() == [TUESDAY]


def test_an_append_that_is_repeated_after_the_drop_brings_no_row_back(orders: Table, clock: ManualClock) -> None:
    orders.drop_partitions(MONDAY, dry_run=False)
    for key in (1, 4):
        with pytest.raises(Invalid, match=f"'delta {key}' was used before, by a delta that was dropped with"):
            append(orders, MONDAY, key)
    with pytest.raises(Invalid, match="'delta 4' was dropped with its partition"):
        orders.retract(MONDAY, "delta 4")
    with pytest.raises(Invalid, match="stream version 1 was dropped: it takes no more deltas"):
        orders.append(MONDAY, pa.table({"id": [9]}), stream_version=1)
    clock.sleep(33 * DAY_SECONDS)
    append(orders, MONDAY, 9)
    orders.drop_partitions(MONDAY, dry_run=False)
    append(orders, MONDAY, 1)
    assert keys(orders, MONDAY, view="merged") == [1]


@pytest.mark.parametrize("has_compacted", [True, False])
def test_a_compaction_under_way_does_not_bring_a_dropped_partition_back(
    lake: DeltaCatalog, clock: ManualClock, has_compacted: bool
) -> None:
    orders = lake.create_table(ORDERS, ["day"])
    append(orders, MONDAY, 1)
    if has_compacted:
        run(lake)
        append(orders, MONDAY, 2)

    def drop() -> None:
        orders.drop_partitions(MONDAY, dry_run=False)

    with pytest.raises(Fenced, match=r"the partition was dropped \(lithify table drop\) since the session read it"):
        run(again(lake, clock), engine=HeldEngine(drop))
    assert (orders.partitions(), keys(orders, MONDAY)) == ([], [])
    append(orders, MONDAY, 3)
    run(lake)
    assert keys(orders) == [3]


def test_a_session_that_was_accepted_before_the_drop_and_begins_after_it_has_nothing_to_do(
    lake: DeltaCatalog, clock: ManualClock
) -> None:
    orders = lake.create_table(ORDERS, ["day"])
    append(orders, MONDAY, 1)
    (pinned,) = pin_sessions(run_of(lake, ORDERS), lake)
    orders.drop_partitions(MONDAY, dry_run=False)
    append(orders, MONDAY, 2)
    fresh = again(lake, clock)
    result = attempt(pinned, fresh, clock)
    assert (result.rounds, result.rows_out, keys(orders, MONDAY)) == (0, 0, [])
    run(lake)
    assert keys(orders, MONDAY) == [2]


def test_a_dropped_copy_is_filled_again_only_by_a_job_run_that_was_accepted_later(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    (monday, _) = pin_sessions(run_of(lake, ORDERS, destination_compacted_table_id=COPY), lake)
    run(lake, into=COPY)
    copy = lake.table(COPY)
    copy.drop_partitions(MONDAY, dry_run=False)
    result = attempt(monday, lake, clock)
    assert (result.rounds, keys(copy)) == (0, [3])
    run(lake, into=COPY)
    assert keys(copy) == [1, 2, 3, 4]


def test_a_compaction_into_another_table_takes_nothing_of_a_dropped_source(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:

    def drop() -> None:
        orders.drop_partitions(MONDAY, dry_run=False)

    with pytest.raises(Fenced):
        run(again(lake, clock), into=COPY, engine=HeldEngine(drop))
    assert keys(lake.table(COPY), MONDAY) == []
    append(orders, MONDAY, 9)
    run(lake, into=COPY)
    assert keys(lake.table(COPY), MONDAY) == [9]


def test_a_dropped_copy_keeps_no_delta_of_its_source(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    run(lake)
    run(lake, into=COPY)
    lake.table(COPY).drop_partitions(MONDAY, dry_run=False)
    clock.sleep(GRACE_SECONDS + 60)
    found = StreamRetirement(lake.store, orders.stream(MONDAY), clock).retire(retention_of(None, GRACE_SECONDS))
    assert sum(each.deltas for each in found) == 3


def test_a_drop_names_every_partition_that_has_its_values(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.SALES.V1", ["region", "day"])
    for region in ("EU", "US"):
        for day in ("1", "2"):
            append(table, {"region": region, "day": day}, 1)
    assert len(table.drop_partitions({"day": "1"}, dry_run=False).partitions) == 2
    assert [partition["day"] for partition in table.partitions()] == ["2", "2"]
    assert table.drop_partitions({"day": "1"}, dry_run=False).partitions == ()
    with pytest.raises(Invalid, match="has no partition day=3: there are region=EU/day=1"):
        table.drop_partitions({"day": "3"})
    with pytest.raises(Invalid, match=r"'dy' is no partition key of ACME.SALES.V1: it has region, day"):
        table.drop_partitions({"dy": "1"})
    with pytest.raises(Invalid, match="Give a value for at least one of region, day"):
        table.drop_partitions({})
    with pytest.raises(Invalid, match="has no partition keys: leave the partition out"):
        lake.create_table("ACME.ONE.V1").drop_partitions({"day": "1"})


def test_a_drop_that_is_stopped_anywhere_is_finished_by_the_next(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    store = FaultyStore(lake.store)
    for point in range(4):
        append(orders, MONDAY, 10 + point, f"again {point}")
        store.stop_at(point)
        with suppress(Stopped):
            again(lake, clock, store).table(ORDERS).drop_partitions(MONDAY, dry_run=False)
        is_dropped = keys(orders, MONDAY, view="merged") == []
        assert is_dropped or len(keys(orders, MONDAY, view="merged")) > 0
        store.heal()
        again(lake, clock, store).table(ORDERS).drop_partitions(MONDAY, dry_run=False)
        assert (orders.partitions(), keys(orders, MONDAY, view="merged")) == ([TUESDAY], [])


def test_a_writer_that_is_killed_before_its_first_delta_after_the_drop_leaves_an_empty_partition(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    orders.drop_partitions(MONDAY, dry_run=False)
    store = FaultyStore(lake.store)
    store.fail("put_if_absent", "/streams/day=monday/log/", error=Stopped)  # type: ignore[arg-type]
    with pytest.raises(Stopped):
        append(again(lake, clock, store).table(ORDERS), MONDAY, 9)
    assert orders.partitions() == [MONDAY, TUESDAY]
    assert keys(orders, view="merged") == [3]
    orders.drop_partitions(MONDAY, dry_run=False)
    assert orders.partitions() == [TUESDAY]


def test_a_drop_whose_answer_was_lost_has_dropped_once(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    store = FaultyStore(lake.store)
    store.fail("put_if_absent", "/log/", "after", error=Unavailable)
    again(lake, clock, store).table(ORDERS).drop_partitions(MONDAY, dry_run=False)
    actions = [each.action for entry in orders.stream(MONDAY).log.entries() for each in entry.actions]
    assert actions.count("stream_dropped") == 1


def test_a_checkpoint_and_the_log_agree_on_a_dropped_partition(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    orders.drop_partitions(MONDAY, dry_run=False)
    stream = orders.stream(MONDAY)
    stream.log.write_checkpoint(stream.load())
    append(orders, MONDAY, 9)
    read = again(lake, clock).table(ORDERS).stream(MONDAY).load()
    assert read == stream.load()
    assert (read.state.dropped_version, read.state.is_dropped) == (1, False)


# -- tables


def test_a_dropped_table_is_hidden_everywhere_and_its_data_goes_on_buckets_that_keep_log_entries(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    store = FaultyStore(lake.store)
    store.fail("delete", "/log/", times=None, error=Denied)
    other = again(lake, clock, store)
    run_before = run_of(lake, ORDERS)
    (session, *_) = pin_sessions(run_before, lake)
    assert len(other.drop_table(ORDERS, dry_run=False).partitions) == 2
    assert other.tables() == lake.tables() == []
    assert other.dropped_tables() == [ORDERS]
    for reads in (
        lambda: lake.table(ORDERS),
        lambda: pin_sessions(run_before, lake),
        lambda: attempt(session, lake, clock),
        lambda: lake.create_table_like(ORDERS, other.create_table("ACME.NEW.V1", ["day"])),
    ):
        with pytest.raises(Invalid, match=r"table ACME.ORDERS.V1 was dropped at 20"):
            reads()
    clock.sleep(GRACE_SECONDS + 60)
    collect(other, clock)
    assert data(lake, "data/") == []
    assert data(lake, "streams/") != []


@pytest.mark.parametrize("partition", [MONDAY, {"day": "never written"}])
def test_a_writer_that_had_opened_a_table_before_its_drop_is_told_at_once(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, partition: dict[str, str]
) -> None:
    writer = again(lake, clock).table(ORDERS)
    keys(writer)
    lake.drop_table(ORDERS, dry_run=False)
    with pytest.raises(Invalid, match=r"table ACME.ORDERS.V1 was dropped at .* UTC: it takes no deltas"):
        append(writer, partition, 9)
    with pytest.raises(Invalid, match="it takes no deltas"):
        writer.append_many([(partition, pa.table({"id": [9]}), "upsert")])
    with pytest.raises(Invalid, match="it takes no deltas"):
        writer.set_properties({"retention_seconds": GRACE_SECONDS})


def test_the_id_of_a_dropped_table_can_be_used_again_after_its_grace_period(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    lake.drop_table(ORDERS, dry_run=False)
    with pytest.raises(Invalid, match=r"its id can be used again from 20.* UTC on, when no writer"):
        lake.create_table(ORDERS, ["region"])
    clock.sleep(GRACE_SECONDS)
    anew = lake.create_table(ORDERS, ["region"])
    assert (lake.tables(), lake.dropped_tables(), anew.partitions()) == ([ORDERS], [], [])
    append(anew, {"region": "EU"}, 1)
    run(lake)
    assert (keys(anew), anew.partitions()) == ([1], [{"region": "EU"}])
    assert keys(again(lake, clock).table(ORDERS)) == [1]


def test_the_drop_of_a_table_that_is_stopped_anywhere_is_finished_by_the_next(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    store = FaultyStore(lake.store)
    points = 0
    while True:
        store.stop_at(points)
        try:
            again(lake, clock, store).drop_table(ORDERS, dry_run=False)
            break
        except Stopped:
            store.heal()
            points += 1
            with suppress(Invalid):  # it is a table, or it is none
                again(lake, clock).table(ORDERS).partitions()
            assert again(lake, clock).tables() in ([ORDERS], [])
    store.heal()
    assert points > 3
    assert again(lake, clock).tables() == []
    clock.sleep(GRACE_SECONDS)
    anew = lake.create_table(ORDERS, ["day"])
    assert (anew.partitions(), keys(anew, view="merged")) == ([], [])


def test_a_purge_deletes_every_object_and_frees_the_id(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    with pytest.raises(Invalid, match=r"writers and readers of ACME.ORDERS.V1 may be at work: drop it without --purge"):
        lake.purge_table(ORDERS, dry_run=False)
    lake.drop_table(ORDERS, dry_run=False)
    with pytest.raises(Invalid, match=r"may be at work until 20.* UTC: purge it then, or stop all of them"):
        lake.purge_table(ORDERS, dry_run=False)
    clock.sleep(GRACE_SECONDS)
    foretold = lake.purge_table(ORDERS)
    assert (foretold.objects, len(data(lake, ""))) == (len(data(lake, "")), foretold.objects)
    assert lake.purge_table(ORDERS, dry_run=False) == foretold
    assert [entry.key for entry in lake.store.list("") if ORDERS in entry.key] == []
    anew = lake.create_table(ORDERS)
    assert anew.partitions() == []


def test_a_purge_without_the_right_to_delete_changes_nothing(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    store = FaultyStore(lake.store)
    store.fail("delete", "/log/", times=None, error=Denied)
    before = [entry.key for entry in lake.store.list("")]
    with pytest.raises(Denied, match=r"cannot be purged, and nothing was deleted: you need the right to delete all"):
        again(lake, clock, store).purge_table(ORDERS, dry_run=False, nothing_runs=True)
    assert [entry.key for entry in lake.store.list("")] == before
    assert keys(orders) == [1, 2, 3]


def test_a_purge_that_is_stopped_anywhere_is_finished_by_the_next(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    store = FaultyStore(lake.store)
    points, step = 0, 5
    while True:
        store.stop_at(points)
        try:
            again(lake, clock, store).purge_table(ORDERS, dry_run=False, nothing_runs=True)
            break
        except Stopped:
            store.heal()
            points += step
            assert again(lake, clock).tables() in ([ORDERS], [])
    assert [entry.key for entry in lake.store.list("") if ORDERS in entry.key] == []
    lake.create_table(ORDERS)


def test_a_table_that_an_earlier_release_dropped_frees_its_id_by_a_purge(lake: DeltaCatalog) -> None:
    lake.store.put_if_absent(f"dropped_tables/{ORDERS}", b"")
    with pytest.raises(Invalid, match=r"was dropped, and is not purged: `lithify table drop ACME.ORDERS.V1 --del"):
        lake.create_table(ORDERS)
    lake.purge_table(ORDERS, dry_run=False)
    lake.create_table(ORDERS)
    with pytest.raises(Invalid, match=r"there is no table ACME.NEVER.V1 .*, and none was dropped"):
        lake.purge_table("ACME.NEVER.V1")


def test_a_key_of_a_dropped_partition_is_proved_gone_once_gc_has_taken_the_files(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    clock.sleep(60)
    goes_at_ms = orders.drop_partitions(MONDAY, dry_run=False).goes_at_ms
    held = [each for each in prove_many(lake, ORDERS, MONDAY, [{"id": 1}], clock)[0].holders if "/data/" in each.key]
    assert held
    assert {each.goes_at_ms for each in held} == {goes_at_ms}
    clock.sleep(GRACE_SECONDS + 1)
    collect(lake, clock)
    assert not [
        each for each in prove_many(lake, ORDERS, MONDAY, [{"id": 1}], clock)[0].holders if "/data/" in each.key
    ]


def test_a_copy_of_a_folder_under_another_name_is_no_table(lake: DeltaCatalog, orders: Table) -> None:
    for entry in list(lake.store.list(f"tables/{ORDERS}/")):
        body = lake.store.read(entry.key)
        assert body is not None
        lake.store.put_if_absent(entry.key.replace(ORDERS, COPY), body)
    opening: list[Callable[[], object]] = [lambda: lake.table(COPY), lambda: lake.create_table(COPY, ["day"])]
    for opens in opening:
        with pytest.raises(Invalid, match=rf"the folder .*/tables/{COPY} is a copy of table {ORDERS}, and no table"):
            opens()
    assert keys(orders) == [1, 2, 3]
