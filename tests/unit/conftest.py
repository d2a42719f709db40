"""A lake whose time passes when it is told to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from compactor import DeltaCatalog
from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """It starts now, since files bear the time of the file system."""
    return ManualClock(time.time_ns() // 1_000_000)


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock) -> DeltaCatalog:
    return DeltaCatalog.open(tmp_path / "lake", clock=clock)
