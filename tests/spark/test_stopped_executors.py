"""An executor that is stopped and goes on must not harm what its replacement has written on S3."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark import stopped_executors

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.long]

STOPPED_WHILE_IT_WRITES = 1
REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_stopped_executor_that_goes_on_harms_nothing_of_its_replacement() -> None:
    """One round; `python -m tests.spark.stopped_executors --rounds 20` runs more, of other seeds."""
    command = [sys.executable, "-m", stopped_executors.__name__, "--seed", str(STOPPED_WHILE_IT_WRITES)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    (found,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert found["right"], (found, result.stderr[-2_000:])
    assert result.returncode == 0
    assert found["stopped"] != "nothing"
