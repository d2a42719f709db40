"""One random schedule over weeks: deltas, compactions into two tables, retirement, garbage collection, slow readers,
and attempts during which days pass.

Everything follows from the seed. No reader within the retention and no attempt within the grace period may miss a file,
whatever is retired and deleted meanwhile, by processes that may be cut off; and the rows are those of the deltas.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from compactor import DeltaCatalog
from compactor.engine.protocol import Engine
from compactor.lake import Table
from compactor.log.keys import EntryObject
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.maintenance.retirement import StreamRetirement
from compactor.maintenance.verify import verify
from compactor.model.counts import SortKey
from compactor.model.errors import Conflict, Fenced, Invalid, Unavailable
from compactor.model.names import Operation, SortOrder
from compactor.planning.session_planner import pin_sessions
from compactor.planning.spec import JobRunSpec, SessionPlan
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from tests.builders import multiset
from tests.crashes import COLUMNS, RESOURCES, SORT_KEYS
from tests.fakes.attempts import plan_session, run_attempt
from tests.fakes.doomed_store import Doom, DoomedStore, Fate, When
from tests.fakes.faulty_store import Stopped
from tests.fakes.manual_clock import ManualClock
from tests.oracle import Row, surviving_rows

ORDERS, ELSEWHERE = "ACME.ORDERS.V1", "ACME.COMPACTED.V1"
STEPS = 30
KEYS = 12
DAY_MS = 24 * 3600 * 1000
GRACE_DAYS, RETENTION_DAYS = 3, 5
_RETENTION_SECONDS = RETENTION_DAYS * 86_400
FATES: tuple[Fate, ...] = ("one answer is lost", "the store is down from then on", "the process is killed")
WHENS: tuple[When, ...] = ("before", "after")


def run_years(seed: int, folder: Path, engine: Engine) -> int:
    """The number of deltas that were retired. Raises AssertionError if an invariant is broken."""
    return Years(seed, folder, engine).run()


class Years:
    steps = STEPS

    def __init__(self, seed: int, folder: Path, engine: Engine) -> None:
        self._chance = random.Random(seed)
        self._has_plans = seed % 2 == 1
        self._folder = folder
        self._engine = engine
        self._clock = ManualClock(1_760_000_000_000)
        self._deltas: list[tuple[int, Operation, list[list[Row]]]] = []
        self._ids = itertools.count()
        self._numbers = itertools.count(1)
        self._readers: list[tuple[int, Callable[[], None]]] = []
        self._retired = 0
        self._stamped: set[str] = set()

    def run(self) -> int:
        self._catalog().create_table(ORDERS, properties=self._properties())
        self._append()
        steps = self._steps()
        for _ in range(self.steps):
            self._chance.choice(steps)()
            self._stamp()
        for _, read in self._readers:
            read()
        end = ORDERS if self._plan(ORDERS) is not None else ELSEWHERE
        self._session(end)
        assert self._rows(self._catalog().table(end)) == self._expected()
        assert verify(self._catalog().table(end).stream({})).problems == ()
        return self._retired

    def _properties(self) -> dict[str, object]:
        """Of the table."""
        return {"session_plans": True} if self._has_plans else {}

    def _steps(self) -> list[Callable[[], None]]:
        return [
            self._append,
            self._append,
            self._session,
            self._session,
            self._slow_session,
            self._cut_off_session,
            self._open_reader,
            self._days_pass,
            self._clean,
            self._clean_cut_off,
        ]

    # ---------------------------------------------------------------------------------------------------- what happens

    def _append(self) -> None:
        operation = Operation.DELETE if self._deltas and self._chance.random() < 0.2 else Operation.UPSERT
        rows = [self._row() for _ in range(self._chance.randint(1, 4))]
        name = f"delta {next(self._ids)}"
        table = self._catalog().table(ORDERS)
        delta = table.append({}, pa.Table.from_pylist([dict(row) for row in rows]), operation, delta_id=name)
        self._deltas.append((delta.position, operation, [rows]))

    def _row(self) -> Row:
        tick = next(self._numbers)
        return {
            "id": self._chance.randrange(KEYS),
            "time": tick - self._chance.choice([0, 0, 5, 30]),
            "value": f"value {tick}",
        }

    def _session(self, into: str | None = None) -> None:
        plan = self._plan(into)
        if plan is None:
            return
        try:
            self._attempt(plan, 1)
        except Conflict:  # the plan of a session that was cut off; or of one that is slow, and is taken over
            self._pass(3_600_000)
            self._attempt(plan, 2)

    def _slow_session(self) -> None:
        """While it waits before its commit, days pass, and others compact, retire and delete."""
        plan = self._plan()
        if plan is None:
            return
        store = DoomedStore(self._store())
        store.just_before(self._next_entry(plan), self._others_work)
        with suppress(Fenced, Conflict):
            self._attempt(plan, 1, store)

    def _others_work(self) -> None:
        self._stamp()
        if self._chance.random() < 0.5:
            self._session()
        self._clean()
        self._pass(int(self._chance.uniform(0, GRACE_DAYS - 1) * DAY_MS))
        self._clean()

    def _cut_off_session(self) -> None:
        """A session is cut off; its next attempt starts days later, after other sessions."""
        plan = self._plan()
        if plan is None:
            return
        doom = Doom(self._next_entry(plan), self._chance.choice(WHENS), self._chance.choice(FATES))
        with suppress(Unavailable, Stopped, Conflict):
            self._attempt(plan, 1, DoomedStore(self._store(), doom))
        self._others_work()
        with suppress(Fenced, Conflict):
            self._attempt(plan, 2)

    def _open_reader(self) -> None:
        """It pins its snapshot now, and reads after days."""
        table = self._catalog().table(ORDERS)
        pinned = table.scan({}, as_of=table.stream({}).load().entry_number)
        now = self._rows(table)
        at_ms = self._clock.now_ms() + int(self._chance.uniform(0, RETENTION_DAYS) * DAY_MS)

        def read() -> None:
            assert multiset(pinned.to_table(), COLUMNS) == now

        self._readers.append((at_ms, read))

    def _days_pass(self) -> None:
        self._pass(int(self._chance.uniform(0.2, 2.5) * DAY_MS))

    def _pass(self, duration_ms: int) -> None:
        """Each reader reads when its time comes, so none reads later than the retention allows."""
        until_ms = self._clock.now_ms() + duration_ms
        for reader in sorted(self._readers, key=lambda reader: reader[0]):
            if reader[0] <= until_ms:
                self._clock.set_ms(max(reader[0], self._clock.now_ms()))
                self._clean()
                reader[1]()
                self._readers.remove(reader)
        self._clock.set_ms(until_ms)

    def _clean(self, store: ObjectStore | None = None) -> None:
        self._stamp()
        store = store or self._store()
        stream = DeltaCatalog(store, self._clock).table(ORDERS).stream({})
        self._retired += sum(
            each.deltas for each in StreamRetirement(store, stream, self._clock).retire(_RETENTION_SECONDS)
        )
        for table_id in self._catalog().tables():
            for garbage in find_garbage(store, table_id, self._clock, GRACE_DAYS * 86_400, _RETENTION_SECONDS):
                delete_garbage(store, garbage)
        self._look()

    def _look(self) -> None:
        """After a clean."""

    def _clean_cut_off(self) -> None:
        stream = self._catalog().table(ORDERS).stream({})
        key = EntryObject(stream.folder.log, stream.load().entry_number + 1).key
        doom = Doom(key, self._chance.choice(WHENS), self._chance.choice(FATES))
        with suppress(Unavailable, Stopped):
            self._clean(DoomedStore(self._store(), doom))

    # ------------------------------------------------------------------------------------------------------- its tools

    def _plan(self, into: str | None = None) -> SessionPlan | None:
        """None: the first compaction into a table is refused, since it would lack deltas that were retired after the
        other table had taken them."""
        destination = into or self._chance.choice([ORDERS, ORDERS, ELSEWHERE])
        run = JobRunSpec(
            job_run_id=f"run {next(self._numbers)}",
            source_table_id=ORDERS,
            primary_keys=("id",),
            sort_keys=tuple(SortKey(column=column, order=SortOrder(order)) for column, order in SORT_KEYS),
            lake=self._catalog().location,
            destination_compacted_table_id=destination,
            rows_per_compacted_file=5,
            hash_bucket_count=1,
            max_rows_per_round=self._chance.choice([None, 6]),
            max_dead_row_share=self._dead_row_share(),
        )
        try:
            (pinned,) = pin_sessions(run, self._catalog())
            return plan_session(pinned.spec, self._catalog(), RESOURCES)
        except Invalid as error:
            if "has retired its deltas" in str(error) and self._is_never_compacted(destination):
                return None
            raise

    def _dead_row_share(self) -> float:
        return 0.0

    def _is_never_compacted(self, table_id: str) -> bool:
        catalog = self._catalog()
        return table_id not in catalog.tables() or catalog.table(table_id).stream({}).load().state.compacted is None

    def _attempt(self, plan: SessionPlan, number: int, store: ObjectStore | None = None) -> None:
        catalog = DeltaCatalog(store or self._store(), self._clock)
        run_attempt(plan, catalog, catalog.store, self._engine, number, self._clock)
        table = self._catalog().table(plan.spec.job_run.destination_compacted_table_id)
        compacted = table.stream({}).load().state.compacted
        if compacted is not None:
            assert self._rows(table) == self._expected(compacted.processed.position, compacted.processed.file_number)

    def _next_entry(self, plan: SessionPlan) -> str:
        """What the session writes next into the stream's log: its commit, or, of a table with plans, its plan first."""
        ahead = self._chance.choice([1, 2]) if self._has_plans else 1
        table = self._catalog().table(ORDERS).stream({})
        into = plan.spec.job_run.destination_compacted_table_id
        stream = self._catalog().table_like(into, self._catalog().table(ORDERS)).stream({}) if into != ORDERS else table
        return EntryObject(stream.folder.log, stream.load().entry_number + ahead).key

    def _rows(self, table: Table) -> object:
        if table.stream({}).load().state.compacted is None:
            return multiset(pa.table({name: [] for name in COLUMNS}), COLUMNS)
        return multiset(table.scan({}).to_table(), COLUMNS)

    def _expected(self, position: int | None = None, file_number: int | None = None) -> object:
        assert file_number is None, "every delta has one file"
        deltas = [delta for delta in self._deltas if position is None or delta[0] <= position]
        return multiset(surviving_rows(deltas, ["id"], SORT_KEYS), COLUMNS)

    def _store(self) -> LocalStore:
        return LocalStore(StoreLocation(f"file://{self._folder}"))

    def _catalog(self) -> DeltaCatalog:
        return DeltaCatalog(self._store(), self._clock)

    def _stamp(self) -> None:
        """Sets the file system's times of new files to the schedule's time."""
        for place, _, names in os.walk(self._folder):
            for name in names:
                path = f"{place}/{name}"
                if path not in self._stamped:
                    self._stamped.add(path)
                    with suppress(FileNotFoundError):
                        os.utime(path, (self._clock.now_ms() / 1000, self._clock.now_ms() / 1000))
