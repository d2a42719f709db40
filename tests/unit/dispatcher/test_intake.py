"""From a message to a job run, with something going wrong at every step between two durable writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.errors import Corrupt, Denied, Invalid, Unavailable
from compactor.storage.location import StoreLocation
from dispatcher.intake.admission import Admission
from dispatcher.intake.instruction import InstructionDocument, content_digest, parse_instruction
from dispatcher.intake.intake import REPEATS_MAX, Accepted, PutBack, Rejected, Repeated, Taken
from dispatcher.intake.queue import ORIGIN_ATTRIBUTE, MessageAttribute, QueueMessage
from dispatcher.records.job_run_events import JobRunRepeatedEvent
from dispatcher.records.job_run_log import JobRunStatus
from tests.fakes.dispatch_desk import TABLE, Desk, instruction
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_sink import MemorySink
from tests.fakes.memory_store import MemoryStore
from tests.fakes.small_cluster import Fails


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, clock=ManualClock())
    yield desk
    desk.close()


class _LosesAnswers(MemoryQueue):
    """The service carries out, or does not, what these methods ask, and does not answer."""

    def __init__(self, queue: MemoryQueue, fails: Sequence[str]) -> None:
        super().__init__(queue._clock, queue.dead_letters(), queue.deliveries_max)
        self._stored = queue._stored
        self._fails = list(fails)

    def _fail(self, name: str) -> None:
        if name in self._fails:
            self._fails.remove(name)
            raise Unavailable(f"{name} was not answered")

    def delete(self, message: QueueMessage) -> None:
        self._fail("delete")
        super().delete(message)

    def dead_letter(self, message: QueueMessage, reasons: Sequence[str]) -> None:
        self._fail("dead_letter")
        super().dead_letter(message, reasons)


def desk_that_loses(desk: Desk, *fails: str) -> Desk:
    return desk.second(queue=_LosesAnswers(desk.queue, fails))


def test_an_accepted_message_is_deleted_once_its_job_run_is_durable(desk: Desk) -> None:
    desk.append([{"id": 1}])
    message_id = desk.send(instruction())
    assert desk.take() == [Accepted(message_id)]
    assert desk.queue.bodies == []
    assert desk.job_run(message_id).status is JobRunStatus.WAITING
    assert desk.records.open_job_run_ids() == [message_id]


def test_defaults_are_written_into_the_record(desk: Desk) -> None:
    desk.append([{"id": 1}])
    message_id = desk.send(instruction())
    desk.take()
    accepted = desk.job_run(message_id).accepted
    assert accepted is not None
    assert accepted.spec.lake == desk.lake.location
    assert accepted.spec.rows_per_compacted_file == 4_000_000
    assert accepted.spec.destination_compacted_table_id == TABLE


def test_sources_are_pinned_when_the_job_run_is_accepted(desk: Desk) -> None:
    desk.append([{"id": 1, "v": "a"}])
    message_id = desk.send(instruction())
    (accepted,) = desk.take()
    desk.append([{"id": 1, "v": "too late"}])
    assert isinstance(accepted, Accepted)
    desk.controller.offer(message_id)
    desk.run()
    assert desk.rows() == [{"id": 1, "v": "a"}]


def test_a_message_whose_deletion_was_lost_is_delivered_again_and_starts_nothing(desk: Desk) -> None:
    desk.append([{"id": 1}])
    message_id = desk.send(instruction())
    (put_back,) = desk_that_loses(desk, "delete").take()
    assert isinstance(put_back, PutBack)
    assert desk.job_run(message_id).status is JobRunStatus.WAITING
    desk.clock.sleep(1_000)
    assert desk.take() == [Repeated(message_id, JobRunStatus.WAITING)]
    assert desk.queue.bodies == []
    assert len(list(desk.records.log(message_id).entries())) == 1


@pytest.mark.parametrize("fails", ["dead_letter", "delete"])
def test_a_rejection_that_was_cut_short_is_finished_at_the_next_delivery(desk: Desk, fails: str) -> None:
    message_id = desk.send("{")
    (put_back,) = desk_that_loses(desk, fails).take()
    assert isinstance(put_back, PutBack)
    desk.clock.sleep(1_000)
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert desk.queue.bodies == []
    assert desk.queue.dead_letters().bodies == ["{"]
    actions = [action.action for entry in desk.records.log(message_id).entries() for action in entry.actions]
    assert actions == ["job_run_rejected", "message_dead_lettered"]
    desk.publish(message_id)
    assert desk.sink.names == ["job_run.rejected"]
    assert desk.records.open_job_run_ids() == []


def test_a_topic_that_does_not_answer_makes_no_second_dead_letter_and_the_event_comes_later(desk: Desk) -> None:
    mute = desk.second(sink=MemorySink([Unavailable("the topic does not answer")]))
    message_id = mute.send("{")
    assert isinstance(mute.take()[0], Rejected)
    mute.publish(message_id)
    assert (mute.queue.bodies, mute.queue.dead_letters().bodies, mute.sink.names) == ([], ["{"], [])
    mute.publish()  # the next look at the markers
    assert mute.sink.names == ["job_run.rejected"]
    assert mute.records.open_job_run_ids() == []


def test_a_rejection_names_the_job_run_as_its_document_did_and_does_not_take_the_id(desk: Desk) -> None:
    message_id = desk.send(instruction(job_run_id="nightly", source_table_id="NO.SUCH.V1"))
    desk.take()
    desk.publish(message_id)
    (event,) = desk.sink.events
    assert (event.jobrunid, event.table) == ("nightly", "NO.SUCH.V1")
    assert desk.job_run(message_id).status is JobRunStatus.REJECTED
    assert desk.job_run("nightly").status is JobRunStatus.ABSENT

    desk.append([{"id": 1}], table="NO.SUCH.V1")
    desk.send(instruction(job_run_id="nightly", source_table_id="NO.SUCH.V1"))
    assert desk.take() == [Accepted("nightly")]


def unreachable(location: StoreLocation) -> DeltaCatalog:
    raise Unavailable(f"{location.root_uri} does not answer")


def rest_until(desk: Desk, kind: type[Taken]) -> tuple[list[int], Taken]:
    """Deliver the one message until it is answered otherwise than by being put back: its rests, and the answer."""
    rests: list[int] = []
    while True:
        (taken,) = desk.take()
        if not isinstance(taken, PutBack):
            assert isinstance(taken, kind), taken
            return rests, taken
        assert len(rests) < 200, "it is never given up"
        rests.append(taken.seconds)
        assert desk.take() == []
        desk.clock.sleep(taken.seconds)


def test_a_lake_that_is_away_makes_a_message_rest_as_long_as_it_has_waited_and_is_given_up_after_a_day(
    desk: Desk,
) -> None:
    desk = desk.second(open_lake=unreachable)
    message_id = desk.send(instruction(job_run_id="mine"))
    rests, given_up = rest_until(desk, Rejected)
    assert rests[:7] == [30, 30, 60, 120, 240, 480, 900]
    assert set(rests[7:]) == {900}
    assert 86_400 <= sum(rests) < 86_400 + 900
    assert isinstance(given_up, Rejected)
    assert "lake does not answer" in given_up.reasons[0]
    assert given_up.message_id == message_id
    assert desk.job_run(message_id).rejected is not None
    assert desk.queue.bodies == []
    (dead,) = desk.queue.dead_letters().receive(10, 0, 0)
    assert dead.origin.message_id == message_id


@pytest.mark.parametrize("deliveries_max", [2, 3, 5, 100])
def test_a_lake_that_was_away_for_hours_costs_no_instruction(desk: Desk, deliveries_max: int) -> None:
    """However few deliveries the queue itself allows before it moves a message away."""
    desk = desk.second(queue=MemoryQueue(desk.clock, MemoryQueue(desk.clock), deliveries_max))
    desk.append([{"id": 1}])
    back_at_ms = desk.clock.now_ms() + 5 * 3_600_000

    def away_for_hours(location: StoreLocation) -> DeltaCatalog:
        return unreachable(location) if desk.clock.now_ms() < back_at_ms else DeltaCatalog.open(location.root_uri)

    away = desk.second(open_lake=away_for_hours)
    message_id = away.send(instruction())
    rests, accepted = rest_until(away, Accepted)
    assert sum(rests) >= 5 * 3_600
    assert accepted == Accepted(message_id)
    assert (away.queue.bodies, away.queue.dead_letters().bodies) == ([], [])


def test_a_state_that_is_away_for_minutes_makes_no_dead_letter_of_a_good_instruction(desk: Desk) -> None:
    class Away(MemoryStore):
        def read(self, key: str) -> bytes | None:
            if self._clock.now_ms() < back_at_ms:
                raise Unavailable("the state does not answer")
            return super().read(key)

    back_at_ms = desk.clock.now_ms() + 240_000
    queue = MemoryQueue(desk.clock, MemoryQueue(desk.clock), deliveries_max=3)
    desk = desk.second(state=Away(desk.clock), queue=queue)
    desk.append([{"id": 1}])
    message_id = desk.send(instruction())
    rests, accepted = rest_until(desk, Accepted)
    assert (sum(rests) >= 240, accepted) == (True, Accepted(message_id))
    assert desk.queue.dead_letters().bodies == []


class _KeepsMessages(MemoryQueue):
    def delete(self, message: QueueMessage) -> None:
        raise Denied("a message cannot be deleted")


def test_a_message_that_cannot_be_deleted_stays_the_only_one(desk: Desk) -> None:
    desk = desk.second(queue=_KeepsMessages(desk.clock))
    desk.append([{"id": 1}])
    desk.send(instruction(job_run_id="mine"))
    for _ in range(100):
        (put_back,) = desk.take()
        assert isinstance(put_back, PutBack)
        desk.clock.sleep(1_000)
    assert len(desk.queue.bodies) == 1
    assert desk.job_run("mine").status is JobRunStatus.WAITING
    assert desk.job_run("message-1").status is JobRunStatus.ABSENT


def test_a_job_run_that_was_accepted_is_not_rejected_because_its_message_could_not_be_finished_for_a_day(
    desk: Desk,
) -> None:
    store = FaultyStore(MemoryStore(desk.clock))
    desk = desk.second(state=store, queue=_LosesAnswers(desk.queue, ["delete"]))
    desk.append([{"id": 1}])
    message_id = desk.send(instruction(job_run_id="mine"))
    desk.take()
    store.fail("put_if_absent", "open_job_runs_by_owner/mine", times=None)
    desk.clock.sleep(90_000)
    (put_back,) = desk.take()
    assert isinstance(put_back, PutBack)
    assert desk.job_run(message_id).status is JobRunStatus.ABSENT
    store.heal()
    desk.clock.sleep(1_000)
    assert desk.take() == [Repeated("mine", JobRunStatus.WAITING)]


# ------------------------------------------------------------------------- one message can never end a dispatcher


def broken(error: Exception) -> Callable[[StoreLocation], DeltaCatalog]:
    def raise_it(location: StoreLocation) -> DeltaCatalog:
        raise error

    return raise_it


@pytest.mark.parametrize(
    "error", [ValueError("embedded null byte"), KeyError("x"), RecursionError(), MemoryError(), Corrupt("a lake's log")]
)
def test_an_error_that_nobody_foresaw_is_answered_and_becomes_a_dead_letter_with_itself_as_the_reason(
    desk: Desk, error: Exception
) -> None:
    desk = desk.second(open_lake=broken(error))
    message_id = desk.send(instruction(job_run_id="mine"))
    with capture_logs() as logs:
        rests, rejected = rest_until(desk, Rejected)
    assert [each["exc_info"] for each in logs if each["event"] == "message_not_judged"] == [error] * 4
    assert len(rests) == 3  # a delivery less than the queue allows
    assert isinstance(rejected, Rejected)
    assert rejected.reasons[0].startswith("it was delivered 4 times and could not be judged: " + type(error).__name__)
    assert len(desk.queue.dead_letters().bodies) == 1
    desk.publish(message_id)
    (event,) = desk.sink.events
    assert event.jobrunid == "mine"


class _RefusesCopies(MemoryQueue):
    def dead_letter(self, message: QueueMessage, reasons: Sequence[str]) -> None:
        raise Invalid("the dead-letter queue takes no message")

    def set_visibility(self, message: QueueMessage, seconds: int) -> None:
        super().set_visibility(message, seconds)
        raise Denied("and nothing can be put back either")


def test_a_dead_letter_queue_that_refuses_the_copy_leaves_the_message_where_it_was(desk: Desk) -> None:
    desk = desk.second(queue=_RefusesCopies(desk.clock, MemoryQueue(desk.clock), deliveries_max=5))
    message_id = desk.send("{")
    for _ in range(4):
        (put_back,) = desk.take()
        assert isinstance(put_back, PutBack)
        desk.clock.sleep(1_000)
    assert desk.queue.bodies == ["{"]
    assert desk.job_run(message_id).status is JobRunStatus.REJECTED


def test_an_id_whose_object_keys_the_state_cannot_hold_is_rejected_with_the_figures(desk: Desk) -> None:
    state = MemoryStore(desk.clock, StoreLocation("s3://state/" + "deep/" * 80))
    desk = desk.second(state=state)
    desk.append([{"id": 1}])
    desk.send(instruction(job_run_id="\u8a9e" * 33))
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert "needs object keys of" in rejected.reasons[0]
    assert "choose a shorter one" in rejected.reasons[0]


def test_the_longest_id_fits_into_a_state_on_s3(desk: Desk) -> None:
    desk = desk.second(state=MemoryStore(desk.clock, StoreLocation("s3://state/prefix")))
    desk.append([{"id": 1}])
    desk.send(instruction(job_run_id="\u8a9e" * 33))
    assert isinstance(desk.take()[0], Accepted)


def test_a_message_that_kills_its_dispatcher_is_given_up_before_it_is_looked_at_again(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.send(instruction())
    for _ in range(4):
        assert len(desk.queue.receive(1, 0, 0)) == 1  # received, and nothing more was heard
    (given_up,) = desk.take()
    assert isinstance(given_up, Rejected)


def test_two_dispatchers_with_the_same_message_accept_it_once(desk: Desk) -> None:
    desk.append([{"id": 1}])
    message_id = desk.send(instruction())
    (first_delivery,) = desk.queue.receive(1, 0, 0)
    (second_delivery,) = desk.queue.receive(1, 0, 0)
    assert desk.intake.take(first_delivery) == Accepted(message_id)
    assert desk.second().intake.take(second_delivery) == Repeated(message_id, JobRunStatus.WAITING)


def test_a_message_that_another_dispatcher_accepts_while_it_is_refused_is_no_dead_letter(desk: Desk) -> None:
    desk.append([{"id": 1}])
    message_id = desk.send(instruction())
    (first_delivery,) = desk.queue.receive(1, 0, 0)
    (second_delivery,) = desk.queue.receive(1, 0, 0)

    def refuse_late(location: StoreLocation) -> DeltaCatalog:
        assert desk.intake.take(first_delivery) == Accepted(message_id)
        raise Invalid("the table was dropped meanwhile")

    desk.second(open_lake=refuse_late).intake.take(second_delivery)
    desk.clock.sleep(1_000)
    assert desk.take() == [Repeated(message_id, JobRunStatus.WAITING)]
    assert desk.queue.bodies == desk.queue.dead_letters().bodies == []


def test_the_same_id_with_other_content_is_refused_also_before_the_first_has_run(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.send(instruction(job_run_id="x"))
    desk.send(instruction(job_run_id="x", priority=5))
    first, second = desk.take()
    assert first == Accepted("x")
    assert second == Rejected(("job_run_id 'x' was used before, for other content: choose another id",))


def test_without_a_lake_the_document_must_name_one(desk: Desk) -> None:
    desk = desk.second(has_own_lake=False)
    desk.append([{"id": 1}])
    desk.send(instruction())
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert rejected.reasons[0].startswith("delta_catalog is missing")
    desk = desk.second(admission=Admission(lakes=(desk.lake.location.root_uri,)))
    desk.send(instruction(delta_catalog=desk.lake.location.root_uri))
    assert isinstance(desk.take()[0], Accepted)


def test_dead_letters_carry_their_body_and_every_reason(desk: Desk) -> None:
    body = json.dumps({"source_table_id": "x", "other": 1})
    desk.send(body)
    (rejected,) = desk.take()
    (dead,) = desk.queue.dead_letters().receive(1, 0, 0)
    assert isinstance(rejected, Rejected)
    assert dead.body == body
    assert dead.reasons is not None
    assert json.loads(dead.reasons) == list(rejected.reasons)
    assert len(rejected.reasons) == 4


def test_a_rejected_document_leaves_nothing_in_the_lake(desk: Desk) -> None:
    desk.append([{"id": 1}])
    before = [entry.key for entry in desk.lake.store.list("")]
    desk.send(instruction(primary_keys=["nope"], destination_compacted_table_id="ACME.ELSEWHERE.V1"))
    assert isinstance(desk.take()[0], Rejected)
    assert [entry.key for entry in desk.lake.store.list("")] == before


def test_a_corrupt_newest_file_is_named(desk: Desk) -> None:
    desk.append([{"id": 1}])
    active = desk.lake.table(TABLE).stream({}).load().state.active
    assert active is not None
    ((file,),) = [delta.files for delta in active.deltas]
    path = Path(desk.lake.table(TABLE).stream({}).uri_of(file.path).removeprefix("file://"))
    path.write_bytes(b"PAR1 this is no Parquet file PAR1")
    desk.send(instruction())
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert path.name in rejected.reasons[0]


# ---------------------------------------------------------------- copies, and attributes of senders that look like one


def send_with_origin(desk: Desk, body: str, origin_id: str) -> str:
    origin = json.dumps({"message_id": origin_id, "sent_at_ms": desk.clock.now_ms()})
    return desk.queue.put(body, {ORIGIN_ATTRIBUTE: MessageAttribute("String", origin)})


@pytest.mark.parametrize("origin_id", ["", "x" * 101, "wide\x1f0-2", "line\n", "\u8a9e"], ids=repr)
def test_an_attribute_that_names_no_message_is_a_sender_s_own(desk: Desk, origin_id: str) -> None:
    desk.append([{"id": 1}])
    message_id = send_with_origin(desk, json.dumps(instruction()), origin_id)
    assert desk.take() == [Accepted(message_id)]


@pytest.mark.parametrize("body", ["{", json.dumps(instruction(priority=5))], ids=["no document", "another document"])
def test_a_message_that_calls_itself_a_copy_of_an_accepted_one_is_dead_lettered_and_changes_nothing(
    desk: Desk, body: str
) -> None:
    desk.append([{"id": 1}])
    first_id = desk.send(instruction())
    desk.take()
    before = {entry.key: desk.state.read(entry.key) for entry in desk.state.list("")}
    send_with_origin(desk, body, first_id)
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    (dead,) = desk.queue.dead_letters().receive(10, 0, 0)
    assert json.loads(dead.reasons or "") == list(rejected.reasons)
    assert rejected.reasons
    assert desk.queue.bodies == []
    assert {entry.key: desk.state.read(entry.key) for entry in desk.state.list("")} == before


# ---------------------------------------------------------------------------- documents that come a second time


def end_job_run(desk: Desk, job_run_id: str, **fields: object) -> None:
    desk.send(instruction(job_run_id=job_run_id, **fields))
    desk.take()
    desk.controller.offer(job_run_id)
    desk.run()


def test_a_document_sent_again_starts_nothing_and_its_sender_is_told_by_an_event(desk: Desk) -> None:
    desk = desk.second(clock=SystemClock())
    desk.append([{"id": 1}])
    end_job_run(desk, "nightly")
    assert desk.records.open_job_run_ids() == []
    before = desk.sink.names
    second = desk.send(instruction(job_run_id="nightly"))
    assert desk.take() == [Repeated("nightly", JobRunStatus.SUCCEEDED)]
    assert desk.records.open_job_run_ids() == ["nightly"]
    desk.publish("nightly")
    assert desk.sink.names == [*before, "job_run.repeated"]
    data = desk.sink.events[-1].data
    assert isinstance(data, JobRunRepeatedEvent)
    assert (data.message_id, data.status) == (second, "succeeded")
    assert "send another job_run_id" in data.answer
    assert desk.records.open_job_run_ids() == []
    assert desk.queue.bodies == []


def test_a_document_of_a_failed_job_run_sent_again_is_told_why_it_failed_and_what_to_do(desk: Desk) -> None:
    desk = desk.second(clock=SystemClock())
    desk.append([{"id": 1}])
    desk.cluster.behaves = lambda job: Fails(Corrupt("a page is broken"))
    end_job_run(desk, "nightly")
    desk.send(instruction(job_run_id="nightly"))
    assert desk.take() == [Repeated("nightly", JobRunStatus.FAILED)]
    desk.publish("nightly")
    data = desk.sink.events[-1].data
    assert isinstance(data, JobRunRepeatedEvent)
    assert "has failed" in data.answer
    assert "a page is broken" in data.answer
    assert "another job_run_id" in data.answer


def test_a_document_sent_again_and_again_fills_no_log(desk: Desk) -> None:
    desk.append([{"id": 1}])
    for _ in range(REPEATS_MAX + 10):
        desk.send(instruction(job_run_id="loop"))
    while desk.queue.bodies:
        desk.take()
    assert len(list(desk.records.log("loop").entries())) == 1 + REPEATS_MAX


def test_a_second_delivery_of_one_message_is_no_repeat(desk: Desk) -> None:
    desk.append([{"id": 1}])
    message_id = desk.send(instruction())
    (first_delivery,) = desk.queue.receive(1, 0, 0)
    (second_delivery,) = desk.queue.receive(1, 0, 0)
    desk.intake.take(first_delivery)
    desk.intake.take(second_delivery)
    assert len(list(desk.records.log(message_id).entries())) == 1


# -------------------------------------------------------------------------------------------------- task tokens


def test_a_task_token_lies_apart_from_logs_and_plans_until_it_is_answered(desk: Desk) -> None:
    desk = desk.second(clock=SystemClock())
    desk.append([{"id": 1}])
    desk.callbacks.begin("the secret")
    desk.callbacks.error = Unavailable("not now")
    job_run_id = desk.accept(job_run_id="waited-for", task_token="the secret")
    desk.tick_until(lambda: desk.job_run(job_run_id).ended is not None)
    holds_it = [entry.key for entry in desk.state.list("") if b"the secret" in (desk.state.read(entry.key) or b"")]
    assert holds_it == ["task_tokens/waited-for/message-1"]
    assert not any("the secret" in event.render().decode() for event in desk.sink.events)

    second = desk.send(instruction(job_run_id="waited-for", task_token="another"))
    assert desk.take() == [Repeated("waited-for", JobRunStatus.SUCCEEDED)]
    assert desk.state.read(f"task_tokens/waited-for/{second}") == b"another"


def test_a_task_token_whose_job_run_another_document_was_the_first_to_begin_stays_only_with_its_rejection(
    desk: Desk,
) -> None:
    class OvertakenStore(MemoryStore):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            is_put = super().put_if_absent(key, body)
            if key == "task_tokens/run/message-2":
                assert desk.intake.take(first) == Accepted("run")
            return is_put

    state = OvertakenStore(desk.clock)
    desk = desk.second(state=state)
    desk.append([{"id": 1}])
    desk.send(instruction(job_run_id="run"))
    desk.send(instruction(job_run_id="run", priority=2, task_token="the secret"))
    first, second = desk.queue.receive(10, 0, 30)
    assert isinstance(desk.second(owner="third").intake.take(second), Rejected)
    assert [entry.key for entry in state.list("task_tokens/")] == ["task_tokens/message-2/message-2"]


def test_a_document_without_keys_is_accepted_with_those_of_its_table(desk: Desk) -> None:
    desk.append([{"id": 1, "at": 2}])
    desk.lake.table(TABLE).set_properties(
        {"primary_keys": ["id"], "sort_keys": [("at", "descending")], "rows_per_compacted_file": 9}
    )
    body = json.dumps({"schema_version": "1", "source_table_id": TABLE})
    message_id = desk.send(body)
    assert desk.take() == [Accepted(message_id)]
    accepted = desk.job_run(message_id).accepted
    assert accepted is not None
    assert accepted.spec.primary_keys == ("id",)
    assert [(key.column, key.order) for key in accepted.spec.sort_keys] == [("at", "descending")]
    assert accepted.spec.rows_per_compacted_file == 9
    assert accepted.content_digest == content_digest(parsed(body))


def test_a_document_that_contradicts_its_table_is_rejected_with_every_reason(desk: Desk) -> None:
    desk.append([{"id": 1, "at": 2}])
    desk.lake.table(TABLE).set_properties({"primary_keys": ["id"], "sort_keys": [("at", "descending")]})
    desk.send(instruction(primary_keys=["at"], sort_keys=[["id", "ascending"]]))
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert [reason.split(" ")[0] for reason in rejected.reasons] == ["primary_keys", "sort_keys"]


def test_a_document_without_keys_for_a_table_without_keys_is_rejected(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.send(json.dumps({"schema_version": "1", "source_table_id": TABLE}))
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert "primary_keys is missing" in rejected.reasons[0]


def test_a_document_for_an_offline_table_is_rejected(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.lake.table(TABLE).set_properties({"state": "offline"})
    desk.send(instruction())
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert f"table {TABLE} is offline" in rejected.reasons[0]


def parsed(body: str) -> InstructionDocument:
    document = parse_instruction(body)
    assert isinstance(document, InstructionDocument)
    return document
