"""Compares every row of the demo's tables with the expected row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.lake import DeltaCatalog
from dispatcher.demo import paper_example as paper
from dispatcher.demo import tpch


@dataclass(frozen=True)
class Check:
    """One claim, and whether it holds."""

    claim: str
    holds: bool


def check_paper(lake: DeltaCatalog) -> Check:
    table = lake.table(paper.COMPACTED_TABLE_ID)
    rows = {
        day: table.scan({paper.PARTITION_KEY: day}, expected.column_names).to_table()
        for day, expected in paper.SURVIVORS.items()
    }
    holds = all(rows[day].sort_by(paper.PRIMARY_KEY).equals(expected) for day, expected in paper.SURVIVORS.items())
    count = sum(expected.num_rows for expected in paper.SURVIVORS.values())
    return Check(f"{paper.COMPACTED_TABLE_ID} holds the {count} rows that the paper's example leaves", holds)


def check_orders(lake: DeltaCatalog, deltas: Sequence[tpch.OrdersDelta]) -> Check:
    expected = tpch.survivors(deltas)
    found = lake.table(tpch.TABLE_ID).scan().to_table().sort_by(tpch.PRIMARY_KEY)
    rows_in = sum(delta.rows.num_rows for delta in deltas)
    claim = f"{tpch.TABLE_ID} holds the {expected.num_rows:,} rows that sorting all {rows_in:,} rows leaves"
    return Check(claim, found.select(expected.column_names).equals(expected))
