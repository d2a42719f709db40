"""A restore makes rows what they were at a time, whatever happened since, and everything goes on from there."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.engine.in_process import InProcessEngine
from compactor.lake import Table
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.maintenance.retirement import StreamRetirement, retention_of
from compactor.maintenance.verify import verify
from compactor.model.errors import Fenced, Invalid, Unavailable
from compactor.model.names import LifecycleState
from tests.builders import figures_of_stream
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.held_engine import HeldEngine
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS, COPY = "ACME.ORDERS.V1", "ACME.COPY.V1"
MONDAY, TUESDAY = {"day": "monday"}, {"day": "tuesday"}
HOUR_SECONDS = 3_600
GRACE_SECONDS = 7 * 24 * HOUR_SECONDS


class Days:
    """A table by day, whose time passes with every step."""

    def __init__(self, lake: DeltaCatalog, clock: ManualClock) -> None:
        self.lake, self.clock = lake, clock
        self.table = lake.create_table(ORDERS, ["day"], primary_keys=["id"])

    def again(self, store: FaultyStore | None = None) -> Table:
        """The table in another process, which has read nothing yet."""
        return DeltaCatalog(store or self.lake.store, self.clock).table(ORDERS)

    def put(self, day: dict[str, str], **rows: str) -> None:
        """Rows by key, `a="1"`; a row with an empty value is deleted."""
        self.clock.sleep(1)
        kept = {key: value for key, value in rows.items() if value}
        gone = [key for key, value in rows.items() if not value]
        if kept:
            self.table.append(day, pa.table({"id": list(kept), "value": list(kept.values())}))
        if gone:
            self.table.append(day, pa.table({"id": gone}), operation="delete")

    def compact(self, into: str | None = None, engine: InProcessEngine | None = None) -> None:
        self.clock.sleep(1)
        compact(
            ORDERS,
            delta_catalog_client=self.lake,
            destination_compacted_table_id=into,
            hash_bucket_count=2,
            engine=engine or UnrulyEngine(),
            max_dead_row_share=0.5,
        )

    def mark(self) -> int:
        """A time between what was done and what will be; both are more than a millisecond away."""
        self.clock.sleep(1)
        at_ms = self.clock.now_ms()
        self.clock.sleep(1)
        return at_ms


@pytest.fixture
def days(lake: DeltaCatalog, clock: ManualClock) -> Days:
    return Days(lake, clock)


def at(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def rows(table: Table, day: dict[str, str] | None = None, view: str = "compacted", as_of: str | None = None) -> str:
    """`a1 b2`: keys with their values."""
    found = table.scan(day, view=view, as_of=as_of).to_table().to_pylist()
    return " ".join(sorted(f"{row['id']}{row.get('value')}" for row in found))


def test_rows_are_again_what_they_were_and_writers_and_compactions_go_on(days: Days) -> None:
    days.put(MONDAY, a="1", b="1", c="1")
    days.compact()
    then = days.mark()
    writer = days.again()
    days.put(MONDAY, a="2", d="2")
    days.put(MONDAY, b="")
    days.compact()
    assert rows(days.table, MONDAY) == "a2 c1 d2"

    foretold = days.table.restore(at(then), MONDAY)
    assert rows(days.table, MONDAY) == "a2 c1 d2"
    restored = days.table.restore(at(then), MONDAY, dry_run=False)

    assert restored == foretold
    (monday,) = restored.partitions
    assert (monday.outcome, monday.rows_now, monday.rows_then, monday.rows_undone) == ("restored", 3, 3, 3)
    assert rows(days.again(), MONDAY) == rows(days.table, MONDAY) == "a1 b1 c1"
    assert rows(days.table, MONDAY, view="merged") == "a1 b1 c1"
    assert figures_of_stream(days.table, MONDAY).pending_rows == 0
    assert days.table.lookup(MONDAY, {"id": "d"}) is None
    assert verify(days.table.stream(MONDAY)).problems == ()
    days.compact()
    assert rows(days.table, MONDAY) == "a1 b1 c1"
    writer.append(MONDAY, pa.table({"id": ["a", "e"], "value": ["3", "3"]}))
    days.compact()
    assert rows(days.table, MONDAY) == "a3 b1 c1 e3"
    assert verify(days.table.stream(MONDAY)).problems == ()
    assert rows(days.table, MONDAY, as_of=at(then)) == "a1 b1 c1"


def test_deltas_that_were_appended_by_then_are_kept_and_later_ones_are_not(days: Days) -> None:
    days.put(MONDAY, a="1")
    days.compact()
    days.put(MONDAY, b="2")
    then = days.mark()
    days.put(MONDAY, a="bad", b="bad")
    days.compact()
    days.put(MONDAY, c="bad")
    (monday,) = days.table.restore(at(then), MONDAY, dry_run=False).partitions
    assert (monday.rows_pending, monday.rows_undone) == (1, 3)
    assert rows(days.table, MONDAY) == "a1"
    assert rows(days.table, MONDAY, view="merged") == "a1 b2"
    assert figures_of_stream(days.table, MONDAY).pending_rows == 1
    days.put(MONDAY, d="3")
    days.compact()
    assert rows(days.table, MONDAY) == "a1 b2 d3"
    assert days.table.stream(MONDAY).load().state.skipped == ()


def test_a_restore_of_a_partition_that_was_never_compacted_undoes_later_deltas(days: Days) -> None:
    days.put(MONDAY, a="1")
    then = days.mark()
    days.put(MONDAY, a="bad")
    days.compact()
    days.table.restore(at(then), MONDAY, dry_run=False)
    assert rows(days.table, MONDAY, view="merged") == "a1"
    days.compact()
    assert rows(days.table, MONDAY) == "a1"


def test_what_a_restore_has_undone_another_one_brings_back(days: Days) -> None:
    days.put(MONDAY, a="1")
    days.compact()
    then = days.mark()
    days.put(MONDAY, a="2")
    days.compact()
    days.put(MONDAY, b="2")
    before = days.mark()
    days.table.restore(at(then), MONDAY, dry_run=False)
    days.mark()
    days.table.restore(at(before), MONDAY, dry_run=False)
    assert rows(days.table, MONDAY) == "a2"
    days.compact()
    assert rows(days.table, MONDAY) == "a2 b2"


def test_a_dropped_partition_is_restored_with_what_was_not_compacted(days: Days) -> None:
    days.put(MONDAY, a="1")
    days.put(TUESDAY, t="1")
    days.compact()
    days.put(MONDAY, b="2")
    then = days.mark()
    days.table.drop_partitions(MONDAY, dry_run=False)
    restored = days.table.restore(at(then), dry_run=False)
    assert [each.outcome for each in restored.partitions] == ["restored", "unchanged"]
    assert days.again().partitions() == [MONDAY, TUESDAY]
    assert rows(days.table, view="merged") == "a1 b2 t1"
    days.put(MONDAY, c="3")
    days.compact()
    assert rows(days.table) == "a1 b2 c3 t1"
    assert verify(days.table.stream(MONDAY)).problems == ()


def test_a_delta_that_is_pending_again_after_drop_and_restore_can_be_repeated_and_taken_back(days: Days) -> None:
    new = pa.table({"id": ["a"], "value": ["1"]})
    days.table.append(MONDAY, new, delta_id="load-1")
    then = days.mark()
    days.table.drop_partitions(MONDAY, dry_run=False)
    with pytest.raises(Invalid, match="'load-1' was dropped with its partition: there is nothing left to take back"):
        days.table.retract(MONDAY, "load-1")
    days.table.restore(at(then), dry_run=False)
    entries = days.table.stream(MONDAY).load().entry_number
    assert days.table.append(MONDAY, new, delta_id="load-1").stream_version == 2
    assert days.table.stream(MONDAY).load().entry_number == entries
    days.table.retract(MONDAY, "load-1")
    days.table.retract(MONDAY, "load-1")
    assert days.table.stream(MONDAY).load().entry_number == entries + 1
    with pytest.raises(Invalid, match="delta id 'load-1' was taken back: give a new delta a new id"):
        days.table.append(MONDAY, new, delta_id="load-1")
    assert rows(days.table, MONDAY, view="merged") == ""


def test_a_restored_delta_that_was_retired_since_is_not_said_to_be_dropped(days: Days, clock: ManualClock) -> None:
    new = pa.table({"id": ["a"], "value": ["1"]})
    days.table.append(MONDAY, new, delta_id="load-1")
    then = days.mark()
    days.table.drop_partitions(MONDAY, dry_run=False)
    days.table.restore(at(then), dry_run=False)
    days.compact()
    clock.sleep(GRACE_SECONDS + HOUR_SECONDS)
    stream = days.table.stream(MONDAY)
    assert StreamRetirement(days.lake.store, stream, clock).retire(retention_of(None, GRACE_SECONDS))
    with pytest.raises(Invalid, match="retired since: if this is the same delta, there is nothing left to do"):
        days.table.append(MONDAY, new, delta_id="load-1")
    with pytest.raises(Invalid, match="was compacted, and has been retired since"):
        days.table.retract(MONDAY, "load-1")


def test_a_partition_that_was_not_there_yet_becomes_empty(days: Days) -> None:
    days.put(MONDAY, a="1")
    days.compact()
    then = days.mark()
    days.put(TUESDAY, t="1")
    days.compact()
    days.table.restore(at(then), dry_run=False)
    assert rows(days.table, view="merged") == "a1"
    days.put(TUESDAY, t="2")
    days.compact()
    assert rows(days.table) == "a1 t2"


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_compaction_under_way_does_not_bring_back_what_a_restore_undoes(days: Days, has_begun: bool) -> None:
    days.put(MONDAY, a="1")
    if has_begun:
        days.compact()
    then = days.mark()
    days.put(MONDAY, a="bad")

    def restore() -> None:
        days.again().restore(at(then), MONDAY, dry_run=False)

    with pytest.raises(Fenced, match=r"the partition was restored \(lithify table restore\) since the session read it"):
        days.compact(engine=HeldEngine(restore))
    days.compact()
    assert rows(days.table, MONDAY) == "a1"


def test_a_new_stream_version_since_then_goes_on_from_the_restored_rows(days: Days) -> None:
    days.put(MONDAY, a="1")
    days.compact()
    days.put(MONDAY, b="2")
    then = days.mark()
    days.table.create_stream_version(MONDAY, LifecycleState.ACTIVE)
    days.put(MONDAY, z="9")
    days.compact()
    (monday,) = days.table.restore(at(then), MONDAY, dry_run=False).partitions
    assert (monday.rows_pending, rows(days.table, MONDAY, view="merged")) == (1, "a1 b2")
    days.put(MONDAY, c="3")
    days.compact()
    assert rows(days.table, MONDAY) == "a1 b2 c3"
    assert verify(days.table.stream(MONDAY)).problems == ()


@pytest.mark.parametrize("has_begun", [True, False])
def test_what_was_pending_is_pending_again_though_the_new_stream_version_is_empty(days: Days, has_begun: bool) -> None:
    if has_begun:
        days.put(MONDAY, a="1")
        days.compact()
    days.put(MONDAY, b="2")
    then = days.mark()
    was = rows(days.table, MONDAY, view="merged")
    days.table.create_stream_version(MONDAY, LifecycleState.ACTIVE)
    (monday,) = days.table.restore(at(then), MONDAY, dry_run=False).partitions
    assert (monday.outcome, monday.rows_undone, monday.rows_pending) == ("restored", 0, 1)
    assert rows(days.table, MONDAY, view="merged") == was
    days.compact()
    assert rows(days.table, MONDAY) == was
    assert days.table.restore(at(then), MONDAY).partitions[0].outcome == "restored before"


def test_abandoned_rows_are_not_pending_again_while_no_stream_version_is_active(days: Days) -> None:
    days.put(MONDAY, a="1")
    then = days.mark()
    days.table.deprecate_stream_version(MONDAY, 1, abandon_pending=True)
    (monday,) = days.table.restore(at(then), MONDAY).partitions
    assert (monday.outcome, monday.rows_pending) == ("unchanged", 0)


@pytest.mark.parametrize(("into", "has_begun"), [(None, True), (None, False), (COPY, True)])
def test_deltas_of_a_stream_version_that_was_released_since_are_undone(
    days: Days, into: str | None, has_begun: bool
) -> None:
    days.put(MONDAY, a="1")
    if has_begun:
        days.compact(into)
    version = days.table.create_stream_version(MONDAY, LifecycleState.UNRELEASED)
    days.table.append(MONDAY, pa.table({"id": ["z"], "value": ["9"]}), stream_version=version)
    then = days.mark()
    days.table.release_stream_version(MONDAY, version)
    table = days.lake.table(into or ORDERS)
    (monday,) = table.restore(at(then), MONDAY, dry_run=False).partitions
    assert (monday.outcome, monday.rows_undone) == ("restored", 1)
    days.put(MONDAY, b="3")
    days.compact(into)
    assert rows(table, MONDAY) == "a1 b3"


def test_a_copy_is_restored_and_its_source_is_not_touched(days: Days, clock: ManualClock) -> None:
    days.put(MONDAY, a="1")
    days.compact(into=COPY)
    days.put(MONDAY, b="2")
    then = days.mark()
    days.put(MONDAY, a="bad")
    days.compact(into=COPY)
    copy = days.lake.table(COPY)
    assert rows(copy) == "abad b2"
    copy.restore(at(then), dry_run=False)
    assert rows(copy) == "a1"
    days.put(MONDAY, c="3")
    days.compact(into=COPY)
    assert rows(copy) == "a1 b2 c3"
    assert verify(copy.stream(MONDAY)).problems == ()


def test_a_repeated_restore_keeps_what_was_appended_since_the_first(days: Days) -> None:
    days.put(MONDAY, a="1")
    days.put(TUESDAY, t="1")
    days.compact()
    then = days.mark()
    days.put(MONDAY, a="bad")
    days.put(TUESDAY, t="bad")
    days.compact()
    store = FaultyStore(days.lake.store)
    store.fail("put_if_absent", "day=tuesday/log/", times=None)
    with pytest.raises(Unavailable):
        days.again(store).restore(at(then), dry_run=False)
    days.put(MONDAY, b="2")
    restored = days.again().restore(at(then), dry_run=False)
    assert [each.outcome for each in restored.partitions] == ["restored before", "restored"]
    days.compact()
    assert rows(days.table) == "a1 b2 t1"


def test_a_restore_that_is_stopped_anywhere_is_finished_by_the_next(days: Days) -> None:
    days.put(MONDAY, a="1")
    days.compact(into=COPY)
    then = days.mark()
    days.put(MONDAY, a="bad")
    days.compact(into=COPY)
    store = FaultyStore(days.lake.store)
    for point in range(8):
        store.stop_at(point)
        with suppress(Stopped):
            DeltaCatalog(store, days.clock).table(COPY).restore(at(then), dry_run=False)
        assert rows(days.lake.table(COPY)) in ("abad", "a1")
        store.heal()
    DeltaCatalog(store, days.clock).table(COPY).restore(at(then), dry_run=False)
    actions = [each.action for entry in days.lake.table(COPY).stream(MONDAY).log.entries() for each in entry.actions]
    assert (actions.count("stream_restored"), rows(days.lake.table(COPY))) == (1, "a1")


def test_files_that_a_restore_puts_in_force_again_are_spared_by_gc(days: Days, clock: ManualClock) -> None:
    days.put(MONDAY, a="1")
    days.compact()
    then = days.mark()
    days.put(MONDAY, a="2")
    days.compact()
    clock.sleep(GRACE_SECONDS - 2 * HOUR_SECONDS)
    days.table.restore(at(then), MONDAY, dry_run=False)
    clock.sleep(GRACE_SECONDS + HOUR_SECONDS)
    for garbage in find_garbage(days.lake.store, ORDERS, clock, GRACE_SECONDS):
        assert garbage.garbage
        delete_garbage(days.lake.store, garbage)
    assert rows(days.again(), MONDAY) == "a1"
    assert verify(days.again().stream(MONDAY)).problems == ()


def test_what_is_out_of_reach_is_refused_with_the_reason_before_anything_is_written(
    days: Days, clock: ManualClock
) -> None:
    days.put(MONDAY, a="1")
    days.put(TUESDAY, t="1")
    days.compact()
    then = days.mark()
    days.put(MONDAY, a="2")
    days.compact()
    clock.sleep(GRACE_SECONDS - HOUR_SECONDS / 2)
    before = rows(days.table)
    with pytest.raises(Invalid, match=r"day=monday cannot be restored as of .* are out of the retention"):
        days.table.restore(at(then), dry_run=False)
    assert rows(days.table) == before
    clock.sleep(HOUR_SECONDS)
    for garbage in find_garbage(days.lake.store, ORDERS, clock, GRACE_SECONDS):
        delete_garbage(days.lake.store, garbage)
    with pytest.raises(Invalid, match=r"files? of then are deleted, for example tables/ACME"):
        days.table.restore(at(then), MONDAY)
    assert days.table.restore(at(then), TUESDAY).partitions[0].outcome == "unchanged"


def test_deltas_that_were_retired_since_put_a_time_out_of_reach(days: Days, clock: ManualClock) -> None:
    days.put(MONDAY, a="1")
    then = days.mark()
    clock.sleep(GRACE_SECONDS)
    days.compact()
    with pytest.raises(Invalid, match="have been compacted and retired since, or are about to be"):
        days.table.restore(at(then), MONDAY)
    StreamRetirement(days.lake.store, days.table.stream(MONDAY), clock).retire(retention_of(None, GRACE_SECONDS))
    with pytest.raises(Invalid, match="have been compacted and retired since, or are about to be"):
        days.table.restore(at(then), MONDAY)


def test_a_moment_that_is_none_of_the_table_is_refused(days: Days, clock: ManualClock) -> None:
    days.put(MONDAY, a="1")
    days.put(TUESDAY, t="1")
    with pytest.raises(Invalid, match="which is still to come"):
        days.table.restore(at(clock.now_ms() + 60_000))
    with pytest.raises(Invalid, match="has nothing as of 2020"):
        days.table.restore("2020-01-01")
    with pytest.raises(Invalid, match="an entry number is of one partition's log, so name it"):
        days.table.restore(1)
    with pytest.raises(Invalid, match="it ends at entry 1"):
        days.table.restore(7, MONDAY)
    with pytest.raises(Invalid, match="has no partition day=friday"):
        days.table.restore(at(clock.now_ms()), {"day": "friday"})


def test_a_checkpoint_and_the_log_agree_on_a_restored_partition(days: Days) -> None:
    days.put(MONDAY, a="1")
    days.compact()
    stream = days.table.stream(MONDAY)
    stream.log.write_checkpoint(stream.load())
    then = days.mark()
    days.put(MONDAY, b="2")
    days.compact()
    stream.log.write_checkpoint(stream.load())
    days.table.restore(at(then), MONDAY, dry_run=False)
    stream.log.write_checkpoint(stream.load())
    days.put(MONDAY, c="3")
    assert days.again().stream(MONDAY).load() == stream.load()


@pytest.mark.parametrize("seed", range(4))
def test_after_any_history_of_restores_and_drops_rows_are_those_of_a_model(days: Days, seed: int) -> None:
    """The model: a list of what was appended, and how much of it was compacted, at every moment."""
    chance = random.Random(seed)
    appended: list[tuple[str, str]] = []
    compacted: dict[str, str] = {}
    known: list[tuple[int, list[tuple[str, str]], dict[str, str]]] = []
    has_begun = False
    for step in range(40):
        kind = chance.choices(["put", "compact", "restore", "drop"], [5, 3, 2, 0.5])[0]
        if kind == "put" or not has_begun:
            has_begun = True
            key, value = chance.choice("abcde"), chance.choice(["", str(step)])
            days.put(MONDAY, **{key: value})
            appended = [*appended, (key, value)]
        elif kind == "compact":
            days.compact()
            compacted = _applied(compacted, appended)
            appended = []
        elif kind == "drop":
            days.clock.sleep(1)
            days.table.drop_partitions(MONDAY, dry_run=False)
            compacted, appended = {}, []
        elif known:
            at_ms, *state = chance.choice(known)
            planned = days.table.restore(at(at_ms), MONDAY, dry_run=False).partitions[0]
            if planned.outcome == "restored":
                appended, compacted = state  # type: ignore[assignment]
        known.append((days.mark(), appended, compacted))
        assert rows(days.again(), MONDAY) == _shown(compacted)
        assert rows(days.again(), MONDAY, view="merged") == _shown(_applied(compacted, appended))
    days.compact()
    assert rows(days.again(), MONDAY) == _shown(_applied(compacted, appended))
    assert verify(days.table.stream(MONDAY)).problems == ()


def _applied(before: dict[str, str], appended: list[tuple[str, str]]) -> dict[str, str]:
    after = {**before, **dict(appended)}
    return {key: value for key, value in after.items() if value}


def _shown(state: dict[str, str]) -> str:
    return " ".join(sorted(f"{key}{value}" for key, value in state.items()))
