"""Places of rows: their rank among the surviving rows of their file, from which the compacted row pointer follows.

A compacted table's rows are ordered by materialize task, source file, dedupe task (seed 000, end of the illustration).
A dedupe task knows the ranks of its own survivors within each file; the counts of all tasks give the offsets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def ranks_within_files(surviving: npt.NDArray[np.bool_], file_bounds: Int64s) -> Int64s:
    """For rows laid out file after file: each surviving row's rank among the survivors of its file.

    surviving    (rows,)
    file_bounds  (files + 1,): file f's rows are [file_bounds[f], file_bounds[f + 1])
    Returns int64 (rows,), meaningless where the row does not survive.
    """
    running = np.zeros(len(surviving) + 1, np.int64)
    np.cumsum(surviving, out=running[1:])
    return running[:-1] - np.repeat(running[file_bounds[:-1]], np.diff(file_bounds))


def compacted_pointers(
    places: Int64s, first_file_numbers: Int64s, rows_per_compacted_file: int
) -> tuple[Int64s, Int64s]:
    """Where rows come to lie, as (file numbers, row indices).

    places              (rows,): place among all rows that the row's materialize task writes, from 0
    first_file_numbers  (rows,): number of the first file that this task writes
    """
    return first_file_numbers + places // rows_per_compacted_file, places % rows_per_compacted_file
