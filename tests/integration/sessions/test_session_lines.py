"""What an operator can follow of a session in the log of the process that runs it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from compactor import DeltaCatalog, compact
from compactor.engine.protocol import Engine
from compactor.log_context import configure_logging
from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import Fenced, LithifyError, Unavailable
from compactor.planning.round_plan import RoundPlan
from compactor.sessions import session
from compactor.sessions.round_runner import RoundResult, run_round
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from tests.builders import TABLE_ID
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.unruly_engine import UnrulyEngine


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(LocalStore(StoreLocation(f"file://{tmp_path}")))


@pytest.fixture
def lake(store: FaultyStore) -> DeltaCatalog:
    lake = DeltaCatalog(store, SystemClock())
    table = lake.create_table(TABLE_ID)
    for number in range(2):
        table.append({}, pa.table({"id": [number], "note": ["x"]}))
    return lake


def run(
    lake: DeltaCatalog, raises: type[LithifyError] | None = None, max_rows_per_round: int | None = None
) -> list[EventDict]:
    """The lines that a compaction writes."""
    expected = nullcontext() if raises is None else pytest.raises(raises)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines, expected:
        compact(
            TABLE_ID,
            {"id"},
            delta_catalog_client=lake,
            engine=UnrulyEngine(),
            max_rows_per_round=max_rows_per_round,
        )
    return lines


def before_the_commit(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Once, when the next round has run and is about to be committed."""

    def run_and_then(engine: Engine, plan: RoundPlan, clock: Clock, on_step: Callable[[str, int], None]) -> RoundResult:
        monkeypatch.setattr(session, "run_round", run_round)
        result = run_round(engine, plan, clock, on_step)
        happens()
        return result

    monkeypatch.setattr(session, "run_round", run_and_then)


@pytest.fixture(autouse=True)
def _followed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "compactor.sessions")


def test_a_session_tells_of_its_start_of_every_round_and_of_its_end(lake: DeltaCatalog) -> None:
    lines = run(lake, max_rows_per_round=1)
    assert [each["event"] for each in lines] == ["session_started", *["round_committed"] * 2, "attempt_ended"]
    started, first, second, ended = lines
    assert (started["rounds"], started["rows"]) == (2, 2)
    assert [(each["round_number"], each["rounds"], each["rows_out"]) for each in (first, second)] == [
        (1, 2, 1),
        (2, 2, 2),
    ]
    assert (ended["end"], ended["rounds"], ended["rows_out"], ended["log_level"]) == ("succeeded", 2, 2, "info")
    assert {each["attempt"] for each in lines} == {1}
    assert len({(each["job_run_id"], each["session_id"]) for each in lines}) == 1


def test_a_session_that_is_overtaken_says_which_commit_was_fenced_and_why(
    lake: DeltaCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rival() -> None:
        with capture_logs():
            compact(TABLE_ID, {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())

    before_the_commit(monkeypatch, rival)
    lines = run(lake, raises=Fenced)
    fenced, ended = lines[-2:]
    assert (fenced["event"], fenced["log_level"]) == ("commit_fenced", "warning")
    assert "the plan read no compacted round; the stream is at index version 1" in fenced["reason"]
    assert (ended["event"], ended["end"], ended["log_level"]) == ("attempt_ended", "fenced", "warning")


def test_a_commit_without_an_answer_has_an_unknown_outcome(
    lake: DeltaCatalog, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = lake.table(TABLE_ID).stream({})
    entry = f"{stream.log.folder}/{stream.load().entry_number + 1:020}.json"

    def break_off() -> None:
        store.fail("put_if_absent", entry, when="after", times=None)
        store.fail("read", entry, times=None)

    before_the_commit(monkeypatch, break_off)
    lines = run(lake, raises=Unavailable)
    unknown, ended = lines[-2:]
    assert (unknown["event"], unknown["log_level"]) == ("commit_outcome_unknown", "warning")
    assert unknown["commit_id"]
    assert (ended["event"], ended["end"], ended["error_kind"]) == ("attempt_ended", "failed", "Unavailable")


@pytest.mark.parametrize(
    ("runs_session", "level", "lines"), [(True, "info", 3), (False, "info", 0), (False, "debug", 3)]
)
def test_lines_are_for_a_process_that_is_there_to_run_a_session_and_no_command_or_library_writes_them(
    lake: DeltaCatalog, *, runs_session: bool, level: str, lines: int
) -> None:
    out = io.StringIO()
    try:
        configure_logging(as_json=True, level=level, stream=out, runs_session=runs_session)
        compact(TABLE_ID, {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())
    finally:
        structlog.reset_defaults()
        for name in ("compactor", "compactor.sessions"):
            logging.getLogger(name).setLevel(logging.NOTSET)
    logged = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(logged) == lines
    assert all(each["session_id"] and each["attempt"] == 1 for each in logged)


def test_lines_of_a_round_name_job_run_session_attempt_and_round(lake: DeltaCatalog) -> None:
    committed = [line for line in run(lake, max_rows_per_round=1) if line["event"] == "round_committed"]
    assert [line["round"] for line in committed] == [1, 2]
    assert all({"job_run_id", "session_id", "attempt"} <= line.keys() for line in committed)
