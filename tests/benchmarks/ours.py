"""Lithify as a contestant: `compact()` on a Spark that is up. Starting it and registering files are not timed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import RoundCommitted
from compactor.catalog.properties import ROWS_PER_COMPACTED_FILE
from compactor.catalog.stream import PartitionStream
from compactor.engine.protocol import Engine
from compactor.lake import Table
from compactor.model.names import PARTITION_STREAM_POSITION
from compactor.planning.spec import SessionResult
from tests.benchmarks.contestant import Answer, Task
from tests.benchmarks.data import KEY, SORT

TABLE = "BENCHMARK.ORDERS.V1"


class Ours:
    """A full compaction of table and delta; or, over a compacted lake, of the delta alone."""

    def __init__(self, task: Task, engine: Engine) -> None:
        self._task = task
        self._engine = engine
        self._results: dict[Path, SessionResult] = {}

    def prepare(self, folder: Path) -> None:
        task = self._task
        if task.compacted_lake is None:
            properties = {"publish": "delta,iceberg"} if task.published else None
            table = DeltaCatalog.open(folder).create_table(TABLE, properties=properties)
            table.append({}, list(task.table_files))
        else:
            # Every file of a lake is written once and then only replaced, so links are as good as copies.
            shutil.copytree(task.compacted_lake, folder, copy_function=os.link)
            table = DeltaCatalog.open(folder).table(TABLE)
        if task.delta_files:
            table.append({}, list(task.delta_files))

    def run(self, folder: Path) -> None:
        task = self._task
        result = compact(
            TABLE,
            {KEY},
            sort_keys=[(PARTITION_STREAM_POSITION if task.by_position else SORT, "ascending")],
            delta_catalog_client=DeltaCatalog.open(folder),
            rows_per_compacted_file=task.rows_per_compacted_file or ROWS_PER_COMPACTED_FILE,
            hash_bucket_count=task.hash_bucket_count,
            max_rows_per_round=task.max_rows_per_round,
            max_dead_row_share=task.max_dead_row_share,
            own_parquet_pages=task.own_parquet_pages,
            engine=self._engine,
        )
        self._results[folder] = result.sessions[0]

    def describe(self, folder: Path, answer: Answer) -> Answer:
        table = DeltaCatalog.open(folder).table(TABLE)
        stream = table.stream({})
        compacted = stream.load().state.compacted
        session = self._results[folder]
        arrived = self._task.files if self._task.compacted_lake is None else self._task.delta_files
        if compacted is None:
            raise RuntimeError("compact() returned, and nothing is compacted")
        paths = [stream.uri_of(file.path).removeprefix("file://") for file in compacted.files.values()]
        if compacted.deletion_vectors:
            # The files hold dead rows, which only a scan leaves out: what counts is what a reader sees.
            paths = [_write_scanned(table, folder / "scanned.parquet")]
        return answer.model_copy(
            update={
                "written": tuple(paths),
                "session": session,
                "bytes_read": _bytes_read(stream, session, arrived),
                "bytes_written": sum(map(_bytes_written, session.completions)),
            }
        )


def _bytes_read(stream: PartitionStream, session: SessionResult, arrived: Iterable[str]) -> int:
    """The files that arrived, and the compacted files that were rewritten."""
    rounds = [
        action for entry in stream.log.entries() for action in entry.actions if action.action == "round_committed"
    ]
    sizes = {file.file_number: file.size_bytes for each in rounds for file in each.files_added}
    rewritten = sum(sizes[number] for completion in session.completions for number in completion.files_removed)
    return rewritten + sum(Path(path).stat().st_size for path in arrived)


def _write_scanned(table: Table, path: Path) -> str:
    scan = table.scan()
    with pq.ParquetWriter(path, scan.schema) as writer:
        for batch in scan.to_batches():
            writer.write_batch(batch)
    return str(path)


def _bytes_written(completion: RoundCommitted) -> int:
    index_bytes = sum(file.size_bytes for file in completion.index_files if file.run == completion.index_version)
    pointers = [file.pointers for file in completion.index_files if file.pointers is not None]
    index_bytes += sum(each.size_bytes for each in pointers if completion.commit_id in each.path)
    vector_bytes = sum(vector.size_bytes for vector in completion.deletion_vectors)
    return index_bytes + vector_bytes + sum(file.size_bytes for file in completion.files_added)
