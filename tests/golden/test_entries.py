"""Log entries, checkpoints and documents as they were written once: every later release reads them.

The files stay as they are. What a release adds (an action, a field with a default) gets a file of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import JsonValue, TypeAdapter

from compactor.catalog.actions import StreamAction
from compactor.catalog.definition import TableAction
from compactor.catalog.stream import STREAM_LOG
from compactor.events.relay import PublishCursor
from compactor.log.durable_log import CHECKPOINT_ENTRIES, DurableLog
from compactor.model.document import Document
from compactor.planning.bundle_plan import BundlePlan
from compactor.planning.spec import SessionPlan
from compactor.sessions.bundle import BundleHeartbeat
from compactor.sessions.session_log import Heartbeat, SessionAction
from dispatcher.keeper.decision_log import DecisionAction
from dispatcher.keeper.upkeep import UpkeepNote
from dispatcher.records.callbacks import WaiterAnswer
from dispatcher.records.history import CleanedNote, History, HistoryAction
from dispatcher.records.job_run_log import JobRunAction
from dispatcher.records.liveness import SignOfLife
from dispatcher.records.pauses import PauseNote
from dispatcher.records.result import ResultDocument
from dispatcher.scheduling.lease_log import LeaseAction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

HERE = Path(__file__).parent
ENTRIES = sorted((HERE / "entries").glob("*/*.json"))
SHARED = HERE / "shared_checkpoints" / "stream_retired"
ACTIONS: dict[str, Any] = {
    "table": TableAction,
    "stream": StreamAction,
    "job_run": JobRunAction,
    "session": SessionAction,
    "history": HistoryAction,
    "turns": LeaseAction,
    "decisions": DecisionAction,
}
DOCUMENTS: tuple[type[Document], ...] = (
    SessionPlan,
    Heartbeat,
    PublishCursor,
    WaiterAnswer,
    ResultDocument,
    PauseNote,
    SignOfLife,
    BundlePlan,
    BundleHeartbeat,
    CleanedNote,
    UpkeepNote,
)


def holds(now: JsonValue, then: JsonValue) -> bool:
    """Whether everything that was written then is there now; a later release may have further fields."""
    if isinstance(now, dict) and isinstance(then, dict):
        return all(name in now and holds(now[name], value) for name, value in then.items())
    if isinstance(now, list) and isinstance(then, list):
        return len(now) == len(then) and all(map(holds, now, then))
    return now == then


@pytest.mark.parametrize("file", ENTRIES, ids=lambda file: f"{file.parent.name}: {file.stem}")
def test_every_action_of_an_entry_is_read_and_written_as_it_was(file: Path) -> None:
    adapter: TypeAdapter[Document] = TypeAdapter(ACTIONS[file.parent.name])
    entry = json.loads(file.read_text())
    assert entry["format"] == 1
    for action in entry["actions"]:
        read = adapter.validate_json(json.dumps(action))
        assert holds(json.loads(read.model_dump_json()), action)


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.__name__)
def test_every_document_is_read_and_written_as_it_was(kind: type[Document]) -> None:
    body = (HERE / "documents" / f"{kind.__name__}.json").read_bytes()
    assert holds(json.loads(kind.parse_durable(body, kind.__name__).render()), json.loads(body))


def test_a_closed_day_of_the_history_is_read_by_its_file_and_by_its_log() -> None:
    clock = ManualClock()
    store, log_only = MemoryStore(clock), MemoryStore(clock)
    for file in sorted(path for path in (HERE / "history").rglob("*") if path.is_file()):
        key = f"history/{file.relative_to(HERE / 'history')}"
        store.overwrite(key, file.read_bytes())
        if "job_runs.parquet" not in key:
            log_only.overwrite(key, file.read_bytes())
    ((by_file,), (by_log,)) = (tuple(History(each, clock).read()) for each in (store, log_only))
    assert by_file == by_log
    assert [each.job_run_id for each in by_file.job_runs] == ["late", "orders", "message-7"]


def test_a_shared_checkpoint_is_read_and_holds_what_its_log_folds_to() -> None:
    clock = ManualClock()
    whole, entries_only = MemoryStore(clock), MemoryStore(clock)
    for file in SHARED.rglob("*"):
        if file.is_file():
            key = f"log/{file.relative_to(SHARED).as_posix()}"
            whole.overwrite(key, file.read_bytes())
            if file.parent == SHARED and file.stem.isdecimal():
                entries_only.overwrite(key, file.read_bytes())
    counted = FaultyStore(whole)
    loaded = DurableLog(counted, "log", STREAM_LOG, clock).load()
    assert counted.count("read", ".parquet") == 3
    assert loaded == DurableLog(entries_only, "log", STREAM_LOG, clock).load()
    source = loaded.state.sources[1]
    assert [delta.position for delta in source.deltas] == [3, 5, 6]
    assert (source.retired is not None and source.retired.count, source.last_position) == (2, 6)


def test_a_checkpoint_goes_on_from_pieces_whose_deltas_lack_later_fields() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    for file in SHARED.rglob("*"):
        if file.is_file():
            store.overwrite(f"log/{file.relative_to(SHARED).as_posix()}", file.read_bytes())
    log = DurableLog(store, "log", STREAM_LOG, clock)
    last = log.load().state.sources[1].deltas[-1]
    for position in range(7, 7 + 2 * CHECKPOINT_ENTRIES):
        later = last.model_copy(update={"position": position, "delta_id": f"delta {position}", "at_ms": position})
        log.append(lambda _, later=later: [later])  # type: ignore[misc]
    reads = FaultyStore(store)
    loaded = DurableLog(reads, "log", STREAM_LOG, clock).load()
    assert loaded == log.load()
    assert reads.count("read", ".parquet") >= 3, "it is read from pieces, old and new"
    assert [each.at_ms for each in loaded.state.sources[1].deltas[:4]] == [None, None, None, 7]


@pytest.mark.parametrize("log", ACTIONS)
def test_there_is_an_entry_with_every_action_of_every_log(log: str) -> None:
    written = {
        action["action"]
        for file in (HERE / "entries" / log).glob("*.json")
        for action in json.loads(file.read_text())["actions"]
    }
    assert written == {kind.model_fields["action"].default for kind in _kinds(ACTIONS[log])}


def _kinds(actions: object) -> tuple[type[Document], ...]:
    """The members of a union, or the one there is."""
    if isinstance(actions, type):
        return (actions,)
    union, *_ = get_args(actions)
    return get_args(union)
