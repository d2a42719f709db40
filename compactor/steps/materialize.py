"""The materialize step (seed 000): reads source files and writes their surviving rows into compacted files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.actions import DataFile
from compactor.catalog.paths import CompactedFilePath
from compactor.errors import Corrupt, Invalid
from compactor.names import ContentType
from compactor.planning import CompactedSource, RoundPlan, SourceFile
from compactor.schemas import conform
from compactor.steps.dedupe import RowsOfFiles
from compactor.steps.layout import MaterializeLayout
from compactor.steps.memory import peak_memory_bytes
from compactor.tabular import FileMeasure, TabularWriter, dictionary_columns_of, read_table

_ROWS_PER_TAKE = 1_000_000


@dataclass(frozen=True)
class MaterializedFiles:
    """What one materialize task wrote."""

    files: tuple[DataFile, ...]
    peak_memory_bytes: int


def materialize(
    plan: RoundPlan, layout: MaterializeLayout, task: int, blocks: Sequence[RowsOfFiles]
) -> MaterializedFiles:
    """One materialize task: its sources' rows, in the order (source file, dedupe task), in files of bounded rows."""
    wanted = _row_indices_by_source(blocks)
    sources = [file for file in plan.sources if file.ordinal in wanted]
    dictionary_columns = _dictionary_columns(plan, sources)
    cutter = _FileCutter(plan, int(layout.first_file_numbers[task]), dictionary_columns)
    with cutter:
        for source in sources:
            for rows in _surviving_rows(plan, source, wanted[source.ordinal]):
                cutter.write(rows)
    written = sum(file.rows for file in cutter.files)
    if written != layout.rows_of_tasks[task]:
        raise Corrupt(f"materialize task {task} wrote {written} rows, but {layout.rows_of_tasks[task]} rows survive")
    return MaterializedFiles(tuple(cutter.files), peak_memory_bytes())


def _row_indices_by_source(blocks: Sequence[RowsOfFiles]) -> dict[int, npt.NDArray[np.int64]]:
    pieces: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
    for block in sorted(blocks, key=lambda block: block.hash_bucket):
        ends = np.cumsum(block.row_counts)
        for ordinal, start, end in zip(block.ordinals, ends - block.row_counts, ends, strict=True):
            pieces[int(ordinal)].append(block.row_indices[start:end])
    return {ordinal: np.concatenate(parts) for ordinal, parts in pieces.items()}


def _surviving_rows(plan: RoundPlan, source: SourceFile, row_indices: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    with _reading(source):
        table = read_table(plan.location, source.file, schema=plan.output.schema)
    if table.num_rows != source.rows:
        raise Corrupt(f"{source.file.uri} holds {table.num_rows} rows, but the log says {source.rows}")
    table = conform(table, plan.output.schema).combine_chunks()
    in_file_order = len(row_indices) == table.num_rows and bool((np.diff(row_indices) == 1).all())
    for start in range(0, len(row_indices), _ROWS_PER_TAKE):
        piece = row_indices[start : start + _ROWS_PER_TAKE]
        yield table.slice(start, len(piece)) if in_file_order else table.take(pa.array(piece))


def _dictionary_columns(plan: RoundPlan, sources: Sequence[SourceFile]) -> tuple[str, ...] | None:
    """Which Parquet columns get dictionaries: those that have them in the largest source, where it is Parquet."""
    largest = max(sources, key=lambda source: source.size_bytes)
    if plan.output.content_type is not ContentType.PARQUET or largest.file.content_type is not ContentType.PARQUET:
        return None
    with _reading(largest):
        return dictionary_columns_of(plan.location, largest.file)


@contextmanager
def _reading(source: SourceFile) -> Iterator[None]:
    """A delta file that cannot be read is bad input; a compacted file was written here, and is damaged."""
    try:
        yield
    except Invalid as error:
        if isinstance(source, CompactedSource):
            raise Corrupt(str(error)) from error
        raise


class _FileCutter:
    """Writes tables one after the other into files of at most `rows_per_compacted_file` rows."""

    def __init__(self, plan: RoundPlan, first_file_number: int, dictionary_columns: Sequence[str] | None) -> None:
        self.files: list[DataFile] = []
        self._plan = plan
        self._file_number = first_file_number
        self._dictionary_columns = dictionary_columns
        self._writer: TabularWriter | None = None
        self._room = 0

    def __enter__(self) -> _FileCutter:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._writer is not None and error is not None:
            self._writer.abort()
        elif self._writer is not None:
            self._finish_file(self._writer)

    def write(self, table: pa.Table) -> None:
        start = 0
        while start < table.num_rows:
            if self._writer is None:
                self._writer = self._open_file()
            taken = min(self._room, table.num_rows - start)
            self._writer.write(table.slice(start, taken))
            self._room -= taken
            start += taken
            if not self._room:
                self._finish_file(self._writer)

    def _path(self) -> str:
        output = self._plan.output
        return CompactedFilePath(
            output.index.stream,
            output.compacted_stream_version,
            self._plan.commit_id,
            self._file_number,
            output.content_type,
        ).key

    def _open_file(self) -> TabularWriter:
        output = self._plan.output
        self._room = output.rows_per_compacted_file
        uri = f"{self._plan.location.root_uri}/{self._path()}"
        location, columns = self._plan.location, self._dictionary_columns
        return TabularWriter.open(location, uri, output.content_type, output.schema, columns)

    def _finish_file(self, writer: TabularWriter) -> None:
        measure: FileMeasure = writer.close()
        self.files.append(
            DataFile(
                file_number=self._file_number,
                path=self._path(),
                content_type=self._plan.output.content_type,
                rows=measure.rows,
                size_bytes=measure.size_bytes,
                columns=dict(measure.columns),
            )
        )
        self._writer = None
        self._file_number += 1
