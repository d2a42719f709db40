"""What a dispatcher works on is opened once, however many job runs there are."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from compactor.lake import DeltaCatalog
from compactor.storage.location import StoreLocation
from compactor.storage.opening import open_store
from dispatcher.assembly import LAKES_KEPT, DispatcherSettings, ExternalServices, OpenLakes, build_dispatcher
from dispatcher.intake.admission import Admission
from dispatcher.intake.intake import IntakeSettings
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.service import ServiceSettings
from tests.fakes.dispatch_desk import ANSWERS_AT_ONCE, QUICK, TELLS_AT_ONCE, Desk, instruction
from tests.fakes.memory_glue import MemoryGlue


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_dispatcher_opens_its_lake_once_for_all_job_runs(desk: Desk) -> None:
    opened: list[StoreLocation] = []

    def open_lake(location: StoreLocation) -> DeltaCatalog:
        opened.append(location)
        return DeltaCatalog(open_store(location), desk.clock)

    job_runs = 5
    desk.append([{"id": 1}])
    for number in range(job_runs):
        desk.send(instruction(job_run_id=f"run-{number}"))
    outside = ExternalServices(
        queue=desk.queue,
        state=desk.state,
        cluster=desk.cluster,
        open_lake=open_lake,
        open_glue=lambda _: MemoryGlue(),
        sink_for=lambda _: desk.sink,
        callbacks=desk.callbacks,
        owner="once",
        clock=desk.clock,
    )
    settings = DispatcherSettings(
        intake=IntakeSettings(admission=Admission(own_lake=desk.lake.location)),
        controller=JobRunControllerSettings(tick_seconds=0.01, sweep_seconds=0.0),
        publisher=TELLS_AT_ONCE,
        answers=ANSWERS_AT_ONCE,
        launcher=QUICK,
        service=ServiceSettings(until_idle=True),
    )
    assert build_dispatcher(outside, settings).run(threading.Event()) == ()
    assert [desk.job_run(f"run-{number}").status for number in range(job_runs)] == ["succeeded"] * job_runs
    assert len(opened) == 1


def test_lakes_that_were_not_used_for_long_are_closed(desk: Desk) -> None:
    opened: list[StoreLocation] = []

    def open_lake(location: StoreLocation) -> DeltaCatalog:
        opened.append(location)
        return desk.lake

    lakes = OpenLakes(open_lake)
    first = StoreLocation("file:///lake/0")
    for number in range(LAKES_KEPT + 1):
        lakes.at(StoreLocation(f"file:///lake/{number}"))
        lakes.at(first)
    assert opened.count(first) == 1
    lakes.at(StoreLocation("file:///lake/1"))
    assert len(opened) == LAKES_KEPT + 2
