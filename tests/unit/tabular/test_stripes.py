"""The stripes of an ORC file are read by themselves, as they are read in the file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from compactor.model.errors import Corrupt
from compactor.model.files import DataFile
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation, parse_location
from compactor.tabular import TabularFile, measure, read_table
from compactor.tabular.files import read_batches_around

ROWS_OF_A_STRIPE = 64


def rows_of(count: int) -> pa.Table:
    """A list is the first column; unsigned integers come back from ORC as signed ones."""
    numbers = pa.array(range(count), pa.uint32())
    tags = pa.array([[str(row)] * (row % 3) for row in range(count)], pa.list_(pa.string()))
    return pa.table({"tags": tags, "number": numbers})


def written(folder: Path, rows: pa.Table) -> tuple[StoreLocation, TabularFile]:
    """The file as the log has it after it is measured."""
    path = folder / "rows.orc"
    as_stored = rows.set_column(1, "number", rows["number"].cast(pa.int64()))
    with orc.ORCWriter(path, stripe_size=1, batch_size=ROWS_OF_A_STRIPE) as writer:
        writer.write(as_stored)
    location, file = parse_location(str(folder / "lake")), TabularFile(path.as_uri(), ContentType.ORC)
    measured = measure(location, file)
    logged = DataFile(
        file_number=1,
        path=file.uri,
        content_type=ContentType.ORC,
        rows=measured.rows,
        size_bytes=measured.size_bytes,
        row_groups=measured.row_groups,
    )
    return location, TabularFile.of(file.uri, logged)


@given(count=st.integers(1, 300), data=st.data())
def test_any_rows_are_read_from_the_stripes_around_them(count: int, data: st.DataObject) -> None:
    rows = rows_of(count)
    with tempfile.TemporaryDirectory() as folder:
        location, file = written(Path(folder), rows)
        assert (len(file.pieces) > 1) == (count > ROWS_OF_A_STRIPE)
        assert not file.pieces or sum(piece.rows for piece in file.pieces) == count
        first = data.draw(st.integers(0, count - 1))
        last = data.draw(st.integers(first, count - 1))
        columns = data.draw(st.sampled_from([None, ["number"], ["number", "tags"]]))
        found: dict[int, dict[str, object]] = {}
        for row, batch in read_batches_around(location, file, count, (first, last), rows.schema, columns=columns):
            assert not found.keys() & set(range(row, row + batch.num_rows))
            found |= dict(enumerate(batch.to_pylist(), start=row))
        expected = read_table(location, file, columns, rows.schema).to_pylist()
        assert expected == rows.select(columns or rows.column_names).to_pylist()
        assert found == {row: expected[row] for row in found}
        assert set(range(first, last + 1)) <= found.keys()
        if file.pieces:
            assert len(found) <= last - first + 2 * ROWS_OF_A_STRIPE


def test_a_stripe_that_has_other_rows_than_the_log_says_is_corrupt(tmp_path: Path) -> None:
    location, file = written(tmp_path, rows_of(100))
    swapped = TabularFile(file.uri, file.content_type, pieces=tuple(reversed(file.pieces)))
    with pytest.raises(Corrupt, match="has other rows than the log says, before row 36"):
        list(read_batches_around(location, swapped, 100, (0, 0), rows_of(1).schema))
