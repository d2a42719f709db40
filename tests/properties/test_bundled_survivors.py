"""The invariant for sessions that share a Spark job: they leave the rows that they would leave alone."""

from __future__ import annotations

from hypothesis import given, note
from hypothesis import strategies as st

from compactor import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.counts import SortKey
from compactor.model.names import SortOrder
from compactor.planning.bundle_plan import SmallSession, plan_bundle
from compactor.planning.session_planner import pin_sessions
from compactor.planning.sizing import Resources
from compactor.planning.spec import DEFAULT_SORT_KEYS, JobRunSpec
from compactor.sessions.bundle import MemberTask, UnloggedEnd, run_bundle
from launcher.plan import plan_in_one_task
from tests.builders import TABLE_ID, CompactedSide, audit, multiset
from tests.effort import examples
from tests.fakes.in_process_runner import InProcessTaskRunner
from tests.oracle import surviving_rows
from tests.properties.folders import fresh_folder
from tests.properties.streams import Shape, StreamDelta, streams

ELSEWHERE = "ACME.ORDERS_COMPACTED.V1"
RESOURCES = Resources(task_memory_bytes=1 << 30, tasks=2)


@examples(0.4)
@given(
    stream=streams(),
    run_after=st.frozensets(st.integers(0, 4), max_size=2),
    max_rows_per_round=st.sampled_from([None, 2, 5]),
)
def test_survivors_of_bundled_sessions_are_the_oracle_s(
    stream: tuple[Shape, list[StreamDelta]], run_after: frozenset[int], max_rows_per_round: int | None
) -> None:
    shape, deltas = stream
    with fresh_folder() as folder:
        lake = DeltaCatalog.open(folder)
        table = lake.create_table(TABLE_ID)
        for number, delta in enumerate(deltas):
            delta.append_to(table, shape, number)
            if number in run_after:
                run_together(lake, shape, max_rows_per_round, f"after-{number}")
        run_together(lake, shape, max_rows_per_round, "last")
        expected = surviving_rows(
            [delta.for_oracle(number) for number, delta in enumerate(deltas)], shape.primary_keys, shape.sort_keys
        )
        for table_id in (TABLE_ID, ELSEWHERE):
            side = CompactedSide.of(lake, table_id)
            note(f"{table_id}: {side.rows().to_pylist()}")
            assert multiset(side.rows(), shape.schema.names) == multiset(expected, shape.schema.names)
            audit(side)


def run_together(lake: DeltaCatalog, shape: Shape, max_rows_per_round: int | None, name: str) -> None:
    """One bundle of two sessions: into the table itself, and into another."""
    sort_keys = tuple(SortKey(column=column, order=SortOrder(order)) for column, order in shape.sort_keys)
    small = []
    for destination in (TABLE_ID, ELSEWHERE):
        spec = JobRunSpec(
            job_run_id=f"{name}-{destination}",
            source_table_id=TABLE_ID,
            primary_keys=tuple(shape.primary_keys),
            sort_keys=sort_keys or DEFAULT_SORT_KEYS,
            lake=lake.location,
            destination_compacted_table_id=destination,
            max_rows_per_round=max_rows_per_round,
        )
        for pinned in pin_sessions(spec, lake):
            planned = plan_in_one_task(pinned.spec, lake, RESOURCES)
            small += [planned] if isinstance(planned, SmallSession) else []
    if not small:
        return
    plan = plan_bundle(name, small, cores=2)
    runner = InProcessTaskRunner[MemberTask, UnloggedEnd | None]()
    run_bundle(plan, name, lake.store, runner, None, SystemClock())
    assert runner.ended() == dict.fromkeys(range(len(small)))
