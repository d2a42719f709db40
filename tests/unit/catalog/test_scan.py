"""What a scan shows: the live compacted rows, of the snapshot it was made at, and no more files than it must read."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.reading.scan import STREAMS_SAMPLED
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.pages.sources import blocks
from tests.rounds import compact_by_hand

ORDERS = "ACME.ORDERS.V1"
DAY, NEXT_DAY = {"day": "1995-04-03"}, {"day": "1995-04-04"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=1_000)


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock) -> DeltaCatalog:
    return DeltaCatalog(LocalStore(StoreLocation(f"file://{tmp_path}/lake")), clock)


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table(ORDERS)


@pytest.fixture
def by_day(lake: DeltaCatalog) -> Table:
    return lake.create_table("ACME.BY_DAY.V1", ["day"])


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def ids_of(rows: pa.Table) -> list[object]:
    found: list[object] = rows.column("id").to_pylist()
    return found


def test_a_scan_shows_live_files_in_file_number_order(orders: Table) -> None:
    stream = orders.stream({})
    compact_by_hand(stream, [ids(1, 2), ids(3), ids(4)])
    compact_by_hand(stream, [ids(5)], removed=[2])
    scan = orders.scan()
    assert ids_of(scan.to_table()) == [1, 2, 4, 5]
    assert [batch.num_rows for batch in scan.to_batches()] == [2, 1, 1]
    assert [Path(uri).name for uri in scan.files()] == ["1-0.parquet", "3-0.parquet", "4-0.parquet"]
    assert ids_of(pq.read_table(scan.files()[0])) == [1, 2]


def test_a_scan_goes_on_showing_the_snapshot_it_was_made_at(orders: Table) -> None:
    compact_by_hand(orders.stream({}), [ids(1)])
    scan = orders.scan()
    compact_by_hand(orders.stream({}), [ids(2)], removed=[1])
    assert ids_of(scan.to_table()) == [1]
    assert ids_of(orders.scan().to_table()) == [2]


def test_the_guide_streams_the_rows_that_match(orders: Table) -> None:
    compact_by_hand(orders.stream({}), [pa.table({"order_id": [1, 2, 3], "amount": [900, 901, 1_000]})])
    variables: dict[str, object] = {"table": orders}
    exec(blocks()["streaming"], variables)
    assert variables["total"] == 1_901


def test_one_partition_or_all_in_order(by_day: Table) -> None:
    compact_by_hand(by_day.stream(NEXT_DAY), [ids(3)])
    compact_by_hand(by_day.stream(DAY), [ids(1), ids(2)])
    assert ids_of(by_day.scan().to_table()) == [1, 2, 3]
    assert ids_of(by_day.scan(NEXT_DAY).to_table()) == [3]
    assert by_day.scan({"day": "2001-01-01"}).to_table().num_rows == 0
    assert [dict(scanned.partition) for scanned in by_day.scan().scan_files] == [DAY, DAY, NEXT_DAY]
    with pytest.raises(Invalid, match="lacks 'day'"):
        by_day.scan({})


def test_deltas_that_are_not_compacted_do_not_show(orders: Table) -> None:
    orders.append({}, ids(1))
    assert orders.scan().to_table() == pa.table({})
    compact_by_hand(orders.stream({}), [ids(1)])
    orders.append({}, ids(2))
    assert ids_of(orders.scan().to_table()) == [1]


def test_a_table_with_a_schema_has_its_columns_before_anything_is_compacted(lake: DeltaCatalog) -> None:
    table = lake.create_table(ORDERS, schema=pa.schema([("id", pa.int64()), ("note", pa.string())]))
    assert table.scan(columns=["note"]).to_table() == pa.table({"note": pa.array([], pa.string())})
    compact_by_hand(table.stream({}), [ids(1)])
    assert table.scan().to_table().to_pylist() == [{"id": 1, "note": None}]


# -- as of


def test_a_scan_as_of_an_entry_of_one_partition(by_day: Table) -> None:
    compact_by_hand(by_day.stream(DAY), [ids(1)])
    compact_by_hand(by_day.stream(DAY), [ids(2)])
    seen = [ids_of(by_day.scan(DAY, as_of=number).to_table()) for number in (1, 2)]
    assert seen == [[1], [1, 2]]
    with pytest.raises(Invalid, match="no entry 3"):
        by_day.scan(DAY, as_of=3)


def test_an_entry_number_needs_no_partition_where_there_are_no_keys(orders: Table) -> None:
    compact_by_hand(orders.stream({}), [ids(1)])
    compact_by_hand(orders.stream({}), [ids(2)])
    assert ids_of(orders.scan(as_of=1).to_table()) == [1]


@pytest.mark.parametrize(
    "as_of",
    [
        2_500,
        datetime.datetime(1970, 1, 1, 0, 0, 2, 500_000),  # noqa: DTZ001 (a time without a zone is UTC)
        datetime.datetime(1970, 1, 1, 1, 0, 2, 500_000, datetime.timezone(datetime.timedelta(hours=1))),
        "1970-01-01T00:00:02.500",
        "1970-01-01T01:00:02.500+01:00",
    ],
)
def test_a_scan_as_of_a_time_over_all_partitions(
    by_day: Table, clock: ManualClock, as_of: int | str | datetime.datetime
) -> None:
    for at_ms, partition, number in ((1_000, DAY, 1), (2_000, NEXT_DAY, 2), (3_000, DAY, 3)):
        clock.set_ms(at_ms)
        compact_by_hand(by_day.stream(partition), [ids(number)])
    assert ids_of(by_day.scan(as_of=as_of).to_table()) == [1, 2]


def test_a_time_that_is_none_is_refused(by_day: Table) -> None:
    compact_by_hand(by_day.stream(DAY), [ids(1)])
    with pytest.raises(Invalid, match="as_of is 'yesterday': write a time as"):
        by_day.scan(as_of="yesterday")


def test_a_date_is_the_time_at_which_it_begins_and_a_number_needs_one_partition(
    by_day: Table, clock: ManualClock
) -> None:
    clock.set_ms(86_400_000)
    by_day.append(DAY, ids(1))
    assert by_day.scan(DAY, as_of=datetime.date(1970, 1, 2)).to_table().num_rows == 0
    with pytest.raises(Invalid, match=r"its log begins 1970-01-02"):
        by_day.scan(DAY, as_of=datetime.date(1970, 1, 1))
    with pytest.raises(Invalid, match=r"was not there as of 1: .*; an entry number is of one partition's log"):
        by_day.scan(as_of=1)


def test_a_scan_as_of_a_time_before_the_table_or_its_one_partition_is_refused(
    lake: DeltaCatalog, by_day: Table, orders: Table, clock: ManualClock
) -> None:
    clock.set_ms(5_000)
    by_day.append(DAY, ids(1))
    with pytest.raises(Invalid, match=r"BY_DAY\.V1 was not there as of 999: it was created 1970-01-01T00:00:01\.000"):
        by_day.scan(as_of=999)
    assert by_day.scan(as_of=1_000).to_table().num_rows == 0
    for as_of in (0, "1970-01-01T00:00:04+00:00"):
        with pytest.raises(Invalid, match=r"day=1995-04-03 was not there as of .*: its log begins 1970-01-01T00:00:05"):
            by_day.scan(DAY, as_of=as_of)
    for as_of in (0, "1970-01-01T00:00:00+00:00"):
        with pytest.raises(Invalid, match=r"ORDERS\.V1 was not there as of .*: it was created"):
            orders.scan(as_of=as_of)
    with pytest.raises(Invalid, match=r"day=1995-04-04 was not there as of .*: nothing was ever appended to it"):
        by_day.scan(NEXT_DAY, as_of="1970-01-01T00:00:05+00:00")


# -- columns and schemas


def test_columns_come_in_the_order_asked(orders: Table) -> None:
    compact_by_hand(orders.stream({}), [pa.table({"id": [1], "a": ["x"], "b": [True]})])
    assert orders.scan(columns=["b", "id"]).to_table() == pa.table({"b": [True], "id": [1]})
    filtered = orders.scan(columns=["b"], filter=pc.field("a") == "x")
    assert filtered.to_table() == pa.table({"b": [True]})
    assert filtered.schema == pa.schema([("b", pa.bool_())])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [(["id", "no"], r"no column 'no' \(there are: id\)"), (["id", "id"], "twice"), ([], "no column is requested")],
)
def test_columns_that_are_not_there_are_refused(orders: Table, columns: list[str], reason: str) -> None:
    compact_by_hand(orders.stream({}), [ids(1)])
    with pytest.raises(Invalid, match=reason):
        orders.scan(columns=columns)


# JSON lines are an input format: nothing writes them.
@pytest.mark.parametrize("content_type", [each for each in ContentType if each is not ContentType.JSON])
def test_files_of_any_format_and_of_older_schemas_read_as_one_table(orders: Table, content_type: ContentType) -> None:
    stream = orders.stream({})
    compact_by_hand(stream, [pa.table({"id": pa.array([1], pa.int32())})], content_type)
    compact_by_hand(stream, [pa.table({"id": pa.array([2], pa.int64()), "note": ["x"]})])
    expected = [{"id": 1, "note": None}, {"id": 2, "note": "x"}]
    assert orders.scan().to_table().to_pylist() == expected
    assert orders.scan(columns=["note"]).to_table().to_pylist() == [{"note": None}, {"note": "x"}]
    assert orders.scan(filter=pc.field("note").is_null()).to_table().to_pylist() == expected[:1]
    assert orders.scan(filter=pc.field("id") > 1).to_table().to_pylist() == expected[1:]


# -- filters


def test_a_filter_that_fits_no_row_reads_no_file(orders: Table) -> None:
    compact_by_hand(orders.stream({}), [ids(1, 2), ids(3, 4), ids(5, 6)])
    assert len(orders.scan(filter=pc.field("id") > 4).files()) == 1
    assert len(orders.scan(filter=pc.field("id").isin([1, 6])).files()) == 2
    assert orders.scan(filter=pc.field("id") > 6).files() == []
    assert orders.scan(filter=pc.field("id").is_null()).files() == []


@pytest.mark.parametrize(
    ("inside", "outside", "kind"),
    [
        ("b", "z", pa.string()),
        (datetime.date(1995, 4, 3), datetime.date(2001, 1, 1), pa.date32()),
        (
            datetime.datetime(1995, 4, 3, tzinfo=datetime.UTC),
            datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC),
            pa.timestamp("us", "UTC"),
        ),
        (decimal.Decimal("1.10"), decimal.Decimal("9.90"), pa.decimal128(9, 2)),
        (True, False, pa.bool_()),
        (2**64 - 1, 1, pa.uint64()),
    ],
)
def test_bounds_of_every_exact_type_leave_files_out(
    orders: Table, inside: object, outside: object, kind: pa.DataType
) -> None:
    compact_by_hand(orders.stream({}), [pa.table({"id": pa.array([inside], kind)})])
    assert orders.scan(filter=pc.field("id") == pa.scalar(outside, kind)).files() == []
    assert ids_of(orders.scan(filter=pc.field("id") == pa.scalar(inside, kind)).to_table()) == [inside]


def test_row_groups_that_a_filter_excludes_are_not_read(orders: Table) -> None:
    stream = orders.stream({})
    rows = pa.table({"id": range(2), "text": [random.Random(seed).randbytes(50_000).hex() for seed in range(2)]})
    compact_by_hand(stream, [rows])
    # The file that the log names, with more row groups, of the same rows and the same size.
    path = Path(orders.scan().files()[0].removeprefix("file://"))
    size_bytes = path.stat().st_size
    pq.write_table(rows, path, row_group_size=1, compression="zstd")
    body = path.read_bytes()
    footer_at = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    path.write_bytes(body[:footer_at] + bytes(size_bytes - len(body)) + body[footer_at:])
    assert [batch.num_rows for batch in orders.scan().to_batches()] == [1, 1]
    assert ids_of(orders.scan(filter=pc.field("id") > 0).to_table()) == [1]


def test_nan_is_never_lost_to_the_bounds_of_its_column(orders: Table) -> None:
    compact_by_hand(orders.stream({}), [pa.table({"id": [1, 2], "price": [1.0, math.nan]})])
    assert ids_of(orders.scan(filter=~(pc.field("price") < 5)).to_table()) == [2]
    assert ids_of(orders.scan(filter=pc.field("price").is_nan()).to_table()) == [2]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: pc.field("no") > 1, "does not fit the table: No match for FieldRef.Name.no"),
        (lambda: pc.field("id"), "does not fit the table"),
        (lambda: pc.field("id") > "x", "does not fit the table"),
        (lambda: "id > 1", "not a PyArrow expression"),
    ],
)
def test_a_filter_that_does_not_fit_is_refused(orders: Table, make: Callable[[], object], reason: str) -> None:
    compact_by_hand(orders.stream({}), [ids(1)])
    with pytest.raises(Invalid, match=reason):
        orders.scan(filter=make())


@pytest.mark.parametrize("view", ["deltas", ""])
def test_a_view_that_there_is_not_is_refused(orders: Table, view: str) -> None:
    with pytest.raises(Invalid, match=f"there is no view '{view}'"):
        orders.scan(view=view)


numbers = st.none() | st.integers(-3, 3)
rows = st.fixed_dictionaries(
    {
        "id": numbers,
        "x": st.none() | st.sampled_from([-1.5, 0.0, 2.0, math.nan]),
        "s": st.none() | st.sampled_from("abc"),
    }
)
comparisons = st.one_of(
    st.tuples(st.sampled_from(["id"]), st.integers(-4, 4)),
    st.tuples(st.sampled_from(["x"]), st.sampled_from([-1.5, 1.0, 2.0])),
    st.tuples(st.sampled_from(["s"]), st.sampled_from("abcd")),
).flatmap(
    lambda pair: st.sampled_from(
        [
            pc.field(pair[0]) < pair[1],
            pc.field(pair[0]) >= pair[1],
            pc.field(pair[0]) == pair[1],
            pc.field(pair[0]) != pair[1],
            pc.field(pair[0]).isin([pair[1]]),
            pc.field(pair[0]).is_null(),
        ]
    )
)
filters = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=3,
)
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("s", pa.string())])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(rows, max_size=4), min_size=1, max_size=4), filters)
def test_a_scan_with_a_filter_is_the_whole_scan_filtered(
    lake: DeltaCatalog, files: list[list[dict[str, object]]], row_filter: pc.Expression
) -> None:
    table = lake.create_table(f"ACME.T.V{len(lake.tables()) + 1}")
    tables = [pa.Table.from_pylist(file, SCHEMA) for file in files]
    compact_by_hand(table.stream({}), tables)
    expected = pa.concat_tables(tables).filter(row_filter)
    # NaN differs from itself, so compare what is printed.
    assert str(table.scan(filter=row_filter).to_table().to_pylist()) == str(expected.to_pylist())


# -- partition columns


@pytest.mark.parametrize("content_type", [kind for kind in ContentType if kind is not ContentType.JSON])
def test_a_partition_key_is_a_column_where_files_lack_it(by_day: Table, content_type: ContentType) -> None:
    compact_by_hand(by_day.stream(DAY), [ids(1), ids(2)], content_type)
    compact_by_hand(by_day.stream(NEXT_DAY), [ids(1)], content_type)
    assert by_day.scan().to_table().to_pylist() == [{"id": 1} | DAY, {"id": 2} | DAY, {"id": 1} | NEXT_DAY]
    assert by_day.scan(NEXT_DAY).to_table().to_pylist() == [{"id": 1} | NEXT_DAY]
    assert by_day.scan(columns=["day"]).to_table().to_pylist() == [DAY, DAY, NEXT_DAY]
    assert by_day.scan().schema.names == ["id", "day"]
    assert by_day.scan(columns=["day", "id"]).schema.field("day").type == pa.string()


def test_a_filter_of_partition_columns_leaves_other_partitions_unread(by_day: Table) -> None:
    compact_by_hand(by_day.stream(DAY), [ids(1), ids(5)])
    compact_by_hand(by_day.stream(NEXT_DAY), [ids(1), ids(5)])
    scan = by_day.scan(columns=["id"], filter=(pc.field("day") == "1995-04-04") & (pc.field("id") > 3))
    assert ids_of(scan.to_table()) == [5]
    assert [dict(scanned.partition) for scanned in scan.scan_files] == [NEXT_DAY]
    assert by_day.scan(filter=pc.field("day") == "2001-01-01").files() == []


@pytest.mark.parametrize(
    ("row_filter", "days"),
    [
        (pc.field("day") == "1995-04-03", ["1995-04-03"]),
        ((pc.field("day") == "1995-04-03") & (pc.field("id") < 9), ["1995-04-03"]),
        (pc.field("day").isin(["1995-04-03", "1995-04-09"]), ["1995-04-03", "1995-04-09"]),
        (pc.field("day") == "2001-01-01", []),
        (pc.field("day").is_valid() & (pc.field("id") > 0), [f"1995-04-{day:02}" for day in range(1, 21)]),
    ],
)
def test_of_partitions_that_a_filter_excludes_not_even_the_log_is_read(
    lake: DeltaCatalog, by_day: Table, row_filter: pc.Expression, days: list[str]
) -> None:
    for day in range(1, 21):
        compact_by_hand(by_day.stream({"day": f"1995-04-{day:02}"}), [ids(1, 2)])
    store = FaultyStore(lake.store)
    scan = DeltaCatalog(store, ManualClock()).table(by_day.table_id).scan(filter=row_filter)
    assert [scanned.partition["day"] for scanned in scan.scan_files] == days
    assert scan.schema.names == ["id", "day"]
    read = {key.split("day=")[1][:10] for _, key in store.requests if "day=" in key}
    assert read == {"1995-04-01", *days}


def test_of_many_partitions_of_which_few_are_compacted_no_log_is_read_that_a_filter_excludes(
    lake: DeltaCatalog, by_day: Table
) -> None:
    days = [f"1995-{month:02}-{day:02}" for month in range(1, 4) for day in range(1, 29)]
    by_day.append_many([({"day": day}, ids(1), "upsert") for day in days])
    compact_by_hand(by_day.stream({"day": days[50]}), [ids(1, 2)])
    store = FaultyStore(lake.store)
    far = DeltaCatalog(store, ManualClock()).table(by_day.table_id)
    assert ids_of(far.scan(filter=pc.field("day") == days[50]).to_table()) == [1, 2]
    read = {key.split("day=")[1][:10] for _, key in store.requests if "day=" in key}
    assert read == {*days[:STREAMS_SAMPLED], days[50]}


def test_a_file_without_its_partition_s_column_has_nulls_that_a_filter_finds(by_day: Table) -> None:
    compact_by_hand(by_day.stream(DAY), [ids(1).append_column("day", pa.array(["1995-04-03"])), ids(2)])
    compact_by_hand(by_day.stream(NEXT_DAY), [ids(3)])
    assert ids_of(by_day.scan(filter=pc.field("day").is_null()).to_table()) == [2]
    assert ids_of(by_day.scan(filter=pc.field("day") == "1995-04-04").to_table()) == [3]


def test_a_request_of_columns_that_other_partitions_have_reads_all_partitions(by_day: Table) -> None:
    compact_by_hand(by_day.stream(DAY), [ids(1)])
    compact_by_hand(by_day.stream(NEXT_DAY), [ids(2).append_column("more", pa.array([7]))])
    row_filter = pc.field("day") == "1995-04-03"
    assert by_day.scan(columns=["more"], filter=row_filter).to_table().to_pylist() == [{"more": None}]
    assert ids_of(by_day.scan(filter=pc.field("more") == 7).to_table()) == [2]
    assert by_day.scan(filter=row_filter).schema.names == ["id", "day"]


def test_a_column_that_files_have_is_theirs(by_day: Table) -> None:
    compact_by_hand(by_day.stream(DAY), [pa.table({"day": ["monday"], "id": [1]})])
    compact_by_hand(by_day.stream(NEXT_DAY), [pa.table({"day": ["tuesday"], "id": [1]})])
    assert by_day.scan(DAY).to_table().to_pylist() == [{"day": "monday", "id": 1}]
    assert by_day.scan(filter=pc.field("day") == "tuesday").to_table().to_pylist() == [{"day": "tuesday", "id": 1}]


def test_a_partition_value_takes_the_type_that_the_column_has_elsewhere(lake: DeltaCatalog) -> None:
    declared = pa.schema([("day", pa.date32()), ("id", pa.int64())])
    table = lake.create_table("ACME.TYPED.V1", ["day"], declared)
    compact_by_hand(table.stream(DAY), [ids(1)])
    assert table.scan().to_table().to_pylist() == [{"day": datetime.date(1995, 4, 3), "id": 1}]
    compact_by_hand(table.stream({"day": "today"}), [ids(2)])
    with pytest.raises(Invalid, match=r"value day=today of ACME.TYPED.V1 day=today is no date32\[day\], which column"):
        table.scan()
