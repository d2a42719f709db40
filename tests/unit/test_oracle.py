"""The oracle says what the rules of survival say: each rule once, by an example small enough to check by eye."""

from __future__ import annotations

import pytest

from compactor.model.names import Operation
from tests.oracle import OracleDelta, OracleSortKeys, surviving_rows

UPSERT, DELETE = Operation.UPSERT, Operation.DELETE
NAN = float("nan")
BY_TIME = [("time", "ascending")]


def values_of(deltas: list[OracleDelta], sort_keys: OracleSortKeys = ()) -> dict[object, object]:
    return {row["id"]: row.get("value") for row in surviving_rows(deltas, ["id"], sort_keys)}


def upsert(position: int, *rows: dict[str, object]) -> OracleDelta:
    return position, UPSERT, [list(rows)]


def delete(position: int, *rows: dict[str, object]) -> OracleDelta:
    return position, DELETE, [list(rows)]


def test_the_latest_stream_position_wins_by_default() -> None:
    assert values_of([upsert(2, {"id": 1, "value": "new"}), upsert(1, {"id": 1, "value": "old"})]) == {1: "new"}


def test_within_a_delta_the_later_file_wins_and_within_a_file_the_later_row() -> None:
    files = [[{"id": 1, "value": "a"}, {"id": 1, "value": "b"}], [{"id": 2, "value": "c"}, {"id": 1, "value": "d"}]]
    assert values_of([(1, UPSERT, files)]) == {1: "d", 2: "c"}
    assert values_of([(1, UPSERT, files[:1])]) == {1: "b"}


def test_a_deleted_key_is_gone_and_a_later_row_brings_it_back() -> None:
    deltas = [upsert(1, {"id": 1}, {"id": 2}), delete(2, {"id": 1})]
    assert values_of(deltas) == {2: None}
    assert values_of([*deltas, upsert(3, {"id": 1, "value": "back"})]) == {1: "back", 2: None}


@pytest.mark.parametrize(("order", "winner"), [("ascending", "late"), ("descending", "early")])
def test_the_row_that_is_last_in_the_order_of_the_sort_keys_wins(order: str, winner: str) -> None:
    rows = [{"id": 1, "time": 9, "value": "late"}, {"id": 1, "time": 3, "value": "early"}]
    assert values_of([upsert(1, rows[0]), upsert(2, rows[1])], [("time", order)]) == {1: winner}
    assert values_of([upsert(1, rows[1]), upsert(2, rows[0])], [("time", order)]) == {1: winner}


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("nothing", [None, NAN])
def test_a_null_or_nan_sort_value_loses_to_any_value(order: str, nothing: float | None) -> None:
    deltas = [
        upsert(1, {"id": 1, "time": 0.5, "value": "has"}),
        upsert(2, {"id": 1, "time": nothing, "value": "lacks"}),
    ]
    assert values_of(deltas, [("time", order)]) == {1: "has"}


def test_ties_go_to_the_later_row() -> None:
    assert values_of([upsert(1, {"id": 1, "time": 5, "value": "a"}, {"id": 1, "time": 5, "value": "b"})], BY_TIME) == {
        1: "b"
    }


def test_a_delete_with_sort_values_takes_part_in_the_order() -> None:
    deltas = [
        upsert(1, {"id": 1, "time": 5}, {"id": 2, "time": 5}),
        delete(2, {"id": 1, "time": 7}, {"id": 2, "time": 3}),
    ]
    assert values_of(deltas, BY_TIME) == {2: None}
    late = upsert(3, {"id": 1, "time": 6, "value": "late, older"})
    assert values_of([*deltas, late], BY_TIME) == {2: None}


def test_a_delete_without_sort_values_beats_all_before_it_and_loses_to_all_after_it() -> None:
    deltas = [upsert(1, {"id": 1, "time": 99}), delete(2, {"id": 1})]
    assert values_of(deltas, BY_TIME) == {}
    assert values_of([*deltas, upsert(3, {"id": 1, "time": 0, "value": "after"})], BY_TIME) == {1: "after"}


def test_null_keys_are_equal_and_differ_from_empty_ones_and_nan_keys_are_equal() -> None:
    deltas = [upsert(1, {"id": None, "value": 1}, {"id": "", "value": 2}, {"id": None, "value": 3})]
    assert values_of(deltas) == {None: 3, "": 2}
    rows = surviving_rows([upsert(1, {"id": NAN, "value": 1}, {"id": -NAN, "value": 2})], ["id"], ())
    assert [row["value"] for row in rows] == [2]


def test_all_columns_of_a_key_count() -> None:
    rows: list[dict[str, object]] = [{"a": 1, "b": None}, {"a": 1, "b": 2}, {"a": 1, "b": None}]
    assert len(surviving_rows([upsert(1, *rows)], ["a", "b"], ())) == 2


def test_a_delete_is_forgotten_after_its_retention() -> None:
    deltas = [upsert(1, {"id": 1, "time": 5}), delete(2, {"id": 1, "time": 9}), upsert(12, {"id": 1, "time": 7})]
    for retention, expected in ((None, {}), (10, {}), (9, {1: None})):
        rows = surviving_rows(deltas, ["id"], BY_TIME, retention)
        assert {row["id"]: row.get("value") for row in rows} == expected
