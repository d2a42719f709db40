"""Derived partition keys: FORMAT.md's vectors, Iceberg's own library as an oracle, and what a table makes of them."""

from __future__ import annotations

import re
from datetime import date, datetime, time
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.partition_split import Partitioning
from compactor.catalog.partition_transforms import _hashes, parse_transform
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid
from tests.effort import examples

FORMAT = (Path(__file__).parents[3] / "compactor" / "catalog" / "FORMAT.md").read_text()

OF_VECTORS: dict[str, pa.Array] = {
    "int32 or int64 34": pa.array([34], pa.int32()),
    "decimal 14.20": pa.array([Decimal("14.20")], pa.decimal128(9, 2)),
    "date 2017-11-16": pa.array([date(2017, 11, 16)]),
    "time 22:31:08": pa.array([time(22, 31, 8)], pa.time32("s")),
    "timestamp 2017-11-16T22:31:08": pa.array([datetime.fromisoformat("2017-11-16T22:31:08")], pa.timestamp("ms")),
    "text `iceberg`": pa.array(["iceberg"], pa.large_string()),
    "bytes 00 01 02 03": pa.array([b"\0\1\2\3"]),
}
OF_TRANSFORMS: dict[str, pa.Array] = {
    "int64 34": pa.array([34]),
    "int64 -1": pa.array([-1]),
    "decimal 10.65": pa.array([Decimal("10.65")]),
    "text `iceberg`": pa.array(["iceberg"]),
    "1969-12-31T23:59:59": pa.array([datetime.fromisoformat("1969-12-31T23:59:59")], pa.timestamp("ns")),
    "date 2017-11-16": pa.array([date(2017, 11, 16)], pa.date64()),
    "date 1969-01-01": pa.array([date(1969, 1, 1)]),
}


def vectors() -> list[list[str]]:
    table = FORMAT[FORMAT.index("| value | hash |") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("row", vectors(), ids=lambda row: row[0])
def test_a_hash_is_that_of_the_format(row: list[str]) -> None:
    assert _hashes(OF_VECTORS[row[0]]).astype(np.int32).tolist() == [int(row[1])]


@pytest.mark.parametrize("row", vectors(), ids=lambda row: row[3])
def test_a_partition_is_that_of_the_format(row: list[str]) -> None:
    name, value = row[3].replace("`", "", 2).split(" of ")
    transform = parse_transform("key", f"{name}(column)")
    assert transform.texts(transform.values(OF_TRANSFORMS[value])).to_pylist() == [row[4].strip("`")]


KINDS: dict[str, tuple[st.SearchStrategy[Any], pa.DataType, list[str]]] = {
    "int": (st.integers(-(2**31) + 8, 2**31 - 1), pa.int32(), ["bucket[7]", "truncate[10]", "identity"]),
    "long": (st.integers(-(2**62), 2**62), pa.int64(), ["bucket[7]", "truncate[1000]"]),
    "string": (st.text(max_size=20), pa.string(), ["bucket[7]", "truncate[3]", "identity"]),
    "boolean": (st.booleans(), pa.bool_(), ["identity"]),
    "binary": (st.binary(max_size=20), pa.binary(), ["bucket[7]"]),
    "date": (st.dates(date(1900, 1, 1)), pa.date32(), ["bucket[7]", "year", "month", "day", "identity"]),
    "timestamp": (
        st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001  (without a zone)
        pa.timestamp("us"),
        ["bucket[7]", "year", "month", "day", "hour"],
    ),
    "decimal(38,2)": (
        st.integers(-(10**37), 10**37).map(lambda unscaled: Decimal(unscaled).scaleb(-2, Context(prec=38))),
        pa.decimal128(38, 2),
        ["bucket[7]"],
    ),
    "decimal(9,2)": (
        st.decimals(-9_999_999, 9_999_999, places=2, allow_nan=False),
        pa.decimal128(9, 2),
        ["bucket[7]", "truncate[50]"],
    ),
}


@pytest.mark.parametrize(("kind", "written"), [(kind, each) for kind, (_, _, all_) in KINDS.items() for each in all_])
@examples(0.5)
@given(data=st.data())
def test_values_are_those_of_the_library_of_iceberg(kind: str, written: str, data: st.DataObject) -> None:
    from pyiceberg.transforms import parse_transform as parse_theirs
    from pyiceberg.types import PrimitiveType

    strategy, arrow_type, _ = KINDS[kind]
    values = data.draw(st.lists(strategy, min_size=1, max_size=20))
    column = pa.array(values, arrow_type)
    ours = parse_transform("key", f"{written}(column)")
    source = PrimitiveType.model_validate(kind)
    theirs = parse_theirs(written)
    internal = column.view(pa.int32() if kind == "date" else pa.int64()) if kind in ("date", "timestamp") else column
    found = [theirs.transform(source)(value) for value in internal.to_pylist()]
    texts = [theirs.to_human_string(theirs.result_type(source), each) for each in found]
    if "decimal" in kind and written.startswith("truncate"):
        texts = [str(each) for each in found]
    if kind == "boolean":
        texts = [str(each).lower() for each in found]
    assert ours.texts(ours.values(column)).to_pylist() == texts
    if "decimal" not in kind:
        assert [ours.value_of(text, arrow_type) for text in texts] == found, "and back, as a manifest has it"


@examples(0.5)
@given(count=st.integers(-(2**63) + 1, 2**63 - 1), name=st.sampled_from(["year", "month", "day", "hour"]))
def test_every_time_is_found_again_by_its_text(count: int, name: str) -> None:
    ours = parse_transform("key", f"{name}(column)")
    values = ours.values(pa.array([count], pa.timestamp("us")))
    assert ours.value_of(ours.texts(values)[0].as_py(), pa.timestamp("us")) == values[0].as_py()


@pytest.mark.parametrize(
    ("written", "kind", "texts"),
    [
        ("day", pa.date32(), ["unknown", "today", "NaT", "2026-11", "2026-11-31", "2026-11-25-01", "2026-11-25Z", ""]),
        ("hour", pa.timestamp("us"), ["2026-11-25", "26", "-", "2026-11-25T01", "2026-11-25-24"]),
        ("bucket[4]", pa.string(), ["4", "-1", "03", " 3", "x"]),
        ("truncate[3]", pa.string(), ["none"]),
        ("truncate[10]", pa.int32(), ["5", "010", "ten"]),
        ("identity", pa.bool_(), ["1", "True"]),
        ("identity", pa.int64(), ["1.0", "+1", ""]),
    ],
)
def test_a_text_that_no_value_has_is_none(written: str, kind: pa.DataType, texts: list[str]) -> None:
    transform = parse_transform("key", f"{written}(column)")
    assert [transform.value_of(text, kind) for text in texts] == [None] * len(texts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("day", "write a transform of a column"),
        ("week(at)", "write a transform of a column"),
        ("bucket(id)", "bucket and truncate, and no others, have a width"),
        ("day[3](at)", "bucket and truncate, and no others, have a width"),
        ("bucket[0](id)", "its width must be from 1"),
    ],
)
def test_what_is_no_transform_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=re.escape(reason)):
        parse_transform("key", text)


@pytest.mark.parametrize(
    ("written", "column", "reason"),
    [
        ("truncate[10]", pa.array([5, -(2**63)]), "truncate[10] of -9223372036854775808 is no int64"),
        ("truncate[10]", pa.array([-(2**31)], pa.int32()), "truncate[10] of -2147483648 is no int32"),
        ("truncate[10]", pa.array([Decimal(-(10**38) + 1)], pa.decimal128(38, 0)), "is no decimal128(38, 0)"),
        ("bucket[4]", pa.array([1, 2**64 - 1], pa.uint64()), "18446744073709551615 is beyond int64"),
    ],
)
def test_a_value_that_a_transform_has_no_value_for_is_refused(written: str, column: pa.Array, reason: str) -> None:
    with pytest.raises(Invalid, match=re.escape(reason)):
        parse_transform("key", f"{written}(column)").values(column)


def test_a_decimal_of_many_digits_is_truncated_exactly() -> None:
    value = Decimal("12345678901234567890123456789012345.67")
    found = parse_transform("key", "truncate[50](column)").values(pa.array([value], pa.decimal128(38, 2)))
    assert found.to_pylist() == [Decimal("12345678901234567890123456789012345.50")]


def test_a_transform_is_written_in_one_way() -> None:
    assert [str(parse_transform("k", each)) for each in ("bucket(16, id)", " bucket[16]( id ) ")] == [
        "bucket[16](id)"
    ] * 2


# ------------------------------------------------------------------------------------------------------------- tables


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog.open(tmp_path)


def orders(lake: DeltaCatalog, **properties: object) -> Table:
    return lake.create_table(
        "SHOP.ORDERS.V1",
        ["region"],
        primary_keys=["id"],
        properties=properties,
        partition_by={"day": "day(at)", "part": "bucket[2](id)"},
    )


def rows(*times: str | None) -> pa.Table:
    at = pa.array([None if each is None else datetime.fromisoformat(each) for each in times], pa.timestamp("us"))
    return pa.table({"id": range(len(times)), "region": ["n"] * len(times), "at": at})


def test_rows_find_the_partitions_that_are_derived(lake: DeltaCatalog) -> None:
    table = orders(lake)
    assert table.partition_keys == ("region", "day", "part")
    table.append_rows(rows("2026-11-25T01:00", "2026-11-24T23:00", "2026-11-25T23:59"))
    found = table.scan(view="merged").to_table().sort_by("id").select(["id", "day"]).to_pylist()
    assert [each["day"] for each in found] == ["2026-11-25", "2026-11-24", "2026-11-25"]


def test_changes_follow_their_rows_into_derived_partitions(lake: DeltaCatalog, tmp_path: Path) -> None:
    table = lake.create_table("SHOP.CARTS.V1", primary_keys=["id"], partition_by={"half": "truncate[50](items)"})
    file = tmp_path / "carts.json"
    file.write_text(
        '{"type": "insert", "data": {"id": 1, "items": 10}}\n'
        '{"type": "update", "data": {"id": 1, "items": 70}, "old": {"items": 10}}\n'
    )
    table.append_changes([file], "maxwell")
    assert table.scan(view="merged").to_table().to_pylist() == [{"id": 1, "items": 70, "half": "50"}]


def test_a_row_of_another_partition_is_refused(lake: DeltaCatalog) -> None:
    table = lake.create_table("SHOP.DAYS.V1", partition_by={"day": "day(at)"})
    with pytest.raises(Invalid, match=r"its column 'at' is .* in row 2, which is of day=2026-11-24: append_rows finds"):
        table.append({"day": "2026-11-25"}, rows("2026-11-25T01:00", "2026-11-24T23:00"))
    table.append({"day": "2026-11-25"}, rows("2026-11-25T01:00"))
    table.append({"day": "2026-11-25"}, pa.table({"id": [0], "at": pa.nulls(1, pa.timestamp("us"))}), "delete")


def test_rows_without_a_value_have_the_default_partition_or_none(lake: DeltaCatalog) -> None:
    table = orders(lake)
    with pytest.raises(Invalid, match=r"has no value of 'at' in row 2: .* default_partition"):
        table.append_rows(rows("2026-11-25", None))
    table.set_properties({"default_partition": "unknown"})
    table.append_rows(rows("2026-11-25", None))
    assert {each["day"] for each in table.partitions()} == {"2026-11-25", "unknown"}


def test_a_default_partition_that_a_value_may_have_is_set_at_creation_only(lake: DeltaCatalog) -> None:
    table = lake.create_table("SHOP.CODES.V1", partition_by={"code": "truncate[4](name)", "day": "day(at)"})
    for default in ("none", "2026-11-25"):
        with pytest.raises(Invalid, match=f"default_partition '{default}' may also be a value of (code|day)"):
            table.set_properties({"default_partition": default})
    for harmless in ("unknown", "missing", None):
        table.set_properties({"default_partition": harmless})
    mixed = {"default_partition": "none"}
    other = lake.create_table("SHOP.MIXED.V1", partition_by={"code": "truncate[4](name)"}, properties=mixed)
    with pytest.raises(Invalid, match="default_partition 'none' may also be a value of code"):
        other.set_properties({"default_partition": None})


def test_rows_without_the_column_are_refused_but_in_the_default_partition(lake: DeltaCatalog) -> None:
    table = lake.create_table(
        "SHOP.DAYS.V1", partition_by={"day": "day(at)"}, properties={"default_partition": "unknown"}
    )
    bare = pa.table({"id": [1]})
    with pytest.raises(Invalid, match=r"there is no column 'at', of which the partition's day is day\(at\)"):
        table.append({"day": "2026-11-25"}, bare)
    table.append({"day": "unknown"}, bare)
    table.append({"day": "2026-11-25"}, bare, "delete")


def test_a_table_takes_no_rows_that_lie_by_other_transforms(lake: DeltaCatalog) -> None:
    days, hours = orders(lake), {"partition_by": {"day": "hour(at)", "part": "bucket[2](id)"}}
    days.append_rows(rows("2026-11-25T01:00"))
    other = lake.create_table("SHOP.HOURS.V1", ["region", "day", "part"], properties=hours)
    with pytest.raises(Invalid, match=r"SHOP.HOURS.V1 has partition_by=.*hour\(at\).* than theirs"):
        lake.table_like("SHOP.HOURS.V1", days)
    with pytest.raises(Invalid, match="Choose a destination"):
        lake.create_table_like("SHOP.HOURS.V1", days)
    plain = lake.create_table("SHOP.PLAIN.V1", ["region", "day", "part"])
    assert lake.table_like("SHOP.PLAIN.V1", days).table_id == plain.table_id
    assert lake.create_table_like("SHOP.COPY.V1", days).partitioning == days.partitioning
    with pytest.raises(Invalid, match="Choose a destination"):
        lake.table_like("SHOP.HOURS.V1", plain)
    assert other.partitions() == []


def test_a_value_that_is_the_default_one_is_of_the_same_partition() -> None:
    found = Partitioning(("k",), default_partition="x").split(pa.table({"k": ["x", None, "y", "x"]}), "rows")
    assert [(partition["k"], numbers.tolist()) for partition, numbers in found] == [("x", [0, 1, 3]), ("y", [2])]


def test_contradictions_are_refused_at_creation(lake: DeltaCatalog) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pytest.raises(Invalid) as refused:
        lake.create_table("SHOP.X.V1", schema=schema, partition_by={"d": "day(name)", "e": "day(at)", "f": "week(id)"})
    assert [reason.split(":")[0] + reason.split(":")[1] for reason in refused.value.reasons] == [
        "partition_by d",
        "partition_by e is day(at), and the schema has no column 'at'",
        "partition_by f is 'week(id)'",
    ]


def test_a_private_column_is_in_no_partition_but_a_bucket(lake: DeltaCatalog) -> None:
    private = {"private_columns": ["name"]}
    lake.create_table("SHOP.B.V1", partition_by={"b": "bucket[4](name)"}, properties=private)
    with pytest.raises(Invalid, match=r"t is truncate\[2\]\(name\) of a private column: its values would be in the"):
        lake.create_table("SHOP.T.V1", partition_by={"t": "truncate[2](name)"}, properties=private)


def test_partition_by_is_set_at_creation_only(lake: DeltaCatalog) -> None:
    with pytest.raises(Invalid, match="partition_by can only be set by create_table"):
        orders(lake).set_properties({"partition_by": {"day": "hour(at)"}})
    with pytest.raises(Invalid, match="is already in"):
        lake.create_table("SHOP.ORDERS.V1", ["region", "day", "part"], partition_by={"day": "hour(at)"})
