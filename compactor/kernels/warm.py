"""Compiles the kernels for the types that the steps give them, or loads them where that was done before.

    python -m compactor.kernels.warm

numba compiles a function when it is first called, for seconds, and keeps the result beside the source or in the user's
cache, for this processor and this source. `make install` calls this once; and the workers' daemon does before it forks
workers, so that none of them compiles, or even loads, for itself.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from compactor.kernels.canonical import FixedColumn, VariableColumn
from compactor.kernels.digest import digest_keys
from compactor.kernels.digest_sort import sort_by_digest
from compactor.kernels.gather import DeltaRows, LocatedRows, gather_rows
from compactor.kernels.hash_bucket import group_by_bucket, hash_buckets
from compactor.kernels.live_rows import LiveRows, count_live, live_pointers
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
from compactor.kernels.pointers import RanksWithinFiles, compacted_pointers, files_of_places, ranks_within_files
from compactor.kernels.search import find_digests
from compactor.kernels.sha1 import Words
from compactor.kernels.survivors import ArrivingRows, RememberedKeys, find_survivors

_ROWS = 4

NumberT = TypeVar("NumberT", bound=np.generic)


def warm_kernels() -> None:
    """Calls every kernel with a few rows."""
    numbers, read_only = np.arange(_ROWS), _read_only(np.arange(_ROWS))
    converted, as_read = (FixedColumn(each.view(np.uint8).reshape(_ROWS, 8), None) for each in (numbers, read_only))
    text = VariableColumn(np.arange(_ROWS + 1), numbers.astype(np.uint8), None)
    words = digest_keys([converted, as_read, text], _ROWS)
    group_by_bucket(hash_buckets(words, 2), 2)
    sort_values = np.zeros((_ROWS, 9), np.uint8)
    in_order = sort_by_digest([words.copy()], [numbers.astype(np.uint32)], [sort_values], 9)
    bounds = np.array([0, _ROWS])
    files = files_of_places(in_order.places, bounds)
    ranks = RanksWithinFiles(in_order.places, files, bounds)
    ranks.add(numbers)
    ranks_in_files = ranks.of(numbers)
    ranks_within_files(files, np.arange(len(files)), np.array([_ROWS]))
    compacted_pointers(files, ranks_in_files, np.zeros(1, np.int64), np.ones(1, np.int64), _ROWS)
    survivors = find_survivors(
        RememberedKeys(in_order.words, in_order.sort_values, numbers),
        ArrivingRows(in_order.words, files, in_order.sort_values, np.zeros(1, np.uint8), np.zeros(1, np.int64)),
        horizon=0,
    )
    ordinals = np.zeros(1, np.int32)
    arriving = DeltaRows(in_order.words, files, in_order.row_indices, in_order.sort_values, ordinals)
    for indices_of_remembered in (numbers, read_only):
        remembered = LocatedRows(in_order.words, files, indices_of_remembered, in_order.sort_values)
        gather_rows(survivors.holders, remembered, arriving)
    _warm_index_kernels(in_order.words)
    _warm_parquet_kernels(numbers)


def _warm_index_kernels(words: Words) -> None:
    """What reads index files as they lie there."""
    raw = np.frombuffer(words.byteswap().tobytes(), np.uint32).reshape(-1, 5)
    find_digests(raw, words)
    live = LiveRows.of(np.array([-1, 0, -1]), np.array([_ROWS]), {0: np.array([1])})
    file_numbers, row_indices = _read_only(np.ones(_ROWS, np.int32)), _read_only(np.arange(_ROWS))
    count_live(live, file_numbers, row_indices, np.zeros(1, np.int64))
    live_pointers(live, file_numbers, row_indices, np.ones(1, np.bool_))


def _warm_parquet_kernels(places: npt.NDArray[np.int64]) -> None:
    """What passes row groups on: pages lie in Arrow's memory, values in ours."""
    codes, page = np.zeros(_ROWS, np.uint32), np.empty(packed_bytes_max(_ROWS, 1), np.uint8)
    end = pack_codes(codes, 1, page, 0)
    for as_decompressed_or_as_read in (page[:end].copy(), _read_only(page[:end].copy())):
        unpack_codes(as_decompressed_or_as_read, 0, 1, codes)
    values, bounds = np.zeros(_ROWS * LENGTH_BYTES, np.uint8), np.zeros(_ROWS + 1, np.int64)
    starts, ends = bounds[:-1], bounds[1:]
    for as_copied_or_as_mapped in (values.copy(), _read_only(values.copy())):
        find_byte_arrays(as_copied_or_as_mapped, bounds)
        take_byte_arrays(as_copied_or_as_mapped, starts, ends, places[:_ROWS], values, 0)
    extremes(values, starts, ends, 0)
    take_codes(codes, places, np.zeros(1, np.bool_))


def _read_only(array: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
    """As an array is that lies in a file or in Arrow's memory: for numba another type."""
    array.flags.writeable = False
    return array


if __name__ == "__main__":
    warm_kernels()
