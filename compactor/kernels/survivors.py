"""Which row of every primary key survives (contract 2), in one pass over rows in digest order.

The rows of a key are met in the order (stream position, file number, row index): first what the index remembers of it,
a live compacted row or a tombstone, then the round's rows. A row takes over unless its sort values are smaller than
the holder's. So each key's outcome is a fold over its rows, and folding them in one round or in many is the same.

A delete row without sort values ends all that came before it, and whatever comes after it wins. A tombstone that is
older than its retention, measured in stream positions from the row at hand, no longer counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.sha1 import Words

UPSERT, DELETE, DELETE_WITHOUT_SORT_VALUES = 0, 1, 2
"""What a row does. The last: a delete whose file lacks the custom sort key columns."""

FORGOTTEN, LIVE, TOMBSTONE, ERASED = 0, 1, 2, 3
"""What becomes of a key: nothing is left of it, a row survives, the index remembers that it was deleted, or the index
must say that whatever an older run says of the key is void."""

NOT_DELETED, VOID = -(2**63), -(2**63) + 1
"""In place of a tombstone's position: the key's row is live; nothing is known of the key (a mark over an older run).
Positions may be negative, so the catalog takes none of these two."""

KEEP_FOR_EVER = -1


@dataclass(frozen=True)
class RememberedKeys:
    """What the index holds of one hash bucket, sorted by digest, digests unique.

    words                (keys, 5)
    sort_values          uint8 (keys, width): order-preserving bytes, see sort_values.py; width 0: by position alone
    tombstone_positions  int64 (keys,): where the key was deleted; NOT_DELETED where its row is live; VOID
    """

    words: Words
    sort_values: npt.NDArray[np.uint8]
    tombstone_positions: npt.NDArray[np.int64]


@dataclass(frozen=True)
class ArrivingRows:
    """The round's rows of one hash bucket, in digest order; those of a key in the order (stream position, file number,
    row index).

    words        (rows, 5)
    files        int32 (rows,): which of the bucket's files the row is from, from 0
    sort_values  uint8 (rows, width), as in RememberedKeys
    operations   uint8 (files,): UPSERT, DELETE or DELETE_WITHOUT_SORT_VALUES
    positions    int64 (files,): stream positions
    """

    words: Words
    files: npt.NDArray[np.int32]
    sort_values: npt.NDArray[np.uint8]
    operations: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Survivors:
    """One entry per key that is not forgotten, in digest order.

    holders            int64 (keys,): that remembered key, or len(remembered) + that arriving row; ascending in each
    outcomes           uint8 (keys,): LIVE, TOMBSTONE or ERASED
    rows_deduplicated  rows (live remembered or arriving) that lost to another row
    rows_deleted       arriving delete rows that won
    """

    holders: npt.NDArray[np.int64]
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

    horizon              the last stream position of the round: tombstones older than the retention are forgotten
    tombstone_retention  in stream positions; KEEP_FOR_EVER: tombstones never age
    keep_marks           older runs of the index may hold remembered keys that are now forgotten: mark those ERASED
    """
    keys_max = len(remembered.words) + len(arriving.words)
    holders = np.empty(keys_max, np.int64)
    outcomes = np.empty(keys_max, np.uint8)
    keys, deduplicated, deleted = _fold(
        remembered.words,
        remembered.sort_values,
        remembered.tombstone_positions,
        arriving.words,
        arriving.files,
        arriving.sort_values,
        arriving.operations,
        arriving.positions,
        np.int64(horizon),
        np.int64(tombstone_retention),
        keep_marks,
        holders,
        outcomes,
    )
    return Survivors(holders[:keys], outcomes[:keys], int(deduplicated), int(deleted))


@nb.njit(cache=True, nogil=True)
def _compare(left, left_row, right, right_row):  # type: ignore[no-untyped-def]
    """-1, 0 or 1: how two rows of two matrices compare, first column first."""
    for column in range(left.shape[1]):
        one, other = left[left_row, column], right[right_row, column]
        if one != other:
            return -1 if one < other else 1
    return 0


@nb.njit(cache=True, nogil=True)
def _outlived(tombstone_position, position, retention):  # type: ignore[no-untyped-def]
    if tombstone_position <= VOID or retention < 0:
        return False
    # A position is never before a tombstone's; their distance may need all of 64 bits.
    return np.uint64(position) - np.uint64(tombstone_position) > np.uint64(retention)


@nb.njit(cache=True, nogil=True)
def _takes_over(row, holder, old_sort, sort, files, operations):  # type: ignore[no-untyped-def]
    """Whether an arriving row takes a key over from its holder, of which a tombstone's age is not considered."""
    remembered = old_sort.shape[0]
    if sort.shape[1] == 0 or operations[files[row]] == DELETE_WITHOUT_SORT_VALUES:
        return True
    if holder < remembered:
        return _compare(sort, row, old_sort, holder) >= 0
    if operations[files[holder - remembered]] == DELETE_WITHOUT_SORT_VALUES:
        return True
    return _compare(sort, row, sort, holder - remembered) >= 0


@nb.njit(cache=True, nogil=True)
def _outcome_of(operation, by_position_alone):  # type: ignore[no-untyped-def]
    """What becomes of a key that an arriving row holds in the end."""
    if operation == UPSERT:
        return LIVE
    # Any row to come is later than this delete, and so beats it without being told: nothing need be remembered.
    return FORGOTTEN if by_position_alone or operation == DELETE_WITHOUT_SORT_VALUES else TOMBSTONE


@nb.njit(cache=True, nogil=True)
def _outcome_at(horizon, outcome, tombstone_position, retention, leaves_mark):  # type: ignore[no-untyped-def]
    """The outcome once the round is over: a tombstone may outlive its retention, a forgotten key may leave a mark."""
    if outcome == TOMBSTONE and _outlived(tombstone_position, horizon, retention):
        outcome = FORGOTTEN
    return ERASED if outcome == FORGOTTEN and leaves_mark else outcome


@nb.njit(cache=True, nogil=True)
def _fold(  # type: ignore[no-untyped-def]
    old_words,
    old_sort,
    old_tombstones,
    words,
    files,
    sort,
    operations,
    positions,
    horizon,
    retention,
    keep_marks,
    holders,
    outcomes,
):
    remembered, arriving = old_words.shape[0], words.shape[0]
    keys = deduplicated = deleted = np.int64(0)
    old = new = 0
    while old < remembered or new < arriving:
        comparison = -1 if new == arriving else 1
        if old < remembered and new < arriving:
            comparison = _compare(old_words, old, words, new)
        entry = holder = np.int64(-1)
        tombstone_position = np.int64(NOT_DELETED)
        outcome, rows_of_key, first = FORGOTTEN, 0, new
        if comparison <= 0:
            entry, tombstone_position = np.int64(old), old_tombstones[old]
            if tombstone_position != VOID:
                holder = entry
                outcome = LIVE if tombstone_position == NOT_DELETED else TOMBSTONE
            rows_of_key += tombstone_position == NOT_DELETED
            old += 1
        if comparison >= 0:
            first = new
            while new < arriving and _compare(words, new, words, first) == 0:
                row, file = new, files[new]
                new += 1
                rows_of_key += 1
                outlives = _outlived(tombstone_position, positions[file], retention)
                if holder < 0 or outlives or _takes_over(row, holder, old_sort, sort, files, operations):
                    holder = np.int64(remembered + row)
                    outcome = _outcome_of(operations[file], sort.shape[1] == 0)
                    tombstone_position = positions[file] if outcome == TOMBSTONE else np.int64(NOT_DELETED)
        won_by_delete = holder >= remembered and operations[files[holder - remembered]] != UPSERT
        deleted += won_by_delete
        deduplicated += rows_of_key - (won_by_delete or outcome == LIVE)
        outcome = _outcome_at(horizon, outcome, tombstone_position, retention, keep_marks and entry >= 0)
        if outcome != FORGOTTEN:
            holders[keys] = entry if outcome == ERASED else holder
            outcomes[keys] = outcome
            keys += 1
    return keys, deduplicated, deleted
