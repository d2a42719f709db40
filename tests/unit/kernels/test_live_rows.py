"""A pointer is live if its file is, and its row is not among the file's dead."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.live_rows import LiveFiles, LiveRows, _count, _select, count_live, live_pointers
from compactor.model.errors import Corrupt

ROWS = 20
ONE_FILE = LiveFiles.of(np.array([1], np.int32))


@given(
    pointers=st.lists(st.tuples(st.integers(-1, 6), st.integers(0, ROWS - 1)), max_size=60),
    numbers_of_files=st.permutations([1, 2, 3, 4]),
    dead=st.dictionaries(st.integers(0, 2), st.sets(st.integers(0, ROWS - 1)), max_size=3),
    wanted=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_live_pointers_are_counted_and_selected_as_a_plain_loop_does(
    pointers: list[tuple[int, int]], numbers_of_files: list[int], dead: dict[int, set[int]], wanted: list[bool]
) -> None:
    files = dict(zip(numbers_of_files, range(3), strict=False))
    dead_rows = {ordinal: np.array(sorted(rows), np.int64) for ordinal, rows in dead.items()}
    live = LiveRows.of(LiveFiles.of(np.array(list(files), np.int32)), np.full(3, ROWS, np.int64), dead_rows)
    numbers = np.array([number for number, _ in pointers], np.int32)
    rows = np.array([row for _, row in pointers], np.int64)

    plain: list[int | None] = []
    for number, row in pointers:
        ordinal = files.get(number)
        plain.append(None if ordinal is None or row in dead.get(ordinal, set()) else ordinal)
    counts = np.zeros(3, np.int64)
    count_live(live, numbers, rows, counts)
    assert counts.tolist() == [plain.count(ordinal) for ordinal in range(3)]
    selected = live_pointers(live, numbers, rows, np.array(wanted)).tolist()
    assert selected == [pointer for pointer, ordinal in enumerate(plain) if ordinal is not None and wanted[ordinal]]


@pytest.mark.parametrize("row", [-1, ROWS, 2**40])
@pytest.mark.parametrize("dead", [{}, {0: np.array([3])}])
def test_a_pointer_beyond_its_file_is_damage_and_is_not_followed(
    row: int, dead: dict[int, npt.NDArray[np.int64]]
) -> None:
    live = LiveRows.of(ONE_FILE, np.array([ROWS]), dead)
    numbers, rows = np.array([1], np.int32), np.array([row])
    with pytest.raises(Corrupt, match="beyond the end"):
        count_live(live, numbers, rows, np.zeros(1, np.int64))
    with pytest.raises(Corrupt, match="beyond the end"):
        live_pointers(live, numbers, rows, np.ones(1, np.bool_))
    with pytest.raises(Corrupt, match="beyond the end"):
        LiveRows.of(ONE_FILE, np.array([ROWS]), {0: rows})


@given(st.lists(st.integers(-1, 5), max_size=10))
def test_ordinals_are_those_of_the_files_that_rows_are_in(numbers: list[int]) -> None:
    files = LiveFiles.of(np.array([2, 3, 5], np.int32))
    is_row = np.array([number in (2, 3, 5) for number in numbers], np.bool_)
    ordinals = files.ordinals_of(np.array(numbers, np.int32), is_row).tolist()
    assert ordinals == [{2: 0, 3: 1, 5: 2}.get(number, 0) for number in numbers]


@pytest.mark.parametrize("number", [-(2**31), -2, -1, 0, 1, 4, 6, 2**31 - 1])
def test_a_row_in_a_file_that_is_not_live_is_damage(number: int) -> None:
    numbers = np.array([2, number], np.int32)
    with pytest.raises(Corrupt, match="not in the stream"):
        LiveFiles.of(np.array([2, 3, 5], np.int32)).ordinals_of(numbers, np.array([True, True]))
    with pytest.raises(Corrupt, match="not in the stream"):
        LiveFiles.of(np.empty(0, np.int32)).ordinals_of(numbers[1:], np.array([True]))


def test_pointers_of_a_remote_index_need_no_other_machine_code_than_those_of_a_mapped_one() -> None:
    """An archive's kernels are compiled for one of them: a worker would compile the other at its first round."""
    live = LiveRows.of(ONE_FILE, np.array([ROWS]), {0: np.array([3])})
    numbers, rows = np.array([1], np.int32), np.array([4])
    compiled = []
    for is_writeable in (False, True):
        numbers.flags.writeable = rows.flags.writeable = is_writeable
        count_live(live, numbers, rows, np.zeros(1, np.int64))
        live_pointers(live, numbers, rows, np.ones(1, np.bool_))
        compiled.append((set(_count.signatures), set(_select.signatures)))
    assert compiled[0] == compiled[1]
    assert (numbers.flags.writeable, rows.flags.writeable) == (True, True)
