"""`lithify pause`, `resume`, and what `status` shows of them and of workflows that wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from tests.conftest import Command
from tests.fakes.dispatch_desk import TABLE, Desk

State = tuple[str, str]


@pytest.fixture
def state(tmp_path: Path) -> State:
    return ("--state", str(tmp_path / "state"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Its state is in a folder. One job run waits, for which a workflow waits."""
    made = Desk(tmp_path, state=open_store(parse_location(str(tmp_path / "state"))))
    made.append([{"id": 1}])
    made.accept(job_run_id="run", task_token="a secret of the workflow")
    yield made
    made.close()


def test_a_table_is_paused_and_resumed_and_status_shows_it(desk: Desk, state: State, command: Command) -> None:
    result = command("pause", "--table", TABLE, "--reason", "the lake moves", *state)
    assert (result.exit_code, result.out) == (0, f"table {TABLE} is paused.\n")
    assert command("pause", "--table", TABLE, *state).out == f"table {TABLE} is paused already.\n"
    desk.tick()
    assert f"table {TABLE} (the lake moves)" in command("status", *state).out
    shown = command("status", "run", *state).out
    assert f"paused (table {TABLE}: the lake moves)" in shown
    listed = json.loads(command("status", *state, "-o", "json").out)
    assert [(each["table"], each["reason"]) for each in listed["paused"]] == [(TABLE, "the lake moves")]
    assert command("resume", "--table", TABLE, *state).exit_code == 0
    assert "Paused" not in command("status", *state).out


def test_a_pause_names_exactly_one_existing_scope(desk: Desk, state: State, command: Command) -> None:
    for wrong, reason in (
        ((), "one thing only"),
        (("run", "--everything"), "one thing only"),
        (("nobody",), "there is no job run 'nobody' here: `lithify status` lists"),
        (("--table", "orders"), "orders"),
    ):
        result = command("pause", *wrong, *state)
        assert (result.exit_code, reason in result.err) == (2, True), result.err


@pytest.mark.parametrize("verb", ["pause", "cancel"])
def test_a_reason_that_is_not_unicode_is_refused(desk: Desk, state: State, command: Command, verb: str) -> None:
    result = command(verb, "run", "--reason", "\udcff", *state)
    assert (result.exit_code, result.err) == (2, "lithify: --reason '\\udcff' is not Unicode text\n")


def test_only_paused_scopes_can_be_resumed_and_the_answer_lists_them(
    desk: Desk, state: State, command: Command
) -> None:
    command("pause", "--everything", *state)
    result = command("resume", "run", *state)
    assert result.exit_code == 2
    assert "job run run is not paused: everything is" in result.err


def test_status_shows_that_a_workflow_waits_and_not_its_token(desk: Desk, state: State, command: Command) -> None:
    for form in ("text", "json"):
        result = command("status", "run", *state, "-o", form)
        assert "secret" not in result.out
        assert ("waited for by 1 workflow" if form == "text" else '"waiters": 1') in result.out
