"""The materialize step (seed 000): reads source files and writes their surviving rows into compacted files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.actions import DataFile
from compactor.catalog.paths import CompactedFilePath
from compactor.errors import Corrupt
from compactor.names import ContentType
from compactor.planning import CompactedSource, RoundPlan, SourceFile
from compactor.schemas import conform
from compactor.steps.finish import RowsOfFiles
from compactor.steps.layout import MaterializeLayout
from compactor.steps.memory import peak_memory_bytes
from compactor.tabular import (
    FileMeasure,
    RowGroup,
    TabularWriter,
    dictionary_columns_of,
    open_rows,
    read_table,
    written_here,
)
from compactor.tabular.writer import PIECE_BYTES_MAX, PIECE_ROWS_MAX

_ROWS_PER_TAKE = 1_000_000

ROW_GROUP_BYTES_MIN = 4 * 1024 * 1024
"""At rest, of the rows that a source keeps, for them to be a row group of their own; fewer are gathered, and encoded by
Arrow. Otherwise thousands of small deltas would become a file of thousands of row groups."""


@dataclass(frozen=True)
class MaterializedFiles:
    """What one materialize task wrote."""

    files: tuple[DataFile, ...]
    peak_memory_bytes: int


def materialize(
    plan: RoundPlan, layout: MaterializeLayout, blocks_of_tasks: Mapping[int, Sequence[RowsOfFiles]]
) -> Iterator[MaterializedFiles]:
    """Materialize tasks, one after the other. What one wrote is brought to the disk while the next one writes."""
    with ThreadPoolExecutor(1) as finishing:
        written = [_write(plan, layout, task, blocks_of_tasks[task], finishing) for task in sorted(blocks_of_tasks)]
        for task, unfinished in zip(sorted(blocks_of_tasks), written, strict=True):
            files = tuple(file.result() for file in unfinished)
            rows, due = sum(file.rows for file in files), layout.rows_of_tasks[task]
            if rows != due:
                raise Corrupt(f"materialize task {task} wrote {rows} rows, but {due} rows survive")
            yield MaterializedFiles(files, peak_memory_bytes())


def _write(
    plan: RoundPlan, layout: MaterializeLayout, task: int, blocks: Sequence[RowsOfFiles], finishing: ThreadPoolExecutor
) -> Sequence[Future[DataFile]]:
    """One task's sources' rows, in the order (source file, dedupe task), in files of bounded rows."""
    wanted = _row_indices_by_source(blocks)
    sources = [file for file in plan.sources if file.ordinal in wanted]
    dictionary_columns = _dictionary_columns(plan, sources)
    passes_on = any(_is_large(plan, source, len(wanted[source.ordinal])) for source in sources)
    with _FileCutter(plan, int(layout.first_file_numbers[task]), dictionary_columns, passes_on, finishing) as cutter:
        for source in sources:
            if not _pass_on(plan, source, wanted[source.ordinal], cutter):
                for rows in _surviving_rows(plan, source, wanted[source.ordinal]):
                    cutter.write(rows)
    return cutter.files


def _row_indices_by_source(blocks: Sequence[RowsOfFiles]) -> dict[int, npt.NDArray[np.int64]]:
    pieces: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
    for block in sorted(blocks, key=lambda block: block.hash_bucket):
        ends = np.cumsum(block.row_counts)
        for ordinal, start, end in zip(block.ordinals, ends - block.row_counts, ends, strict=True):
            pieces[int(ordinal)].append(block.row_indices[start:end])
    return {ordinal: np.concatenate(parts) for ordinal, parts in pieces.items()}


def _pass_on(plan: RoundPlan, source: SourceFile, row_indices: npt.NDArray[np.int64], cutter: _FileCutter) -> bool:
    """Writes a source's rows as row groups without decoding them; False: they cannot be, and nothing is written."""
    if not _is_large(plan, source, len(row_indices)):
        return False
    with ExitStack() as opened:
        with _reading(source):
            rows = opened.enter_context(open_rows(plan.location, source.file, plan.output.schema))
        if rows is None or rows.row_count != source.rows:
            return False
        start = 0
        while start < len(row_indices):
            left = len(row_indices) - start
            # Row groups of one size, rather than large ones and a rest.
            groups = max(-(-left // PIECE_ROWS_MAX), -(-left * rows.bytes_per_row // PIECE_BYTES_MAX))
            count = min(-(-left // groups), cutter.room)
            with _reading(source):
                group = rows.take(row_indices[start : start + count], again=count < left)
            if group is None:
                return False
            cutter.write_row_group(group)
            start += count
    return True


def _is_large(plan: RoundPlan, source: SourceFile, rows: int) -> bool:
    """Whether so many rows of a source are enough for a row group."""
    are_parquet = plan.output.content_type is source.file.content_type is ContentType.PARQUET
    return are_parquet and source.size_bytes * rows >= ROW_GROUP_BYTES_MIN * source.rows


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


def _reading(source: SourceFile) -> AbstractContextManager[None]:
    """A delta file that cannot be read is bad input; a compacted file was written here, and is damaged."""
    return written_here() if isinstance(source, CompactedSource) else nullcontext()


class _FileCutter:
    """Writes tables one after the other into files of at most `rows_per_compacted_file` rows.

    files  what was written; the last of them is perhaps not finished yet
    """

    def __init__(
        self,
        plan: RoundPlan,
        first_file_number: int,
        dictionary_columns: Sequence[str] | None,
        takes_row_groups: bool,
        finishing: ThreadPoolExecutor,
    ) -> None:
        self.files: list[Future[DataFile]] = []
        self._finishing = finishing
        self._plan = plan
        self._file_number = first_file_number
        self._dictionary_columns = dictionary_columns
        self._takes_row_groups = takes_row_groups
        self._writer: TabularWriter | None = None
        self._room = 0

    def __enter__(self) -> _FileCutter:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._writer is not None and error is not None:
            self._writer.abort()
        elif self._writer is not None:
            self._finish_file(self._writer)

    @property
    def room(self) -> int:
        """Rows that the file still takes; of a full one there is no such file."""
        return self._room if self._writer is not None else self._plan.output.rows_per_compacted_file

    def write(self, table: pa.Table) -> None:
        start = 0
        while start < table.num_rows:
            taken = min(self.room, table.num_rows - start)
            self._file().write(table.slice(start, taken))
            self._fill(taken)
            start += taken

    def write_row_group(self, group: RowGroup) -> None:
        """Not more rows than there is room for."""
        self._file().write_row_group(group)
        self._fill(group.rows)

    def _file(self) -> TabularWriter:
        if self._writer is None:
            self._writer = self._open_file()
        return self._writer

    def _fill(self, rows: int) -> None:
        self._room -= rows
        if self._writer is not None and not self._room:
            self._finish_file(self._writer)

    def _open_file(self) -> TabularWriter:
        output = self._plan.output
        self._room = output.rows_per_compacted_file
        uri = f"{self._plan.location.root_uri}/{_path(self._plan, self._file_number)}"
        location, columns = self._plan.location, self._dictionary_columns
        return TabularWriter.open(location, uri, output.content_type, output.schema, columns, self._takes_row_groups)

    def _finish_file(self, writer: TabularWriter) -> None:
        if self.files:
            # One at a time: a disk that is slower than we are must not be left behind.
            self.files[-1].result()
        self.files.append(self._finishing.submit(_finished, self._plan, self._file_number, writer))
        self._writer = None
        self._file_number += 1


def _finished(plan: RoundPlan, file_number: int, writer: TabularWriter) -> DataFile:
    measure: FileMeasure = writer.close()
    return DataFile(
        file_number=file_number,
        path=_path(plan, file_number),
        content_type=plan.output.content_type,
        rows=measure.rows,
        size_bytes=measure.size_bytes,
        columns=dict(measure.columns),
    )


def _path(plan: RoundPlan, file_number: int) -> str:
    output = plan.output
    return CompactedFilePath(
        output.index.stream, output.compacted_stream_version, plan.commit_id, file_number, output.content_type
    ).key
