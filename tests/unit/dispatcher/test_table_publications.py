"""A dispatcher publishes what its sessions commit, and no failure of that ends a session or a dispatcher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.publishing.delta import DeltaPublisher
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from dispatcher.records.job_run_log import JobRunStatus
from tests.fakes.dispatch_desk import TABLE, Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.small_cluster import Hangs


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def entries(desk: Desk) -> dict[str, int]:
    return dict(DeltaPublisher(desk.lake.store, TABLE, (), SystemClock()).state().entries)


def events_of(desk: Desk, what: str) -> list[dict[str, object]]:
    desk.publisher.publish_round()
    return [event.data.model_dump() for event in desk.sink.events if event.type == f"lithify.table.{what}.v1"]


def published_table(desk: Desk) -> None:
    desk.lake.create_table(TABLE, properties={"publish": "delta"})
    desk.append([{"id": 1}, {"id": 2}])


def test_what_a_session_commits_is_published_and_told(desk: Desk) -> None:
    published_table(desk)
    job_run_id = desk.accept()
    desk.run()
    assert not desk.tables.is_idle
    desk.tables.publish_round()
    assert desk.tables.is_idle
    newest = desk.lake.table(TABLE).stream({}).load().entry_number
    assert entries(desk) == {"_": newest}
    (event,) = events_of(desk, "published")
    assert (event["published_table_id"], event["format"], event["version"]) == (TABLE, "delta", 0)
    assert (event["entries"], event["files_added"], event["rows"], event["refused"]) == ({"_": newest}, 1, 2, ())
    (whole,) = [each for each in desk.sink.events if each.type == "lithify.table.published.v1"]
    assert (whole.jobrunid, whole.table, whole.severity) == (job_run_id, TABLE, "info")
    desk.tables.publish_round()
    assert len(events_of(desk, "published")) == 1


def test_a_table_that_was_dropped_is_due_no_more(desk: Desk) -> None:
    published_table(desk)
    desk.accept()
    desk.run()
    desk.lake.drop_table(TABLE, dry_run=False)
    desk.tables.publish_round()
    desk.move_on(24 * 3_600)
    assert desk.tables.is_idle


def test_a_job_run_that_has_ended_or_was_lost_is_not_remembered_and_what_it_committed_is_published(desk: Desk) -> None:
    published_table(desk)
    desk.accept()
    desk.run()
    assert desk.tables.followed == frozenset()
    desk.tables.publish_round()
    assert entries(desk) == {"_": desk.lake.table(TABLE).stream({}).load().entry_number}
    desk.cluster.behaves = lambda _: Hangs()
    desk.append([{"id": 3}])
    left = desk.accept()
    desk.tick_until(lambda: desk.cluster.running == 1)
    assert desk.tables.followed == {left}
    desk.controller.drain(0, stops_jobs=lambda: True)
    assert desk.tables.followed == frozenset()


def test_a_table_that_is_not_published_is_asked_for_once_a_minute_and_writes_nothing(
    desk: Desk, tmp_path: Path
) -> None:
    desk.append([{"id": 1}])
    desk.accept()
    desk.run()
    desk.tables.publish_round()
    assert desk.tables.is_idle
    assert not (tmp_path / "lake" / "tables" / TABLE / "compacted").exists()
    assert events_of(desk, "published") == events_of(desk, "publish_failed") == []


def test_a_failed_publication_is_told_and_tried_again_and_the_job_run_succeeds(tmp_path: Path) -> None:
    store = FaultyStore(LocalStore(StoreLocation(f"file://{tmp_path / 'lake'}")))
    desk = Desk(tmp_path, clock=ManualClock(), open_lake=lambda _: DeltaCatalog(store, SystemClock()))
    published_table(desk)
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    store.fail("put_if_absent", "_delta_log", times=None)
    desk.tables.publish_round()
    (failed,) = events_of(desk, "publish_failed")
    assert "it is not known whether" in str(failed["reasons"])
    assert desk.tables.is_idle, "the table is left alone for a while"
    store.heal()
    desk.tables.publish_round()
    assert entries(desk) == {}
    desk.move_on(10)
    assert not desk.tables.is_idle
    desk.tables.publish_round()
    assert len(entries(desk)) == 1
    assert len(events_of(desk, "published")) == 1
    desk.close()


def test_the_first_publish_of_a_table_catches_up_with_what_an_earlier_dispatcher_left(desk: Desk) -> None:
    lake = desk.lake
    table = lake.create_table("ACME.DAYS.V1", ["day"], primary_keys={"id"}, properties={"publish": "delta"})
    import pyarrow as pa

    table.append({"day": "1"}, pa.table({"id": [1]}))
    desk.accept(source_table_id="ACME.DAYS.V1", primary_keys=None)
    desk.run()  # and is gone before it has published
    second = desk.second()
    table.append({"day": "2"}, pa.table({"id": [1]}))
    second.accept(source_table_id="ACME.DAYS.V1", primary_keys=None, partitions=[{"day": "2"}])
    second.run()
    second.tables.publish_round()
    state = DeltaPublisher(lake.store, "ACME.DAYS.V1", ("day",), SystemClock()).state()
    assert sorted(state.entries) == ["day=1", "day=2"]
    second.close()


def test_partitions_that_cannot_be_published_are_told_with_the_reason(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.accept()
    desk.run()
    desk.lake.table(TABLE).set_properties({"publish": "delta"})  # what is compacted is not open yet
    desk.move_on(100)
    desk.tables.publish_round()
    (event,) = events_of(desk, "publish_failed")
    assert "compact the partition again" in str(event["reasons"])
