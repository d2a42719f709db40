"""How often a dispatcher asks its stores: what it has read or written itself, it does not read again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactor.lake import DeltaCatalog
from compactor.storage.location import StoreLocation
from compactor.storage.opening import open_store
from dispatcher.intake.intake import Accepted
from dispatcher.records.keys import LiveDispatcher, MarkedJobRun
from dispatcher.records.liveness import SignOfLife
from dispatcher.records.ranking import stream_digest, table_digest
from dispatcher.running.job_run_controller import JobRunControllerSettings
from tests.fakes.dispatch_desk import TABLE, Busy, Desk, instruction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.unit.dispatcher.test_session_finding import WIDE, append_days

RUN_LOG = "job_runs/run/log/"
TABLE_LOG = f"tables/{TABLE}/log/"
STREAM_LOG = f"tables/{TABLE}/streams/_/log/"


@dataclass
class Counted:
    """A dispatcher whose stores count. `lakes`: one for each time that the lake was opened."""

    desk: Desk
    state: FaultyStore
    lakes: list[FaultyStore] = field(default_factory=list)

    def accept(self) -> None:
        self.desk.append([{"id": 1}])
        self.desk.accept(job_run_id="run")


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    clock = ManualClock()
    state, lakes = FaultyStore(MemoryStore(clock)), list[FaultyStore]()

    def open_lake(location: StoreLocation) -> DeltaCatalog:
        lakes.append(FaultyStore(open_store(location)))
        return DeltaCatalog(lakes[-1], clock)

    desk = Desk(tmp_path, clock=clock, state=state, open_lake=open_lake)
    yield Counted(desk, state, lakes)
    desk.close()


def entry(folder: str, number: int) -> str:
    return f"{folder}{number:020d}.json"


def test_an_instruction_is_accepted_with_five_requests_to_the_state(counted: Counted) -> None:
    counted.desk.append([{"id": 1}])
    table, stream = table_digest(counted.desk.lake.location, TABLE), stream_digest({})
    marker = f"open_job_runs_by_owner/run,0,1760000000000,0,_,{table},{stream}"
    message_id = counted.desk.send(instruction(job_run_id="run"))
    counted.desk.take()
    assert counted.state.requests == [
        ("read", entry(f"job_runs/{message_id}/log/", 1)),  # was this message rejected?
        ("read", entry(RUN_LOG, 1)),  # is there a job run of this id?
        ("put_if_absent", marker),
        ("put_if_absent", entry(RUN_LOG, 1)),
        ("put_if_absent", marker),  # it may have been given up before the entry stood
    ]


def test_an_instruction_is_accepted_with_one_read_of_each_entry_of_its_table_and_its_stream(counted: Counted) -> None:
    counted.accept()
    (lake,) = counted.lakes
    assert lake.count("read", TABLE_LOG) == 2  # its only entry, and that there is no other
    assert lake.count("read", entry(STREAM_LOG, 1)) == 1
    assert lake.count("read", entry(STREAM_LOG, 2)) == 1
    assert lake.count("read", entry(STREAM_LOG, 3)) == 1  # whether an entry was lost, of a log in a folder
    assert lake.count("read") == 6


def test_a_job_run_is_claimed_by_who_accepted_it_without_reading_what_was_written(counted: Counted) -> None:
    counted.accept()
    counted.state.requests.clear()
    counted.desk.controller.tick()
    claimed = counted.state.requests.index(("put_if_absent", entry(RUN_LOG, 2)))
    assert [request for request in counted.state.requests[:claimed] if request[0] == "read"] == [
        ("read", entry("turns/log/", 1)),  # does anybody run on its stream?
    ]
    assert ("read", entry(RUN_LOG, 2)) not in counted.state.requests[claimed:]


def test_of_a_whole_job_run_the_first_two_entries_are_never_read_again(counted: Counted) -> None:
    counted.accept()
    counted.desk.run()
    assert counted.desk.job_run("run").status == "succeeded"
    own = counted.state.requests[:-1]
    assert own.count(("read", entry(RUN_LOG, 1))) <= 2  # before it was written; and by this test's last look
    assert own.count(("read", entry(RUN_LOG, 2))) <= 3


def test_no_cursor_is_read_of_sessions_that_were_found_after_the_job_run_was_claimed(counted: Counted) -> None:
    append_days(DeltaCatalog(counted.desk.lake.store, counted.desk.clock))
    job_run_id = counted.desk.accept(source_table_id=WIDE)
    counted.desk.run()
    assert counted.desk.job_run(job_run_id).status == "succeeded"
    cursors = [request for request in counted.state.requests if request[1].endswith("/published.json")]
    assert {operation for operation, key in cursors if "/sessions/" in key} == {"overwrite"}


# ---------------------------------------------------------------------------------------------------- bounds a minute


MINUTES = 20


def requests_a_minute(desk: Desk, state: FaultyStore) -> float:
    """While a dispatcher ticks once a second, and tells what there is to tell."""
    state.requests.clear()
    for _ in range(MINUTES * 60):
        desk.clock.sleep(1.0)
        desk.tick()
    return len(state.requests) / MINUTES


def quiet(counted: Counted, owner: str, max_sessions: int = 1) -> Desk:
    """A dispatcher with the settings that a service has, whose sessions are planned until it is closed."""
    settings = JobRunControllerSettings(max_sessions=max_sessions, max_job_runs=50)
    return Busy(
        counted.desk.folder, counted.desk.clock, counted.state, counted.desk.queue, settings=settings, owner=owner
    )


def marked(state: FaultyStore, owner: str, count: int) -> None:
    """So many job runs that somebody holds, as far as their markers say."""
    for number in range(count):
        state.put_if_absent(MarkedJobRun(f"run {number}", 0, number, owner, 1).key, b"")
    sign = SignOfLife(owner=owner, beat=1, at_ms=1, silent_seconds=300.0)
    state.overwrite(LiveDispatcher(owner).key, sign.render())


def test_an_idle_dispatcher_asks_3_times_a_minute(counted: Counted) -> None:
    idle = quiet(counted, "idle")
    assert requests_a_minute(idle, counted.state) <= 3
    idle.close()


@pytest.mark.parametrize("count", [900, 4_500])
def test_a_sweep_is_a_listing_of_a_page_for_1_000_job_runs_and_reads_no_log_of_what_others_hold(
    counted: Counted, count: int
) -> None:
    marked(counted.state, "other", count)
    idle = quiet(counted, "idle")
    idle.controller.tick()
    counted.desk.clock.sleep(60.0)
    sign = SignOfLife(owner="other", beat=2, at_ms=1, silent_seconds=300.0)
    counted.state.overwrite(LiveDispatcher("other").key, sign.render())
    counted.state.requests.clear()
    idle.controller.tick()
    assert counted.state.count("list", "open_job_runs") == -(-count // 1_000)
    assert counted.state.count("read", "job_runs/") == 0
    # What is left: its own sign of life; which dispatchers live, and what the one that holds something says.
    assert len(counted.state.requests) == -(-count // 1_000) + 3
    idle.close()


def test_the_first_sweep_of_a_dispatcher_reads_no_log_either(counted: Counted) -> None:
    marked(counted.state, "other", 2_000)
    idle = quiet(counted, "idle")
    counted.state.requests.clear()
    idle.controller.tick()
    assert counted.state.count("read", "job_runs/") == 0
    assert len(counted.state.requests) == 2 + 3
    idle.close()


@pytest.mark.parametrize(("max_sessions", "held"), [(12, 11), (1, 1)], ids=["is held", "is left to others"])
def test_a_job_run_without_a_running_session_costs_6_requests_a_minute(
    counted: Counted, max_sessions: int, held: int
) -> None:
    for number in range(11):
        counted.desk.append([{"id": 1}], table=f"ACME.T{number}.V1")
        counted.desk.send(instruction(job_run_id=f"run {number}", source_table_id=f"ACME.T{number}.V1"))
        counted.desk.take()
    dead, second = quiet(counted, "dead", max_sessions=11), quiet(counted, "second", max_sessions=max_sessions)
    dead.tick()
    dead.close()
    for _ in range(400):
        counted.desk.clock.sleep(1.0)
        second.tick()
    assert second.controller.job_runs_held == held
    assert requests_a_minute(second, counted.state) <= 11 * 6 + 3
    second.close()


def test_an_accepted_instruction_of_one_stream_takes_20_requests_until_it_is_claimed_and_marked(
    counted: Counted,
) -> None:
    counted.desk.append([{"id": 1}])
    first = quiet(counted, "first")
    first.tick()
    counted.state.requests.clear()
    counted.desk.send(instruction(job_run_id="run"))
    (accepted,) = counted.desk.take()
    assert isinstance(accepted, Accepted)
    first.controller.offer("run", accepted.log)
    first.tick()
    assert first.controller.job_runs_held == 1
    assert len(counted.state.requests) <= 20
    first.close()


def test_a_job_run_that_waits_for_its_turn_costs_6_requests_a_minute(counted: Counted) -> None:
    counted.desk.append([{"id": 1}])
    for number in range(40):
        counted.desk.send(instruction(job_run_id=f"run {number}"))
        counted.desk.take()
    first, second = quiet(counted, "first"), quiet(counted, "second")
    for _ in range(120):
        counted.desk.clock.sleep(1.0)
        first.tick()
        second.tick()
    assert first.controller.job_runs_held + second.controller.job_runs_held == 1
    waits = second if first.controller.job_runs_held else first
    assert requests_a_minute(waits, counted.state) <= 3 + 6 + 39 / 5  # of each a look in 5 minutes: is it cancelled?
    first.close()
    second.close()
