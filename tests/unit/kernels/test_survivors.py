"""Survivors against the plain fold: one key after the other, one row after the other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compactor.kernels.sha1 import Digests
from compactor.kernels.survivors import (
    DELETE,
    DELETE_WITHOUT_SORT_VALUES,
    KEEP_FOR_EVER,
    LIVE,
    TOMBSTONE,
    UPSERT,
    ArrivingRows,
    RememberedKeys,
    find_survivors,
)
from tests.effort import examples

HORIZON = 20
LAST_BEFORE = 8
"""No position of an arriving row is before one of the index."""
POSITION_MIN = -(2**63)


@dataclass(frozen=True)
class Arriving:
    key: int
    sort: bytes
    operation: int
    position: int


@dataclass(frozen=True)
class Remembered:
    """deleted_at: where the key was deleted; None: its row is live."""

    sort: bytes
    deleted_at: int | None


@dataclass(frozen=True)
class Found:
    """What is left of each key: (holder, outcome), the holder "index" or the number of an arriving row."""

    keys: dict[int, tuple[str | int, int]]
    rows_deduplicated: int
    rows_deleted: int


def plain_fold(index: dict[int, Remembered], rows: list[Arriving], by_position: bool, retention: int) -> Found:
    """The rules of survival, one by one: the holder of a key meets each of its rows in turn."""
    keys: dict[int, tuple[str | int, int]] = {}
    deduplicated = deleted = 0
    for key in sorted({*index, *(row.key for row in rows)}):
        holder: str | int | None = None
        deleted_at: int | None = None
        sort, operation, met = b"", UPSERT, 0
        if key in index:
            holder, sort, deleted_at = "index", index[key].sort, index[key].deleted_at
            operation = UPSERT if deleted_at is None else DELETE
            met += deleted_at is None
        for number, row in enumerate(rows):
            if row.key != key:
                continue
            met += 1
            expired = deleted_at is not None and retention >= 0 and row.position - deleted_at > retention
            clears = DELETE_WITHOUT_SORT_VALUES in (operation, row.operation)
            if holder is None or by_position or expired or clears or row.sort >= sort:
                holder, sort, operation = number, row.sort, row.operation
                deleted_at = row.position if operation == DELETE and not by_position else None
        remembered = deleted_at is not None and not (retention >= 0 and HORIZON - deleted_at > retention)
        assert holder is not None
        if operation == UPSERT:
            keys[key] = (holder, LIVE)
        elif remembered:
            keys[key] = (holder, TOMBSTONE)
        won_by_delete = operation != UPSERT and holder != "index"
        deleted += won_by_delete
        deduplicated += met - (won_by_delete or operation == UPSERT)
    return Found(keys, deduplicated, deleted)


def fold(
    index: dict[int, Remembered], rows: list[Arriving], width: int, retention: int, horizon: int = HORIZON
) -> Found:
    """The same by the kernels."""
    known = sorted(index, key=digest_of)
    remembered = RememberedKeys(
        digests_of(known),
        sort_matrix([index[key].sort for key in known], width),
        np.array([LIVE if index[key].deleted_at is None else TOMBSTONE for key in known], np.uint8),
        # Of a live key this is its row, which may be any number.
        np.array([POSITION_MIN if index[key].deleted_at is None else index[key].deleted_at for key in known], np.int64),
    )
    digests = digests_of([row.key for row in rows])
    order = np.lexsort(digests.T[::-1])
    arriving = ArrivingRows(
        digests[order],
        order.astype(np.int32),  # each row in a file of its own
        sort_matrix([row.sort for row in rows], width)[order],
        np.array([row.operation for row in rows], np.uint8),
        np.array([row.position for row in rows], np.int64),
    )
    found = find_survivors(remembered, arriving, horizon, retention)
    keys: dict[int, tuple[str | int, int]] = {}
    for holder, outcome in zip(found.winning_rows.tolist(), found.outcomes.tolist(), strict=True):
        if holder < len(known):
            keys[known[holder]] = ("index", outcome)
        else:
            number = int(order[holder - len(known)])
            keys[rows[number].key] = (number, outcome)
    in_digest_order = [digest_of(key) for key in keys]
    assert in_digest_order == sorted(in_digest_order)
    return Found(dict(sorted(keys.items())), found.rows_deduplicated, found.rows_deleted)


def digest_of(key: int) -> bytes:
    return hashlib.sha1(str(key).encode()).digest()


def digests_of(keys: list[int]) -> Digests:
    digests = np.frombuffer(b"".join(digest_of(key) for key in keys), ">u4").astype(np.uint32)
    return digests.reshape(-1, 5)


def sort_matrix(values: list[bytes], width: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), width)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[dict[int, Remembered], list[Arriving], int, int]:
    width = draw(st.sampled_from([0, 2, 2]))
    sort = st.binary(min_size=width, max_size=width) if not width else st.sampled_from([b"\0\0", b"\1\0", b"\1\7"])
    operation = st.sampled_from([UPSERT, UPSERT, DELETE, DELETE_WITHOUT_SORT_VALUES])
    deleted_at = st.none() | st.integers(-8, LAST_BEFORE) if width else st.none()
    index = draw(st.dictionaries(st.integers(0, 7), st.builds(Remembered, sort, deleted_at), max_size=6))
    positions = sorted(draw(st.lists(st.integers(LAST_BEFORE + 1, HORIZON), max_size=14)))
    rows = [draw(st.builds(Arriving, st.integers(0, 9), sort, operation, st.just(at))) for at in positions]
    return index, rows, width, draw(st.sampled_from([KEEP_FOR_EVER, 0, 3, 8, 100]))


@examples(3)
@given(rounds())
@example(({}, [], 0, KEEP_FOR_EVER))
@example(({1: Remembered(b"", None)}, [], 0, KEEP_FOR_EVER))
def test_survivors_are_those_of_the_plain_fold_and_every_row_is_accounted_for(
    case: tuple[dict[int, Remembered], list[Arriving], int, int],
) -> None:
    index, rows, width, retention = case
    found = fold(index, rows, width, retention)
    assert found == plain_fold(index, rows, width == 0, retention)
    rows_in = len(rows) + sum(each.deleted_at is None for each in index.values())
    rows_out = sum(outcome == LIVE for _, outcome in found.keys.values())
    assert rows_in == rows_out + found.rows_deduplicated + found.rows_deleted


@examples(2)
@given(rounds(), st.integers(0, 14))
def test_folding_in_two_rounds_is_folding_in_one(
    case: tuple[dict[int, Remembered], list[Arriving], int, int], cut: int
) -> None:
    index, rows, width, retention = case
    whole = fold(index, rows, width, retention)
    first = fold(
        index, rows[:cut], width, retention, horizon=max((row.position for row in rows[:cut]), default=LAST_BEFORE)
    )
    between = {
        key: index[key] if holder == "index" else _remember(rows[int(holder)])
        for key, (holder, _) in first.keys.items()
    }
    second = fold(between, rows[cut:], width, retention)
    in_all = {
        key: (first.keys[key][0] if holder == "index" else int(holder) + len(rows[:cut]), outcome)
        for key, (holder, outcome) in second.keys.items()
    }
    assert in_all == whole.keys


def _remember(row: Arriving) -> Remembered:
    return Remembered(row.sort, None if row.operation == UPSERT else row.position)


@pytest.mark.parametrize("position", [POSITION_MIN, POSITION_MIN + 1, -1, 0])
def test_a_tombstone_holds_whatever_its_position_is(position: int) -> None:
    index = {1: Remembered(b"\1", position)}
    late, later = Arriving(1, b"\0", UPSERT, 5), Arriving(1, b"\2", UPSERT, 6)
    assert fold(index, [late], 1, KEEP_FOR_EVER) == Found({1: ("index", TOMBSTONE)}, 1, 0)
    assert fold(index, [late, later], 1, KEEP_FOR_EVER) == Found({1: (1, LIVE)}, 1, 0)
