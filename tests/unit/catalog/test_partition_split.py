"""Rows find the partition that their columns name."""

from __future__ import annotations

from collections import defaultdict
from datetime import date
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.partition_split import Partitioning
from compactor.catalog.partition_transforms import parse_transform
from compactor.lake import DeltaCatalog
from compactor.model.errors import Invalid

rows_of_two_keys = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2)), max_size=30)


@given(rows_of_two_keys, st.booleans())
def test_each_row_goes_to_its_partition_in_the_order_given(rows: list[tuple[str, int]], in_chunks: bool) -> None:
    table = pa.table(
        {"text": [text for text, _ in rows], "number": pa.array([number for _, number in rows], pa.int64())}
    )
    table = table.cast(pa.schema([("text", pa.string()), ("number", pa.int64())]))
    if in_chunks and rows:
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    expected: dict[tuple[str, str], list[int]] = defaultdict(list)
    for position, (text, number) in enumerate(rows):
        expected[text, str(number)].append(position)
    found = Partitioning(("text", "number")).split(table, "rows")
    assert {tuple(partition.values()): numbers.tolist() for partition, numbers in found} == expected
    assert [tuple(partition.values()) for partition, _ in found] == sorted(expected)


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array([date(2026, 11, 25)]), ["2026-11-25"]),
        (pa.array([True, False]), ["false", "true"]),
        (pa.array(["b", "a"]).dictionary_encode(), ["a", "b"]),
        (pa.array([2**63], pa.uint64()), ["9223372036854775808"]),
    ],
)
def test_the_value_of_a_partition_is_the_text_of_its_column(column: pa.Array, texts: list[str]) -> None:
    found = Partitioning(("key",)).split(pa.table({"key": column}), "rows")
    assert [partition["key"] for partition, _ in found] == texts


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"id": [1]}, "rows has no column 'day', by which its rows would find their partition"),
        ({"day": ["1", "2", None]}, "rows has no value of 'day' in row 3: a row without it has no partition"),
        ({"day": [1.5]}, "rows cannot be divided among partitions: column 'day' is double, and a partition is text"),
    ],
)
def test_rows_without_a_partition_are_refused(columns: dict[str, list[object]], reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        Partitioning(("day",)).split(pa.table(columns), "rows")
    (found,) = refused.value.reasons
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("transform", "values", "reason"),
    [
        ("bucket[4](v)", pa.array([1, None, 2, 2**63, 2**64 - 1], pa.uint64()), "9223372036854775808 is beyond int64"),
        ("truncate[10](v)", pa.array([1, None, 2, -(2**63), 3]), "truncate[10] of -9223372036854775808 is no int64"),
        ("day(v)", pa.array([1, None, 2, 2**45], pa.timestamp("s")), "a timestamp[s] is beyond the microseconds"),
        ("identity(v)", pa.array([b"a", None, b"b", b"\xed\xa0\xbd"]).view(pa.string()), "Invalid UTF8"),
    ],
)
def test_a_value_without_a_partition_is_refused_with_its_row(transform: str, values: pa.Array, reason: str) -> None:
    by_transform = Partitioning(("key",), {"key": parse_transform("key", transform)}, default_partition="none")
    with pytest.raises(Invalid) as refused:
        by_transform.split(pa.table({"v": values}), "rows")
    (found,) = refused.value.reasons
    assert found.startswith(f"rows: column 'v' has no partition in row 4: {reason}")


def test_rows_of_many_partitions_are_one_entry_for_each_stream_and_a_repeat_adds_nothing(tmp_path: Path) -> None:
    table = DeltaCatalog.open(tmp_path).create_table("A.ORDERS.V1", ["day"], primary_keys=["id"])
    rows = pa.table({"id": [1, 2, 3], "day": ["2", "1", "2"]})
    first = table.append_rows(rows, delta_id="batch 1")
    assert [(delta.partition, delta.rows) for delta in first] == [({"day": "1"}, 1), ({"day": "2"}, 2)]
    assert table.append_rows(rows, delta_id="batch 1") == first
    merged = table.scan(view="merged").to_table().sort_by("id")
    assert merged.select(["id", "day"]).to_pydict() == rows.to_pydict()


def test_a_row_that_cannot_be_placed_keeps_all_rows_out(tmp_path: Path) -> None:
    table = DeltaCatalog.open(tmp_path).create_table("A.ORDERS.V1", ["day"], primary_keys=["id"])
    with pytest.raises(Invalid, match="row 2"):
        table.append_rows(pa.table({"id": [1, 2], "day": ["1", None]}))
    assert table.partitions() == []


def test_files_of_several_types_are_rows_of_the_wider_one_and_a_missing_one_is_named(tmp_path: Path) -> None:
    table = DeltaCatalog.open(tmp_path / "lake").create_table("A.B.V1", primary_keys=["id"])
    for name, kind in (("a", pa.int32()), ("b", pa.int64())):
        pq.write_table(pa.table({"id": pa.array([1], kind)}), tmp_path / f"{name}.parquet")
    (delta,) = table.append_rows([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert delta.rows == 2
    for append in (table.append_rows, partial(table.append_changes, format="ops")):
        with pytest.raises(Invalid, match="does not exist: give the URI or path of a data file"):
            append([tmp_path / "none.parquet"])


@pytest.mark.parametrize("partition_by", [None, {"part": "truncate[1](p)"}, {"part": "bucket[4](p)"}])
def test_text_that_is_none_is_refused_by_its_column(tmp_path: Path, partition_by: dict[str, str] | None) -> None:
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    lake = DeltaCatalog.open(tmp_path / "lake")
    keys = ["p"] if partition_by is None else []
    table = lake.create_table("A.B.V1", keys, primary_keys=["id"], partition_by=partition_by)
    with pytest.raises(Invalid, match="column 'p'"):
        table.append_rows(pa.table({"id": [1], "p": broken}))
    with pytest.raises(Invalid, match="column 'op' holds text that is not UTF-8"):
        table.append_changes(pa.table({"id": [1], "p": ["a"], "op": broken}), "ops")
