"""A table whose streams were left out by a restore, a mount or a copy is neither read as empty nor begun again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor import DeltaCatalog
from compactor.catalog.keys import DropMark, TableFolder
from compactor.catalog.lost_streams import FirstStream
from compactor.lake import Table
from compactor.model.errors import Corrupt, Denied, Unavailable
from tests.conftest import Command
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import compact_orders

ORDERS, COPY = "ACME.ORDERS.V1", "ACME.COPY.V1"
ROWS = pa.table({"id": [1, 2]})

Use = Callable[[Table, dict[str, str]], object]

USES: dict[str, Use] = {
    "scan": lambda table, _: table.scan(),
    "scan of the partition": lambda table, partition: table.scan(partition),
    "merged": lambda table, _: table.scan(view="merged").to_table(),
    "as_of": lambda table, _: table.scan(as_of=10**13),
    "lookup": lambda table, partition: table.lookup(partition, {"id": 1}),
    "partitions": lambda table, _: table.partitions(),
    "append": lambda table, partition: table.append(partition, ROWS),
    "append_many": lambda table, partition: table.append_many([(partition, ROWS, "upsert")]),
    "new version": lambda table, partition: table.create_stream_version(partition),
    "compact": lambda table, _: compact_orders(DeltaCatalog.open(table._store.location.root_uri)),
}


@pytest.fixture
def root(lake: DeltaCatalog) -> Path:
    return Path(lake.location.root_uri.removeprefix("file://"))


@pytest.fixture(params=["", "day"])
def partition(request: pytest.FixtureRequest) -> dict[str, str]:
    return {request.param: "monday"} if request.param else {}


def lose_streams(root: Path, table_id: str = ORDERS) -> None:
    shutil.rmtree(root / "tables" / table_id / "streams")


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("trace", ["hint of the first entry", "deltas and compacted files"])
def test_a_table_without_any_of_its_streams_is_corrupt_to_each_use_and_writes_nothing(
    lake: DeltaCatalog,
    root: Path,
    partition: dict[str, str],
    trace: str,
    use: Callable[[Table, dict[str, str]], object],
) -> None:
    lake.create_table(ORDERS, list(partition)).append(partition, ROWS)
    if trace == "deltas and compacted files":
        compact_orders(lake)
        shutil.rmtree(root / "tables" / ORDERS / "dropped")
    lose_streams(root)
    with pytest.raises(Corrupt, match=f"no log in .*{ORDERS}/streams/, and .* shows that {ORDERS} had one"):
        use(DeltaCatalog.open(str(root)).table(ORDERS), partition)
    assert not (root / "tables" / ORDERS / "streams").exists()


OF_PARTITIONS = {name: use for name, use in USES.items() if name not in {"partitions", "compact"}}
OF_PARTITIONS["filter"] = lambda table, _: table.scan(filter=pc.field("day") == "monday")


@pytest.mark.parametrize("use", OF_PARTITIONS.values(), ids=OF_PARTITIONS)
def test_a_partition_without_its_log_is_corrupt_to_each_use_and_gets_no_second_one(
    lake: DeltaCatalog, root: Path, use: Callable[[Table, dict[str, str]], object]
) -> None:
    orders = lake.create_table(ORDERS, ["day"], primary_keys=["id"])
    for day in ("monday", "tuesday"):
        orders.append({"day": day}, ROWS)
    compact_orders(lake)
    log = root / "tables" / ORDERS / "streams" / "day=monday"
    shutil.rmtree(log)
    found = DeltaCatalog.open(str(root)).table(ORDERS)
    with pytest.raises(
        Corrupt, match=r"no log in .*/streams/day=monday/, and .*/data/day=monday/ shows that it had one"
    ):
        use(found, {"day": "monday"})
    assert not log.exists()
    assert found.scan({"day": "tuesday"}).count_rows() == 2
    found.append({"day": "wednesday"}, ROWS)
    compact_orders(DeltaCatalog.open(str(root)))
    assert found.partitions() == [{"day": "tuesday"}, {"day": "wednesday"}]


def test_a_scan_of_all_partitions_finds_a_lost_log_by_one_listing(lake: DeltaCatalog, clock: ManualClock) -> None:
    days = lake.create_table(ORDERS, ["day"], primary_keys=["id"])
    for day in ("monday", "tuesday"):
        days.append({"day": day}, ROWS)
    store = FaultyStore(lake.store)
    found = DeltaCatalog(store, clock).table(ORDERS)
    assert found.scan(view="merged").count_rows() == 4
    assert store.count("list_folders", f"{ORDERS}/data/") == 1


def test_no_proof_of_a_deleted_key_and_no_list_of_files_leaves_out_a_partition_without_its_log(
    lake: DeltaCatalog, root: Path, command: Command
) -> None:
    orders = lake.create_table(ORDERS, ["day"], primary_keys=["id"])
    for day in ("monday", "tuesday"):
        orders.append({"day": day}, ROWS)
    compact_orders(lake)
    shutil.rmtree(root / "tables" / ORDERS / "streams" / "day=monday")
    for of in ((), ("--partition", "day=monday")):
        refused = command("privacy", "prove", ORDERS, "--key", "id=7", "--lake", str(root), *of)
        assert refused.exit_code == 1
        assert "data/day=monday/ shows that it had one" in " ".join(refused.err.split())
    refused = command("table", "files", ORDERS, "--lake", str(root))
    assert (refused.exit_code, refused.out) == (1, "")


def test_the_destination_of_a_compaction_is_not__without_its_streams(lake: DeltaCatalog, root: Path) -> None:
    lake.create_table(ORDERS).append({}, ROWS)
    compact_orders(lake, into=COPY)
    lose_streams(root, COPY)
    with pytest.raises(Corrupt, match=f"shows that {COPY} had one"):
        compact_orders(DeltaCatalog.open(str(root)), into=COPY)


def test_a_dropped_table_whose_id_is_used_again_and_one_that_was_purged_begin_anew(
    lake: DeltaCatalog, clock: ManualClock
) -> None:
    lake.create_table(ORDERS, primary_keys=["id"]).append({}, ROWS)
    lake.drop_table(ORDERS, dry_run=False)
    clock.sleep(30 * 86_400)
    assert lake.create_table(ORDERS, primary_keys=["id"]).scan().count_rows() == 0
    lake.table(ORDERS).append({}, ROWS, delta_id="second life")
    lake.purge_table(ORDERS, dry_run=False, nothing_runs=True)
    lake.create_table(ORDERS, primary_keys=["id"]).append({}, ROWS)
    assert lake.table(ORDERS).scan(view="merged").count_rows() == 2


def test_what_stopped_before_the_first_entry_leaves_an_empty_table_and_is_done_again(
    lake: DeltaCatalog, clock: ManualClock
) -> None:
    """The files of an append, and of the first compaction into another table, are there before any log."""
    store = FaultyStore(lake.store)
    faulty = DeltaCatalog(store, clock)
    orders, copy = lake.create_table(ORDERS, primary_keys=["id"]), lake.create_table(COPY, primary_keys=["id"])
    store.fail("put_if_absent", f"{ORDERS}/streams/", times=None)
    with pytest.raises(Unavailable):
        faulty.table(ORDERS).append({}, ROWS, delta_id="first")
    store.fail("put_if_absent", f"{COPY}/streams/", times=None)
    assert orders.scan(view="merged").count_rows() == 0
    orders.append({}, ROWS, delta_id="first")
    with pytest.raises(Unavailable):
        compact_orders(faulty, into=COPY)
    assert copy.scan().count_rows() == 0
    compact_orders(lake, into=COPY)
    assert copy.scan().count_rows() == 2


def test_an_append_has_succeeded_though_its_hint_cannot_be_put(lake: DeltaCatalog, clock: ManualClock) -> None:
    store = FaultyStore(lake.store)
    lake.create_table(ORDERS, primary_keys=["id"])
    store.fail("overwrite", "/dropped/", "after", times=None, error=Denied)
    orders = DeltaCatalog(store, clock).table(ORDERS)
    orders.append({}, ROWS)
    assert store.count("overwrite", "/dropped/") == 1
    assert orders.scan(view="merged").count_rows() == 2


def test_first_entries_that_are_written_at_a_time_have_one_hint(lake: DeltaCatalog) -> None:
    store, folder = FaultyStore(lake.store), TableFolder(ORDERS)
    first = FirstStream(store, folder)
    afterwards = [first.before_first_entry(folder.stream({"day": day})) for day in ("monday", "tuesday")]
    for each in afterwards:
        assert each is not None
        each()
    assert store.count("overwrite", "/dropped/") == 1


class _AppendedMeanwhile(FaultyStore):
    """Another process appends the table's first delta after a reader has listed its streams."""

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        found = list(super().list_folders(prefix, even_empty=even_empty))
        if "/streams/" in prefix:
            DeltaCatalog.open(self.location.root_uri).table(ORDERS).append({}, ROWS, delta_id="meanwhile")
        return iter(found)


def test_a_first_stream_that_begins_after_streams_were_listed_is_not_lost(
    lake: DeltaCatalog, clock: ManualClock
) -> None:
    orders = lake.create_table(ORDERS, primary_keys=["id"])
    meanwhile = DeltaCatalog(_AppendedMeanwhile(lake.store), clock).table(ORDERS)
    assert meanwhile.partitions() == []
    assert orders.scan(view="merged").count_rows() == 2


def test_only_the_first_streams_of_a_table_are_marked(lake: DeltaCatalog) -> None:
    days = lake.create_table(ORDERS, ["day"])
    for number in range(4):
        days.append({"day": str(number)}, ROWS)
    marks = [DropMark.parse(entry.key) for entry in lake.store.list(f"tables/{ORDERS}/dropped/")]
    assert [(dict(mark.stream.partition), mark.entry_number, mark.has_begun) for mark in marks] == [
        ({"day": "0"}, 1, True)
    ]
    assert len(days.partitions()) == 4
    assert days.dropped_partitions() == []
