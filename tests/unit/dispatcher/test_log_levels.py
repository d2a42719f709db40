"""The log line of an end has the severity of its event, and says why."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from compactor.model.errors import Corrupt
from compactor.planning.bundle_plan import BundleBounds, BundleMember
from compactor.storage.local import LocalStore
from compactor.storage.location import parse_location
from dispatcher.records.job_run_log import CancelRequested
from tests.fakes.dispatch_desk import Desk
from tests.fakes.small_cluster import Fails, Hangs, MemberRuns, Succeeds

DAMAGED = "a page of x.parquet is damaged"
DAYS = "ACME.DAYS.V1"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.append([{"id": 1}])
    yield desk
    desk.close()


def line(lines: list[MutableMapping[str, Any]], event: str) -> MutableMapping[str, Any]:
    (found,) = [each for each in lines if each["event"] == event]
    return found


def test_a_failure_is_an_error_with_its_reason(desk: Desk) -> None:
    desk.cluster.behaves = lambda _: Fails(Corrupt(DAMAGED))
    with capture_logs() as lines:
        desk.accept(job_run_id="run")
        desk.run()
    for event in ("session_ended", "job_run_ended"):
        assert line(lines, event)["log_level"] == "error"
        assert DAMAGED in line(lines, event)["reasons"]


def test_a_success_is_no_more_than_news(desk: Desk) -> None:
    with capture_logs() as lines:
        desk.accept(job_run_id="run")
        desk.run()
    assert {line(lines, event)["log_level"] for event in ("message_taken", "session_ended", "job_run_ended")} == {
        "info"
    }


def test_a_cancel_is_a_warning(desk: Desk) -> None:
    desk.cluster.behaves = lambda _: Hangs()
    with capture_logs() as lines:
        desk.accept(job_run_id="run")
        desk.tick_until(lambda: bool(desk.cluster.launched))
        desk.records.log("run").append(lambda _: [CancelRequested(reason="not needed")])
        desk.run()
    for event in ("session_ended", "job_run_ended"):
        assert line(lines, event)["log_level"] == "warning"
    assert line(lines, "job_run_ended")["reasons"] == "not needed"


def test_a_document_that_can_never_work_is_an_error(desk: Desk) -> None:
    with capture_logs() as lines:
        desk.send("{}")
        desk.take()
    taken = line(lines, "message_taken")
    assert (taken["log_level"], taken["outcome"]) == ("error", "Rejected")


def test_a_failure_in_a_bundle_is_an_error_that_names_its_session(tmp_path: Path) -> None:
    state = LocalStore(parse_location(str(tmp_path / "state")))
    desk = Desk(tmp_path, state=state, bundles=BundleBounds())
    desk.append_days(DAYS, 3)

    def behaves(member: BundleMember) -> MemberRuns:
        return Fails(Corrupt(DAMAGED)) if member.plan.spec.partition == {"day": "2"} else Succeeds()

    desk.cluster.members = behaves
    with capture_logs() as lines:
        desk.accept(job_run_id="run", source_table_id=DAYS)
        desk.run()
    settled = [each for each in lines if each["event"] == "sessions_settled" and "failed" in each]
    assert [(each["log_level"], each["reasons"]) for each in settled] == [("error", f"run.2: {DAMAGED}")]
    assert {each["log_level"] for each in lines if each["event"] == "sessions_settled" and "failed" not in each} <= {
        "info"
    }
    desk.close()
