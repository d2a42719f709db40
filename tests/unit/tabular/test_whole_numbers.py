"""Whole numbers beyond 64 bits in text without declared types: no two different ones become one value."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.storage.location import parse_location
from compactor.tabular import TabularFile, measure, read_batches, read_outline, read_schema, read_table
from tests.properties.folders import fresh_folder

WHOLE = pa.decimal128(38, 0)
TWENTY_DIGITS = [str(12345678901234567890 + key) for key in range(10)]


def column(folder: Path, name: str, values: list[str], filler: int = 0) -> pa.ChunkedArray:
    """The column as it is read; every way of reading agrees. `filler`: bytes of another column before the last row."""
    rows = [(value, "") for value in values]
    if filler:
        rows.insert(len(rows) - 1, (values[0], "x" * filler))
        rows.insert(len(rows) - 1, (values[0], "x" * filler))
    if name.startswith("x.json"):
        text = "".join(f'{{"v": {value or "null"}, "f": {json.dumps(filler)}}}\n' for value, filler in rows)
    else:
        text = "v,f\n" + "".join(f"{value},{filler}\n" for value, filler in rows)
    (folder / name).write_text(text)
    location = parse_location(str(folder))
    file = TabularFile(f"file://{folder}/{name}", ContentType.JSON if "json" in name else ContentType.CSV)
    table = read_table(location, file)
    batches = pa.Table.from_batches(read_batches(location, file))
    assert batches.equals(table)
    assert measure(location, file).schema.equals(table.schema)
    assert read_schema(location, file).equals(table.schema)
    if not filler:
        assert read_outline(location, file).schema.equals(table.schema)
    return table["v"]


FORMATS = pytest.mark.parametrize("name", ["x.csv", "x.json"])


@FORMATS
def test_whole_numbers_beyond_64_bits_are_decimals(tmp_path: Path, name: str) -> None:
    read = column(tmp_path, name, TWENTY_DIGITS)
    assert read.type == WHOLE
    assert read.to_pylist() == [Decimal(value) for value in TWENTY_DIGITS]


@FORMATS
def test_files_of_one_stream_have_one_type_whatever_the_digits(tmp_path: Path, name: str) -> None:
    for value in (str(2**63), str(-(2**63) - 1), str(2**64), "9" * 38, "-" + "9" * 38):
        read = column(tmp_path, name, ["1", "", value])
        assert (read.type, read.to_pylist()) == (WHOLE, [Decimal(1), None, Decimal(value)])


@FORMATS
def test_one_great_number_at_the_end_of_a_long_file_decides(tmp_path: Path, name: str) -> None:
    read = column(tmp_path, name, ["1", "2", TWENTY_DIGITS[0]], filler=5_000_000)
    assert (read.type, read[-1].as_py()) == (WHOLE, Decimal(TWENTY_DIGITS[0]))


@FORMATS
@pytest.mark.parametrize("values", [["1.0", "2.0"], ["1e3"], ["1e30", "1e31"], ["1", "1.5"], [TWENTY_DIGITS[0], "1.5"]])
def test_numbers_that_are_not_all_whole_are_floats_as_before(tmp_path: Path, name: str, values: list[str]) -> None:
    read = column(tmp_path, name, values)
    assert (read.type, read.to_pylist()) == (pa.float64(), [float(value) for value in values])


@FORMATS
def test_a_float_at_the_end_of_a_long_file_makes_floats(tmp_path: Path, name: str) -> None:
    assert column(tmp_path, name, [TWENTY_DIGITS[0], "0.5"], filler=5_000_000).type == pa.float64()


@FORMATS
def test_whole_numbers_that_fit_64_bits_stay_integers(tmp_path: Path, name: str) -> None:
    values = [2**63 - 1, -(2**63), 0]
    read = column(tmp_path, name, list(map(str, values)))
    assert (read.type, read.to_pylist()) == (pa.int64(), values)


def test_longer_numbers_are_text_in_csv(tmp_path: Path) -> None:
    values = ["9" * 39, "9" * 400, "1"]
    read = column(tmp_path, "x.csv", values)
    assert (read.type, read.to_pylist()) == (pa.string(), values)


@pytest.mark.parametrize("digits", [39, 400, 5_000])
def test_longer_numbers_are_refused_in_json_which_cannot_show_them_as_text(tmp_path: Path, digits: int) -> None:
    with pytest.raises(Invalid, match=r"x\.json has whole numbers of more than 38 digits in column 'v': write them as"):
        column(tmp_path, "x.json", ["9" * digits])


@pytest.mark.parametrize("value", ['{{"deep": [{}, 1]}}', "[{}]", '[{{"a": {{"b": {}}}}}]'])
def test_nested_whole_numbers_of_json_are_decimals_as_well(tmp_path: Path, value: str) -> None:
    read = column(tmp_path, "x.json", [value.format(each) for each in TWENTY_DIGITS])
    assert f"{WHOLE}" in str(read.type)
    assert len(set(map(str, read.to_pylist()))) == len(TWENTY_DIGITS)


def test_infinity_beside_great_numbers_is_a_float(tmp_path: Path) -> None:
    assert column(tmp_path, "x.json", ["1e300", "Inf"]).type == pa.float64()
    assert column(tmp_path, "x.csv", ["1e300", "inf"]).type == pa.float64()


@given(st.lists(st.integers(-(10**21), 10**21), min_size=1, max_size=5), st.sampled_from(["x.csv", "x.json"]))
def test_different_whole_numbers_stay_different(values: list[int], name: str) -> None:
    with fresh_folder() as folder:
        assert [int(value) for value in column(folder, name, list(map(str, values))).to_pylist()] == values
