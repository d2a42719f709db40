"""`lithify retry`: a job run that failed or was cancelled, run again as a new one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.lake import DeltaCatalog
from compactor.model.errors import Corrupt, Invalid
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from dispatcher.intake.instruction import InstructionDocument, parse_instruction
from dispatcher.intake.intake import preview_job_run_id
from dispatcher.operations.retry import JobRunRetry, begin_retry, plan_retry
from dispatcher.operations.status import view_job_run
from dispatcher.records.job_run_events import JobRunAcceptedEvent
from dispatcher.records.job_run_log import CancelRequested, JobRunStatus
from launcher.spark_job import SparkJob
from tests.conftest import Command
from tests.fakes.dispatch_desk import Desk, instruction
from tests.fakes.small_cluster import Behaviour, Fails, Hangs, Succeeds

DAYS = "ACME.DAYS.V1"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def lake(desk: Desk, location: StoreLocation) -> DeltaCatalog:
    assert location == desk.lake.location
    return desk.lake


def planned(desk: Desk, job_run_id: str) -> JobRunRetry:
    return plan_retry(desk.records, lambda location: lake(desk, location), job_run_id, desk.clock)


def retry(desk: Desk, job_run_id: str) -> JobRunRetry:
    return begin_retry(desk.records, planned(desk, job_run_id))


def failing_day(desk: Desk, day: str) -> None:
    def behave(job: SparkJob) -> Behaviour:
        return Fails(Corrupt("a file is gone")) if job.name.startswith(f"lithify-orders-{day}-") else Succeeds()

    table = desk.lake.create_table(DAYS, ["day"])
    for each in ("1", "2"):
        table.append({"day": each}, pa.table({"id": [1, 2], "v": ["a", "b"]}))
    desk.cluster.behaves = behave


def test_a_failed_job_run_is_retried_as_a_new_one_that_names_its_predecessor(desk: Desk) -> None:
    failing_day(desk, "2")
    desk.accept(source_table_id=DAYS, job_run_id="orders", priority=3)
    desk.run()
    assert desk.job_run("orders").status is JobRunStatus.FAILED
    assert len(desk.cluster.launched) == 2

    desk.cluster.behaves = lambda job: Succeeds()
    again = retry(desk, "orders")
    assert (again.job_run_id, again.stands) == ("orders-retry-1", False)
    desk.run()

    state = desk.job_run("orders-retry-1")
    assert state.status is JobRunStatus.SUCCEEDED
    assert state.accepted is not None
    assert state.accepted.spec.priority == 3
    assert [session.pin.partition for session in state.sessions.values()] == [{"day": "2"}]
    assert view_job_run(desk.records, "orders-retry-1", desk.clock).predecessor == "orders"
    accepted = [event.data for event in desk.sink.events if isinstance(event.data, JobRunAcceptedEvent)]
    assert [data.predecessor for data in accepted] == [None, "orders"]
    assert desk.job_run("orders").status is JobRunStatus.FAILED


def test_a_cancelled_job_run_is_run_again_with_what_has_arrived_since(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Hangs()
    desk.append([{"id": 1, "v": "a"}])
    desk.accept(job_run_id="orders")
    desk.tick_until(lambda: desk.cluster.running == 1)
    desk.records.log("orders").append(lambda _: [CancelRequested(reason="not now")])
    desk.run()
    desk.append([{"id": 1, "v": "b"}])

    desk.cluster.behaves = lambda job: Succeeds()
    retry(desk, "orders")
    desk.run()
    assert desk.job_run("orders-retry-1").status is JobRunStatus.SUCCEEDED
    assert desk.rows() == [{"id": 1, "v": "b"}]


def test_asking_twice_starts_one_and_a_retry_that_failed_is_retried_itself(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Fails(Corrupt("a file is gone"))
    desk.append([{"id": 1}])
    desk.accept(job_run_id="orders-retry-1")  # a name that somebody chose
    desk.run()
    first = retry(desk, "orders-retry-1")
    assert first.job_run_id == "orders-retry-1-retry-1"
    second = retry(desk, "orders-retry-1")
    assert (second.job_run_id, second.stands) == (first.job_run_id, True)
    assert desk.records.log(first.job_run_id).load().entry_number == 1
    desk.run()
    with pytest.raises(Invalid, match="was run again as orders-retry-1-retry-1, which is failed"):
        retry(desk, "orders-retry-1")
    assert retry(desk, first.job_run_id).job_run_id == "orders-retry-1-retry-2"


def test_the_first_id_sent_again_is_answered_with_the_last_job_run_that_ran_it_again(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Succeeds() if "retry-2" in job.name else Fails(Corrupt("a file is gone"))
    desk.append([{"id": 1}])
    first = desk.accept(job_run_id="orders")
    desk.run()
    for job_run_id in (first, "orders-retry-1"):
        begin_retry(desk.records, planned(desk, job_run_id))
        desk.run()
    message_id = desk.send(instruction(job_run_id="orders"))
    desk.take()
    desk.publish(first)
    (repeated,) = [event for event in desk.sink.events if event.type == "lithify.job_run.repeated.v1"]
    data = repeated.data.model_dump()
    assert (repeated.jobrunid, data["message_id"], data["status"]) == (first, message_id, "succeeded")
    assert data["answer"].startswith("job run orders was run again as orders-retry-2; job run orders-retry-2 has")
    assert preview_job_run_id(parsed(job_run_id="orders"), desk.records) == data["answer"]
    assert desk.records.open_job_run_ids() == []


def parsed(**fields: object) -> InstructionDocument:
    document = parse_instruction(json.dumps(instruction(**fields)))
    assert isinstance(document, InstructionDocument)
    return document


def test_the_loser_of_a_race_gets_the_winners_retry(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Fails(Corrupt("a file is gone"))
    desk.append([{"id": 1}])
    desk.accept(job_run_id="orders")
    desk.run()
    mine, theirs = planned(desk, "orders"), planned(desk, "orders")
    begin_retry(desk.records, theirs)
    assert begin_retry(desk.records, mine) == JobRunRetry(theirs.accepted, stands=True)


def test_a_plan_of_it_writes_nothing(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Fails(Corrupt("a file is gone"))
    desk.append([{"id": 1}])
    desk.accept(job_run_id="orders")
    desk.run()
    before = sorted(entry.key for entry in desk.state.list(""))
    assert planned(desk, "orders").accepted.sessions[0].partition == {}
    assert sorted(entry.key for entry in desk.state.list("")) == before


def test_a_refused_retry_has_its_reason(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.accept(job_run_id="orders")
    with pytest.raises(Invalid, match="orders is waiting: only a job run that failed or was cancelled is run again"):
        retry(desk, "orders")
    desk.run()
    with pytest.raises(Invalid, match="orders has succeeded: there is nothing to run again"):
        retry(desk, "orders")
    with pytest.raises(Invalid, match="there is no job run 'other' here"):
        retry(desk, "other")
    desk.send(instruction(job_run_id="wrong", primary_keys=["nope"]))
    rejected = desk.send("{")
    desk.take()
    with pytest.raises(Invalid, match="wrong was rejected: correct its document"):
        retry(desk, "wrong")
    with pytest.raises(Invalid, match=f"{rejected} was rejected: correct its document"):
        retry(desk, rejected)


def test_another_job_run_of_that_name_is_left_alone(desk: Desk) -> None:
    desk.cluster.behaves = lambda job: Fails(Corrupt("a file is gone"))
    desk.append([{"id": 1}])
    desk.accept(job_run_id="orders")
    desk.run()
    desk.accept(job_run_id="orders-retry-1")
    with pytest.raises(Invalid, match="another job run is called orders-retry-1"):
        retry(desk, "orders")


def test_the_verb_says_what_runs_again_and_under_which_name(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, state=open_store(parse_location(str(tmp_path / "state"))))
    desk.cluster.behaves = lambda job: Fails(Corrupt("a file is gone"))
    desk.append([{"id": 1}])
    desk.accept(job_run_id="orders")
    desk.run()
    capsys.readouterr()  # the dispatcher's own lines
    state = ("--state", str(tmp_path / "state"))
    assert command("retry", "orders", "--dry-run", *state).out.startswith("orders would run again as orders-retry-1:\n")
    assert desk.job_run("orders-retry-1").status is JobRunStatus.ABSENT
    answer = json.loads(command("retry", "orders", "--output", "json", *state).out)
    assert answer == {"job_run_id": "orders-retry-1", "predecessor": "orders", "started": True, "partitions": [{}]}
    assert command("retry", "orders", *state).out.startswith("orders runs again already, as orders-retry-1.\n")
    desk.run()
    capsys.readouterr()  # the dispatcher's own lines
    repeated = command("retry", "orders", *state)
    assert (repeated.exit_code, repeated.out) == (2, "")
    assert "`lithify retry orders-retry-1` goes on" in repeated.err
    desk.close()
