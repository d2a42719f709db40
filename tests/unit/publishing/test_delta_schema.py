"""Delta's schema and bounds of our types."""

from __future__ import annotations

import json

import pyarrow as pa

from compactor.model.files import ColumnStats, DataFile
from compactor.model.names import ContentType
from compactor.publishing.delta_schema import delta_schema, left_out, stats_json


def test_a_schema_is_rendered_with_partition_columns_last() -> None:
    schema = pa.schema(
        {
            "id": pa.int64(),
            "day": pa.string(),
            "price": pa.decimal128(10, 2),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "tags": pa.list_(pa.struct({"key": pa.string(), "time": pa.time64("us")})),
            "more": pa.map_(pa.string(), pa.int32()),
        }
    )
    fields = {field["name"]: field["type"] for field in json.loads(delta_schema(schema, ("day",)))["fields"]}
    key = {"name": "key", "type": "string", "nullable": True, "metadata": {}}
    assert fields == {
        "id": "long",
        "price": "decimal(10,2)",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "tags": {"type": "array", "elementType": {"type": "struct", "fields": [key]}, "containsNull": True},
        "more": {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True},
        "day": "string",
    }
    assert list(fields)[-1] == "day"


def test_columns_that_delta_has_no_type_for_are_left_out_by_name() -> None:
    nested = pa.struct({"a": pa.time64("us"), "b": pa.int32()})
    schema = pa.schema(
        {"id": pa.int64(), "time": pa.time64("us"), "nested": nested, "times": pa.list_(pa.time64("us"))}
    )
    assert left_out(schema) == ("time", "nested.a", "times")
    assert [field["name"] for field in json.loads(delta_schema(schema, ()))["fields"]] == ["id", "nested"]


def test_bounds_of_timestamps_go_outwards_to_milliseconds_and_floats_and_decimals_have_none() -> None:
    schema = pa.schema(
        {
            "id": pa.int64(),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "day": pa.date32(),
            "weight": pa.float64(),
            "price": pa.decimal128(10, 2),
            "time": pa.time64("us"),
        }
    )
    file = DataFile(
        file_number=1,
        path="p",
        content_type=ContentType.PARQUET,
        rows=7,
        size_bytes=1,
        columns={
            "id": ColumnStats(null_count=0, min_value=-5, max_value=2**62),
            "at": ColumnStats(
                null_count=1, min_value="1969-12-31T23:59:59.999999Z", max_value="2026-01-01T00:00:00.000001Z"
            ),
            "local": ColumnStats(null_count=0, min_value="2026-01-01T00:00:00", max_value="2026-01-01T00:00:00.123000"),
            "day": ColumnStats(null_count=0, min_value="2026-01-01", max_value="2026-01-02"),
            "weight": ColumnStats(null_count=2, min_value=1.0, max_value=2.0),
            "price": ColumnStats(null_count=0, min_value="1.10", max_value="9.99"),
            "time": ColumnStats(null_count=0, min_value="10:00:00", max_value="11:00:00"),
        },
    )
    statistics = json.loads(stats_json(file, schema, has_vector=True))
    assert (statistics["numRecords"], statistics["tightBounds"]) == (7, False)
    assert statistics["minValues"] == {
        "id": -5,
        "at": "1969-12-31T23:59:59.999Z",
        "local": "2026-01-01T00:00:00.000",
        "day": "2026-01-01",
    }
    assert statistics["maxValues"] == {
        "id": 2**62,
        "at": "2026-01-01T00:00:00.001Z",
        "local": "2026-01-01T00:00:00.123",
        "day": "2026-01-02",
    }
    assert statistics["nullCount"] == {"id": 0, "at": 1, "local": 0, "day": 0, "weight": 2, "price": 0}
    assert json.loads(stats_json(file, schema, has_vector=False))["tightBounds"] is True


def test_years_beyond_four_digits_have_no_bound_rather_than_a_wrong_one() -> None:
    schema = pa.schema({"at": pa.timestamp("us", "UTC")})
    stats = ColumnStats(null_count=0, min_value="2026-01-01T00:00:00Z", max_value="9999-12-31T23:59:59.999999Z")
    file = DataFile(
        file_number=1, path="p", content_type=ContentType.PARQUET, rows=1, size_bytes=1, columns={"at": stats}
    )
    assert json.loads(stats_json(file, schema, has_vector=False))["maxValues"] == {}
