"""Which columns can be keys, and what is said of those that cannot."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compactor.catalog.key_columns import check_key_columns, check_key_names, sort_column, sort_key_bytes
from compactor.kernels.canonical import canonical_column
from compactor.kernels.sort_values import SortColumn, decode_sort_values, encode_sort_values
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid
from compactor.model.names import PARTITION_STREAM_POSITION, SortOrder

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("digest", pa.binary(20)),
        ("tags", pa.list_(pa.string())),
        ("color", pa.dictionary(pa.int8(), pa.string())),
        ("level", pa.dictionary(pa.int8(), pa.int16())),
    ]
)


_UNITS = ("s", "ms", "us", "ns")
_PLAIN_TYPES = [
    pa.null(),
    pa.bool_(),
    *(kind() for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(7, 2), pa.decimal64(14, 2), pa.decimal128(20, 2), pa.decimal256(60, 2)),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(7)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in _UNITS),
    *(pa.timestamp(unit, "Europe/Paris") for unit in _UNITS),
    *(pa.duration(unit) for unit in _UNITS),
    pa.month_day_nano_interval(),
    *(pa.uuid(), pa.json_(), pa.bool8()),
    *(pa.list_(pa.int8()), pa.list_(pa.int8(), 4), pa.large_list(pa.int8()), pa.list_view(pa.int8())),
    *(pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.dense_union([pa.field("a", pa.int8())])),
]
ALL_TYPES = [
    *_PLAIN_TYPES,
    *(pa.dictionary(pa.int8(), kind) for kind in (pa.string(), pa.int16(), pa.decimal128(20, 2), pa.timestamp("us"))),
    *(pa.run_end_encoded(pa.int32(), kind) for kind in (pa.string(), pa.int16(), pa.list_(pa.int8()))),
]
"""Of every kind that Arrow has."""


def sort_keys(*columns: str) -> list[SortKey]:
    return [SortKey(column=column) for column in columns]


def test_good_keys_have_no_violations() -> None:
    assert check_key_columns(SCHEMA, ["id", "name", "color"], sort_keys("at", "day", "digest")) == ()


def test_the_sort_keys_may_take_32_bytes_and_no_more() -> None:
    assert check_key_columns(SCHEMA, ["id"], sort_keys("digest", "at", "day")) == ()
    (reason,) = check_key_columns(SCHEMA, ["id"], sort_keys("digest", "at", "day", "level"))
    assert reason == "the sort keys take 34 bytes (digest 20, at 8, day 4, level 2): at most 32 are allowed"


def test_the_stream_position_counts_8_bytes() -> None:
    (reason,) = check_key_columns(SCHEMA, ["id"], sort_keys(PARTITION_STREAM_POSITION, "digest", "at"))
    assert "take 36 bytes (partition_stream_position 8, digest 20, at 8)" in reason


def test_the_stream_position_is_no_sort_key_beside_a_column_of_its_name() -> None:
    schema = SCHEMA.append(pa.field(PARTITION_STREAM_POSITION, pa.string()))
    (reason,) = check_key_columns(schema, ["id"], sort_keys("at", PARTITION_STREAM_POSITION))
    assert reason == (
        "sort key 'partition_stream_position' is the virtual column of stream positions, and the data have a column of "
        "this name: rename that column"
    )


def test_every_violation_is_told_at_once() -> None:
    reasons = check_key_columns(SCHEMA, ["nmae", "tags", "id", "id"], sort_keys("name", "zzz", "name"))
    no_width = (
        "sort key column 'name' has type string, which has no fixed width: sort keys must be numbers, booleans, dates, "
        "times, timestamps or binary of a fixed size"
    )
    assert reasons == (
        "primary key column 'id' is named 2 times",
        "sort key column 'name' is named 2 times",
        "there is no primary key column 'nmae' in the data: did you mean 'name'?",
        "primary key column 'tags' has type list<item: string>: keys cannot be nested, nor calendar intervals",
        no_width,
        f"there is no sort key column 'zzz' in the data: the columns are {', '.join(map(repr, SCHEMA.names))}",
        no_width,
    )


def test_a_request_must_name_a_key_and_only_a_table_may_have_none() -> None:
    assert tuple(check_key_names([], [])) == ("primary_keys is empty: name at least one column",)
    assert check_key_columns(SCHEMA, [], []) == ()


def test_a_primary_key_must_be_real() -> None:
    virtual, missing = check_key_columns(SCHEMA, [PARTITION_STREAM_POSITION, "zzz"], [])
    assert "virtual column" in virtual
    assert "there is no primary key column 'zzz'" in missing


def test_a_column_that_is_twice_in_the_data_cannot_be_a_key() -> None:
    (reason,) = check_key_columns(pa.schema([("id", pa.int64()), ("id", pa.int64())]), ["id"], [])
    assert reason == "primary key column 'id' is 2 times in the data: names must be unique"


@pytest.mark.parametrize(
    ("data_type", "width"),
    [
        (pa.bool_(), 1),
        (pa.uint8(), 1),
        (pa.float16(), 2),
        (pa.int32(), 4),
        (pa.float64(), 8),
        (pa.date32(), 4),
        (pa.date64(), 8),
        (pa.time32("ms"), 4),
        (pa.time64("ns"), 8),
        (pa.timestamp("s"), 8),
        (pa.duration("ms"), 8),
        (pa.decimal128(10, 2), 16),
        (pa.decimal256(60, 2), 32),
        (pa.binary(7), 7),
        (pa.dictionary(pa.int32(), pa.date32()), 4),
        (pa.null(), 0),
        (pa.string(), None),
        (pa.large_binary(), None),
        (pa.string_view(), None),
        (pa.month_day_nano_interval(), None),
        (pa.struct([("a", pa.int8())]), None),
        (pa.list_(pa.int8(), 4), None),
    ],
    ids=str,
)
def test_each_type_has_its_width(data_type: pa.DataType, width: int | None) -> None:
    assert sort_key_bytes(data_type) == width


@pytest.mark.parametrize("data_type", ALL_TYPES, ids=str)
def test_the_types_that_keys_may_have_are_those_that_are_encoded(data_type: pa.DataType) -> None:
    nulls = pa.chunked_array([pa.nulls(2, data_type)])
    refusals = check_key_columns(pa.schema([("id", data_type)]), ["id"], [])
    if refusals:
        with pytest.raises(Invalid) as refused:
            canonical_column("id", nulls)
        assert refusals == refused.value.reasons
    else:
        canonical_column("id", nulls)


@pytest.mark.parametrize("data_type", ALL_TYPES, ids=str)
def test_a_sort_key_has_the_width_that_its_check_counts(data_type: pa.DataType) -> None:
    width = sort_key_bytes(data_type)
    if width is None:
        return
    column = sort_column(SortKey(column="at"), pa.schema([("at", data_type)]))
    assert column.value_bytes == max(width, 1)
    nulls = pa.nulls(3, column.arrow_type)
    encoded = encode_sort_values([column], [nulls], 3)
    assert encoded.shape == (3, 1 + column.value_bytes)
    assert decode_sort_values([column], encoded) == [nulls]


@pytest.mark.parametrize("order", SortOrder)
def test_a_sort_key_has_its_column_and_its_order(order: SortOrder) -> None:
    expected = SortColumn("level", pa.int16(), descending=order is SortOrder.DESCENDING)
    assert sort_column(SortKey(column="level", order=order), SCHEMA) == expected


def test_a_sort_key_that_no_file_has_yet_takes_a_byte() -> None:
    assert sort_column(SortKey(column="at"), SCHEMA.remove(2)).arrow_type == pa.bool_()
    assert sort_column(SortKey(column=PARTITION_STREAM_POSITION), SCHEMA).arrow_type == pa.int64()
