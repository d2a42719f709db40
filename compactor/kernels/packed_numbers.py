"""Whole numbers in as few bytes each as the greatest of them takes: the pointers of an index file, for the most part.

A number is `width` bytes, the lowest first, without a sign.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import kernel

Bytes = npt.NDArray[np.uint8]
NumberT = TypeVar("NumberT", np.int32, np.int64)


def width_of(numbers: npt.NDArray[np.signedinteger], added: int) -> int | None:
    """How many bytes each number takes once `added` is added to it; None: one of them is below 0 then."""
    if int(numbers.min(initial=0)) + added < 0:
        return None
    return max((int(numbers.max(initial=0)) + added).bit_length() + 7, 8) // 8


def pack_numbers(numbers: npt.NDArray[NumberT], width: int, added: int) -> Bytes:
    """uint8 (numbers, width): each number plus `added`, of which the lowest bytes are kept.

    Precondition, which is checked: a width of 1 to 8 bytes.
    """
    if not 1 <= width <= 8:
        raise ValueError(f"a number of {width} bytes")
    packed = np.empty((len(numbers), width), np.uint8)
    _pack(numbers, np.int64(added), packed)
    return packed


def unpack_numbers(packed: Bytes, added: int, numbers: npt.NDArray[NumberT]) -> None:
    """Writes each number of `packed`, uint8 (numbers, width), less what was added to it. What does not fit into a
    number of `numbers` loses its highest bits.

    Precondition, which is checked: as many numbers as are packed, of 1 to 8 bytes.
    """
    if packed.ndim != 2 or len(packed) != len(numbers) or not 1 <= packed.shape[1] <= 8:
        raise ValueError(f"packed numbers of shape {packed.shape} for {len(numbers)} numbers")
    _unpack(packed, np.int64(added), numbers)


@kernel
def _pack(numbers, added, packed):  # type: ignore[no-untyped-def]
    for row in range(numbers.size):
        rest = np.uint64(np.int64(numbers[row]) + added)
        for place in range(packed.shape[1]):
            packed[row, place] = np.uint8(rest & np.uint64(0xFF))
            rest >>= np.uint64(8)


@kernel
def _unpack(packed, added, numbers):  # type: ignore[no-untyped-def]
    for row in range(numbers.size):
        number = np.uint64(0)
        for place in range(packed.shape[1]):
            number |= np.uint64(packed[row, place]) << np.uint64(8 * place)
        numbers[row] = np.int64(number) - added
