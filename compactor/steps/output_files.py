"""Writes rows to compacted files of a bounded number of rows."""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.catalog.delta_files import data_file
from compactor.catalog.keys import CompactedFilePath, OpenFilePath, StreamFolder, partition_hash
from compactor.model.background import soon
from compactor.model.clock import Clock
from compactor.model.errors import Invalid
from compactor.model.files import DataFile
from compactor.model.names import render_partition
from compactor.planning.round_plan import CompactedSource, RoundOutput, RoundPlan, SourceFile
from compactor.planning.task_memory import AHEAD, PIECE_MEMORY_SHARE
from compactor.storage.location import StoreLocation
from compactor.tabular import FileMeasure, TabularFile, TabularWriter, check_written, written_here
from compactor.tabular.parquet_pages.read_back import check_row_group
from compactor.tabular.parquet_pages.row_groups import RowGroup
from compactor.tabular.sinks import PIECE_BYTES_MAX
from compactor.task_progress import ProgressAddress, RowCounter


@dataclass(frozen=True)
class WriteStep:
    """The arguments that all writers of a round share."""

    location: StoreLocation
    commit_id: str
    output: RoundOutput
    task_memory_bytes: int
    progress: ProgressAddress | None

    @classmethod
    def of(cls, plan: RoundPlan) -> Self:
        return cls(plan.location, plan.commit_id, plan.output, plan.task_memory_bytes, plan.progress)


UNFINISHED_FILES_MAX = 4
_BYTES_PER_UNFINISHED_FILE = 16 * 1024 * 1024
"""A file that is being uploaded holds its last parts of 8 MiB; tasks of 256 MiB finish one at a time."""


class Finishing:
    """Fsyncs files of a task, or finishes their uploads, while the next ones are written. A context manager.

    On this machine one file at a time, and before a further one the task waits for it: otherwise unsynced files would
    pile up on a slow disk. To a store several at a time, because each waits for answers; their number is bounded by the
    memory that each holds until its upload is finished.
    """

    def __init__(self, location: StoreLocation, task_memory_bytes: int) -> None:
        by_memory = AHEAD.of(task_memory_bytes) // _BYTES_PER_UNFINISHED_FILE
        self._at_once = min(max(by_memory, 1), UNFINISHED_FILES_MAX) if location.is_remote else 1
        self._is_remote = location.is_remote
        self._under_way: deque[Future[DataFile]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        wait(self._under_way)

    def submit(self, finish: Callable[[], DataFile], *, is_last: bool) -> Future[DataFile]:
        """`is_last`: of all files; on this machine the task fsyncs it itself, since nothing is written meanwhile."""
        while len(self._under_way) >= self._at_once:
            self._under_way.popleft().result()
        if is_last and not self._is_remote:
            finished: Future[DataFile] = Future()
            finished.set_result(finish())
            return finished
        self._under_way.append(soon(finish))
        return self._under_way[-1]


@dataclass(frozen=True)
class OutputTarget:
    """The output of a task's attempt. `finishing`: fsyncs or uploads its files; `done`: counts its rows."""

    step: WriteStep
    task_attempt: str
    finishing: Finishing
    done: RowCounter

    def path(self, file_number: int) -> str:
        output, commit_id = self.step.output, self.step.commit_id
        if output.open_partition is not None:
            hashed = partition_hash(dict(output.open_partition))
            return OpenFilePath(output.index.stream.table_id, hashed, commit_id, file_number, self.task_attempt).key
        stream, version, content_type = output.index.stream, output.compacted_stream_version, output.content_type
        return CompactedFilePath(stream, version, commit_id, file_number, content_type, self.task_attempt).key

    def uri(self, path: str) -> str:
        return f"{self.step.location.root_uri}/{path}"


@dataclass(frozen=True)
class _Check:
    """A row group to be read back, and the source of its rows."""

    row_group: int
    source: SourceFile
    row_indices: npt.NDArray[np.int64]


class FileCutter:
    """Writes tables one after the other into files of at most `rows_per_compacted_file` rows.

    Attributes:
        files: the written files; the last one may be unfinished"""

    def __init__(
        self,
        target: OutputTarget,
        first_file_number: int,
        dictionary_columns: Sequence[str] | None,
        takes_row_groups: bool,
        is_last: bool = False,
    ) -> None:
        """`is_last`: no other cutter of this target comes after it."""
        self.files: list[Future[DataFile]] = []
        self._target = target
        self._step = target.step
        self._file_number = first_file_number
        self._dictionary_columns = dictionary_columns
        self._takes_row_groups = takes_row_groups
        self._is_last = is_last
        self._writer: TabularWriter | None = None
        self._room = 0
        self._checks: list[_Check] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._writer is not None and error is not None:
            self._writer.abort()
        elif self._writer is not None:
            self._finish_file(self._writer, is_last=self._is_last)

    @property
    def room(self) -> int:
        """Rows that still fit the open file, or a new file if it is full."""
        return self._room if self._writer is not None else self._step.output.rows_per_compacted_file

    def write(self, table: pa.Table) -> None:
        table = self._with_partition(table)
        start = 0
        while start < table.num_rows:
            taken = min(self.room, table.num_rows - start)
            self._file().write(table.slice(start, taken))
            self._fill(taken)
            start += taken

    def write_row_group(self, group: RowGroup, source: SourceFile, row_indices: npt.NDArray[np.int64]) -> None:
        """Writes the rows of `source` at `row_indices`, at most `room` of them."""
        number = self._file().write_row_group(group)
        if self._is_sampled(number):
            self._checks.append(_Check(number, source, row_indices))
        self._fill(group.rows)

    def _with_partition(self, table: pa.Table) -> pa.Table:
        """Rows of an open file end with the partition's values."""
        for key, value in self._step.output.open_partition or ():
            if table.schema.get_field_index(key) >= 0:
                _check_values(table, key, value, self._step.output.index.stream)
                table = table.drop_columns([key])
            table = table.append_column(pa.field(key, pa.string()), pa.repeat(pa.scalar(value), table.num_rows))
        return table

    def _file(self) -> TabularWriter:
        if self._writer is None:
            self._writer = self._open_file()
        return self._writer

    def _fill(self, rows: int) -> None:
        self._target.done.add(rows)
        self._room -= rows
        if self._writer is not None and not self._room:
            self._finish_file(self._writer)

    def _open_file(self) -> TabularWriter:
        output = self._step.output
        self._room = output.rows_per_compacted_file
        uri = self._target.uri(self._target.path(self._file_number))
        location, columns = self._step.location, self._dictionary_columns
        if columns is not None:
            columns = (*columns, *(key for key, _ in output.open_partition or ()))
        schema, takes_row_groups = output.file_schema, self._takes_row_groups
        room = min(PIECE_BYTES_MAX, max(int(PIECE_MEMORY_SHARE * self._step.task_memory_bytes), 1))
        return TabularWriter.open(
            location, uri, output.content_type, schema, columns, takes_row_groups, piece_bytes_max=room
        )

    def _is_sampled(self, row_group: int) -> bool:
        """Whether a row group is read back. It follows from its name, so that a retried task reads the same ones."""
        return sample_number(self._step.commit_id, self._file_number, row_group) < self._step.output.page_check_share

    def _finish_file(self, writer: TabularWriter, *, is_last: bool = False) -> None:
        checks, self._checks = self._checks, []
        finish = partial(_finished, self._target, self._file_number, writer, checks)
        try:
            self.files.append(self._target.finishing.submit(finish, is_last=is_last))
        except BaseException:  # another file could not be finished: no upload of this one may stay
            writer.abort()
            raise
        self._writer = None
        self._file_number += 1


def sample_number(commit_id: str, file_number: int, row_group: int) -> float:
    """From 0 to below 1. Not a CRC: it is linear, and would sample similar names together or not at all."""
    name = f"{commit_id}/{file_number}/{row_group}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


def _check_values(table: pa.Table, key: str, value: str, stream: StreamFolder) -> None:
    """A column with the name of a partition key must hold the partition's value in every row."""
    column = table.column(key)
    differs = pc.fill_null(pc.not_equal(column, pa.scalar(value, column.type)), True)
    if pc.any(differs).as_py():
        other = column.filter(differs)[0].as_py()
        raise Invalid(
            f"column {key!r} holds {other!r} in a row of partition {render_partition(dict(stream.partition))} of "
            f"{stream.table_id}, which is published: other engines read the partition's value there; rename the column"
        )


def _finished(target: OutputTarget, file_number: int, writer: TabularWriter, checks: Sequence[_Check]) -> DataFile:
    measure: FileMeasure = writer.close()
    path = target.path(file_number)
    written = TabularFile(target.uri(path), target.step.output.content_type, measure.size_bytes)
    check_written(target.step.location, written, writer.footer)  # else nothing is committed
    for check in checks:
        with written_here() if isinstance(check.source, CompactedSource) else nullcontext():
            check_row_group(target.step.location, written, check.row_group, check.source.file, check.row_indices)
    output = target.step.output
    return data_file(file_number, path, output.content_type, measure, output.private_columns)


TASK_ATTEMPT_DIGITS = 16


def new_task_attempt(clock: Clock) -> str:
    """A new name for this attempt of a task: hexadecimal digits. Call it where the task runs, not where it is planned.

    Spark runs a task again when it has lost contact with the first attempt, and with speculation when that is slow:
    both may write at the same time. Under names of its own, none replaces or deletes the files of another.
    """
    return clock.new_id()[:TASK_ATTEMPT_DIGITS]
