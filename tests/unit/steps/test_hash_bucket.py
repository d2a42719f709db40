"""The hash bucket step: what becomes of a delta file's rows, and which files are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.sha1 import Digests
from compactor.kernels.sort_values import SortColumn, decode_sort_values
from compactor.model.errors import Corrupt
from compactor.model.names import PARTITION_STREAM_POSITION, ContentType, Operation
from compactor.planning.round_plan import DeltaSource, RowsToHash
from compactor.planning.task_memory import rows_per_hash_task
from compactor.steps.hash_bucket import HashedRows, HashStep, hash_rows
from compactor.storage.location import parse_location
from compactor.tabular import TabularFile

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int32())])
AT = SortColumn("at", pa.int64(), descending=False)
POSITION = SortColumn(PARTITION_STREAM_POSITION, pa.int64(), descending=True)
BUCKETS = 3


def step_in(folder: Path) -> HashStep:
    return HashStep(
        location=parse_location(str(folder)),
        key_columns=("id",),
        sort_columns=(AT, POSITION),
        hash_bucket_count=BUCKETS,
        schema=SCHEMA,
        own_parquet_pages=True,
        task_memory_bytes=1 << 30,
        progress=None,
    )


def delta(
    folder: Path, ordinal: int, table: pa.Table, rows: int | None = None, groups: Sequence[int] = ()
) -> DeltaSource:
    path = folder / f"{ordinal}.parquet"
    with pq.ParquetWriter(path, table.schema) as writer:
        for end, count in zip(accumulate(groups or [len(table)]), groups or [len(table)], strict=True):
            writer.write_table(table.slice(end - count, count))
    return DeltaSource(
        ordinal=ordinal,
        file=TabularFile(f"file://{path}", ContentType.PARQUET),
        rows=len(table) if rows is None else rows,
        size_bytes=path.stat().st_size,
        position=100 + ordinal,
        operation=Operation.UPSERT,
        sorts=True,
    )


def rows_of(first: int, count: int) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "at": [number % 7 for number in ids]}, schema=SCHEMA)


def in_digest_order(blocks: list[HashedRows]) -> tuple[Digests, list[tuple[int, int, int | None, int]]]:
    """The digests, and of each its file, its row, and its sort values."""
    digests = np.concatenate([block.digests for block in blocks])
    found = []
    for block in blocks:
        at, position = (column.to_pylist() for column in decode_sort_values([AT, POSITION], block.sort_values))
        ordinals = np.repeat(block.ordinals, block.row_counts).tolist()
        found += list(zip(ordinals, block.row_indices.tolist(), at, position, strict=True))
    order = np.lexsort(digests.T[::-1])
    return digests[order], [found[place] for place in order]


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 1_000])
def test_a_row_has_its_digest_its_place_and_its_sort_values_whatever_memory_has_room_for(
    tmp_path: Path, rows_at_a_time: int
) -> None:
    step = step_in(tmp_path)
    files = [delta(tmp_path, 4, rows_of(0, 10)), delta(tmp_path, 5, rows_of(10, 1)), delta(tmp_path, 6, rows_of(11, 9))]
    width = step.sort_columns[0].value_bytes + step.sort_columns[1].value_bytes + 2
    memory = next(memory for memory in range(1 << 20) if rows_per_hash_task(memory, width) >= rows_at_a_time)
    hashed = list(hash_rows(replace(step, task_memory_bytes=memory), [RowsToHash.all_of(file) for file in files]))
    assert {bucket for bucket, _ in hashed} <= set(range(BUCKETS))
    for bucket, block in hashed:
        digests = [int.from_bytes(row.astype(">u4").tobytes(), "big") for row in block.digests]
        assert {digest % BUCKETS for digest in digests} == {bucket}
    _, found = in_digest_order([block for _, block in hashed])
    ids = [*range(10), 10, *range(11, 20)]
    firsts = {4: 0, 5: 10, 6: 11}
    assert sorted(firsts[ordinal] + row for ordinal, row, _, _ in found) == ids
    for ordinal, row, at, position in found:
        assert (at, position) == ((firsts[ordinal] + row) % 7, 100 + ordinal)


def test_rows_of_a_file_without_a_sort_column_have_no_value_of_it(tmp_path: Path) -> None:
    file = delta(tmp_path, 0, rows_of(0, 5).drop_columns(["at"]))
    _, found = in_digest_order([block for _, block in hash_rows(step_in(tmp_path), [RowsToHash.all_of(file)])])
    assert {(at, position) for _, _, at, position in found} == {(None, 100)}


@pytest.mark.parametrize("stated", [0, 4, 6, 100])
def test_a_file_that_has_more_or_fewer_rows_than_the_log_says_is_refused(tmp_path: Path, stated: int) -> None:
    file = delta(tmp_path, 0, rows_of(0, 5), rows=stated)
    with pytest.raises(Corrupt, match=f"holds 5 rows, but the log says {stated}"):
        list(hash_rows(step_in(tmp_path), [RowsToHash.all_of(file)]))


@given(
    cuts=st.sets(st.integers(1, 9)), groups=st.lists(st.integers(1, 4), min_size=1, max_size=9), own_pages=st.booleans()
)
def test_rows_keep_their_place_in_the_file_whichever_tasks_read_its_row_groups(
    tmp_path_factory: pytest.TempPathFactory, cuts: set[int], groups: list[int], own_pages: bool
) -> None:
    folder = tmp_path_factory.mktemp("delta")
    file = delta(folder, 4, rows_of(0, sum(groups)), groups=groups)
    step = replace(step_in(folder), own_parquet_pages=own_pages)
    ends = sorted({sum(groups[:cut]) for cut in cuts} | {sum(groups)})
    pieces = [RowsToHash(file, start, end - start) for start, end in pairwise([0, *ends])]
    apart = in_digest_order([block for piece in pieces for _, block in hash_rows(step, [piece])])
    together = in_digest_order([block for _, block in hash_rows(step, [RowsToHash.all_of(file)])])
    assert apart[1] == together[1]
    assert np.array_equal(apart[0], together[0])


@pytest.mark.parametrize("rows", [(0, 3), (3, 2), (5, 5)])
def test_a_file_with_other_row_groups_than_the_log_says_is_refused(tmp_path: Path, rows: tuple[int, int]) -> None:
    file = delta(tmp_path, 0, rows_of(0, 10), groups=[5, 5])
    other = replace(file, file=delta(tmp_path, 1, rows_of(0, 10), groups=[4, 6]).file)
    with pytest.raises(Corrupt, match=f"has other row groups than the log says, at row {rows[0]}"):
        list(hash_rows(step_in(tmp_path), [RowsToHash(other, *rows)]))


def test_a_file_whose_row_groups_are_those_of_the_log_but_for_one_more_is_refused(tmp_path: Path) -> None:
    file = delta(tmp_path, 0, rows_of(0, 12), rows=10, groups=[5, 5, 2])
    with pytest.raises(Corrupt, match="holds 12 rows, but the log says 10"):
        list(hash_rows(step_in(tmp_path), [RowsToHash(file, 0, 5)]))
