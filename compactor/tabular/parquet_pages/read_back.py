"""Reads a written row group with Arrow, and compares its rows with the same rows of their source file.

Arrow decodes both sides, so an error of this package cannot hide. One row group of the source is read, which may be
larger than the memory: one column at a time, in batches.
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.model.arrow_types import stored_values
from compactor.model.errors import Corrupt
from compactor.storage.location import StoreLocation
from compactor.tabular.filesystems import reading, written_here
from compactor.tabular.formats import Source, TabularFile
from compactor.tabular.parquet_pages.arrow_files import map_file, release_mapped

_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_ROWS_MIN = 256


def check_row_group(
    location: StoreLocation,
    written: TabularFile,
    row_group: int,
    source: TabularFile,
    row_indices: npt.NDArray[np.int64],
) -> None:
    """Compares those rows of a written row group that come from one row group of their source, and all checksums.

    `row_indices`: for each row of the row group its row in the source. Raises `Corrupt` if a value differs, or if Arrow
    cannot read the written file."""
    with _opened(location, source) as (theirs, mapped), _opened(location, written) as (ours, _):
        if ours.metadata.row_group(row_group).num_rows != len(row_indices):
            raise Corrupt(f"row group {row_group} of {written.uri} does not have {len(row_indices)} rows")
        if not len(row_indices):
            return
        number, first = _row_group_with(theirs.metadata, int(row_indices[len(row_indices) // 2]))
        last = first + theirs.metadata.row_group(number).num_rows
        compared_rows = np.flatnonzero((row_indices >= first) & (row_indices < last))
        rows = _ComparedRows.of(row_indices[compared_rows] - first, compared_rows)
        # Columns that the source lacks are constant, and Arrow wrote them.
        present = set(theirs.schema_arrow.names)
        for name in (each for each in ours.schema_arrow.names if each in present):
            with written_here(), reading(written.uri, written.content_type):
                found = ours.read_row_group(row_group, [name], use_threads=False).column(name).combine_chunks()
            with reading(source.uri, source.content_type):
                are_same = _are_same(_batches(theirs, mapped, number, name), found, rows)
            if not are_same:
                column = f"column {name!r} of row group {row_group} of {written.uri}"
                raise Corrupt(
                    f"{column} does not hold the values of {source.uri}: "
                    "nothing is committed; own_parquet_pages=False leaves all pages to Arrow"
                )


@dataclass(frozen=True)
class _ComparedRows:
    """Rows of the source's row group, ascending, and where each of them is in the written row group."""

    expected: npt.NDArray[np.int64]
    found: npt.NDArray[np.int64]

    @classmethod
    def of(cls, expected: npt.NDArray[np.int64], found: npt.NDArray[np.int64]) -> Self:
        order = np.argsort(expected, kind="stable")
        return cls(expected[order], found[order])


def _batches(parquet: pq.ParquetFile, mapped: mmap.mmap | None, row_group: int, name: str) -> Iterator[pa.Array]:
    """A column of a row group, in pieces of bounded memory; of a remote file, beside the stored bytes."""
    group = parquet.metadata.row_group(row_group)
    rows = max(_BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1), _BATCH_ROWS_MIN)
    for batch in parquet.iter_batches(int(rows), [row_group], [name], use_threads=False):
        yield batch.column(0)
        release_mapped(mapped)


@contextmanager
def _opened(location: StoreLocation, file: TabularFile) -> Iterator[tuple[pq.ParquetFile, mmap.mmap | None]]:
    source = Source.of(location, file)
    with reading(file.uri, file.content_type):
        mapped = None if source.is_remote else map_file(source.checked_path())
        opened = source.open() if mapped is None else pa.BufferReader(mapped)
        parquet = pq.ParquetFile(opened, page_checksum_verification=True)
    with opened, parquet:
        yield parquet, mapped


def _row_group_with(metadata: pq.FileMetaData, row_index: int) -> tuple[int, int]:
    """The row group that a row of the file lies in, and its first row."""
    first = number = 0
    while row_index >= first + metadata.row_group(number).num_rows:
        first += metadata.row_group(number).num_rows
        number += 1
    return number, first


def _are_same(expected: Iterator[pa.Array], found: pa.Array, rows: _ComparedRows) -> bool:
    start = 0
    for batch in expected:
        some = slice(*np.searchsorted(rows.expected, [start, start + len(batch)]))
        one, other = _taken(batch, rows.expected[some] - start), _taken(found, rows.found[some])
        if one.type != other.type or not one.equals(other):
            return False
        start += len(batch)
    return True


def _taken(array: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Values as bits, so that NaN equals NaN, and -0.0 differs from 0.0."""
    if len(rows) < len(array) or (len(rows) > 1 and not bool((np.diff(rows) == 1).all())):
        array = array.take(pa.array(rows))
    array = stored_values(array)
    return array.view(f"int{array.type.bit_width}") if pa.types.is_floating(array.type) else array
