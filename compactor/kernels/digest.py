"""SHA-1 digests of primary keys, a few nanoseconds a byte (seed 000, hash bucket step; FORMAT.md, "Key digests").

A key's message is its columns in sorted name order, each framed: a little-endian uint32 with the length of its
canonical bytes, then the bytes; 0xFFFFFFFF alone for null. So ('ab', 'c') and ('a', 'bc') differ, and null differs
from empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.canonical import CanonicalColumn, FixedColumn

DIGEST_ENCODING = 1
"""The number of the encoding above. It is written with every index; another encoding gets another number."""

_NULL_FRAME = np.uint32(0xFFFFFFFF)
_FRAME_BYTES = 4

Words = npt.NDArray[np.uint32]


def digest_keys(columns: Sequence[CanonicalColumn], rows: int) -> Words:
    """The digest of every row's key. `columns` in sorted name order. Returns words of shape (rows, 5)."""
    messages, offsets = _frame(columns, rows)
    words = np.empty((rows, 5), np.uint32)
    _sha1(messages, offsets, words)
    return words


def _frame(columns: Sequence[CanonicalColumn], rows: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    lengths = np.zeros(rows, np.int64)
    for column in columns:
        lengths += _FRAME_BYTES
        widths = column.values.shape[1] if isinstance(column, FixedColumn) else np.diff(column.offsets)
        lengths += widths if column.valid is None else np.where(column.valid, widths, 0)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    messages = np.empty(int(offsets[-1]), np.uint8)
    cursor = offsets[:-1].copy()
    for column in columns:
        valid = np.ones(0, np.bool_) if column.valid is None else column.valid
        if isinstance(column, FixedColumn):
            _write_fixed(column.values, valid, messages, cursor)
        else:
            _write_variable(column.offsets, column.data, valid, messages, cursor)
    return messages, offsets


@nb.njit(cache=True, nogil=True)
def _write_frame(messages, at, length):  # type: ignore[no-untyped-def]
    for byte in range(4):
        messages[at + byte] = (length >> np.uint32(8 * byte)) & np.uint32(0xFF)


@nb.njit(cache=True, nogil=True)
def _write_fixed(values, valid, messages, cursor):  # type: ignore[no-untyped-def]
    width = values.shape[1]
    for row in range(values.shape[0]):
        at = cursor[row]
        if valid.size and not valid[row]:
            _write_frame(messages, at, _NULL_FRAME)
            cursor[row] = at + 4
            continue
        _write_frame(messages, at, np.uint32(width))
        for byte in range(width):
            messages[at + 4 + byte] = values[row, byte]
        cursor[row] = at + 4 + width


@nb.njit(cache=True, nogil=True)
def _write_variable(offsets, data, valid, messages, cursor):  # type: ignore[no-untyped-def]
    for row in range(offsets.size - 1):
        at = cursor[row]
        if valid.size and not valid[row]:
            _write_frame(messages, at, _NULL_FRAME)
            cursor[row] = at + 4
            continue
        length = offsets[row + 1] - offsets[row]
        _write_frame(messages, at, np.uint32(length))
        for byte in range(length):
            messages[at + 4 + byte] = data[offsets[row] + byte]
        cursor[row] = at + 4 + length


@nb.njit(inline="always")
def _rotate(word, bits):  # type: ignore[no-untyped-def]
    return np.uint32((word << np.uint32(bits)) | (word >> np.uint32(32 - bits)))


@nb.njit(inline="always")
def _mix(a, chosen, e, constant, scheduled):  # type: ignore[no-untyped-def]
    # numba widens a sum of uint32 to uint64; the casts keep SHA-1's arithmetic modulo 2^32.
    return np.uint32(_rotate(a, 5) + chosen + e + np.uint32(constant) + scheduled)


@nb.njit(inline="always")
def _compress(schedule, a0, b0, c0, d0, e0):  # type: ignore[no-untyped-def]
    """One 64-byte block, already in schedule[:16], added to five words (FIPS 180-4, section 6.1.2)."""
    for t in range(16, 80):
        mixed = np.uint32(schedule[t - 3] ^ schedule[t - 8] ^ schedule[t - 14] ^ schedule[t - 16])
        schedule[t] = _rotate(mixed, 1)
    a, b, c, d, e = a0, b0, c0, d0, e0
    for t in range(20):
        chosen = np.uint32(d ^ (b & (c ^ d)))
        a, b, c, d, e = _mix(a, chosen, e, 0x5A827999, schedule[t]), a, _rotate(b, 30), c, d
    for t in range(20, 40):
        chosen = np.uint32(b ^ c ^ d)
        a, b, c, d, e = _mix(a, chosen, e, 0x6ED9EBA1, schedule[t]), a, _rotate(b, 30), c, d
    for t in range(40, 60):
        chosen = np.uint32((b & c) | (d & (b | c)))
        a, b, c, d, e = _mix(a, chosen, e, 0x8F1BBCDC, schedule[t]), a, _rotate(b, 30), c, d
    for t in range(60, 80):
        chosen = np.uint32(b ^ c ^ d)
        a, b, c, d, e = _mix(a, chosen, e, 0xCA62C1D6, schedule[t]), a, _rotate(b, 30), c, d
    return np.uint32(a0 + a), np.uint32(b0 + b), np.uint32(c0 + c), np.uint32(d0 + d), np.uint32(e0 + e)


@nb.njit(inline="always")
def _byte_of_message(messages, start, length, place):  # type: ignore[no-untyped-def]
    if place < length:
        return np.uint32(messages[start + place])
    return np.uint32(0x80) if place == length else np.uint32(0)


@nb.njit(cache=True, nogil=True)
def _sha1(messages, offsets, words):  # type: ignore[no-untyped-def]
    schedule = np.empty(80, np.uint32)
    for row in range(offsets.size - 1):
        start = offsets[row]
        length = offsets[row + 1] - start
        h0, h1, h2 = np.uint32(0x67452301), np.uint32(0xEFCDAB89), np.uint32(0x98BADCFE)
        h3, h4 = np.uint32(0x10325476), np.uint32(0xC3D2E1F0)
        blocks = (length + 8) // 64 + 1
        for number in range(blocks):
            for t in range(16):
                place = number * 64 + 4 * t
                schedule[t] = (
                    (_byte_of_message(messages, start, length, place) << np.uint32(24))
                    | (_byte_of_message(messages, start, length, place + 1) << np.uint32(16))
                    | (_byte_of_message(messages, start, length, place + 2) << np.uint32(8))
                    | _byte_of_message(messages, start, length, place + 3)
                )
            if number == blocks - 1:
                schedule[14] = np.uint32(length >> 29)
                schedule[15] = np.uint32((length << 3) & 0xFFFFFFFF)
            h0, h1, h2, h3, h4 = _compress(schedule, h0, h1, h2, h3, h4)
        words[row, 0] = h0
        words[row, 1] = h1
        words[row, 2] = h2
        words[row, 3] = h3
        words[row, 4] = h4
