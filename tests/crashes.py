"""A session that is cut off somewhere and goes on: its lake, one attempt at it, and what must be true in the end.

Used by the crash points of `make test`, and by `make sim`, which walks all of them and random ones.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from compactor import DeltaCatalog
from compactor.catalog.actions import IndexRehashed, RoundCommitted
from compactor.catalog.keys import CompactedFilePath
from compactor.engine.protocol import Engine
from compactor.index.keys import IndexFilePath, IndexPointersPath
from compactor.log.durable_log import DurableLog
from compactor.maintenance.named_files import DATA_KEYS
from compactor.model.clock import Clock, SystemClock
from compactor.model.counts import SortKey
from compactor.model.names import Operation, SortOrder
from compactor.planning.session_planner import pin_sessions
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunSpec, SessionPlan, SessionResult
from compactor.sessions.keys import JobRunFolder, SessionFolder
from compactor.sessions.session_log import (
    SESSION_LOG,
    IndexMoved,
    RoundDone,
    SessionAction,
    SessionFailed,
    SessionLogState,
    SessionStarted,
    SessionSucceeded,
)
from compactor.storage.keys import parse_any
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from tests.builders import TABLE_ID, CompactedSide, audit, multiset
from tests.fakes.attempts import plan_session, run_attempt
from tests.oracle import Row, surviving_rows

JOB_RUN_ID = "run 1"
SORT_KEYS = [("time", "ascending")]
COLUMNS = ["id", "time", "value"]
RESOURCES = Resources(task_memory_bytes=1 << 30, tasks=2)


class HurriedClock(SystemClock):
    """Pauses end at once, and a session's pace is always the same, so that it always writes the same entries."""

    def monotonic_seconds(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        return


class LaterClock(HurriedClock):
    """Its wall clock can be put forward."""

    def __init__(self) -> None:
        super().__init__()
        self._later_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self._later_ms

    def put_forward(self, seconds: float) -> None:
        self._later_ms += round(seconds * 1000)


class SlowingClock(HurriedClock):
    """Each look at it finds an hour gone by, so that a session expects to take longer and longer, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = itertools.count()

    def monotonic_seconds(self) -> float:
        return 3_600.0 * next(self._looks)


@dataclass(frozen=True)
class Delta:
    """One delta of a stream; its position is its place in the stream."""

    operation: Operation
    rows: Sequence[Row]
    rows_per_file: int = 1_000


@dataclass(frozen=True)
class Options:
    """Options of the session. The resulting rows are the same with any of them."""

    hash_bucket_count: int = 2
    max_rows_per_round: int | None = None
    max_dead_row_share: float = 0.0
    rows_per_compacted_file: int = 10
    rows_per_index_file: int = 15


@dataclass(frozen=True)
class Lake:
    """A lake in a folder with one table without partition keys, and the deltas that it was given.

    session_plans  the property of the table
    """

    folder: Path
    deltas: list[Delta]
    clock: Clock = field(default_factory=HurriedClock)
    session_plans: bool = False

    @property
    def location(self) -> StoreLocation:
        return StoreLocation(f"file://{self.folder}")

    def store(self) -> LocalStore:
        return LocalStore(self.location)

    def catalog(self, store: ObjectStore | None = None) -> DeltaCatalog:
        return DeltaCatalog(store or self.store(), self.clock)

    def append(self, deltas: Sequence[Delta]) -> None:
        properties = {"session_plans": True} if self.session_plans else None
        table = self.catalog().create_table(TABLE_ID, properties=properties)
        for delta in deltas:
            rows = pa.Table.from_pylist([dict(row) for row in delta.rows])
            table.append({}, rows, delta.operation, position=len(self.deltas), rows_per_file=delta.rows_per_file)
            self.deltas.append(delta)

    def plan(self, options: Options, job_run_id: str = JOB_RUN_ID) -> SessionPlan:
        """The plan of a session over everything that is pending."""
        run = JobRunSpec(
            job_run_id=job_run_id,
            source_table_id=TABLE_ID,
            primary_keys=("id",),
            sort_keys=tuple(SortKey(column=column, order=SortOrder(order)) for column, order in SORT_KEYS),
            lake=self.location,
            destination_compacted_table_id=TABLE_ID,
            rows_per_compacted_file=options.rows_per_compacted_file,
            rows_per_primary_key_index_file=options.rows_per_index_file,
            hash_bucket_count=options.hash_bucket_count,
            max_rows_per_round=options.max_rows_per_round,
            max_dead_row_share=options.max_dead_row_share,
        )
        (pinned,) = pin_sessions(run, self.catalog())
        return plan_session(pinned.spec, self.catalog(), RESOURCES)

    def expected(self) -> list[Row]:
        deltas = [(position, delta.operation, [delta.rows]) for position, delta in enumerate(self.deltas)]
        return surviving_rows(deltas, ["id"], SORT_KEYS)


def attempt(
    plan: SessionPlan,
    lake: Lake,
    engine: Engine,
    number: int,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> SessionResult:
    """One attempt at a session, as the Spark job makes it; the lake also holds the session's log."""
    catalog = lake.catalog(store)
    return run_attempt(plan, catalog, catalog.store, engine, number, clock or lake.clock)


def session_folder(plan: SessionPlan) -> SessionFolder:
    return JobRunFolder(plan.spec.job_run.job_run_id).session(plan.spec.session_id)


def session_log(plan: SessionPlan, store: ObjectStore) -> DurableLog[SessionLogState, SessionAction]:
    return DurableLog(store, session_folder(plan).log, SESSION_LOG, HurriedClock())


def commits(lake: Lake) -> list[tuple[int, RoundCommitted | IndexRehashed]]:
    """(entry number, action) of every round and rehash in the stream's log."""
    return [
        (entry.number, action)
        for entry in lake.catalog().table(TABLE_ID).stream({}).log.entries()
        for action in entry.actions
        if isinstance(action, RoundCommitted | IndexRehashed)
    ]


def uncommitted(lake: Lake) -> set[str]:
    """Commit ids under which files lie that no entry of the log speaks of: rounds and rehashes run in vain."""
    written = set()
    for path in lake.folder.glob("tables/**/*"):
        if path.is_file() and "/data/" in str(path) and not path.name.startswith("."):
            named = parse_any(str(path.relative_to(lake.folder)), DATA_KEYS)
            assert named is not None
            if isinstance(named, CompactedFilePath | IndexFilePath | IndexPointersPath):
                written.add(named.commit_id)
    return written - {action.commit_id for _, action in commits(lake)}


# ---------------------------------------------------------------------------------------------------- what must be true


def check_rows(lake: Lake) -> None:
    """Everything is compacted, once, and is what the rules of survival say; every audit is content."""
    side = CompactedSide.of(lake.catalog())
    assert multiset(side.rows(), COLUMNS) == multiset(lake.expected(), COLUMNS)
    assert side.stream.processed.position == len(lake.deltas) - 1
    audit(side)
    check_books(lake)


def check_books(lake: Lake) -> None:
    """No commit is in the log twice, and every round begins with the rows that the one before it left."""
    done = commits(lake)
    assert len({action.commit_id for _, action in done}) == len(done)
    versions = [action.index_version for _, action in done]
    assert versions == sorted(set(versions))
    rows = 0
    for _, action in done:
        if isinstance(action, RoundCommitted):
            counts = action.counts
            assert counts.rows_before == rows
            assert counts.rows_in == counts.rows_out + counts.rows_deduplicated + counts.rows_deleted
            rows = counts.rows_out


def check_session_log(lake: Lake, plan: SessionPlan, attempts: Sequence[int]) -> None:
    """What the session log says is so: `attempts` were started, in this order, and the last one succeeded."""
    mine = [(number, action) for number, action in commits(lake) if action.session_id == plan.spec.session_id]
    rounds = [action for _, action in mine if isinstance(action, RoundCommitted)]
    assert [action.round_number for action in rounds] == list(range(1, len(rounds) + 1))
    assert {action.rounds for action in rounds} <= {len(rounds)}

    actions = [action for entry in session_log(plan, lake.store()).entries() for action in entry.actions]
    started = [action.attempt for action in actions if isinstance(action, SessionStarted)]
    assert started == list(attempts)
    _check_done(actions, dict(mine))
    for place, action in enumerate(actions):
        if isinstance(action, SessionSucceeded):
            logged = {each.round_number for each in actions[:place] if isinstance(each, RoundDone)}
            assert set(range(1, len(rounds) + 1)) >= logged
            assert action.result.completions == ()  # they hold bounds of rows, which the state does not keep
        assert not isinstance(action, SessionFailed) or action.attempt != started[-1]
    assert isinstance(actions[-1], SessionSucceeded)
    assert actions[-1].attempt == started[-1]
    result = actions[-1].result
    assert (result.rounds, result.rows_out) == (len(rounds), len(lake.expected()))
    assert result.rows_in == result.rows_out + result.rows_deduplicated + result.rows_deleted


def _check_done(actions: Sequence[SessionAction], entries: dict[int, RoundCommitted | IndexRehashed]) -> None:
    """What is said to be done is done, by that entry; and whatever was committed is told, once, whoever tells it."""
    logged: Counter[int] = Counter()
    for action in actions:
        if isinstance(action, RoundDone):
            completion = entries[action.entry_number]
            assert isinstance(completion, RoundCommitted)
            assert (completion.round_number, completion.counts) == (action.round_number, action.counts)
            logged[action.entry_number] += 1
        elif isinstance(action, IndexMoved):
            moved = entries[action.entry_number]
            assert isinstance(moved, IndexRehashed)
            assert moved.hash_bucket_count == action.hash_bucket_count
            logged[action.entry_number] += 1
    assert logged == Counter(entries.keys())
