"""A stream version ends without `abandon_pending` only if every row of it is in a compacted file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog
from compactor.catalog.appending import take_deltas
from compactor.lake import Table
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import LifecycleState
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import compact_orders

ORDERS, COPY = "ACME.ORDERS.V1", "ACME.COPY.V1"


def refuse_for_one_row(orders: Table) -> None:
    with pytest.raises(Invalid, match="stream version 1 has 1 row that no compaction has"):
        orders.deprecate_stream_version({}, 1)


def state_of(orders: Table) -> LifecycleState:
    return orders.stream({}).load().state.sources[1].state


@pytest.mark.parametrize("into", [ORDERS, COPY])
def test_a_version_is_not_deprecated_while_a_delta_is_compacted_only_in_part(
    lake: DeltaCatalog, tmp_path: Path, into: str
) -> None:
    first, second, away = tmp_path / "1.parquet", tmp_path / "2.parquet", tmp_path / "away"
    pq.write_table(pa.table({"id": [1, 2, 3]}), first)
    pq.write_table(pa.table({"id": [4]}), second)
    orders = lake.create_table(ORDERS)
    orders.append({}, [first, second])
    second.rename(away)
    with pytest.raises(Corrupt):
        compact_orders(lake, into, max_rows_per_round=3)
    away.rename(second)
    compacted = lake.table(into).stream({}).load().state.compacted
    assert compacted is not None
    assert compacted.processed.file_number == 1
    refuse_for_one_row(orders)
    compact_orders(lake, into)
    orders.deprecate_stream_version({}, 1)
    assert state_of(orders) is LifecycleState.DEPRECATED


def test_deltas_that_a_copy_was_only_about_to_commit_are_not_compacted(lake: DeltaCatalog) -> None:
    orders = lake.create_table(ORDERS)
    orders.append({}, pa.table({"id": [1]}))
    compact_orders(lake, COPY)
    position = orders.append({}, pa.table({"id": [2]})).position
    orders.stream({}).log.append(lambda at: take_deltas(at.state, 1, {position}, COPY))
    refuse_for_one_row(orders)
    compact_orders(lake, COPY)
    orders.deprecate_stream_version({}, 1)
    assert state_of(orders) is LifecycleState.DEPRECATED


def test_after_a_restore_of_a_copy_only_what_it_will_still_compact_is_missing(
    lake: DeltaCatalog, clock: ManualClock
) -> None:
    orders = lake.create_table(ORDERS)
    orders.append({}, pa.table({"id": [1]}))
    compact_orders(lake, COPY)
    orders.append({}, pa.table({"id": [2]}))
    clock.sleep(1)
    then = datetime.fromtimestamp(clock.now_ms() / 1_000, UTC)
    clock.sleep(1)
    orders.append({}, pa.table({"id": [3]}))
    copy = lake.table(COPY)
    assert copy.restore(then, dry_run=False).partitions[0].rows_undone == 1
    refuse_for_one_row(orders)
    compact_orders(lake, COPY)
    assert sorted(copy.scan().to_table()["id"].to_pylist()) == [1, 2]
    orders.deprecate_stream_version({}, 1)
    assert state_of(orders) is LifecycleState.DEPRECATED
