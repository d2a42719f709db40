"""What tasks tell the driver of themselves while they run."""

from __future__ import annotations

import socket
from pathlib import Path

import pyarrow as pa

from compactor import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.planning.sizing import Resources
from compactor.sessions.keys import JobRunFolder
from compactor.sessions.session import SessionDependencies, run_session
from compactor.sessions.session_journal import SessionJournal
from compactor.task_progress import REPORT_SECONDS, ProgressAddress, ProgressListener, RowCounter, listening
from tests.builders import TABLE_ID, pinned_session
from tests.fakes.attempts import plan_session
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

HERE = "127.0.0.1"


def check_rows(listener: ProgressListener, rows: int) -> None:
    """A datagram on the loopback interface has arrived when it has been sent."""
    assert listener.rows() == rows


def test_a_task_tells_of_its_rows_once_in_ten_seconds() -> None:
    clock = ManualClock()
    with listening(HERE, HERE, clock) as listener:
        assert listener is not None
        one, other = RowCounter(listener.address, clock), RowCounter(listener.address, clock)
        one.add(5)
        check_rows(listener, 0)
        clock.sleep(REPORT_SECONDS)
        one.add(3)
        check_rows(listener, 8)
        other.add(100)
        check_rows(listener, 108)
        one.add(1)
        other.add(1)
        check_rows(listener, 108)
        clock.sleep(REPORT_SECONDS)
        one.add(1)
        check_rows(listener, 110)


def test_datagrams_that_are_not_reports_of_this_session_are_ignored() -> None:
    clock = ManualClock()
    with listening(HERE, HERE, clock) as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        assert listener is not None
        for report in (b"", b"x", bytes(56), bytes(10_000)):
            stranger.sendto(report, (HERE, listener.address.port))
        address = ProgressAddress(HERE, listener.address.port, clock.new_id(), every_seconds=0)
        RowCounter(address, clock).add(7)
        check_rows(listener, 0)


def test_a_driver_that_cannot_be_reached_fails_no_task() -> None:
    clock = ManualClock()
    counter = RowCounter(ProgressAddress("no.such.host.invalid", 1, clock.new_id(), every_seconds=0), clock)
    counter.add(1)
    counter.add(1)


def test_a_driver_that_cannot_listen_does_without() -> None:
    with listening("driver", "192.0.2.1", SystemClock()) as listener:
        assert listener is None


def test_hash_dedupe_index_and_materialize_all_tell_of_their_rows(tmp_path: Path) -> None:
    clock, rows = SystemClock(), 1_000
    lake = DeltaCatalog.open(tmp_path)
    lake.create_table(TABLE_ID).append({}, pa.table({"id": range(rows), "note": ["x"] * rows}))
    plan = plan_session(pinned_session(lake, TABLE_ID), lake, Resources(task_memory_bytes=2**30, tasks=2))
    journal = SessionJournal(lake.store, JobRunFolder("run-1").session("run-1.1"), 1, clock)
    with listening(HERE, HERE, clock, every_seconds=0) as listener:
        assert listener is not None
        tools = SessionDependencies(lake, UnrulyEngine(), clock, journal, listener.address)
        assert run_session(plan, tools).rows_out == rows
        # Once each when hashed, received by dedupe, left by it, written to the index, and materialized.
        assert listener.rows() >= 5 * rows
