"""Small compacted files are merged, with the next deltas or in a round of their own, and nothing else changes."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.planning.spec import JobRunResult
from tests.builders import CompactedSide, audit
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

TABLE = "ACME.ORDERS.V1"
MANY = {"merge_small_files": 4}


def rows(first: int, count: int = 10, value: int = 0) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "value": [value] * count})


def compacted(lake: DeltaCatalog, **arguments: object) -> JobRunResult:
    return compact(TABLE, {"id"}, delta_catalog_client=lake, hash_bucket_count=2, engine=UnrulyEngine(), **arguments)  # type: ignore[arg-type]


def with_small_files(lake: DeltaCatalog, count: int, **properties: object) -> Table:
    """A table with `count` files of ten rows: no session has merged any of them."""
    table = lake.create_table(TABLE, properties={**MANY, **properties})
    for number in range(count):
        table.append({}, rows(10 * number))
        compacted(lake)
    return table


def live(lake: DeltaCatalog) -> list[int]:
    """The rows of each live file, in file order."""
    return [file.rows for file in CompactedSide.of(lake, TABLE).files]


def ids(table: Table, **arguments: object) -> list[int]:
    return sorted(table.scan(**arguments).to_table()["id"].to_pylist())  # type: ignore[arg-type]


def test_a_session_without_deltas_merges_small_files_in_a_round_of_its_own(lake: DeltaCatalog) -> None:
    table = with_small_files(lake, 4)
    assert live(lake) == [10, 10, 10, 10]
    (session,) = compacted(lake).sessions
    assert (session.rounds, session.rows_in, session.rows_out) == (1, 40, 40)
    assert live(lake) == [40]
    audit(CompactedSide.of(lake, TABLE))
    assert ids(table) == list(range(40))
    assert [table.lookup({}, {"id": key}) for key in (0, 39)] == [{"id": 0, "value": 0}, {"id": 39, "value": 0}]
    assert compacted(lake).sessions[0].rounds == 0, "nothing is left to merge"


def test_small_files_are_merged_beside_the_next_deltas(lake: DeltaCatalog) -> None:
    table = with_small_files(lake, 4)
    table.append({}, rows(40))
    (session,) = compacted(lake).sessions
    assert session.rounds == 1
    assert live(lake) == [40, 10]
    audit(CompactedSide.of(lake, TABLE))
    assert ids(table) == list(range(50))


def test_rows_keep_their_order_within_a_merged_file(lake: DeltaCatalog) -> None:
    with_small_files(lake, 4)
    side = CompactedSide.of(lake, TABLE)
    before = [key for file in side.files for key in side.read(file)["id"].to_pylist()]
    compacted(lake)
    side = CompactedSide.of(lake, TABLE)
    assert [key for file in side.files for key in side.read(file)["id"].to_pylist()] == before
    assert live(lake) == [40]


def test_dead_rows_of_merged_files_go_with_them(lake: DeltaCatalog) -> None:
    table = with_small_files(lake, 3)
    table.append({}, pa.table({"id": [0, 10]}), operation="delete")
    table.append({}, rows(30))
    compacted(lake, max_dead_row_share=0.5)
    assert len(CompactedSide.of(lake, TABLE).stream.deletion_vectors) == 2
    compacted(lake, max_dead_row_share=0.5)
    side = CompactedSide.of(lake, TABLE)
    assert side.stream.deletion_vectors == ()
    assert live(lake) == [38]
    audit(side)
    assert ids(table) == [key for key in range(40) if key not in (0, 10)]


def test_a_table_that_wants_none_merged_keeps_its_files(lake: DeltaCatalog) -> None:
    with_small_files(lake, 9, merge_small_files=0)
    assert compacted(lake).sessions[0].rounds == 0
    assert live(lake) == [10] * 9


def test_files_with_enough_rows_or_bytes_are_not_small(lake: DeltaCatalog) -> None:
    with_small_files(lake, 4)
    assert compacted(lake, rows_per_compacted_file=40).sessions[0].rounds == 0
    assert live(lake) == [10, 10, 10, 10]


def test_what_was_before_the_merge_stays_readable_and_can_be_restored(lake: DeltaCatalog) -> None:
    table = with_small_files(lake, 4)
    before = table.stream({}).load().entry_number
    compacted(lake)
    assert ids(table, as_of=before) == list(range(40))
    table.restore(as_of=before, dry_run=False)
    assert live(lake) == [10, 10, 10, 10]
    audit(CompactedSide.of(lake, TABLE))
    compacted(lake)
    assert live(lake) == [40]
    audit(CompactedSide.of(lake, TABLE))


def test_the_merged_files_are_garbage_after_the_grace_period(lake: DeltaCatalog, clock: ManualClock) -> None:
    table = with_small_files(lake, 4)
    replaced = {file.path for file in CompactedSide.of(lake, TABLE).files}
    compacted(lake)
    clock.sleep(table.properties.grace_seconds + 3_600)
    [garbage] = find_garbage(lake.store, TABLE, clock, table.properties.grace_seconds)
    assert replaced <= {file.key for file in garbage.garbage}
    delete_garbage(lake.store, garbage)
    assert ids(table) == list(range(40))
    audit(CompactedSide.of(lake, TABLE))


def test_engines_that_read_the_published_tables_see_the_same_rows_in_one_file(lake: DeltaCatalog) -> None:
    table = with_small_files(lake, 4, publish=["delta", "iceberg"])
    compacted(lake)
    assert live(lake) == [40]
    folder = Path(lake.location.root_uri.removeprefix("file://")) / "tables" / TABLE
    delta = DeltaTable(folder / "compacted")
    assert len(delta.file_uris()) == 1
    in_delta = pa.table(QueryBuilder().register("t", delta).execute("select * from t"))
    newest = (folder / "iceberg/metadata/version-hint.text").read_text()
    iceberg = StaticTable.from_metadata(str(folder / f"iceberg/metadata/v{newest}.metadata.json")).scan()
    assert len(list(iceberg.plan_files())) == 1
    for read in (in_delta, iceberg.to_arrow()):
        assert sorted(read["id"].to_pylist()) == ids(table) == list(range(40))


def test_a_rehash_and_a_merge_follow_each_other(lake: DeltaCatalog) -> None:
    with_small_files(lake, 4)
    compact(TABLE, {"id"}, delta_catalog_client=lake, hash_bucket_count=5, engine=UnrulyEngine())
    side = CompactedSide.of(lake, TABLE)
    assert (side.stream.hash_bucket_count, live(lake)) == (5, [40])
    audit(side)


def test_sixty_runs_of_new_keys_leave_few_files(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE)
    written = 0
    for number in range(60):
        table.append({}, rows(10 * number))
        (session,) = compacted(lake).sessions
        written += sum(file.rows for done in session.completions for file in done.files_added)
        assert len(live(lake)) <= 8
    assert written <= 600 * (1 + math.log2(60))
    audit(CompactedSide.of(lake, TABLE))
