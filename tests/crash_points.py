"""The durable writes of one session by name, and a walk that cuts the session off at one of them.

The session rehashes an inherited index and then runs three rounds, with deletion vectors; the first of its rounds is
the stream's 32nd entry, so that a checkpoint is due with it. Of a table with `session_plans` its plan is an entry, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pytest

from compactor.engine.protocol import Engine
from compactor.local_job_run import run_here
from compactor.log.durable_log import CHECKPOINT_ENTRIES
from compactor.log.keys import CheckpointObject, EntryObject, HintObject
from compactor.model.errors import Conflict, Unavailable
from compactor.model.names import Operation
from compactor.planning.spec import SessionPlan
from compactor.sessions.in_flight import LASTS_SECONDS_MIN
from tests.builders import TABLE_ID
from tests.crashes import (
    Delta,
    Lake,
    LaterClock,
    Options,
    SlowingClock,
    attempt,
    check_books,
    check_rows,
    check_session_log,
    commits,
    session_folder,
    session_log,
    uncommitted,
)
from tests.fakes.doomed_store import Doom, DoomedStore, Fate, When
from tests.fakes.faulty_store import Stopped
from tests.oracle import Row

ROUNDS = 3
OPTIONS = Options(hash_bucket_count=3, max_rows_per_round=12, max_dead_row_share=0.3)

WhoGoesOn = Literal["attempt 2", "another job run"]

PLAN = "the plan is logged"
"""A write of sessions of tables with `session_plans`."""

_Written = Literal["session", "plan", "stream", "checkpoint", "hint"]

_WRITES: tuple[tuple[str, _Written, int], ...] = (
    ("the start is told", "session", 1),
    (PLAN, "plan", 0),
    ("the rehash is committed", "stream", 1),
    ("the rehash is told", "session", 2),
    ("round 1 is committed", "stream", 2),
    ("the checkpoint is written", "checkpoint", 2),
    ("the checkpoint is hinted at", "hint", 2),
    ("round 1 is told", "session", 3),
    ("round 2 is committed", "stream", 3),
    ("round 2 is told", "session", 4),
    ("round 3 is committed", "stream", 4),
    ("round 3 and the success are told", "session", 5),
)
"""The number is that of the entry in the session's log, or that of the commit."""

POINTS_WITH_PLAN = tuple(name for name, _, _ in _WRITES)
POINTS = tuple(name for name in POINTS_WITH_PLAN if name != PLAN)
HEARTBEAT = "the heart beats"
COMMITS: Mapping[str, int] = MappingProxyType({name: number for name, log, number in _WRITES if log == "stream"})
"""How many commits of the session stand after this one."""


@dataclass(frozen=True)
class Crash:
    """What befalls the first attempt, and who goes on after it."""

    point: str
    when: When
    fate: Fate
    who: WhoGoesOn = "attempt 2"

    def __str__(self) -> str:
        return f"{self.when} {self.point}, {self.fate}, {self.who} goes on"


def build_lake(folder: Path, engine: Engine, *, session_plans: bool = False) -> Lake:
    """A compacted table of 40 rows, and pending: updates, late older rows, deletes, keys that come back."""
    lake = Lake(folder, [], LaterClock(), session_plans)
    lake.append([Delta(Operation.UPSERT, [_row(n, 5, "base") for n in range(40)], 16)])
    pending = [
        Delta(Operation.UPSERT, [_row(n, 4 + n % 3, "second") for n in range(12)], 6),
        Delta(Operation.DELETE, [{"id": n, "time": 6} for n in range(6, 18)], 12),
        Delta(Operation.UPSERT, [*(_row(n, 7, "back") for n in (6, 8)), *(_row(n, 5, "late") for n in (7, 9))]),
        Delta(Operation.UPSERT, [_row(n, 8, "new") for n in range(38, 44)]),
    ]
    missing = _stream_at(lake) - _entries(lake) - (2 if session_plans else 1) - len(pending)
    lake.append([Delta(Operation.UPSERT, [_row(0, 0, "older than all")])] * missing)
    attempt(lake.plan(Options(hash_bucket_count=2), "base"), lake, engine, 1)
    lake.append(pending)
    assert _entries(lake) == _stream_at(lake)
    return lake


def _stream_at(lake: Lake) -> int:
    """Entries of the stream's log before the session: the plan, if it is logged, and the rehash come before round 1."""
    return CHECKPOINT_ENTRIES - (3 if lake.session_plans else 2)


def _entries(lake: Lake) -> int:
    return lake.catalog().table(TABLE_ID).stream({}).load().entry_number


def _row(key: int, time: int, value: str) -> Row:
    return {"id": key, "time": time, "value": f"{value} {key}"}


def copy_of(lake: Lake, folder: Path) -> Lake:
    shutil.copytree(lake.folder, folder)
    return Lake(folder, list(lake.deltas), LaterClock(), lake.session_plans)


def key_of(plan: SessionPlan, lake: Lake, point: str) -> str:
    """The object that is written at a point."""
    if point == HEARTBEAT:
        return session_folder(plan).heartbeat.key
    ((log, number),) = [(log, number) for name, log, number in _WRITES if name == point]
    stream = lake.catalog().table(TABLE_ID).stream({}).folder.log
    before = _stream_at(lake) + (1 if lake.session_plans else 0)
    match log:
        case "session":
            return EntryObject(session_folder(plan).log, number).key
        case "plan":
            return EntryObject(stream, before).key
        case "stream":
            return EntryObject(stream, before + number).key
        case "checkpoint":
            return CheckpointObject.head(stream, before + number).key
        case "hint":
            return HintObject(stream).key


def writes_of_a_sound_run(lake: Lake, engine: Engine) -> list[str]:
    """The keys that the session writes if nothing happens to it, without heartbeats and the pieces of checkpoints,
    whose names are fresh."""
    plan = lake.plan(OPTIONS)
    store = DoomedStore(lake.store())
    attempt(plan, lake, engine, 1, store)
    check_rows(lake)
    check_session_log(lake, plan, [1])
    assert uncommitted(lake) == set()
    pieces = CheckpointObject.prefix(lake.catalog().table(TABLE_ID).stream({}).folder.log)
    return [
        key
        for key in store.writes
        if key != session_folder(plan).heartbeat.key and not (key.startswith(pieces) and key.endswith(".parquet"))
    ]


def crash_where_another_sla_is_logged(lake: Lake, when: When, fate: Fate, engine: Engine) -> None:
    """A session on a slow machine, cut off where it says for the first time that it expects to take longer. How often
    it says so follows from its clock, so the write is known by what it says, not by its number."""
    plan, before = lake.plan(OPTIONS), len(commits(lake))
    doom = Doom("", when, fate, content=b'"expected_sla_changed"')
    store = DoomedStore(lake.store(), doom)
    with suppress(Unavailable, Stopped):
        attempt(plan, lake, engine, 1, store, SlowingClock())
    assert store.met
    check_books(lake)
    in_vain = uncommitted(lake)
    if fate != "one answer is lost":
        assert len(commits(lake)) - before < 1 + ROUNDS
        attempt(plan, lake, engine, 2)
    check_session_log(lake, plan, [1] if fate == "one answer is lost" else [1, 2])
    check_rows(lake)
    assert uncommitted(lake) == in_vain
    assert len(commits(lake)) - before == 1 + ROUNDS, "nothing that was committed was done again"


def crash_and_go_on(lake: Lake, crash: Crash, engine: Engine) -> None:
    """The whole story of one crash, held against everything that must be true after it."""
    plan = lake.plan(OPTIONS)
    store = DoomedStore(lake.store(), Doom(key_of(plan, lake, crash.point), crash.when, crash.fate))
    before = len(commits(lake))
    with suppress(Unavailable, Stopped):
        attempt(plan, lake, engine, 1, store)
    assert store.met
    if crash.fate == "one answer is lost":
        check_rows(lake)
        check_session_log(lake, plan, [1])
        assert uncommitted(lake) == set()
        return
    check_books(lake)
    in_vain = uncommitted(lake)
    stands = len(commits(lake)) - before
    if crash.point in COMMITS:
        stands_due = COMMITS[crash.point] - (1 if crash.when == "before" else 0)
        assert stands == stands_due
        assert len(in_vain) == (1 if crash.when == "before" else 0)
    else:
        assert in_vain == set() or crash.point == HEARTBEAT
    if crash.who == "attempt 2":
        started = session_log(plan, lake.store()).load().state.attempt
        attempt(plan, lake, engine, 2)
        check_session_log(lake, plan, [1, 2] if started else [2])
    else:
        if _leaves_its_plan(crash, lake):
            with pytest.raises(Conflict, match="is being compacted by job run run 1"):
                _compact(lake, engine)
            assert isinstance(lake.clock, LaterClock)
            lake.clock.put_forward(LASTS_SECONDS_MIN)
        _compact(lake, engine)
    check_rows(lake)
    assert uncommitted(lake) == in_vain, "the second attempt ran nothing in vain"
    assert len(commits(lake)) - before == 1 + ROUNDS, "nothing that was committed was done again"


def _leaves_its_plan(crash: Crash, lake: Lake) -> bool:
    """Whether the plan of the session that was cut off is in force: others keep away until its time-out."""
    in_force = lake.catalog().table(TABLE_ID).stream({}).load().state.in_flight is not None
    if crash.point != HEARTBEAT:
        reached = POINTS_WITH_PLAN.index(crash.point) - (1 if crash.when == "before" else 0)
        planned, last = POINTS_WITH_PLAN.index(PLAN), POINTS_WITH_PLAN.index("round 3 is committed")
        assert in_force == (lake.session_plans and planned <= reached < last)
    return in_force


def _compact(lake: Lake, engine: Engine) -> None:
    """Another job run over the same stream, as `compact()` runs it, by the lake's clock."""
    another = lake.plan(OPTIONS, "run 2").spec.job_run
    run_here(another, lake.catalog(), lake.clock, engine)
