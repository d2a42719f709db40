"""What an attempt reads before its first round, and what it tells of it, when writers have gone on meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import RoundCommitted
from compactor.model.clock import SystemClock
from compactor.planning.session_input import read_session_input
from compactor.planning.session_streams import commits_of
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from tests.builders import TABLE_ID, pinned_session
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.unruly_engine import UnrulyEngine

LATER_APPENDS = 70


@dataclass
class RecordingReport:
    """A `ReadReport` that remembers: (step, of how many, how many were read)."""

    parts: list[tuple[str, int, int]] = field(default_factory=list)

    def reading(self, step: str, of: int) -> None:
        self.parts.append((step, of, 0))

    def read_one(self) -> None:
        step, of, done = self.parts[-1]
        self.parts[-1] = (step, of, done + 1)


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(LocalStore(StoreLocation(f"file://{tmp_path}")))


@pytest.fixture
def lake(store: FaultyStore) -> DeltaCatalog:
    return DeltaCatalog(store, SystemClock())


def append(lake: DeltaCatalog, deltas: int) -> None:
    table = lake.table(TABLE_ID)
    for number in range(deltas):
        table.append({}, pa.table({"id": [number], "note": ["x"]}))


def entries_read_after(store: FaultyStore, entry_number: int) -> list[int]:
    names = [key.rpartition("/")[2] for verb, key in store.requests if verb == "read"]
    numbers = [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit()]
    return sorted(number for number in numbers if number > entry_number)


def test_an_attempt_reads_no_entry_since_the_pin_where_nothing_has_been_committed_since(
    store: FaultyStore, lake: DeltaCatalog
) -> None:
    lake.create_table(TABLE_ID)
    append(lake, 3)
    spec = pinned_session(lake, TABLE_ID)
    append(lake, LATER_APPENDS)
    resumed, report = DeltaCatalog(store, SystemClock()), RecordingReport()
    session = read_session_input(spec, resumed, report)
    store.requests.clear()
    assert commits_of(spec, session.streams.destination, report) == []
    # Whether there is an entry after the last one has to be asked.
    assert entries_read_after(store, spec.destination_entry_number + LATER_APPENDS) == entries_read_after(
        store, spec.destination_entry_number
    )
    assert report.parts == [("read footers", 1, 1)]


def test_an_attempt_finds_what_was_committed_among_what_writers_have_appended_and_tells_how_far_it_is(
    store: FaultyStore, lake: DeltaCatalog
) -> None:
    lake.create_table(TABLE_ID)
    append(lake, 3)
    spec = pinned_session(lake, TABLE_ID)
    append(lake, 40)
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())
    append(lake, LATER_APPENDS - 40)
    (round_committed,) = [
        action
        for entry in lake.table(TABLE_ID).stream({}).log.entries()
        for action in entry.actions
        if isinstance(action, RoundCommitted)
    ]
    ours = spec.model_copy(update={"session_id": round_committed.session_id})
    report = RecordingReport()
    session = read_session_input(ours, DeltaCatalog(store, SystemClock()), report)
    found = commits_of(ours, session.streams.destination, report)
    assert [action for _, action in found] == [round_committed]
    assert report.parts[-1] == ("read log entries", LATER_APPENDS + 1, LATER_APPENDS + 1)
    assert commits_of(spec, session.streams.destination, report) == []
