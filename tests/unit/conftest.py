"""A lake on a manual clock; and the rule that a unit test starts no process, opens no listening socket and sleeps for
nothing but the next look at a thread."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from compactor import DeltaCatalog
from tests.fakes.manual_clock import ManualClock

_PROCESS_STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
_in_unit_test = False


def _refuse_processes(event: str, _: object) -> None:
    """An audit hook, which sees every way to start a process. It can never be removed, so it has a switch."""
    if _in_unit_test and event in _PROCESS_STARTS:
        pytest.fail(f"a unit test must not start a process ({event}): move it to tests/integration")


sys.addaudithook(_refuse_processes)


def _refuse_listening(*_: object) -> NoReturn:
    pytest.fail("a unit test must not open a listening socket: move it to tests/integration")


POLL_SECONDS_MAX = 0.02
"""A test that waits for a thread without an event of its own looks again after a moment: `tests/waiting.py`."""

_sleep = time.sleep


def _poll(seconds: float) -> None:
    # A thread that PySpark started for an earlier test of this process sleeps as it likes.
    if seconds > POLL_SECONDS_MAX and sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] != "py4j":
        pytest.fail(f"a unit test must not sleep ({seconds} s): move a ManualClock on, or wait for an event")
    _sleep(seconds)


@pytest.fixture(autouse=True)
def no_processes_no_servers_and_no_sleep(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    global _in_unit_test  # noqa: PLW0603  (see _refuse_processes)
    monkeypatch.setattr(time, "sleep", _poll)
    monkeypatch.setattr(socket.socket, "listen", _refuse_listening)
    _in_unit_test = True
    yield
    _in_unit_test = False


@pytest.fixture
def clock() -> ManualClock:
    """It starts now, since files bear the time of the file system."""
    return ManualClock(time.time_ns() // 1_000_000)


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock) -> DeltaCatalog:
    return DeltaCatalog.open(tmp_path / "lake", clock=clock)


@pytest.fixture
def interrupts_are_errors() -> Iterator[None]:
    """As in a process of its own: another test may have left a handler that only notes the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
