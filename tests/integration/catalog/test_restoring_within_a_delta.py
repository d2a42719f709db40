"""A round may end within a delta: a restore as of that round goes on with the rest of the delta, each file once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import RoundCommitted
from compactor.maintenance.retirement import StreamRetirement, retention_of
from compactor.maintenance.verify import verify
from compactor.model.errors import Invalid
from compactor.model.names import LifecycleState
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"
MONDAY = {"day": "monday"}
HOUR_SECONDS = 3_600
GRACE_SECONDS = 7 * 24 * HOUR_SECONDS
KEYS = pytest.mark.parametrize("keys", [["id"], []], ids=["with a key", "without a key"])


class Orders:
    """A table whose first delta has three files of two rows, and whose rounds take two rows."""

    def __init__(self, lake: DeltaCatalog, clock: ManualClock, folder: Path, keys: list[str]) -> None:
        self.lake, self.clock = lake, clock
        self.table = lake.create_table(ORDERS, ["day"], primary_keys=keys, properties={"news_hints": True})
        files = [str(folder / f"{name}.parquet") for name in ("ab", "cd", "ef")]
        for file in files:
            pq.write_table(pa.table({"id": list(Path(file).stem)}), file)
        self.table.append(MONDAY, files)

    def put(self, row: str) -> None:
        self.clock.sleep(1)
        self.table.append(MONDAY, pa.table({"id": [row]}))

    def compact(self) -> None:
        self.clock.sleep(1)
        compact(ORDERS, delta_catalog_client=self.lake, max_rows_per_round=2, engine=UnrulyEngine())

    def rows(self, view: str = "compacted") -> str:
        return "".join(sorted(self.table.scan(MONDAY, view=view).to_table()["id"].to_pylist()))

    @property
    def first_round(self) -> int:
        """Its entry, after which the first file of the delta is compacted."""
        entries = self.table.stream(MONDAY).log.entries()
        return next(each.number for each in entries if any(isinstance(one, RoundCommitted) for one in each.actions))


@pytest.fixture
def orders(lake: DeltaCatalog, clock: ManualClock, tmp_path: Path, keys: list[str]) -> Orders:
    return Orders(lake, clock, tmp_path, keys)


@KEYS
def test_a_restore_into_a_delta_that_was_retired_since_is_refused(orders: Orders) -> None:
    orders.clock.sleep(GRACE_SECONDS)
    orders.compact()
    with pytest.raises(Invalid, match="have been compacted and retired since, or are about to be"):
        orders.table.restore(orders.first_round, MONDAY)
    stream, retention = orders.table.stream(MONDAY), retention_of(None, GRACE_SECONDS)
    assert [each.deltas for each in StreamRetirement(orders.lake.store, stream, orders.clock).retire(retention)] == [1]
    with pytest.raises(Invalid, match="have been compacted and retired since, or are about to be"):
        orders.table.restore(orders.first_round, MONDAY)
    assert orders.rows() == "abcdef"


@KEYS
def test_an_old_delta_that_is_still_compacted_in_part_is_not_about_to_be_retired(orders: Orders) -> None:
    orders.compact()
    orders.table.restore(orders.first_round, MONDAY, dry_run=False)
    then = orders.table.stream(MONDAY).load().entry_number
    orders.clock.sleep(GRACE_SECONDS + HOUR_SECONDS)
    orders.put("z")
    orders.table.restore(then, MONDAY, dry_run=False)
    assert orders.rows() == "ab"
    orders.compact()
    assert orders.rows() == "abcdef"


@KEYS
def test_the_rest_of_a_delta_is_news_after_later_deltas_were_undone(orders: Orders) -> None:
    orders.compact()
    orders.put("z")
    orders.compact()
    assert list(orders.table.each_partition(with_news=True)) == []
    orders.table.restore(orders.first_round, MONDAY, dry_run=False)
    assert list(orders.table.each_partition(with_news=True)) == [MONDAY]
    orders.compact()
    assert orders.rows() == "abcdef"
    assert list(orders.table.each_partition(with_news=True)) == []


@KEYS
@pytest.mark.parametrize("since", ["nothing", "a drop", "another stream version"])
def test_the_files_of_a_delta_that_were_not_compacted_then_are_compacted_once(orders: Orders, since: str) -> None:
    orders.compact()
    if since == "a drop":
        orders.table.drop_partitions(MONDAY, dry_run=False)
    elif since == "another stream version":
        orders.table.create_stream_version(MONDAY, LifecycleState.ACTIVE)
        orders.put("z")
    (monday,) = orders.table.restore(orders.first_round, MONDAY, dry_run=False).partitions
    assert (monday.outcome, monday.rows_then, monday.rows_pending) == ("restored", 2, 4)
    assert (orders.rows(), orders.rows(view="merged")) == ("ab", "abcdef")
    orders.compact()
    assert orders.rows() == "abcdef"
    stream = orders.table.stream(MONDAY)
    assert verify(stream).problems == ()
    active = stream.load().state.active
    assert active is not None
    assert [each.file_number for each in active.deltas[-1].files] == ([1, 2, 3] if since == "nothing" else [1, 2])
