"""The lane with checked bounds (`make test-bounds`) sees an index that lies outside of its array."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_OUTSIDE = """
import numpy as np
from compactor.kernels.parquet_values import take_codes
try:
    take_codes(np.zeros(4, np.uint32), np.array([{place}]), np.zeros(1, np.bool_))
except IndexError as error:
    print("refused:", error)
else:
    print("taken")
"""


def _answer(place: int, cache: Path) -> str:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    program = [sys.executable, "-c", _OUTSIDE.format(place=place)]
    return subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_an_index_outside_of_an_array_is_seen_where_bounds_are_checked(tmp_path: Path) -> None:
    assert _answer(3, tmp_path) == "taken"
    assert _answer(4, tmp_path).startswith("refused: index is out of bounds")


def test_the_lane_turns_the_checks_on() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    (lane,) = [part for part in makefile.split("\n\n") if "\ntest-bounds:" in part]
    assert "NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=" in lane
