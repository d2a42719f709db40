"""`lithify status` as it is shown: ids that look like markup, colours and widths of a terminal, forms for programs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.records.keys import LiveDispatcher
from dispatcher.records.liveness import LivenessSignal
from tests.conftest import Command
from tests.fakes.dispatch_desk import TABLE, Desk, instruction
from tests.fakes.manual_clock import ManualClock

REPOSITORY = Path(__file__).parents[3]
LIKE_MARKUP = "x[/]"
LIKE_AN_ORDER = "\x1b[2J[red]"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Its state is in a folder. One job run has succeeded, one was rejected; their ids look like markup."""
    made = Desk(tmp_path, state=open_store(parse_location(str(tmp_path / "state"))))
    made.append([{"id": 1}, {"id": 1}])
    made.accept(job_run_id=LIKE_MARKUP)
    made.run()
    made.send({"job_run_id": LIKE_AN_ORDER, "schema_version": "1", "source_table_id": TABLE, "primary_keys": ["[/]"]})
    made.take()
    yield made
    made.close()


def test_a_job_run_whose_id_is_markup_is_listed_and_shown_as_it_is(
    desk: Desk, tmp_path: Path, command: Command
) -> None:
    state = ("--state", str(tmp_path / "state"))
    for arguments in ((), (LIKE_MARKUP,)):
        result = command("status", *arguments, *state)
        assert result.exit_code == 0, result.err
        assert LIKE_MARKUP in result.out
    assert command("watch", LIKE_MARKUP, *state).exit_code == 0


def test_job_runs_are_listed_in_forms_for_programs(desk: Desk, tmp_path: Path, command: Command) -> None:
    state = ("--state", str(tmp_path / "state"))
    listed = json.loads(command("status", *state, "-o", "json").out)["job_runs"]
    lines = [json.loads(line) for line in command("status", *state, "-o", "jsonl").out.splitlines()]
    names = [each["job_run_id"] for each in listed]
    assert LIKE_MARKUP in names
    assert [each["job_run_id"] for each in lines] == names
    keys = {key for each in listed for key in each}
    assert not any(" " in key for key in keys)


def test_a_session_names_its_partition_as_an_object_of_values(desk: Desk, tmp_path: Path, command: Command) -> None:
    shown = json.loads(command("status", LIKE_MARKUP, "--state", str(tmp_path / "state"), "-o", "json").out)
    assert [session["partition"] for session in shown["sessions"]] == [{}]


def test_the_list_names_each_dispatcher_and_when_it_last_signalled(tmp_path: Path, command: Command) -> None:
    (tmp_path / "state").mkdir()
    place = ("--state", str(tmp_path / "state"))
    assert "No dispatcher runs on this state." in command("status", *place).out
    state, clock = open_store(parse_location(str(tmp_path / "state"))), ManualClock()
    for owner in ("host-a", "host-b"):
        LivenessSignal(state, owner, 300.0, clock).signal_when_due()
    changed_at = time.time() - 400
    os.utime(tmp_path / "state" / LiveDispatcher("host-b").key, (changed_at, changed_at))
    shown = command("status", *place).out
    assert re.search(r"^Dispatcher host-a signalled \d+ s ago\.$", shown, re.M)
    assert re.search(r"^Dispatcher host-b signalled 7 min ago\.$", shown, re.M)
    listed = json.loads(command("status", *place, "-o", "json").out)["dispatchers"]
    assert [each["owner"] for each in listed] == ["host-a", "host-b"]
    assert [each["seconds_ago"] >= 400 for each in listed] == [False, True]


@pytest.mark.slow
def test_a_narrow_terminal_shows_whole_words_and_what_failed_in_red(desk: Desk, tmp_path: Path) -> None:
    out = on_a_terminal(60, "status", "--state", str(tmp_path / "state"))
    assert re.search("\x1b\\[[0-9;]*31m(rejected|failed)", out)
    plain = re.sub("\x1b\\[[0-9;]*m", "", out)
    assert "\x1b" not in plain
    lines = plain.splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert any(line.split() == ["job", "run", LIKE_MARKUP] for line in lines)
    assert any(line.split() == ["table", TABLE] for line in lines)


def on_a_terminal(columns: int, *arguments: str) -> str:
    """What `lithify` writes on a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "dispatcher.start", *arguments],
        env={**environment, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color"},
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    output = b""
    while True:
        try:
            output += os.read(ours, 65_536)
        except OSError:  # nobody has the terminal any more
            break
    os.close(ours)
    assert process.wait(60) == 0, output
    return output.decode().replace("\r\n", "\n")


def test_watching_for_a_while_what_no_dispatcher_takes_says_so_and_exits_with_1(
    tmp_path: Path, command: Command
) -> None:
    result = command("watch", "nobody", "--timeout", "0", "--state", str(tmp_path / "state"))
    assert result.exit_code == 1
    assert result.out.endswith("  no dispatcher has taken nobody yet: waiting for it\n")
    assert result.err.startswith("lithify: no dispatcher has taken job run 'nobody' within 0 s: is one running")


def test_watch_of_a_corrected_document_ignores_the_rejection_of_an_earlier_one(
    tmp_path: Path, command: Command
) -> None:
    state = ("--state", str(tmp_path / "state"))
    desk = Desk(tmp_path, state=open_store(parse_location(str(tmp_path / "state"))))
    desk.append([{"id": 1}])
    wrong = desk.send(instruction(job_run_id="run", primary_keys=["no such column"]))
    desk.take()
    corrected = desk.send(instruction(job_run_id="run"))
    assert "no dispatcher has taken job run 'run'" in (
        command("watch", "run", *state, "--message-id", corrected, "--timeout", "0").err
    )
    assert command("watch", "run", *state).exit_code == 1
    desk.take()
    desk.controller.offer("run")
    desk.run()
    assert command("watch", "run", *state, "--message-id", corrected).exit_code == 0
    result = command("watch", "run", *state, "--message-id", wrong)
    assert result.exit_code == 1
    assert "no such column" in result.out
    desk.close()


def test_a_document_that_is_refused_since_its_id_was_used_is_watched_to_its_own_rejection(
    desk: Desk, tmp_path: Path, command: Command
) -> None:
    other = desk.send(instruction(job_run_id=LIKE_MARKUP, priority=3))
    desk.take()
    result = command("watch", LIKE_MARKUP, "--state", str(tmp_path / "state"), "--message-id", other)
    assert result.exit_code == 1
    assert "was used before, for other content" in result.out


def test_watching_without_a_terminal_is_a_line_a_change_and_then_the_whole(
    desk: Desk, tmp_path: Path, command: Command
) -> None:
    result = command("watch", LIKE_MARKUP, "--state", str(tmp_path / "state"))
    first, second, *whole = result.out.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  succeeded", first)
    assert "(unpartitioned): succeeded, 2 delta rows, 1 row after, " in second
    assert whole[0] == f"{LIKE_MARKUP}  succeeded"
    lines = command("watch", LIKE_MARKUP, "--state", str(tmp_path / "state"), "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["succeeded"]


def test_a_job_run_that_is_over_is_not_cancelled(desk: Desk, tmp_path: Path, command: Command) -> None:
    result = command("cancel", LIKE_MARKUP, "--state", str(tmp_path / "state"))
    assert result.exit_code == 2
    assert result.err == f"lithify: job run {LIKE_MARKUP} is over: it has succeeded\n"
