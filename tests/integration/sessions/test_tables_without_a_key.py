"""A table without a key keeps every row, in order; its compaction packs small files, and there is no index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.local_job_run import rehash_here
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.maintenance.verify import verify
from compactor.model.errors import Invalid
from compactor.planning.session_planner import measure_session, pin_sessions, plan_measured
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunResult, JobRunSpec
from compactor.steps import materialize
from tests.builders import CompactedSide
from tests.effort import examples
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine
from tests.proofs import prove_many
from tests.properties.folders import fresh_folder

TABLE = "ACME.CLICKS.V1"


def rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"at": list(range(first, first + count)), "text": [f"x{each % 3}" for each in range(count)]})


def compacted(lake: DeltaCatalog, **arguments: object) -> JobRunResult:
    return compact(TABLE, delta_catalog_client=lake, engine=UnrulyEngine(), **arguments)  # type: ignore[arg-type]


@pytest.fixture
def clicks(lake: DeltaCatalog) -> Table:
    return lake.create_table(TABLE, primary_keys=[], properties={"merge_small_files": 3})


def live(lake: DeltaCatalog) -> list[int]:
    """The rows of each live file, in file order."""
    return [file.rows for file in CompactedSide.of(lake, TABLE).files]


def read(table: Table, **arguments: object) -> list[int]:
    return table.scan(**arguments).to_table()["at"].to_pylist()  # type: ignore[no-any-return, arg-type]


def test_every_row_stays_in_order_also_equal_ones(lake: DeltaCatalog, clicks: Table) -> None:
    for first in (30, 0, 30):
        clicks.append({}, rows(first))
    (session,) = compacted(lake).sessions
    assert (session.rows_in, session.rows_out, session.rows_deduplicated, session.rows_deleted) == (30, 30, 0, 0)
    assert read(clicks) == [*range(30, 40), *range(10), *range(30, 40)]
    stream = CompactedSide.of(lake, TABLE).stream
    assert (live(lake), stream.index_files, stream.primary_keys, stream.hash_bucket_count) == ([30], (), (), 1)
    assert verify(clicks.stream({})).problems == ()


def test_the_last_small_files_are_packed_with_the_next_rows(lake: DeltaCatalog, clicks: Table) -> None:
    for number in range(4):
        clicks.append({}, rows(10 * number))
        compacted(lake)
    assert live(lake) == [40]
    assert read(clicks) == list(range(40))


def test_without_new_rows_small_files_are_packed_in_a_round_of_its_own(lake: DeltaCatalog, clicks: Table) -> None:
    for number in range(3):
        clicks.append({}, rows(10 * number))
        compacted(lake)
    assert live(lake) == [10, 10, 10]
    assert compacted(lake).sessions[0].rounds == 1
    assert (live(lake), read(clicks)) == ([30], list(range(30)))
    assert compacted(lake).sessions[0].rounds == 0


def test_a_small_file_is_written_with_a_larger_one_behind_which_it_would_stay(
    lake: DeltaCatalog, clicks: Table
) -> None:
    for first, count in ((0, 10), (10, 100), (110, 10), (120, 10), (130, 10), (140, 10)):
        clicks.append({}, rows(first, count))
        compacted(lake, rows_per_compacted_file=200)
    assert live(lake) == [110, 40]
    assert read(clicks) == list(range(150))


def test_deletes_and_what_is_about_keys_are_refused_with_what_to_do(
    lake: DeltaCatalog, clicks: Table, clock: ManualClock
) -> None:
    with pytest.raises(Invalid, match="so a delete cannot say which rows"):
        clicks.append({}, rows(0), operation="delete")
    clicks.append({}, rows(0))
    for argument in ({"sort_keys": [("at", "ascending")]}, {"hash_bucket_count": 2}):
        with pytest.raises(Invalid, match="is about rows with a key"):
            compacted(lake, **argument)
    with pytest.raises(Invalid, match="primary_keys"):
        compacted(lake, primary_keys=["at"])
    compacted(lake)
    with pytest.raises(Invalid, match="no row can be looked up"):
        clicks.lookup({}, {"at": 1})
    with pytest.raises(Invalid, match="no index to rehash"):
        rehash_here(lake, clicks.stream({}), 2, clock)
    with pytest.raises(Invalid, match="its rows leave with their partition"):
        prove_many(lake, TABLE, {}, [{"at": 1}], clock)
    with pytest.raises(Invalid, match="sort_keys"):
        lake.create_table("ACME.OTHER.V1", primary_keys=[], sort_keys=[("at", "ascending")])


def test_a_key_cannot_be_given_to_rows_that_were_compacted_without_one(lake: DeltaCatalog, clicks: Table) -> None:
    clicks.append({}, rows(0))
    compacted(lake)
    with pytest.raises(Invalid, match="primary_keys"):
        clicks.set_properties({"primary_keys": ["at"]})


def test_the_merged_view_has_the_rows_that_are_not_compacted_yet(lake: DeltaCatalog, clicks: Table) -> None:
    clicks.append({}, rows(0))
    assert read(clicks, view="merged") == list(range(10))
    compacted(lake)
    clicks.append({}, rows(10))
    assert read(clicks) == list(range(10))
    assert read(clicks, view="merged") == list(range(20))


def test_what_was_packed_stays_readable_until_it_is_garbage(
    lake: DeltaCatalog, clicks: Table, clock: ManualClock
) -> None:
    for number in range(3):
        clicks.append({}, rows(10 * number))
        compacted(lake)
    before = clicks.stream({}).load().entry_number
    replaced = {file.path for file in CompactedSide.of(lake, TABLE).files}
    compacted(lake)
    assert read(clicks, as_of=before) == list(range(30))
    clicks.restore(as_of=before, dry_run=False)
    assert live(lake) == [10, 10, 10]
    compacted(lake)
    clock.sleep(clicks.properties.grace_seconds + 3_600)
    [garbage] = find_garbage(lake.store, TABLE, clock, clicks.properties.grace_seconds)
    assert replaced <= {file.key for file in garbage.garbage}
    delete_garbage(lake.store, garbage)
    assert read(clicks) == list(range(30))


def test_a_published_table_has_its_rows_for_other_engines(lake: DeltaCatalog, clicks: Table) -> None:
    clicks.append({}, rows(0))
    compacted(lake)
    clicks.set_properties({"publish": ["delta"]})
    for number in (1, 2):
        clicks.append({}, rows(10 * number))
        compacted(lake)
    folder = Path(lake.location.root_uri.removeprefix("file://")) / "tables" / TABLE / "compacted"
    found = pa.table(QueryBuilder().register("t", DeltaTable(folder)).execute("select at from t"))
    assert sorted(found["at"].to_pylist()) == read(clicks) == list(range(30))


def test_a_session_of_it_is_sized_and_predicted_without_hash_and_dedupe(lake: DeltaCatalog, clicks: Table) -> None:
    for number in range(3):
        clicks.append({}, rows(10 * number))
    run = JobRunSpec(
        job_run_id="run",
        source_table_id=TABLE,
        primary_keys=(),
        lake=lake.location,
        destination_compacted_table_id=TABLE,
    )
    (pinned,) = pin_sessions(run, lake)
    plan = plan_measured(measure_session(pinned.spec, lake), Resources(task_memory_bytes=2**28, tasks=2))
    assert plan.hash_bucket_count == 1
    assert plan.max_rows_per_round == 1_000_000_000
    assert plan.expected_rows_written == 30


def test_whole_row_groups_are_passed_on_as_the_bytes_that_they_are(
    lake: DeltaCatalog, clicks: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "ROW_GROUP_BYTES_MIN", 1_000)
    numbers = np.random.default_rng(1).integers(0, 2**60, 20_000)
    for name, part in (("a", numbers[:12_000]), ("b", numbers[12_000:])):
        pq.write_table(pa.table({"at": part}), tmp_path / f"{name}.parquet", row_group_size=4_000)
        clicks.append({}, [str(tmp_path / f"{name}.parquet")])
    compacted(lake, page_check_share=1.0)
    side = CompactedSide.of(lake, TABLE)
    assert live(lake) == [20_000]
    assert side.table.scan().to_table()["at"].to_pylist() == numbers.tolist()
    (file,) = side.files
    written = (Path(lake.location.root_uri.removeprefix("file://")) / file.path).read_bytes()
    for name in ("a", "b"):
        source = pq.ParquetFile(tmp_path / f"{name}.parquet").metadata
        data = (tmp_path / f"{name}.parquet").read_bytes()
        for group in range(source.num_row_groups):
            chunk = source.row_group(group).column(0)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            assert data[start : start + chunk.total_compressed_size] in written


@examples(0.2)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([0, 2, 3]),
    st.sampled_from([1, 5, 40, 4_000_000]),
    st.integers(0, 2**16),
)
def test_a_scan_is_what_was_appended_whatever_the_runs_and_files(
    appended: list[tuple[int, bool]], merge_small_files: int, rows_per_file: int, seed: int
) -> None:
    with fresh_folder() as folder:
        lake = DeltaCatalog.open(folder)
        table = lake.create_table(TABLE, primary_keys=[], properties={"merge_small_files": merge_small_files})
        expected: list[int] = []
        for count, runs in appended:
            table.append({}, pa.table({"at": pa.array(range(len(expected), len(expected) + count), pa.int64())}))
            expected += range(len(expected), len(expected) + count)
            assert sorted(read(table, view="merged")) == expected
            if runs:
                compact(
                    TABLE, delta_catalog_client=lake, engine=UnrulyEngine(seed), rows_per_compacted_file=rows_per_file
                )
                assert read(table) == expected
                assert verify(table.stream({})).problems == ()
