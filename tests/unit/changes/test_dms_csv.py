"""Files of DMS are read whole: long rows (DMS writes large objects inline), and lines that look like no row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compactor.changes.change_batch import ChangesRefused
from compactor.changes.dms_csv import DmsTexts, read_dms_csv
from compactor.model.errors import Invalid

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


def written(*rows: tuple[str, str, str]) -> str:
    return "".join(f'{operation},{key},"{note}"\n' for operation, key, note in rows)


def read(text: str, schema: pa.Schema = SCHEMA) -> list[tuple[object, ...]]:
    found = read_dms_csv(text.encode(), schema, "file")
    assert isinstance(found, pa.Table)
    return [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize("size_bytes", [1_200_000, 3_000_000, 20_000_000])
@pytest.mark.parametrize("note", ["y", "y\n", ",\n"], ids=repr)
@pytest.mark.parametrize("header", ["", "Op,id,note\n"])
def test_a_row_of_any_length_is_read_wherever_it_stands(size_bytes: int, note: str, header: str) -> None:
    long = note * (size_bytes // len(note))
    assert read(header + written(("I", "1", long), ("U", "2", "b"))) == [("I", 1, long), ("U", 2, "b")]
    assert read(header + written(("I", "2", "b"), ("U", "1", long))) == [("I", 2, "b"), ("U", 1, long)]


def test_of_a_file_with_a_long_row_each_row_of_other_columns_is_named_once() -> None:
    text = "Op,id,note\nI,1,a\nI,2\n" + written(("I", "3", "y" * 3_000_000), ("I", "4", "b"))
    with pytest.raises(Invalid, match=r"row 2: 2 columns, and not 3$"):
        read(text)


def test_beside_a_value_that_is_not_of_its_type_a_long_one_is_read() -> None:
    schema = pa.schema([("id", pa.int64()), ("note", pa.large_string())])
    long = "y\n" * 1_500_000
    found = read_dms_csv(written(("I", "one", "a"), ("I", "2", long)).encode(), schema, "file")
    assert isinstance(found, DmsTexts)
    with pytest.raises(ChangesRefused) as error:
        found.converted("file")
    assert error.value.rows.keys() == {0}
    assert found.take([1]).converted("file").column("note").to_pylist() == [long]


def test_a_row_without_a_line_s_end_may_be_the_only_one() -> None:
    assert read("I,1,a") == [("I", 1, "a")]


def test_empty_lines_before_a_header_are_no_rows() -> None:
    assert read("\r\n\nOp,id,note\nI,1,a\n") == [("I", 1, "a")]


def test_an_empty_line_is_a_row_of_a_table_of_one_column() -> None:
    assert read("a\n\nb\n", pa.schema([("name", pa.string())])) == [("a",), ("",), ("b",)]
    assert read("1,a\n\n2,b\n") == [(1, "a"), (2, "b")]
