"""Reads a written row group with Arrow, and compares its rows with the same rows of their source file.

Arrow decodes both sides, so an error of this package cannot hide. One row group of the source is read, and one column
of both files at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.model.arrow_types import stored_values
from compactor.model.errors import Corrupt
from compactor.storage.location import StoreLocation
from compactor.tabular.filesystems import reading, written_here
from compactor.tabular.formats import Source, TabularFile


def check_row_group(
    location: StoreLocation,
    written: TabularFile,
    row_group: int,
    source: TabularFile,
    row_indices: npt.NDArray[np.int64],
) -> None:
    """Compares those rows of a written row group that come from one row group of their source, and all checksums.

    row_indices  for each row of the row group its row in the source
    Raises `Corrupt` if a value differs, or if Arrow cannot read the written file.
    """
    with _opened(location, source) as theirs, _opened(location, written) as ours:
        if ours.metadata.row_group(row_group).num_rows != len(row_indices):
            raise Corrupt(f"row group {row_group} of {written.uri} does not have {len(row_indices)} rows")
        if not len(row_indices):
            return
        number, first = _row_group_with(theirs.metadata, int(row_indices[len(row_indices) // 2]))
        last = first + theirs.metadata.row_group(number).num_rows
        compared_rows = np.flatnonzero((row_indices >= first) & (row_indices < last))
        # Columns that the source lacks are constant, and Arrow wrote them.
        for name in (each for each in ours.schema_arrow.names if each in theirs.schema_arrow.names):
            with reading(source.uri, source.content_type):
                expected = theirs.read_row_group(number, [name], use_threads=False).column(name)
            with written_here(), reading(written.uri, written.content_type):
                found = ours.read_row_group(row_group, [name], use_threads=False).column(name)
            if not _are_same(expected, row_indices[compared_rows] - first, found, compared_rows):
                column = f"column {name!r} of row group {row_group} of {written.uri}"
                raise Corrupt(
                    f"{column} does not hold the values of {source.uri}: "
                    "nothing is committed; own_parquet_pages=False leaves all pages to Arrow"
                )


@contextmanager
def _opened(location: StoreLocation, file: TabularFile) -> Iterator[pq.ParquetFile]:
    with reading(file.uri, file.content_type):
        opened = Source.of(location, file).open()
        parquet = pq.ParquetFile(opened, page_checksum_verification=True)
    with opened, parquet:
        yield parquet


def _row_group_with(metadata: pq.FileMetaData, row_index: int) -> tuple[int, int]:
    """The row group that a row of the file lies in, and its first row."""
    first = number = 0
    while row_index >= first + metadata.row_group(number).num_rows:
        first += metadata.row_group(number).num_rows
        number += 1
    return number, first


def _are_same(
    expected: pa.ChunkedArray,
    expected_rows: npt.NDArray[np.int64],
    found: pa.ChunkedArray,
    found_rows: npt.NDArray[np.int64],
) -> bool:
    one, other = _taken(expected, expected_rows), _taken(found, found_rows)
    return bool(one.type == other.type and one.equals(other))


def _taken(column: pa.ChunkedArray, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Values as bits, so that NaN equals NaN, and -0.0 differs from 0.0."""
    array = column.combine_chunks()
    if len(rows) < len(array) or (len(rows) > 1 and not bool((np.diff(rows) == 1).all())):
        array = array.take(pa.array(rows))
    array = stored_values(array)
    return array.view(f"int{array.type.bit_width}") if pa.types.is_floating(array.type) else array
