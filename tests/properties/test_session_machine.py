"""Whatever writers, operators and compactions do, and wherever one is stopped: the rows are the oracle's, always.

A state machine appends deltas of every format, one or many at a time, takes some back, begins and deprecates stream
versions, compacts with changing bucket counts, limits and formats, stops compactions at any durable write, rehashes the
index, retires deltas and deletes garbage. After every step the compacted rows and the merged view are held against
the oracle; after every compaction the compacted rows are what the merged view was before, and, of a published table,
what another engine reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import RoundCommitted
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.engine.protocol import Engine
from compactor.engine.spark import SparkEngine
from compactor.local_job_run import rehash_here
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.maintenance.retirement import StreamRetirement, retention_of
from compactor.model.names import ContentType, Operation
from compactor.publishing.delta_schema import left_out
from compactor.schemas.open_types import OpenTable, open_schema, reasons_against
from compactor.steps import materialize
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from tests.builders import TABLE_ID, CompactedSide, audit, multiset
from tests.effort import examples
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine
from tests.oracle import OracleDelta, Row, surviving_rows
from tests.properties.folders import fresh_folder
from tests.properties.streams import Shape, StreamDelta, can_hold, shapes, stream_deltas
from tests.published_rows import differences

FIRST_POSITION = -5
GRACE_SECONDS = 3_600
FAR_FUTURE_MS = 4_000_000_000_000
"""The clock of writers and of gc: every file is older than the grace period, whatever this machine's clock says."""

bucket_counts = st.sampled_from([1, 2, 5])
round_limits = st.sampled_from([None, None, 1, 3])
file_limits = st.sampled_from([1, 3, 4_000_000])
dead_row_shares = st.sampled_from([0.0, 0.0, 0.5, 0.9])
written = st.sampled_from([ContentType.PARQUET, ContentType.PARQUET, ContentType.FEATHER, ContentType.CSV])
DELTA_FORMATS = (ContentType.PARQUET, ContentType.PARQUET, ContentType.FEATHER, ContentType.CSV, ContentType.CSV)
JSON_TYPES = frozenset({pa.int64(), pa.uint8(), pa.string(), pa.large_string(), pa.bool_(), pa.list_(pa.int64())})


@dataclass(frozen=True)
class Appended:
    """A delta in the stream's log that was not taken back."""

    stream_version: int
    position: int
    delta_id: str
    delta: StreamDelta


class SessionMachine(RuleBasedStateMachine):
    """One table without partition keys, and everything that may happen to it."""

    engine: Engine
    shape: Shape

    def __init__(self) -> None:
        super().__init__()
        self.folders = ExitStack()
        self.folder = self.folders.enter_context(fresh_folder())
        self.store = FaultyStore(LocalStore(StoreLocation(f"file://{self.folder}")))
        self.clock = ManualClock(FAR_FUTURE_MS)
        self.lake = DeltaCatalog(self.store, self.clock)
        self.deltas: list[Appended] = []
        self.rows_drawn = 0
        self.last_positions: dict[int, int] = {}

    def teardown(self) -> None:
        self.folders.close()

    @initialize(
        shape=shapes(),
        wants_publication=st.booleans(),
        news_hints=st.booleans(),
        merge_small_files=st.sampled_from([0, 2, 3]),
        tombstone_retention=st.sampled_from([None, None, 0, 3]),
    )
    def create_table(
        self,
        shape: Shape,
        wants_publication: bool,
        news_hints: bool,
        merge_small_files: int,
        tombstone_retention: int | None,
    ) -> None:
        self.shape = shape
        self.tombstone_retention = tombstone_retention
        sort_columns = list(shape.sort_types)
        self.is_published = (
            wants_publication
            and open_schema(shape.schema) == shape.schema
            and not list(reasons_against(shape.schema, OpenTable((), shape.primary_keys, sort_columns, True)))
        )
        properties: dict[str, object] = {"gc_grace_seconds": GRACE_SECONDS, "retention_seconds": GRACE_SECONDS}
        properties |= {"merge_small_files": merge_small_files}
        properties |= {"publish": ["delta"]} if self.is_published else {"news_hints": news_hints}
        self.table = self.lake.create_table(
            TABLE_ID,
            schema=shape.schema,
            primary_keys=shape.primary_keys,
            sort_keys=shape.sort_keys or None,
            properties=properties,
        )

    @property
    def snapshot(self) -> StreamSnapshot:
        """As another process reads it."""
        return DeltaCatalog.open(self.folder).table(TABLE_ID).stream({}).load().state

    @property
    def takes_deltas(self) -> bool:
        snapshot = self.snapshot
        return snapshot.active is not None or not snapshot.sources

    @property
    def pending(self) -> list[Appended]:
        """Those in the log, which those of older stream versions may have left, that no compaction has taken."""
        snapshot = self.snapshot
        compacted = snapshot.compacted
        return [
            each
            for each in self.deltas
            if snapshot.sources[each.stream_version].deltas.find(each.delta_id) is not None
            and not (compacted and compacted.has_taken(TABLE_ID, each.stream_version, each.position))
        ]

    # ------------------------------------------------------------------------------------------------ what may happen

    @precondition(lambda self: self.takes_deltas)
    @rule(data=st.data(), gap=st.integers(1, 3))
    def append(self, data: st.DataObject, gap: int) -> None:
        delta = self.drawn(data, DELTA_FORMATS)
        active = self.snapshot.active
        last = None if active is None else self.last_positions.get(active.stream_version)
        position = FIRST_POSITION if last is None else last + gap
        if self.fits_json(delta) and data.draw(st.booleans()):
            added = self.table.append({}, [self.json_file(delta)], position=position)
            delta = StreamDelta(delta.operation, delta.columns, delta.rows, 100, ContentType.JSON, narrow=False)
        else:
            added = delta.append_to(self.table, self.shape, position)
        self.remember(Appended(added.stream_version, added.position, added.delta_id, delta))

    @precondition(lambda self: self.takes_deltas)
    @rule(data=st.data(), count=st.integers(2, 3), content_type=st.sampled_from(DELTA_FORMATS))
    def append_many(self, data: st.DataObject, count: int, content_type: ContentType) -> None:
        drawn = [self.drawn(data, [content_type]) for _ in range(count)]
        held = content_type if can_hold(content_type, self.shape.schema) else ContentType.PARQUET
        drawn = [StreamDelta(each.operation, each.columns, each.rows, 100, held, each.narrow) for each in drawn]
        added = self.table.append_many(
            [({}, each.table(self.shape), each.operation) for each in drawn], content_type=held
        )
        for appended, delta in zip(added, drawn, strict=True):
            self.remember(Appended(appended.stream_version, appended.position, appended.delta_id, delta))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def take_a_delta_back(self, data: st.DataObject) -> None:
        retracted = data.draw(st.sampled_from(self.pending))
        self.table.retract({}, retracted.delta_id)
        self.table.retract({}, retracted.delta_id)
        self.deltas.remove(retracted)

    @precondition(lambda self: self.snapshot.sources)
    @rule()
    def begin_a_stream_version(self) -> None:
        self.table.create_stream_version({}, "active")

    @precondition(lambda self: self.snapshot.active is not None)
    @rule()
    def deprecate_the_active_version(self) -> None:
        active = self.snapshot.active
        assert active is not None
        self.table.deprecate_stream_version({}, active.stream_version, abandon_pending=True)

    @rule(
        hash_bucket_count=bucket_counts,
        max_rows_per_round=round_limits,
        rows_per_file=file_limits,
        max_dead_row_share=dead_row_shares,
        content_type=written,
    )
    def compact(
        self,
        hash_bucket_count: int,
        max_rows_per_round: int | None,
        rows_per_file: int,
        max_dead_row_share: float,
        content_type: ContentType,
    ) -> None:
        merged, knows_retention = self.rows("merged"), self.knows_retention
        self.run(hash_bucket_count, max_rows_per_round, rows_per_file, max_dead_row_share, content_type)
        if knows_retention:
            assert multiset(self.rows("compacted"), self.columns) == multiset(merged, self.columns)
        snapshot = self.snapshot
        compacted, active = snapshot.compacted, snapshot.active
        if compacted is not None and active is not None and compacted.source_stream_version == active.stream_version:
            for vector in compacted.deletion_vectors:
                assert vector.rows <= max_dead_row_share * compacted.files[vector.file_number].rows
        if compacted is not None and self.is_published:
            scanned = self.rows("compacted")
            assert differences(scanned, self.published_rows(), frozenset(left_out(scanned.schema))) == []

    def run(
        self,
        hash_bucket_count: int,
        max_rows_per_round: int | None = None,
        rows_per_file: int = 4_000_000,
        max_dead_row_share: float = 0.0,
        content_type: ContentType = ContentType.PARQUET,
    ) -> None:
        is_held = not self.is_published and can_hold(content_type, self.shape.schema)
        result = compact(
            TABLE_ID,
            delta_catalog_client=self.lake,
            hash_bucket_count=hash_bucket_count,
            max_rows_per_round=max_rows_per_round,
            rows_per_compacted_file=rows_per_file,
            max_dead_row_share=max_dead_row_share,
            tombstone_retention=self.tombstone_retention,
            compacted_file_content_type=content_type if is_held else ContentType.PARQUET,
            engine=self.engine,
        )
        for session in result.sessions:
            assert session.rows_in == session.rows_out + session.rows_deduplicated + session.rows_deleted

    @rule(point=st.integers(0, 14), hash_bucket_count=bucket_counts, max_rows_per_round=round_limits)
    def stop_at_a_durable_write(self, point: int, hash_bucket_count: int, max_rows_per_round: int | None) -> None:
        self.store.stop_at(point)
        with suppress(Stopped):
            self.run(hash_bucket_count, max_rows_per_round, rows_per_file=3)
        self.store.heal()

    @rule(when=st.sampled_from(["before", "after"]), key_part=st.sampled_from(["/log/", "job_runs/", "streams/"]))
    def lose_a_request_or_its_answer(self, when: Literal["before", "after"], key_part: str) -> None:
        self.store.fail("put_if_absent", key_part, when, times=2)
        self.run(hash_bucket_count=2)
        self.store.heal()

    @precondition(lambda self: self.snapshot.compacted is not None)
    @rule(hash_bucket_count=st.none() | bucket_counts)
    def rehash(self, hash_bucket_count: int | None) -> None:
        stream = self.table.stream({})
        compacted = stream.load().state.compacted
        assert compacted is not None
        had, before = compacted.hash_bucket_count, set(compacted.files)
        done = rehash_here(self.lake, stream, hash_bucket_count, self.clock, self.engine)
        after, active = self.snapshot.compacted, self.snapshot.active
        assert after is not None
        assert set(after.files) == before
        is_continued = active is not None and active.stream_version == compacted.source_stream_version
        if hash_bucket_count is not None:
            assert after.hash_bucket_count == (hash_bucket_count if is_continued else had)
        assert (done and done.rehashed_from) == (None if after.hash_bucket_count == had else had)

    @precondition(lambda self: self.snapshot.compacted is not None)
    @rule(point=st.integers(0, 8), hash_bucket_count=st.none() | bucket_counts)
    def stop_a_rehash_at_a_durable_write(self, point: int, hash_bucket_count: int | None) -> None:
        self.store.stop_at(point)
        with suppress(Stopped):
            rehash_here(self.lake, self.table.stream({}), hash_bucket_count, self.clock, self.engine)
        self.store.heal()

    @rule(hours=st.sampled_from([0, 1, 3]))
    def retire_deltas_and_delete_garbage(self, hours: int) -> None:
        self.clock.sleep(hours * 3_600)
        retention = retention_of(GRACE_SECONDS, GRACE_SECONDS)

        def retire(stream: PartitionStream) -> None:
            StreamRetirement(self.store, stream, self.clock).retire(retention)

        for garbage in find_garbage(self.store, TABLE_ID, self.clock, GRACE_SECONDS, GRACE_SECONDS, retire):
            delete_garbage(self.store, garbage)

    # ---------------------------------------------------------------------------------------------- what always holds

    @invariant()
    def the_rows_are_the_oracle_s(self) -> None:
        lake = DeltaCatalog.open(self.folder)
        if TABLE_ID not in lake.tables():
            return
        snapshot = self.snapshot
        compacted, active = snapshot.compacted, snapshot.active
        taken: list[OracleDelta] = []
        if compacted is not None:
            for each in self.of_version(compacted.source_stream_version):
                files = enumerate(each.delta.files, 1)
                covered = [rows for number, rows in files if compacted.processed.covers(each.position, number)]
                taken.append((each.position, each.delta.operation, covered))
            assert multiset(self.rows("compacted"), self.columns) == multiset(self.survivors_of(taken), self.columns)
            audit(CompactedSide.of(lake))
        replaces = active is not None and (
            compacted is None or active.stream_version == compacted.source_stream_version or bool(active.deltas)
        )
        whole = taken
        if active is not None and replaces:
            versions = self.of_version(active.stream_version)
            whole = [(each.position, each.delta.operation, each.delta.files) for each in versions]
        assert multiset(self.rows("merged"), self.columns) == multiset(self.survivors_of(whole), self.columns)

    @invariant()
    def every_round_s_books_follow_from_the_round_before(self) -> None:
        lake = DeltaCatalog.open(self.folder)
        if TABLE_ID not in lake.tables():
            return
        rows = version = 0
        for entry in lake.table(TABLE_ID).stream({}).log.entries():
            for action in entry.actions:
                if isinstance(action, RoundCommitted):
                    counts = action.counts
                    assert counts.rows_before == (rows if action.compacted_stream_version == version else 0)
                    assert counts.rows_in == counts.rows_out + counts.rows_deduplicated + counts.rows_deleted
                    rows, version = counts.rows_out, action.compacted_stream_version

    # ------------------------------------------------------------------------------------------------------- helpers

    @property
    def knows_retention(self) -> bool:
        """Whether the log says for how long tombstones are remembered: the first compaction does."""
        return self.tombstone_retention is None or self.snapshot.compacted is not None

    @property
    def columns(self) -> list[str]:
        return list(self.shape.schema.names)

    def drawn(self, data: st.DataObject, content_types: Sequence[ContentType]) -> StreamDelta:
        delta = data.draw(stream_deltas(self.shape, self.rows_drawn, content_types=content_types))
        self.rows_drawn += len(delta.rows)
        return delta

    def remember(self, appended: Appended) -> None:
        self.deltas.append(appended)
        self.last_positions[appended.stream_version] = appended.position

    def of_version(self, stream_version: int) -> list[Appended]:
        return [each for each in self.deltas if each.stream_version == stream_version]

    def survivors_of(self, deltas: list[OracleDelta]) -> list[Row]:
        retention = self.tombstone_retention if self.knows_retention else None
        return surviving_rows(deltas, self.shape.primary_keys, self.shape.sort_keys, retention)

    def rows(self, view: str) -> pa.Table:
        return DeltaCatalog.open(self.folder).table(TABLE_ID).scan(view=view).to_table()

    def published_rows(self) -> pa.Table:
        """A table that never had a compacted file is not published."""
        compacted = self.snapshot.compacted
        if compacted is not None and compacted.next_file_number == 1:
            return self.shape.schema.empty_table().drop_columns([*left_out(self.shape.schema)])
        published = DeltaTable(str(self.folder / "tables" / TABLE_ID / "compacted"))
        return pa.table(QueryBuilder().register("t", published).execute("select * from t"))

    def fits_json(self, delta: StreamDelta) -> bool:
        """A delete's file has every declared column, in JSON, so it would never lack sort values."""
        types = {self.shape.schema.field(name).type for name in delta.columns}
        return delta.operation is Operation.UPSERT and bool(delta.rows) and types <= JSON_TYPES

    def json_file(self, delta: StreamDelta) -> str:
        path = self.folder / f"{self.clock.new_id()}.json"
        path.write_text("".join(json.dumps(dict(row)) + "\n" for row in delta.rows))
        return str(path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the heartbeat is stopped as well
@pytest.mark.parametrize("row_group_bytes_min", [0, materialize.ROW_GROUP_BYTES_MIN], ids=["undecoded", "decoded"])
def test_survivors_hold_through_all_that_may_happen(row_group_bytes_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialize, "ROW_GROUP_BYTES_MIN", row_group_bytes_min)
    SessionMachine.engine = UnrulyEngine(int(row_group_bytes_min == 0))
    run_state_machine_as_test(SessionMachine, settings=settings(examples(0.25), stateful_step_count=20))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_survivors_hold_through_all_that_on_spark(spark: SparkSession) -> None:
    SessionMachine.engine = SparkEngine(spark.sparkContext)
    run_state_machine_as_test(SessionMachine, settings=settings(examples(0.08), stateful_step_count=12))
