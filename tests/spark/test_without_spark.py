"""What a session leaves that ran in the caller's process is what it leaves on Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.log.durable_log import DurableLog
from compactor.model.clock import SystemClock
from compactor.planning.spec import JobRunResult
from compactor.sessions.keys import JobRunFolder
from compactor.sessions.session_log import SESSION_LOG
from tests.builders import TABLE_ID

pytestmark = pytest.mark.spark

OF_THE_RUN = frozenset(
    {
        *("commit_id", "job_run_id", "session_id", "path"),
        *("size_bytes", "bytes_at_rest", "peak_memory_bytes"),
        *("seconds", "at_ms", "expected_sla", "work_seconds", "tasks", "cores", "timings"),
    }
)
"""Ids, times as predicted and as taken, what it took of the machine, and where files lie and how large they are."""


def test_a_session_without_spark_leaves_the_entries_that_it_leaves_on_spark(
    tmp_path: Path, spark: SparkSession
) -> None:
    here, on_spark = (entries_left_in(tmp_path / name, given) for name, given in (("a", None), ("b", spark)))
    assert here == on_spark
    assert len(here) > 6


def entries_left_in(folder: Path, spark: SparkSession | None) -> list[object]:
    lake = DeltaCatalog.open(folder)
    orders = lake.create_table(TABLE_ID)
    for first in (0, 50, 100):
        rows = pa.table({"id": range(first, first + 100), "v": [str(first)] * 100})
        orders.append({}, rows, position=first + 1, delta_id=str(first))
    orders.append({}, pa.table({"id": [7, 120]}), operation="delete", position=200, delta_id="delete")
    result = compact(
        TABLE_ID,
        {"id"},
        delta_catalog_client=lake,
        hash_bucket_count=2,
        max_rows_per_round=200,
        rows_per_compacted_file=60,
        spark=spark,
    )
    return entries_of(lake, result)


def entries_of(lake: DeltaCatalog, result: JobRunResult) -> list[object]:
    """What a job run has written to the logs of the stream and of its session, without what is of the run."""
    (session,) = result.sessions
    folder = JobRunFolder(result.job_run_id).session(session.session_id)
    of_session = DurableLog(lake.store, folder.log, SESSION_LOG, SystemClock()).entries()
    of_stream = lake.table(TABLE_ID).stream({}).log.entries()
    actions = [action.model_dump(mode="json") for entry in of_stream for action in entry.actions]
    actions += [action.model_dump(mode="json") for entry in of_session for action in entry.actions]
    # That a prediction was proved wrong is the machine's affair.
    return [_of_every_run(action) for action in actions if action["action"] != "expected_sla_changed"]


def _of_every_run(value: object) -> object:
    if isinstance(value, dict):
        return {name: _of_every_run(each) for name, each in value.items() if name not in OF_THE_RUN}
    if isinstance(value, list):
        return [_of_every_run(each) for each in value]
    return value
