"""Rows that do not add up are noticed by the task that meets them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.keys import TableFolder
from compactor.index.files import IndexTarget
from compactor.model.errors import Corrupt
from compactor.model.names import ContentType, Operation
from compactor.planning.round_plan import DeltaSource, RoundOutput
from compactor.steps.dedupe import DedupeStep, IndexedBucket, dedupe_bucket
from compactor.steps.hash_bucket import HashedRows
from compactor.steps.index_update import BucketForWriter, RowsOfFiles
from compactor.steps.materialize import materialize
from compactor.steps.output_files import WriteStep
from compactor.steps.parts import Parts
from compactor.steps.placement import MaterializeTask
from compactor.steps.sources import Sources
from compactor.storage.location import parse_location
from compactor.tabular import TabularFile

SCHEMA = pa.schema([("id", pa.int64())])
ATTEMPT = "0123456789abcdef"


def write_step(folder: Path) -> WriteStep:
    output = RoundOutput(
        content_type=ContentType.PARQUET,
        schema=SCHEMA,
        rows_per_compacted_file=4,
        max_dead_row_share=0.0,
        own_parquet_pages=True,
        page_check_share=0.0,
        compacted_stream_version=1,
        next_file_number=1,
        index=IndexTarget(TableFolder("ACME.ORDERS.V1").stream({}), 1, "c", 100),
    )
    return WriteStep(parse_location(str(folder)), "c" * 32, output, 1 << 30, None)


def source(folder: Path, rows: int, stated: int) -> DeltaSource:
    path = folder / "delta.parquet"
    pq.write_table(pa.table({"id": range(rows)}, schema=SCHEMA), path)
    file = TabularFile(f"file://{path}", ContentType.PARQUET)
    return DeltaSource(0, file, stated, path.stat().st_size, 1, Operation.UPSERT, sorts=True)


def rows_for_writer(rows: Sequence[int]) -> BucketForWriter:
    wanted = RowsOfFiles(np.zeros(1, np.int32), np.zeros(1, np.int32), np.array([len(rows)]), np.array(rows, np.int64))
    return BucketForWriter(0, {0: wanted}, {}, (), 0)


def test_a_materialize_task_writes_the_rows_that_it_is_told_in_files_of_bounded_rows(tmp_path: Path) -> None:
    task = MaterializeTask(number=0, first_file_number=7, rows=6, sources=(source(tmp_path, 9, 9),))
    [files] = materialize(write_step(tmp_path), [task], [rows_for_writer([8, 1, 2, 3, 4, 5])], ATTEMPT)
    assert [(file.file_number, file.rows) for file in files] == [(7, 4), (8, 2)]
    found = [pq.read_table(tmp_path / file.path).column("id").to_pylist() for file in files]
    assert found == [[8, 1, 2, 3], [4, 5]]


def test_a_materialize_task_that_wrote_other_rows_than_survive_fails(tmp_path: Path) -> None:
    task = MaterializeTask(number=0, first_file_number=1, rows=4, sources=(source(tmp_path, 9, 9),))
    with pytest.raises(Corrupt, match="materialize task 0 wrote 3 rows, but 4 rows survive"):
        list(materialize(write_step(tmp_path), [task], [rows_for_writer([1, 2, 3])], ATTEMPT))


@pytest.mark.parametrize("stated", [8, 10])
def test_a_file_that_has_more_or_fewer_rows_than_the_log_says_is_not_written_from(tmp_path: Path, stated: int) -> None:
    task = MaterializeTask(number=0, first_file_number=1, rows=1, sources=(source(tmp_path, 9, stated),))
    with pytest.raises(Corrupt, match=f"holds 9 rows, but the log says {stated}"):
        list(materialize(write_step(tmp_path), [task], [rows_for_writer([1])], ATTEMPT))


def test_pointer_records_that_are_not_those_of_their_files_are_refused(tmp_path: Path) -> None:
    sources = Sources(
        location=parse_location(str(tmp_path)),
        rows=np.array([3]),
        file_numbers=np.empty(0, np.int32),
        vectors={},
        operations=np.zeros(1, np.uint8),
        positions=np.array([1]),
        parts=Parts(np.array([0, 1]), np.array([3])),
    )
    step = DedupeStep(sources, (), 1, 1, -1, None)
    digests, no_values = np.zeros((2, 5), np.uint32), np.empty((2, 0), np.uint8)
    block = HashedRows(np.zeros(1, np.int32), np.array([3]), digests, np.arange(2, dtype=np.uint32), no_values, 0.0, 0)
    with pytest.raises(ValueError, match="2 pointer records of files with 3 rows"):
        list(dedupe_bucket(step, IndexedBucket(0, (), ()), [block]))
