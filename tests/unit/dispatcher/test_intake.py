"""From a message to a job run, with something going wrong at every step between two durable writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from compactor.catalog.catalog import DeltaCatalog
from compactor.errors import Invalid, Unavailable
from compactor.object_store import StoreLocation
from dispatcher.intake import Accepted, PutBack, Rejected, Repeated
from dispatcher.job_runs import JobRunStatus
from dispatcher.queue import QueueMessage
from tests.fakes.dispatch_desk import TABLE, Desk, instruction
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_sink import MemorySink


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
    desk.foreman.offer(message_id)
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


@pytest.mark.parametrize(("fails", "copies"), [(("dead_letter",), 1), (("delete",), 2)])
def test_a_rejection_that_was_cut_short_is_finished_at_the_next_delivery(
    desk: Desk, fails: tuple[str, ...], copies: int
) -> None:
    message_id = desk.send("{")
    (put_back,) = desk_that_loses(desk, *fails).take()
    assert isinstance(put_back, PutBack)
    desk.clock.sleep(1_000)
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert desk.queue.bodies == []
    assert desk.queue.dead_letters().bodies == ["{"] * copies
    assert desk.sink.names == ["job_run.rejected"]
    assert len(list(desk.records.log(message_id).entries())) == 1


def test_a_rejection_that_could_not_be_told_is_told_at_the_next_delivery(desk: Desk) -> None:
    mute = desk.second(sink=MemorySink([Unavailable("the topic does not answer")]))
    mute.send("{")
    assert isinstance(mute.take()[0], PutBack)
    assert mute.sink.names == []
    mute.clock.sleep(1_000)
    assert isinstance(mute.take()[0], Rejected)
    assert mute.sink.names == ["job_run.rejected"]


def test_a_rejection_names_the_job_run_as_its_document_did_and_does_not_take_the_id(desk: Desk) -> None:
    message_id = desk.send(instruction(job_run_id="nightly", source_table_id="NO.SUCH.V1"))
    desk.take()
    (event,) = desk.sink.events
    assert (event.jobrunid, event.table) == ("nightly", "NO.SUCH.V1")
    assert desk.job_run(message_id).status is JobRunStatus.REJECTED
    assert desk.job_run("nightly").status is JobRunStatus.ABSENT

    desk.append([{"id": 1}], table="NO.SUCH.V1")
    desk.send(instruction(job_run_id="nightly", source_table_id="NO.SUCH.V1"))
    assert desk.take() == [Accepted("nightly")]


def test_what_cannot_be_judged_now_rests_longer_each_time_and_is_given_up_in_the_end(desk: Desk) -> None:
    def unreachable(location: StoreLocation) -> DeltaCatalog:
        raise Unavailable(f"{location.root_uri} does not answer")

    desk = desk.second(open_lake=unreachable)
    desk.send(instruction())
    rests = []
    for _ in range(4):
        (taken,) = desk.take()
        assert isinstance(taken, PutBack)
        rests.append(taken.seconds)
        assert desk.take() == []
        desk.clock.sleep(taken.seconds)
    assert rests == [30, 60, 120, 240]
    (given_up,) = desk.take()
    assert isinstance(given_up, Rejected)
    assert "was delivered 5 times and could not be accepted" in given_up.reasons[0]
    assert desk.sink.names == ["job_run.rejected"]
    assert len(desk.queue.dead_letters().bodies) == 1


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


def test_a_topic_that_is_wrong_does_not_stop_a_rejection(desk: Desk) -> None:
    desk = desk.second(sink=MemorySink([Invalid("there is no such topic")]))
    desk.send("{")
    assert isinstance(desk.take()[0], Rejected)
    assert desk.queue.bodies == []
    assert len(desk.queue.dead_letters().bodies) == 1
