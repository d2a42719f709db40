"""Nothing relies on sharing a process or a working folder: two executors in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compactor import DeltaCatalog
from compactor.engine.java_home import find_java_home
from tests.builders import CompactedSide, audit, multiset
from tests.oracle import surviving_rows
from tests.spark import cluster_program

pytestmark = [pytest.mark.spark, pytest.mark.long]

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_table_compacts_on_executors_in_processes_of_their_own(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {
        **{name: os.environ[name] for name in ("PATH", "JDK_JAVA_OPTIONS")},
        "HOME": str(tmp_path),
        "JAVA_HOME": str(find_java_home(os.environ, Path.home() / ".cache" / "lithify")),
        "PYTHONPATH": str(REPOSITORY),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ended = subprocess.run(
        [sys.executable, cluster_program.__file__, str(tmp_path / "lake")],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert len({process for process, _ in answer["places"]}) == 2, "there are two executors"
    assert str(elsewhere) not in {folder for _, folder in answer["places"]}

    deltas = [delta for deltas in cluster_program.RUNS for delta in deltas]
    expected = surviving_rows(
        [(position, operation, [rows]) for position, (operation, rows) in enumerate(deltas)],
        ["id"],
        cluster_program.SORT_KEYS,
    )
    side = CompactedSide.of(DeltaCatalog.open(tmp_path / "lake"), cluster_program.TABLE_ID)
    assert multiset(side.rows(), ["id", "time", "value"]) == multiset(expected, ["id", "time", "value"])
    audit(side)
