"""A bucket's new run on its way through Spark, between dedupe and the end of it."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compactor.steps.dedupe import DedupedBucket, NewRun, RunPiece

NUMBERS = st.sampled_from([0, 1, 127, 128, 2**15 - 1, 2**15, 2**31 - 1])
WIDE = st.sampled_from([-(2**63), -(2**31) - 1, -(2**31), -129, -128, 0, 127, 2**15, 2**31, 2**63 - 1])
KEY = st.tuples(st.sampled_from([-2, -1]) | NUMBERS, WIDE, NUMBERS)


@given(st.lists(st.lists(KEY, min_size=1, max_size=4), max_size=4))
def test_a_run_in_pieces_is_whole_again_however_wide_its_numbers(pieces: list[list[tuple[int, int, int]]]) -> None:
    keys = [key for piece in pieces for key in piece]
    sent = [pickle.dumps(RunPiece(len(keys), run_of(piece))) for piece in pieces]
    run = DedupedBucket.from_pieces(3, map(pickle.loads, sent), sort_value_bytes=2).run
    numbers = (run.ordinals, run.row_indices, run.ranks)
    assert [each.dtype.name for each in numbers] == ["int32", "int64", "int32"]
    assert list(zip(*(each.tolist() for each in numbers), strict=True)) == keys
    assert run.words.tolist() == [word for piece in pieces for word in run_of(piece).words.tolist()]
    assert run.sort_values.shape == (len(keys), 2)


def test_small_numbers_take_a_byte_each() -> None:
    keys = 10_000
    numbers = np.arange(keys) % 100
    run = NewRun(
        np.zeros((keys, 5), np.uint32),
        numbers.astype(np.int32),
        numbers.astype(np.int64),
        numbers.astype(np.int32),
        np.zeros((keys, 0), np.uint8),
    )
    assert len(pickle.dumps(run)) < keys * (20 + 3) + 1_000


def run_of(piece: list[tuple[int, int, int]]) -> NewRun:
    ordinals, row_indices, ranks = zip(*piece, strict=True)
    return NewRun(
        np.arange(5 * len(piece), dtype=np.uint32).reshape(-1, 5),
        np.array(ordinals, np.int32),
        np.array(row_indices, np.int64),
        np.array(ranks, np.int32),
        np.full((len(piece), 2), 7, np.uint8),
    )
