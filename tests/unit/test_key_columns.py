"""Which columns can be keys, and what is said of those that cannot."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compactor.catalog.actions import SortKey
from compactor.key_columns import check_key_columns, sort_key_bytes
from compactor.names import PARTITION_STREAM_POSITION

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


def test_every_violation_is_told_at_once() -> None:
    reasons = check_key_columns(SCHEMA, ["nmae", "tags", "id", "id"], sort_keys("name", "zzz", "name"))
    no_width = (
        "sort key column 'name' has type string, which has no fixed width: sort keys must be numbers, booleans, dates, "
        "times, timestamps or binary of a fixed size"
    )
    assert reasons == (
        "primary key column 'id' is named 2 times",
        "there is no primary key column 'nmae' in the data: did you mean 'name'?",
        "primary key column 'tags' has type list<item: string>: keys cannot be nested",
        "sort key column 'name' is named 2 times",
        no_width,
        f"there is no sort key column 'zzz' in the data: the columns are {', '.join(map(repr, SCHEMA.names))}",
        no_width,
    )


def test_there_must_be_a_primary_key_and_it_must_be_real() -> None:
    assert check_key_columns(SCHEMA, [], []) == ("there is no primary key column: name at least one",)
    (reason,) = check_key_columns(SCHEMA, [PARTITION_STREAM_POSITION], [])
    assert "virtual column" in reason


def test_a_column_that_stands_twice_in_the_data_cannot_be_a_key() -> None:
    (reason,) = check_key_columns(pa.schema([("id", pa.int64()), ("id", pa.int64())]), ["id"], [])
    assert reason == "primary key column 'id' stands 2 times in the data: names must be unique"


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
