"""What a dispatcher says of itself while it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compactor.model.clock import SystemClock
from compactor.model.errors import Denied, Unavailable
from dispatcher.assembly import DispatcherSettings
from dispatcher.operations.health import HEALTH_FILE, HealthFile, read_health
from dispatcher.options.service_options import ServiceOptions, ServicePlaces
from dispatcher.options.settings import dispatcher_settings
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.service import health_file
from tests.conftest import Command
from tests.fakes.dispatch_desk import Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_sink import MemorySink


def test_a_report_names_each_trouble_with_its_kind_and_since_when(tmp_path: Path) -> None:
    clock = ManualClock()
    file = HealthFile(tmp_path / HEALTH_FILE, "me", 5.0, clock)
    file.write_when_due({}, 3)
    report = read_health(tmp_path / HEALTH_FILE)
    assert (report.owner, report.job_runs_held, report.troubles) == ("me", 3, ())

    clock.sleep(1)
    began_ms = clock.now_ms()
    file.write_when_due({"queue": Denied("ExpiredToken")}, 3)  # not due yet
    assert read_health(tmp_path / HEALTH_FILE).troubles == ()
    clock.sleep(4)
    file.write_when_due({"queue": Denied("ExpiredToken"), "state": ValueError("a bug")}, 3)
    queue, state = read_health(tmp_path / HEALTH_FILE).troubles
    assert (queue.place, queue.error_kind, queue.reason, queue.since_ms) == (
        "queue",
        "Denied",
        "ExpiredToken",
        began_ms,
    )
    assert (state.place, state.error_kind) == ("state", "bug")

    clock.sleep(5)
    file.write_when_due({}, 0)
    assert read_health(tmp_path / HEALTH_FILE).troubles == ()


def test_where_no_dispatcher_has_reported_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does a dispatcher run with this work folder"):
        read_health(tmp_path / HEALTH_FILE)


def test_a_topic_and_a_state_in_trouble_are_seen_until_they_answer(tmp_path: Path) -> None:
    desk = Desk(tmp_path, sink=MemorySink([Denied("ExpiredToken")]))
    store = FaultyStore(desk.state)
    desk = desk.second(state=store)
    desk.append([{"id": 1}])
    desk.accept()
    desk.tick()
    assert {place: str(error) for place, error in desk.publisher.troubles.items()} == {"topic": "ExpiredToken"}
    store.fail("list", "open_job_runs", times=None)
    desk.tick()
    assert isinstance(desk.controller.last_error, Unavailable)
    store.heal()
    desk.run()
    errors = {**desk.publisher.troubles, "state": desk.controller.last_error}
    assert errors == {"state": None}
    desk.close()


def test_the_verb_s_exit_code_says_whether_a_dispatcher_is_well(tmp_path: Path, command: Command) -> None:
    file, clock = tmp_path / HEALTH_FILE, ManualClock()
    verb = ("health", "--work-folder", str(tmp_path))
    assert command(*verb).exit_code == 1

    clock.set_ms(32_503_680_000_000)  # no report is older than that
    HealthFile(file, "me", 0, clock).write_when_due({}, 1)
    well = command(*verb)
    assert (well.exit_code, well.out) == (0, "me is well and holds 1 job run.\n")

    HealthFile(file, "me", 0, clock).write_when_due({"queue": Denied("the token has expired")}, 1)
    denied = command(*verb, "--output", "json")
    assert denied.exit_code == 1
    answer = json.loads(denied.out)
    assert (answer["is_well"], answer["troubles"][0]["error_kind"]) == (False, "Denied")

    HealthFile(file, "me", 0, ManualClock()).write_when_due({}, 1)
    gone = command(*verb)
    assert gone.exit_code == 1
    assert "has not reported for" in gone.out


def test_a_dispatcher_that_was_killed_is_gone_once_others_take_over_from_it(tmp_path: Path, command: Command) -> None:
    """By what its options were, which the last report has; a minute at most."""
    for claim_seconds, gone_after_seconds in ((10.0, 10.0), (300.0, 60.0)):
        controller = JobRunControllerSettings(claim_seconds=claim_seconds)
        options = ServiceOptions(
            places=ServicePlaces(work_folder=tmp_path), dispatcher=DispatcherSettings(controller=controller)
        )
        settings = dispatcher_settings(options, {}).service
        assert settings.health_seconds <= claim_seconds / 3, "or it would be taken for dead while it is well"
        clock = ManualClock()
        clock.set_ms(SystemClock().now_ms() - round(gone_after_seconds * 1000) - 1_000)
        health_file(settings, "me", clock).write_when_due({}, 1)
        assert command("health", "--work-folder", str(tmp_path)).exit_code == 1
        assert command("health", "--work-folder", str(tmp_path), "--age-seconds-max", "3600").exit_code == 0
