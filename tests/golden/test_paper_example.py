"""The paper's example, end to end (the paper, "Compaction illustrated"): its survivors, and every promise on files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.model.names import LifecycleState
from compactor.planning.spec import JobRunResult
from dispatcher.demo import paper_example as paper
from tests.builders import CompactedSide, audit

pytestmark = pytest.mark.spark

ORDER_DAYS = list(paper.SURVIVORS)
_each_order_day = pytest.mark.parametrize("order_day", ORDER_DAYS)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> DeltaCatalog:
    """The table as the paper's load job run left it: 8 files in 4 deltas, stream versions 2 and 1 active."""
    lake = DeltaCatalog.open(tmp_path_factory.mktemp("paper"))
    paper.load_table(lake)
    return lake


@pytest.fixture(scope="module")
def result(lake: DeltaCatalog, spark: SparkSession) -> JobRunResult:
    return compact(
        source_table_id=paper.TABLE_ID,
        primary_keys={paper.PRIMARY_KEY},
        sort_keys=[(paper.SORT_KEY, "ascending")],
        desired_sla=None,
        delta_catalog_client=lake,
        destination_compacted_table_id=paper.COMPACTED_TABLE_ID,
        rows_per_primary_key_index_file=paper.ROWS_PER_FILE,
        rows_per_compacted_file=paper.ROWS_PER_FILE,
        hash_bucket_count=paper.HASH_BUCKET_COUNT,
        compacted_file_content_type="parquet",
        spark=spark,
    )


@pytest.fixture
def side(lake: DeltaCatalog, result: JobRunResult, order_day: str) -> CompactedSide:
    return CompactedSide.of(lake, paper.COMPACTED_TABLE_ID, {paper.PARTITION_KEY: order_day})


def test_the_table_is_loaded_as_the_paper_shows_it(lake: DeltaCatalog) -> None:
    streams = {day: lake.table(paper.TABLE_ID).stream({paper.PARTITION_KEY: day}).load().state for day in ORDER_DAYS}
    assert [
        len(delta.files) for state in streams.values() for delta in (state.active.deltas if state.active else ())
    ] == [2] * 4
    first, second = streams.values()
    assert {number: stream.state for number, stream in first.sources.items()} == {
        1: LifecycleState.DEPRECATED,
        2: LifecycleState.ACTIVE,
    }
    assert {number: stream.state for number, stream in second.sources.items()} == {1: LifecycleState.ACTIVE}


def test_there_is_one_session_per_order_day_with_balanced_books(result: JobRunResult) -> None:
    figures = [
        (each.partition[paper.PARTITION_KEY], each.rounds, each.rows_in, each.rows_out, each.rows_deduplicated)
        for each in result.sessions
    ]
    assert figures == [("1995-04-03", 1, 8, 5, 3), ("1995-04-04", 1, 8, 3, 5)]
    assert [each.rows_deleted for each in result.sessions] == [0, 0]


@_each_order_day
def test_the_survivors_are_exactly_the_latest_status_of_each_order(side: CompactedSide, order_day: str) -> None:
    assert side.rows().sort_by("Order ID").equals(paper.SURVIVORS[order_day])


@_each_order_day
def test_no_compacted_file_and_no_index_file_has_more_than_two_rows(side: CompactedSide) -> None:
    assert max(file.rows for file in side.files) == paper.ROWS_PER_FILE
    assert all(side.read(file).num_rows == file.rows for file in side.files)
    assert all(1 <= file.rows <= paper.ROWS_PER_FILE for file in side.stream.index_files)


@_each_order_day
def test_compacted_files_are_numbered_from_one_without_gaps(side: CompactedSide) -> None:
    assert [file.file_number for file in side.files] == list(range(1, len(side.files) + 1))


@_each_order_day
def test_every_index_pointer_leads_to_the_row_whose_key_has_that_digest(side: CompactedSide) -> None:
    rows = {file.file_number: side.read(file) for file in side.files}
    pointed_at = set()
    for pointer in side.index_rows():
        order_id = rows[pointer.file_number].column("Order ID")[pointer.row_index].as_py()
        message = (8).to_bytes(4, "little") + order_id.to_bytes(8, "little")
        assert hashlib.sha1(message).digest() == pointer.digest
        assert int.from_bytes(pointer.digest, "big") % paper.HASH_BUCKET_COUNT == pointer.hash_bucket
        last_updated = rows[pointer.file_number].column("Last Updated")[pointer.row_index].as_py()
        assert pointer.sort_values == {"Last Updated": last_updated}
        pointed_at.add((pointer.file_number, pointer.row_index))
    assert len(pointed_at) == side.stream.rows
    audit(side)


@_each_order_day
def test_each_bucket_s_digests_are_sorted_across_its_index_files(side: CompactedSide) -> None:
    for bucket in range(paper.HASH_BUCKET_COUNT):
        files = sorted(
            (file for file in side.stream.index_files if file.hash_bucket == bucket), key=lambda file: file.part
        )
        digests = [row.digest for file in files for row in side.index_rows_of(file)]
        assert digests == sorted(set(digests))
        assert all(file.rows == paper.ROWS_PER_FILE for file in files[:-1])


@_each_order_day
def test_an_index_row_takes_between_32_and_64_bytes(side: CompactedSide) -> None:
    with pa.memory_map(str(side.path_of(side.stream.index_files[0]))) as source:
        schema = pa.ipc.open_file(source).schema
    widths = [field.type.bit_width // 8 for field in schema]
    assert widths == [20, 4, 8, 8]


@_each_order_day
def test_the_completion_says_what_the_paper_lists(side: CompactedSide, order_day: str) -> None:
    completion = side.stream.last_round
    positions = [delta.position for delta in paper.DELTAS if delta.order_day == order_day]
    versions = {delta.stream_version for delta in paper.DELTAS if delta.order_day == order_day}
    assert completion.processed.position == max(positions)
    assert {completion.source_stream_version} == versions
    assert (completion.hash_bucket_count, completion.index_version) == (paper.HASH_BUCKET_COUNT, 1)
    assert (completion.compacted_table_id, completion.compacted_stream_version) == (paper.COMPACTED_TABLE_ID, 1)
    assert completion.bytes_at_rest == sum(side.path_of(file).stat().st_size for file in side.files)


def test_the_source_table_is_left_as_it_was(lake: DeltaCatalog, result: JobRunResult) -> None:
    for order_day in ORDER_DAYS:
        snapshot = lake.table(paper.TABLE_ID).stream({paper.PARTITION_KEY: order_day}).load().state
        assert snapshot.compacted is None
        assert snapshot.active is not None
        assert len(snapshot.active.deltas) == 2


def test_the_compacted_files_are_parquet_that_anybody_reads(lake: DeltaCatalog, result: JobRunResult) -> None:
    root = Path(lake.location.root_uri.removeprefix("file://"))
    found = [pq.read_table(path) for path in sorted(root.glob("**/compacted/**/*.parquet"))]
    assert sum(table.num_rows for table in found) == 8
