"""Places of rows, against writing the rows one by one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.pointers import (
    RanksWithinFiles,
    count_rows,
    files_of_rows,
    point_at_compacted,
    put_in_order,
    rank_within_parts,
)
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


PARTS, OF_COMPACTED_FILES, ROWS_OF_A_PART = 6, 4, 301
NOT_RANKED = 9


@given(
    st.sets(st.tuples(st.integers(-1, PARTS - 1), st.integers(0, ROWS_OF_A_PART - 1))),
    st.sampled_from([0, 1_000]),
    st.sampled_from([ROWS_OF_A_PART, 2**33]),
    st.randoms(use_true_random=False),
)
def test_rows_of_compacted_files_are_ranked_within_their_own_part_over_all_runs(
    rows: set[tuple[int, int]], first_row: int, rows_of_largest: int, chance: Random
) -> None:
    given_rows = sorted(rows)
    chance.shuffle(given_rows)
    plain = [
        sum(part == other and row > before for other, before in given_rows)
        if 0 <= part < OF_COMPACTED_FILES
        else NOT_RANKED
        for part, row in given_rows
    ]
    parts, row_indices = np.array(given_rows, np.int64).reshape(-1, 2).T
    counts, ranks = np.zeros(PARTS, np.int64), np.full(len(rows), NOT_RANKED, np.int32)
    count_rows(parts.astype(np.int32), counts)
    assert counts.tolist() == [sum(part == other for other, _ in rows) for part in range(PARTS)]
    rows_of_parts = np.array([*[ROWS_OF_A_PART] * (OF_COMPACTED_FILES - 1), rows_of_largest])
    columns = parts.astype(np.int32), row_indices + first_row, ranks
    runs = [tuple(column[some] for column in columns) for some in (slice(0, 5), slice(5, 5), slice(5, None))]
    rank_within_parts(runs, np.full(PARTS, first_row), rows_of_parts, counts)  # type: ignore[arg-type]
    assert ranks.tolist() == plain


@pytest.mark.parametrize("row", [-1, 20, 2**40])
def test_a_row_beyond_its_file_is_damage_and_has_no_rank(row: int) -> None:
    with pytest.raises(Corrupt, match="beyond the end"):
        rank_within_parts(
            [(np.array([1, 0], np.int32), np.array([19, row]), np.empty(2, np.int32))],
            np.zeros(2, np.int64),
            np.array([20, 30]),
            np.ones(2, np.int64),
        )


@given(
    st.lists(st.integers(0, 9), max_size=5), st.sampled_from([np.int32, np.int64]), st.randoms(use_true_random=False)
)
def test_rows_lie_part_after_part_by_their_ranks(
    counts: list[int], kind: type[np.signedinteger], chance: Random
) -> None:
    plain = [(part, rank, chance.randrange(1_000)) for part, count in enumerate(counts) for rank in range(count)]
    shuffled = [*plain, (-1, 7, 0)]
    chance.shuffle(shuffled)
    parts, ranks, row_indices = np.array(shuffled, np.int64).T
    ordered = np.empty(len(plain), kind)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    put_in_order(parts.astype(np.int32), ranks.astype(np.int32), row_indices.copy(), starts, ordered)
    assert ordered.tolist() == [row for _, _, row in plain]


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
    parts, indices = np.array([*files, -1], np.int32), np.full(len(files) + 1, 77)
    point_at_compacted(
        parts,
        np.array([*ranks, 0], np.int32),
        np.array(first_offsets),
        np.array(first_numbers),
        rows_per_file,
        parts,
        indices,
    )
    assert list(zip(parts.tolist(), indices.tolist(), strict=True)) == [*plain, (-1, 77)]
