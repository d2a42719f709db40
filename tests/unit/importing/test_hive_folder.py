"""What a folder that is partitioned as Hive does it says of a table."""

from __future__ import annotations

import pytest

from compactor.importing.hive_folder import read_hive_folder
from compactor.importing.source_table import SourcePartition, SourceTable
from compactor.model.errors import REASONS_SHOWN_MAX, Invalid
from compactor.storage.location import StoreLocation
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

ROOT = "s3://bucket/old"


def read(*keys: str, null_value: str | None = None, empty: tuple[str, ...] = ()) -> SourceTable:
    store = MemoryStore(ManualClock(), StoreLocation(ROOT))
    for key in (*keys, *empty):
        store.put_if_absent(key, b"" if key in empty else b"rows")
    return read_hive_folder(store, null_value)


def uris_of(partition: SourcePartition) -> tuple[str, ...]:
    assert all(file.rewrite is None for file in partition.files)
    return tuple(file.uri for file in partition.files)


def refused(*keys: str, null_value: str | None = None) -> tuple[str, ...]:
    with pytest.raises(Invalid) as error:
        read(*keys, null_value=null_value)
    return error.value.reasons


def test_folders_name_the_partition_keys_in_order_and_their_values() -> None:
    found = read("year=2026/m=2/b.parquet", "year=2026/m=2/a.parquet", "year=2025/m=11/000000_0")
    assert found.partition_keys == ("year", "m")
    assert [(dict(each.values), uris_of(each), each.size_bytes) for each in found.partitions] == [
        ({"year": "2025", "m": "11"}, (f"{ROOT}/year=2025/m=11/000000_0",), 4),
        ({"year": "2026", "m": "2"}, (f"{ROOT}/year=2026/m=2/a.parquet", f"{ROOT}/year=2026/m=2/b.parquet"), 8),
    ]


def test_a_folder_without_partitions_is_a_table_without_partition_keys() -> None:
    found = read("b.parquet", "a.parquet")
    assert found.partition_keys == ()
    (partition,) = found.partitions
    assert (partition.values, uris_of(partition)) == ({}, (f"{ROOT}/a.parquet", f"{ROOT}/b.parquet"))


def test_values_are_decoded_and_equal_ones_are_one_partition() -> None:
    found = read("at=10%3A00%2F%C3%A4/a.orc", "at=10%3a00%2Fä/b.orc", "at=x=y/c.orc", "at=/d.orc")
    assert [(each.values["at"], len(each.files)) for each in found.partitions] == [("", 1), ("10:00/ä", 2), ("x=y", 1)]


def test_markers_hidden_files_and_empty_ones_are_passed_over_and_counted() -> None:
    found = read(
        *("_SUCCESS", "d=1/.part-0.parquet.crc", "d=1/a.parquet", "_temporary/0/x.parquet", ".hive-staging/y.parquet"),
        empty=("d=2/000000_0",),
    )
    assert [uris_of(each) for each in found.partitions] == [(f"{ROOT}/d=1/a.parquet",)]
    assert found.passed_over == 5
    assert read("_key=1/a.parquet").partition_keys == ("_key",), "it is a partition"


def test_null_is_refused_unless_it_is_given_a_name() -> None:
    keys = ("d=__HIVE_DEFAULT_PARTITION__/a.parquet", "d=1/b.parquet")
    (reason,) = refused(*keys)
    assert "whose d is null" in reason
    assert "--null-partition" in reason
    assert [each.values["d"] for each in read(*keys, null_value="none").partitions] == ["1", "none"]
    assert [len(each.files) for each in read(*keys, null_value="1").partitions] == [2]


def test_a_folder_that_is_no_such_table_is_refused_with_every_reason() -> None:
    assert refused() == (f"{ROOT} has no data file: name the folder of a table, above its partitions",)
    assert refused("_SUCCESS") == refused()
    assert refused("x/a.parquet")[0].startswith("x/a.parquet lies in the folder 'x': folders of partitions are named")
    assert refused("=1/a.parquet")[0].startswith("=1/a.parquet lies in the folder '=1'")
    assert refused("d=1/d=2/a.parquet") == ("d=1/d=2/a.parquet names a partition key twice",)
    mixed = refused("a=1/b=2/x.parquet", "b=2/a=1/y.parquet", "z.parquet", "q/r.parquet")
    assert len(mixed) == 3
    assert "b=2/a=1/y.parquet has the partition keys b, a, and a=1/b=2/x.parquet has a, b" in mixed[1]
    assert "z.parquet has the partition keys (none)" in mixed[2]


def test_of_many_reasons_the_first_ones_are_given_and_the_rest_is_counted() -> None:
    reasons = refused(*(f"x{number}/a.parquet" for number in range(30)))
    assert len(reasons) == REASONS_SHOWN_MAX + 1
    assert reasons[-1] == "and 11 more reasons"
