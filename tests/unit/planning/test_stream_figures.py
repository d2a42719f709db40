"""How far a stream is behind, and how its files are: from the folds of its logs."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from compactor.catalog.actions import (
    DeltaAdded,
    DeltaRetracted,
    RoundCommitted,
    SkippedPositions,
    StreamAction,
    StreamVersionCreated,
    StreamVersionReleased,
)
from compactor.catalog.keys import TableFolder
from compactor.catalog.properties import TableProperties
from compactor.catalog.snapshot import StreamSnapshot, apply
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog
from compactor.model.counts import RowCounts, Watermark
from compactor.model.files import DataFile, DeletionVector
from compactor.model.names import ContentType, LifecycleState, Operation
from compactor.planning.small_files import MergeLimits
from compactor.planning.stream_figures import StreamFigures, figures_of, total
from compactor.planning.table_figures import merge_limits, read_figures
from compactor.schemas.unify import render_schema
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

TABLE = "ACME.ORDERS.V1"
LIMITS = MergeLimits(rows_per_file=400, bytes_per_file=4_000)
CREATED = StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE)


def file(number: int, rows: int, size_bytes: int) -> DataFile:
    parquet = ContentType.PARQUET
    return DataFile(file_number=number, path=f"{number}", content_type=parquet, rows=rows, size_bytes=size_bytes)


def delta(position: int, *rows: int, at_ms: int | None = None, version: int = 1) -> DeltaAdded:
    """A delta with a file of ten bytes a row for each of `rows`."""
    return DeltaAdded(
        stream_version=version,
        position=position,
        operation=Operation.UPSERT,
        delta_id=f"{version} {position}",
        content_digest="",
        files=tuple(file(number, each, 10 * each) for number, each in enumerate(rows, 1)),
        at_ms=at_ms,
    )


def committed(
    index_version: int, processed: Watermark, *files: DataFile, dead: int = 0, at_ms: int | None = None
) -> RoundCommitted:
    vectors = (DeletionVector(file_number=files[0].file_number, path="v", rows=dead, size_bytes=1),) if dead else ()
    return RoundCommitted(
        commit_id=f"{index_version}",
        job_run_id="run",
        session_id="session",
        round_number=1,
        rounds=1,
        source_table_id=TABLE,
        source_stream_version=1,
        processed=processed,
        compacted_table_id=TABLE,
        compacted_stream_version=1,
        primary_keys=("id",),
        sort_keys=(),
        digest_encoding=1,
        compacted_schema=render_schema(pa.schema([])),
        hash_bucket_count=1,
        index_version=index_version,
        bytes_at_rest=0,
        files_added=files,
        files_removed=(),
        deletion_vectors=vectors,
        index_files=(),
        counts=RowCounts(**dict.fromkeys(RowCounts.model_fields, 0)),
        steps={},
        at_ms=at_ms,
    )


def stream(*actions: StreamAction) -> StreamSnapshot:
    snapshot = StreamSnapshot()
    for action in actions:
        snapshot = apply(snapshot, action)
    return snapshot


def test_a_stream_without_an_entry_has_no_figures() -> None:
    assert figures_of(StreamSnapshot(), LIMITS) == StreamFigures()


def test_everything_is_pending_before_the_first_round() -> None:
    figures = figures_of(stream(CREATED, delta(1, 3, 4, at_ms=10), delta(2, 5, at_ms=20)), LIMITS)
    assert (figures.pending_deltas, figures.pending_rows, figures.pending_bytes) == (2, 12, 120)
    assert (figures.oldest_pending_at_ms, figures.last_write_at_ms, figures.last_compacted_at_ms) == (10, 20, None)
    assert (figures.files, figures.lag_seconds(3_010)) == (0, 3.0)


def test_what_a_round_has_read_waits_no_more_and_a_part_of_a_delta_waits_still() -> None:
    deltas = (CREATED, delta(1, 3, at_ms=10), delta(2, 5, 7, at_ms=20), delta(3, 9, at_ms=30))
    half = figures_of(stream(*deltas, committed(1, Watermark(position=2, file_number=1))), LIMITS)
    assert (half.pending_deltas, half.pending_rows, half.pending_bytes) == (2, 16, 160)
    assert half.oldest_pending_at_ms == 20
    done = figures_of(stream(*deltas, committed(1, Watermark(position=3), at_ms=40)), LIMITS)
    assert (done.pending_deltas, done.pending_rows, done.oldest_pending_at_ms) == (0, 0, None)
    assert (done.last_write_at_ms, done.last_compacted_at_ms, done.lag_seconds(99_000)) == (30, 40, 0.0)


def test_retracted_and_skipped_deltas_do_not_wait() -> None:
    retracted = DeltaRetracted(stream_version=1, position=2, delta_id="1 2")
    at = stream(CREATED, delta(1, 3), delta(2, 5), delta(3, 7), retracted)
    skips = replace(at, skipped=(SkippedPositions(stream_version=1, after=2, until=3),))
    assert (figures_of(at, LIMITS).pending_rows, figures_of(skips, LIMITS).pending_rows) == (10, 3)


def test_of_a_new_stream_version_everything_is_pending() -> None:
    later = (StreamVersionCreated(stream_version=2, state=LifecycleState.UNRELEASED), delta(1, 4, version=2))
    before = stream(CREATED, delta(1, 3), committed(1, Watermark(position=1)), *later)
    assert figures_of(before, LIMITS).pending_rows == 0, "the version is not released"
    assert figures_of(apply(before, StreamVersionReleased(stream_version=2)), LIMITS).pending_rows == 4


def test_small_files_of_a_version_that_nothing_continues_are_merged_by_no_compaction() -> None:
    files = [file(number, 10, 100) for number in range(1, 13)]
    before = stream(CREATED, delta(1, 3), committed(1, Watermark(position=1), *files))
    assert figures_of(before, LIMITS).mergeable_files == 12
    later = StreamVersionCreated(stream_version=2, state=LifecycleState.UNRELEASED)
    after = apply(apply(before, later), StreamVersionReleased(stream_version=2))
    assert (figures_of(after, LIMITS).files, figures_of(after, LIMITS).mergeable_files) == (12, 0)


def test_a_file_is_small_only_if_its_rows_and_its_bytes_are_few() -> None:
    files = (file(1, 99, 999), file(2, 100, 999), file(3, 99, 1_000), file(4, 400, 4_000))
    at = stream(CREATED, delta(1, 3), committed(1, Watermark(position=1), *files, dead=9))
    figures = figures_of(at, LIMITS)
    assert (figures.files, figures.file_bytes) == (4, 6_998)
    assert (figures.small_files, figures.small_file_bytes, figures.small_file_share) == (1, 999, 0.25)
    assert (figures.rows, figures.dead_rows) == (689, 9)
    assert figures.dead_row_share == 9 / 698


def test_files_that_a_compaction_would_not_take_count_in_no_size_ratio() -> None:
    full = tuple(file(number, 400, 4_000) for number in range(1, 9))
    at = stream(CREATED, delta(1, 3), committed(1, Watermark(position=1), *full))
    assert figures_of(at, LIMITS).size_ratio == 0
    assert figures_of(apply(at, delta(2, 1)), LIMITS).size_ratio == 0
    assert figures_of(apply(at, delta(2, 1, 1, 1)), LIMITS).size_ratio == 2
    few = tuple(file(number, 10, 100) for number in range(9, 16))
    at = stream(CREATED, delta(1, 3), committed(1, Watermark(position=1), *full, *few))
    assert (figures_of(at, LIMITS).mergeable_files, figures_of(at, LIMITS).size_ratio) == (0, 0)
    merges = MergeLimits(rows_per_file=400, bytes_per_file=4_000, small_files=7, share=0.0)
    assert (figures_of(at, merges).mergeable_files, figures_of(at, merges).size_ratio) == (7, 6)


def test_which_files_are_small_is_said_by_the_tables_properties() -> None:
    assert merge_limits(TableProperties()) == MergeLimits(4_000_000, 512 * 1024 * 1024)
    own = TableProperties(rows_per_compacted_file=7, bytes_per_compacted_file=8)
    assert merge_limits(own) == MergeLimits(7, 8)


def test_a_source_of_copies_waits_for_the_one_that_is_furthest_behind_and_has_the_files_of_that_one() -> None:
    source = stream(CREATED, delta(1, 3, at_ms=10), delta(2, 5, at_ms=20))
    ahead = stream(committed(1, Watermark(position=2), file(1, 8, 80)))
    behind = stream(committed(1, Watermark(position=1), file(1, 3, 30)))
    figures = figures_of(source, LIMITS, source, (ahead, behind))
    assert (figures.pending_rows, figures.oldest_pending_at_ms, figures.files, figures.rows) == (5, 20, 1, 3)
    of_copy = figures_of(behind, LIMITS, source, (behind,))
    assert (of_copy.pending_rows, of_copy.files, of_copy.rows) == (5, 1, 3)


def test_the_sum_has_the_oldest_that_waits_and_the_newest_write() -> None:
    one = StreamFigures(1, 2, 3, 40, 50, 1, 2, 3, 4, 5, 6, 70, unpublished_files=1)
    other = StreamFigures(1, 2, 3, 30, 60, 1, 2, 3, 4, 5, 6, None, unpublished_files=2, unpublished_since_ms=9)
    both = StreamFigures(2, 4, 6, 30, 60, 2, 4, 6, 8, 10, 12, 70, unpublished_files=3, unpublished_since_ms=9)
    assert total([one, other]) == total([other, one]) == both
    assert total([]) == StreamFigures()
    assert both.published_lag_seconds(1_009) == 1.0


def test_a_clock_that_is_behind_the_writers_shows_no_negative_lag() -> None:
    assert StreamFigures(oldest_pending_at_ms=2_000).lag_seconds(1_000) == 0.0


def test_the_time_of_a_delta_that_does_not_have_it_is_that_of_its_entry() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    orders = DeltaCatalog(store, clock).create_table(TABLE)
    log = PartitionStream.open(store, TableFolder(TABLE).stream({}), clock).log
    log.append(lambda _: [CREATED])
    for position in range(1, 21):
        clock.sleep(1.0)
        log.append(lambda _, position=position: [delta(position, 1)])  # type: ignore[misc]
        if position == 12:
            log.append(lambda _: [committed(1, Watermark(position=12))])
    (figures,) = read_figures(orders)
    assert (figures.pending_deltas, figures.lag_seconds(clock.now_ms())) == (8, 7.0)
