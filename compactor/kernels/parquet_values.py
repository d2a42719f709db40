"""Finds, reorders, compares and re-encodes the values of a Parquet column chunk in their page encoding.

A *value* here is its PLAIN encoding, uninterpreted: of one width, or a little-endian uint32 length followed by that
many bytes. Numba checks no index here. `unpack_codes` and `find_byte_arrays` take bytes from files and check them
themselves. All others state their preconditions. `make test-bounds` runs the tests with numba's checks on. Levels and
dictionary codes lie in Parquet's hybrid of runs and bit-packed groups of eight.
"""

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import copy_bytes, kernel

Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]

LENGTH_BYTES = 4


def unpack_codes(page: Bytes, start: int, bit_width: int, codes: Codes) -> bool:
    """Fills `codes` from page[start:]. False if the page ends too early.

    Precondition: 0 <= start <= len(page), 0 <= bit_width <= 32. The bytes of the page may be anything.
    """
    return bool(_unpack(page, start, bit_width, codes))


def pack_codes(codes: Codes, bit_width: int, page: Bytes, start: int) -> int:
    """Writes codes to page[start:]; returns their end.

    Precondition: every code < 2**bit_width, 0 <= bit_width <= 32, and
    start + packed_bytes_max(len(codes), bit_width) <= len(page).
    """
    return int(_pack(codes, bit_width, page, start))


def packed_bytes_max(count: int, bit_width: int) -> int:
    """Room for so many packed codes: groups of eight, and a header and a value for each run of eight or more."""
    return count * (bit_width + 8) // 8 + bit_width + 16


def take_codes(codes: Codes, value_numbers: Int64s, used: npt.NDArray[np.bool_]) -> Codes:
    """The codes at `value_numbers`. Sets `used[code]` for each of them.

    Precondition: 0 <= value_number < len(codes), every code < len(used): codes are compared with their dictionary, and
    rows with their file, when they are read.
    """
    taken = np.empty(len(value_numbers), np.uint32)
    _take_codes(codes, value_numbers, used, taken)
    return taken


def find_byte_arrays(values: Bytes, starts: Int64s) -> bool:
    """Finds the start of each of len(starts) - 1 values from starts[0], and the end of the last. False: damaged.

    Precondition: len(starts) >= 1, 0 <= starts[0] <= len(values). The values may be anything.
    """
    return bool(_find_byte_arrays(values, starts))


def take_byte_arrays(
    values: Bytes, starts: Int64s, ends: Int64s, value_numbers: Int64s, page: Bytes, start: int
) -> int:
    """Writes the values at `value_numbers`, one after the other, to page[start:]; returns their end.

    Precondition: 0 <= value_number < len(starts) == len(ends), 0 <= starts[v] <= ends[v] <= len(values) as
    `find_byte_arrays` leaves them, and page[start:] has room for all of them. Copied by memcpy, which numba's bounds
    checks do not cover.
    """
    return int(_take_byte_arrays(values, starts, ends, value_numbers, page, start))


def extremes(values: Bytes, starts: Int64s, ends: Int64s, flipped: int) -> tuple[int, int]:
    """The positions of the least and the greatest of one or more values: value v is values[starts[v]:ends[v]].

    They are compared as unsigned bytes, from the first to the last.
    Precondition: len(starts) == len(ends) >= 1, 0 <= starts[v] <= ends[v] <= len(values).

    Args:
        flipped: 0; or 128, which compares big-endian numbers of one width in two's complement"""
    low, high = _extremes(values, starts, ends, flipped)
    return int(low), int(high)


@kernel
def _take_codes(codes, value_numbers, used, taken):  # type: ignore[no-untyped-def]
    for number in range(value_numbers.size):
        code = codes[value_numbers[number]]
        taken[number] = code
        used[code] = True


@nb.njit(inline="always")
def _length(values, start):  # type: ignore[no-untyped-def]
    low = np.int64(values[start]) | (np.int64(values[start + 1]) << 8)
    return low | (np.int64(values[start + 2]) << 16) | (np.int64(values[start + 3]) << 24)


@kernel
def _find_byte_arrays(values, starts):  # type: ignore[no-untyped-def]
    start, end = starts[0], np.int64(values.size)
    for value in range(starts.size - 1):
        if start + LENGTH_BYTES > end:
            return False
        start += LENGTH_BYTES + _length(values, start)
        if start > end:
            return False
        starts[value + 1] = start
    return True


@kernel
def _take_byte_arrays(values, starts, ends, value_numbers, page, start):  # type: ignore[no-untyped-def]
    for number in range(value_numbers.size):
        value = value_numbers[number]
        count = ends[value] - starts[value]
        copy_bytes(page, start, values, starts[value], count)  # type: ignore[call-arg]
        start += count
    return start


@nb.njit(inline="always")
def _prefix(values, start, end, flipped):  # type: ignore[no-untyped-def]
    """The first eight bytes as one big-endian number, with zeros in place of those that are missing."""
    prefix = np.uint64(0)
    for byte in range(8):
        prefix <<= np.uint64(8)
        if start + byte < end:
            prefix |= np.uint64(values[start + byte])
    return prefix ^ (np.uint64(flipped) << np.uint64(56))


@kernel
def _is_less(values, start, end, other_start, other_end):  # type: ignore[no-untyped-def]
    """Compares values whose first eight bytes are equal."""
    common = min(end - start, other_end - other_start)
    for byte in range(common):
        one, other = values[start + byte], values[other_start + byte]
        if one != other:
            return one < other
    return end - start < other_end - other_start


@kernel
def _extremes(values, starts, ends, flipped):  # type: ignore[no-untyped-def]
    low = high = 0
    low_prefix = high_prefix = _prefix(values, starts[0], ends[0], flipped)
    for value in range(1, starts.size):
        start, end = starts[value], ends[value]
        prefix = _prefix(values, start, end, flipped)
        if prefix < low_prefix or (prefix == low_prefix and _is_less(values, start, end, starts[low], ends[low])):
            low, low_prefix = value, prefix
        if prefix > high_prefix or (prefix == high_prefix and _is_less(values, starts[high], ends[high], start, end)):
            high, high_prefix = value, prefix
    return low, high


# ------------------------------------------------------------------------------------------ runs and packed groups


@nb.njit(inline="always")
def _varint(page, position):  # type: ignore[no-untyped-def]
    """A header, its end, and whether it is valid: it ends within the page and within the permitted number of bytes."""
    header, shift = np.uint64(0), np.uint64(0)
    while position < page.size and shift <= np.uint64(35):
        byte = page[position]
        position += 1
        header |= np.uint64(byte & 0x7F) << shift
        shift += np.uint64(7)
        if byte < 0x80:
            return header, position, True
    return header, position, False


@nb.njit(inline="always")
def _unpack_groups(page, position, bit_width, codes):  # type: ignore[no-untyped-def]
    width = np.uint64(bit_width)
    mask = (np.uint64(1) << width) - np.uint64(1)
    held, bits = np.uint64(0), np.uint64(0)
    for code in range(codes.size):
        while bits < width:
            held |= np.uint64(page[position]) << bits
            position += 1
            bits += np.uint64(8)
        codes[code] = np.uint32(held & mask)
        held >>= width
        bits -= width
    return position


@kernel
def _unpack(page, position, bit_width, codes):  # type: ignore[no-untyped-def]
    end, filled = page.size, 0
    value_bytes = (bit_width + 7) // 8
    while filled < codes.size:
        header, position, is_whole = _varint(page, position)
        count = min(np.int64(header >> np.uint64(1)), np.int64(codes.size))
        if not is_whole or count == 0:
            return False
        if header & np.uint64(1):
            # Groups of eight; the last one may reach beyond the codes, and be cut off by the page's end.
            packed = min(count * 8, codes.size - filled)
            if position + (packed * bit_width + 7) // 8 > end:
                return False
            position = _unpack_groups(page, position, bit_width, codes[filled : filled + packed])
            filled += packed
            continue
        if position + value_bytes > end:
            return False
        value = np.uint32(0)
        for byte in range(value_bytes):
            value |= np.uint32(page[position + byte]) << np.uint32(8 * byte)
        position += value_bytes
        repeated = min(count, codes.size - filled)
        codes[filled : filled + repeated] = value
        filled += repeated
    return True


@nb.njit(inline="always")
def _put_varint(number, page, position):  # type: ignore[no-untyped-def]
    while number >= 0x80:
        page[position] = np.uint8((number & 0x7F) | 0x80)
        number >>= 7
        position += 1
    page[position] = np.uint8(number)
    return position + 1


@nb.njit(inline="always")
def _is_run(codes, first):  # type: ignore[no-untyped-def]
    """Whether the next eight codes are equal."""
    if first + 8 > codes.size:
        return False
    same = True
    for following in range(1, 8):
        same &= codes[first + following] == codes[first]
    return same


@kernel
def _pack(codes, bit_width, page, position):  # type: ignore[no-untyped-def]
    value_bytes = (bit_width + 7) // 8
    first = 0
    while first < codes.size:
        last = first
        if bit_width == 0 or _is_run(codes, first):
            while last < codes.size and codes[last] == codes[first]:
                last += 1
            position = _put_varint(np.int64(last - first) << 1, page, position)
            for byte in range(value_bytes):
                page[position + byte] = np.uint8((codes[first] >> np.uint32(8 * byte)) & np.uint32(0xFF))
            position += value_bytes
        else:
            while last < codes.size and not _is_run(codes, last):
                last += 8
            groups = (last - first) // 8
            last = min(last, codes.size)
            position = _put_varint((np.int64(groups) << 1) | 1, page, position)
            end = position + groups * bit_width
            held, bits = np.uint64(0), np.uint64(0)
            for number in range(first, last):
                held |= np.uint64(codes[number]) << bits
                bits += np.uint64(bit_width)
                while bits >= np.uint64(8):
                    page[position] = np.uint8(held & np.uint64(0xFF))
                    held >>= np.uint64(8)
                    bits -= np.uint64(8)
                    position += 1
            while position < end:
                page[position] = np.uint8(held & np.uint64(0xFF))
                held >>= np.uint64(8)
                position += 1
        first = last
    return position
