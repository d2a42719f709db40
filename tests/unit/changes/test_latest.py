"""Which change of each key is the last one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.changes.latest import DENSE_SPREAD, last_of_each_key
from compactor.model.counts import SortKey

ENDS = {pa.int8(): (-128, 127), pa.int64(): (-(2**63), 2**63 - 1), pa.uint64(): (0, 2**64 - 1)}


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(list(ENDS)))
def test_the_last_row_of_a_key_is_found_however_far_keys_lie_apart(data: st.DataObject, kind: pa.DataType) -> None:
    lowest, highest = ENDS[kind]
    first = data.draw(st.sampled_from([lowest, 0, highest - 20]))
    near = st.integers(first, first + 20)
    keys = data.draw(st.lists(near | st.sampled_from([lowest, highest]), min_size=1, max_size=12))
    orders = data.draw(st.lists(st.integers(0, 3), min_size=len(keys), max_size=len(keys)))
    rows = pa.table({"id": pa.array(keys, kind), "at": orders})
    last = {key: number for _, number, key in sorted(zip(orders, range(len(keys)), keys, strict=True))}
    found = last_of_each_key(rows, ["id"], [SortKey(column="at")])
    assert found.tolist() == sorted(last.values())


@pytest.mark.parametrize("beyond", [-1, 0])
def test_keys_are_as_many_at_the_limit_of_their_spread(beyond: int) -> None:
    rows = pa.table({"id": [5, 5 + 2 * DENSE_SPREAD + beyond]})
    assert last_of_each_key(rows, ["id"], []).tolist() == [0, 1]


def encoded(codes: list[int], values: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), values)


@pytest.mark.parametrize("keys", [["k", "k"], [7, 7], [0.0, -0.0]])
def test_a_key_that_a_dictionary_has_twice_is_one_key(keys: list[object]) -> None:
    rows = pa.table({"id": encoded([0, 1, 0], pa.array(keys)), "part": ["a", "a", "b"]})
    assert last_of_each_key(rows, ["id"], []).tolist() == [2]
    assert last_of_each_key(rows, ["part", "id"], []).tolist() == [1, 2]


def test_a_sort_value_that_a_dictionary_has_twice_does_not_decide_and_null_there_is_the_lowest() -> None:
    values = encoded([0, 1, 2], pa.array(["noon", "noon", None]))
    rows = pa.table({"id": [1, 1, 1], "at": values})
    assert last_of_each_key(rows.take([1, 0, 2]), ["id"], [SortKey(column="at")]).tolist() == [1]
    assert last_of_each_key(rows, ["id"], [SortKey(column="at")]).tolist() == [1]
