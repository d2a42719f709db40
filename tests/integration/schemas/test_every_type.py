"""Every Arrow type that `append` takes can be compacted, scanned, merged and looked up.

Rows are compared after two deltas, so that each column's rows are taken out of files, put in order and written anew.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.schemas.cast import plain_table, python_rows
from compactor.schemas.unify import plain_schema
from tests.arrow_types import KEY_TYPES
from tests.conftest import Command
from tests.fakes.unruly_engine import UnrulyEngine

TABLE_ID = "ACME.TYPES.V1"
VIEWS = (pa.string_view(), pa.binary_view())
TIMES = (pa.timestamp("s"), pa.timestamp("s", "UTC"), pa.time32("s"), pa.time32("ms"), pa.date64(), pa.duration("s"))
DAYS = [dt.date(2020, 1, 1), None, dt.date(1960, 2, 29), dt.date(1970, 1, 1)]


def _plain_values(kind: pa.DataType) -> list[object]:  # noqa: PLR0911 (one for each kind of value)
    if pa.types.is_decimal(kind):
        return [Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.00")]
    if pa.types.is_boolean(kind):
        return [True, None, False, True]
    if pa.types.is_float16(kind):
        return [np.float16(1.5), None, np.float16(-2), np.float16(0)]
    if pa.types.is_fixed_size_binary(kind):
        return [b"abc", None, b"\x00\x00\x00", b"xyz"]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return ["a", None, "", "a longer text than a view holds itself"]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return [b"a", None, b"", b"\xff more bytes than a view holds itself"]
    if pa.types.is_date(kind):
        return list(DAYS)
    if pa.types.is_dictionary(kind):
        return _plain_values(kind.value_type)
    return [1, None, 0, 3]


PLAIN = {str(each.arrow_type): pa.array(_plain_values(each.arrow_type), each.arrow_type) for each in KEY_TYPES}


def _nested(kind: pa.DataType) -> dict[str, pa.Array]:
    """Every way to nest a type."""
    first, _, _, last = _plain_values(kind)
    lists = [[first], None, [], [last, None]]
    values = {
        "list": (pa.list_(kind), lists),
        "large_list": (pa.large_list(kind), lists),
        "list_view": (pa.list_view(kind), lists),
        "large_list_view": (pa.large_list_view(kind), lists),
        "fixed_size_list": (pa.list_(kind, 1), [[first], None, [None], [last]]),
        "map": (pa.map_(pa.int8(), kind), [[(1, first)], None, [], [(2, last), (3, None)]]),
        "map_key": (pa.map_(kind, pa.int8()), [[(first, 1)], None, [], [(last, None)]]),
        "struct": (pa.struct([("a", kind), ("b", pa.int8())]), [{"a": first, "b": 1}, None, {}, {"a": last}]),
        "struct_of_list": (pa.struct([("a", pa.list_(kind))]), [{"a": [first]}, None, {}, {"a": [last]}]),
    }
    return {f"{name}({kind})": pa.array(rows, nested) for name, (nested, rows) in values.items()}


IN_PARQUET = {
    **PLAIN,
    **{name: array for kind in (pa.string(), *VIEWS, *TIMES) for name, array in _nested(kind).items()},
    "null": pa.nulls(4),
    "uuid": pa.array([b"0" * 16, None, b"1" * 16, b"2" * 16], pa.uuid()),
    "json": pa.array(["1", None, "{}", "2"], pa.json_()),
    "json(view)": pa.array(["1", None, "{}", "2"], pa.json_(pa.string_view())),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1, 4], pa.int32()), pa.array(["a", None])),
    "run ends(view)": pa.RunEndEncodedArray.from_arrays(pa.array([1, 4], pa.int32()), pa.array(["a", None], VIEWS[0])),
    "dictionary(view)": pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1, 0], pa.int8()), pa.array(["a", "b"], pa.string_view())
    ),
}
IN_FEATHER = {
    **IN_PARQUET,
    "interval": pa.array([(1, 2, 3), None, (0, 0, 0), (4, 5, 6)], pa.month_day_nano_interval()),
    "empty struct": pa.array([{}, None, {}, {}], pa.struct([])),
}
UNION = pa.UnionArray.from_dense(
    pa.array([0, 1, 0, 1], pa.int8()), pa.array([0, 0, 1, 1], pa.int32()), [pa.array([1, 2]), pa.array(["a", "b"])]
)


def first_and_second(arrays: dict[str, pa.Array]) -> tuple[pa.Table, pa.Table]:
    """Four rows; and the last two of them once more, the last one under a key of its own."""
    rows = pa.table({"id": [1, 2, 3, 4], **arrays})
    return rows, rows.slice(2).set_column(0, "id", pa.array([3, 5]))


@pytest.mark.parametrize("content_type", [ContentType.PARQUET, ContentType.FEATHER])
def test_every_type_that_is_appended_is_compacted(lake: DeltaCatalog, content_type: ContentType) -> None:
    arrays = IN_PARQUET if content_type is ContentType.PARQUET else IN_FEATHER
    table = lake.create_table(TABLE_ID)
    for rows in first_and_second(arrays):
        added = table.append({}, rows, content_type=content_type, delta_id=str(rows["id"]))
        assert table.append({}, rows, content_type=content_type, delta_id=str(rows["id"])) == added
    check(lake, table, arrays, content_type)


@pytest.mark.parametrize("content_type", [ContentType.PARQUET, ContentType.FEATHER])
def test_every_type_of_a_registered_file_is_compacted(
    lake: DeltaCatalog, content_type: ContentType, tmp_path: Path
) -> None:
    arrays = IN_PARQUET if content_type is ContentType.PARQUET else IN_FEATHER
    not_written = ("run ends", "struct(string_view", "struct(binary_view", "struct_of_list(", "dictionary(view)")
    if content_type is ContentType.PARQUET:  # PyArrow does not write these
        arrays = {name: array for name, array in arrays.items() if not name.startswith(not_written)}
    table = lake.create_table(TABLE_ID)
    write: Callable[..., None] = pq.write_table if content_type is ContentType.PARQUET else write_ipc
    for number, rows in enumerate(first_and_second(arrays)):
        write(rows, tmp_path / f"{number}.{content_type.file_suffix}")
        table.append({}, [tmp_path / f"{number}.{content_type.file_suffix}"])
    check(lake, table, arrays, content_type)


def write_ipc(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, rows.schema) as writer:
        writer.write_table(rows)


def check(lake: DeltaCatalog, table: Table, arrays: dict[str, pa.Array], content_type: ContentType) -> None:
    def run() -> None:
        compact(
            TABLE_ID,
            {"id"},
            delta_catalog_client=lake,
            compacted_file_content_type=content_type,
            hash_bucket_count=2,
            engine=UnrulyEngine(),
        )

    run()
    _, second = first_and_second(arrays)
    table.append({}, second, content_type=content_type)
    for view in ("compacted", "merged"):
        found = table.scan(view=view).to_table().sort_by("id")
        assert plain_schema(found.schema) == found.schema
        for name, array in arrays.items():
            expected = python_rows(plain_table(pa.table({"v": array})))
            seen = python_rows(found.select([name]).rename_columns(["v"]))
            assert repr(seen) == repr([expected[place] for place in (0, 1, 2, 3, 3)]), name
    check_filters(table, arrays)
    run()
    for key, place in ((1, 0), (5, 3)):
        row = table.lookup({}, {"id": key})
        assert row is not None
        for name, array in arrays.items():
            assert repr(row[name]) == repr(python_rows(plain_table(pa.table({"v": array})))[place]["v"]), name


def check_filters(table: Table, arrays: dict[str, pa.Array]) -> None:
    """With a filter, a scan of every type gives what PyArrow gives for all rows: all columns or one, in both views, and
    as of an entry."""
    first = table.stream({}).load().entry_number - 1
    by_id = pc.field("id") > 1
    for scan in (table.scan, partial(table.scan, view="merged"), partial(table.scan, as_of=first)):
        whole = scan().to_table()
        of_first = whole.filter(pc.field("id") == 1)
        assert scan(filter=by_id).to_table().equals(whole.filter(by_id))
        for name in ("time32[s]", "timestamp[s]"):
            at_most = pc.field(name) <= whole[name].drop_null()[0]
            expected = whole.filter(at_most).select(["id"])
            assert scan(columns=["id"], filter=at_most).to_table().equals(expected)
            of_struct = pc.field(f"struct({name})", "a") == of_first[f"struct({name})"][0]["a"]
            assert scan(columns=["id"], filter=of_struct).to_table()["id"].to_pylist() == [1]
        projected = list(arrays)[::7]
        assert scan(columns=projected).to_table().equals(whole.select(projected))


def test_a_union_is_refused(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE_ID)
    with pytest.raises(Invalid, match=r"column 'v' has type dense_union<.*>, which no data file can hold"):
        table.append({}, pa.table({"id": [1, 2, 3, 4], "v": UNION}), content_type="feather")


def test_a_declared_schema_has_no_views_and_names_the_same_table(lake: DeltaCatalog) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.string_view()))])
    assert lake.create_table(TABLE_ID, schema=schema).schema == pa.schema(
        [("id", pa.int64()), ("v", pa.list_(pa.string()))]
    )
    assert lake.create_table(TABLE_ID, schema=schema).table_id == TABLE_ID


def test_nanoseconds_are_shown_as_text_where_python_has_no_value_for_them(lake: DeltaCatalog, command: Command) -> None:
    table = lake.create_table(TABLE_ID)
    at = pa.array([1_600_000_000_123_456_789], pa.timestamp("ns", "UTC"))
    table.append({}, pa.table({"id": [1], "at": at, "deep": pa.array([[1]], pa.list_(pa.timestamp("ns")))}))
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())
    row = table.lookup({}, {"id": 1})
    assert row == {"id": 1, "at": "2020-09-13 12:26:40.123456789Z", "deep": ["1970-01-01 00:00:00.000000001"]}
    result = command("table", "scan", TABLE_ID, "--lake", lake.location.root_uri, "--output", "json")
    assert (result.exit_code, "123456789" in result.out) == (0, True), result.err
