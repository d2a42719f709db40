"""One random schedule: writers append, sessions run, some are cut off at a random write, some are overtaken by others.

In every other schedule sessions write their plans into the log: then a session may be refused, and only by a plan of
another one whose time is not over.

The seed determines everything. After every step the compacted rows must be the oracle's for the compacted
deltas, and at the end, after an undisturbed session, for all deltas.
"""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from pathlib import Path

from compactor.catalog.snapshot import StreamSnapshot
from compactor.engine.protocol import Engine
from compactor.log.keys import EntryObject
from compactor.model.errors import Conflict, Fenced, Unavailable
from compactor.model.names import Operation
from compactor.planning.spec import SessionPlan
from compactor.storage.object_store import ObjectStore
from tests.builders import TABLE_ID, CompactedSide, audit, multiset
from tests.crashes import (
    COLUMNS,
    SORT_KEYS,
    Delta,
    Lake,
    LaterClock,
    Options,
    attempt,
    check_books,
    check_rows,
    session_folder,
)
from tests.fakes.doomed_store import Doom, DoomedStore, Fate, When
from tests.fakes.faulty_store import Stopped
from tests.oracle import Row, surviving_rows

STEPS = 6
TIMED_OUT_SECONDS = 3_600.0
"""No plan of these small sessions lasts so long."""

KEYS = 30
_FATES: tuple[Fate, ...] = ("one answer is lost", "the store is down from then on", "the process is killed")
_WHENS: tuple[When, ...] = ("before", "after")


def run_schedule(seed: int, folder: Path, engine: Engine) -> None:
    """Raises AssertionError if an invariant is broken."""
    _Schedule(seed, folder, engine).run()


class _Schedule:
    def __init__(self, seed: int, folder: Path, engine: Engine) -> None:
        self._chance = random.Random(seed)
        self._clock = LaterClock()
        self._lake = Lake(folder, [], self._clock, session_plans=seed % 2 == 1)
        self._engine = engine
        self._job_runs = itertools.count(1)
        self._time = itertools.count(1)

    def run(self) -> None:
        self._append(complete=True)
        for _ in range(STEPS):
            step = self._chance.choice([self._append, self._session, self._session_cut_off, self._sessions_that_meet])
            step()
            self._check()
        self._append()
        self._session()
        check_rows(self._lake)

    # ---------------------------------------------------------------------------------------------------- what happens

    def _append(self, complete: bool = False) -> None:
        """Appends some deltas: rows mostly with newer times, sometimes older ones; deletes with and without times."""
        deltas = []
        for _ in range(self._chance.randint(1, 3)):
            is_delete = not complete and self._chance.random() < 0.3
            with_time = not is_delete or self._chance.random() < 0.7
            names = COLUMNS if not is_delete else ["id", "time"] if with_time else ["id"]
            rows = [self._row(names) for _ in range(self._chance.randint(1, 12))]
            operation = Operation.DELETE if is_delete else Operation.UPSERT
            deltas.append(Delta(operation, rows, self._chance.choice([3, 5, 1_000])))
        self._lake.append(deltas)

    def _row(self, names: list[str]) -> Row:
        tick = next(self._time)
        row = {
            "id": self._chance.randrange(KEYS),
            "time": tick - self._chance.choice([0, 0, 3, 40]),
            "value": f"value {tick}",
        }
        return {name: row[name] for name in names}

    def _session(self) -> None:
        plan = self._plan()
        if self._attempt(plan, 1) is Conflict:
            self._clock.put_forward(TIMED_OUT_SECONDS)
            assert self._attempt(plan, 2) is None

    def _attempt(self, plan: SessionPlan, number: int, store: ObjectStore | None = None) -> type[Conflict] | None:
        """`Conflict`: it was refused since another session, which was cut off, has a plan in force."""
        before = self._stream()
        try:
            attempt(plan, self._lake, self._engine, number, store)
        except Conflict:
            in_force = self._stream().in_flight
            assert in_force is not None
            assert in_force.job_run_id != plan.spec.job_run.job_run_id
            assert self._clock.now_ms() < in_force.at_ms + in_force.lasts_seconds * 1000
            assert self._stream() == before, "who is refused writes nothing"
            return Conflict
        return None

    def _stream(self) -> StreamSnapshot:
        return self._lake.catalog().table(TABLE_ID).stream({}).load().state

    def _session_cut_off(self) -> None:
        """A session that is cut off at a random write; perhaps further attempts that are too, and one that is not."""
        plan = self._plan()
        for number in range(1, self._chance.randint(1, 3) + 1):
            with suppress(Unavailable, Stopped):
                self._attempt(plan, number, DoomedStore(self._lake.store(), self._doom(plan)))
            check_books(self._lake)
        if self._chance.random() < 0.5:
            self._attempt(plan, number + 1)

    def _sessions_that_meet(self) -> None:
        """While a session waits before a random write another one runs: of another job run, or the next attempt."""
        plan = self._plan()
        other, number = (self._plan(), 1) if self._chance.random() < 0.5 else (plan, 2)
        store = DoomedStore(self._lake.store())

        def meanwhile() -> None:
            if self._chance.random() < 0.5:
                self._clock.put_forward(TIMED_OUT_SECONDS)
            self._attempt(other, number)

        store.just_before(self._doom(plan).key, meanwhile)
        with suppress(Fenced, Conflict):  # the other one may have a plan in the log by now
            attempt(plan, self._lake, self._engine, 1, store)

    def _plan(self) -> SessionPlan:
        options = Options(
            hash_bucket_count=self._chance.choice([1, 2, 3, 5]),
            max_rows_per_round=self._chance.choice([None, 4, 8, 20]),
            max_dead_row_share=self._chance.choice([0.0, 0.0, 0.3, 0.9]),
            rows_per_compacted_file=self._chance.choice([3, 10, 1_000]),
            rows_per_index_file=self._chance.choice([4, 1_000]),
        )
        return self._lake.plan(options, f"run {next(self._job_runs)}")

    def _doom(self, plan: SessionPlan) -> Doom:
        """Somewhere in the session: one of its next entries in either log."""
        stream = self._lake.catalog().table(TABLE_ID).stream({})
        stands = stream.load().entry_number
        key = self._chance.choice(
            [
                EntryObject(stream.folder.log, stands + self._chance.randint(1, 4)).key,
                EntryObject(session_folder(plan).log, self._chance.randint(1, 8)).key,
                session_folder(plan).heartbeat.key,
            ]
        )
        return Doom(key, self._chance.choice(_WHENS), self._chance.choice(_FATES))

    # ------------------------------------------------------------------------------------------------ what always holds

    def _check(self) -> None:
        stream = self._lake.catalog().table(TABLE_ID).stream({}).load().state
        if stream.compacted is None:
            return
        taken = []
        for position, (delta, known) in enumerate(zip(self._lake.deltas, stream.sources[1].deltas, strict=True)):
            files = [list(delta.rows[start : start + delta.rows_per_file]) for start in _starts(delta)]
            numbers = [file.file_number for file in known.files]
            covered = [
                rows
                for number, rows in zip(numbers, files, strict=True)
                if stream.compacted.processed.covers(position, number)
            ]
            taken.append((position, delta.operation, covered))
        side = CompactedSide.of(self._lake.catalog())
        assert multiset(side.rows(), COLUMNS) == multiset(surviving_rows(taken, ["id"], SORT_KEYS), COLUMNS)
        merged = side.table.scan({}, view="merged").to_table()
        assert multiset(merged, COLUMNS) == multiset(self._lake.expected(), COLUMNS)
        audit(side)
        check_books(self._lake)


def _starts(delta: Delta) -> range:
    return range(0, len(delta.rows), delta.rows_per_file)
