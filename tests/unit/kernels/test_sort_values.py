"""Sort values as bytes: they compare as the values do, nulls and NaN below all of them, and come back unchanged."""

from __future__ import annotations

import functools
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.sort_values import (
    SortColumn,
    decode_sort_values,
    encode_sort_values,
    encoded_width,
    fixed_width_bytes,
)
from tests.arrow_types import KEY_TYPES, KeyType, Raw
from tests.effort import examples

SORT_TYPES = [kind for kind in KEY_TYPES if kind.sortable and not pa.types.is_dictionary(kind.arrow_type)]
_every_type = pytest.mark.parametrize("kind", SORT_TYPES, ids=str)
_both_orders = pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])


def encode(columns: list[tuple[KeyType, list[Raw | None], bool]]) -> list[bytes]:
    named = [SortColumn(f"s{n}", kind.arrow_type, descending) for n, (kind, _, descending) in enumerate(columns)]
    rows = len(columns[0][1])
    encoded = encode_sort_values(named, [kind.array(values) for kind, values, _ in columns], rows)
    assert encoded.shape == (rows, encoded_width(named))
    return [row.tobytes() for row in encoded]


def has_no_value(value: Raw | None) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def plain_compare(one: Raw | None, other: Raw | None, descending: bool) -> int:
    """-1, 0 or 1 by the rules of survival: null and NaN lose to any value, whichever order is asked for."""
    if has_no_value(one) or has_no_value(other):
        return int(has_no_value(other)) - int(has_no_value(one))
    in_order = int(one > other) - int(one < other)  # type: ignore[operator]
    return -in_order if descending else in_order


def sign_of(one: bytes, other: bytes) -> int:
    return int(one > other) - int(one < other)


@_both_orders
@_every_type
@examples(0.1)
@given(data=st.data())
def test_bytes_compare_as_the_values_do(kind: KeyType, descending: bool, data: st.DataObject) -> None:
    values: list[Raw | None] = data.draw(st.lists(st.none() | kind.values, min_size=2, max_size=6))
    encoded = encode([(kind, values, descending)])
    for one, one_bytes in zip(values, encoded, strict=True):
        for other, other_bytes in zip(values, encoded, strict=True):
            assert sign_of(one_bytes, other_bytes) == plain_compare(one, other, descending), (one, other)


@_both_orders
@_every_type
@examples(0.1)
@given(data=st.data())
def test_values_come_back_with_nan_as_null_and_negative_zero_as_zero(
    kind: KeyType, descending: bool, data: st.DataObject
) -> None:
    values: list[Raw | None] = data.draw(st.lists(st.none() | kind.values, max_size=6))
    column = SortColumn("s", kind.arrow_type, descending)
    (decoded,) = decode_sort_values([column], encode_sort_values([column], [kind.array(values)], len(values)))
    plain = [
        None if has_no_value(value) else 0.0 if value == 0.0 and isinstance(value, float) else value for value in values
    ]
    assert decoded.type == kind.arrow_type
    assert decoded.equals(kind.array(plain))
    decoded.validate(full=True)


@st.composite
def sort_columns(draw: st.DrawFn) -> list[tuple[KeyType, list[Raw | None], bool]]:
    kinds = draw(st.lists(st.sampled_from(SORT_TYPES), min_size=1, max_size=3))
    # Few values, so that rows tie in the first columns.
    pools = [draw(st.lists(st.none() | kind.values, min_size=1, max_size=2)) for kind in kinds]
    rows = draw(st.integers(1, 6))
    return [
        (kind, [draw(st.sampled_from(pool)) for _ in range(rows)], draw(st.booleans()))
        for kind, pool in zip(kinds, pools, strict=True)
    ]


@given(sort_columns())
def test_several_columns_compare_first_column_first(columns: list[tuple[KeyType, list[Raw | None], bool]]) -> None:
    encoded = encode(columns)
    rows = range(len(encoded))

    def compare(one: int, other: int) -> int:
        signs = (plain_compare(values[one], values[other], descending) for _, values, descending in columns)
        return next((sign for sign in signs if sign), 0)

    by_bytes = sorted(rows, key=lambda row: encoded[row])
    by_value = sorted(rows, key=functools.cmp_to_key(compare))
    assert by_bytes == by_value


@_every_type
def test_slices_of_a_column_are_encoded_as_if_they_were_whole(kind: KeyType) -> None:
    values = [None, *_some_values(kind), None]
    column = SortColumn("s", kind.arrow_type, descending=True)
    whole = encode_sort_values([column], [kind.array(values)], len(values))
    sliced = encode_sort_values([column], [kind.array(values).slice(1)], len(values) - 1)
    assert np.array_equal(whole[1:], sliced)


def _some_values(kind: KeyType) -> list[Raw]:
    if pa.types.is_boolean(kind.arrow_type):
        return [True, False]
    if pa.types.is_fixed_size_binary(kind.arrow_type) and not pa.types.is_decimal(kind.arrow_type):
        return [b"abc", b"\x00\xff\x00"]
    return [1, 0]


def test_a_tombstone_s_values_of_no_rows_have_the_right_width() -> None:
    columns = [SortColumn("a", pa.int64(), False), SortColumn("b", pa.binary(3), True)]
    assert encoded_width(columns) == 1 + 8 + 1 + 3
    assert encode_sort_values(columns, [pa.array([], pa.int64()), pa.array([], pa.binary(3))], 0).shape == (0, 13)
    assert [each.type for each in decode_sort_values(columns, np.empty((0, 13), np.uint8))] == [
        pa.int64(),
        pa.binary(3),
    ]


@pytest.mark.parametrize(
    "arrow_type", [pa.string(), pa.large_binary(), pa.list_(pa.int8()), pa.month_day_nano_interval()], ids=str
)
def test_a_type_without_a_fixed_width_has_none(arrow_type: pa.DataType) -> None:
    assert fixed_width_bytes(arrow_type) is None
