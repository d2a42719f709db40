"""From a message on a queue to compacted rows and events: the whole dispatcher against moto's SQS and SNS."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from dispatcher.intake import Repeated
from dispatcher.job_runs import JobRunStatus
from tests.e2e.conftest import House, Mailroom
from tests.fakes.dispatch_desk import TABLE, instruction

pytestmark = pytest.mark.servers

WHOLE_STORY = [
    "job_run.accepted",
    "job_run.started",
    "session.planned",
    "session.launched",
    "session.started",
    "session.round_completed",
    "session.succeeded",
    "job_run.succeeded",
]


def test_a_good_document_becomes_a_compacted_table(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    house.append([{"id": 1, "v": "c"}, {"id": 3, "v": "d"}])
    house.append([{"id": 2}], operation="delete")
    message_id = mailroom.send(instruction())

    house.dispatch()

    assert house.rows() == [{"id": 1, "v": "c"}, {"id": 3, "v": "d"}]
    assert house.job_run(message_id).status is JobRunStatus.SUCCEEDED
    assert mailroom.waiting() == 0
    assert mailroom.dead_letters() == []
    assert mailroom.told() == WHOLE_STORY
    assert {event.jobrunid for event in mailroom.events()} == {message_id}
    assert house.records.open_job_run_ids() == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"schema_version": "1",\n "primary_keys": [}', "line 2, column 19: the document is not JSON"),
        (instruction(primary_kyes=["id"]), "primary_kyes: there is no such field; did you mean 'primary_keys'?"),
        (instruction(source_table_id="ACME.NONE.V1"), "there is no table ACME.NONE.V1"),
        (instruction(sort_keys=[["wide", "ascending"], ["b", "ascending"]]), "the sort keys take 40 bytes"),
        (instruction(primary_keys=["key"]), "there is no primary key column 'key'"),
        (instruction(sort_keys=[["v", "ascending"]]), "has no fixed width"),
        (instruction(partitions=[{"day": "1"}]), "'day' is no partition key"),
    ],
    ids=["malformed", "unknown field", "unknown table", "wide sort keys", "no such key", "no width", "no partition"],
)
def test_a_document_that_can_never_work_is_dead_lettered_with_its_reasons(
    house: House, mailroom: Mailroom, body: object, reason: str
) -> None:
    house.append([{"id": 1, "v": "a", "wide": b"x" * 32, "b": 7}])
    _make_wide(house)
    before = {entry.key for entry in house.lake.store.list("")}
    message_id = mailroom.send(body)

    house.dispatch()

    ((dead_body, reasons),) = mailroom.dead_letters()
    assert dead_body == (body if isinstance(body, str) else json.dumps(body))
    assert any(reason in each for each in reasons), reasons
    assert mailroom.waiting() == 0
    (event,) = mailroom.events()
    assert event.type == "lithify.job_run.rejected.v1"
    assert list(event.data.reasons) == reasons  # type: ignore[attr-defined]
    assert house.job_run(message_id).status is JobRunStatus.REJECTED
    assert {entry.key for entry in house.lake.store.list("")} == before
    assert house.cluster.launched == []


def _make_wide(house: House) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("wide", pa.binary(32)), ("b", pa.int64())])
    rows = [{"id": 2, "v": "b", "wide": b"y" * 32, "b": 1}]
    house.lake.table(TABLE).append({}, pa.Table.from_pylist(rows, schema=schema))


def test_every_violation_is_named_at_once(house: House, mailroom: Mailroom) -> None:
    mailroom.send({"source_table_id": "x", "primary_keys": [], "rows_per_compacted_file": 0, "extra": 1})

    house.dispatch()

    ((_, reasons),) = mailroom.dead_letters()
    assert [reason.split(" ")[0].rstrip(":") for reason in reasons] == [
        "schema_version",
        "source_table_id",
        "primary_keys",
        "rows_per_compacted_file",
        "extra",
    ]


def test_a_second_delivery_of_a_message_starts_nothing(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}])
    message_id = mailroom.send(instruction())
    (delivery,) = mailroom.queue().receive(1, 0, 0)  # visible again at once, as if its visibility had ended
    house.dispatch()
    house.append([{"id": 1, "v": "b"}])

    assert house.intake().take(delivery) == Repeated(message_id, JobRunStatus.SUCCEEDED)

    house.dispatch()
    assert house.rounds() == 1
    assert len(house.cluster.launched) == 1
    assert mailroom.told() == WHOLE_STORY


def test_the_same_job_run_id_with_the_same_content_is_answered_by_the_first(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}])
    mailroom.send(instruction(job_run_id="nightly"))
    house.dispatch()
    house.append([{"id": 1, "v": "b"}])
    mailroom.send(instruction(job_run_id="nightly", primary_keys=["id"], destination_compacted_table_id=TABLE))

    house.dispatch()

    assert house.rows() == [{"id": 1, "v": "a"}]
    assert house.rounds() == 1
    assert mailroom.waiting() == 0
    assert mailroom.dead_letters() == []
    assert mailroom.told() == WHOLE_STORY


def test_the_same_job_run_id_with_other_content_is_refused(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}])
    mailroom.send(instruction(job_run_id="nightly"))
    house.dispatch()
    mailroom.send(instruction(job_run_id="nightly", rows_per_compacted_file=7))

    house.dispatch()

    ((_, reasons),) = mailroom.dead_letters()
    assert reasons == ["job_run_id 'nightly' was used before, for other content: choose another id"]
    assert house.job_run("nightly").status is JobRunStatus.SUCCEEDED
    assert house.rounds() == 1
    assert mailroom.told() == [*WHOLE_STORY, "job_run.rejected"]


def test_a_run_with_nothing_to_do_succeeds_says_so_and_launches_nothing(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}])
    mailroom.send(instruction())
    house.dispatch()
    message_id = mailroom.send(instruction())

    house.dispatch()

    assert house.job_run(message_id).status is JobRunStatus.SUCCEEDED
    assert len(house.cluster.launched) == 1
    assert mailroom.told() == [*WHOLE_STORY, "job_run.accepted", "job_run.started", "job_run.succeeded"]
    last = mailroom.events()[-1]
    assert last.data.nothing_to_do is True  # type: ignore[attr-defined]


def test_a_table_without_a_delta_has_nothing_to_do(house: House, mailroom: Mailroom) -> None:
    house.lake.create_table(TABLE)
    mailroom.send(instruction())

    house.dispatch()

    assert mailroom.told() == ["job_run.accepted", "job_run.started", "job_run.succeeded"]
    assert mailroom.dead_letters() == []
