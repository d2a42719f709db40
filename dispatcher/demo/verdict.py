"""Holds what the demo left against what it must have left: every row of every table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.catalog.catalog import DeltaCatalog
from dispatcher.demo import paper_example as paper
from dispatcher.demo import tpch


@dataclass(frozen=True)
class Verdict:
    """One claim, and whether it holds."""

    claim: str
    holds: bool


def judge_paper(lake: DeltaCatalog) -> Verdict:
    table = lake.table(paper.COMPACTED_TABLE_ID)
    rows = {day: table.scan({paper.PARTITION_KEY: day}).to_table() for day in paper.SURVIVORS}
    holds = all(rows[day].sort_by(paper.PRIMARY_KEY).equals(expected) for day, expected in paper.SURVIVORS.items())
    count = sum(expected.num_rows for expected in paper.SURVIVORS.values())
    return Verdict(f"{paper.COMPACTED_TABLE_ID} holds the {count} rows that the paper's example leaves", holds)


def judge_orders(lake: DeltaCatalog, deltas: Sequence[tpch.OrdersDelta]) -> Verdict:
    expected = tpch.survivors(deltas)
    found = lake.table(tpch.TABLE_ID).scan().to_table().sort_by(tpch.PRIMARY_KEY)
    rows_in = sum(delta.rows.num_rows for delta in deltas)
    claim = f"{tpch.TABLE_ID} holds the {expected.num_rows:,} rows that sorting all {rows_in:,} rows leaves"
    return Verdict(claim, found.select(expected.column_names).equals(expected))
