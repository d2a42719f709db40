"""A bucket's new run on its way through Spark, between dedupe and the end of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.survivors import ERASED, LIVE, TOMBSTONE
from compactor.steps.new_run import BucketPiece, DeadPointers, DedupedBucket, NewRun, narrowest

NUMBERS = st.sampled_from([0, 1, 127, 128, 2**15 - 1, 2**15, 2**31 - 1])
WIDE = st.sampled_from([-(2**63), -(2**31) - 1, -(2**31), -129, -128, 0, 127, 2**15, 2**31, 2**63 - 1])
KEY = st.tuples(st.sampled_from([LIVE, LIVE, LIVE, TOMBSTONE, ERASED]), NUMBERS, WIDE, NUMBERS)


DIED = DeadPointers(np.array([2, 0, 2], np.int32), np.array([9, 1, 4]))


@given(st.lists(st.lists(KEY, max_size=4), min_size=1, max_size=4))
def test_a_run_in_pieces_is_whole_again_however_wide_its_numbers(pieces: list[list[tuple[int, int, int, int]]]) -> None:
    keys = [key for piece in pieces for key in piece]
    died = [DIED, *(DeadPointers.none() for _ in pieces[1:])]
    sent = [pickle.dumps(BucketPiece(len(keys), run_of(piece), dead)) for piece, dead in zip(pieces, died, strict=True)]
    bucket = DedupedBucket.from_pieces(map(pickle.loads, sent))
    assert {ordinal: rows.tolist() for ordinal, rows in bucket.died.by_file().items()} == {0: [1], 2: [4, 9]}
    run = bucket.run
    numbers = (run.outcomes, run.ordinals, run.row_indices, run.ranks)
    assert [each.dtype.name for each in numbers] == ["uint8", "int32", "int64", "int32"]
    assert (run.digests.dtype.name, run.sort_values.dtype.name) == ("uint32", "uint8")
    assert list(zip(*(each.tolist() for each in numbers), strict=True)) == keys
    assert run.digests.tolist() == [word for piece in pieces for word in run_of(piece).digests.tolist()]
    assert run.sort_values.shape == (len(keys), 2)


def test_small_numbers_take_a_byte_each_and_that_every_key_has_a_row_takes_none() -> None:
    keys = 10_000
    numbers = np.arange(keys) % 100
    run = NewRun(
        np.zeros((keys, 5), np.uint32),
        np.full(keys, LIVE, np.uint8),
        numbers.astype(np.int32),
        numbers.astype(np.int64),
        numbers.astype(np.int32),
        np.zeros((keys, 0), np.uint8),
    )
    assert len(pickle.dumps(run)) < keys * (20 + 3) + 1_000


def test_a_run_that_was_sent_has_the_types_that_it_had() -> None:
    run = run_of([(LIVE, 1, 2, 3)])
    sent: NewRun = pickle.loads(pickle.dumps(run))
    for name in ("digests", "outcomes", "ordinals", "row_indices", "ranks", "sort_values"):
        assert getattr(sent, name).dtype == getattr(run, name).dtype


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ([], "int8"),
        ([-128, 127], "int8"),
        ([-129], "int16"),
        ([128], "int16"),
        ([-(2**15), 2**15 - 1], "int16"),
        ([-(2**15) - 1], "int32"),
        ([2**15], "int32"),
        ([-(2**31), 2**31 - 1], "int32"),
        ([-(2**31) - 1], "int64"),
        ([2**31], "int64"),
    ],
)
def test_numbers_take_as_few_bytes_as_the_least_and_the_greatest_of_them(numbers: list[int], kind: str) -> None:
    narrow = narrowest(np.array(numbers, np.int64))
    assert narrow.dtype.name == kind
    assert narrow.tolist() == numbers


def test_no_dead_rows_are_in_no_file() -> None:
    none = DeadPointers.none()
    assert (len(none.ordinals), len(none.row_indices)) == (0, 0)
    assert (none.ordinals.dtype.name, none.row_indices.dtype.name) == ("int32", "int64")
    assert none.by_file() == {}


def run_of(piece: list[tuple[int, int, int, int]]) -> NewRun:
    outcomes, ordinals, row_indices, ranks = zip(*piece, strict=True) if piece else ((), (), (), ())
    return NewRun(
        np.arange(5 * len(piece), dtype=np.uint32).reshape(-1, 5),
        np.array(outcomes, np.uint8),
        np.array(ordinals, np.int32),
        np.array(row_indices, np.int64),
        np.array(ranks, np.int32),
        np.full((len(piece), 2), 7, np.uint8),
    )
