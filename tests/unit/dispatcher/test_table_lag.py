"""The lag of tables: in metrics, in samples of the history, and whose comes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from prometheus_client.parser import text_string_to_metric_families

from compactor.model.errors import Corrupt
from compactor.planning.stream_figures import StreamFigures
from compactor.storage.object_store import ObjectEntry
from dispatcher.operations.lag_board import TABLES_SAMPLED, LagBoard
from dispatcher.operations.metrics import prometheus_text
from dispatcher.operations.table_lag import TABLES_SHOWN, TableLag, most_behind_first, table_gauges
from dispatcher.records.history_upkeep import HistoryUpkeep
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.lag_samples import close_lag_days
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.pages.sources import blocks
from tests.unit.dispatcher.lag_samples_kept import read_samples

NOON_MS = 1_760_011_200_000 - 1_760_011_200_000 % 86_400_000 + 12 * 3_600_000
DAY_SECONDS = 86_400


def lag(table: str, seconds: float, bound: float | None = None, rows: int = 1, at_ms: int = NOON_MS) -> TableLag:
    figures = StreamFigures(
        pending_deltas=1,
        pending_rows=rows,
        pending_bytes=10 * rows,
        oldest_pending_at_ms=at_ms - round(seconds * 1000),
        small_files=3,
        dead_rows=4,
    )
    return TableLag(table, at_ms, 1, figures, bound)


def shown(*lags: TableLag) -> dict[tuple[str, str | None], float]:
    text = prometheus_text(table_gauges(lags)).decode()
    return {
        (sample.name, sample.labels.get("table")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def board(store: MemoryStore | FaultyStore, clock: ManualClock) -> LagBoard:
    return LagBoard(store, "s3://lake", clock)


def look(keeper: LagBoard, *lags: TableLag) -> None:
    keeper.looked(lags, {})
    keeper.write_sample()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


def test_tables_that_are_most_behind_their_own_bound_come_first() -> None:
    late, near, old, full = lag("late", 60, 30), lag("near", 600, 900), lag("old", 9_000), lag("full", 9_000, rows=7)
    assert [each.table_id for each in most_behind_first([old, near, full, late])] == ["late", "near", "full", "old"]


def test_a_late_table_has_metrics_beside_many_that_have_used_more_of_their_bound() -> None:
    nightly = lag("nightly", 36 * 3_600, 28 * 3_600)
    streaming = [lag(f"t{number}", 400, 300) for number in range(TABLES_SHOWN)]
    assert [each.is_late for each in (nightly, streaming[0])] == [True, False]
    assert shown(*streaming, nightly)["lithify_table_lag_seconds", "nightly"] == 36 * 3_600


def test_each_table_has_its_figures_and_its_bound() -> None:
    found = shown(lag("a", 60, 30), lag("b", 5))
    assert found["lithify_table_lag_seconds", "a"] == 60
    assert found["lithify_table_lag_bound_seconds", "a"] == 30
    assert found["lithify_table_pending_rows", "a"] == 1
    assert found["lithify_table_pending_bytes", "a"] == 10
    assert found["lithify_table_small_files", "b"] == 3
    assert found["lithify_table_dead_rows", "b"] == 4
    assert found["lithify_tables_watched", None] == 2
    assert ("lithify_table_lag_bound_seconds", "b") not in found, "its policy has none"
    assert ("lithify_table_published_lag_seconds", "b") not in found, "it is not published"


def test_a_table_is_late_ten_minutes_after_its_bound() -> None:
    lags = lag("a", 630, 30), lag("b", 630.001, 30), lag("c", 1e9)
    assert shown(*lags)["lithify_tables_late", None] == 1
    assert [each.is_late for each in lags] == [False, True, False]


def test_the_tables_that_are_most_behind_have_series_and_all_are_counted() -> None:
    found = shown(*(lag(f"t{number}", 600 + number, 10) for number in range(TABLES_SHOWN + 20)))
    lags = [table for name, table in found if name == "lithify_table_lag_seconds"]
    assert len(lags) == TABLES_SHOWN
    assert "t19" not in lags
    assert "t20" in lags
    assert found["lithify_tables_watched", None] == TABLES_SHOWN + 20
    assert found["lithify_tables_late", None] == TABLES_SHOWN + 9


def test_a_keeper_that_does_not_look_any_more_is_seen(clock: ManualClock) -> None:
    keeper = board(MemoryStore(clock), clock)
    keeper.looked([lag("a", 1)], {"ACME.B.V1": "it is gone"})
    keeper.upkept("garbage", {"ACME.C.V1": "denied"})
    clock.sleep(700)
    found = {each.metric.name: each.value for each in keeper.samples()}
    assert (found["keeper_looks"], found["keeper_look_age"], found["keeper_troubles"]) == (1, 700, 2)
    assert keeper.troubles == {"ACME.B.V1": "it is gone", "garbage: ACME.C.V1": "denied"}
    keeper.upkept("garbage", {})
    assert list(keeper.troubles) == ["ACME.B.V1"]


def test_a_minute_has_one_sample_whichever_keeper_of_the_lake_writes_it(clock: ManualClock) -> None:
    store = FaultyStore(MemoryStore(clock))
    first, second = board(store, clock), board(store, clock)
    for _ in range(3):
        look(first, lag("a", 1))
        look(second, lag("a", 9))
        clock.sleep(10)
    clock.sleep(60)
    look(second, lag("a", 9))
    look(LagBoard(store, "s3://other", clock), lag("z", 5))
    found = [(each.lake, each.table, each.lag_seconds) for each in read_samples(store, "2025-10-09")]
    assert sorted(found) == [("s3://lake", "a", 1), ("s3://lake", "a", 9), ("s3://other", "z", 5)]
    assert store.count("put_if_absent") == 4, "a keeper tries once a minute"


def test_a_day_that_is_over_is_one_file_and_its_minutes_go(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    keeper = board(store, clock)
    for number in range(5):
        look(keeper, lag("a", number), lag("b", 2 * number, 7))
        clock.sleep(60)
    before = list(read_samples(store, "2025-10-09"))
    assert close_lag_days(store, "2025-10-09") == []
    assert close_lag_days(store, "2025-10-10") == ["2025-10-09"]
    assert [entry.key for entry in store.list("history/")] == ["history/lag/2025-10-09.parquet"]
    assert list(read_samples(store, "2025-10-09")) == before
    assert len(before) == 10
    assert close_lag_days(store, "2025-10-10") == []


def test_a_closing_that_ended_halfway_is_gone_on_with(clock: ManualClock) -> None:
    store = FaultyStore(MemoryStore(clock))
    look(board(store, clock), lag("a", 1))
    minutes = list(store.list("history/lag_minutes/"))
    body = store.read(minutes[0].key)
    close_lag_days(store, "2025-10-10")
    store.overwrite(minutes[0].key, body or b"")
    assert close_lag_days(store, "2025-10-10") == ["2025-10-09"]
    assert len(list(read_samples(store, "2025-10-09"))) == 1
    assert list(store.list("history/lag_minutes/")) == []


def test_a_sample_that_cannot_be_read_keeps_no_other_day_from_being_closed(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    for _ in range(2):
        look(board(store, clock), lag("a", 1))
        clock.sleep(86_400)
    damaged = next(store.list("history/lag_minutes/2025-10-09/")).key
    body = store.read(damaged) or b""
    store.overwrite(damaged, body[:200])
    with pytest.raises(Corrupt, match=damaged):
        close_lag_days(store, "2025-10-11")
    assert [entry.key for entry in store.list("history/lag/")] == ["history/lag/2025-10-10.parquet"]
    store.overwrite(damaged, body)
    assert close_lag_days(store, "2025-10-11") == ["2025-10-09"]


class ClosedByAnother(MemoryStore):
    """Another dispatcher closes the day that this one has just found open."""

    is_met = False

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        found = list(super().list(prefix, start_after))
        if prefix.startswith("history/lag/") and not self.is_met:
            self.is_met = True
            close_lag_days(self, "2025-10-10")
        return iter(found)


def test_two_dispatchers_may_close_a_day_at_once(clock: ManualClock) -> None:
    store = ClosedByAnother(clock)
    look(board(store, clock), lag("a", 1))
    assert close_lag_days(store, "2025-10-10") == ["2025-10-09"]
    assert len(list(read_samples(store, "2025-10-09"))) == 1
    assert list(store.list("history/lag_minutes/")) == []


def test_upkeep_looks_for_days_to_close_once_a_day_and_again_after_an_error(clock: ManualClock) -> None:
    store = FaultyStore(MemoryStore(clock))
    upkeep = HistoryUpkeep(JobRunStore(store, clock), clock)
    upkeep.round()
    look(board(store, clock), lag("a", 1))
    clock.sleep(86_400)
    store.fail("list_folders", "history/lag_minutes/")
    upkeep.round()
    assert len(list(store.list("history/lag_minutes/"))) == 1
    store.heal()
    upkeep.round()
    assert list(store.list("history/lag_minutes/")) == []
    store.requests.clear()
    upkeep.round()
    assert not any("lag" in key for _, key in store.requests)


def test_any_sql_engine_reads_a_day_as_the_page_says(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(clock)
    look(board(store, clock), *(lag(f"t{number}", number, 10) for number in range(TABLES_SAMPLED + 5)))
    close_lag_days(store, "2025-10-10")
    day = tmp_path / "state" / "history" / "lag" / "2025-10-09.parquet"
    day.parent.mkdir(parents=True)
    day.write_bytes(store.read("history/lag/2025-10-09.parquet") or b"")
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        found = connection.execute(blocks()["lag"]).fetchall()
    assert len(found) == TABLES_SAMPLED
    assert found[0] == (f"t{TABLES_SAMPLED + 4}", NOON_MS // 3_600_000, TABLES_SAMPLED + 4, 1)
