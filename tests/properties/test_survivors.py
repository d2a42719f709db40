"""The invariant: the surviving rows depend on nothing but the input and the keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.engine.protocol import Engine
from compactor.engine.spark import SparkEngine
from compactor.model.names import PARTITION_STREAM_POSITION, ContentType
from compactor.steps import materialize
from tests.builders import TABLE_ID, CompactedSide, audit, multiset
from tests.effort import examples
from tests.fakes.unruly_engine import UnrulyEngine
from tests.oracle import surviving_rows
from tests.properties.folders import fresh_folder
from tests.properties.small_tasks import few_rows_fit, files_are_cut
from tests.properties.streams import Shape, StreamDelta, can_hold, streams

ELSEWHERE = "ACME.ORDERS_COMPACTED.V1"
FIRST_POSITION = -2


@dataclass(frozen=True)
class Way:
    """One of the ways to compact the same deltas. `run_after`: deltas after which a run is made; and one at the end."""

    hash_bucket_count: int
    run_after: frozenset[int] = frozenset()
    max_rows_per_round: int | None = None
    rows_per_compacted_file: int = 4_000_000
    rows_per_index_file: int = 38_000_000
    max_dead_row_share: float = 0.0
    content_type: ContentType = ContentType.PARQUET
    own_parquet_pages: bool = True
    page_check_share: float = 0.0
    merge_small_files: int = 8


ways = st.builds(
    Way,
    hash_bucket_count=st.sampled_from([1, 3, 8]),
    run_after=st.frozensets(st.integers(0, 4), max_size=2),
    max_rows_per_round=st.sampled_from([None, 2, 5]),
    rows_per_compacted_file=st.sampled_from([1, 2, 8, 4_000_000]),
    rows_per_index_file=st.sampled_from([1, 38_000_000]),
    max_dead_row_share=st.sampled_from([0.0, 0.5, 0.9]),
    content_type=st.sampled_from([each for each in ContentType if each is not ContentType.JSON]),
    own_parquet_pages=st.booleans(),
    page_check_share=st.sampled_from([0.0, 1.0]),
    merge_small_files=st.sampled_from([0, 2, 3]),
)


@examples(0.6)
@given(stream=streams(), way=ways, seed=st.integers(0, 2**16))
def test_survivors_are_the_oracle_s_whatever_the_buckets_runs_rounds_and_files(
    stream: tuple[Shape, list[StreamDelta]], way: Way, seed: int
) -> None:
    check_survivors(*stream, way, UnrulyEngine(seed))


@examples(0.4)
@given(stream=streams(), way=ways, seed=st.integers(0, 2**16), rows=st.integers(1, 4), undecoded=st.booleans())
def test_survivors_are_the_oracle_s_where_tasks_have_room_for_a_few_rows_at_a_time(
    stream: tuple[Shape, list[StreamDelta]], way: Way, seed: int, rows: int, undecoded: bool
) -> None:
    with few_rows_fit(rows), pytest.MonkeyPatch.context() as patch:
        patch.setattr(materialize, "ROW_GROUP_BYTES_MIN", 0 if undecoded else materialize.ROW_GROUP_BYTES_MIN)
        check_survivors(*stream, way, UnrulyEngine(seed))


@examples(0.4)
@given(stream=streams(), way=ways, seed=st.integers(0, 2**16), rows=st.integers(1, 3), undecoded=st.booleans())
def test_survivors_are_the_oracle_s_where_several_tasks_share_a_file(
    stream: tuple[Shape, list[StreamDelta]], way: Way, seed: int, rows: int, undecoded: bool
) -> None:
    with files_are_cut(rows), pytest.MonkeyPatch.context() as patch:
        patch.setattr(materialize, "ROW_GROUP_BYTES_MIN", 0 if undecoded else materialize.ROW_GROUP_BYTES_MIN)
        check_survivors(*stream, way, UnrulyEngine(seed))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@examples(0.08)
@given(stream=streams(), way=ways)
def test_survivors_are_the_oracle_s_on_spark(
    spark: SparkSession, stream: tuple[Shape, list[StreamDelta]], way: Way
) -> None:
    check_survivors(*stream, way, SparkEngine(spark.sparkContext))


@examples(0.2)
@given(stream=streams(), way=ways)
def test_survivors_are_the_oracle_s_where_compact_chooses_its_engine(
    stream: tuple[Shape, list[StreamDelta]], way: Way
) -> None:
    check_survivors(*stream, way, None)


def check_survivors(shape: Shape, deltas: list[StreamDelta], way: Way, engine: Engine | None) -> None:
    with fresh_lake() as lake:
        table = lake.create_table(TABLE_ID, properties={"merge_small_files": way.merge_small_files})
        for number, delta in enumerate(deltas):
            delta.append_to(table, shape, FIRST_POSITION + number)
            if number in way.run_after:
                run(lake, shape, way, engine, TABLE_ID)
        run(lake, shape, way, engine, TABLE_ID)
        run(lake, shape, Way(hash_bucket_count=2), engine, ELSEWHERE)
        expected = surviving_rows(
            [delta.for_oracle(FIRST_POSITION + number) for number, delta in enumerate(deltas)],
            shape.primary_keys,
            shape.sort_keys,
        )
        for table_id in (TABLE_ID, ELSEWHERE):
            side = CompactedSide.of(lake, table_id)
            rows = side.rows()
            note(f"{table_id}: {rows.to_pylist()}")
            assert multiset(rows, shape.schema.names) == multiset(expected, shape.schema.names)
            assert rows.schema.equals(shape.schema)
            audit(side)
            for row in rows.to_pylist():
                found = side.table.lookup({}, {name: row[name] for name in shape.primary_keys})
                assert multiset([found or {}], shape.schema.names) == multiset([row], shape.schema.names)


def run(lake: DeltaCatalog, shape: Shape, way: Way, engine: Engine | None, destination: str) -> None:
    """Compacts what is pending, and holds the books against it."""
    result = compact(
        TABLE_ID,
        set(shape.primary_keys),
        shape.sort_keys or [(PARTITION_STREAM_POSITION, "ascending")],
        delta_catalog_client=lake,
        destination_compacted_table_id=destination,
        hash_bucket_count=way.hash_bucket_count,
        max_rows_per_round=way.max_rows_per_round,
        rows_per_compacted_file=way.rows_per_compacted_file,
        rows_per_primary_key_index_file=way.rows_per_index_file,
        max_dead_row_share=way.max_dead_row_share,
        own_parquet_pages=way.own_parquet_pages,
        page_check_share=way.page_check_share,
        compacted_file_content_type=way.content_type
        if can_hold(way.content_type, shape.schema)
        else ContentType.PARQUET,
        engine=engine,
    )
    for session in result.sessions:
        assert session.rows_in == session.rows_out + session.rows_deduplicated + session.rows_deleted
        for completion in session.completions:
            assert all(file.rows <= way.rows_per_compacted_file for file in completion.files_added)
            assert all(file.rows <= way.rows_per_index_file for file in completion.index_files)


@contextmanager
def fresh_lake() -> Iterator[DeltaCatalog]:
    """An empty lake for one example."""
    with fresh_folder() as folder:
        yield DeltaCatalog.open(folder)
