"""A table of many small partition streams, through a dispatcher process and a real Spark: a slice of `make bench`."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.storage.location import parse_location
from tests.benchmarks.streams import FOLDER, measure_in
from tests.servers import aws_environment

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.long]


def test_thirty_small_partition_streams_share_one_spark_job_and_lose_no_row(tmp_path: Path) -> None:
    with aws_environment():
        state, lake = parse_location(str(tmp_path / "state")), parse_location(str(tmp_path / "lake"))
        found = measure_in(tmp_path, state, lake, 30, FOLDER, "--workers", "0")
    assert found.launches == 1
    assert found.job_run_entries <= 12
