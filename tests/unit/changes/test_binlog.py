"""What Maxwell's events and Canal's messages say of rows, and what of them is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest

from compactor.changes.binlog import arrow_type, changes_of_canal, changes_of_maxwell
from compactor.changes.change_batch import ChangeBatch, FeedColumns
from compactor.model.errors import Invalid

Reader = Callable[..., ChangeBatch]


def read(
    reader: Reader, *events: object, declared: pa.Schema | None = None, order: tuple[str, ...] = ()
) -> ChangeBatch:
    body = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in events)
    return reader(body.encode(), FeedColumns(declared, order, {"id": False, "region": True}), "feed")


def refused(reader: Reader, *events: object, order: tuple[str, ...] = ()) -> tuple[str, ...]:
    with pytest.raises(Invalid) as error:
        read(reader, *events, order=order)
    return error.value.reasons


def maxwell(what: str, data: Mapping[str, object], **more: object) -> dict[str, object]:
    return {"database": "shop", "table": "orders", "type": what, "ts": 1, "data": data, **more}


def canal(what: str, *rows: Mapping[str, object], **more: object) -> dict[str, object]:
    return {"database": "shop", "table": "orders", "type": what, "isDdl": False, "data": list(rows), **more}


# ------------------------------------------------------------------------------------------------------------ Maxwell


def test_a_row_that_moves_is_deleted_where_it_was() -> None:
    moved = maxwell("update", {"id": 1, "region": "south", "v": 5}, old={"region": "north"})
    found = read(changes_of_maxwell, maxwell("insert", {"id": 1, "region": "north", "v": 4}), moved)
    assert found.deletes.tolist() == [False, True, False]
    assert found.rows["region"].to_pylist() == ["north", "north", "south"]
    assert found.places.tolist() == [0, 1, 1]


def test_rows_of_which_none_has_a_region_any_more_are_deleted_where_they_were() -> None:
    found = read(changes_of_maxwell, maxwell("update", {"id": 1, "region": None}, old={"region": "north"}))
    assert (found.rows["region"].to_pylist(), found.deletes.tolist()) == (["north", None], [True, False])


def test_the_row_of_a_key_that_became_another_is_deleted() -> None:
    found = read(changes_of_maxwell, maxwell("update", {"id": 2, "region": "n"}, old={"id": 1}))
    assert (found.rows["id"].to_pylist(), found.deletes.tolist()) == ([1, 2], [True, False])


def test_values_have_the_types_of_the_table() -> None:
    declared = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.decimal128(20, 10)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us")),
            ("raw", pa.binary()),
            ("paid", pa.bool_()),
            ("opens", pa.time64("us")),
        ]
    )
    row = {
        "id": 1,
        "opens": "22:31:08.5",
        "price": 0.1234567891,
        "day": "2026-11-25",
        "at": "2026-11-25 01:02:03.5",
        "raw": "AQI=",
        "paid": 1,
    }
    (found,) = read(changes_of_maxwell, maxwell("insert", row), declared=declared).rows.to_pylist()
    assert found == {
        "id": 1,
        "price": Decimal("0.1234567891"),
        "day": date(2026, 11, 25),
        "at": datetime.fromisoformat("2026-11-25T01:02:03.500"),
        "raw": b"\x01\x02",
        "paid": True,
        "opens": time(22, 31, 8, 500_000),
    }


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.date32(), "2026-11-25 01:00:00"), (pa.binary(), "A!QI="), (pa.date32(), "0000-00-00")]
)
def test_a_value_that_would_be_cut_is_refused(kind: pa.DataType, value: str) -> None:
    declared = pa.schema([("id", pa.int64()), ("v", kind)])
    with pytest.raises(Invalid, match=re.escape(f"feed, row 1: column 'v' is declared as {kind}, and ")):
        read(changes_of_maxwell, maxwell("insert", {"id": 1, "v": value}), declared=declared)
    if kind == pa.date32():
        whole = read(
            changes_of_maxwell, maxwell("insert", {"id": 1, "v": "2026-11-25 00:00:00.000"}), declared=declared
        )
        assert whole.rows["v"].to_pylist() == [date(2026, 11, 25)]


def test_a_key_of_values_of_several_types_is_read() -> None:
    """As in Maxwell's own documentation: with `output_primary_keys`."""
    row = {"id": 1, "m": 4.2341, "c": "2016-10-21 05:33:37.523000"}
    event = maxwell("insert", row, primary_key=[1, row["c"]], primary_key_columns=["id", "c"], position="m.000006:80")
    found = read(changes_of_maxwell, event, order=("__source_pos",))
    assert found.rows.to_pylist() == [{**row, "__source_pos": "80"}]
    for other in ("[1]", "{", json.dumps(maxwell("insert", {"c": "\ud800"}))):
        (reason,) = refused(changes_of_maxwell, event, other)
        assert reason.startswith("feed, row 2: it is no change event of these columns")


def test_json_is_text_where_the_table_declares_it_and_other_values_keep_their_digits() -> None:
    declared = pa.schema(
        [("id", pa.int64()), ("doc", pa.string()), ("price", pa.decimal128(21, 2)), ("s", pa.string())]
    )
    price = "1234567890123456789.12"
    docs = ['{"a":[1.50,null,"é"]}', "[1e400]", "5", '"x"', "null"]
    lines = [
        f'{{"type": "update", "data": {{"id": 1, "doc": {doc}, "price": {price}, "s": "{{}}"}}, "old": {{"doc": 1}}}}'
        for doc in docs
    ]
    found = read(changes_of_maxwell, *lines, declared=declared).rows
    assert found["doc"].to_pylist() == [*docs[:4], None]
    assert (found["price"].unique().to_pylist(), found["s"].unique().to_pylist()) == ([Decimal(price)], ["{}"])
    (fraction,) = read(changes_of_maxwell, maxwell("insert", {"doc": 1.5}), declared=declared).rows["doc"].to_pylist()
    assert fraction == "1.5"
    with pytest.raises(Invalid, match="feed, row 1: it is no change event of these columns"):
        read(changes_of_maxwell, maxwell("insert", {"doc": {}, "s": "\ud800"}), declared=declared)
    with pytest.raises(Invalid, match="feed, row 1: it is not JSON"):
        read(changes_of_maxwell, '{"type": "insert", "data": {"doc": [NaN}', declared=declared)
    with pytest.raises(Invalid, match=r"feed, row 2: it is no change event of these columns .*int64.*parse:1\.5"):
        read(changes_of_maxwell, lines[0], maxwell("insert", {"id": 1.5, "doc": {}}), declared=declared)


def test_a_type_of_mysql_that_a_value_is_not_of_is_named() -> None:
    (reason,) = refused(changes_of_canal, canal("INSERT", {"at": "0000-00-00 00:00:00"}, mysqlType={"at": "datetime"}))
    assert reason.startswith(
        "feed, row 1: column 'at' is datetime in MySQL (declare text to keep it), so timestamp[us]"
    )


def test_the_last_row_of_a_transaction_has_the_greatest_offset() -> None:
    first = maxwell("insert", {"id": 1, "region": "n"}, xid=7, xoffset=0, position="mysql-bin.000004:120")
    last = maxwell("update", {"id": 1, "region": "n"}, xid=7, commit=True, position="mysql-bin.000004:180")
    order = ("__source_xid", "__source_xoffset", "__source_file", "__source_pos")
    rows = read(changes_of_maxwell, first, last, order=order).rows
    assert rows["__source_xoffset"].to_pylist() == [0, 2**63 - 1]
    assert rows["__source_file"].to_pylist() == ["mysql-bin.000004"] * 2
    assert rows["__source_pos"].to_pylist() == ["120", "180"]


def test_an_update_without_all_columns_is_refused() -> None:
    whole = maxwell("insert", {"id": 1, "region": "n", "v": None})
    (reason,) = refused(changes_of_maxwell, whole, maxwell("update", {"id": 1, "region": "n"}))
    assert reason.startswith("feed, row 2: the update has no 'v', so the row is not known whole: set binlog_row_image")


@pytest.mark.parametrize(
    ("reader", "update"),
    [(changes_of_maxwell, maxwell("update", {"id": 1}, old={})), (changes_of_canal, canal("UPDATE", {"id": "1"}))],
)
def test_an_update_without_a_column_of_the_table_is_refused(reader: Reader, update: object) -> None:
    declared = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("__source_xid", pa.int64())])
    with pytest.raises(Invalid, match="row 1: the update has no 'v', so the row is not known whole"):
        read(reader, update, declared=declared)


def test_a_column_that_was_added_meanwhile_makes_no_earlier_update_partial() -> None:
    before, after = maxwell("update", {"id": 1}), maxwell("update", {"id": 1, "added": 2})
    assert read(changes_of_maxwell, before, after).rows["added"].to_pylist() == [None, 2]


def test_a_change_of_the_schema_is_refused_and_a_bootstrap_is_read() -> None:
    told = [maxwell("bootstrap-start", {}), maxwell("bootstrap-insert", {"id": 1}), maxwell("bootstrap-complete", {})]
    assert read(changes_of_maxwell, *told).rows["id"].to_pylist() == [1]
    assert refused(changes_of_maxwell, *told, {"type": "table-alter", "database": "shop"}) == (
        "feed, row 4: it is no change of a row (type 'table-alter')",
    )


def test_events_that_stand_behind_each_other_are_told_apart() -> None:
    line = "".join(json.dumps(maxwell("insert", {"id": number, "region": "}{"})) for number in (1, 2, 3))
    assert read(changes_of_maxwell, line, "null", "").rows["id"].to_pylist() == [1, 2, 3]


def test_an_order_that_the_events_lack_is_refused() -> None:
    assert refused(changes_of_maxwell, maxwell("insert", {"id": 1}), order=("__source_lsn",)) == (
        "the changes of feed have no 'lsn', by which the table orders the rows of a key",
    )


@pytest.mark.parametrize("name", ["region", 'a "region"'])
def test_null_before_is_told_from_a_column_that_did_not_change(name: str) -> None:
    """The value of another column may be the name, quoted."""
    text = f'"{name}"'
    rows: list[dict[str, object]] = [{"id": each, name: "n", "v": text} for each in (1, 2)]
    rows.append({"id": 3, name: None, "v": text})
    olds: tuple[dict[str, object], ...] = ({name: None}, {"v": "x"}, {name: "n"})
    body = "\n".join(json.dumps(maxwell("update", row, old=old)) for row, old in zip(rows, olds, strict=True)).encode()
    found = changes_of_maxwell(body, FeedColumns(None, (), {"id": False, name: True}), "feed")
    assert found.places.tolist() == [0, 0, 1, 2, 2]
    assert found.deletes.tolist() == [True, False, False, True, False]
    assert found.rows[name].to_pylist() == [None, "n", "n", "n", None]


# -------------------------------------------------------------------------------------------------------------- Canal


def test_a_row_of_several_in_a_message_had_no_region_before() -> None:
    rows = [{"id": "1", "region": "n"}, {"id": "2", "region": "n"}]
    found = read(changes_of_canal, canal("UPDATE", *rows, old=[{"id": "3"}, {"region": None}]))
    assert found.rows.to_pylist() == [{"id": "3", "region": "n"}, {"id": "2", "region": None}, *rows]
    assert found.deletes.tolist() == [True, True, False, False]


def test_a_column_that_only_later_messages_have_stays_text() -> None:
    told = [
        canal("INSERT", {"id": "1"}),
        canal("INSERT", {"id": "2", "at": "2026-11-25 01:02:03"}),
        canal("DELETE", {"id": "1"}),
    ]
    assert read(changes_of_canal, *told).rows["at"].to_pylist() == [None, "2026-11-25 01:02:03", None]


def test_an_update_of_canal_without_all_columns_is_refused() -> None:
    partial = canal("UPDATE", {"id": "2"}, old=[{"id": "1"}])
    (reason,) = refused(changes_of_canal, canal("INSERT", {"id": "1", "region": None}), partial)
    assert reason.startswith("feed, row 2: the update has no 'region', so the row is not known whole")


def test_text_gets_the_types_of_mysql() -> None:
    types = {"id": "bigint(20)", "price": "decimal(10,2)", "day": "date", "at": "datetime(3)", "name": "varchar(8)"}
    row = {"id": "1", "price": "5.15", "day": "2026-11-25", "at": "2026-11-25 01:02:03.500", "name": None}
    (found,) = read(changes_of_canal, canal("INSERT", row, mysqlType=types)).rows.to_pylist()
    assert found == {
        "id": 1,
        "price": Decimal("5.15"),
        "day": date(2026, 11, 25),
        "at": datetime.fromisoformat("2026-11-25T01:02:03.500"),
        "name": None,
    }


def test_a_message_has_several_rows_and_the_columns_that_changed() -> None:
    now = [{"id": "1", "region": "s"}, {"id": "2", "region": "s"}]
    found = read(changes_of_canal, canal("UPDATE", *now, old=[{"region": "n"}, {"id": "3"}]))
    assert found.rows.to_pylist() == [
        {"id": "1", "region": "n"},
        {"id": "3", "region": "s"},
        {"id": "1", "region": "s"},
        {"id": "2", "region": "s"},
    ]
    assert found.deletes.tolist() == [True, True, False, False]


def test_bytes_are_a_character_each() -> None:
    declared = pa.schema([("id", pa.int64()), ("raw", pa.binary())])
    found = read(changes_of_canal, canal("INSERT", {"id": "1", "raw": "\u00ff\u0001"}), declared=declared)
    assert found.rows["raw"].to_pylist() == [b"\xff\x01"]


def test_what_is_no_change_of_a_row_is_refused() -> None:
    assert refused(changes_of_canal, canal("TRUNCATE"), canal("ALTER", isDdl=True)) == (
        "feed, row 1: it is no change of a row (type 'TRUNCATE')",
        "feed, row 2: it is no change of a row (type 'ALTER')",
    )
    assert refused(changes_of_canal, canal("INSERT", {"id": "1"}), canal("DELETE")) == (
        "feed, row 2: its data has no rows",
    )
    assert refused(changes_of_canal, "{") == (
        "feed, row 1: it is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
    )


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("bigint(20) unsigned", pa.uint64()),
        ("int unsigned", pa.int64()),
        ("decimal(12,3)", pa.decimal128(12, 3)),
        ("decimal(12, 3)", pa.decimal128(12, 3)),
        ("decimal(65,30)", pa.string()),
        ("numeric", pa.decimal128(10, 0)),
        ("timestamp", pa.timestamp("us")),
        ("json", pa.string()),
        ("", pa.string()),
    ],
)
def test_types_of_mysql(written: str, kind: pa.DataType) -> None:
    assert arrow_type(written) == kind
