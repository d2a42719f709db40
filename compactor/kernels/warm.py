"""Compiles the kernels for the types that the steps use, or loads them from numba's cache.

    python -m compactor.kernels.warm

numba compiles a function when it is first called, for seconds, and keeps the result beside the source or in the user's
cache, for this processor and this source. `make install` calls this once; and the workers' daemon does before it forks
workers, so that no worker compiles or loads them again.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from compactor.kernels.canonical import FixedColumn, VariableColumn
from compactor.kernels.digest import digest_keys
from compactor.kernels.digest_sort import DigestSort
from compactor.kernels.gather import DeltaRows, LocatedRows, gather_rows
from compactor.kernels.hash_bucket import group_by_bucket, hash_buckets
from compactor.kernels.live_rows import LiveFiles, LiveRows, count_live, live_pointers
from compactor.kernels.packed_numbers import pack_numbers, unpack_numbers
from compactor.kernels.parquet_values import (
    LENGTH_BYTES,
    extremes,
    find_byte_arrays,
    pack_codes,
    packed_bytes_max,
    take_byte_arrays,
    take_codes,
    unpack_codes,
)
from compactor.kernels.pointers import (
    RanksWithinFiles,
    count_rows,
    files_of_rows,
    point_at_compacted,
    put_in_order,
    rank_within_parts,
)
from compactor.kernels.search import find_digests
from compactor.kernels.sha1 import Digests
from compactor.kernels.survivors import ArrivingRows, RememberedKeys, find_survivors

_ROWS = 4

NumberT = TypeVar("NumberT", bound=np.generic)


def warm_kernels() -> None:
    """Calls every kernel with a few rows."""
    numbers, read_only = np.arange(_ROWS), _read_only(np.arange(_ROWS))
    converted, as_read = (FixedColumn(each.view(np.uint8).reshape(_ROWS, 8), None) for each in (numbers, read_only))
    text = VariableColumn(np.arange(_ROWS + 1), numbers.astype(np.uint8), None)
    digests = digest_keys([converted, as_read, text], _ROWS)
    group_by_bucket(hash_buckets(digests, 2), 2)
    sort_values = np.zeros((_ROWS, 9), np.uint8)
    for index_type in (np.uint64, np.uint32):
        sort = DigestSort(_ROWS, index_type, 9)
        for rows in (slice(1), slice(1, _ROWS)):
            sort.add(digests[rows], numbers[rows].astype(index_type), sort_values[rows])
        in_order = sort.in_order(np.array([1, 0]))
    bounds = np.array([0, _ROWS])
    files = files_of_rows(in_order.row_numbers, bounds)
    ranks, counted = RanksWithinFiles(in_order.row_numbers, files, bounds), np.ones(_ROWS, np.bool_)
    winning_rows = numbers.astype(np.int32)
    ranks.add(winning_rows, counted)
    ranks_in_files = ranks.of(winning_rows, counted)
    _warm_pointers(files, ranks_in_files)
    arrived = ArrivingRows(in_order.digests, files, in_order.sort_values, np.zeros(1, np.uint8), np.zeros(1, np.int64))
    ordinals = np.zeros(1, np.int32)
    arriving = DeltaRows(in_order.digests, files, in_order.row_indices, in_order.sort_values, ordinals)
    for indices_of_remembered in (numbers, read_only):
        outcomes = counted.view(np.uint8)
        known = RememberedKeys(in_order.digests, in_order.sort_values, outcomes, indices_of_remembered)
        survivors = find_survivors(known, arrived, horizon=0)
        remembered = LocatedRows(in_order.digests, files, indices_of_remembered, in_order.sort_values)
        gather_rows(survivors.winning_rows, remembered, arriving)
    _warm_index_kernels(in_order.digests)
    _warm_parquet_kernels(numbers)


def _warm_pointers(files: npt.NDArray[np.int32], ranks: npt.NDArray[np.int32]) -> None:
    row_indices, none, counts = np.arange(len(files)), np.zeros(1, np.int64), np.zeros(1, np.int64)
    count_rows(files, counts)
    rank_within_parts([(files, row_indices, ranks)], none, np.array([_ROWS]), counts)
    put_in_order(files, ranks, row_indices, np.array([0, _ROWS]), np.empty(_ROWS, np.int32))
    point_at_compacted(files, ranks, none, np.ones(1, np.int64), _ROWS, files.copy(), row_indices)


def _warm_index_kernels(digests: Digests) -> None:
    """Kernels that read index files in their stored form."""
    raw = np.frombuffer(digests.byteswap().tobytes(), np.uint32).reshape(-1, 5)
    find_digests(raw, digests)
    live = LiveRows.of(LiveFiles.of(np.array([1], np.int32)), np.array([_ROWS]), {0: np.array([1])})
    file_numbers, row_indices = np.ones(_ROWS, np.int32), np.arange(_ROWS)
    count_live(live, file_numbers, row_indices, np.zeros(1, np.int64))
    live_pointers(live, file_numbers, row_indices, np.ones(1, np.bool_))
    for as_taken_or_as_mapped in (pack_numbers(file_numbers, 1, 0), _read_only(pack_numbers(row_indices, 1, 0))):
        unpack_numbers(as_taken_or_as_mapped, 0, file_numbers)
        unpack_numbers(as_taken_or_as_mapped, 0, row_indices)


def _warm_parquet_kernels(row_numbers: npt.NDArray[np.int64]) -> None:
    """Kernels that copy row groups: pages are in Arrow's memory, values in ours."""
    codes, page = np.zeros(_ROWS, np.uint32), np.empty(packed_bytes_max(_ROWS, 1), np.uint8)
    end = pack_codes(codes, 1, page, 0)
    for as_decompressed_or_as_read in (page[:end].copy(), _read_only(page[:end].copy())):
        unpack_codes(as_decompressed_or_as_read, 0, 1, codes)
    values, bounds = np.zeros(_ROWS * LENGTH_BYTES, np.uint8), np.zeros(_ROWS + 1, np.int64)
    starts, ends = bounds[:-1], bounds[1:]
    for as_copied_or_as_mapped in (values.copy(), _read_only(values.copy())):
        find_byte_arrays(as_copied_or_as_mapped, bounds)
        take_byte_arrays(as_copied_or_as_mapped, starts, ends, row_numbers[:_ROWS], values, 0)
    extremes(values, starts, ends, 0)
    take_codes(codes, row_numbers, np.zeros(1, np.bool_))


def _read_only(array: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
    """A read-only array, as in a mapped file or in Arrow's memory: numba compiles it as another type."""
    array.flags.writeable = False
    return array


if __name__ == "__main__":
    warm_kernels()
