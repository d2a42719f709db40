"""Decides which row of every primary key survives, in one pass over rows in digest order.

The rows of a key are read in the order (stream position, file number, row index): first the key's index entry, a live
compacted row or a tombstone, then the round's rows. A row replaces the winning row unless its sort values are smaller.
So each key's outcome is a fold over its rows, and folding in one round or in many has the same result.

A delete row without sort values beats every earlier row and loses to every later one. A tombstone that is
older than its retention, measured in stream positions from the row at hand, no longer counts.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import kernel
from compactor.kernels.sha1 import Digests

UPSERT, DELETE, DELETE_WITHOUT_SORT_VALUES = 0, 1, 2
"""Operations of rows. The last one is a delete whose file lacks the custom sort key columns."""

FORGOTTEN, LIVE, TOMBSTONE, ERASED = 0, 1, 2, 3
"""Outcomes of a key: nothing is left, a row survives, the index has a tombstone, or it voids entries of older runs."""

KEEP_FOR_EVER = -1

WinningRows = npt.NDArray[np.signedinteger]
"""int32, or int64 where there are more rows."""


@dataclass(frozen=True)
class RememberedKeys:
    """The index entries of one hash bucket, sorted by digest, digests unique.

    Attributes:
        digests: (keys, 5)
        sort_values: uint8 (keys, width): order-preserving bytes, see sort_values.py; width 0: by position alone
        outcomes: uint8 (keys,): the outcome of each key: LIVE, TOMBSTONE or ERASED
        tombstone_positions: int64 (keys,): of a TOMBSTONE, the stream position of its delete; of others not read"""

    digests: Digests
    sort_values: npt.NDArray[np.uint8]
    outcomes: npt.NDArray[np.uint8]
    tombstone_positions: npt.NDArray[np.int64]


@dataclass(frozen=True)
class ArrivingRows:
    """The round's rows of one hash bucket by digest; a key's by (stream position, file number, row index).

    Attributes:
        digests: (rows, 5)
        files: int32 (rows,): which of the bucket's files the row is from, from 0
        sort_values: uint8 (rows, width), as in RememberedKeys
        operations: uint8 (files,): UPSERT, DELETE or DELETE_WITHOUT_SORT_VALUES
        positions: int64 (files,): stream positions"""

    digests: Digests
    files: npt.NDArray[np.int32]
    sort_values: npt.NDArray[np.uint8]
    operations: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Survivors:
    """One entry per key that is not forgotten, in digest order.

    Attributes:
        winning_rows: (keys,): that remembered key, or len(remembered) + that arriving row; ascending in each
        outcomes: uint8 (keys,): LIVE, TOMBSTONE or ERASED
        rows_deduplicated: rows (live remembered or arriving) that lost to another row
        rows_deleted: arriving delete rows that won"""

    winning_rows: WinningRows
    outcomes: npt.NDArray[np.uint8]
    rows_deduplicated: int
    rows_deleted: int


def find_survivors(
    remembered: RememberedKeys,
    arriving: ArrivingRows,
    horizon: int,
    tombstone_retention: int = KEEP_FOR_EVER,
    keep_marks: bool = False,
) -> Survivors:
    """Folds the arriving rows into the remembered keys.

    Args:
        horizon: the last stream position of the round: tombstones older than the retention are forgotten
        tombstone_retention: in stream positions; KEEP_FOR_EVER: tombstones never age
        keep_marks: older runs of the index may hold remembered keys that are now forgotten: mark those ERASED

    Precondition: 0 <= arriving.files < len(arriving.operations), as `files_of_rows` leaves them. Checked: the lengths
    of the arrays, and that sort values are of one width."""
    _check(remembered, arriving)
    keys_max = len(remembered.digests) + len(arriving.digests)
    winning_rows: WinningRows = np.empty(keys_max, np.int32 if keys_max <= np.iinfo(np.int32).max else np.int64)
    outcomes = np.empty(keys_max, np.uint8)
    keys, deduplicated, deleted = _fold(
        remembered.digests,
        remembered.sort_values,
        remembered.outcomes,
        remembered.tombstone_positions,
        arriving.digests,
        arriving.files,
        arriving.sort_values,
        arriving.operations,
        arriving.positions,
        np.int64(horizon),
        np.int64(tombstone_retention),
        keep_marks,
        winning_rows,
        outcomes,
    )
    return Survivors(winning_rows[:keys], outcomes[:keys], int(deduplicated), int(deleted))


def _check(remembered: RememberedKeys, arriving: ArrivingRows) -> None:
    keys, rows, width = len(remembered.digests), len(arriving.digests), arriving.sort_values.shape[1]
    if len(remembered.outcomes) != keys or len(remembered.tombstone_positions) != keys or len(arriving.files) != rows:
        raise ValueError(f"the columns of {keys} remembered keys and {rows} arriving rows have other lengths")
    if remembered.sort_values.shape != (keys, width) or arriving.sort_values.shape != (rows, width):
        raise ValueError(f"sort values {remembered.sort_values.shape} and {arriving.sort_values.shape}")
    if len(arriving.operations) != len(arriving.positions):
        raise ValueError(f"{len(arriving.operations)} files have operations, {len(arriving.positions)} positions")


@kernel
def _compare(left, left_row, right, right_row):  # type: ignore[no-untyped-def]
    """-1, 0 or 1: how two rows of two matrices compare, first column first."""
    for column in range(left.shape[1]):
        one, other = left[left_row, column], right[right_row, column]
        if one != other:
            return -1 if one < other else 1
    return 0


@kernel
def _is_expired(outcome, tombstone_position, position, retention):  # type: ignore[no-untyped-def]
    if outcome != TOMBSTONE or retention < 0:
        return False
    # A position is never before a tombstone's; their distance may need all of 64 bits.
    return np.uint64(position) - np.uint64(tombstone_position) > np.uint64(retention)


@kernel
def _replaces(row, winning_row, old_sort, sort, files, operations):  # type: ignore[no-untyped-def]
    """Whether an arriving row replaces the winning row of its key. A tombstone's age is not considered here."""
    remembered = old_sort.shape[0]
    if sort.shape[1] == 0 or operations[files[row]] == DELETE_WITHOUT_SORT_VALUES:
        return True
    if winning_row < remembered:
        return _compare(sort, row, old_sort, winning_row) >= 0
    if operations[files[winning_row - remembered]] == DELETE_WITHOUT_SORT_VALUES:
        return True
    return _compare(sort, row, sort, winning_row - remembered) >= 0


@kernel
def _outcome_of(operation, by_position_alone):  # type: ignore[no-untyped-def]
    """The outcome of a key whose winning row is an arriving one."""
    if operation == UPSERT:
        return LIVE
    # Every later row beats this delete anyway, so no tombstone is needed.
    return FORGOTTEN if by_position_alone or operation == DELETE_WITHOUT_SORT_VALUES else TOMBSTONE


@kernel
def _outcome_at(horizon, outcome, tombstone_position, retention, leaves_mark):  # type: ignore[no-untyped-def]
    """The outcome at the end of the round: a tombstone may have expired, a forgotten key may leave a mark."""
    if _is_expired(outcome, tombstone_position, horizon, retention):
        outcome = FORGOTTEN
    return ERASED if outcome == FORGOTTEN and leaves_mark else outcome


@kernel
def _fold(  # type: ignore[no-untyped-def]
    old_digests,
    old_sort,
    old_outcomes,
    old_tombstones,
    digests,
    files,
    sort,
    operations,
    positions,
    horizon,
    retention,
    keep_marks,
    winning_rows,
    outcomes,
):
    remembered, arriving = old_digests.shape[0], digests.shape[0]
    keys = deduplicated = deleted = np.int64(0)
    old = new = 0
    while old < remembered or new < arriving:
        comparison = -1 if new == arriving else 1
        if old < remembered and new < arriving:
            comparison = _compare(old_digests, old, digests, new)
        has_winner, winning_row, tombstone_position = False, np.int64(0), np.int64(0)
        outcome, rows_of_key, first = FORGOTTEN, 0, new
        entry, is_remembered = np.int64(old), comparison <= 0
        if is_remembered:
            if old_outcomes[old] != ERASED:
                has_winner, winning_row, outcome = True, entry, int(old_outcomes[old])
            tombstone_position = old_tombstones[old]
            rows_of_key += outcome == LIVE
            old += 1
        if comparison >= 0:
            first = new
            while new < arriving and _compare(digests, new, digests, first) == 0:
                row, file = new, files[new]
                new += 1
                rows_of_key += 1
                is_expired = _is_expired(outcome, tombstone_position, positions[file], retention)
                if not has_winner or is_expired or _replaces(row, winning_row, old_sort, sort, files, operations):
                    has_winner, winning_row = True, np.int64(remembered + row)
                    outcome = _outcome_of(operations[file], sort.shape[1] == 0)
                    tombstone_position = positions[file]
        delete_won = has_winner and winning_row >= remembered and operations[files[winning_row - remembered]] != UPSERT
        deleted += delete_won
        deduplicated += rows_of_key - (delete_won or outcome == LIVE)
        outcome = _outcome_at(horizon, outcome, tombstone_position, retention, keep_marks and is_remembered)
        if outcome != FORGOTTEN:
            winning_rows[keys] = entry if outcome == ERASED else winning_row
            outcomes[keys] = outcome
            keys += 1
    return keys, deduplicated, deleted
