"""Parts of large source files: consecutive rows, which a round writes one after the other.

The rows of a materialize task are ordered by source file, part of the file, hash bucket. Reasons for parts:

memory  a writer that cannot hold a file decoded reads it page by page, in the order in which it writes: if that order
        were by bucket first, it would read every page again for each bucket
cores   the parts of a delta file with more rows than a core's share of the round are written by several tasks

Any other file is one part, and so is one that is not Parquet, which is read from its begin in any case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from compactor.model.names import ContentType
from compactor.planning.round_plan import DeltaSource, RoundPlan, SourceFile
from compactor.planning.task_memory import ROWS_PER_SMALL_FILE, rows_per_part

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

PARTS_PER_CORE = 8
"""A core's share of the rows of a round has so many parts of a large file, so that tasks are about equal."""

_ROWS_AT_ONCE = 16 * 1024


@dataclass(frozen=True)
class Parts:
    """The parts of all source files of a round, numbered in the order of the files and of their rows.

    Attributes:
        starts: int64 (sources + 1,): source file s has the parts [starts[s], starts[s + 1])
        rows: int64 (sources,): rows of each part of a file; the last one may have fewer"""

    starts: Int64s
    rows: Int64s

    @classmethod
    def of(cls, sources: Sequence[SourceFile], task_memory_bytes: int, tasks: int = 1) -> Self:
        """`tasks`: those that run side by side, among which large delta files are divided."""
        arriving = sum(source.rows for source in sources if isinstance(source, DeltaSource))
        share = max(-(-arriving // tasks), ROWS_PER_SMALL_FILE)
        rows = np.array([_rows_per_part(source, task_memory_bytes, share) for source in sources], np.int64)
        counts = [-(-max(source.rows, 1) // int(each)) for source, each in zip(sources, rows, strict=True)]
        return cls(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), rows)

    @classmethod
    def of_round(cls, plan: RoundPlan) -> Self:
        """Without a key, files are as full as they may be, whatever the number of cores."""
        return cls.of(plan.sources, plan.task_memory_bytes, plan.tasks if plan.key_columns else 1)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def are_files(self) -> bool:
        """Whether every file is one part, which then has the file's ordinal as its number."""
        return len(self) == len(self.rows)

    @property
    def ordinals(self) -> Int32s:
        """int32 (parts,): the source file of each part."""
        return np.repeat(np.arange(len(self.rows), dtype=np.int32), np.diff(self.starts))

    @property
    def first_rows(self) -> Int64s:
        """int64 (parts,): where each part begins in its file."""
        ordinals = self.ordinals
        return np.asarray((np.arange(len(self)) - self.starts[ordinals]) * self.rows[ordinals], np.int64)

    def row_counts(self, rows_of_files: Int64s) -> Int64s:
        """int64 (parts,): how many rows each part has."""
        if self.are_files:
            return rows_of_files
        ordinals = self.ordinals
        rows: Int64s = np.minimum(self.rows[ordinals], rows_of_files[ordinals] - self.first_rows)
        return rows

    def rows_before(self, counts: Int64s) -> Int64s:
        """int64 (parts,): of rows that are counted by part, those in earlier parts of the same file."""
        before = np.cumsum(counts) - counts
        return np.asarray(before - before[self.starts[:-1]][self.ordinals], np.int64)

    def of_rows(self, ordinals: Int32s, row_indices: npt.NDArray[np.integer]) -> Int32s:
        """int32 (rows,): the part of each row, by source file and row index. A row index beyond its file counts as the
        nearest one within."""
        if self.are_files:
            return ordinals
        parts = np.empty(len(ordinals), np.int32)
        last = np.diff(self.starts) - 1
        for start in range(0, len(ordinals), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            files = ordinals[some]
            within = np.clip(row_indices[some] // self.rows[files], 0, last[files])
            parts[some] = self.starts[files] + within
        return parts


def _rows_per_part(source: SourceFile, task_memory_bytes: int, rows_of_a_core: int) -> int:
    rows = max(source.rows, 1)
    if source.file.content_type is not ContentType.PARQUET:
        return rows
    by_memory = min(rows_per_part(rows, source.size_bytes, task_memory_bytes), rows)
    if isinstance(source, DeltaSource) and rows > rows_of_a_core:
        return min(by_memory, -(-rows_of_a_core // PARTS_PER_CORE))
    return by_memory
