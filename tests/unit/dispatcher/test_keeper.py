"""The keeper: one job run for what is due, whatever fails; and what a look costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from compactor.catalog.compact_when import CompactWhen, Preset
from compactor.lake import DeltaCatalog
from compactor.model.errors import Denied
from compactor.planning.due import Due, Expected, NotDue, Postponed
from compactor.planning.stream_figures import StreamFigures
from compactor.planning.where_to_run import WorkerPool
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from dispatcher.keeper.deciding import PARTITIONS_PER_INSTRUCTION, Seen, outlooks
from dispatcher.keeper.decision_log import DecisionAction, DecisionEnded, DecisionMade, DecisionState
from dispatcher.keeper.keeper import Keeper
from dispatcher.keeper.keys import StreamsSeenObject, UpkeepDone, lake_name
from dispatcher.keeper.table_keeper import KeeperSettings, over_budgets
from dispatcher.keeper.upkeep import LakeUpkeep, UpkeepNote
from dispatcher.keeper.watching import WatchedStream
from dispatcher.operations.lag_board import KEEPER_TROUBLES
from dispatcher.operations.table_lag import TABLE_LAG, TABLE_PUBLISHED_LAG, TABLE_SMALL_FILES, TABLES_LATE
from dispatcher.records.history import day_of
from dispatcher.records.keys import PausedObject
from dispatcher.records.lag_samples import last_sampled
from dispatcher.scheduling.lease_log import LeaseState
from dispatcher.scheduling.limits import Limits, LimitScope, SharedLimits
from launcher.sizing.cluster_choice import ClusterRoom
from tests.fakes.faulty_store import FaultyStore, ResultT, Stopped, Verb
from tests.fakes.memory_glue import MemoryGlue
from tests.fakes.memory_sink import MemorySink
from tests.fakes.memory_store import MemoryStore
from tests.keeper_world import ORDERS, KeeperWorld
from tests.published_tables import PublishedTables
from tests.unit.dispatcher.lag_samples_kept import read_samples

MINUTE = 60.0


@pytest.fixture
def world() -> KeeperWorld:
    return KeeperWorld()


def actions(world: KeeperWorld, table_id: str = ORDERS) -> list[DecisionAction]:
    """Of the table's decision log."""
    return [action for entry in world.decision_log(table_id).entries() for action in entry.actions]


def made(world: KeeperWorld) -> list[DecisionMade]:
    return [action for action in actions(world) if isinstance(action, DecisionMade)]


def test_a_stream_is_compacted_once_its_bound_is_reached(world: KeeperWorld) -> None:
    world.table()
    world.append()
    keeper = world.keeper()
    assert keeper.look().decided == 0
    world.clock.sleep(5 * MINUTE)
    look = keeper.look()
    assert (look.decided, look.sent, look.open) == (1, 1, 1)
    (ran,) = world.dispatch()
    assert world.documents[0]["source_table_id"] == ORDERS
    assert ran.startswith("keeper-")
    assert (keeper.look().ended, keeper.look().open) == (1, 0)
    (ended,) = [action for action in actions(world) if isinstance(action, DecisionEnded)]
    assert (ended.job_run_id, ended.status, ended.seconds) == (ran, "succeeded", 3.0)


def test_a_table_without_a_policy_is_left_alone_unless_the_keeper_has_a_default(world: KeeperWorld) -> None:
    world.table(None)
    world.append()
    world.clock.sleep(5 * MINUTE)
    assert world.keeper().look().decided == 0
    default = KeeperSettings(default_policy=CompactWhen(preset=Preset.STREAMING))
    assert world.keeper(default).look().decided == 1


def test_an_offline_table_is_left_alone_and_is_not_late(world: KeeperWorld) -> None:
    world.table({"lag_seconds": 300})
    world.append()
    world.lake.table(ORDERS).set_properties({"state": "offline"})
    world.clock.sleep(DAY)
    keeper = world.keeper()
    assert keeper.look().decided == 0
    assert [each.value for each in keeper.board.samples() if each.metric is TABLES_LATE] == [0]
    (outlook,) = keeper.outlook()
    assert outlook.why_not == "the table is offline"
    world.lake.table(ORDERS).set_properties({"state": "online"})
    assert world.keeper().look().decided == 1


def test_a_table_that_is_declared_to_have_no_key_is_kept_and_one_that_declares_nothing_is_not(
    world: KeeperWorld,
) -> None:
    for table_id, keys in ((ORDERS, set[str]()), ("ACME.OTHER.V1", None)):
        properties = {"compact_when": {"pending_rows": 1}} if keys is not None else {}
        world.lake.create_table(table_id, primary_keys=keys, properties=properties)
        world.append(table_id)
    look = world.keeper(KeeperSettings(default_policy=CompactWhen(pending_rows=1))).look()
    assert (look.decided, look.set_aside) == (1, {})
    assert [each.job_run_id for each in made(world)] == [json.loads(world.queue.bodies[0])["job_run_id"]]


def test_the_lag_of_a_table_that_declares_no_keys_is_watched_by_the_policy_manual(world: KeeperWorld) -> None:
    for table_id, properties in ((ORDERS, {"compact_when": "manual"}), ("ACME.OTHER.V1", {})):
        world.lake.create_table(table_id, properties=properties)
        world.append(table_id)

    def watched(default: CompactWhen | None) -> list[str]:
        keeper = world.keeper(KeeperSettings(default_policy=default))
        assert keeper.look().decided == 0
        return [dict(each.labels)["table"] for each in keeper.board.samples() if each.metric is TABLE_LAG]

    assert watched(None) == watched(CompactWhen(preset=Preset.STREAMING)) == [ORDERS]
    assert sorted(watched(CompactWhen(preset=Preset.MANUAL))) == [ORDERS, "ACME.OTHER.V1"]


def test_a_new_policy_counts_from_the_next_reading_of_the_table(world: KeeperWorld) -> None:
    table = world.table("manual")
    world.append()
    keeper = world.keeper()
    keeper.look()
    table.set_properties({"compact_when": {"pending_rows": 1}})
    world.clock.sleep(KeeperSettings().read_again_seconds)
    assert keeper.look().decided == 1


def test_a_stricter_policy_counts_before_a_decision(world: KeeperWorld) -> None:
    table = world.table({"lag_seconds": 60})
    world.append()
    keeper = world.keeper()
    keeper.look()
    table.set_properties({"compact_when": "manual"})
    world.clock.sleep(2 * MINUTE)
    assert keeper.look().decided == 0


def test_many_streams_go_with_64_partitions_to_an_instruction(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1}, keys=("day",))
    for number in range(2 * PARTITIONS_PER_INSTRUCTION + 1):
        world.append(partition={"day": f"{number:03d}"})
    assert world.keeper().look().sent == 3
    assert len(world.dispatch()) == 3
    sizes = sorted(len(document["partitions"]) for document in world.documents)  # type: ignore[arg-type]
    assert sizes == [1, PARTITIONS_PER_INSTRUCTION, PARTITIONS_PER_INSTRUCTION]
    assert len({json.dumps(each) for document in world.documents for each in document["partitions"]}) == 129  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------ one job run, whatever fails


def test_two_keepers_that_look_at_the_same_time_decide_once(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    one, other = world.keeper(), world.keeper()
    assert one.look().decided + other.look().decided == 1
    assert len(made(world)) == 1
    assert world.queue.messages_left() == 1


class MeetingStore(FaultyStore):
    """Before its first write, or its first request of this kind, something else happens."""

    def __init__(
        self, store: ObjectStore, meanwhile: Callable[[], object], verb: Verb = "put_if_absent", key_part: str = ""
    ) -> None:
        super().__init__(store)
        self._meanwhile: Callable[[], object] | None = meanwhile
        self._kind = verb, key_part

    def _ask(self, verb: Verb, key: str, carry_out: Callable[[], ResultT]) -> ResultT:
        if self._meanwhile is not None and verb == self._kind[0] and self._kind[1] in key:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return super()._ask(verb, key, carry_out)


def test_a_keeper_that_was_slow_does_not_decide_again_on_what_another_one_has_ended(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    other = world.keeper()

    def meanwhile() -> None:
        assert other.look().decided == len(world.dispatch()) == other.look().ended == 1

    assert world.keeper(state=MeetingStore(world.state, meanwhile)).look().decided == 0
    assert len(made(world)) == 1


def with_work() -> tuple[KeeperWorld, FaultyStore]:
    world = KeeperWorld()
    world.table({"pending_rows": 1})
    world.append()
    return world, FaultyStore(world.state)


def test_a_keeper_that_is_killed_anywhere_leaves_one_job_run() -> None:
    world, state = with_work()
    world.keeper(state=state).look()
    assert len(state.points) >= 4, "before and after the decision, and the note that it is sent"
    for point in range(len(state.points)):
        world, state = with_work()
        state.stop_at(point)
        with pytest.raises(Stopped):
            world.keeper(state=state).look()
        world.clock.sleep(2 * MINUTE)
        other = world.keeper()
        for _ in range(3):
            other.look()
            world.dispatch()
            world.clock.sleep(2 * MINUTE)
        assert len(set(world.job_runs)) == 1
        assert set(world.commits.values()) == {1}
        assert sum(isinstance(each, DecisionEnded) for each in actions(world)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_of_the_state_makes_no_second_decision(world: KeeperWorld, when: str) -> None:
    world.table({"pending_rows": 1})
    world.append()
    state = FaultyStore(world.state)
    state.fail("put_if_absent", "keeper/", when=when, times=3)  # type: ignore[arg-type]
    keeper = world.keeper(state=state)
    for _ in range(4):
        keeper.look()
        world.dispatch()
        world.clock.sleep(MINUTE)
    assert len(set(world.job_runs)) == 1
    assert set(world.commits.values()) == {1}
    assert len(made(world)) == 1


def test_a_message_that_was_lost_is_sent_again_and_a_late_one_starts_nothing(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    keeper = world.keeper()
    keeper.look()
    (late,) = world.queue.receive(1, 0, 100_000)
    world.clock.sleep(KeeperSettings().resend_seconds)
    assert keeper.look().sent == 1
    assert len(world.dispatch()) == 1
    assert keeper.look().ended == 1
    world.queue.send(late.body)
    assert world.dispatch() == []
    assert set(world.commits.values()) == {1}


def test_a_message_that_no_dispatcher_takes_is_sent_again_less_and_less_often(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    keeper = world.keeper()
    sent_at = []
    for minute in range(24 * 60):
        sent_at += [minute] * keeper.look().sent
        world.clock.sleep(MINUTE)
    assert sent_at == [0, 15, 30, 60, 120, 240, 480, 960]
    assert len({json.loads(body)["job_run_id"] for body in world.queue.bodies}) == 1


def test_tables_that_are_alike_in_two_lakes_of_one_state_have_job_runs_of_their_own(world: KeeperWorld) -> None:
    other = KeeperWorld(clock=world.clock, shared_state=world.state, shared_queue=world.queue)
    other.lake_store = MemoryStore(world.clock, StoreLocation("s3://bucket/copy"))
    other.lake = DeltaCatalog(other.lake_store, world.clock)
    for each in (world, other):
        each.table({"pending_rows": 1})
        each.append()
        assert each.keeper().look().sent == 1
    assert len({json.loads(body)["job_run_id"] for body in world.queue.bodies}) == 2


# ------------------------------------------------------------------------------------------------ a policy that changes


def test_a_job_run_that_was_sent_is_noted_at_its_end_though_the_policy_is_gone(world: KeeperWorld) -> None:
    table = world.table({"pending_rows": 1})
    world.append()
    keeper = world.keeper()
    assert keeper.look().sent == 1
    table.set_properties({"compact_when": None})
    assert len(world.dispatch()) == 1
    look = world.keeper().look()
    assert (look.ended, look.open) == (1, 0)
    assert world.open_decisions(ORDERS) == {}


# ----------------------------------------------------------------------------------------------------- what comes of it


def test_a_stream_with_which_nothing_was_done_is_not_decided_on_again_until_its_log_goes_on(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    keeper = world.keeper()
    keeper.look()
    world.compact = lambda *_: False  # type: ignore[method-assign]  # there is nothing to do
    for _ in range(5):
        world.dispatch()
        world.clock.sleep(60 * MINUTE)
        keeper.look()
    assert len(made(world)) == len(world.job_runs) == 1
    world.append()
    keeper.look()
    assert len(made(world)) == 2


def test_a_failed_job_run_is_told_and_tried_again_later_and_later(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    sink = MemorySink()
    keeper = world.keeper(sink=sink)
    tried_at = []
    for minute in range(100):
        if keeper.look().decided:
            tried_at.append(minute)
        world.dispatch(fails=True, seconds=0.0)
        world.clock.sleep(MINUTE)
    assert len(tried_at) == 4
    waits = [later - earlier for earlier, later in pairwise(tried_at)]
    assert waits == sorted(waits)
    assert waits[0] >= 10
    assert len({each.job_run_id for each in made(world)}) == 4
    failed = [event for event in sink.events if event.type == "lithify.keeper.failed.v1"]
    assert len(failed) == 4
    assert "it is failed" in failed[0].data.reasons  # type: ignore[attr-defined]


def fail_for_half_a_day(world: KeeperWorld, keeper: Keeper) -> None:
    """Ends when a failure is noted."""
    until_ms = world.clock.now_ms() + 12 * 3_600_000
    while not keeper.look().ended or world.clock.now_ms() < until_ms:
        world.clock.sleep(MINUTE)
        world.dispatch(fails=True)


def test_a_stream_that_has_failed_for_long_is_tried_again_within_four_hours(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    keeper = world.keeper()
    fail_for_half_a_day(world, keeper)
    world.clock.sleep(4 * 60 * MINUTE - 1)
    assert keeper.look().decided == 0
    world.clock.sleep(1)
    assert keeper.look().decided == 1


def test_a_stream_that_an_instruction_has_compacted_since_it_failed_waits_no_more(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    keeper = world.keeper()
    fail_for_half_a_day(world, keeper)
    world.clock.sleep(1)
    world.append()
    assert keeper.look().decided == 0, "a new delta says nothing of what made it fail"
    world.compact(world.lake.table(ORDERS).stream({}))
    world.append()
    assert keeper.look().decided == 1


def test_a_plan_says_when_a_failed_stream_is_tried_again_and_that_one_was_left(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    keeper = world.keeper()
    keeper.look()
    world.dispatch(fails=True)
    keeper.look()
    (failed,) = keeper.outlook()[0].streams
    ended_at_ms = world.clock.now_ms()
    assert failed.decision == NotDue(ended_at_ms + 600_000, None, "its last job run has failed, number 1")
    world.clock.sleep(599.999)
    assert keeper.look().decided == 0
    world.clock.sleep(0.001)
    assert keeper.look().decided == 1
    world.compact = lambda *_: False  # type: ignore[method-assign]  # there is nothing to do
    world.dispatch()
    keeper.look()
    assert keeper.outlook()[0].streams[0].decision == NotDue(None, None, "its last job run left it so")


def test_a_table_that_was_purged_and_created_again_is_compacted_as_any_other(world: KeeperWorld) -> None:
    for number in range(3):
        world.table({"pending_rows": 1})
        world.append()
        world.keeper().look()
        assert len(world.dispatch()) == 1, f"table number {number}"
        world.keeper().look()
        world.clock.sleep(1)
        world.lake.drop_table(ORDERS, dry_run=False)
        world.lake.purge_table(ORDERS, dry_run=False, nothing_runs=True)


@pytest.mark.parametrize("news_hints", [False, True])
def test_a_dropped_partition_is_not_behind(world: KeeperWorld, news_hints: bool) -> None:
    world.table({"lag_seconds": 600}, keys=("day",), news_hints=news_hints)
    world.append(partition={"day": "1"})
    keeper = world.keeper()
    keeper.look()
    world.clock.sleep(MINUTE)
    world.append(partition={"day": "2"})
    world.lake.table(ORDERS).drop_partitions({"day": "1"}, dry_run=False)
    world.clock.sleep(MINUTE)
    keeper.look()
    assert [each.value for each in keeper.board.samples() if each.metric is TABLE_LAG] == [MINUTE]


def test_a_table_that_cannot_be_read_is_set_aside_and_the_others_go_on(world: KeeperWorld) -> None:
    sink = MemorySink()
    for table_id in ("ACME.BAD.V1", "ACME.GOOD.V1"):
        world.table({"pending_rows": 1}, table_id)
        world.append(table_id)
    lake = FaultyStore(world.lake_store)
    lake.fail("list", "BAD.V1/streams", times=None)
    lake.fail("read", "BAD.V1/streams", times=None)
    keeper = world.keeper(lake=lake, sink=sink)
    for _ in range(3):
        look = keeper.look()
        assert list(look.set_aside) == ["ACME.BAD.V1"]
    assert world.dispatch() != []
    assert [document["source_table_id"] for document in world.documents] == ["ACME.GOOD.V1"]
    failed = [event for event in sink.events if event.type == "lithify.keeper.failed.v1"]
    assert [event.table for event in failed] == ["ACME.BAD.V1"], "once, not at every look"


def test_what_is_postponed_is_told_once(world: KeeperWorld) -> None:
    sink = MemorySink()
    world.table({"pending_rows": 1})
    world.append()
    world.records.pauses.pause(PausedObject("tables", ORDERS), "an upgrade")
    keeper = world.keeper(sink=sink)
    for _ in range(3):
        assert keeper.look().decided == 0
        world.clock.sleep(MINUTE)
    world.records.pauses.resume(PausedObject("tables", ORDERS))
    assert keeper.look().decided == 1
    assert [event.type for event in sink.events] == ["lithify.keeper.postponed.v1", "lithify.keeper.decided.v1"]


def test_a_rejected_instruction_ends_its_decision(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    keeper = world.keeper()
    keeper.look()
    known = world.lake.tables
    world.lake.tables = list  # type: ignore[method-assign]
    world.dispatch()
    world.lake.tables = known  # type: ignore[method-assign]
    world.clock.sleep(MINUTE)
    assert keeper.look().ended == 1
    (ended,) = [action for action in actions(world) if isinstance(action, DecisionEnded)]
    assert (ended.status, ended.reasons) == ("rejected", (f"there is no table {ORDERS}",))


def test_a_stream_whose_job_run_ends_during_a_look_is_read_after_that(world: KeeperWorld) -> None:
    world.table({"pending_deltas": 1, "not_before_seconds": 600})
    world.append()
    world.keeper().look()
    world.append()
    (message,) = world.queue.receive(10, 0, 3_600)
    run = world.accept(message.body, message.message_id)
    assert run is not None
    world.append()  # after the job run has begun: not compacted by it
    keeper = world.keeper()
    keeper.look()
    world.clock.sleep(MINUTE)
    state = MeetingStore(world.state, lambda: world.finish(run), "read", f"{run.job_run_id}/log/")
    slow = world.keeper(state=state)
    look = slow.look()
    assert (look.ended, look.decided) == (1, 0)
    world.clock.sleep(600)
    assert slow.look().decided == 1


def test_a_dropped_partition_is_in_no_instruction(world: KeeperWorld) -> None:
    policy = {"small_files": 2, "not_before_seconds": 3_600}
    world.merged = lambda _: ()  # type: ignore[method-assign, assignment]
    world.table(policy, keys=("day",), news_hints=True, merge_small_files=2)
    for _ in range(2):
        for day in range(3):
            world.append(partition={"day": str(day)})
            world.compact(world.lake.table(ORDERS).stream({"day": str(day)}))
    keeper = world.keeper()
    assert keeper.look().decided == 0
    world.lake.table(ORDERS).drop_partitions({"day": "1"}, dry_run=False)
    world.clock.sleep(60 * MINUTE)
    assert [keeper.look().decided for _ in range(2)] == [0, 1]
    (decision,) = made(world)
    assert {each.partition["day"] for each in decision.streams} == {"0", "2"}


def test_a_plan_says_what_is_due_and_when_the_rest_is_and_writes_nothing(world: KeeperWorld) -> None:
    world.table(keys=("day",))
    world.append(partition={"day": "old"})
    world.clock.sleep(5 * MINUTE)
    world.append(partition={"day": "new"})
    world.table({"pending_rows": 1, "windows": [{"cron": "0 1 * * *", "seconds": 60}]}, "ACME.NIGHTLY.V1")
    world.append("ACME.NIGHTLY.V1")
    world.table(None, "ACME.OTHER.V1")
    state = FaultyStore(world.state)
    found = {each.table_id: each for each in world.keeper(state=state).outlook()}
    decisions = {each.stream.key: each.decision for each in found[ORDERS].streams}
    assert isinstance(decisions["day=old"], Due)
    assert decisions["day=new"] == NotDue(
        world.clock.now_ms() + 300_000, "lag_seconds", "not reached: lag_seconds 0 >= 300"
    )
    (nightly,) = found["ACME.NIGHTLY.V1"].streams
    assert isinstance(nightly.decision, Postponed)
    assert found["ACME.OTHER.V1"].why_not == "it has no compact_when, and the keeper no default"
    assert state.points == []
    assert world.queue.messages_left() == 0


def test_a_stream_that_left_during_a_failed_look_is_read_by_the_next_one(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1}, keys=("day",))
    world.append(partition={"day": "1"})
    lake = FaultyStore(world.lake_store)
    keeper = world.keeper(lake=lake)
    keeper.look()
    world.dispatch()
    lake.fail("read", "day=1/log")
    assert list(keeper.look().set_aside) == [ORDERS]
    for _ in range(3):
        keeper.look()
    assert len(made(world)) == 1


# -------------------------------------------------------------------------------------------------------------- money


def together(times_the_cost: float, max_times: float | None = None) -> list[int]:
    """Of four sessions that cost the same: so many are in each job run of the first look, of a day's money of so many
    times that; none is added while these run."""
    world = KeeperWorld()
    table = world.table({"pending_rows": 1}, keys=("day",))
    for day in range(4):
        world.append(partition={"day": str(day)})
    keeper = world.keeper(room=ClusterRoom())
    cost = keeper.outlook()[0].streams[0].cost
    assert cost is not None
    assert cost.usd
    policy = {"pending_rows": 1, "usd_per_day": times_the_cost * cost.usd}
    table.set_properties({"compact_when": policy | ({} if max_times is None else {"max_usd": max_times * cost.usd})})
    keeper = world.keeper(room=ClusterRoom())
    keeper.look()
    decisions = made(world)
    assert all(each.expected_usd == cost.usd for decision in decisions for each in decision.streams)
    assert keeper.look().decided == 0
    return [len(each.streams) for each in decisions]


@pytest.mark.parametrize(
    ("times_the_cost", "max_times", "sessions"),
    [(0.99, None, []), (1.01, None, [1]), (3.99, None, [1]), (4.01, None, [2]), (7.99, None, [3]), (8.01, None, [4])]
    + [(8.01, 2.99, [2, 2]), (7.99, 2.99, [2, 1]), (8.01, 3.01, [3, 1]), (8.01, 0.99, [])],
)
def test_sessions_run_together_while_there_is_money_for_twice_their_cost(
    times_the_cost: float, max_times: float | None, sessions: list[int]
) -> None:
    assert together(times_the_cost, max_times) == sessions


def test_what_saves_readers_most_for_a_dollar_takes_the_money_first() -> None:
    many = StreamFigures(pending_deltas=10, pending_rows=1_000)
    few = StreamFigures(pending_deltas=1, pending_rows=1_000)
    usd = {"day=a": 2.0, "day=b": 2.0, "day=c": 1.0}
    streams = [WatchedStream({"day": day}, 1, few if day == "a" else many) for day in "abc"]
    policy = CompactWhen(pending_rows=1, usd_per_day=3.0)
    for order in (streams, streams[::-1]):
        found = outlooks(Seen("", ORDERS, policy, order, lambda each: Expected(1.0, usd[each.key])), DecisionState(), 0)
        assert {each.stream.key for each in found if isinstance(each.decision, Due)} == {"day=b", "day=c"}


def test_where_money_is_limited_and_suffices_no_stream_waits_for_the_job_run_of_another(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1, "usd_per_day": 1_000.0}, keys=("day",))
    for number in range(2 * PARTITIONS_PER_INSTRUCTION + 1):
        world.append(partition={"day": f"{number:03d}"})
    keeper = world.keeper(room=ClusterRoom())
    assert keeper.look().sent == 3
    world.append(partition={"day": "new"})
    assert keeper.look().sent == 1


def test_nothing_is_paid_for_a_session_that_a_worker_runs(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1, "usd_per_day": 0.02, "max_usd": 0.01})
    keeper = Keeper(replace(world.services(room=ClusterRoom()), pool=WorkerPool(2, 256 << 20)), KeeperSettings())
    for _ in range(3):
        world.append()
        assert keeper.look().decided == 1
        assert len(world.dispatch()) == 1
        assert keeper.look().ended == 1
    assert [each.expected_usd for each in made(world)] == [None] * 3
    world.append(rows=10**9)
    (stream,) = keeper.outlook()[0].streams
    assert isinstance(stream.decision, Postponed), "it fits no worker"
    assert stream.cost is not None
    assert stream.cost.usd


def test_no_money_is_spent_by_a_job_run_for_which_nothing_was_paid(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1, "usd_per_day": 0.1})
    keeper = world.keeper(room=ClusterRoom())
    for _ in range(3):
        world.append()
        assert keeper.look().decided == 1
        world.dispatch()
        keeper.look()
    assert all(each.expected_usd for each in made(world))
    assert world.decision_log().load().state.spent_usd(world.clock.now_ms()) == 0


@pytest.mark.parametrize("money", [{}, {"max_usd": 1e6}, {"usd_per_day": 1e6}])
def test_where_money_is_limited_a_session_that_no_cluster_can_run_is_not_sent(money: dict[str, float]) -> None:
    world = KeeperWorld()
    world.table({"pending_rows": 1} | money)
    world.append(rows=10**15)
    keeper = world.keeper(room=ClusterRoom())
    (stream,) = keeper.outlook()[0].streams
    assert stream.cost is not None
    assert stream.cost.unknown is not None
    assert keeper.look().sent == (not money)
    if money:
        assert isinstance(stream.decision, Postponed)
        assert stream.cost.unknown in stream.decision.why


def test_a_plan_pays_for_what_fits_into_the_rest_of_the_day_and_names_what_waits() -> None:
    world = KeeperWorld()
    world.table({"pending_rows": 1}, keys=("day",))
    for day in range(4):
        world.append(partition={"day": str(day)})
    found = world.keeper(room=ClusterRoom()).outlook()
    cost = found[0].streams[0].cost
    assert cost is not None
    assert cost.usd
    now_ms = world.clock.now_ms()
    limits = Limits(all=SharedLimits(usd_per_day=10 * cost.usd))
    leases = LeaseState().with_spent(day_of(now_ms), "ACME.OTHER.V1", "a dispatcher", 7.5 * cost.usd)
    over = over_budgets(found, limits, leases, now_ms)
    assert sorted(over) == [(ORDERS, "day=2"), (ORDERS, "day=3")]
    assert {each.scope for each in over.values()} == {LimitScope.ALL}
    yesterday = LeaseState().with_spent(day_of(now_ms - 86_400_000), ORDERS, "", 100 * cost.usd)
    assert over_budgets(found, limits, yesterday, now_ms) == {}


# ------------------------------------------------------------------------------------------------ the cost of a look


def test_the_cost_of_a_look_follows_what_is_new() -> None:
    world = KeeperWorld()
    world.table({"pending_rows": 1}, keys=("day",))
    table = world.lake.table(ORDERS)
    for number in range(10_000):
        stream = table.stream({"day": f"{number:05d}"})
        world.lake_store.put_if_absent(f"{stream.folder.log}/{1:020d}.json", b"not read")
    for number in range(100):
        world.append(partition={"day": f"new {number}"})
    lake, state = FaultyStore(world.lake_store), FaultyStore(world.state)
    keeper = world.keeper(lake=lake, state=state)
    assert keeper.look().sent == 2
    assert len(lake.requests) + len(state.requests) <= 300


def test_an_idle_look_sends_one_request_a_table_and_five_more_an_hour() -> None:
    world = KeeperWorld()
    tables, looks = 20, 60
    for number in range(tables):
        world.table({"lag_seconds": 600}, f"ACME.T{number}.V1", keys=("day",))
        world.append(f"ACME.T{number}.V1", {"day": "1"})
    lake, state = FaultyStore(world.lake_store), FaultyStore(world.state)
    keeper = world.keeper(lake=lake, state=state)
    for _ in range(15):
        keeper.look()
        world.dispatch()
        world.clock.sleep(MINUTE)
    lake.requests.clear()
    state.requests.clear()
    for _ in range(looks):
        world.clock.sleep(MINUTE)
        assert keeper.look().open == 0
    of_all = 3  # the listings of all tables and of dropped ones, and the sample of the history
    assert len(lake.requests) + len(state.requests) <= looks * (tables + of_all) + 5 * tables


def test_another_policy_counts_once_an_idle_table_has_news(world: KeeperWorld) -> None:
    table = world.table("manual")
    keeper = world.keeper()
    keeper.look()
    table.set_properties({"compact_when": {"pending_rows": 1}})
    world.clock.sleep(20 * MINUTE)
    keeper.look()
    world.append()
    keeper.look()
    assert keeper.look().decided == 1


STREAMS = 100


def with_compacted_streams(world: KeeperWorld, news_hints: bool | None, policy: object = "streaming") -> None:
    world.table(policy, keys=("day",), news_hints=news_hints)
    for day in range(STREAMS):
        world.append(partition={"day": str(day)})
        world.compact(world.lake.table(ORDERS).stream({"day": str(day)}))


def run_once(world: KeeperWorld) -> tuple[Keeper, int]:
    """A keeper of its own, after its only look, and the requests that it took."""
    lake, state = FaultyStore(world.lake_store), FaultyStore(world.state)
    keeper = world.keeper(lake=lake, state=state)
    assert keeper.look().set_aside == {}
    return keeper, len(lake.requests) + len(state.requests)


def small_files(keeper: Keeper) -> float:
    return next(each.value for each in keeper.board.samples() if each.metric is TABLE_SMALL_FILES)


@pytest.mark.parametrize(("news_hints", "idle"), [(True, 10), (False, STREAMS + 11)])
def test_the_cost_of_a_run_on_a_schedule_follows_what_is_new(world: KeeperWorld, news_hints: bool, idle: int) -> None:
    with_compacted_streams(world, news_hints, {"pending_rows": 1, "small_files": 8})
    run_once(world)
    assert run_once(world)[1] <= idle
    for day in range(5):
        world.append(partition={"day": str(day)})
    _, requests = run_once(world)
    assert [len(each.streams) for each in made(world)] == [5]
    assert requests <= idle + 5 * 5 + 6


def test_a_keeper_that_starts_has_the_figures_of_the_streams_that_another_one_saw(world: KeeperWorld) -> None:
    world.table(keys=("day",))
    for day in "12":
        world.append(partition={"day": day})
    run_once(world)
    for day in "12":
        world.compact(world.lake.table(ORDERS).stream({"day": day}))
    assert [small_files(run_once(world)[0]) for _ in range(2)] == [2, 2]
    world.lake.table(ORDERS).set_properties({"rows_per_compacted_file": 1})
    keeper, _ = run_once(world)
    world.clock.sleep(6 * 60 * MINUTE)
    assert keeper.look().set_aside == {}
    assert small_files(keeper) == small_files(run_once(world)[0]) == 0, "for these files are not small any more"


def test_files_of_streams_without_news_are_counted_after_some_hours(world: KeeperWorld) -> None:
    with_compacted_streams(world, True)
    found = []
    for _ in range(3):
        keeper, requests = run_once(world)
        found.append((small_files(keeper), requests > STREAMS))
        world.clock.sleep(3 * 60 * MINUTE)
    assert found == [(0, False), (0, False), (STREAMS, True)]


@pytest.mark.parametrize("body", [b"{", b'{"basis": "of a newer release", "more": 1}', b'{"basis": "another"}'])
def test_what_another_keeper_saw_is_left_out_if_it_cannot_be_read(world: KeeperWorld, body: bytes) -> None:
    world.table({"pending_rows": 1})
    key = StreamsSeenObject(lake_name(world.lake.location), ORDERS).key
    world.state.overwrite(key, body)
    world.append()
    assert run_once(world)[0].look().open == 1
    assert world.state.read(key) != body
    state = FaultyStore(world.state)
    state.fail("overwrite", key, times=None)
    world.dispatch()
    assert world.keeper(state=state).look().ended == 1


def test_the_decision_log_is_of_one_lake() -> None:
    one, other = StoreLocation("s3://bucket/lake"), StoreLocation("s3://bucket/lake2")
    assert lake_name(one) != lake_name(other)
    assert lake_name(one) == lake_name(StoreLocation("s3://bucket/lake/"))


def test_the_lag_of_each_table_is_shown_against_its_policy_and_sampled(world: KeeperWorld) -> None:
    world.table()
    world.table(None, "ACME.UNKEPT.V1")
    world.append()
    keeper = world.keeper()
    keeper.look()
    world.clock.sleep(6 * MINUTE)
    keeper.look()
    found = {(each.metric.name, *dict(each.labels).values()): each.value for each in keeper.board.samples()}
    assert (found["table_lag", ORDERS], found["table_lag_bound", ORDERS]) == (360, 300)
    assert (found["tables_watched",], found["tables_late",], found["keeper_looks",]) == (1, 0, 2)
    day = day_of(world.clock.now_ms())
    assert [each.lag_seconds for each in read_samples(world.state, day)] == [0, 360]


def test_a_lake_that_denies_its_listing_is_a_trouble_of_the_keeper_until_it_allows_it(world: KeeperWorld) -> None:
    world.table()
    lake = FaultyStore(world.lake_store)
    keeper = world.keeper(lake=lake)
    lake.fail("list_folders", times=None, error=Denied)
    lake.fail("list", times=None, error=Denied)
    for _ in range(2):
        with pytest.raises(Denied):
            keeper.look()
    assert list(keeper.board.troubles) == ["the lake"]
    assert next(each.value for each in keeper.board.samples() if each.metric is KEEPER_TROUBLES) == 1
    lake.heal()
    keeper.look()
    assert keeper.board.troubles == {}


def test_a_table_that_cannot_be_read_is_a_trouble_of_the_keeper(world: KeeperWorld) -> None:
    world.table()
    world.append()
    lake = FaultyStore(world.lake_store)
    keeper = world.keeper(lake=lake)
    lake.fail("list", "streams", times=None)
    lake.fail("read", "streams", times=None)
    keeper.look()
    assert list(keeper.board.troubles) == [ORDERS]
    assert next(each.value for each in keeper.board.samples() if each.metric is KEEPER_TROUBLES) == 1


def test_events_that_a_topic_refuses_are_a_trouble_until_they_are_published(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1})
    world.append()
    sink = MemorySink([Denied("the topic may not be used")])
    keeper = world.keeper(sink=sink)
    look = keeper.look()
    assert (look.sent, look.events_wait) == (1, "the topic may not be used")
    assert keeper.board.troubles == {"events": "the topic may not be used"}
    assert keeper.look().events_wait is None
    assert (len(sink.events), keeper.board.troubles) == (1, {})


def test_a_published_lag_that_could_not_be_read_is_no_lag_of_zero(world: KeeperWorld) -> None:
    world.table("manual", publish=["delta"])
    world.append()
    world.compact(world.lake.table(ORDERS).stream({}))
    world.clock.sleep(MINUTE)
    lake = FaultyStore(world.lake_store)
    lake.fail("list", "_delta_log", times=None)
    lake.fail("read", "_delta_log", times=None)
    keeper = world.keeper(lake=lake)

    def published_lag() -> list[float]:
        keeper.look()
        return [each.value for each in keeper.board.samples() if each.metric is TABLE_PUBLISHED_LAG]

    assert published_lag() == published_lag() == []
    lake.heal()
    assert published_lag() == [60]


def test_the_lag_of_what_is_published_is_known_once_an_idle_table_is_to_be_published(world: KeeperWorld) -> None:
    world.table("streaming")
    world.append()
    world.compact(world.lake.table(ORDERS).stream({}))
    keeper = world.keeper()
    keeper.look()
    world.lake.table(ORDERS).set_properties({"publish": ["delta"]})
    world.clock.sleep(60 * MINUTE)
    keeper.look()
    assert [each.value for each in keeper.board.samples() if each.metric is TABLE_PUBLISHED_LAG] == [3_600]


def test_a_keeper_without_tables_to_keep_is_seen_to_look(world: KeeperWorld) -> None:
    world.table(None)
    world.keeper().look()
    assert last_sampled(world.state, world.clock.now_ms() - 60_000) == {
        world.lake.location.root_uri: world.clock.now_ms() // 60_000 * 60_000
    }


def upkeep_of(world: KeeperWorld, keeper: Keeper, state: FaultyStore, lake: FaultyStore) -> LakeUpkeep:
    return LakeUpkeep(world.services(state=state, lake=lake), KeeperSettings(), keeper.board)


def test_a_step_of_the_upkeep_that_fails_keeps_no_other_from_being_done_and_is_done_the_next_time(
    world: KeeperWorld,
) -> None:
    world.table()
    keeper, lake = world.keeper(), FaultyStore(world.lake_store)
    upkeep = upkeep_of(world, keeper, FaultyStore(world.state), lake)
    lake.fail("list_folders", error=Denied)
    first = upkeep.do_what_is_due()
    assert first.steps == ("hints", "garbage", "state", "publication")
    assert list(first.failed) == ["hints"]
    assert list(keeper.board.troubles) == ["hints"]
    second = upkeep.do_what_is_due()
    assert (second.steps, dict(second.failed), keeper.board.troubles) == (("hints",), {}, {})
    assert upkeep.do_what_is_due().steps == ()


def test_what_failed_for_a_table_is_tried_again_in_an_hour_and_is_a_trouble_of_every_keeper_until_then(
    world: KeeperWorld,
) -> None:
    world.table()
    world.table(table_id="ACME.OTHER.V1")
    one, two, lake = world.keeper(), world.keeper(), FaultyStore(world.lake_store)
    lake.fail("list", f"tables/{ORDERS}/", error=Denied)
    upkeep = upkeep_of(world, one, FaultyStore(world.state), lake)
    other = upkeep_of(world, two, FaultyStore(world.state), lake)
    assert list(upkeep.do_what_is_due().failed) == [ORDERS]
    assert other.do_what_is_due().steps == ()
    assert list(one.board.troubles) == list(two.board.troubles) == [f"garbage: {ORDERS}"]
    world.clock.sleep(60 * MINUTE)
    lake.requests.clear()
    assert "garbage" in other.do_what_is_due().steps
    assert not lake.count("list", "tables/ACME.OTHER.V1/data")
    assert upkeep.do_what_is_due().failed == {}
    assert one.board.troubles == two.board.troubles == {}
    world.clock.sleep(60 * MINUTE)
    assert "garbage" not in upkeep.do_what_is_due().steps


def test_an_error_that_nobody_has_expected_ends_one_step_and_one_table(
    world: KeeperWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.table({"pending_rows": 1})
    world.append()
    world.table({"pending_rows": 1}, "ACME.OTHER.V1")
    world.append("ACME.OTHER.V1")
    lake = FaultyStore(world.lake_store)
    lake.fail("read", f"tables/{ORDERS}/log", times=None, error=ZeroDivisionError)
    keeper = world.keeper(lake=lake)
    look = keeper.look()
    assert (look.decided, list(look.set_aside)) == (1, [ORDERS])
    lake.heal()
    monkeypatch.setattr(LakeUpkeep, "_clean", lambda *_: 1 // 0)
    upkeep = upkeep_of(world, keeper, FaultyStore(world.state), lake)
    found = upkeep.do_what_is_due()
    assert found.steps == ("hints", "garbage", "state", "publication")
    assert found.failed["state"].startswith("ZeroDivisionError")


@pytest.mark.parametrize("ahead_seconds", [0.0, 365 * 86_400.0])
def test_what_a_clock_that_is_far_ahead_has_noted_holds_nothing_back(world: KeeperWorld, ahead_seconds: float) -> None:
    world.table({"pending_rows": 1})
    world.append()
    wrong = KeeperWorld(shared_state=world.state, shared_queue=world.queue)
    wrong.clock.sleep(ahead_seconds)
    wrong.lake_store, wrong.lake = world.lake_store, DeltaCatalog(world.lake_store, wrong.clock)
    keeper = wrong.keeper()
    upkeep_of(wrong, keeper, FaultyStore(wrong.state), FaultyStore(wrong.lake_store)).do_what_is_due()
    keeper.look()
    wrong.dispatch(fails=True)
    keeper.look()
    world.clock.sleep(5 * 60 * MINUTE)
    right = world.keeper()
    upkeep = upkeep_of(world, right, FaultyStore(world.state), FaultyStore(world.lake_store))
    is_ahead = ahead_seconds > 0
    assert ("garbage" in upkeep.do_what_is_due().steps) == is_ahead
    assert right.look().decided == 1


def test_readers_through_glue_are_led_to_what_the_upkeep_publishes() -> None:
    tables = PublishedTables("s3://bucket/lake")
    world = KeeperWorld(clock=tables.clock)
    world.lake_store, world.lake = tables.store, DeltaCatalog(tables.store, tables.clock)
    tables.published(ORDERS, glue_database="lakehouse")
    glue = MemoryGlue({"lakehouse"})
    upkeep = LakeUpkeep(world.services(glue=glue), KeeperSettings(), world.keeper().board)
    found = upkeep.do_what_is_due()
    assert (found.published, found.failed) == ((ORDERS,), {})
    (table,) = glue.tables.values()
    location = table.parameters["metadata_location"]
    assert world.lake_store.read(location.removeprefix("s3://bucket/lake/")) is not None


def test_a_partition_that_cannot_be_published_is_a_trouble(world: KeeperWorld) -> None:
    world.table("streaming")
    world.append()
    world.compact(world.lake.table(ORDERS).stream({}))  # of a table that other engines did not read then
    world.lake.table(ORDERS).set_properties({"publish": ["delta"]})
    keeper = world.keeper()
    found = upkeep_of(world, keeper, FaultyStore(world.state), FaultyStore(world.lake_store)).do_what_is_due()
    assert "compact the partition again" in found.failed[ORDERS]
    assert list(keeper.board.troubles) == [f"publication: {ORDERS}"]


def test_a_step_that_another_keeper_does_is_left_to_it_for_an_hour(world: KeeperWorld) -> None:
    world.table()
    keeper, state, lake = world.keeper(), FaultyStore(world.state), FaultyStore(world.lake_store)
    state.stop_at(1)  # after its first write
    with pytest.raises(Stopped):
        upkeep_of(world, keeper, state, lake).do_what_is_due()
    note = UpkeepNote.parse_durable(world.state.read(UpkeepDone(lake_name(world.lake.location)).key) or b"", "")
    assert note == UpkeepNote(begun_at_ms={"hints": world.clock.now_ms()})
    other = upkeep_of(world, keeper, FaultyStore(world.state), lake)
    assert other.do_what_is_due().steps == ("garbage", "state", "publication")
    world.clock.sleep(60 * MINUTE - 0.001)
    assert "hints" not in other.do_what_is_due().steps
    world.clock.sleep(0.001)
    assert "hints" in other.do_what_is_due().steps


def test_an_upkeep_without_its_state_is_a_trouble_and_none_of_the_look(world: KeeperWorld) -> None:
    world.table()
    keeper, state = world.keeper(), FaultyStore(world.state)
    state.fail("read", "upkeep.json", times=None)
    upkeep = upkeep_of(world, keeper, state, FaultyStore(world.lake_store))
    assert set(upkeep.do_what_is_due().failed) == {"hints", "garbage", "state", "publication"}
    state.heal()
    assert set(upkeep.do_what_is_due().steps) == {"hints", "garbage", "state", "publication"}
    assert keeper.board.troubles == {}


DAY = 24 * 60 * MINUTE


def test_an_idle_look_at_a_table_that_got_its_policy_later_is_one_request_in_the_end(world: KeeperWorld) -> None:
    with_compacted_streams(world, None, policy=None)
    world.lake.table(ORDERS).set_properties({"compact_when": {"pending_rows": 1}, "gc_grace_seconds": 3_600})
    keeper, requests = run_once(world)
    assert requests > STREAMS
    upkeep = upkeep_of(world, keeper, FaultyStore(world.state), FaultyStore(world.lake_store))
    for _ in range(3):
        assert upkeep.do_what_is_due().failed == {}
        world.clock.sleep(DAY)
    run_once(world)
    entries_more = 3  # of the table's log: its policy, and two of its hints
    assert run_once(world)[1] <= 10 + entries_more
    world.append(partition={"day": "7"})
    run_once(world)
    assert [len(each.streams) for each in made(world)] == [1]


def test_a_table_that_nobody_keeps_gets_no_hints(world: KeeperWorld) -> None:
    world.table(None, keys=("day",))
    world.table(None, "ACME.KEPT.V1", keys=("day",), compact_when="nightly", news_hints=False)
    upkeep = upkeep_of(world, world.keeper(), FaultyStore(world.state), FaultyStore(world.lake_store))
    for _ in range(2):
        assert upkeep.do_what_is_due().failed == {}
        world.clock.sleep(30 * DAY)
    for table_id in (ORDERS, "ACME.KEPT.V1"):
        assert not world.lake.table(table_id).definition.puts_hints
