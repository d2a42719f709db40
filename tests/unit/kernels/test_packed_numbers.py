"""Numbers in few bytes are the numbers that were packed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.packed_numbers import pack_numbers, unpack_numbers, width_of


@given(st.lists(st.integers(-1, 2**31 - 1)), st.integers(1, 9))
def test_file_numbers_come_back_in_as_many_bytes_as_the_greatest_takes(numbers: list[int], spare: int) -> None:
    array = np.array(numbers, np.int32)
    width = width_of(array, 1)
    assert width == max([1, *(-(-(number + 1).bit_length() // 8) for number in numbers)])
    for packed in (pack_numbers(array, width, 1), pack_numbers(array, min(width + spare, 8), 1)):
        found = np.empty(len(array), np.int32)
        unpack_numbers(packed, 1, found)
        assert found.tolist() == numbers
        assert [int.from_bytes(row.tobytes(), "little") - 1 for row in packed] == numbers


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_row_indices_come_back_from_bytes_that_cannot_be_written(numbers: list[int]) -> None:
    array = np.array(numbers, np.int64)
    width = width_of(array, 0)
    assert width is not None
    packed, found = pack_numbers(array, width, 0), np.empty(len(array), np.int64)
    packed.flags.writeable = False
    unpack_numbers(packed, 0, found)
    assert found.tolist() == numbers


def test_numbers_below_zero_have_no_width() -> None:
    assert width_of(np.array([3, -2], np.int32), 1) is None
    assert width_of(np.array([3, -1], np.int64), 0) is None


@pytest.mark.parametrize("shape", [(3, 2), (2, 0), (2, 9), (4,)])
def test_packed_numbers_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="packed numbers of shape"):
        unpack_numbers(np.zeros(shape, np.uint8), 0, np.empty(2, np.int64))


@pytest.mark.parametrize("width", [0, 9])
def test_numbers_are_packed_into_one_to_eight_bytes(width: int) -> None:
    with pytest.raises(ValueError, match="a number of"):
        pack_numbers(np.zeros(2, np.int64), width, 0)
