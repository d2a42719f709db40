"""Whatever writers and compactions do, and wherever one is stopped: the compacted rows are the oracle's, always.

A state machine appends deltas, compacts with changing bucket counts and limits, stops compactions at any durable write
and goes on after them. After every step, whatever the log says has been compacted is held against contract 2.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.catalog.actions import RoundCommitted
from compactor.engine.protocol import Engine
from compactor.engine.spark import SparkEngine
from compactor.model.clock import SystemClock
from compactor.model.names import PARTITION_STREAM_POSITION
from compactor.steps import materialize
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from tests.builders import TABLE_ID, CompactedSide, audit, multiset
from tests.effort import examples
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.unruly_engine import UnrulyEngine
from tests.oracle import OracleDelta, Row, surviving_rows
from tests.properties.folders import fresh_folder
from tests.properties.streams import Shape, StreamDelta, shapes, stream_deltas

FIRST_POSITION = -5
bucket_counts = st.sampled_from([1, 2, 5])
round_limits = st.sampled_from([None, None, 1, 3])
file_limits = st.sampled_from([1, 3, 4_000_000])
dead_row_shares = st.sampled_from([0.0, 0.0, 0.5, 0.9])


class SessionMachine(RuleBasedStateMachine):
    """One table without partition keys, and everything that may happen to it."""

    engine: Engine
    shape: Shape

    def __init__(self) -> None:
        super().__init__()
        self.folders = ExitStack()
        self.folder = self.folders.enter_context(fresh_folder())
        self.store = FaultyStore(LocalStore(StoreLocation(f"file://{self.folder}")))
        self.lake = DeltaCatalog(self.store, SystemClock())
        self.deltas: list[tuple[int, StreamDelta]] = []

    def teardown(self) -> None:
        self.folders.close()

    @initialize(shape=shapes())
    def create_table(self, shape: Shape) -> None:
        self.shape = shape
        self.table = self.lake.create_table(TABLE_ID, schema=shape.schema)

    # ------------------------------------------------------------------------------------------------ what may happen

    @rule(data=st.data(), gap=st.integers(1, 3))
    def append(self, data: st.DataObject, gap: int) -> None:
        first_row = sum(len(delta.rows) for _, delta in self.deltas)
        delta = data.draw(stream_deltas(self.shape, first_row))
        position = gap + (self.deltas[-1][0] if self.deltas else FIRST_POSITION)
        delta.append_to(self.table, self.shape, position)
        self.deltas.append((position, delta))

    @rule(
        hash_bucket_count=bucket_counts,
        max_rows_per_round=round_limits,
        rows_per_file=file_limits,
        max_dead_row_share=dead_row_shares,
    )
    def compact(
        self,
        hash_bucket_count: int,
        max_rows_per_round: int | None,
        rows_per_file: int,
        max_dead_row_share: float = 0.0,
    ) -> None:
        result = compact(
            TABLE_ID,
            set(self.shape.primary_keys),
            self.shape.sort_keys or [(PARTITION_STREAM_POSITION, "ascending")],
            delta_catalog_client=self.lake,
            hash_bucket_count=hash_bucket_count,
            max_rows_per_round=max_rows_per_round,
            rows_per_compacted_file=rows_per_file,
            max_dead_row_share=max_dead_row_share,
            engine=self.engine,
        )
        for session in result.sessions:
            assert session.rows_in == session.rows_out + session.rows_deduplicated + session.rows_deleted
        compacted = self.table.stream({}).load().state.compacted
        if self.deltas:
            assert compacted is not None
            assert compacted.processed.position == self.deltas[-1][0]
            assert compacted.processed.file_number is None
            for vector in compacted.deletion_vectors:
                assert vector.rows <= max_dead_row_share * compacted.files[vector.file_number].rows

    @rule(point=st.integers(0, 14), hash_bucket_count=bucket_counts, max_rows_per_round=round_limits)
    def stop_at_a_durable_write(self, point: int, hash_bucket_count: int, max_rows_per_round: int | None) -> None:
        self.store.stop_at(point)
        with suppress(Stopped):
            self.compact(hash_bucket_count, max_rows_per_round, rows_per_file=3)
        self.store.heal()

    @rule(when=st.sampled_from(["before", "after"]), key_part=st.sampled_from(["/log/", "job_runs/", "streams/"]))
    def lose_a_request_or_its_answer(self, when: Literal["before", "after"], key_part: str) -> None:
        self.store.fail("put_if_absent", key_part, when, times=2)
        self.compact(hash_bucket_count=2, max_rows_per_round=None, rows_per_file=4_000_000)
        self.store.heal()

    # ---------------------------------------------------------------------------------------------- what always holds

    @invariant()
    def the_compacted_rows_are_the_oracle_s(self) -> None:
        lake = DeltaCatalog.open(self.folder)
        if TABLE_ID not in lake.tables():
            return
        compacted = lake.table(TABLE_ID).stream({}).load().state.compacted
        if compacted is None:
            return
        taken: list[OracleDelta] = [
            (
                position,
                delta.operation,
                [rows for number, rows in enumerate(delta.files, 1) if compacted.processed.covers(position, number)],
            )
            for position, delta in self.deltas
        ]
        side = CompactedSide.of(lake)
        assert multiset(side.rows(), self.columns) == multiset(self.survivors_of(taken), self.columns)
        audit(side)
        whole: list[OracleDelta] = [(position, delta.operation, delta.files) for position, delta in self.deltas]
        merged = side.table.scan({}, view="merged").to_table()
        assert multiset(merged, self.columns) == multiset(self.survivors_of(whole), self.columns)

    @property
    def columns(self) -> list[str]:
        return list(self.shape.schema.names)

    def survivors_of(self, deltas: list[OracleDelta]) -> list[Row]:
        return surviving_rows(deltas, self.shape.primary_keys, self.shape.sort_keys)

    @invariant()
    def every_round_s_books_follow_from_the_round_before(self) -> None:
        lake = DeltaCatalog.open(self.folder)
        if TABLE_ID not in lake.tables():
            return
        rows = 0
        for entry in lake.table(TABLE_ID).stream({}).log.entries():
            for action in entry.actions:
                if isinstance(action, RoundCommitted):
                    counts = action.counts
                    assert counts.rows_before == rows
                    assert counts.rows_in == counts.rows_out + counts.rows_deduplicated + counts.rows_deleted
                    rows = counts.rows_out


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the heartbeat is stopped as well
@pytest.mark.parametrize("row_group_bytes_min", [0, materialize.ROW_GROUP_BYTES_MIN], ids=["undecoded", "decoded"])
def test_survivors_hold_through_appends_compactions_rehashes_and_stops(
    row_group_bytes_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "ROW_GROUP_BYTES_MIN", row_group_bytes_min)
    SessionMachine.engine = UnrulyEngine(int(row_group_bytes_min == 0))
    run_state_machine_as_test(SessionMachine, settings=settings(examples(0.4), stateful_step_count=20))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_survivors_hold_through_all_that_on_spark(spark: SparkSession) -> None:
    SessionMachine.engine = SparkEngine(spark.sparkContext)
    run_state_machine_as_test(SessionMachine, settings=settings(examples(0.08), stateful_step_count=12))
