"""Index files that are not what the log says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compactor.index.files import open_bucket
from compactor.index.layout import IndexRows, to_record_batch
from compactor.index.packed_pointers import PointerColumns
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile
from compactor.storage.location import parse_location

ROWS = 301
DIGEST_BYTES, FILE_NUMBER_BYTES, ROW_INDEX_BYTES = 20 * ROWS, 4 * ROWS, 8 * ROWS


@pytest.mark.parametrize("column_bytes", [DIGEST_BYTES, FILE_NUMBER_BYTES, ROW_INDEX_BYTES])
@pytest.mark.parametrize("shorter", [1, 300])
def test_an_index_file_whose_columns_are_too_short_is_damaged(tmp_path: Path, column_bytes: int, shorter: int) -> None:
    file = write_file(tmp_path)
    path = tmp_path / file.path
    whole, stated = path.read_bytes(), struct.pack("<q", column_bytes)
    assert whole.count(stated) == 1
    path.write_bytes(whole.replace(stated, struct.pack("<q", column_bytes - shorter)))
    with pytest.raises(Corrupt, match="cannot be read as primary key index"):
        open_bucket(parse_location(str(tmp_path)), [file])


def test_an_index_file_whose_columns_have_their_length_is_opened(tmp_path: Path) -> None:
    [segment] = open_bucket(parse_location(str(tmp_path)), [write_file(tmp_path)])
    assert len(segment.raw_digests) == len(segment.file_numbers) == len(segment.row_indices) == ROWS


def write_file(folder: Path) -> IndexFile:
    rows = IndexRows(
        np.zeros((ROWS, 5), np.uint32), np.ones(ROWS, np.int32), np.arange(ROWS), np.empty((ROWS, 0), np.uint8)
    )
    batch = to_record_batch(rows, PointerColumns.of(rows.file_numbers, rows.row_indices, ROWS + 1), ())
    path = folder / "index.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return IndexFile(hash_bucket=0, run=1, part=0, path=path.name, rows=ROWS, size_bytes=path.stat().st_size)
