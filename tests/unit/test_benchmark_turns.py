"""In which order the contestants of a benchmark run."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest

from tests.benchmarks.processes import turn


@pytest.mark.parametrize("lanes", range(1, 9))
def test_every_contestant_comes_right_after_every_other_one_equally_often(lanes: int) -> None:
    turns = [turn(number, lanes) for number in range(1, 2 * lanes + 1)]
    assert all(sorted(order) == list(range(lanes)) for order in turns)
    followed = Counter(pair for order in turns for pair in pairwise(order))
    assert followed == Counter(list(permutations(range(lanes), 2)) * 2)
