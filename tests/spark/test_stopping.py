"""What a Spark of one's own says while it stops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark import failing_program

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.slow
def test_tasks_that_end_while_spark_stops_since_another_one_has_failed_leave_no_stack() -> None:
    """Which of them end within the stop is chance: as long as Spark says so, most runs of this process leave one."""
    command = [sys.executable, failing_program.__file__]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop("JDK_JAVA_OPTIONS")  # Java says that it has seen them
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
