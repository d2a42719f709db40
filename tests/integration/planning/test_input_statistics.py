"""What is known of a session's input: from the log, from footers, from a sample of text."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from compactor import DeltaCatalog, compact
from compactor.catalog.snapshot import CompactedStream
from compactor.engine.in_process import InProcessEngine
from compactor.model.counts import SortKey, StepFigures
from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.planning import time_model
from compactor.planning.input_statistics import InputStatistics, spread
from compactor.planning.session_input import SessionInput, read_session_input
from compactor.planning.session_planner import measure, read_for_plan
from compactor.planning.sizing import Resources, predicted_time
from compactor.tabular import text
from tests.builders import pinned_session

TABLE = "ACME.ORDERS.V1"


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog.open(str(tmp_path / "lake"))


def measured(lake: DeltaCatalog, **fields: object) -> InputStatistics:
    session, sampled_files = read_for_plan(pinned_session(lake, TABLE, **fields), lake)
    return measure(session, lake, sampled_files)


def rows(first: int, count: int, text: str = "x" * 20) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "note": [text] * count})


def test_rows_bytes_files_and_content_types_are_told_by_schema(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE)
    table.append({}, rows(0, 100))
    table.append({}, rows(100, 50))
    table.append({}, rows(200, 10).append_column("more", pa.array(range(10), pa.int32())), content_type="feather")
    found = measured(lake)
    assert [(each.files, each.rows) for each in found.deltas] == [(2, 150), (1, 10)]
    assert [each.content_types for each in found.deltas] == [{ContentType.PARQUET}, {ContentType.FEATHER}]
    size = found.size
    assert (size.delta_rows, size.delta_files, size.largest_delta_file_rows) == (160, 3, 100)
    assert size.delta_bytes == sum(each.size_bytes for each in found.deltas)
    assert (found.compacted_rows, found.size.index_rows) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "nested", "uri", "is_held"),
    [
        ({}, False, "s3://bucket/a", False),
        ({}, True, "s3://bucket/a", True),
        ({}, True, "/data/a", False),
        ({"own_parquet_pages": False}, False, "s3://bucket/a", True),
        ({"compacted_file_content_type": ContentType.ORC}, False, "s3://bucket/a", True),
    ],
)
def test_a_row_group_is_held_whole_where_arrow_reads_it_from_an_object_store(
    lake: DeltaCatalog, fields: dict[str, object], nested: bool, uri: str, is_held: bool
) -> None:
    notes = [[1, 2]] * 100 if nested else ["x"] * 100
    lake.create_table(TABLE).append({}, pa.table({"id": range(100), "note": notes}))
    session = read_session_input(pinned_session(lake, TABLE, **fields), lake)
    (ref,) = session.streams.pending
    (group,) = ref.file.row_groups
    elsewhere = replace(ref, uri=uri)
    there = replace(session, streams=replace(session.streams, pending=(elsewhere,)))
    assert measure(there, lake).size.held_row_group_bytes == (group.size_bytes if is_held else 0)


def compacted(lake: DeltaCatalog, rows_per_compacted_file: int = 4_000_000) -> None:
    compact(
        TABLE,
        {"id"},
        delta_catalog_client=lake,
        rows_per_compacted_file=rows_per_compacted_file,
        engine=InProcessEngine(),
    )


def test_of_a_compacted_stream_files_index_and_what_deltas_may_touch_are_told_from_the_log(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE)
    for first in range(0, 4_000, 1_000):
        table.append({}, rows(first, 1_000))
    compacted(lake, rows_per_compacted_file=1_000)
    table.append({}, rows(1_100, 500, "y"))
    found = measured(lake)
    assert (found.size.compacted_files, found.compacted_rows, found.size.index_rows) == (4, 4_000, 4_000)
    assert found.size.inherited_hash_bucket_count is not None
    # of four files of 1,000 keys one holds keys between 1,100 and 1,599
    assert found.size.touched_rows == 1_000


def test_a_column_with_nulls_has_no_bounds_so_that_all_may_be_touched(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE)
    for first in (0, 1_000):
        table.append({}, rows(first, 1_000))
    compacted(lake, rows_per_compacted_file=1_000)
    table.append({}, pa.table({"id": pa.array([None, *range(1_500, 1_900)], pa.int64()), "note": ["y"] * 401}))
    assert measured(lake).size.touched_rows == pytest.approx(2_000, rel=0.01)


def test_where_dead_rows_are_kept_nothing_is_expected_to_be_rewritten(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE)
    table.append({}, rows(0, 1_000))
    compacted(lake)
    table.append({}, rows(500, 50))
    assert measured(lake, max_dead_row_share=0.3).size.touched_rows == 0
    assert measured(lake, max_dead_row_share=0.01).size.touched_rows == pytest.approx(1_000, rel=0.01)


def test_rows_that_are_dead_already_count_towards_the_share_that_may_be(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE)
    table.append({}, rows(0, 1_000))
    compacted(lake)
    table.append({}, rows(500, 50))
    compact(TABLE, {"id"}, delta_catalog_client=lake, max_dead_row_share=0.3, engine=InProcessEngine())
    table.append({}, rows(0, 60))
    # 60 rows of deltas and 50 dead ones, of 1,050
    assert measured(lake, max_dead_row_share=0.104).size.touched_rows
    assert measured(lake, max_dead_row_share=0.105).size.touched_rows == 0


def test_a_session_that_only_cleans_is_expected_to_rewrite_the_files_with_dead_rows(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE)
    for first in (0, 1_000):
        table.append({}, rows(first, 1_000))
    compacted(lake, rows_per_compacted_file=1_000)
    table.append({}, rows(1_200, 50))
    compact(TABLE, {"id"}, delta_catalog_client=lake, max_dead_row_share=0.3, engine=InProcessEngine())
    found = measured(lake)
    assert (found.size.delta_files, found.size.touched_rows) == (0, 1_000)


def test_deltas_whose_keys_lie_apart_are_not_rewritten_by_later_rounds(lake: DeltaCatalog, tmp_path: Path) -> None:
    apart = lake.create_table(TABLE)
    for first in range(0, 400, 100):
        apart.append({}, rows(first, 100))
    assert measured(lake).size.overlap_share == 0
    other = DeltaCatalog.open(str(tmp_path / "other"))
    mixed = other.create_table(TABLE)
    keys = list(range(400))
    random.Random(7).shuffle(keys)
    for first in range(0, 400, 100):
        mixed.append({}, pa.table({"id": keys[first : first + 100]}))
    assert measured(other).size.overlap_share == 1


def with_last_round(stream: CompactedStream, seconds: float, cores: int | None) -> CompactedStream:
    """As if its last round had been of ten million rows, whose steps took so long each."""
    done = stream.last_round
    steps = {
        step: StepFigures(seconds=seconds, tasks=2, peak_memory_bytes=1, cores=cores)
        for step in ("hash_bucket", "dedupe", "materialize")
    }
    file = done.files_added[0].model_copy(update={"rows": 10**7, "size_bytes": 10**9})
    counts = done.counts.model_copy(update={"rows_in": 10**7, "rows_out": 10**7})
    changed = done.model_copy(update={"steps": steps, "counts": counts, "files_added": (file,)})
    return replace(stream, last_round=changed)


def continuing(session: SessionInput, compacted: CompactedStream) -> SessionInput:
    return replace(session, streams=replace(session.streams, compacted=compacted))


def test_the_table_s_last_round_corrects_the_prediction_where_it_says_how_many_cores_it_had(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE)
    table.append({}, rows(0, 100))
    compacted(lake)
    done = table.stream({}).load().state.compacted
    assert done is not None
    assert {step.cores for step in done.last_round.steps.values()} == {1}
    table.append({}, rows(100, 100))
    session = read_session_input(pinned_session(lake, TABLE), lake)
    two = Resources(2**30, 2)
    seconds = {}
    for took in (0.1, 1.0, 10.0, 100.0):
        slower = continuing(session, with_last_round(done, took, cores=2))
        size = replace(measure(slower, lake).size, delta_rows=10**7)
        seconds[took] = predicted_time(size, two, 1).seconds
    assert seconds[0.1] < seconds[1.0] < seconds[10.0] == seconds[100.0], "a correction has its bounds"
    unknown = continuing(session, with_last_round(done, 10.0, cores=None))
    assert measure(unknown, lake).size.corrections == ()


# -- text


LONG = 400_000
"""Lines that take more than one block."""


def csv_file(folder: Path, name: str, ids: list[str]) -> str:
    file = folder / name
    file.write_text("id,note\n" + "".join(f"{each},{'n' * 20}\n" for each in ids))
    return file.as_uri()


def numbers(count: int) -> list[str]:
    return [str(10_000 + number) for number in range(count)]


def test_text_without_a_declared_schema_is_planned_from_its_first_block(lake: DeltaCatalog, tmp_path: Path) -> None:
    table = lake.create_table(TABLE)
    table.append({}, [csv_file(tmp_path, "long.csv", [*numbers(LONG), "last"])])
    found = measured(lake)
    assert found.sampled_files == 1
    assert found.deltas[0].schema.field("id").type == pa.int64()
    assert "the types of 1 text file are those of the first 8 MiB" in " / ".join(found.arithmetic())
    session = read_session_input(pinned_session(lake, TABLE), lake)
    assert session.schema.field("id").type == pa.string()


def test_text_that_fits_into_one_block_is_no_sample(lake: DeltaCatalog, tmp_path: Path) -> None:
    lake.create_table(TABLE).append({}, [csv_file(tmp_path, "short.csv", numbers(10))])
    found = measured(lake)
    assert found.sampled_files == 0


def test_text_that_only_its_sample_would_refuse_is_planned(lake: DeltaCatalog, tmp_path: Path) -> None:
    """In its first block a file's ids are numbers; another file's are text: only the whole of the first says so too."""
    table = lake.create_table(TABLE)
    table.append({}, [csv_file(tmp_path, "long.csv", [*numbers(LONG), "last"])])
    table.append({}, pa.table({"id": ["a", "b"]}))
    assert measured(lake).size.delta_rows == LONG + 3


def test_text_that_is_refused_as_a_whole_is_refused(lake: DeltaCatalog, tmp_path: Path) -> None:
    lake.create_table(TABLE).append({}, [csv_file(tmp_path, "long.csv", numbers(LONG))])
    with pytest.raises(Invalid, match="note"):
        measured(lake, sort_keys=(SortKey(column="note"),))


def test_positions_are_spread_over_all_of_a_sequence() -> None:
    assert spread(4, 10) == {0, 1, 2, 3}
    assert spread(100, 4) == {0, 25, 50, 75}
    assert spread(0, 4) == frozenset()


def test_the_most_rows_that_one_task_has_to_read_are_those_of_a_row_group_or_of_a_piece_of_text(
    lake: DeltaCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "TEXT_PIECE_BYTES", 2**20)
    table, many = lake.create_table(TABLE), pa.table({"id": range(600_000)})
    paths = [tmp_path / name for name in ("groups.parquet", "one.parquet", "text.csv", "quoted.csv")]
    pq.write_table(many, paths[0], row_group_size=150_000)
    table.append({}, [paths[0].as_uri()])
    assert (measured(lake).size.undivided_rows, measured(lake).size.uncut_files) == (300_000, 0)
    pq.write_table(many, paths[1], row_group_size=600_000)
    csv.write_csv(many, paths[2])
    table.append({}, [paths[2].as_uri()])
    assert measured(lake).size.uncut_files == 0
    assert 250_000 <= measured(lake).size.undivided_rows < 600_000
    csv.write_csv(many, paths[3], csv.WriteOptions(quoting_style="all_valid"))
    table.append({}, [paths[1].as_uri(), paths[3].as_uri()])
    assert (measured(lake).size.undivided_rows, measured(lake).size.uncut_files) == (600_000, 2)


def test_a_first_session_says_nothing_of_what_the_correction_by_its_rounds_leaves(
    lake: DeltaCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_model, "CORRECTED_SECONDS_MIN", 0.0)  # so that these short rounds correct the next one
    table = lake.create_table(TABLE)
    factors = []
    for number in range(3):
        table.append({}, rows(number * 100, 100))
        factors.append(len(measured(lake).size.own_factors))
        compact(TABLE, {"id"}, delta_catalog_client=lake, engine=InProcessEngine())
    compacted = table.stream({}).load().state.compacted
    assert compacted is not None
    assert [each.is_corrected for each in compacted.last_round.timings] == [False, True, True]
    assert factors == [0, 0, 1]
