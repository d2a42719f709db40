"""What a caller of the kernels may get wrong is refused, before a loop reads or writes outside of its arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import compactor.kernels
from compactor.kernels.canonical import FixedColumn, VariableColumn
from compactor.kernels.digest import digest_keys
from compactor.kernels.digest_sort import DigestSort
from compactor.kernels.gather import DeltaRows, LocatedRows, gather_rows
from compactor.kernels.hash_bucket import group_by_bucket, hash_buckets
from compactor.kernels.live_rows import LiveFiles, LiveRows, count_live, live_pointers
from compactor.kernels.pointers import (
    RanksWithinFiles,
    count_rows,
    point_at_compacted,
    put_in_order,
    rank_within_parts,
)
from compactor.kernels.sha1 import Digests
from compactor.kernels.sort_values import SortColumn, encode_sort_values
from compactor.kernels.survivors import ArrivingRows, RememberedKeys, find_survivors
from compactor.model.errors import Corrupt, Invalid


def digests(rows: int) -> Digests:
    return np.zeros((rows, 5), np.uint32)


def int32s(*numbers: int) -> npt.NDArray[np.int32]:
    return np.array(numbers, np.int32)


def int64s(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


def uint8s(rows: int, width: int = 1) -> npt.NDArray[np.uint8]:
    return np.zeros((rows, width), np.uint8)


def text(*offsets: int, size: int = 4) -> VariableColumn:
    return VariableColumn(int64s(*offsets), np.zeros(size, np.uint8), None)


def remembered(keys: int = 2, sort: int = 2, outcomes: int = 2, positions: int = 2, width: int = 1) -> RememberedKeys:
    outcomes_of_keys = np.ones(outcomes, np.uint8)
    return RememberedKeys(digests(keys), uint8s(sort, width), outcomes_of_keys, np.zeros(positions, np.int64))


def arriving(rows: int = 1, files: int = 1, sort: int = 1, operations: int = 1, positions: int = 1) -> ArrivingRows:
    return ArrivingRows(
        digests(rows),
        np.zeros(files, np.int32),
        uint8s(sort),
        np.zeros(operations, np.uint8),
        np.zeros(positions, np.int64),
    )


def gathered(ordinals: int = 2, sort: int = 2, width: int = 1, row_indices: int = 1, files: int = 1) -> LocatedRows:
    old = LocatedRows(digests(2), np.zeros(ordinals, np.int32), int64s(0, 1), uint8s(sort, width))
    new = DeltaRows(digests(1), np.zeros(files, np.int32), np.zeros(row_indices, np.uint32), uint8s(1), int32s(0))
    return gather_rows(int64s(0, 2), old, new)


def sorted_rows(indices: int = 2, sort: int = 2, width: int = 1) -> object:
    rows = DigestSort(2, np.uint32, 1)
    rows.add(digests(2), np.zeros(indices, np.uint32), uint8s(sort, width))
    return rows.in_order()


FILES = LiveFiles.of(int32s(3, 7))
SORT_COLUMN = SortColumn("at", pa.int64(), descending=False)
LIVE = LiveRows.of(FILES, int64s(5, 5), {})


def ranked(
    parts: tuple[int, ...], row_indices: tuple[int, ...], counts: tuple[int, ...] = (1, 2), first_rows: int = 2
) -> list[int]:
    """Ranks in two files of five rows."""
    found = np.full(len(parts), 9, np.int32)
    of_rows = (np.array(parts, np.int32), np.array(row_indices, np.int64), found)
    rank_within_parts([of_rows], np.zeros(first_rows, np.int64), int64s(5, 5), np.array(counts, np.int64))
    return found.tolist()


def pointed(ranks: int = 1, numbers: int = 1, files: int = 2, rows_per_file: int = 1) -> None:
    arrays = np.zeros(ranks, np.int32), np.zeros(2, np.int64), np.ones(files, np.int64), rows_per_file
    point_at_compacted(int32s(1), *arrays, np.empty(numbers, np.int32), np.empty(1, np.int64))


def in_order(part: int = 0, rank: int = 0, ranks: int = 1, room: int = 2) -> None:
    of_rows = np.array([part], np.int32), np.full(ranks, rank, np.int32), int64s(7)
    put_in_order(*of_rows, int64s(0, 1, 2), np.empty(room, np.int32))


def ranks() -> RanksWithinFiles:
    return RanksWithinFiles(int32s(0, 1), int32s(0, 0), int64s(0, 2))


Call = Callable[[], object]

TAKEN: dict[str, Call] = {
    "digests": lambda: digest_keys([FixedColumn(uint8s(2), None), text(0, 1, 4)], 2),
    "digests of no rows": lambda: digest_keys([text(0, size=0)], 0),
    "survivors": lambda: find_survivors(remembered(), arriving(), 1),
    "gathered": gathered,
    "sorted": sorted_rows,
    "grouped": lambda: group_by_bucket(np.array([0, 2], np.uint32), 3),
    "ranks": lambda: ranked((0, 1, 1), (4, 4, 3)),
    "ranks of some rows": lambda: ranked((0, 1, 1, -1, 2), (4, 4, 3, 9, 9)),
    "pointers": pointed,
    "in order": in_order,
    "in order, of no part": lambda: in_order(part=-1, rank=5),
    "counted": lambda: count_live(LIVE, int32s(3), int64s(4), int64s(0, 0)),
}

MISTAKES: dict[str, Call] = {
    "fewer digested rows": lambda: digest_keys([FixedColumn(uint8s(1), None)], 2),
    "more digested rows": lambda: digest_keys([FixedColumn(uint8s(3), np.ones(2, np.bool_))], 2),
    "nulls of other rows": lambda: digest_keys([FixedColumn(uint8s(2), np.ones(1, np.bool_))], 2),
    "offsets of other rows": lambda: digest_keys([text(0, 1)], 2),
    "outcomes of other keys": lambda: find_survivors(remembered(outcomes=1), arriving(), 1),
    "positions of other keys": lambda: find_survivors(remembered(positions=1), arriving(), 1),
    "sort values of other keys": lambda: find_survivors(remembered(sort=1), arriving(), 1),
    "wider sort values of keys": lambda: find_survivors(remembered(width=2), arriving(), 1),
    "files of other rows": lambda: find_survivors(remembered(), arriving(files=2), 1),
    "sort values of other rows": lambda: find_survivors(remembered(), arriving(sort=2), 1),
    "operations of other files": lambda: find_survivors(remembered(), arriving(operations=2), 1),
    "ordinals of other rows": lambda: gathered(ordinals=1),
    "gathered sort values of other rows": lambda: gathered(sort=1),
    "narrower gathered sort values": lambda: gathered(width=0),
    "row indices of other rows": lambda: gathered(row_indices=2),
    "gathered files of other rows": lambda: gathered(files=2),
    "sorted row indices of other rows": lambda: sorted_rows(indices=1),
    "sorted values of other rows": lambda: sorted_rows(sort=1),
    "sorted values of another width": lambda: sorted_rows(width=2),
    "no hash bucket": lambda: hash_buckets(digests(1), 0),
    "too many hash buckets": lambda: hash_buckets(digests(1), 2**32),
    "a row beyond the hash buckets": lambda: group_by_bucket(np.array([0, 3], np.uint32), 3),
    "ranks in fewer files": lambda: ranked((0, 1), (1, 1), first_rows=1),
    "ranks in more files than are counted": lambda: ranked((0, 1), (1, 1), counts=(1,)),
    "ranks of fewer rows": lambda: ranked((0, 0), (1,)),
    "counted rows beyond the last part": lambda: count_rows(int32s(0, 2), int64s(0, 0)),
    "counted rows before the first part": lambda: count_rows(int32s(-2), int64s(0, 0)),
    "marks of fewer rows": lambda: ranks().add(int64s(0, 1), np.ones(1, np.bool_)),
    "marks of more rows": lambda: ranks().of(int64s(0), np.ones(2, np.bool_)),
    "pointers with other ranks": lambda: pointed(ranks=2),
    "pointers of other rows": lambda: pointed(numbers=2),
    "numbers of other files": lambda: pointed(files=1),
    "files without rows": lambda: pointed(rows_per_file=0),
    "a rank beyond its part": lambda: in_order(rank=1),
    "a rank before its part": lambda: in_order(part=1, rank=-1),
    "an order of parts beyond the last": lambda: in_order(part=2),
    "an order of other rows": lambda: in_order(ranks=2),
    "an order with more room": lambda: in_order(room=3),
    "a file without a number": lambda: LiveFiles.of(int32s(3, 0)),
    "rows of fewer files": lambda: LiveRows.of(FILES, int64s(5), {}),
    "counted row indices of other pointers": lambda: count_live(LIVE, int32s(3), int64s(1, 2), int64s(0, 0)),
    "selected row indices of other pointers": lambda: live_pointers(LIVE, int32s(3), int64s(), np.ones(2, np.bool_)),
    "counts of fewer files": lambda: count_live(LIVE, int32s(3), int64s(1), int64s(0)),
    "wanted of fewer files": lambda: live_pointers(LIVE, int32s(3), int64s(1), np.ones(1, np.bool_)),
    "sort columns of other rows": lambda: encode_sort_values([SORT_COLUMN], [pa.nulls(1, pa.int64())], 2),
}


@pytest.mark.parametrize("call", TAKEN.values(), ids=TAKEN)
def test_an_archive_that_fits_is_accepted(call: Call) -> None:
    call()


@pytest.mark.parametrize("call", MISTAKES.values(), ids=MISTAKES)
def test_a_callers_mistake_is_refused_before_a_loop_runs(call: Call) -> None:
    with pytest.raises((ValueError, IndexError)):
        call()


@pytest.mark.parametrize("offsets", [(-1, 0, 4), (0, 3, 2), (0, 2, 5), (0, 2**62, 4)])
def test_offsets_that_lead_outside_of_their_data_are_never_followed(offsets: tuple[int, ...]) -> None:
    with pytest.raises(Invalid, match="damaged"):
        digest_keys([text(*offsets)], 2)


def test_two_keys_that_point_at_one_row_are_damage() -> None:
    with pytest.raises(Corrupt, match="twice at one row"):
        ranked((0, 1, 1), (4, 3, 3))


@pytest.mark.parametrize(
    "path", sorted(Path(compactor.kernels.__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_every_module_with_unchecked_loops_states_its_preconditions(path: Path) -> None:
    source = path.read_text()
    if "@kernel" in source or "raw_memcpy" in source:
        assert "Precondition" in source
