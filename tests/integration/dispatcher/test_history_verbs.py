"""`lithify history`, and SQL over the history: what is left of job runs that have ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import duckdb
import pytest

from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.records.history import EndedJobRun, day_of
from dispatcher.records.history_upkeep import HistoryUpkeep
from dispatcher.records.keys import HistoryDayLog
from tests.conftest import Command
from tests.fakes.dispatch_desk import TABLE, Desk
from tests.fakes.manual_clock import ManualClock
from tests.pages.sources import blocks

START_MS = 1_760_000_000_000
FIRST, SECOND = day_of(START_MS), day_of(START_MS + 86_400_000)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Its state is in a folder. Two job runs ended on the first day, which is closed, and one on the second."""
    clock = ManualClock(START_MS)
    made = Desk(tmp_path, clock=clock, state=open_store(parse_location(str(tmp_path / "state"))))
    made.append([{"id": 1}])
    made.accept(job_run_id="first")
    made.run()
    rejected = made.send(json.dumps({"job_run_id": "mine"}))
    made.take()
    made.publish(rejected)
    made.run()
    clock.sleep(86_400.0)
    made.append([{"id": 2}])
    made.accept(job_run_id="second")
    made.run()
    clock.sleep(3_600.0)
    HistoryUpkeep(made.records, clock).round()
    assert made.records.history.closed_days() == [FIRST]
    yield made
    made.close()


def answer(command: Command, *arguments: str) -> dict[str, list[dict[str, object]]]:
    result = command(*arguments, "-o", "json")
    assert result.exit_code == 0, result.err
    found: dict[str, list[dict[str, object]]] = json.loads(result.out)
    return found


def test_the_history_has_every_job_run_that_has_ended_the_latest_first(
    desk: Desk, tmp_path: Path, command: Command
) -> None:
    state = ("--state", str(tmp_path / "state"))
    found = answer(command, "history", *state)["job_runs"]
    assert [(each["day"], each["status"]) for each in found] == [
        (SECOND, "succeeded"),
        (FIRST, "rejected"),
        (FIRST, "succeeded"),
    ]
    assert (found[0]["job_run_id"], found[0]["table"], found[0]["rows_out"]) == ("second", TABLE, 2)
    (rejected,) = answer(command, "history", *state, "--status", "rejected")["job_runs"]
    assert rejected["reasons"]
    (listed,) = [each for each in answer(command, "status", *state)["job_runs"] if each["status"] == "rejected"]
    assert [each["job_run_id"] for each in (rejected, listed)] == ["mine"] * 2
    assert rejected["message_id"] == listed["message_id"] != "mine"
    assert len(answer(command, "history", *state, "--until", FIRST)["job_runs"]) == 2
    assert len(answer(command, "history", *state, "--since", SECOND, "--table", TABLE)["job_runs"]) == 1
    assert answer(command, "history", *state, "--table", "ACME.OTHER.V1")["job_runs"] == []
    assert set(found[0]) == {"day", "message_id", *EndedJobRun.model_fields}
    assert "second" in command("history", *state).out


def test_a_day_that_cannot_be_read_is_named_beside_the_others(desk: Desk, tmp_path: Path, command: Command) -> None:
    damaged = tmp_path / "state" / HistoryDayLog(SECOND).key / f"{1:020d}.json"
    damaged.write_text("{damaged")
    for output in ("text", "json", "jsonl"):
        result = command("history", "--state", str(tmp_path / "state"), "-o", output)
        assert (result.exit_code, "first" in result.out) == (1, True)
        assert f"lithify: {SECOND}: history/days/{SECOND}/log/" in result.err
        if output == "json":
            assert list(json.loads(result.out)["failed"]) == [SECOND]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is no day"),
        (("--since", "2026-11-02", "--until", "2026-11-01"), "is after"),
        (("--status", "lost"), "'lost' is not one of 'succeeded', 'failed', 'cancelled', 'rejected'"),
    ],
)
def test_meaningless_options_are_refused(
    desk: Desk, tmp_path: Path, command: Command, arguments: tuple[str, ...], message: str
) -> None:
    refused = command("history", "--state", str(tmp_path / "state"), *arguments)
    assert refused.exit_code == 2
    assert message in refused.err


def test_status_shows_the_latest_that_have_ended_and_says_where_the_others_are(
    desk: Desk, tmp_path: Path, command: Command
) -> None:
    state = ("--state", str(tmp_path / "state"))
    assert len(answer(command, "status", *state)["job_runs"]) == 3
    result = command("status", *state, "--last", "1")
    assert "second" in result.out
    assert "`lithify history` shows all" in result.out


def test_the_pages_query_of_the_history_is_answered(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answered = duckdb.sql(blocks()["history"])
    assert answered is not None
    assert answered.columns == ["table", "day", "job_runs", "seconds", "usd"]
    assert [row[:3] for row in answered.fetchall()] == [(TABLE, date.fromisoformat(FIRST), 1)]
