"""`compact()` as a user calls it: small sessions need no Spark, and leave what any other leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.engine.in_process import InProcessEngine
from compactor.lake import Table
from compactor.log.durable_log import DurableLog
from compactor.maintenance.verify import verify
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid
from compactor.planning.sizing import SESSION_SECONDS, Resources
from compactor.planning.spec import JobRunResult
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import SESSION_LOG, SessionProgress, SessionStarted
from tests.builders import figures_of_stream
from tests.conftest import Command

REPOSITORY = Path(__file__).parents[2]
TABLE = "ACME.ORDERS.V1"
WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None; "
"""Whoever imports one of them is refused."""


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    """Two days of two deltas each."""
    catalog = DeltaCatalog.open(tmp_path / "lake")
    orders = catalog.create_table(TABLE, partition_keys=["day"])
    for day in ("1", "2"):
        for status in ("new", "sent"):
            orders.append({"day": day}, pa.table({"id": [1, 2], "status": [status] * 2}))
    return catalog


def test_a_small_compaction_neither_starts_a_spark_nor_loads_one(lake: DeltaCatalog) -> None:
    program = (
        f"{WITHOUT_SPARK}from compactor import DeltaCatalog, compact; "
        f"result = compact({TABLE!r}, {{'id'}}, delta_catalog_client=DeltaCatalog.open({lake.location.root_uri!r})); "
        "print([session.rows_out for session in result.sessions])"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[2, 2]\n"), done.stderr
    table = lake.table(TABLE)
    assert [verify(table.stream({"day": day})).problems for day in ("1", "2")] == [(), ()]


def test_a_session_in_this_process_is_expected_to_take_no_start_of_a_spark(lake: DeltaCatalog) -> None:
    result = compact(TABLE, {"id"}, delta_catalog_client=lake)
    first, second = (_initial_sla(lake, result.job_run_id, session.session_id) for session in result.sessions)
    assert first < SESSION_SECONDS
    assert second < 1
    once_more = InProcessEngine().resources()
    assert once_more.start_seconds == 0, "what a process loads, it loads once"


def _initial_sla(lake: DeltaCatalog, job_run_id: str, session_id: str) -> float:
    log = DurableLog(lake.store, SessionFolder(job_run_id, session_id).log, SESSION_LOG, SystemClock())
    (started,) = (each for entry in log.entries(after=0) for each in entry.actions if isinstance(each, SessionStarted))
    return started.expected_sla


class SmallDisk(InProcessEngine):
    def resources(self) -> Resources:
        return replace(super().resources(), scratch_bytes=100)


def test_a_session_that_fits_no_scratch_folder_is_refused_and_the_lake_is_as_it_was(lake: DeltaCatalog) -> None:
    before = list(lake.store.list(""))
    with pytest.raises(Invalid, match=r"2 rows, whose round takes 136 bytes of scratch folders, which have 100"):
        compact(TABLE, {"id"}, delta_catalog_client=lake, engine=SmallDisk())
    assert list(lake.store.list("")) == before


def test_another_hash_bucket_count_alone_rehashes_the_index(lake: DeltaCatalog, command: Command) -> None:
    (before, _) = compact(TABLE, {"id"}, delta_catalog_client=lake).sessions
    assert before.hash_bucket_count is not None
    wanted = str(before.hash_bucket_count + 3)
    given = ("-k", "id", "--lake", lake.location.root_uri, "--hash-bucket-count", wanted)
    result = command("compact", TABLE, *given)
    assert "nothing to do" not in result.out
    assert f"The index of day=1 has {wanted} hash buckets, not {before.hash_bucket_count} any more." in result.out
    for day in ("1", "2"):
        stream = lake.table(TABLE).stream({"day": day})
        compacted = stream.load().state.compacted
        assert compacted is not None
        assert (str(compacted.hash_bucket_count), compacted.rows) == (wanted, 2)
        assert not verify(stream).problems
    assert "nothing to do" in command("compact", TABLE, *given).out


def test_a_result_says_whether_the_desired_sla_was_met(lake: DeltaCatalog, capsys: pytest.CaptureFixture[str]) -> None:
    result = compact(TABLE, {"id"}, desired_sla=3_600, delta_catalog_client=lake)
    assert (result.desired_sla, result.within_desired_sla) == (3_600, True)
    assert "desired_sla_exceeded" not in capsys.readouterr().out
    assert compact(TABLE, {"id"}, delta_catalog_client=lake).within_desired_sla is None


def test_a_desired_sla_that_this_machine_cannot_keep_is_said_before_the_work(
    lake: DeltaCatalog, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.table(TABLE).append({"day": "1"}, pa.table({"id": range(2_000_000)}))
    compact(TABLE, {"id"}, desired_sla=1, delta_catalog_client=lake)
    assert "desired_sla_exceeded" in capsys.readouterr().out


def test_a_listener_hears_of_sessions_in_this_process(lake: DeltaCatalog) -> None:
    steps: list[SessionProgress] = []
    compact(TABLE, {"id"}, delta_catalog_client=lake, progress=steps.append)
    committed = [each.number for each in steps if each.heartbeat is not None and each.heartbeat.step == "committed"]
    assert sorted(set(committed)) == [1, 2]


def test_the_command_has_a_line_for_each_round_in_this_process(lake: DeltaCatalog, command: Command) -> None:
    result = command("compact", TABLE, "-k", "id", "--lake", lake.location.root_uri)
    assert result.exit_code == 0
    lines = [line.split("s  ", 1)[1] for line in result.err.splitlines() if "committed" in line]
    assert sorted(lines) == [f"day={day} ({day} of 2): round 1 of 1 committed, 4 delta rows done" for day in ("1", "2")]


def test_only_a_session_alone_says_how_long_the_next_one_may_take(lake: DeltaCatalog) -> None:
    """Others that share its core make it longer, and it would run on Spark the next time."""
    table = lake.table(TABLE)
    compact(TABLE, {"id"}, delta_catalog_client=lake)
    assert [_timings(table, day) for day in ("1", "2")] == [0, 0]
    table.append({"day": "1"}, pa.table({"id": [7], "status": ["new"]}))
    compact(TABLE, {"id"}, delta_catalog_client=lake)
    assert [_timings(table, day) for day in ("1", "2")] == [1, 0]


def _timings(table: Table, day: str) -> int:
    compacted = table.stream({"day": day}).load().state.compacted
    assert compacted is not None
    return len(compacted.last_round.timings)


def test_a_bad_partition_keeps_no_small_session_from_being_compacted(lake: DeltaCatalog) -> None:
    lake.table(TABLE).append({"day": "0"}, pa.table({"other": [1]}))
    with pytest.raises(Invalid, match=r"day=0: .*id") as raised:
        compact(TABLE, {"id"}, delta_catalog_client=lake)
    assert isinstance(raised.value.result, JobRunResult)
    assert [session.rows_out for session in raised.value.result.sessions] == [2, 2]


def test_the_last_round_is_told_in_one_entry_with_the_success_and_earlier_ones_when_they_are_committed(
    lake: DeltaCatalog,
) -> None:
    result = compact(
        TABLE, {"id"}, delta_catalog_client=lake, partitions=[{"day": "1"}], max_rows_per_round=2, hash_bucket_count=1
    )
    (session,) = result.sessions
    log = DurableLog(lake.store, SessionFolder(result.job_run_id, session.session_id).log, SESSION_LOG, SystemClock())
    actions = [[action.action for action in entry.actions] for entry in log.entries()]
    of_rounds = [entry for entry in actions if entry != ["expected_sla_changed"]]
    assert session.rounds == 2
    assert of_rounds == [["session_started"], ["round_done"], ["round_done", "session_succeeded"]]


def test_without_pyspark_a_session_that_is_worth_a_spark_says_what_to_install(
    lake: DeltaCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "compactor.engine.local", None)
    rows = pa.table({"id": [1, 2], "status": ["new", "sent"]})
    lake.table(TABLE).append_many([({"day": "1"}, rows, "upsert")] * 400)
    with pytest.raises(Invalid, match=r"pip install 'lithify\[spark\]'"):
        compact(TABLE, {"id"}, delta_catalog_client=lake, max_rows_per_round=2)
    assert figures_of_stream(lake.table(TABLE), {"day": "1"}).pending_deltas == 402, "it was said before the work"
