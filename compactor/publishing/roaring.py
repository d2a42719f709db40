"""64-bit Roaring bitmaps in the portable form: what deletion vectors of Delta Lake and of Iceberg's Puffin hold.

    bitmap64    number of 32-bit bitmaps (uint64), then for each its key (uint32) and the bitmap
    bitmap      cookie 12346 (uint32), number of containers (uint32), per container its key and its cardinality - 1
                (both uint16), the offsets of all containers from the cookie (uint32), the containers
    container   up to 4,096 values as uint16 in order; more as 65,536 bits

All numbers are little-endian. The optional containers of runs are not written.
"""

from __future__ import annotations

import itertools
import struct

import numpy as np
import numpy.typing as npt

_COOKIE_WITHOUT_RUNS = 12346
_ARRAY_ROWS_MAX = 4_096
_BITSET_BYTES = 8_192


def roaring_bitmap(rows: npt.NDArray[np.int64]) -> bytes:
    """The bitmap of row indices, ascending, each once and not negative."""
    high = rows >> 32
    bounds = _starts_of_groups(high)
    pieces = [struct.pack("<Q", len(bounds) - 1)]
    for start, end in itertools.pairwise(bounds):
        pieces.append(struct.pack("<I", int(high[start])))
        pieces += _bitmap_of_32_bits((rows[start:end] & 0xFFFF_FFFF).astype(np.uint32))
    return b"".join(pieces)


def _bitmap_of_32_bits(values: npt.NDArray[np.uint32]) -> list[bytes]:
    keys = values >> 16
    bounds = _starts_of_groups(keys)
    cardinalities = np.diff(bounds)
    count = len(cardinalities)
    heads = np.empty((count, 2), "<u2")
    heads[:, 0], heads[:, 1] = keys[bounds[:-1]], cardinalities - 1
    sizes = np.where(cardinalities > _ARRAY_ROWS_MAX, _BITSET_BYTES, 2 * cardinalities)
    offsets = 8 + 8 * count + np.cumsum(sizes) - sizes
    low = values.astype("<u2")  # the lower 16 bits
    containers = [
        _bitset(low[start:end]) if end - start > _ARRAY_ROWS_MAX else low[start:end].tobytes()
        for start, end in itertools.pairwise(bounds)
    ]
    return [
        struct.pack("<II", _COOKIE_WITHOUT_RUNS, count),
        heads.tobytes(),
        offsets.astype("<u4").tobytes(),
        *containers,
    ]


def _bitset(low: npt.NDArray[np.uint16]) -> bytes:
    bits = np.zeros(8 * _BITSET_BYTES, np.bool_)
    bits[low] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _starts_of_groups(ascending: npt.NDArray[np.int64] | npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Where each group of equal values starts, and the end of the last."""
    starts = np.flatnonzero(np.diff(ascending)) + 1
    return np.concatenate([np.zeros(min(len(ascending), 1), np.int64), starts, [len(ascending)]]).astype(np.int64)
