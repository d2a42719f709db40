"""Which columns of rows that are written at once get dictionaries, by a sample."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.delta_files import DeltaRules, DeltaTarget, write_files
from compactor.model.names import ContentType, Operation
from compactor.storage.location import parse_location
from compactor.tabular import columns_that_repeat

ROWS = 100_000
RANDOM = np.random.default_rng(37)


@pytest.mark.parametrize(
    ("values", "repeats"),
    [
        (np.arange(ROWS), False),
        (RANDOM.integers(0, 2**60, ROWS), False),
        (RANDOM.integers(0, ROWS * 2, ROWS), False),
        (RANDOM.integers(0, ROWS // 10, ROWS), True),
        (np.arange(ROWS) // 10, True),
        (RANDOM.integers(0, 3, ROWS), True),
        (np.full(ROWS, 7), True),
        ([None] * ROWS, True),
        ([f"customer {number}" for number in range(ROWS)], False),
        ([f"region {number % 8}" for number in range(ROWS)], True),
    ],
    ids=["counted", "random", "often twice", "ten times", "sorted", "few", "one", "null", "names", "regions"],
)
def test_a_column_repeats_if_most_of_its_values_come_more_than_once(values: object, repeats: bool) -> None:
    assert columns_that_repeat(pa.table({"v": values})) == (("v",) if repeats else ())


def test_of_few_rows_and_nested_columns_any_may() -> None:
    for rows in (pa.table({"v": range(1_000)}), pa.table({"v": [[1]] * ROWS}), pa.table({"a.b": range(ROWS)})):
        assert columns_that_repeat(rows) is None


def test_every_type_is_judged() -> None:
    whole = range(ROWS)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    decimals = pa.array([Decimal(number) for number in whole], pa.decimal128(20, 2))
    columns = {
        "bool": pa.array([number % 2 == 0 for number in whole]),
        "half": pa.array(np.arange(ROWS, dtype=np.float16)),
        "float": pa.array([number / 3 for number in whole]),
        "decimal": decimals,
        "wide": decimals.cast(pa.decimal256(50, 2)),
        "binary": pa.array([str(number).encode() for number in whole]),
        "fixed": pa.array([f"{number:06}".encode() for number in whole], pa.binary(6)),
        "large": pa.array([str(number) for number in whole], pa.large_string()),
        "date": pa.array([date(2026, 1, 1) + timedelta(days=number) for number in whole]),
        "time": pa.array([time(number // 3_600 % 24, number // 60 % 60, number % 60) for number in whole]),
        "stamp": pa.array([begin + timedelta(seconds=number) for number in whole]),
        "span": pa.array([timedelta(seconds=number) for number in whole]),
        "null": pa.nulls(ROWS),
        "dictionary": pa.array([str(number) for number in whole]).dictionary_encode(),
    }
    assert columns_that_repeat(pa.table(columns)) == ("bool", "half", "null", "dictionary")


def test_a_delta_has_dictionaries_where_they_pay_and_the_same_rows(tmp_path: Path) -> None:
    rows = pa.table({"id": np.arange(ROWS), "region": [f"region {number % 8}" for number in range(ROWS)]})
    location = parse_location(str(tmp_path))
    target = DeltaTarget(location, ContentType.PARQUET, 60_000, lambda number, _: f"{number}.parquet")
    found = write_files(rows, target, DeltaRules("ACME.ORDERS.V1", {}, Operation.UPSERT))
    files = [tmp_path / each.path for each in found.files]
    assert pa.concat_tables(map(pq.read_table, files)).equals(rows)
    for file in files:
        group = pq.ParquetFile(file).metadata.row_group(0)
        assert [group.column(at).has_dictionary_page for at in range(2)] == [False, True]
