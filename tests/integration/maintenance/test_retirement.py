"""Deltas that every compaction has taken leave the log's snapshot, and nobody misses them."""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import DeltasRetired, DeltasTaken
from compactor.catalog.retired import IDS_REFUSED_SECONDS, refused_until_ms
from compactor.catalog.snapshot import SourceStream
from compactor.lake import Table
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.maintenance.retirement import StreamRetirement
from compactor.maintenance.verify import verify
from compactor.model.errors import Invalid
from compactor.model.names import LifecycleState
from compactor.planning.sizing import Resources
from compactor.planning.table_figures import read_figures
from tests.builders import pinned_session
from tests.conftest import Command
from tests.fakes.attempts import plan_session, run_attempt
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine, compact_orders

ORDERS, ELSEWHERE = "ACME.ORDERS.V1", "ACME.COMPACTED.V1"
DAY_SECONDS = 24 * 3600
GRACE_SECONDS = 7 * DAY_SECONDS
RETENTION = GRACE_SECONDS


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    """Three deltas."""
    orders = lake.create_table(ORDERS)
    for key in range(3):
        append(orders, key)
    return orders


def append(orders: Table, key: int) -> None:
    orders.append({}, pa.table({"id": [key], "value": [f"value {key}"]}), delta_id=f"delta {key}")


def pass_days(clock: ManualClock, days: float) -> None:
    clock.sleep(days * DAY_SECONDS)


def retire(lake: DeltaCatalog, clock: ManualClock) -> int:
    """The number of deltas that are retired, which `find` has foretold."""
    stream = lake.table(ORDERS).stream({})
    retirement = StreamRetirement(lake.store, stream, clock)
    found = retirement.find(RETENTION)
    assert retirement.retire(RETENTION) == found
    return sum(each.deltas for each in found)


def source(lake: DeltaCatalog) -> SourceStream:
    return lake.table(ORDERS).stream({}).load().state.sources[1]


def ids(lake: DeltaCatalog) -> list[str]:
    return [delta.delta_id for delta in source(lake).deltas]


def collect(lake: DeltaCatalog, clock: ManualClock) -> list[str]:
    """Deletes the garbage; the kinds of what went."""
    (garbage,) = find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS)
    delete_garbage(lake.store, garbage)
    return sorted(file.key.split("/")[4] for file in garbage.garbage)


def values(table: Table, as_of: int | None = None, view: str = "compacted") -> list[str]:
    return sorted(table.scan(as_of=as_of, view=view).to_table()["value"].to_pylist())


def test_compacted_deltas_leave_after_the_retention_and_their_files_after_the_grace_period(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake)
    append(orders, 3)
    assert retire(lake, clock) == 0
    pass_days(clock, 8)
    append(orders, 4)
    assert retire(lake, clock) == 3
    assert ids(lake) == ["delta 3", "delta 4"]
    assert retire(lake, clock) == 0
    pass_days(clock, 6)
    assert collect(lake, clock) == []
    pass_days(clock, 2)
    assert collect(lake, clock) == ["delta"] * 3
    compact_orders(lake)
    assert values(orders) == [f"value {key}" for key in range(5)]
    assert verify(orders.stream({})).problems == ()


def test_deltas_that_are_not_compacted_never_retire(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    pass_days(clock, 100)
    assert retire(lake, clock) == 0
    compact_orders(lake)
    append(orders, 3)
    pass_days(clock, 100)
    assert retire(lake, clock) == 3
    assert ids(lake) == ["delta 3"]


def test_the_id_of_a_retired_delta_is_refused_for_its_window_and_then_forgotten(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake)
    pass_days(clock, 8)
    assert retire(lake, clock) == 3
    for again in (lake.table(ORDERS), DeltaCatalog(lake.store, clock).table(ORDERS)):
        with pytest.raises(
            Invalid, match="'delta 1' was used before, by a delta that was compacted and has been retired"
        ):
            append(again, 1)
        with pytest.raises(Invalid, match="was compacted, and has been retired"):
            again.retract({}, "delta 1")
    append(orders, 3)
    pass_days(clock, 29)
    with pytest.raises(Invalid, match="was used before"):
        append(orders, 1)
    compact_orders(lake)
    pass_days(clock, 8)
    assert retire(lake, clock) == 1
    append(orders, 1)
    with pytest.raises(Invalid, match="was used before"):
        append(orders, 3)


def test_a_position_is_never_used_again(lake: DeltaCatalog, orders: Table, clock: ManualClock) -> None:
    last = source(lake).last_position
    assert last is not None
    compact_orders(lake)
    pass_days(clock, 8)
    retire(lake, clock)
    assert (len(source(lake).deltas), source(lake).last_position) == (0, last)
    with pytest.raises(Invalid, match=f"is not above {last}"):
        orders.append({}, pa.table({"id": [9], "value": ["late"]}), position=last)


def test_every_registered_compaction_must_have_taken_a_delta(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake, ELSEWHERE)
    append(orders, 3)
    compact_orders(lake)
    pass_days(clock, 8)
    assert retire(lake, clock) == 3
    assert ids(lake) == ["delta 3"]
    compact_orders(lake, ELSEWHERE)
    assert retire(lake, clock) == 1
    assert values(orders) == values(lake.table(ELSEWHERE)) == [f"value {key}" for key in range(4)]


def test_a_compaction_that_registered_and_has_committed_nothing_keeps_every_delta_until_its_table_is_dropped(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake)
    lake.create_table(ELSEWHERE)
    stream = orders.stream({})
    position = source(lake).last_position

    assert position is not None
    stream.log.append(lambda _: [DeltasTaken(stream_version=1, position=position, compacted_table_id=ELSEWHERE)])
    pass_days(clock, 8)
    assert retire(lake, clock) == 0
    lake.store.put_if_absent(f"dropped_tables/{ELSEWHERE}", b"")
    assert retire(lake, clock) == 3


def test_nothing_is_retired_that_a_compaction_needs_which_registers_meanwhile(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake)
    lake.create_table(ELSEWHERE)
    pass_days(clock, 8)
    stream = orders.stream({})
    retirement = StreamRetirement(lake.store, stream, clock)
    position = source(lake).last_position

    assert position is not None
    known = stream.load()
    found = retirement.find(RETENTION)
    registers = DeltasTaken(stream_version=1, position=position, compacted_table_id=ELSEWHERE)
    stream.log.append(lambda _: [registers])
    assert not retirement._append(known, found)
    assert retirement.retire(RETENTION) == ()
    assert len(ids(lake)) == 3


def test_a_destination_that_is_dropped_or_purged_keeps_no_delta_and_makes_nobody_late(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake, ELSEWHERE)
    compact_orders(lake, "ACME.NEWER.V1")
    lake.drop_table(ELSEWHERE, dry_run=False)
    append(orders, 3)
    compact_orders(lake, "ACME.NEWER.V1")

    def pending() -> int:
        (figures,) = read_figures(lake.table(ORDERS))
        return figures.pending_deltas

    assert pending() == 0
    pass_days(clock, 8)
    lake.purge_table(ELSEWHERE, dry_run=False)
    assert pending() == 0
    assert retire(lake, clock) == 4


def test_an_earlier_stream_version_leaves_once_compactions_have_gone_on_to_a_later_one(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake)
    append(orders, 3)
    orders.create_stream_version({}, LifecycleState.ACTIVE)
    orders.append({}, pa.table({"id": [9], "value": ["anew"]}))
    pass_days(clock, 8)
    assert retire(lake, clock) == 3
    compact_orders(lake)
    assert retire(lake, clock) == 2
    assert values(orders) == ["anew"]


def test_a_compaction_that_begins_after_the_retirement_is_refused_with_what_it_would_lack(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake)
    pass_days(clock, 8)
    position = source(lake).last_position
    retire(lake, clock)
    append(orders, 3)
    with pytest.raises(Invalid, match=f"has retired its deltas up to position {position}.* has none of them"):
        compact_orders(lake, ELSEWHERE)
    assert lake.tables() == [ORDERS]


def test_an_attempt_that_was_pinned_before_the_retirement_finds_every_file(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    """Into another table, which has not registered yet."""
    compact_orders(lake)
    pass_days(clock, 8)
    spec = pinned_session(lake, ORDERS, job_run_id="elsewhere", destination_compacted_table_id=ELSEWHERE)
    plan = plan_session(spec, lake, Resources(task_memory_bytes=2**30, tasks=2))
    assert retire(lake, clock) == 3
    pass_days(clock, 6)
    collect(lake, clock)
    run_attempt(plan, DeltaCatalog(lake.store, clock), lake.store, UnrulyEngine(), 1, clock)
    assert values(lake.table(ELSEWHERE)) == ["value 0", "value 1", "value 2"]


def test_a_reader_within_the_retention_reads_the_table_as_it_was(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    compact_orders(lake)
    append(orders, 3)
    pass_days(clock, 8)
    read_at = orders.stream({}).load().entry_number
    as_it_was = values(orders, read_at), values(orders, view="merged")
    retire(lake, clock)
    compact_orders(lake)
    for _ in range(3):
        pass_days(clock, 2)
        retire(lake, clock)
        collect(lake, clock)
        assert (values(orders, read_at), values(orders, view="merged")) == as_it_was
    pass_days(clock, 10)
    assert "delta" in collect(lake, clock)


def test_few_different_times_are_written_until_which_ids_are_refused() -> None:
    times = {refused_until_ms(hour * 3_600_000) for hour in range(30 * 24)}
    assert len(times) <= 18
    window_ms = IDS_REFUSED_SECONDS * 1_000
    for now_ms in (0, 1, 10**12):
        assert window_ms <= refused_until_ms(now_ms) - now_ms <= window_ms + window_ms // 16 + 1


def test_gc_retires_and_shows_it_first(lake: DeltaCatalog, orders: Table, clock: ManualClock, command: Command) -> None:
    clock.set_ms(1)  # the command has the machine's clock: years have passed since
    old = lake.create_table("ACME.OLD.V1")
    append(old, 1)
    compact("ACME.OLD.V1", {"id"}, delta_catalog_client=lake, hash_bucket_count=1, engine=UnrulyEngine())
    gc = partial(command, "gc", "ACME.OLD.V1", "--lake", lake.location.root_uri)
    assert "1 compacted delta of 1 stream can be retired" in gc().out
    answer = json.loads(gc("--delete", "--output", "json").out)
    assert [each["retired_deltas"] for each in answer["streams"]] == [1]
    assert "nothing to delete" in gc("--delete").out
    entry = list(old.stream({}).log.entries())[-1]
    assert [type(action) for action in entry.actions] == [DeltasRetired]
