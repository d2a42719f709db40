"""The index run that a dedupe task creates, in pieces that pass from task to task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactor.kernels.digest_sort import RowsToMerge, merge_by_digest
from compactor.kernels.sha1 import Digests
from compactor.kernels.survivors import LIVE

Int32s = npt.NDArray[np.int32]


Int64s = npt.NDArray[np.int64]
Outcomes = npt.NDArray[np.uint8]


KEYS_PER_PIECE = 32 * 1024
"""Keys per piece of a run in Spark: about a megabyte, so that it is copied within a processor's cache."""


@dataclass(frozen=True)
class NewRun:
    """Rows of a bucket's new run, in digest order, with pointers into source files.

    Attributes:
        outcomes: uint8 (keys,): the outcome of each key: LIVE, TOMBSTONE or ERASED
        ordinals: int32 (keys,): the source file that holds the row; undefined if the key is not LIVE
        row_indices: int64 (keys,): the row in that file; of a TOMBSTONE, the stream position of its delete; of ERASED,
            0
        ranks: int32 (keys,): rank of a delta row among this bucket's survivors in its file; undefined for others"""

    digests: Digests
    outcomes: Outcomes
    ordinals: Int32s
    row_indices: Int64s
    ranks: Int32s
    sort_values: npt.NDArray[np.uint8]

    @property
    def is_row(self) -> npt.NDArray[np.bool_]:
        """Which keys have a row."""
        live: npt.NDArray[np.bool_] = self.outcomes == LIVE
        return live

    @property
    def ordinals_of_rows(self) -> Int32s:
        """The source file of each row; keys without a row are omitted."""
        is_row = self.is_row
        return self.ordinals if is_row.all() else self.ordinals[is_row]

    @property
    def indices_of_rows(self) -> Int64s:
        """The row index of each row in its source file, in the same order."""
        is_row = self.is_row
        return self.row_indices if is_row.all() else self.row_indices[is_row]

    @classmethod
    def empty(cls, keys: int, width: int) -> NewRun:
        """Uninitialized arrays for this many keys with sort values of this width."""
        return cls(
            np.empty((keys, 5), np.uint32),
            np.empty(keys, np.uint8),
            np.empty(keys, np.int32),
            np.empty(keys, np.int64),
            np.empty(keys, np.int32),
            np.empty((keys, width), np.uint8),
        )

    def put(self, start: int, part: NewRun) -> None:
        """Copies a piece to `start`."""
        keys = slice(start, start + len(part.digests))
        self.digests[keys], self.outcomes[keys], self.sort_values[keys] = part.digests, part.outcomes, part.sort_values
        self.ordinals[keys], self.row_indices[keys], self.ranks[keys] = part.ordinals, part.row_indices, part.ranks

    def __reduce__(self) -> tuple[object, ...]:
        # Spark keeps the run between its two jobs: narrow numbers are less to write and read.
        numbers = narrowest(self.ordinals), narrowest(self.row_indices), narrowest(self.ranks)
        outcomes = None if self.is_row.all() else self.outcomes
        return _restore_run, (self.digests, outcomes, *numbers, self.sort_values)


def merge_runs(runs: list[NewRun]) -> NewRun:
    """The rows of all runs in digest order; no digest is in two. The list is emptied, to release runs as rows move."""
    if len(runs) == 1:
        return runs.pop()
    rows = sum(len(run.digests) for run in runs)
    columns = (
        RowsToMerge(run.digests, run.row_indices, (run.outcomes, run.ordinals, run.ranks, run.sort_values))
        for run in (runs.pop(0) for _ in range(len(runs)))
    )
    merged = merge_by_digest(columns, rows)
    outcomes, ordinals, ranks, sort_values = merged.others
    return NewRun(merged.digests, outcomes, ordinals, merged.row_indices, ranks, sort_values)


@dataclass(frozen=True)
class DeadPointers:
    """Rows of compacted files. ordinals: int32 (rows,); row_indices: int64 (rows,)."""

    ordinals: Int32s
    row_indices: Int64s

    @classmethod
    def none(cls) -> DeadPointers:
        return cls(np.empty(0, np.int32), np.empty(0, np.int64))

    def by_file(self) -> dict[int, Int64s]:
        """Row indices by ordinal, ascending."""
        order = np.lexsort((self.row_indices, self.ordinals))
        files, starts = np.unique(self.ordinals[order], return_index=True)
        pieces = np.split(self.row_indices[order], starts[1:])
        return {int(file): rows for file, rows in zip(files, pieces, strict=False)}


@dataclass(frozen=True)
class BucketPiece:
    """A part of a dedupe task's output: consecutive keys of a run, with the number of all its keys.

    Attributes:
        died: rows of compacted files that died in this round: all of them in the first piece"""

    keys_in_all: int
    run: NewRun
    died: DeadPointers


@dataclass(frozen=True)
class DedupedBucket:
    """A dedupe task's output, assembled for `index_update.py`."""

    run: NewRun
    died: DeadPointers

    @classmethod
    def from_pieces(cls, pieces: Iterable[BucketPiece]) -> DedupedBucket:
        """The bucket, from its pieces in order; it has at least one."""
        in_order = iter(pieces)
        first = next(in_order)
        run = NewRun.empty(first.keys_in_all, first.run.sort_values.shape[1])
        run.put(0, first.run)
        filled = len(first.run.digests)
        for piece in in_order:
            run.put(filled, piece.run)
            filled += len(piece.run.digests)
        return cls(run, first.died)


def _restore_run(
    digests: Digests,
    outcomes: Outcomes | None,
    ordinals: npt.NDArray[np.signedinteger],
    row_indices: npt.NDArray[np.signedinteger],
    ranks: npt.NDArray[np.signedinteger],
    sort_values: npt.NDArray[np.uint8],
) -> NewRun:
    """`outcomes`: None where every key is LIVE."""
    if outcomes is None:
        outcomes = np.full(len(digests), LIVE, np.uint8)
    numbers = ordinals.astype(np.int32), row_indices.astype(np.int64), ranks.astype(np.int32)
    return NewRun(digests, outcomes, *numbers, sort_values)


def narrowest(numbers: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """The numbers in the narrowest type that holds all of them."""
    least, greatest = numbers.min(initial=0), numbers.max(initial=0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= least and greatest <= np.iinfo(kind).max:
            return numbers.astype(kind, copy=False)
    return numbers
