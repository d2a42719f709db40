"""What a change feed says, in each of its forms, and what of it is refused."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactor.catalog.feed import Feed, parse_feed
from compactor.changes.change_batch import ChangeBatch, ChangesRefused, FeedColumns
from compactor.changes.debezium import UNAVAILABLE, changes_of_debezium, unavailable
from compactor.changes.dms_csv import DmsTexts, read_dms_csv
from compactor.changes.ops import changes_of_dms, changes_of_rows
from compactor.changes.order import with_ordered_columns
from compactor.changes.sources import FeedSource
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid


def debezium(*events: object, declared: pa.Schema | None = None, sort_columns: tuple[str, ...] = ()) -> ChangeBatch:
    body = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in events)
    return changes_of_debezium(body.encode(), FeedColumns(declared, sort_columns, {"id": False, "day": False}), "feed")


def refused(*events: object, **given: Any) -> tuple[str, ...]:  # noqa: ANN401
    with pytest.raises(Invalid) as error:
        debezium(*events, **given)
    return error.value.reasons


def upsert(**row: object) -> dict[str, object]:
    return {"before": None, "after": row, "op": "c", "source": {"lsn": 1}}


HALF_PAST_ONE_SECOND = datetime.fromisoformat("1970-01-01T00:00:01.500")


# -------------------------------------------------------------------------------------------------------- envelopes


def test_types_follow_from_the_schema_of_the_events() -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {
            "field": "price",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "9"},
        },
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "zoned", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        {"field": "raw", "type": "bytes"},
    ]
    row = {"field": "after", "type": "struct", "fields": fields}
    schema = {"type": "struct", "fields": [{**row, "field": "before"}, row, {"field": "op", "type": "string"}]}
    after = {
        "id": 1,
        "price": base64.b64encode((-12345).to_bytes(2, "big", signed=True)).decode(),
        "day": 1,
        "at": 1_500_000,
        "zoned": "2026-11-25T10:00:00.5Z",
        "raw": base64.b64encode(b"\x00\xff").decode(),
    }
    found = debezium({"schema": schema, "payload": {"before": None, "after": after, "op": "r"}})
    assert found.rows.to_pylist() == [
        {
            "id": 1,
            "price": Decimal("-123.45"),
            "day": date(1970, 1, 2),
            "at": HALF_PAST_ONE_SECOND,
            "zoned": datetime(2026, 11, 25, 10, 0, 0, 500_000, UTC),
            "raw": b"\x00\xff",
        }
    ]
    assert found.rows.schema.field("price").type == pa.decimal128(9, 2)


def test_a_decimal_keeps_all_of_its_digits_and_text_that_is_none_is_refused_with_its_row() -> None:
    kind = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    row = {"type": "struct", "fields": [{"field": "price", "type": "bytes", **kind}]}
    schema = {"type": "struct", "fields": [{**row, "field": "after"}, {"field": "op", "type": "string"}]}

    def event(price: str) -> dict[str, object]:
        return {"schema": schema, "payload": {"after": {"price": price}, "op": "c"}}

    unscaled = 12345678901234567890123456789012345678
    found = debezium(event(base64.b64encode(unscaled.to_bytes(16, "big")).decode()))
    assert found.rows.column("price").to_pylist() == [Decimal(f"{unscaled // 100}.{unscaled % 100}")]
    (reason,) = refused(event("AQ=="), event("12.5"), event("AQ=="))
    assert reason.startswith("feed, row 2: column 'price' of 'after' is no org.apache.kafka.connect.data.Decimal")


def test_decimals_that_the_converter_writes_as_numbers_are_exact() -> None:
    kind = {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2", "connect.decimal.precision": "30"}}
    text = json.dumps(event_of(kind, 0)).replace('{"v": 0}', '{"v": %s}')
    written = ("1234567890123456789012345678.05", "null", "-0.10", "7")
    found = debezium(*(text % each for each in written))
    assert found.rows.column("v").to_pylist() == [None if each == "null" else Decimal(each) for each in written]
    assert found.rows.schema.field("v").type == pa.decimal128(30, 2)
    several = debezium(event_of({"type": "array", "items": kind}, [1, 25]))
    assert several.rows.column("v").to_pylist() == [[Decimal("1.00"), Decimal("25.00")]]
    # "1234" is also base64, of another number.
    (reason,) = refused(event_of(kind, 5), event_of(kind, "1234"))
    assert reason.startswith("feed, row 1: it is no change event of these columns")


def test_a_line_that_is_nested_very_deep_is_refused_and_does_not_end_the_process() -> None:
    deep = '{"before": null, "op": "c", "after": {"id": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    (reason,) = refused(upsert(id=1), deep)
    assert reason.startswith("feed, row 2: it is no change event of these columns")
    assert "nested deeper than 100" in reason


def test_without_a_schema_types_are_the_table_s_and_an_epoch_is_in_their_unit() -> None:
    declared = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms")), ("price", pa.decimal128(9, 2))])
    found = debezium(upsert(id=1, at=1_500, price="1.25"), declared=declared)
    assert found.rows.to_pylist() == [{"id": 1, "at": HALF_PAST_ONE_SECOND, "price": Decimal("1.25")}]
    (reason,) = refused(upsert(id=1, at=1_500, price="AQ=="), declared=declared)
    assert "column 'price' of 'after' is string and declared as decimal128(9, 2)" in reason
    assert "decimal.handling.mode=string" in reason


def event_of(column: dict[str, Any], value: object) -> dict[str, object]:
    """With its schema."""
    row = {"type": "struct", "fields": [{"field": "v", **column}]}
    schema = {"type": "struct", "fields": [{**row, "field": "after"}, {"field": "op", "type": "string"}]}
    return {"schema": schema, "payload": {"after": {"v": value}, "op": "c"}}


DECIMAL = "org.apache.kafka.connect.data.Decimal"
BYTES = base64.b64encode(b"\x04\xd2").decode()


@pytest.mark.parametrize(
    ("items", "value", "expected"),
    [
        ({"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}}, BYTES, Decimal("12.34")),
        ({"type": "int32", "name": "io.debezium.time.Date"}, -1, date(1969, 12, 31)),
        ({"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, 1_500_000, HALF_PAST_ONE_SECOND),
        ({"type": "bytes"}, BYTES, b"\x04\xd2"),
    ],
    ids=lambda each: str(each.get("name", each["type"])) if isinstance(each, dict) else "",
)
def test_values_within_lists_and_structs_have_the_types_of_their_schema(
    items: dict[str, Any], value: object, expected: object
) -> None:
    array = {"type": "array", "items": items}
    found = debezium(event_of(array, [value, None]), event_of(array, None), event_of(array, []))
    assert found.rows["v"].to_pylist() == [[expected, None], None, []]
    struct = {"type": "struct", "name": "io.debezium.data.geometry.Point", "fields": [{"field": "x", **items}]}
    assert debezium(event_of(struct, {"x": value}), event_of(struct, None)).rows["v"].to_pylist() == [
        {"x": expected},
        None,
    ]


def test_a_column_may_be_called_as_a_field_of_the_source_and_a_map_is_refused() -> None:
    declared = pa.schema([("id", pa.int64()), ("ts_ms", pa.timestamp("ms", "UTC"))])
    rows = ({"id": 1, "ts_ms": value} for value in (None, "1970-01-01T00:00:01.5Z"))
    events = [{"before": None, "after": row, "source": {"ts_ms": 7}, "op": "c"} for row in rows]
    found = debezium(*events, declared=declared).rows["ts_ms"].to_pylist()
    assert found == [None, HALF_PAST_ONE_SECOND.replace(tzinfo=UTC)]
    (reason,) = refused(upsert(v={}), declared=pa.schema([("v", pa.map_(pa.string(), pa.string()))]))
    assert "JSON conversion to map<string, string> is not supported: declare another type" in reason


def test_a_zoned_time_that_no_type_holds_can_be_kept_as_text() -> None:
    """As SQL Server's end of time, whose seventh digit needs nanoseconds, which end in 2262."""
    end = "9999-12-31T23:59:59.9999999Z"
    event = event_of({"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, end)
    (reason,) = refused(event)
    assert reason.startswith("feed, row 1: column 'v' of 'after' is no io.debezium.time.ZonedTimestamp (")
    assert reason.endswith("declare the column as text to keep it")
    assert debezium(event, declared=pa.schema([("v", pa.string())])).rows["v"].to_pylist() == [end]


def test_floats_that_json_cannot_hold_are_text_in_it() -> None:
    values = [1.5, "NaN", "-Infinity", None]
    events = [event_of({"type": "double"}, value) for value in values]
    assert str(debezium(*events).rows["v"].to_pylist()) == "[1.5, nan, -inf, None]"
    declared = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("t", pa.string())])
    found = debezium(*(upsert(id=1, v=value, t="NaN") for value in values), declared=declared).rows
    assert (str(found["v"].to_pylist()), found["t"].unique().to_pylist()) == ("[1.5, nan, -inf, None]", ["NaN"])
    assert "row 2: it is no change event" in refused(*events[:1], event_of({"type": "double"}, "x"), *events[1:])[0]


def test_a_decimal_of_more_digits_than_a_type_has_is_text_and_its_scale_may_be_negative() -> None:
    def decimal(scale: int, precision: int) -> dict[str, Any]:
        parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
        return event_of({"type": "bytes", "name": DECIMAL, "parameters": parameters}, BYTES)

    assert debezium(decimal(30, 65)).rows["v"].to_pylist() == ["0." + "0" * 26 + "1234"]
    assert debezium(decimal(-2, 5)).rows["v"].to_pylist() == [Decimal(123_400)]


@pytest.mark.parametrize("source", [{"source": {"lsn": 1}}, {}], ids=["of Debezium", "of Flink"])
@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        (pa.decimal128(21, 2), "1234567890123456789.12", Decimal("1234567890123456789.12")),
        (pa.decimal128(21, 2), '"1234567890123456789.12"', Decimal("1234567890123456789.12")),
        (pa.timestamp("ms"), "1500", HALF_PAST_ONE_SECOND),
        (pa.timestamp("ms"), '"1970-01-01 00:00:01.5"', HALF_PAST_ONE_SECOND),
        (pa.timestamp("ms", "UTC"), "1500", HALF_PAST_ONE_SECOND.replace(tzinfo=UTC)),
        (pa.timestamp("ms", "UTC"), '"1970-01-01T01:00:01.5+01:00"', HALF_PAST_ONE_SECOND.replace(tzinfo=UTC)),
        (pa.date32(), "-1", date(1969, 12, 31)),
        (pa.date32(), '"1969-12-31"', date(1969, 12, 31)),
        (pa.large_binary(), '"BNI="', b"\x04\xd2"),
        (pa.binary(2), '"BNI="', b"\x04\xd2"),
        (pa.binary(), '"_-8="', b"\xff\xef"),
        (pa.list_(pa.binary()), '["BNI="]', [b"\x04\xd2"]),
        (pa.list_(pa.timestamp("ms")), "[1500]", [HALF_PAST_ONE_SECOND]),
        (pa.struct([("x", pa.decimal128(21, 2))]), '{"x": 1.25}', {"x": Decimal("1.25")}),
    ],
)
def test_without_a_schema_values_are_written_as_numbers_or_as_text(
    source: dict[str, object], kind: pa.DataType, written: str, expected: object
) -> None:
    declared = pa.schema([("id", pa.int64()), ("v", kind)])
    events = (json.dumps({"before": None, "after": {"id": 1, "v": None}, "op": "c", **source}),) * 2
    found = debezium(events[0], events[1].replace('"v": null', f'"v": {written}'), declared=declared)
    assert found.rows["v"].to_pylist() == [None, expected]


def test_a_schema_that_changes_within_a_file_is_followed() -> None:
    def event(*names: str) -> dict[str, object]:
        row = {"type": "struct", "fields": [{"field": name, "type": "int64"} for name in names]}
        schema = {"type": "struct", "fields": [{**row, "field": "after"}, {"field": "op", "type": "string"}]}
        return {"schema": schema, "payload": {"after": dict.fromkeys(names, 7), "op": "c"}}

    events = (event("id"), event("id", "more"), "null", event("id", "more"))
    expected = [{"id": 7, "more": None}, {"id": 7, "more": 7}, {"id": 7, "more": 7}]
    assert debezium(*events).rows.to_pylist() == expected
    assert debezium(upsert(id=1), *events).rows.to_pylist() == [{"id": 1, "more": None}, *expected]


def test_types_that_differ_within_a_feed_become_one_that_holds_both() -> None:
    def event(scale: str, price: str) -> dict[str, object]:
        kind = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": scale}}
        row = {"type": "struct", "fields": [{"field": "price", "type": "bytes", **kind}], "field": "after"}
        schema = {"type": "struct", "fields": [row, {"field": "op", "type": "string"}]}
        return {"schema": schema, "payload": {"after": {"price": price}, "op": "c"}}

    grown = debezium(event("0", "AQ=="), event("2", "AQ=="))
    assert grown.rows["price"].to_pylist() == [Decimal("1.00"), Decimal("0.01")]
    moved = {"before": {"id": 1, "day": "1", "v": 1}, "after": {"id": 1, "day": "2", "v": 1.5}, "op": "u", "source": {}}
    assert debezium(moved).rows["v"].to_pylist() == [1.0, 1.5]


def test_types_of_a_feed_that_have_none_in_common_are_refused() -> None:
    def event(kind: str, value: object) -> dict[str, object]:
        row = {"type": "struct", "fields": [{"field": "v", "type": kind}], "field": "after"}
        schema = {"type": "struct", "fields": [row, {"field": "op", "type": "string"}]}
        return {"schema": schema, "payload": {"after": {"v": value}, "op": "c"}}

    (reason,) = refused(event("int32", 1), event("string", "a"))
    assert reason.startswith("column 'v' is int32 in feed, from row 1 on, but string in feed, from row 2 on,")
    assert "(/after/v) changed from boolean to number in row 2" in refused(upsert(id=1, v=True), upsert(id=2, v=1))[0]


def test_without_types_text_stays_text_and_whole_numbers_keep_their_digits() -> None:
    found = debezium(upsert(id=2**63, at="2026-11-25T10:00:00Z"), upsert(id=2**63 + 1, at="2026-11-25"))
    assert found.rows["id"].to_pylist() == [2**63, 2**63 + 1]
    assert found.rows["at"].to_pylist() == ["2026-11-25T10:00:00Z", "2026-11-25"]
    declared = pa.schema([("id", pa.int64()), ("price", pa.float64())])
    assert debezium(upsert(id=1, price=2**70), declared=declared).rows["price"].to_pylist() == [2.0**70]


def test_a_decimal_with_its_own_scale_is_text_or_what_the_table_declares() -> None:
    parts = [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]
    number = {"field": "v", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": parts}
    row = {"type": "struct", "fields": [number], "field": "after"}
    schema = {"type": "struct", "fields": [row, {"field": "op", "type": "string"}]}
    values = [{"scale": 3, "value": "+w=="}, {"scale": 0, "value": "BQ=="}, {"scale": -2, "value": "BQ=="}, None]
    events = [{"schema": schema, "payload": {"after": {"v": each}, "op": "c"}} for each in values]
    assert debezium(*events).rows["v"].to_pylist() == ["-0.005", "5", "500", None]
    declared = pa.schema([("v", pa.decimal128(9, 3))])
    found = debezium(*events, declared=declared).rows["v"]
    assert found.to_pylist() == [Decimal("-0.005"), Decimal(5), Decimal(500), None]


def test_a_map_is_refused_with_what_to_do_and_nanoseconds_of_a_zoned_time_are_kept() -> None:
    def event(field: dict[str, object], value: object) -> dict[str, object]:
        row = {"type": "struct", "fields": [{"field": "v", **field}], "field": "after"}
        schema = {"type": "struct", "fields": [row, {"field": "op", "type": "string"}]}
        return {"schema": schema, "payload": {"after": {"v": value}, "op": "c"}}

    text = {"type": "string"}
    assert "hstore.handling.mode=json" in refused(event({"type": "map", "keys": text, "values": text}, {"a": "b"}))[0]
    zoned = event({**text, "name": "io.debezium.time.ZonedTimestamp"}, "1970-01-01T00:00:01.1234567Z")
    assert debezium(zoned).rows["v"].cast(pa.int64()).to_pylist() == [1_123_456_700]


@pytest.mark.parametrize(
    ("event", "declared"),
    [
        ({"before": None, "after": {"id": 1}, "op": "u", "source": {}}, ["id", "v"]),
        ({"before": {"id": 1, "v": 1}, "after": {"id": 1}, "op": "u", "source": {}}, ["id", "v"]),
        ({"id": 1, "__op": "u"}, ["id", "v"]),
        ({"before": None, "after": {"id": 1}, "op": "u", "source": {}}, []),
        ({"before": None, "after": {"id": 1}, "op": "u", "source": {"v": 1}}, ["id", "v"]),
        ({"before": None, "after": {"id": 1, "text": "v"}, "op": "u", "source": {}}, ["id", "v"]),
        ({"before": None, "after": {"id": 1, "row": {"v": 1}}, "op": "u", "source": {}}, ["id", "v"]),
    ],
)
def test_an_update_without_all_columns_is_refused(event: dict[str, Any], declared: list[str]) -> None:
    flat = "__op" in event
    whole: dict[str, Any] = {"id": 1, "v": 2, "__op": "u"} if flat else upsert(id=1, v=2) | {"op": "u"}
    with_null = {"id": 1, "v": None, "__op": "u"} if flat else whole | {"after": {"id": 1, "v": None}}
    schema = pa.schema([(name, pa.int64()) for name in declared]) if declared else None
    (reason,) = refused(whole, with_null, event, declared=schema)
    assert reason.startswith(
        "feed, row 3: the update has no 'v', so the row is not known whole: let the source send whole"
    )
    gone = {"id": 1, "__op": "d"} if flat else {"before": {"id": 1}, "op": "d", "source": {}}
    assert debezium(whole, gone, declared=schema).deletes.tolist() == [False, True]
    if schema is None:
        assert debezium(event, whole).rows["v"].to_pylist() == [None, 2]


def test_a_tombstone_may_have_a_schema_around_it() -> None:
    row = {"type": "struct", "fields": [{"field": "id", "type": "int64"}], "field": "after"}
    schema = {"type": "struct", "fields": [row, {"field": "op", "type": "string"}]}
    whole = {"schema": schema, "payload": {"after": {"id": 1}, "op": "c"}}
    found = debezium(whole, {"schema": None, "payload": None}, {"schema": schema, "payload": None}, whole)
    assert found.places.tolist() == [0, 3]
    assert "row 1: its schema is null" in refused({"schema": None, "payload": whole["payload"]})[0]


def test_the_delete_where_a_row_was_has_the_order_of_the_change() -> None:
    moved = {"before": {"id": 1, "day": "1"}, "after": {"id": 1, "day": "2", "at": 7}, "op": "u", "source": {}}
    assert debezium(moved, sort_columns=("at",)).rows["at"].to_pylist() == [7, 7]
    told = {**moved, "before": {"id": 1, "day": "1", "at": 5}}
    assert debezium(told, sort_columns=("at",)).rows["at"].to_pylist() == [7, 7]


def test_a_flattened_row_has_the_types_of_its_schema() -> None:
    fields = [
        {"field": "id", "type": "int32"},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "raw", "type": "bytes"},
        {"field": "__op", "type": "string"},
    ]
    row = {"id": 1, "day": 1, "raw": "AQI=", "__op": "c"}
    found = debezium({"schema": {"type": "struct", "fields": fields}, "payload": row})
    assert found.rows.to_pylist() == [{"id": 1, "day": date(1970, 1, 2), "raw": b"\x01\x02"}]


def test_an_added_field_that_orders_the_table_is_kept() -> None:
    row = {"id": 1, "__op": "c", "__ts_ns": 5, "__table": "t"}
    assert debezium(row, sort_columns=("__ts_ns",)).rows.to_pylist() == [{"id": 1, "__ts_ns": 5}]


def test_a_row_that_moves_is_a_delete_of_what_it_was_and_an_upsert_after_it() -> None:
    moved = {"before": {"id": 1, "day": "1"}, "after": {"id": 1, "day": "2"}, "op": "u", "source": {"lsn": 5}}
    found = debezium(moved, sort_columns=("__source_lsn",))
    assert found.rows.to_pylist() == [
        {"id": 1, "day": "1", "__source_lsn": 5},
        {"id": 1, "day": "2", "__source_lsn": 5},
    ]
    assert found.deletes.tolist() == [True, False]
    assert found.places.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"before": None, "after": None, "op": "t", "source": {}}, "row 2: the source was truncated (op 't')"),
        ({"before": None, "after": None, "op": "m", "source": {}}, "row 2: it is a message, and no row (op 'm')"),
        ({"before": None, "after": None, "op": "d", "source": {}}, "row 2: it has no 'before'"),
        ({"before": None, "after": None, "op": "c", "source": {}}, "row 2: it has no 'after'"),
        (upsert(id=2, text=UNAVAILABLE), "row 2: 'text' was not sent, since a large column had not changed"),
        ("[1]", "row 2"),
    ],
)
def test_an_event_that_is_no_whole_change_is_refused_with_its_row(event: object, reason: str) -> None:
    assert any(f"feed, {reason}" in each or reason in each for each in refused(upsert(id=1, text="a"), event))


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", UNAVAILABLE, None]),
        pa.array(["YQ==", base64.b64encode(UNAVAILABLE.encode()).decode(), None]),
        pa.array(['{"a": 1}', f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}', None]),
        pa.array([["a", UNAVAILABLE], [UNAVAILABLE], None]),
        pa.array([[1, 2], list(UNAVAILABLE.encode()), []]),
        pa.array([list(reversed(UNAVAILABLE.encode())), list(UNAVAILABLE.encode()), None]),
        # What UUID.nameUUIDFromBytes of Java makes of the marker.
        pa.array([["0f0e0d0c-0b0a-3908-8706-050403020100"], ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], None]),
        pa.array([{"a": "b"}, {UNAVAILABLE: UNAVAILABLE}, None]),
    ],
    ids=lambda values: str(values.type),
)
def test_a_value_that_was_not_sent_is_known_in_columns_of_every_type(values: pa.Array) -> None:
    assert unavailable(values).tolist() == [False, True, False]


def test_a_document_of_mongodb_is_text_and_is_refused_with_what_to_do() -> None:
    (reason,) = refused({"before": None, "after": '{"_id": 1}', "op": "c", "source": {"ord": 1}})
    assert reason.startswith("feed, row 1: its 'after' is string, and no row: a document of MongoDB is flattened by")


def test_a_file_of_changes_of_the_schema_is_refused_as_that() -> None:
    told = {"source": {"lsn": 1}, "databaseName": "shop", "ddl": "ALTER TABLE orders", "tableChanges": []}
    assert refused(told) == (
        "feed, row 1: it is a change of the schema, or begins or ends a transaction: leave it out",
    )


def test_an_error_says_what_to_do_about_the_changes(tmp_path: Path) -> None:
    table = DeltaCatalog.open(tmp_path / "lake").create_table("SHOP.ORDERS.V1", primary_keys=["id"])
    rows = pa.table({"id": [1, None], "op": ["I", "I"]})
    with pytest.raises(Invalid) as error:
        table.append_changes(rows, "ops")
    what, to_do = error.value.reasons
    assert what == "the delta, row 2: the key column 'id' has no value"
    assert to_do.startswith("nothing was appended: fix these changes or leave them out, and append the file again; or")
    with pytest.raises(Invalid, match="format is \"debezum\": it must be 'ops', 'dms', 'debezium'"):
        table.append_changes(rows, "debezum")
    assert table.partitions() == []


def test_a_feed_without_the_table_s_order_is_refused() -> None:
    (reason,) = refused(upsert(id=1), sort_columns=("__source_scn",))
    assert "the changes of feed have no source.scn, by which the table orders the rows of a key" in reason


def test_flattened_rows_that_do_not_tell_their_deletes_are_refused() -> None:
    (reason,) = refused({"id": 1})
    assert "set delete.tombstone.handling.mode=rewrite, or add.fields=op" in reason


# ------------------------------------------------------------------------------------------------------- flat rows

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows_of_dms(text: str, schema: pa.Schema | None, without: tuple[str, ...] = ()) -> list[dict[str, object]]:
    found = read_dms_csv(text.encode(), schema, "file", without)
    assert isinstance(found, pa.Table)
    return found.to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I,1,a\nD,2,NULL\n", [(1, "a", False), (2, None, True)]),
        ('Op,id,name\nU,1,"NULL"\n', [(1, "NULL", False)]),
        ('1,a\n2,"b\n,"\n', [(1, "a", False), (2, "b\n,", False)]),
        ("id,name\n1,a\n", [(1, "a", False)]),
        ('I,1,\nI,2,NULL\nI,3,""\nI,,c\n', [(1, "", False), (2, None, False), (3, "", False), (None, "c", False)]),
    ],
)
def test_a_file_of_dms_has_a_header_or_not_and_a_full_load_has_no_operations(
    text: str, expected: list[tuple[object, ...]]
) -> None:
    found = changes_of_dms(read_dms_csv(text.encode(), SCHEMA, "file"), "file")
    rows = [(row["id"], row["name"]) for row in found.rows.to_pylist()]
    assert [(*row, deleted) for row, deleted in zip(rows, found.deletes.tolist(), strict=True)] == expected


@pytest.mark.parametrize(
    ("text", "schema", "reason"),
    [
        ("I,1,a\n", None, "file does not begin with a column Op, so its first line may be a header or a row: declare"),
        ("I,1,a,b,c\n", SCHEMA, "file has 5 columns and no header, and the table's schema has 2"),
        ("I,1,a\nI,2\nI,3,b\n", SCHEMA, "file is no CSV of these columns: .*; row 2: 2 columns, and not 3"),
        (
            "U,1\nD,2\n",
            pa.schema([("name", pa.string()), ("id", pa.int64())]),
            "name a column that the source has dropped",
        ),
    ],
)
def test_a_file_of_dms_that_does_not_fit_is_refused(text: str, schema: pa.Schema | None, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        read_dms_csv(text.encode(), schema, "file")


def test_values_of_dms_that_are_not_of_their_type_are_refused_with_their_rows() -> None:
    declared = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("paid", pa.decimal128(9, 2)), ("day", pa.date32())]
    )
    text = 'Op,id,name,paid,day\nI,1,"a\n",1.50,2026-11-25\nU,one,b,,2026-11-25\nU,3,,x,\nU,4,NULL,NULL,\nD,two,,,\n'
    source = FeedSource("file", read_dms_csv(text.encode(), declared, "file"))
    with pytest.raises(ChangesRefused) as error:
        source.rows_or_text()
    assert error.value.rows.keys() == {1, 4}
    assert error.value.reasons[0].startswith(
        "file, row 2: column 'id' is declared as int64, and cannot be read as that"
    )
    assert isinstance(source.content, DmsTexts)
    with pytest.raises(ChangesRefused, match=r"row 2: column 'paid' is declared as decimal128\(9, 2\)"):
        source.content.take([0, 2, 3]).converted("file")
    assert source.content.take([0, 3]).converted("file").to_pylist() == [
        {"Op": "I", "id": 1, "name": "a\n", "paid": Decimal("1.50"), "day": date(2026, 11, 25)},
        {"Op": "U", "id": 4, "name": None, "paid": None, "day": None},
    ]


def test_a_column_that_the_source_of_dms_has_dropped_is_found_by_the_feed_s_without() -> None:
    declared = pa.schema([("id", pa.string()), ("note", pa.string()), ("name", pa.string())])
    for text in ("U,1,a\n", "1,a\n", "U,1,NULL,a\n"):
        (found,) = rows_of_dms(text, declared, ("note",))
        assert {**found, "Op": "U", "note": None} == {"Op": "U", "id": "1", "note": None, "name": "a"}


def test_whole_numbers_of_dms_keep_their_digits_without_declared_types() -> None:
    changes = [(2**64, 20261125100000000000000000000000002), (1, 20261125100000000000000000000000001)]
    lines = "".join(f"I,{key},{position}\n" for key, position in changes)
    found = rows_of_dms(f"Op,id,seq\n{lines}", None)
    assert [(row["id"], row["seq"]) for row in found] == changes


def test_a_header_in_other_letters_is_no_row() -> None:
    texts = pa.schema([("id", pa.string()), ("name", pa.string())])
    assert rows_of_dms("ID,NAME\n1,a\n", texts) == [{"id": "1", "name": "a"}]


def test_values_that_are_neither_upsert_nor_delete_are_refused_with_their_rows() -> None:
    rows = pa.table({"id": [1, 2, 3], "op": ["I", "X", None]})
    with pytest.raises(Invalid) as error:
        changes_of_rows(rows, Feed.model_validate({"format": "ops", "column": "op"}), "file")
    assert error.value.reasons == (
        "file, row 2: op is 'X', which is neither an upsert nor a delete",
        "file, row 3: op is None, which is neither an upsert nor a delete",
    )


@pytest.mark.parametrize("sort_keys", [None, [("at", "ascending")]], ids=["by arrival", "by order"])
def test_a_row_before_an_update_is_deleted_where_it_was(
    tmp_path: Path, sort_keys: list[tuple[str, str]] | None
) -> None:
    """As Flink writes it, of several keys side by side, and in the order of the row after it. Of a row that has not
    moved it may come last: as Delta Lake's change data feed, its order is that of the row after it."""
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table("A.B.V1", ["r"], primary_keys=["id"], sort_keys=sort_keys)
    rows = [
        *[("+I", 1, "a", 1), ("+I", 2, "a", 1), ("+I", 3, "a", 1)],
        *[("-U", 1, "a", 1), ("-U", 2, "a", 1), ("+U", 1, "b", 2), ("+U", 2, "a", 2)],
        *[("+U", 3, "a", 4), ("-U", 3, "a", 4)],
    ]
    changes = pa.table(dict(zip(("op", "id", "r", "at"), map(list, zip(*rows, strict=True)), strict=True)))
    table.append_changes(changes[:3], "ops")
    table.append_changes(changes[3:], "ops")
    found = table.scan(view="merged").to_table().sort_by("id").select(["id", "r", "at"]).to_pylist()
    assert [tuple(each.values()) for each in found] == [(1, "b", 2), (2, "a", 2), (3, "a", 4)]
    again = lake.create_table("A.C.V1", ["r"], primary_keys=["id"], sort_keys=sort_keys)
    again.append_changes(changes, "ops")
    assert again.scan(view="merged").to_table().sort_by("id").select(["id", "r", "at"]).to_pylist() == found


def test_a_feed_that_contradicts_itself_is_refused() -> None:
    for given in (
        {"format": "ops", "columns": {"a": "x", "b": "x"}},
        {"format": "dms", "column": "Op"},
        "nothing",
        {"format": "dms", "header": True},
        {"format": "ops", "upserts": ["a"], "deletes": ["A"]},
    ):
        with pytest.raises(Invalid):
            parse_feed(given)
    assert parse_feed('{"format": "ops", "column": "op"}').column == "op"
    with pytest.raises(Invalid, match=r"it must be a JSON object$"):
        parse_feed('{"format": "ops", "column": "op"')


# --------------------------------------------------------------------------------------------------------- appending


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return DeltaCatalog.open(tmp_path / "lake").create_table(
        "A.ORDERS.V1",
        ["day"],
        primary_keys=["id"],
        sort_keys=[("seq", "ascending")],
        properties={"changes": '{"format":"ops","column":"op"}'},
    )


def test_a_batch_is_one_entry_for_each_partition_and_a_repeat_adds_nothing(table: Table) -> None:
    rows = pa.table({"id": [1, 2, 1], "day": ["1", "1", "2"], "seq": [1, 2, 3], "op": ["c", "d", "c"]})
    first = table.append_changes(rows, delta_id="batch")
    assert [(each.partition["day"], each.operation, each.delta_id) for each in first] == [
        ("1", "upsert", "batch-upserts"),
        ("1", "delete", "batch-deletes"),
        ("2", "upsert", "batch-upserts"),
    ]
    entries = len(list(table.stream({"day": "1"}).log.entries()))
    assert table.append_changes(rows, delta_id="batch") == first
    assert len(list(table.stream({"day": "1"}).log.entries())) == entries == 1


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"id": [None], "day": ["1"], "seq": [1], "op": ["c"]}, "the delta, row 1: the key column 'id' has no value"),
        ({"id": [1], "day": [None], "seq": [1], "op": ["d"]}, "the delta, row 1: 'day' has no value, so its partition"),
        ({"id": [1], "day": ["1"], "seq": [None], "op": ["d"]}, "the delta, row 1: a delete has no value of 'seq'"),
        ({"id": [1], "day": ["1"], "op": ["c"]}, "the delta has no column 'seq', without which no change"),
    ],
)
def test_a_change_that_is_not_whole_keeps_the_batch_out(
    table: Table, columns: dict[str, list[object]], reason: str
) -> None:
    with pytest.raises(Invalid) as error:
        table.append_changes(pa.table(columns))
    assert error.value.reasons[0].startswith(reason)
    assert table.partitions() == []


def test_a_table_without_a_key_takes_no_changes(tmp_path: Path) -> None:
    table = DeltaCatalog.open(tmp_path).create_table("A.ORDERS.V1", primary_keys=[])
    with pytest.raises(Invalid, match="has no primary_keys, so a change cannot say which row it is of"):
        table.append_changes(pa.table({"id": [1], "op": ["c"]}), {"format": "ops", "column": "op"})


def test_how_changes_are_written_must_be_known(tmp_path: Path) -> None:
    table = DeltaCatalog.open(tmp_path).create_table("A.ORDERS.V1", primary_keys=["id"])
    with pytest.raises(Invalid, match="set the property changes"):
        table.append_changes(pa.table({"id": [1], "op": ["c"]}))


def test_files_may_be_gzipped(tmp_path: Path) -> None:
    table = DeltaCatalog.open(tmp_path / "lake").create_table("A.ORDERS.V1", primary_keys=["id"])
    file = tmp_path / "feed.json.gz"
    file.write_bytes(gzip.compress(json.dumps(upsert(id=1)).encode()))
    (added,) = table.append_changes([file], {"format": "debezium"})
    assert added.rows == 1


# ------------------------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["20261125100000000000000000000000009", "20261125100000000000000000000000010"], pa.decimal128(38, 0)),
        (["mysql-bin.999999", "mysql-bin.1000000"], pa.int64()),
        (["00000027:00000758:0003", "0000002a:00000758:0003"], pa.binary(10)),
    ],
)
def test_positions_that_are_text_are_compared_as_what_they_are(texts: list[str], kind: pa.DataType) -> None:
    rows = pa.table({"at": [*texts, None, ""]})
    found = with_ordered_columns(changes_of_dms(rows, "file"), ["at"], None).rows.column("at")
    assert found.type == kind
    earlier, later, *nulls = found.to_pylist()
    assert earlier < later
    assert nulls == [None, None]


def test_a_table_has_the_whole_order_of_sql_server(tmp_path: Path) -> None:
    order = ("__source_commit_lsn", "__source_change_lsn", "__source_event_serial_no")
    lake = DeltaCatalog.open(tmp_path / "lake")
    table = lake.create_table("SHOP.CARTS.V1", primary_keys=["id"], sort_keys=[(each, "ascending") for each in order])
    events = [
        ("00000025:00000d98:00a2", None, None, "read"),
        ("00000027:00000ac0:0002", "00000027:00000ac0:0001", 2, "b"),
    ]
    events += [("00000027:00000AC0:0002", "00000027:00000ab0:0009", 2, "a")]
    path = tmp_path / "carts.json"
    path.write_text(
        "\n".join(
            json.dumps(
                upsert(id=1, v=v) | {"source": {"commit_lsn": commit, "change_lsn": change, "event_serial_no": serial}}
            )
            for commit, change, serial, v in events
        )
    )
    table.append_changes([path], "debezium")
    assert table.scan(view="merged").to_table()["v"].to_pylist() == ["b"]


def test_a_full_load_without_positions_says_no_type_of_them(tmp_path: Path) -> None:
    table = DeltaCatalog.open(tmp_path).create_table("A.B.V1", primary_keys=["id"], sort_keys=[("at", "ascending")])
    table.append_changes(pa.table({"id": [1, 2], "at": pa.array([None, ""])}), "dms")
    table.append_changes(pa.table({"Op": ["U"], "id": [2], "at": ["00000027:00000758:0003"]}), "dms")
    assert table.scan(view="merged").to_table()["at"].to_pylist() == [None, bytes.fromhex("00000027000007580003")]


def test_a_key_of_zero_is_one_key_with_either_sign(table: Table) -> None:
    feed = {"op": ["D", "I"], "id": [0.0, -0.0], "day": ["1", "1"], "seq": [1, 2]}
    (added,) = table.append_changes(pa.table(feed))
    assert (added.operation, added.rows) == ("upsert", 1)


def test_text_that_is_no_position_orders_nothing() -> None:
    with pytest.raises(Invalid, match="file: column 'at' is text that is no position"):
        with_ordered_columns(changes_of_dms(pa.table({"at": ["1", "b"]}), "file"), ["at"], None)
    with pytest.raises(Invalid, match="cannot be read as int8"):
        with_ordered_columns(changes_of_dms(pa.table({"at": ["1000"]}), "file"), ["at"], pa.schema([("at", pa.int8())]))


def test_global_keys_need_an_order_and_no_landing(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table("SHOP.ORDERS.V1", ["region"], primary_keys=["id"])
    rows = pa.table({"op": ["I"], "id": [1], "region": ["n"]})
    with pytest.raises(Invalid, match="has no sort_keys, and keys are looked up in all partitions by the order"):
        table.append_changes(rows, "ops", keys_are_global=True)
    with pytest.raises(Invalid, match="changes has keys_are_global, and files that land are taken in side by side"):
        table.set_properties({"changes": {"format": "dms", "keys_are_global": True}, "landing": ["s3://landing/o/"]})


def test_an_older_change_of_a_global_key_takes_no_row_away(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table("SHOP.ORDERS.V1", ["region"], primary_keys=["id"], sort_keys=[("seq", "ascending")])
    for region, seq in (("south", 2), ("north", 1), ("east", 3)):
        rows = pa.table({"op": ["U"], "id": [1], "region": [region], "seq": [seq]})
        table.append_changes(rows, "ops", keys_are_global=True)
        newest = table.scan(view="merged").to_table().select(["region", "seq"]).to_pylist()
        assert newest == [{"region": "east", "seq": 3}] if seq == 3 else [{"region": "south", "seq": 2}]


@pytest.mark.parametrize(("was", "now"), [("south", "north"), ("north", "south")])
def test_a_global_key_that_says_where_it_was_moves_either_way(tmp_path: Path, was: str, now: str) -> None:
    table = DeltaCatalog.open(tmp_path / "lake").create_table(
        "SHOP.ORDERS.V1", ["region"], primary_keys=["id"], sort_keys=[("__source_lsn", "ascending")]
    )
    rows = ({"id": 1, "region": was}, {"id": 1, "region": now})
    moved = {"before": rows[0], "after": rows[1], "op": "u", "source": {"lsn": 2}}
    (tmp_path / "a.json").write_text(json.dumps(upsert(**rows[0])) + "\n" + json.dumps(moved))
    table.append_changes([tmp_path / "a.json"], "debezium", keys_are_global=True)
    assert table.scan(view="merged").to_table().to_pylist() == [{"id": 1, "__source_lsn": 2, "region": now}]


def test_a_move_out_of_the_default_partition_is_found_or_refused_beforehand(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    table = lake.create_table(
        "SHOP.ORDERS.V1",
        ["region"],
        primary_keys=["id"],
        sort_keys=[("__source_lsn", "ascending")],
        properties={"default_partition": "unknown"},
    )
    file = tmp_path / "orders.json"
    rows = ({"id": 1, "region": None}, {"id": 1, "region": "north"})
    events = (
        {"before": before, "after": after, "op": "u", "source": {"lsn": lsn}}
        for lsn, before, after in ((1, None, rows[0]), (2, rows[0], rows[1]))
    )
    file.write_text("".join(json.dumps(each) + "\n" for each in events))
    for refusing in (
        lambda: table.append_changes([file], "debezium"),
        lambda: table.set_properties({"changes": "debezium"}),
    ):
        with pytest.raises(Invalid, match="null before a change also means that the column was not sent"):
            refusing()
    table.append_changes([file], "debezium", keys_are_global=True)
    (found,) = table.scan(view="merged").to_table().to_pylist()
    assert found["region"] == "north"


@pytest.mark.parametrize(
    ("held", "given"),
    [
        (pa.array([1, 2], pa.int64()), pa.array([1, 2], pa.int32())),
        (pa.array([1, 2], pa.int32()), pa.array([1, 2], pa.int64())),
        (pa.array([1, 2], pa.uint8()), pa.array([1, 2], pa.int64())),
        (pa.array(["1", "2"]), pa.array(["1", "2"]).dictionary_encode()),
        (pa.array(["1", "2"]).dictionary_encode(), pa.array(["1", "2"], pa.large_string())),
    ],
)
def test_a_global_key_is_found_whatever_type_holds_it(tmp_path: Path, held: pa.Array, given: pa.Array) -> None:
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table("SHOP.ORDERS.V1", ["region"], primary_keys=["id"], sort_keys=[("seq", "ascending")])
    table.append({"region": "north"}, pa.table({"id": held, "seq": [1, 1]}))
    changes = pa.table({"op": ["U", "D"], "id": given, "region": ["south", None], "seq": [2, 2]})
    table.append_changes(changes, "ops", keys_are_global=True)
    (found,) = table.scan(view="merged").to_table().to_pylist()
    assert (str(found["id"]), found["region"]) == ("1", "south")


# ------------------------------------------------------------------------------------- columns that the source has not

WITH_NOTE, WITHOUT_NOTE = {"id": "1", "note": "n", "v": "1"}, {"id": "1", "v": "2"}


def line_of(feed: str, row: dict[str, str]) -> dict[str, object]:
    what = "insert" if "note" in row else "update"
    match feed:
        case "debezium":
            return {"before": None, "after": row, "op": what[0].replace("i", "c"), "source": {"lsn": 1}}
        case "canal":
            return {"type": what.upper(), "data": [row], "isDdl": False}
        case _:
            return {"type": what, "data": row}


@pytest.mark.parametrize("feed", ["debezium", "maxwell", "canal"])
def test_a_feed_goes_on_without_a_column_that_its_source_has_dropped(
    lake: DeltaCatalog, tmp_path: Path, feed: str
) -> None:
    declared = pa.schema([(name, pa.string()) for name in WITH_NOTE])
    table = lake.create_table(
        "SHOP.NOTES.V1",
        schema=declared,
        primary_keys=["id"],
        properties={"changes": feed, "missing_columns": "refuse"},
    )
    before, after, both = tmp_path / "1.json", tmp_path / "2.json", tmp_path / "3.json"
    first, last = (json.dumps(line_of(feed, row)) for row in (WITH_NOTE, WITHOUT_NOTE))
    for file, text in ((before, first), (after, last), (both, f"{first}\n{last}")):
        file.write_text(text)
    table.append_changes([before])
    for file in (after, both):
        with pytest.raises(Invalid, match=r"the update has no 'note'.* dropped in the feed's `without`"):
            table.append_changes([file])
    table.set_properties({"changes": {"format": feed, "without": ["note"]}})
    for file in (after, both):
        assert [delta.warnings for delta in table.append_changes([file])] == [()]
        assert table.scan(view="merged").to_table().to_pylist() == [{"id": "1", "note": None, "v": "2"}]


def test_a_feed_cannot_be_without_a_key(lake: DeltaCatalog) -> None:
    table = lake.create_table("SHOP.NOTES.V1", primary_keys=["id"])
    feed = {"format": "ops", "columns": {"ID": "id"}, "without": ["ID"]}
    with pytest.raises(Invalid, match=r"the feed is without id, by which table SHOP.NOTES.V1 finds"):
        table.append_changes(pa.table({"op": ["c"], "ID": [1]}), feed)
