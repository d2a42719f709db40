"""A pointer is live if its file is, and its row is not among the file's dead."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import Corrupt
from compactor.kernels.live_rows import LiveRows, count_live, live_pointers

ROWS = 20


@given(
    pointers=st.lists(st.tuples(st.integers(-1, 6), st.integers(0, ROWS - 1)), max_size=60),
    ordinals=st.permutations([-1, -1, 0, 1, 2]),
    dead=st.dictionaries(st.integers(0, 2), st.sets(st.integers(0, ROWS - 1)), max_size=3),
    wanted=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_live_pointers_are_counted_and_selected_as_a_plain_loop_does(
    pointers: list[tuple[int, int]], ordinals: list[int], dead: dict[int, set[int]], wanted: list[bool]
) -> None:
    ordinal_of = np.array([*ordinals, -1], np.int64)
    dead_rows = {ordinal: np.array(sorted(rows), np.int64) for ordinal, rows in dead.items()}
    live = LiveRows.of(ordinal_of, np.full(3, ROWS, np.int64), dead_rows)
    numbers = np.array([number for number, _ in pointers], np.int32)
    rows = np.array([row for _, row in pointers], np.int64)

    plain: list[int] = []
    for number, row in pointers:
        ordinal = ordinals[number] if 0 <= number < len(ordinals) else -1
        plain.append(-1 if row in dead.get(ordinal, set()) else ordinal)
    counts = np.zeros(3, np.int64)
    count_live(live, numbers, rows, counts)
    assert counts.tolist() == [plain.count(ordinal) for ordinal in range(3)]
    places = live_pointers(live, numbers, rows, np.array(wanted)).tolist()
    assert places == [place for place, ordinal in enumerate(plain) if ordinal >= 0 and wanted[ordinal]]


@pytest.mark.parametrize("row", [-1, ROWS, 2**40])
@pytest.mark.parametrize("dead", [{}, {0: np.array([3])}])
def test_a_pointer_beyond_its_file_is_damage_and_is_not_followed(
    row: int, dead: dict[int, npt.NDArray[np.int64]]
) -> None:
    live = LiveRows.of(np.array([-1, 0, -1]), np.array([ROWS]), dead)
    numbers, rows = np.array([1], np.int32), np.array([row])
    with pytest.raises(Corrupt, match="beyond the end"):
        count_live(live, numbers, rows, np.zeros(1, np.int64))
    with pytest.raises(Corrupt, match="beyond the end"):
        live_pointers(live, numbers, rows, np.ones(1, np.bool_))
    with pytest.raises(Corrupt, match="beyond the end"):
        LiveRows.of(np.array([-1, 0, -1]), np.array([ROWS]), {0: rows})
