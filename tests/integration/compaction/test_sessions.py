"""Sessions that are stopped, superseded, overtaken, or whose lake does not answer: what is left, and how it goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import RoundCommitted
from compactor.catalog.snapshot import CompactedStream
from compactor.engine.protocol import Engine
from compactor.lake import Table
from compactor.model.clock import SystemClock
from compactor.model.errors import LithifyError, Unavailable
from compactor.model.files import DataFile, IndexFile
from compactor.planning.session_planner import pin_sessions
from compactor.planning.session_streams import Commit
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunResult, JobRunSpec, SessionPlan
from compactor.sessions.session import SessionDependencies, run_session
from compactor.storage.local import LocalStore
from tests.builders import TABLE_ID, CompactedSide, audit
from tests.fakes.attempts import plan_session, run_attempt
from tests.fakes.faulty_store import FaultyStore, Stopped

Compact = partial[JobRunResult]
CLOCK = SystemClock()
THREE_ROUNDS = ({1: "a", 2: "b"}, {2: "B", 3: "c"}, {3: "C", 4: "d"})
AFTER_ALL = {1: "a", 2: "B", 3: "C", 4: "d"}
ROWS_PER_ROUND = 2


def append(table: Table, values: dict[int, str]) -> None:
    table.append({}, pa.table({"id": list(values), "value": list(values.values())}))


def values_of(lake: DeltaCatalog) -> dict[object, object]:
    side = CompactedSide.of(lake)
    audit(side)
    return {row["id"]: row["value"] for row in side.rows().to_pylist()}


def rounds_of(table: Table) -> list[RoundCommitted]:
    entries = table.stream({}).log.entries()
    return [action for entry in entries for action in entry.actions if isinstance(action, RoundCommitted)]


def plan_of(lake: DeltaCatalog, job_run_id: str = "run-1") -> SessionPlan:
    """The plan of a session in rounds of two rows, over everything that is pending now."""
    run = JobRunSpec(
        job_run_id=job_run_id,
        source_table_id=TABLE_ID,
        primary_keys=("id",),
        lake=lake.location,
        destination_compacted_table_id=TABLE_ID,
        hash_bucket_count=1,
        max_rows_per_round=ROWS_PER_ROUND,
    )
    (pinned,) = pin_sessions(run, lake)
    return plan_session(pinned.spec, lake, Resources(task_memory_bytes=1024**3, tasks=2))


@dataclass
class ReportWith:
    """A `SessionReport` that does something once, when the second step of the first round begins."""

    act: Callable[[], object]
    done: bool = False

    def reading(self, step: str, of: int) -> None: ...

    def read_one(self) -> None: ...

    def started(self, rounds_done: int, rounds: int, rows: int, expected_sla: float) -> None: ...

    def settled(self) -> None: ...

    def found(self, commits: Sequence[Commit]) -> None: ...

    def step_started(self, round_number: int, rounds: int, step: str, tasks: int) -> None:
        if step == "materialize" and not self.done:
            self.done = True
            self.act()

    def rehashed(self, entry_number: int, hash_bucket_count: int) -> None: ...

    def round_done(self, entry_number: int, completion: RoundCommitted, seconds: float) -> None: ...

    def expected_sla_changed(self, before: float, now: float) -> None: ...

    def share_done(self, share: float) -> None: ...

    def follow(self, rows_reported: Callable[[int], None], watch: Callable[[], None]) -> None: ...


# ---------------------------------------------------------------------------------------------------- stopped and lost


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the heartbeat is stopped as well
def test_a_session_stopped_at_any_durable_write_goes_on_after_its_last_round(engine: Engine, tmp_path: Path) -> None:
    template = tmp_path / "template"
    table = DeltaCatalog.open(template).create_table(TABLE_ID)
    for values in THREE_ROUNDS[:2]:
        append(table, values)

    def run(store: FaultyStore) -> None:
        lake = DeltaCatalog(store, CLOCK)
        compact(
            TABLE_ID,
            {"id"},
            delta_catalog_client=lake,
            hash_bucket_count=1,
            max_rows_per_round=ROWS_PER_ROUND,
            engine=engine,
        )

    def fresh(name: str) -> FaultyStore:
        shutil.copytree(template, tmp_path / name)
        return FaultyStore(LocalStore(DeltaCatalog.open(tmp_path / name).location))

    unhindered = fresh("unhindered")
    run(unhindered)
    assert any("/streams/" in point for point in unhindered.points)
    for number, point in enumerate(unhindered.points):
        store = fresh(f"stopped-{number}")
        lake = DeltaCatalog(store, CLOCK)
        store.stop_at(number)
        with suppress(Stopped):
            run(store)
        store.heal()
        run(store)
        assert values_of(lake) == {1: "a", 2: "B", 3: "c"}, f"stopped {point}"
        committed = rounds_of(lake.table(TABLE_ID))
        assert [each.processed.position for each in committed] == sorted(
            {each.processed.position for each in committed}
        ), f"a round was committed twice, stopped {point}"
        shutil.rmtree(tmp_path / f"stopped-{number}")


def test_the_next_attempt_at_a_session_redoes_no_committed_round_and_reports_all(
    orders: Table, lake: DeltaCatalog, engine: Engine
) -> None:
    for values in THREE_ROUNDS:
        append(orders, values)
    plan = plan_of(lake)
    store = FaultyStore(lake.store)
    stopped = DeltaCatalog(store, CLOCK)

    def stop_now() -> None:
        raise Stopped

    class StopInSecondRound(ReportWith):
        def step_started(self, round_number: int, rounds: int, step: str, tasks: int) -> None:
            if round_number == 2:
                self.act()

    with pytest.raises(Stopped):
        run_session(plan, SessionDependencies(stopped, engine, CLOCK, StopInSecondRound(stop_now)))
    assert len(rounds_of(orders)) == 1
    first_commit = rounds_of(orders)[0].commit_id
    append(orders, {5: "after the pin"})
    result = run_attempt(plan, lake, lake.store, engine, 2, CLOCK)
    assert (result.rounds, result.rows_in, result.rows_out, result.rows_deduplicated) == (3, 6, 4, 2)
    assert [each.round_number for each in result.completions] == [1, 2, 3]
    assert rounds_of(orders)[0].commit_id == first_commit
    assert values_of(lake) == AFTER_ALL


def test_a_session_that_is_run_again_after_its_end_changes_nothing_and_says_the_same(
    orders: Table, lake: DeltaCatalog, engine: Engine
) -> None:
    append(orders, {1: "a"})
    plan = plan_of(lake)
    first = run_attempt(plan, lake, lake.store, engine, 1, CLOCK)
    entries = orders.stream({}).load().entry_number
    again = run_attempt(plan, lake, lake.store, engine, 2, CLOCK)
    assert again.completions == first.completions
    assert (again.rows_in, again.rows_out) == (first.rows_in, first.rows_out)
    assert orders.stream({}).load().entry_number == entries


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_answer_is_lost_is_settled_by_reading_the_log(
    when: str, orders: Table, lake: DeltaCatalog, engine: Engine
) -> None:
    append(orders, {1: "a"})
    store = FaultyStore(lake.store)
    store.fail("put_if_absent", "/streams/", when="before" if when == "before" else "after", times=2)
    result = compact(
        TABLE_ID, {"id"}, delta_catalog_client=DeltaCatalog(store, CLOCK), hash_bucket_count=1, engine=engine
    )
    assert result.sessions[0].rounds == 1
    assert len(rounds_of(orders)) == 1
    assert values_of(lake) == {1: "a"}


def test_a_lake_that_stays_silent_at_the_commit_ends_the_run_as_unavailable_and_nothing_is_deleted(
    orders: Table, lake: DeltaCatalog, engine: Engine
) -> None:
    append(orders, {1: "a"})
    store = FaultyStore(lake.store)
    store.fail("put_if_absent", "/streams/", when="before", times=None)
    run = partial(
        compact, TABLE_ID, {"id"}, delta_catalog_client=DeltaCatalog(store, CLOCK), hash_bucket_count=1, engine=engine
    )
    with pytest.raises(Unavailable):
        run()
    assert rounds_of(orders) == []
    root = Path(lake.location.root_uri.removeprefix("file://"))
    assert len([path for path in root.rglob("*") if "compacted" in path.parts and path.is_file()]) == 1
    assert "delete" not in {verb for verb, _ in store.requests}
    store.heal()
    run()
    assert values_of(lake) == {1: "a"}


@pytest.mark.parametrize("folder", ["compacted", "index"])
def test_files_that_cannot_be_written_end_the_run_and_leave_the_log_as_it_was(
    folder: str, orders: Table, lake: DeltaCatalog, compact_orders: Compact
) -> None:
    append(orders, {1: "a"})
    (delta_folder,) = Path(lake.location.root_uri.removeprefix("file://")).rglob("delta")
    obstacle = delta_folder.parent / folder
    obstacle.write_text("a file where a folder has to be")
    entries = orders.stream({}).load().entry_number
    with pytest.raises(LithifyError):
        compact_orders()
    assert orders.stream({}).load().entry_number == entries
    obstacle.unlink()
    compact_orders()
    assert values_of(lake) == {1: "a"}


# -------------------------------------------------------------------------------------------- overtaken and superseded


def test_the_files_of_the_rounds_before_stay_where_they_are(
    orders: Table, lake: DeltaCatalog, compact_orders: Compact
) -> None:
    sides: list[CompactedStream] = []
    for values in THREE_ROUNDS:
        append(orders, values)
        compact_orders()
        sides.append(CompactedSide.of(lake).stream)
    side = CompactedSide.of(lake)
    for stream in sides:
        files: list[DataFile | IndexFile] = [*stream.files.values(), *stream.index_files]
        assert all(side.path_of(file).stat().st_size == file.size_bytes for file in files)
    old = orders.scan({}, as_of=2).to_table().sort_by("id").to_pylist()
    assert old == [{"id": 1, "value": "a"}, {"id": 2, "value": "b"}]
