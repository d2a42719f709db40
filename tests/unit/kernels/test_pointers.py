"""Places of rows, against writing the rows one by one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.pointers import RanksWithinFiles, compacted_pointers, files_of_rows, ranks_within_files
from compactor.model.errors import Corrupt


@given(st.lists(st.lists(st.booleans(), max_size=200), max_size=6), st.randoms(use_true_random=False))
def test_a_surviving_row_s_rank_counts_the_survivors_before_it_in_its_file(
    files: list[list[bool]], chance: Random
) -> None:
    bounds = np.cumsum([0, *map(len, files)]).astype(np.int64)
    plain = [
        (int(bounds[number]) + row, number, sum(file[:row]), survives)
        for number, file in enumerate(files)
        for row, survives in enumerate(file)
    ]
    chance.shuffle(plain)
    row_numbers = np.array([row_number for row_number, _, _, _ in plain], np.int32)
    numbers = files_of_rows(row_numbers, bounds)
    assert numbers.tolist() == [number for _, number, _, _ in plain]
    rows = np.arange(len(plain))
    chance.shuffle(rows)  # type: ignore[arg-type]
    survives = np.array([plain[row][3] for row in rows], np.bool_)
    rows[~survives] = chance.choice([-1, 2**62])
    ranks = RanksWithinFiles(row_numbers, numbers, bounds)
    for piece, counted in zip(np.array_split(rows, 3), np.array_split(survives, 3), strict=True):
        ranks.add(piece, counted)
    expected = [plain[row][2] if counted else 0 for row, counted in zip(rows, survives, strict=True)]
    assert ranks.of(rows, survives).tolist() == expected
    assert ranks.of(rows[:1], survives[:1]).tolist() == expected[:1]


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 300))), st.randoms(use_true_random=False))
def test_rows_of_several_files_are_ranked_within_their_own(rows: set[tuple[int, int]], chance: Random) -> None:
    given_rows = sorted(rows)
    chance.shuffle(given_rows)
    files, row_indices = np.array(given_rows, np.int64).reshape(-1, 2).T
    plain = [sum(file == other and row > before for other, before in given_rows) for file, row in given_rows]
    rows_of_files = np.full(6, 301)
    assert ranks_within_files(files.astype(np.int32), row_indices.copy(), rows_of_files).tolist() == plain


@pytest.mark.parametrize("row", [-1, 20, 2**40])
def test_a_row_beyond_its_file_is_damage_and_has_no_rank(row: int) -> None:
    with pytest.raises(Corrupt, match="beyond the end"):
        ranks_within_files(np.array([1, 0], np.int32), np.array([19, row]), np.array([20, 30]))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_pointers_are_where_tasks_that_write_one_after_the_other_put_their_rows(
    rows_of_tasks: list[int], rows_per_file: int
) -> None:
    plain = []
    files, ranks, first_offsets, first_numbers = [], [], [], []
    file_number = 1
    for rows in rows_of_tasks:
        # Each task writes what survives of two source files, of the first two thirds of its rows.
        of_first = rows * 2 // 3
        first_offsets += [0, of_first]
        first_numbers += [file_number, file_number]
        for row_number in range(rows):
            if row_number and row_number % rows_per_file == 0:
                file_number += 1
            plain.append((file_number, row_number % rows_per_file))
            files.append(len(first_offsets) - (2 if row_number < of_first else 1))
            ranks.append(row_number if row_number < of_first else row_number - of_first)
        file_number += 1
    numbers, indices = compacted_pointers(
        np.array(files, np.int32),
        np.array(ranks, np.int32),
        np.array(first_offsets),
        np.array(first_numbers),
        rows_per_file,
    )
    assert list(zip(numbers.tolist(), indices.tolist(), strict=True)) == plain
