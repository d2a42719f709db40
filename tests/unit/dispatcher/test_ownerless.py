"""Which clusters have an owner, by the logs of open job runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.log.keys import EntryObject
from compactor.model.errors import Unavailable
from compactor.planning.bundle_plan import BundleBounds
from compactor.storage.local import LocalStore
from compactor.storage.location import parse_location
from dispatcher.operations.ownerless import owners_in, sweep_once
from dispatcher.records.keys import JobRunLogFolder, MarkedJobRun
from dispatcher.records.work_id import ShardNumber, WorkId
from launcher.emr.settings import tag_value
from launcher.spark_job import job_name
from launcher.sweep import Owners, Sweep
from tests.fakes.dispatch_desk import Desk
from tests.fakes.small_cluster import Hangs, Succeeds


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.append([{"id": 1, "v": "a"}])
    return desk


def owners(desk: Desk, *job_run_ids: str) -> Owners:
    return owners_in(desk.records, frozenset(tag_value(each) for each in job_run_ids))


def name(desk: Desk, job_run_id: str, attempt: int) -> str:
    return job_name(desk.state.location, job_run_id, f"{job_run_id}.1", attempt)


def test_an_attempt_is_owned_from_before_its_launch_until_its_session_has_ended(desk: Desk) -> None:
    job_run_id = desk.accept()
    assert name(desk, job_run_id, 1) not in owners(desk, job_run_id).names
    seen: list[Owners] = []

    def launched(job: object) -> Hangs:
        seen.append(owners(desk, job_run_id))  # asked by the cluster itself: nothing is written after the launch yet
        return Hangs()

    desk.cluster.behaves = launched
    desk.tick_until(lambda: bool(desk.cluster.launched))
    assert seen[0].names == {name(desk, job_run_id, 1)}
    assert owners(desk, job_run_id).names == {name(desk, job_run_id, 1)}
    desk.close()


def test_the_sessions_of_a_bundle_own_its_cluster_until_the_last_of_them_has_ended(tmp_path: Path) -> None:
    desk = Desk(tmp_path, state=LocalStore(parse_location(str(tmp_path / "state"))), bundles=BundleBounds())
    table = desk.lake.create_table("ACME.DAYS.V1", ["day"])
    for day in "123":
        table.append({"day": day}, pa.table({"id": [1]}))
    held = threading.Event()
    desk.cluster.members = lambda member: Succeeds(held if member.plan.spec.partition == {"day": "3"} else None)
    job_run_id = desk.accept(source_table_id="ACME.DAYS.V1")
    try:
        desk.tick_until(lambda: any(each.end is not None for each in desk.job_run(job_run_id).sessions.values()))
        (job,) = desk.cluster.launched
        assert job.name in owners(desk, job_run_id).names
        held.set()
        desk.run()
        assert owners(desk, job_run_id) == Owners(frozenset())
    finally:
        held.set()
        desk.close()


def test_ended_sessions_own_no_cluster(desk: Desk) -> None:
    job_run_id = desk.accept()
    desk.run()
    assert owners(desk, job_run_id) == Owners(frozenset())
    assert owners(desk, "another") == Owners(frozenset())
    desk.close()


def test_a_job_run_whose_log_cannot_be_read_is_named(desk: Desk) -> None:
    job_run_id = desk.accept(job_run_id="run #1")
    (first, *_) = desk.state.list(f"{JobRunLogFolder(job_run_id).key}/")
    desk.state.overwrite(first.key, b"no entry")
    assert owners(desk, job_run_id).unreadable_job_runs == (job_run_id,)
    assert owners(desk, "another").unreadable_job_runs == ()
    desk.close()


def test_a_shard_whose_log_cannot_be_read_keeps_the_clusters_of_its_job_run(desk: Desk) -> None:
    shard = WorkId("wide", ShardNumber(0, 8))
    desk.records.mark(MarkedJobRun(shard.text, 0, desk.clock.now_ms(), "newer", 1))
    desk.state.put_if_absent(EntryObject(desk.records.log(shard.text).folder, 1).key, b"no entry")
    assert owners(desk, "wide").unreadable_job_runs == ("wide",)
    desk.close()


def test_without_clusters_nothing_is_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job_run_id = desk.accept()

    def list_nothing() -> list[WorkId]:
        raise AssertionError("the open job runs were listed")

    monkeypatch.setattr(desk.records, "open_work", list_nothing)
    assert owners(desk) == Owners(frozenset())
    with pytest.raises(AssertionError):
        owners(desk, job_run_id)
    desk.close()


def test_a_sweep_outlives_a_service_that_does_not_answer(desk: Desk) -> None:
    looks: list[int] = []

    class Silent:
        def launched(self) -> object:
            looks.append(1)
            raise Unavailable("no answer")

        def attach(self, reference: object) -> None:
            return None

    sweep = Sweep(Silent(), desk.state.location, lambda _: Owners(frozenset()), desk.clock)  # type: ignore[arg-type]
    for _ in range(3):
        sweep_once(sweep)
    assert len(looks) == 3
    desk.close()
