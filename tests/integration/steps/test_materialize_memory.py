"""A writer holds what its task may hold, however large the files and the row groups are that it reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.keys import TableFolder
from compactor.index.files import IndexTarget
from compactor.model.names import ContentType, Operation
from compactor.planning.round_plan import DeltaSource, RoundOutput
from compactor.planning.task_memory import rows_per_writer
from compactor.steps.index_update import BucketForWriter, RowsOfFiles
from compactor.steps.materialize import materialize
from compactor.steps.output_files import WriteStep
from compactor.steps.parts import Parts
from compactor.steps.placement import MaterializeTask
from compactor.storage.location import parse_location
from compactor.tabular import TabularFile

MIB = 2**20
TASK_BYTES = 128 * MIB
BUCKETS = 5
IN_FILE_ORDER = 1
"""With one bucket every row group could be written as the bytes that it is."""
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.mark.parametrize(
    ("rows", "width", "compression", "buckets"),
    [
        pytest.param(400_000, 1_000, "none", BUCKETS, id="wide, not compressed", marks=pytest.mark.release),
        pytest.param(400_000, 1_000, "none", IN_FILE_ORDER, id="wide, in the file's order"),
        pytest.param(400_000, 1_000, "snappy", BUCKETS, id="wide"),
        pytest.param(8_000_000, 8, "none", BUCKETS, id="narrow"),
    ],
)
def test_a_file_of_several_times_the_memory_in_one_row_group_is_written_within_the_memory(
    tmp_path: Path, rows: int, width: int, compression: str, buckets: int
) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        anonymous, in_all = processes.submit(_grown_by, tmp_path, rows, width, compression, buckets).result()
    assert anonymous <= in_all <= TASK_BYTES


def _grown_by(folder: Path, rows: int, width: int, compression: str, buckets: int) -> tuple[int, int]:
    """Writes a file's rows, in the order of so many buckets; the peaks of the process, beyond what it had before."""
    path, small = folder / "large.parquet", folder / "small.parquet"
    _write(path, rows, width, compression)
    _write(small, 10_000, 1_000, compression)
    _materialize(folder, small, 10_000, buckets)
    with _watched() as peaks:
        _materialize(folder, path, rows, buckets)
    return peaks[0], peaks[1]


def _write(path: Path, rows: int, width: int, compression: str) -> None:
    letters = np.random.default_rng(rows).integers(32, 127, 10 * MIB, np.uint8).tobytes().decode()
    starts = np.random.default_rng(width).integers(0, len(letters) - width, 10_000)
    texts = pa.array([letters[start : start + width] for start in starts.tolist()])
    with pq.ParquetWriter(path, SCHEMA, compression=compression, use_dictionary=False) as writer:
        whole = pa.table({"id": np.arange(rows), "text": texts.take(pa.array(np.arange(rows) % 10_000))}, SCHEMA)
        writer.write_table(whole, row_group_size=rows)
    del whole
    pa.default_memory_pool().release_unused()


def _materialize(folder: Path, path: Path, rows: int, buckets: int) -> None:
    file = TabularFile(f"file://{path}", ContentType.PARQUET)
    source = DeltaSource(0, file, rows, path.stat().st_size, 1, Operation.UPSERT, sorts=True)
    parts = Parts.of([source], TASK_BYTES)
    output = RoundOutput(
        content_type=ContentType.PARQUET,
        schema=SCHEMA,
        rows_per_compacted_file=4_000_000,
        max_dead_row_share=0.0,
        own_parquet_pages=True,
        page_check_share=0.02,
        compacted_stream_version=1,
        next_file_number=1,
        index=IndexTarget(TableFolder("ACME.ORDERS.V1").stream({}), 1, "c", 100),
    )
    step = WriteStep(parse_location(str(folder)), "c" * 32, output, TASK_BYTES, None)
    at_once = max(rows_per_writer(TASK_BYTES) // -(-rows // buckets), 1)
    for first in range(0, buckets, at_once):
        some = [_rows_of_bucket(parts, rows, each, buckets) for each in range(first, min(first + at_once, buckets))]
        count = sum(len(each.rows[0].row_indices) for each in some)
        [files] = materialize(step, [MaterializeTask(0, 1, count, (source,))], some, f"{first:016}")
        assert sum(each.rows for each in files) == count
        for each in files:
            (folder / each.path).unlink()


def _rows_of_bucket(parts: Parts, rows: int, bucket: int, buckets: int) -> BucketForWriter:
    row_indices = np.arange(bucket, rows, buckets)
    numbers = parts.of_rows(np.zeros(len(row_indices), np.int32), row_indices)
    present, counts = np.unique(numbers, return_counts=True)
    wanted = RowsOfFiles(np.zeros(len(present), np.int32), present.astype(np.int32), counts, row_indices)
    return BucketForWriter(bucket, {0: wanted}, {}, (), 0)


@contextmanager
def _watched() -> Iterator[list[int]]:
    before, peaks, stop = _held(), [0, 0], threading.Event()

    def look() -> None:
        while not stop.wait(0.005):
            anonymous, in_all = _held()
            peaks[0] = max(peaks[0], anonymous - before[0])
            peaks[1] = max(peaks[1], in_all - before[1])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()


def _held() -> tuple[int, int]:
    """Anonymous memory of this process, and all that it has in memory, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    anonymous, mapped = (int(lines[name].split()[0]) * 1_024 for name in ("RssAnon", "RssFile"))
    return anonymous, anonymous + mapped
