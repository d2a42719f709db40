"""The materialize step (the paper): reads source files and writes their surviving rows into compacted files."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.index.deletion_vectors import read_dead_rows, write_dead_rows
from compactor.index.keys import DeletionVectorPath
from compactor.model.arrow_types import value_type
from compactor.model.errors import Corrupt, Invalid
from compactor.model.files import DataFile, DeletionVector
from compactor.model.names import ContentType
from compactor.planning.round_plan import CompactedSource, SourceFile
from compactor.planning.task_memory import AHEAD, DECODED_MEMORY_SHARE
from compactor.schemas.cast import conform
from compactor.steps.index_update import BucketForWriter, RowsOfFiles
from compactor.steps.output_files import FileCutter, Finishing, OutputTarget, WriteStep
from compactor.steps.placement import MaterializeTask
from compactor.tabular import (
    TabularFile,
    check_row_count,
    dictionary_columns_of,
    each_begun,
    read_batches_around,
    read_parquet_with_dictionaries,
    read_table,
    written_here,
)
from compactor.tabular.parquet_pages.arrow_files import SMALL_FILE_BYTES
from compactor.tabular.parquet_pages.row_groups import ParquetRows, RowGroup, open_rows, with_constants
from compactor.tabular.sinks import PIECE_BYTES_MAX, PIECE_ROWS_MAX
from compactor.task_progress import RowCounter

SOURCES_AHEAD = 4
"""Sources on an object store that are asked for before they are read, as far as there is room."""

_ROWS_PER_TAKE = 1_000_000
_DECODED_BYTES_PER_BYTE = 16
"""The most decoded bytes per stored byte. A file that might exceed the memory is measured while it is read."""

_NUMBERS_BYTES = 32
"""Bytes of the numbers of a row that is taken from a column, in the source and in the row group."""

ROW_GROUP_BYTES_MIN = 4 * 1024 * 1024
"""The least stored bytes of a source's surviving rows for a row group of their own; fewer are collected and encoded by
Arrow. Otherwise thousands of small deltas would become a file of thousands of row groups. Of tables with more than
`ROW_GROUP_COLUMNS` columns it grows with their number, since small column chunks are faster through Arrow."""

ROW_GROUP_COLUMNS = 256


def materialize(
    step: WriteStep, tasks: Sequence[MaterializeTask], bucket_outputs: Sequence[BucketForWriter], task_attempt: str
) -> Iterator[tuple[DataFile, ...]]:
    """Materialize tasks, one after the other: yields the files of each.

    The files of one task are fsynced while the next one writes.
    """
    by_bucket = sorted(bucket_outputs, key=lambda each: each.hash_bucket)
    with Finishing(step.location, step.task_memory_bytes) as finishing:
        target = OutputTarget(step, task_attempt, finishing, RowCounter(step.progress))
        sources = [source.file for task in tasks for source in task.sources]
        ahead = each_begun(step.location, sources, None, SOURCES_AHEAD, AHEAD.of(step.task_memory_bytes))
        written = [
            _write(
                target,
                ahead,
                task,
                [each.rows[task.number] for each in by_bucket if task.number in each.rows],
                is_last=task is tasks[-1],
            )
            for task in tasks
        ]
        for task, unfinished in zip(tasks, written, strict=True):
            files = tuple(file.result() for file in unfinished)
            rows = sum(file.rows for file in files)
            if rows != task.rows:
                raise Corrupt(f"materialize task {task.number} wrote {rows} rows, but {task.rows} rows survive")
            yield files


def _write(
    target: OutputTarget,
    ahead: Iterator[TabularFile],
    task: MaterializeTask,
    rows_of_buckets: Sequence[RowsOfFiles],
    *,
    is_last: bool,
) -> Sequence[Future[DataFile]]:
    """Writes the rows of one task's sources, ordered by source file, part, dedupe task, in files of bounded rows."""
    step = target.step
    rows_by_source = _row_indices_by_source(rows_of_buckets)
    copies_row_groups = any(_is_large(step, source, len(rows_by_source[source.ordinal])) for source in task.sources)
    table, dictionary_columns = _only_source(step, task.sources, is_decoded=not copies_row_groups)
    with FileCutter(target, task.first_file_number, dictionary_columns, copies_row_groups, is_last) as cutter:
        for source in task.sources:
            next(ahead)
            row_indices = rows_by_source[source.ordinal]
            if table is not None:
                for rows in _in_order(step, source, table, row_indices):
                    cutter.write(rows)
            elif not _copy_row_groups(step, source, row_indices, cutter):
                for rows in _surviving_rows(target, source, row_indices):
                    cutter.write(rows)
    return cutter.files


def _row_indices_by_source(rows_of_buckets: Sequence[RowsOfFiles]) -> dict[int, npt.NDArray[np.int64]]:
    """The rows of each source file, by ordinal, in the order (part, hash bucket)."""
    pieces: dict[tuple[int, int], list[npt.NDArray[np.int64]]] = defaultdict(list)
    for rows in rows_of_buckets:
        ends = np.cumsum(rows.row_counts)
        for ordinal, part, start, end in zip(rows.ordinals, rows.parts, ends - rows.row_counts, ends, strict=True):
            pieces[int(ordinal), int(part)].append(rows.row_indices[start:end])
    by_source: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
    for ordinal, part in sorted(pieces):
        by_source[ordinal] += pieces[ordinal, part]
    return {ordinal: np.concatenate(parts) for ordinal, parts in by_source.items()}


def _copy_row_groups(
    step: WriteStep, source: SourceFile, row_indices: npt.NDArray[np.int64], cutter: FileCutter
) -> bool:
    """Writes a source's rows as row groups without decoding them; False: that is impossible, and nothing is written."""
    if not _is_large(step, source, len(row_indices)):
        return False
    with ExitStack() as opened:
        with _reading(source):
            rows = opened.enter_context(open_rows(step.location, source.file, _schemas(step), _bounds(row_indices)))
        if rows is None or rows.row_count != source.rows:
            return False
        constants = _constants(step) if rows.schema is step.output.schema else {}
        if _pass_on_row_groups(step, source, rows, row_indices, cutter):
            return True
        groups = _row_groups(step, cutter.room, row_indices, rows.bytes_per_row)
        for group, indices in zip(_read_row_groups(step, source, rows, groups), groups, strict=False):
            if group is None:
                return False
            cutter.write_row_group(with_constants(group, constants), source, indices)
    return True


def _pass_on_row_groups(
    step: WriteStep, source: SourceFile, rows: ParquetRows, row_indices: npt.NDArray[np.int64], cutter: FileCutter
) -> bool:
    """Writes whole row groups as the bytes that they are; False, and nothing is written: the rows are others or in
    another order, the groups are small, or do not fit the memory or the file that is being written."""
    groups = rows.whole_groups(row_indices)
    is_large = len(groups) * ROW_GROUP_BYTES_MIN <= source.size_bytes * len(row_indices) / max(source.rows, 1)
    rows_max = max((len(rows.rows_of_group(group)) for group in groups), default=0)
    fits = rows_max * rows.bytes_per_row <= _decoded_bytes_max(step)  # their bytes are held as they are
    if not groups or not is_large or not fits or len(row_indices) > cutter.room:
        return False
    constants = _constants(step) if rows.schema is step.output.schema else {}
    for group in groups:
        with _reading(source):
            row_group = rows.pass_on(group)
        cutter.write_row_group(with_constants(row_group, constants), source, rows.rows_of_group(group))
    return True


def _schemas(step: WriteStep) -> tuple[pa.Schema, ...]:
    """Of files whose row groups can be passed on: those of the output, and for open files the ones that lack only the
    partition's values. No column may be checked then, since nothing is decoded."""
    output = step.output
    if output.open_partition is None:
        return (output.schema,)
    are_checked = any(output.schema.get_field_index(key) >= 0 for key, _ in output.open_partition)
    return (output.file_schema,) if are_checked else (output.schema, output.file_schema)


def _constants(step: WriteStep) -> dict[str, str]:
    return dict(step.output.open_partition or ())


def _conformed(step: WriteStep, source: SourceFile, table: pa.Table) -> pa.Table:
    """The rows in the schema of the output. Columns with the partition's values, which open files have in addition, are
    dropped; if the output is open files, also columns of type null. Raises `Invalid`, with the file, if a value does
    not fit."""
    left_out = {key for key, _ in step.output.index.stream.partition}
    if step.output.open_partition is not None:
        left_out |= {field.name for field in table.schema if pa.types.is_null(value_type(field.type))}
    left_out = left_out.difference(step.output.schema.names).intersection(table.schema.names)
    if left_out:
        table = table.drop_columns(sorted(left_out))
    try:
        return conform(table, step.output.schema)
    except Invalid as error:
        raise Invalid(*(f"{source.file.uri}: {reason}" for reason in error.reasons)) from error


def _row_groups(
    step: WriteStep, room: int, row_indices: npt.NDArray[np.int64], bytes_per_row: int
) -> list[npt.NDArray[np.int64]]:
    """The rows of each row group. Groups are of equal size rather than large ones and a rest, and within one file.

    Args:
        room: rows that fit the file which is being written"""
    groups = []
    start = 0
    while start < len(row_indices):
        left = len(row_indices) - start
        count = max(-(-left // PIECE_ROWS_MAX), -(-left * max(bytes_per_row, _NUMBERS_BYTES) // _piece_bytes(step)))
        rows = min(-(-left // count), room)
        groups.append(row_indices[start : start + rows])
        start += rows
        room = room - rows or step.output.rows_per_compacted_file
    return groups


def _read_row_groups(
    step: WriteStep, source: SourceFile, rows: ParquetRows, groups: Sequence[npt.NDArray[np.int64]]
) -> Iterator[RowGroup | None]:
    """Reads the row groups; None if the file cannot be copied without decoding. If what lies around them does not fit
    the memory, or is more than twice of them, each is read page by page."""
    if rows.decoded_bytes <= _decoded_bytes_max(step) and rows.bounds_are_most:
        for number, group in enumerate(groups, 1):
            with _reading(source):
                row_group = rows.take(group, keep_decoded=number < len(groups))
            yield row_group
        return
    for group in groups:
        with _reading(source):
            row_group = rows.take_some(group)
        yield row_group


def _is_large(step: WriteStep, source: SourceFile, rows: int) -> bool:
    """Whether this many rows of a source suffice for a row group."""
    are_parquet = step.output.content_type is source.file.content_type is ContentType.PARQUET
    least_bytes = ROW_GROUP_BYTES_MIN * max(1, len(step.output.schema) // ROW_GROUP_COLUMNS)
    return step.output.own_parquet_pages and are_parquet and source.size_bytes * rows >= least_bytes * source.rows


def _decoded_bytes_max(step: WriteStep) -> int:
    return int(step.task_memory_bytes * DECODED_MEMORY_SHARE)


def _piece_bytes(step: WriteStep) -> int:
    """Bytes of a row group, which is held in its old and its new form."""
    return max(min(PIECE_BYTES_MAX, _decoded_bytes_max(step) // 2), 1)


def _bounds(row_indices: npt.NDArray[np.int64]) -> tuple[int, int]:
    """The first and the last of some rows."""
    return int(row_indices.min()), int(row_indices.max())


def _surviving_rows(target: OutputTarget, source: SourceFile, row_indices: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    step = target.step
    first_row, table, rows_per_part = _decoded(step, source, _bounds(row_indices))
    if table is None:
        yield from _rows_in_parts(target, source, row_indices, rows_per_part)
        return
    yield from _in_order(step, source, table, row_indices - first_row)


def _in_order(
    step: WriteStep, source: SourceFile, table: pa.Table, row_indices: npt.NDArray[np.int64]
) -> Iterator[pa.Table]:
    """Some rows of a source's decoded rows, in the schema of the output."""
    table = _conformed(step, source, table).combine_chunks()
    in_file_order = len(row_indices) == table.num_rows and bool((np.diff(row_indices) == 1).all())
    for start in range(0, len(row_indices), _ROWS_PER_TAKE):
        piece = row_indices[start : start + _ROWS_PER_TAKE]
        yield table.slice(start, len(piece)) if in_file_order else table.take(pa.array(piece))


def _decoded(step: WriteStep, source: SourceFile, bounds: tuple[int, int]) -> tuple[int, pa.Table | None, int]:
    """What lies around the rows of `bounds`, and its first row; or None, and how many of its rows fit the memory."""
    room = _decoded_bytes_max(step)
    is_most = 2 * (bounds[1] + 1 - bounds[0]) > source.rows or source.size_bytes < SMALL_FILE_BYTES
    with _reading(source):
        if _fits_decoded(step, source) and is_most:
            table = read_table(step.location, source.file, schema=step.output.schema)
            check_row_count(source.file.uri, table.num_rows, source.rows)
            return 0, table, 0
        batches: list[pa.RecordBatch] = []
        first_row = rows = size = 0
        for row, batch in _batches_around(step, source, bounds):
            first_row = first_row if batches else row
            batches.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if size > room:
                # Half of the memory is for the rows as they were read, half for them in order.
                return 0, None, max(rows * room // (2 * size), 1)
        return first_row, pa.Table.from_batches(batches), 0


def _batches_around(
    step: WriteStep, source: SourceFile, bounds: tuple[int, int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    return read_batches_around(step.location, source.file, source.rows, bounds, step.output.schema)


def _rows_in_parts(
    target: OutputTarget, source: SourceFile, row_indices: npt.NDArray[np.int64], rows_per_part: int
) -> Iterator[pa.Table]:
    """The rows of a file that does not fit the memory: for every part of them, what lies around them is read."""
    step = target.step
    for start in range(0, len(row_indices), rows_per_part):
        part = row_indices[start : start + rows_per_part]
        order = np.argsort(part, kind="stable")
        ascending = part[order]
        found = []
        with _reading(source):
            for first_row, batch in _batches_around(step, source, _bounds(ascending)):
                here = slice(*np.searchsorted(ascending, [first_row, first_row + batch.num_rows]))
                found.append(pa.Table.from_batches([batch]).take(pa.array(ascending[here] - first_row)))
                target.done.add(batch.num_rows)
        unsorted = np.empty(len(order), np.int64)
        unsorted[order] = np.arange(len(order))
        yield _conformed(step, source, pa.concat_tables(found)).combine_chunks().take(pa.array(unsorted))


def _only_source(
    step: WriteStep, sources: Sequence[SourceFile], *, is_decoded: bool
) -> tuple[pa.Table | None, tuple[str, ...] | None]:
    """The rows of a task's only source, if it is small and `is_decoded`: then it is opened once for them and for what
    follows; else None. The Parquet columns that get dictionaries: those that have one in the largest source, if that is
    Parquet."""
    largest = max(sources, key=lambda source: source.size_bytes)
    if step.output.content_type is not ContentType.PARQUET or largest.file.content_type is not ContentType.PARQUET:
        return None, None
    is_small = largest.size_bytes < SMALL_FILE_BYTES and _fits_decoded(step, largest)
    with _reading(largest):
        if len(sources) > 1 or not is_small or not is_decoded:
            return None, dictionary_columns_of(step.location, largest.file)
        table, dictionary_columns = read_parquet_with_dictionaries(step.location, largest.file)
        check_row_count(largest.file.uri, table.num_rows, largest.rows)
        return table, dictionary_columns


def _fits_decoded(step: WriteStep, source: SourceFile) -> bool:
    return source.size_bytes * _DECODED_BYTES_PER_BYTE <= _decoded_bytes_max(step)


def _reading(source: SourceFile) -> AbstractContextManager[None]:
    """A delta file that cannot be read is bad input; a compacted file was written by Lithify, so it is damaged."""
    return written_here() if isinstance(source, CompactedSource) else nullcontext()


_VECTORS_AT_ONCE = 8
"""Vectors that are written side by side: writing a small one is mostly waiting for the disk or the store."""


def mark_dead(
    step: WriteStep, marked: Sequence[CompactedSource], bucket_outputs: Sequence[BucketForWriter], task_attempt: str
) -> Iterator[DeletionVector]:
    """One vector per file: rows that were dead before the round, and rows that died in it."""
    if not marked:
        return
    died = [[each.died[file.ordinal] for each in bucket_outputs if file.ordinal in each.died] for file in marked]
    with ThreadPoolExecutor(_VECTORS_AT_ONCE) as pool:
        yield from pool.map(partial(_write_vector, step, task_attempt), marked, died)


def _write_vector(
    step: WriteStep, task_attempt: str, file: CompactedSource, died: Sequence[npt.NDArray[np.int64]]
) -> DeletionVector:
    dead_before = [] if file.vector is None else [read_dead_rows(step.location, file.vector)]
    path = DeletionVectorPath(step.output.index.stream, step.commit_id, file.file_number, task_attempt)
    return write_dead_rows(step.location, path, np.sort(np.concatenate([*died, *dead_before])))
