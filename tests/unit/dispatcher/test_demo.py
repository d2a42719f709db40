"""The demo's parts: its orders and their survivors, the progress that events report, the folder that it leaves."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.events.types import SessionSucceededEvent
from compactor.model.errors import Invalid
from compactor.model.names import Operation
from dispatcher.demo import tpch
from dispatcher.demo.changes_scenario import TABLES, Compared, PlayedFeed, Shop
from dispatcher.demo.environment import PARENT, make_folder
from dispatcher.operations.event_text import event_text
from dispatcher.records.job_run_events import (
    SessionPlannedEvent,
    SessionRetriedEvent,
)

ORDERS = 4_000
SESSION, PARTITION = "orders.1", {"o_orderyear": "1994"}


def base() -> pa.Table:
    """Orders as the generator writes them: of every 32 keys the first 8 are used."""
    days = [date(1992, 1, 1) + timedelta(days=number % 2_400) for number in range(ORDERS)]
    rows = {
        "o_orderkey": [number // 8 * 32 + number % 8 for number in range(ORDERS)],
        "o_custkey": [1] * ORDERS,
        "o_orderstatus": ["O"] * ORDERS,
        "o_totalprice": [Decimal("10.00")] * ORDERS,
        "o_orderdate": days,
        "o_orderpriority": ["5-LOW"] * ORDERS,
        "o_clerk": ["Clerk#1"] * ORDERS,
        "o_shippriority": [0] * ORDERS,
        "o_comment": [""] * ORDERS,
        "o_updated": pa.array(days).cast(pa.timestamp("ms")),
    }
    return pa.table(rows, schema=tpch.SCHEMA)


def test_refreshes_insert_and_delete_one_order_in_a_thousand_and_update_some() -> None:
    deltas = tpch.make_deltas(base())
    assert [(delta.operation, delta.rows.num_rows) for delta in deltas] == [
        (Operation.UPSERT, ORDERS),
        (Operation.UPSERT, ORDERS // 1_000 + ORDERS // 20),
        (Operation.DELETE, ORDERS // 1_000),
        (Operation.UPSERT, ORDERS // 1_000 + ORDERS // 25),
        (Operation.DELETE, ORDERS // 1_000),
    ]


def test_the_survivors_are_those_of_a_plain_dict() -> None:
    deltas = tpch.make_deltas(base())
    latest: dict[int, tuple[datetime, Operation, dict[str, object]]] = {}
    for delta in deltas:
        for row in delta.rows.to_pylist():
            survivor = latest.get(row["o_orderkey"])
            if survivor is None or row["o_updated"] >= survivor[0]:
                latest[row["o_orderkey"]] = (row["o_updated"], delta.operation, row)
    expected = [row for _, (_, operation, row) in sorted(latest.items()) if operation is Operation.UPSERT]
    assert tpch.survivors(deltas).to_pylist() == expected


def test_an_update_that_comes_late_loses() -> None:
    deltas = tpch.make_deltas(base())
    key, _ = tpch.late_order(deltas[0].rows)
    of_key = [row for delta in deltas for row in delta.rows.to_pylist() if row["o_orderkey"] == key]
    (left,) = [row for row in tpch.survivors(deltas).to_pylist() if row["o_orderkey"] == key]
    assert len(of_key) == 3
    assert left == of_key[1] != of_key[2]


def test_rows_are_divided_by_their_order_year() -> None:
    years = dict(tpch.by_year(base()))
    assert list(years) == [str(year) for year in range(1992, 1999)]
    assert sum(rows.num_rows for rows in years.values()) == ORDERS
    assert {day.year for day in years["1995"].column("o_orderdate").to_pylist()} == {1995}


def planned() -> SessionPlannedEvent:
    return SessionPlannedEvent(
        session_id=SESSION,
        partition=PARTITION,
        hash_bucket_count=2,
        max_rows_per_round=9,
        tasks=1,
        task_memory_bytes=1,
        expected_sla=4.5,
        desired_sla=None,
        arithmetic=(),
    )


def succeeded() -> SessionSucceededEvent:
    return SessionSucceededEvent(
        session_id=SESSION,
        partition=PARTITION,
        nothing_to_do=False,
        rounds=1,
        rows_in=1_200,
        rows_out=1_000,
        rows_deduplicated=190,
        rows_deleted=10,
        seconds=1.5,
        expected_sla=4.5,
    )


def test_an_event_is_shown_in_a_few_words() -> None:
    assert event_text(planned()) == "2 hash buckets, expected in 4.5 s"
    assert event_text(succeeded()) == "190 deduplicated, 10 deleted, 1.5 s"
    assert (
        event_text(SessionRetriedEvent(session_id=SESSION, partition=PARTITION, attempt=2, reasons=("it crashed",)))
        == "it crashed"
    )


def test_each_demo_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [make_folder(None).shown for _ in range(2)] == [PARENT / "1", PARENT / "2"]
    assert make_folder(Path("mine")).path == tmp_path / "mine"


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    with pytest.raises(Invalid, match="is not empty"):
        make_folder(tmp_path)


def test_the_feed_of_the_shop_says_all_that_happened_to_its_rows() -> None:
    known = {name: dict[int, tuple[object, ...]]() for name in TABLES}
    happened: set[str] = set()
    with closing(Shop()) as shop:
        for _ in range(5):
            shop.trade(200)
            for name, lines in shop.take_feed().items():
                for event in map(json.loads, lines.splitlines()):
                    before, after = (
                        None if each is None else tuple(each.values()) for each in (event["before"], event["after"])
                    )
                    if before is not None:
                        assert known[name].pop(before[0]) == before
                    if after is not None:
                        known[name][after[0]] = after
                    moves = before is not None and after is not None and before[1] != after[1]
                    happened.add(f"{name} {event['op']}{' to another partition' if moves else ''}")
        for name in TABLES:
            assert [known[name][key] for key in sorted(known[name])] == shop.rows(name)
    kinds = ("c", "d", "u to another partition")
    assert happened == {*(f"{name} {kind}" for name in TABLES for kind in kinds), "customers u"}


@pytest.mark.parametrize(
    ("compared", "holds"),
    [
        (Compared("orders", 2, 2, 0), True),
        (Compared("orders", 2, 2, 1), False),
        (Compared("orders", 2, 2, 0, pending_deltas=1), False),
        (Compared("orders", 0, 0, 0), False),
    ],
)
def test_a_feed_was_played_well_if_every_table_is_equal_in_the_end(compared: Compared, holds: bool) -> None:
    assert PlayedFeed(1.0, 1, 1, (Compared("customers", 1, 1, 0), compared)).holds is holds
