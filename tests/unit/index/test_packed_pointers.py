"""Pointers are packed where it pays, and say the same; files of the format before are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compactor.catalog.keys import StreamFolder
from compactor.index.files import (
    IndexTarget,
    RowPointer,
    find_row,
    open_bucket,
    read_bucket,
    write_bucket,
    write_pointers,
)
from compactor.index.layout import IndexRows
from compactor.index.packed_pointers import PACKED_ROWS_MIN
from compactor.kernels.sort_values import SortColumn
from compactor.model.errors import Corrupt
from compactor.model.files import IndexFile
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.sending import Sending

BEFORE = Path(__file__).parents[2] / "golden" / "index_format_1"
TARGET = IndexTarget(StreamFolder("ACME.PACKED.V1", ()), 1, "c" * 32, 1 << 30)


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    return StoreLocation(f"file://{tmp_path}")


def written(location: StoreLocation, file_numbers: list[int], row_indices: list[int], target: IndexTarget) -> IndexFile:
    count = len(file_numbers)
    digests = np.repeat(np.arange(count, dtype=np.uint32)[:, None], 5, axis=1)
    rows = IndexRows(
        digests, np.array(file_numbers, np.int32), np.array(row_indices, np.int64), np.empty((count, 0), np.uint8)
    )
    (file,) = write_bucket(location, target, 0, rows, (), "a" * 16, sending=Sending(0))
    return file


@pytest.mark.parametrize("has_pointers", [False, True])
def test_files_of_index_format_1_are_read(has_pointers: bool) -> None:
    file = IndexFile.model_validate_json((BEFORE / "log.json").read_text())
    if not has_pointers:
        file = file.model_copy(update={"pointers": None})
    location, count = parse_location(str(BEFORE)), file.rows
    numbers = [9] * count if has_pointers else [row % 5 - 1 for row in range(count)]
    indices = list(range(count))[::-1] if has_pointers else [7 * row for row in range(count)]

    (segment,) = open_bucket(location, [file])
    rows = segment.rows((SortColumn("updated", pa.int64(), descending=False),))

    assert rows.digests[:, 4].tolist() == [row * 100_000_007 for row in range(count)]
    assert (segment.file_numbers.tolist(), segment.row_indices.tolist()) == (numbers, indices)
    assert (rows.file_numbers.tolist(), rows.row_indices.tolist()) == (numbers, indices)
    for row in range(count):
        expected = RowPointer(numbers[row], indices[row]) if numbers[row] > 0 else None
        assert find_row(location, [file], np.full((1, 5), row * 100_000_007, np.uint32)) == expected


@pytest.mark.parametrize(
    ("file_numbers", "row_indices", "widths"),
    [
        ([-1, 0, 254], [0, 5, 255], (1, 1)),
        ([1, 255, 3], [0, 5, 256], (2, 2)),
        ([1, 2, 3], [1 << 41, 0, 0], (1, 6)),
        ([2**31 - 1, -1, 0], [(1 << 56) - 1, 0, 0], (4, 7)),
        ([2**31 - 1, -1, 0], [(1 << 63) - 1, 0, 0], (4, 8)),
        ([1, 2, 3], [-5, 0, 0], (4, 8)),
    ],
)
def test_pointers_take_the_bytes_of_the_greatest_and_come_back(
    location: StoreLocation, file_numbers: list[int], row_indices: list[int], widths: tuple[int, int]
) -> None:
    packing = IndexTarget(TARGET.stream, 2, "c" * 32, 1 << 30, packed_rows_min=0)
    own = written(location, file_numbers, row_indices, packing)
    other = written(location, [1, 1, 1], [0, 1, 2], TARGET)
    replaced = write_pointers(
        location,
        packing,
        other,
        np.array(file_numbers, np.int32),
        np.array(row_indices, np.int64),
        "b" * 16,
        sending=Sending(0),
    )
    for file in (own, replaced):
        assert (file.placed.file_number_bytes, file.placed.row_index_bytes) == widths
        (segment,) = open_bucket(location, [file])
        assert segment.file_numbers.tolist() == file_numbers
        assert segment.row_indices.tolist() == row_indices
        assert segment.row_indices_at(np.array([1, 2])).tolist() == row_indices[1:]
        assert read_bucket(location, [file]).row_indices.tolist() == [
            row for row, number in zip(row_indices, file_numbers, strict=True) if number != -1
        ]


def test_a_small_file_is_not_packed(location: StoreLocation) -> None:
    small, large = PACKED_ROWS_MIN - 1, PACKED_ROWS_MIN
    assert not written(location, [1] * small, list(range(small)), TARGET).are_packed
    packed = written(location, [1] * large, list(range(large)), IndexTarget(TARGET.stream, 2, "d" * 32, 1 << 30))
    assert (packed.file_number_bytes, packed.row_index_bytes) == (1, 2)


def test_a_file_whose_pointers_do_not_lie_as_the_log_says_is_corrupt(location: StoreLocation) -> None:
    file = written(location, [1, 2], [3, 4], TARGET)
    with pytest.raises(Corrupt, match="has pointers of types"):
        open_bucket(location, [file.model_copy(update={"file_number_bytes": 1, "row_index_bytes": 1})])
