"""Places of rows, against writing the rows one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.pointers import compacted_pointers, ranks_within_files


@given(st.lists(st.lists(st.booleans(), max_size=8), max_size=6))
def test_a_surviving_row_s_rank_counts_the_survivors_before_it_in_its_file(files: list[list[bool]]) -> None:
    surviving = np.array([survives for file in files for survives in file], np.bool_)
    bounds = np.cumsum([0, *(len(file) for file in files)]).astype(np.int64)
    ranks = ranks_within_files(surviving, bounds)
    plain = [sum(file[:row]) for file in files for row in range(len(file))]
    assert ranks[surviving].tolist() == [rank for rank, survives in zip(plain, surviving, strict=True) if survives]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_pointers_are_where_tasks_that_write_one_after_the_other_put_their_rows(
    rows_of_tasks: list[int], rows_per_file: int
) -> None:
    plain = []
    places, first_numbers = [], []
    file_number = 1
    for rows in rows_of_tasks:
        first = file_number
        for place in range(rows):
            if place and place % rows_per_file == 0:
                file_number += 1
            plain.append((file_number, place % rows_per_file))
            places.append(place)
            first_numbers.append(first)
        file_number += 1
    numbers, indices = compacted_pointers(np.array(places, np.int64), np.array(first_numbers, np.int64), rows_per_file)
    assert list(zip(numbers.tolist(), indices.tolist(), strict=True)) == plain
