"""The content digest sees every value and no accident of its storage."""

from __future__ import annotations

import datetime
import decimal
import itertools
import zoneinfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.content_digest import ContentDigest
from compactor.model.errors import Invalid

_DAY = datetime.date(1995, 4, 3)
_TIME = datetime.datetime(1995, 4, 3, 12, tzinfo=zoneinfo.ZoneInfo("UTC"))

VALUES: list[tuple[pa.DataType, list[object]]] = [
    (pa.null(), [None, None]),
    (pa.bool_(), [True, None, False, True]),
    (pa.int8(), [1, None, -3]),
    (pa.uint64(), [2**64 - 1, None, 0]),
    (pa.float16(), [1.5, None, -2.0]),
    (pa.float64(), [1.5, None, float("inf")]),
    (pa.string(), ["a", None, "", "bc"]),
    (pa.large_string(), ["a", None, "", "bc"]),
    (pa.string_view(), ["a", None, "", "a string longer than twelve bytes"]),
    (pa.binary(), [b"a", None, b"", b"bc"]),
    (pa.binary(2), [b"ab", None, b"cd"]),
    (pa.decimal128(20, 2), [decimal.Decimal("1.10"), None]),
    (pa.decimal256(40, 2), [decimal.Decimal("1.10"), None]),
    (pa.date32(), [_DAY, None]),
    (pa.time64("us"), [datetime.time(1, 2, 3), None]),
    (pa.timestamp("us", "UTC"), [_TIME, None]),
    (pa.duration("ms"), [datetime.timedelta(seconds=3), None]),
    (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3]), None]),
    (pa.list_(pa.string()), [["a", None], None, [], ["b"]]),
    (pa.large_list(pa.int32()), [[1], None, [], [2, 3]]),
    (pa.list_(pa.int32(), 2), [[1, 2], None, [3, None]]),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), [{"x": 1, "y": None}, None, {"x": None, "y": "b"}]),
    (pa.map_(pa.string(), pa.int32()), [[("k", 1), ("l", None)], None, []]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b", "a"]),
    (pa.list_(pa.struct([("x", pa.list_(pa.int8()))])), [[{"x": [1]}, None], None, [{"x": None}]]),
]
_of_each_type = pytest.mark.parametrize(("arrow_type", "values"), VALUES, ids=[str(each) for each, _ in VALUES])


def digest(*tables: pa.Table) -> str:
    whole = ContentDigest(tables[0].schema)
    for table in tables:
        whole.add(table)
    return whole.hexdigest()


def table_of(arrow_type: pa.DataType, values: list[object]) -> pa.Table:
    return pa.table({"column": pa.array(values, arrow_type)})


@_of_each_type
def test_chunks_and_slices_do_not_show(arrow_type: pa.DataType, values: list[object]) -> None:
    whole = table_of(arrow_type, values * 3)
    by_one = [whole.slice(row, 1) for row in range(whole.num_rows)]
    within = table_of(arrow_type, [*values, *values * 3, *values]).slice(len(values), 3 * len(values))
    assert digest(whole) == digest(*by_one) == digest(pa.concat_tables(by_one)) == digest(within)


@_of_each_type
def test_order_nulls_and_number_of_rows_show(arrow_type: pa.DataType, values: list[object]) -> None:
    as_is = digest(table_of(arrow_type, values))
    assert as_is != digest(table_of(arrow_type, values[:-1]))
    assert as_is != digest(table_of(arrow_type, [*values, None]))
    if arrow_type != pa.null():
        assert as_is != digest(table_of(arrow_type, values[::-1]))


def test_bytes_under_a_null_have_no_effect() -> None:
    dirty = pa.Array.from_buffers(
        pa.int32(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer((7).to_bytes(4, "little") + (9).to_bytes(4, "little"))]
    )
    assert digest(pa.table({"column": dirty})) == digest(table_of(pa.int32(), [7, None]))


def test_a_dictionary_in_another_order_does_not_show() -> None:
    one = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), ["a", "b"])
    other = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), ["b", "a"])
    assert digest(pa.table({"column": one})) == digest(pa.table({"column": other}))


def test_names_types_and_borders_between_values_show() -> None:
    tables = [
        pa.table({"a": ["ab", "c"]}),
        pa.table({"a": ["a", "bc"]}),
        pa.table({"b": ["ab", "c"]}),
        pa.table({"a": pa.array([b"ab", b"c"])}),
        pa.table({"a": ["ab", "c"], "b": ["", ""]}),
        pa.table({"b": ["", ""], "a": ["ab", "c"]}),
    ]
    assert len({digest(table) for table in tables}) == len(tables)


def test_an_empty_table_has_a_digest_of_its_schema() -> None:
    assert digest(pa.table({"a": pa.array([], pa.int8())})) != digest(pa.table({"a": pa.array([], pa.int16())}))


def test_a_union_is_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(Invalid, match="'column' has type"):
        ContentDigest(pa.schema([("column", union.type)]))


@given(st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=8), st.lists(st.integers(0, 8), max_size=3))
def test_any_cutting_of_any_texts_gives_one_digest(values: list[object], cuts: list[int]) -> None:
    table = table_of(pa.string(), values)
    borders = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    assert digest(*(table.slice(a, b - a) for a, b in itertools.pairwise(borders))) == digest(table)
