"""A keeper and a queue that fails: before, after with the answer lost, for ever. Decisions wait, and say so."""

from __future__ import annotations

import threading

import pytest
from structlog.testing import capture_logs

from compactor.model.clock import Clock
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from dispatcher.keeper.decision_log import DecisionAction, DecisionSent, DecisionWaits, decision_records
from dispatcher.keeper.decision_queue import AGAIN_SECONDS, DecisionQueue
from dispatcher.keeper.table_keeper import KeeperSettings
from dispatcher.operations.lag_board import KEEPER_TROUBLES
from dispatcher.records.history import day_of
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_sink import MemorySink
from tests.keeper_world import ORDERS, KeeperWorld
from tests.unit.dispatcher.lag_samples_kept import read_samples

MINUTE = 60.0
AWAY = Unavailable("the queue does not answer")


class FailingQueue(MemoryQueue):
    """`failure`: of each message; None: it takes them. `loses_answers`: it takes them and fails all the same."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.failure: BaseException | None = AWAY
        self.loses_answers = False
        self.asked = 0
        self.has_sent = threading.Event()

    def send(self, *given: object, **named: object) -> str:
        self.asked += 1
        if self.loses_answers:
            super().send(*given, **named)  # type: ignore[arg-type]
        if self.failure is not None:
            raise self.failure
        self.has_sent.set()
        return super().send(*given, **named)  # type: ignore[arg-type]


@pytest.fixture
def world() -> KeeperWorld:
    """With a table that is due, and a queue that is away."""
    world = KeeperWorld()
    world.queue = FailingQueue(world.clock)
    world.table({"pending_rows": 1})
    world.append()
    return world


def queue_of(world: KeeperWorld) -> FailingQueue:
    assert isinstance(world.queue, FailingQueue)
    return world.queue


def actions(world: KeeperWorld) -> list[DecisionAction]:
    return [action for entry in world.decision_log(ORDERS).entries() for action in entry.actions]


def waits(world: KeeperWorld) -> list[str]:
    return [action.reason for action in actions(world) if isinstance(action, DecisionWaits)]


def shown(world: KeeperWorld) -> dict[str, object]:
    (record,) = decision_records(ORDERS, world.decision_log(ORDERS).entries(), 10)
    return record


def test_decisions_wait_for_a_queue_that_is_away_and_say_so(world: KeeperWorld) -> None:
    sink = MemorySink()
    keeper = world.keeper(sink=sink)
    decided_at_ms = world.clock.now_ms()
    look = keeper.look()
    assert (look.decided, look.sent, look.waiting, look.queue_away) == (1, 0, 1, "the queue does not answer")
    assert keeper.board.troubles == {"the queue": "1 decision not sent: the queue does not answer"}
    assert next(each.value for each in keeper.board.samples() if each.metric is KEEPER_TROUBLES) == 1
    assert [each.type.split(".")[2] for each in sink.events] == ["decided", "postponed"]
    assert sink.events[1].data.postponed_by == "queue"  # type: ignore[attr-defined]
    record = shown(world)
    assert (record["what"], record["sent_at_ms"], record["waits_since_ms"]) == ("waits", None, decided_at_ms)
    assert "UTC: the queue does not answer" in str(record["why"])
    (sample,) = read_samples(world.state, day_of(world.clock.now_ms()))
    assert sample.unsent_decisions == 1

    queue_of(world).failure = None
    with capture_logs() as logged, keeper.loop(threading.Event()):
        assert queue_of(world).has_sent.wait(10)
    (looked,) = (each for each in logged if each["event"] == "keeper_looked")
    assert (looked["decided"], looked["sent"], looked["waiting"], looked["queue_away"]) == (0, 1, 0, None)
    assert keeper.board.troubles == {}
    record = shown(world)
    assert (record["what"], record["waits_for"], record["why"]) == ("decided", None, "pending_rows 10 >= 1")
    assert len(world.dispatch()) == 1


def test_the_next_keeper_sends_what_waits_at_once_and_the_one_after_nothing(world: KeeperWorld) -> None:
    assert world.keeper().look().waiting == 1
    queue_of(world).failure = None
    assert [world.keeper().look().sent for _ in range(3)] == [1, 0, 0]
    assert world.queue.messages_left() == 1
    assert world.dispatch() == [each.job_run_id for each in actions(world) if isinstance(each, DecisionSent)]


def test_a_wait_is_noted_once_and_again_when_its_kind_changes(world: KeeperWorld) -> None:
    for failure in (AWAY, Denied("user/keeper may not sqs:SendMessage"), Invalid("there is no queue of this name")):
        queue_of(world).failure = failure
        for _ in range(5):
            world.keeper().look()
            world.clock.sleep(MINUTE)
    assert waits(world) == [
        "the queue does not answer",
        "user/keeper may not sqs:SendMessage",
        "there is no queue of this name",
    ]
    assert "there is no queue of this name" in str(shown(world)["why"])
    queue_of(world).failure = None
    assert world.keeper().look().sent == 1


def test_every_decision_is_tried_though_one_is_refused(world: KeeperWorld) -> None:
    world.table({"pending_rows": 1}, "ACME.MANY.V1", ("day",))
    for day in range(70):
        world.append("ACME.MANY.V1", {"day": str(day)})
    queue_of(world).failure = Invalid("the message is too long")
    assert world.keeper().look().waiting == 3
    assert queue_of(world).asked == 3


def test_a_keeper_that_ends_before_it_sends_leaves_a_decision_that_waits(world: KeeperWorld) -> None:
    queue_of(world).failure = Stopped()
    with pytest.raises(Stopped):
        world.keeper().look()
    assert "no keeper has sent it yet" in str(shown(world)["why"])
    queue_of(world).failure = None
    other = world.keeper()
    look = other.look()
    assert (look.sent, look.waiting, look.queue_away) == (0, 1, None)
    world.clock.sleep(KeeperSettings().left_by_another_seconds)
    assert other.look().sent == 1


@pytest.mark.parametrize("policy", ["manual", None])
def test_what_was_decided_and_not_sent_waits_while_the_policy_allows_no_instruction(
    world: KeeperWorld, policy: str | None
) -> None:
    world.keeper().look()
    queue_of(world).failure = None
    world.lake.table(ORDERS).set_properties({"compact_when": policy})
    world.clock.sleep(10 * MINUTE)
    assert (world.keeper().look().sent, world.queue.messages_left()) == (0, 0)
    world.lake.table(ORDERS).set_properties({"compact_when": "streaming"})
    assert world.keeper().look().sent == 1


def test_a_lost_answer_of_the_queue_makes_one_job_run(world: KeeperWorld) -> None:
    queue_of(world).loses_answers = True
    keeper = world.keeper()
    keeper.look()
    queue_of(world).failure, queue_of(world).loses_answers = None, False
    keeper.look()
    assert world.queue.messages_left() == 2
    assert len(world.dispatch()) == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_away", [True, False])
def test_a_state_that_fails_at_any_write_beside_the_queue_leaves_one_job_run(when: str, is_away: bool) -> None:
    def a_world() -> tuple[KeeperWorld, FaultyStore]:
        world = KeeperWorld()
        world.queue = FailingQueue(world.clock)
        queue_of(world).failure = AWAY if is_away else None
        world.table({"pending_rows": 1})
        world.append()
        return world, FaultyStore(world.state)

    for number in (1, 2):
        world, state = a_world()
        state.fail("put_if_absent", f"log/{number:020d}", when=when, times=2)  # type: ignore[arg-type]
        keeper = world.keeper(state=state)
        keeper.look()
        keeper.look()
        queue_of(world).failure = None
        for _ in range(3):
            world.clock.sleep(2 * MINUTE)
            world.keeper().look()
            world.dispatch()
        assert len(set(world.job_runs)) == 1
        assert set(world.commits.values()) == {1}


class _Opening:
    """Opens `queue`, unless it fails."""

    def __init__(self, queue: FailingQueue, failure: LithifyError | None) -> None:
        self.queue = queue
        self.failure = failure
        self.tried = 0

    def __call__(self) -> MemoryQueue:
        self.tried += 1
        if self.failure is not None:
            raise self.failure
        return self.queue


def test_a_queue_that_is_away_is_tried_once_for_all_tables_of_a_look_and_opened_again_later(world: KeeperWorld) -> None:
    opening = _Opening(queue_of(world), Denied("no credentials"))
    queue = DecisionQueue(opening, world.clock)
    assert queue.try_to_open() == "no credentials"
    for _ in range(10):
        with pytest.raises(Denied, match="no credentials"):
            queue.send("{}")
    assert opening.tried == 1
    world.clock.sleep(AGAIN_SECONDS)
    opening.failure = None
    for _ in range(10):
        with pytest.raises(Unavailable, match="does not answer"):
            queue.send("{}")
    assert (opening.tried, opening.queue.asked) == (2, 1)
    world.clock.sleep(AGAIN_SECONDS)
    opening.queue.failure = None
    assert queue.try_to_open() is None
    queue.send("{}")
    queue.send("{}")
    assert (opening.tried, opening.queue.messages_left()) == (3, 2)


def test_a_queue_that_does_not_exist_is_bad_input(world: KeeperWorld) -> None:
    queue = DecisionQueue(_Opening(queue_of(world), Invalid("there is no such queue")), world.clock)
    with pytest.raises(Invalid, match="no such queue"):
        queue.try_to_open()


def test_a_plan_says_how_far_a_decision_has_come(world: KeeperWorld) -> None:
    keeper = world.keeper()

    def where() -> str:
        (outlook,) = world.keeper().outlook()
        return "; ".join(why.partition("job run")[0].strip(" :") for why in outlook.at_work.values())

    keeper.look()
    assert where() == f"its instruction waits for the queue: {AWAY}"
    queue_of(world).failure = None
    keeper.look()
    world.clock.sleep(MINUTE)
    assert where() == "its instruction was sent 60 s ago, and no dispatcher has taken it"
    (message,) = world.queue.receive(10, 0, 3_600)
    run = world.accept(message.body, message.message_id)
    assert run is not None
    assert where() == "it is being compacted by"
    world.finish(run)
    (outlook,) = world.keeper().outlook()
    assert list(outlook.at_work.values()) == [f"job run {run.job_run_id} has succeeded: the next look notes it"]
