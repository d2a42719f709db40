"""Compacted files of a published table: their names, columns and types, and which files are rewritten for them."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.keys import is_open_file, partition_hash
from compactor.lake import Table
from compactor.model.errors import Invalid
from compactor.schemas.open_types import field_id
from tests.builders import TABLE_ID, CompactedSide, audit, multiset
from tests.published_rows import PARTITIONS, append_round, compact_all, published_lake

EU = {"region": "EU"}


def _table(folder: Path, **properties: object) -> tuple[DeltaCatalog, Table]:
    lake = DeltaCatalog.open(folder)
    return lake, lake.create_table(TABLE_ID, ["region"], properties=properties)


def _files(table: Table, partition: dict[str, str]) -> dict[int, str]:
    compacted = table.stream(partition).load().state.compacted
    assert compacted is not None
    return {number: file.path for number, file in compacted.files.items()}


def _compact(lake: DeltaCatalog, **arguments: object) -> None:
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake, **arguments)  # type: ignore[arg-type]


def test_an_open_file_has_field_ids_and_the_partition_last_and_a_scan_sees_neither(tmp_path: Path) -> None:
    lake, table = _table(tmp_path, publish="delta")
    rows = pa.table({"id": [2, 1], "tags": [["a"], None], "more": [{"x": 1}, {"x": 2}]})
    table.append({"region": "eu/west ü"}, rows)
    _compact(lake)
    (path,) = _files(table, {"region": "eu/west ü"}).values()
    assert re.fullmatch(
        rf"tables/{TABLE_ID}/compacted/{partition_hash({'region': 'eu/west ü'})}/[0-9a-f]+/1-[0-9a-f]+.parquet", path
    )
    written = pq.read_table(tmp_path / path)
    assert written.column_names == ["id", "tags", "more", "region"]
    assert written.column("region").to_pylist() == ["eu/west ü"] * 2
    ids = {
        name: int(written.schema.field(name).metadata[b"PARQUET:field_id"]) for name in ("id", "tags", "more", "region")
    }
    assert ids == {name: field_id(name) for name in ids}
    element = written.schema.field("tags").type.value_field
    assert int(element.metadata[b"PARQUET:field_id"]) == field_id("tags.element")
    inner = written.schema.field("more").type.field("x")
    assert int(inner.metadata[b"PARQUET:field_id"]) == field_id("more.x")
    scanned = table.scan().to_table()
    assert scanned.column_names == ["id", "tags", "more", "region"]
    assert table.scan(columns=["id"]).to_table().column_names == ["id"]
    assert table.lookup({"region": "eu/west ü"}, {"id": 1}) == {
        "id": 1,
        "tags": None,
        "more": {"x": 2},
        "region": "eu/west ü",
    }
    audit(CompactedSide.of(lake, partition={"region": "eu/west ü"}))


def test_a_table_that_is_not_published_is_written_as_before(tmp_path: Path) -> None:
    lake, table = _table(tmp_path)
    table.append(EU, pa.table({"id": pa.array([1], pa.uint64()), "n": pa.nulls(1)}))
    _compact(lake)
    (path,) = _files(table, EU).values()
    assert path.startswith(f"tables/{TABLE_ID}/data/region=EU/compacted/1/")
    written = pq.read_table(tmp_path / path)
    assert written.schema.remove_metadata() == pa.schema({"id": pa.uint64(), "n": pa.null()})
    assert all(field.metadata is None for field in written.schema)


def test_large_row_groups_are_passed_on_undecoded_with_the_partition_added(tmp_path: Path) -> None:
    lake, table = _table(tmp_path, publish="delta")
    numbers = np.random.default_rng(1).integers(0, 2**60, 600_000)
    table.append(EU, pa.table({"id": np.arange(600_000), "value": numbers}))
    table.append(EU, pa.table({"id": pa.array([5], pa.int64())}), operation="delete")
    _compact(lake, page_check_share=1.0)
    (path,) = _files(table, EU).values()
    parquet = pq.ParquetFile(tmp_path / path, page_checksum_verification=True)
    assert parquet.metadata.created_by.startswith("lithify")
    written = parquet.read()
    assert written.column_names == ["id", "value", "region"]
    assert written.column("region").unique().to_pylist() == ["EU"]
    assert _in_order(written) == np.delete(numbers, 5).tolist()
    # The second round passes on what the first one wrote, the partition's column included.
    table.append(EU, pa.table({"id": pa.array([7], pa.int64())}), operation="delete")
    _compact(lake, page_check_share=1.0)
    (path,) = _files(table, EU).values()
    again = pq.ParquetFile(tmp_path / path, page_checksum_verification=True)
    assert again.metadata.num_row_groups == 1
    assert _in_order(again.read()) == np.delete(numbers, [5, 7]).tolist()
    assert again.read().column("region").unique().to_pylist() == ["EU"]


def _in_order(rows: pa.Table) -> list[int]:
    values: list[int] = rows.sort_by("id").column("value").to_pylist()
    return values


def test_files_from_before_the_publication_are_rewritten_though_no_delta_is_pending(tmp_path: Path) -> None:
    lake, table = _table(tmp_path)
    rows = pa.table(
        {"id": [1, 2], "great": pa.array([2**64 - 1, 0], pa.uint64()), "at": pa.array([1, 2], pa.timestamp("ms"))}
    )
    table.append(EU, rows)
    _compact(lake)
    closed = _files(table, EU)
    table.set_properties({"publish": ["delta"]})
    _compact(lake)
    opened = _files(table, EU)
    assert not set(closed) & set(opened)
    assert all(is_open_file(path) for path in opened.values())
    scanned = table.scan().to_table()
    assert scanned.schema.field("great").type == pa.decimal128(20, 0)
    assert {int(value) for value in scanned.column("great").to_pylist()} == {2**64 - 1, 0}
    audit(CompactedSide.of(lake, partition=EU))
    entry = table.stream(EU).load().entry_number
    _compact(lake)
    assert table.stream(EU).load().entry_number == entry, "nothing is rewritten twice"
    # The same types may come again, and merge with what is compacted.
    table.append(EU, rows.slice(0, 1).set_column(0, "id", pa.array([3], pa.int64())))
    assert table.scan(view="merged").to_table().num_rows == 3
    _compact(lake)
    assert sorted(table.scan().to_table().column("id").to_pylist()) == [1, 2, 3]


def test_a_round_that_widens_a_column_rewrites_the_narrow_files_and_no_other_round_does(tmp_path: Path) -> None:
    lake, table = _table(tmp_path, publish="delta")
    table.append(EU, pa.table({"id": pa.array([1, 2], pa.int32()), "v": pa.array([1, 2], pa.int32())}))
    _compact(lake)
    first = _files(table, EU)
    table.append(EU, pa.table({"id": pa.array([3], pa.int32()), "v": pa.array([1], pa.int32()), "new": [1.0]}))
    _compact(lake)
    assert set(first.values()) <= set(_files(table, EU).values())
    table.append(EU, pa.table({"id": pa.array([4], pa.int32()), "v": pa.array([2**40], pa.int64())}))
    _compact(lake)
    wide = _files(table, EU)
    assert not set(first.values()) & set(wide.values())
    for path in wide.values():
        assert pq.read_schema(tmp_path / path).field("v").type == pa.int64()
    assert sorted(table.scan().to_table().column("id").to_pylist()) == [1, 2, 3, 4]


def test_a_data_column_with_the_name_of_a_partition_key_must_hold_its_value(tmp_path: Path) -> None:
    lake, table = _table(tmp_path, publish="delta")
    table.append(EU, pa.table({"region": ["EU"], "id": [1]}))
    _compact(lake)
    (path,) = _files(table, EU).values()
    assert pq.read_schema(tmp_path / path).names == ["id", "region"]
    assert table.scan().to_table().to_pylist() == [{"region": "EU", "id": 1}]
    for other in ("EU", None):
        with pytest.raises(
            Invalid, match=f"contradicts its partition region=US: its column 'region' is {other!r} in row 2"
        ):
            table.append({"region": "US"}, pa.table({"region": ["US", other], "id": [1, 2]}))


def test_rows_from_before_a_publication_must_hold_the_partitions_value_too(tmp_path: Path) -> None:
    lake, table = _table(tmp_path)
    table.append({"region": "US"}, pa.table({"region": ["US", None], "id": [1, 2]}))
    table.set_properties({"publish": ["delta"]})
    with pytest.raises(Invalid, match=r"column 'region' holds None in a row of partition region=US"):
        _compact(lake)


def test_columns_that_no_other_engine_reads_are_refused_with_every_reason_at_once(tmp_path: Path) -> None:
    lake, table = _table(tmp_path)
    rows = pa.table(
        {
            "id": pa.array([1], pa.uint64()),
            "took": pa.array([1], pa.duration("s")),
            "sum": pa.array([1]).cast(pa.decimal256(40, 0)),
            "a b": [1],
            "Name": [1],
            "name": [1],
        }
    )
    table.append(EU, rows)
    table.set_properties({"publish": ["delta"]})
    with pytest.raises(Invalid) as refused:
        _compact(lake)
    for part in ("'id' is uint64", "'took' is duration", "'sum' is decimal256", "'a b'", "'Name' and 'name'"):
        assert sum(part in reason for reason in refused.value.reasons) == 1, part
    with pytest.raises(Invalid, match="published for other engines"):
        table.append({"region": "US"}, pa.table({"id": [1], "took": pa.array([1], pa.duration("s"))}))


def test_a_value_that_microseconds_do_not_hold_is_refused_with_the_value(tmp_path: Path) -> None:
    lake, table = _table(tmp_path, publish="delta")
    table.append(EU, pa.table({"id": [1, 2], "at": pa.array([1_000, 1_001], pa.timestamp("ns"))}))
    with pytest.raises(Invalid, match=r"'at'.*1001"):
        _compact(lake)


def test_other_content_types_than_parquet_are_refused(tmp_path: Path) -> None:
    lake, table = _table(tmp_path, publish="delta")
    table.append(EU, pa.table({"id": [1]}))
    with pytest.raises(Invalid, match="published files are parquet"):
        _compact(lake, compacted_file_content_type="feather")
    with pytest.raises(Invalid, match="published files are parquet"):
        table.set_properties({"compacted_file_content_type": "orc"})


def test_publication_can_end_and_the_rows_stay(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path)
    chance = random.Random(3)
    append_round(table, PARTITIONS[0], chance, 0)
    compact_all(lake)
    before = multiset(table.scan().to_table(), ["id", "text", "region"])
    table.set_properties({"publish": None})
    table.append(PARTITIONS[0], pa.table({"id": pa.array([10_000], pa.int32())}))
    compact_all(lake)
    after = multiset(table.scan().to_table(), ["id", "text", "region"])
    assert len(list((after - before).elements())) == 1
    assert not before - after
