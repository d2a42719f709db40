"""From a message on a queue to compacted rows and events: the whole dispatcher against moto's SQS and SNS."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import boto3
import pyarrow as pa
import pytest

from dispatcher.intake.intake import Repeated
from dispatcher.operations.health import HEALTH_FILE, read_health
from dispatcher.records.job_run_log import JobRunStatus
from launcher.verdict import WatchTimers
from tests.conftest import Command
from tests.e2e.conftest import House, Mailroom
from tests.fakes.dispatch_desk import QUICK, TABLE, instruction
from tests.fakes.small_cluster import Hangs
from tests.proxy import FAIR, Weather, proxy_before
from tests.servers import REGION
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

EVENTS_OF_SESSIONS = ("session.started", "session.round_completed", "session.succeeded")
ALL_EVENTS = [
    "job_run.accepted",
    "job_run.started",
    "session.planned",
    "session.launched",
    "session.started",
    "session.round_completed",
    "session.succeeded",
    "job_run.succeeded",
]


def by_log(event_types: list[str]) -> tuple[list[str], list[str]]:
    """What job runs' own logs told, and what sessions' logs told: `sequence` promises no order between the two."""
    of_sessions = [name for name in event_types if name in EVENTS_OF_SESSIONS]
    return [name for name in event_types if name not in EVENTS_OF_SESSIONS], of_sessions


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
    assert by_log(mailroom.event_types()) == by_log(ALL_EVENTS)
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


POISON = (
    instruction(job_run_id="\u8a9e" * 110),
    instruction(delta_catalog="s3://lake/a\0b"),
    instruction(delta_catalog="file:///etc"),
    instruction(sns_event_topic_arn="arn:aws:sns:-:123456789012:a"),
    instruction(partitions=[{"day\0": "\0"}]),
    instruction(primary_keys=["\0"], job_run_id="..", priority=2**31),
    instruction(**{f"field{number}": number for number in range(10_000)}),
    "[" * 50_000,
    '{"primary_keys": ["\\ud800"]}',
)


def test_no_message_ends_a_dispatcher_nor_keeps_it_from_the_next(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}])
    for body in POISON:
        mailroom.send(body)
    message_id = mailroom.send(instruction())

    house.dispatch()

    assert house.job_run(message_id).status is JobRunStatus.SUCCEEDED
    assert mailroom.waiting() == 0
    dead = mailroom.dead_letters()
    assert len(dead) == len(POISON)
    assert all(reasons for _, reasons in dead)
    assert mailroom.event_types().count("job_run.rejected") == len(POISON)
    assert house.records.open_job_run_ids() == []


def test_a_fifo_queue_is_as_good_as_any(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}])
    fifo = house.mailroom = mailroom.with_fifo_queues()
    good, wrong = fifo.send(instruction()), fifo.send("{")

    house.dispatch()

    assert house.job_run(good).status is JobRunStatus.SUCCEEDED
    assert house.job_run(wrong).status is JobRunStatus.REJECTED
    assert fifo.waiting() == 0
    assert len(fifo.dead_letters()) == 1


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
    assert by_log(mailroom.event_types()) == by_log(ALL_EVENTS)


def test_a_cleaning_run_takes_the_dead_rows_out_of_the_files(house: House, mailroom: Mailroom, tmp_path: Path) -> None:
    house.append([{"id": number, "v": "a"} for number in range(8)])
    house.append([{"id": 3}, {"id": 5}], operation="delete")
    house.launcher = replace(QUICK, timers=WatchTimers())
    mailroom.send(instruction(max_dead_row_share=0.5, max_rows_per_round=8))
    house.dispatch()
    assert [row["id"] for row in house.rows()] == list(range(8)), "the files keep their dead rows, and a vector says so"
    cleaning = instruction(job_run_id="clean", max_dead_row_share=0)
    (tmp_path / "cleaning.json").write_text(json.dumps(cleaning))
    planned = house.lithify("plan", str(tmp_path / "cleaning.json"), "--lake", house.lake.location.root_uri)
    assert "no delta is pending: 1 compacted file with 2 dead rows are rewritten" in planned.out
    mailroom.send(cleaning)

    house.dispatch()

    assert house.job_run("clean").status is JobRunStatus.SUCCEEDED
    assert by_log(mailroom.event_types()[-len(ALL_EVENTS) :]) == by_log(ALL_EVENTS)
    assert [row["id"] for row in house.rows()] == [0, 1, 2, 4, 6, 7]
    planned = house.lithify("plan", str(tmp_path / "cleaning.json"), "--lake", house.lake.location.root_uri)
    assert "nothing to do: no delta is pending" in planned.out


def test_events_that_a_deleted_topic_refused_are_published_by_events_publish_once_it_exists_again(
    house: House, mailroom: Mailroom, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    name = mailroom.topic_arn.rsplit(":", 1)[1]
    sns = boto3.client("sns", endpoint_url=mailroom.endpoint_url, region_name=REGION)
    sns.delete_topic(TopicArn=mailroom.topic_arn)
    house.append([{"id": 1}])
    mailroom.send(instruction(job_run_id="nightly"))
    house.dispatch()
    assert house.job_run("nightly").status is JobRunStatus.SUCCEEDED
    publish = (
        *("events", "publish", "--state", str(house.folder / "state"), "--topic-arn", mailroom.topic_arn),
        *("--endpoint-url", mailroom.endpoint_url, "--output", "json"),
    )

    capsys.readouterr()  # the dispatcher's own log
    refused = command(*publish)
    assert refused.exit_code == 1, refused.err
    (pending,) = json.loads(refused.out)["job_runs"]
    assert (pending["job_run_id"], pending["told"]) == ("nightly", False)
    assert "takes no events" in pending["reason"]

    sns.create_topic(Name=name)
    queue_arn = Mailroom.arn_of(mailroom.events_queue_url, mailroom.endpoint_url)
    raw = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=mailroom.topic_arn, Protocol="sqs", Endpoint=queue_arn, Attributes=raw)
    mended = command(*publish)
    assert mended.exit_code == 0, mended.err
    assert sorted(mailroom.event_types()) == sorted(ALL_EVENTS)
    assert json.loads(command(*publish).out)["job_runs"] == []


CODES = ("ExpiredToken", "AccessDenied", "RequestExpired", "SignatureDoesNotMatch")


def test_a_queue_and_a_topic_that_deny_access_for_a_while_cost_nothing(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}])
    mailroom.send(instruction(job_run_id="nightly"))
    with proxy_before(mailroom.endpoint_url) as proxy:
        house.mailroom = replace(mailroom, endpoint_url=proxy.url)
        proxy.set_weather(Weather(harm="error", status=403, code=CODES[0]), "sns")
        run, stops = house.dispatcher(until_idle=False), threading.Event()
        dispatching = threading.Thread(target=run, args=(stops,))
        dispatching.start()
        for code in CODES:
            proxy.set_weather(Weather(harm="error", status=403, code=code), "sqs")
            before = proxy.harmed["sqs", "ReceiveMessage"]
            wait_until(lambda before=before: proxy.harmed["sqs", "ReceiveMessage"] > before + 1)  # type: ignore[misc]
        proxy.set_weather(FAIR, "sqs")
        wait_until(lambda: house.job_run("nightly").status is JobRunStatus.SUCCEEDED)
        for code in CODES:
            proxy.set_weather(Weather(harm="error", status=403, code=code), "sns")
            before = proxy.harmed["sns", "PublishBatch"]
            wait_until(lambda before=before: proxy.harmed["sns", "PublishBatch"] > before)  # type: ignore[misc]
        assert house.records.open_job_run_ids() == ["nightly"]
        proxy.set_weather(FAIR, "sns")
        wait_until(lambda: house.records.open_job_run_ids() == [])
        stops.set()
        dispatching.join()
    assert mailroom.dead_letters() == []
    assert sorted(mailroom.event_types()) == sorted(ALL_EVENTS)


def test_a_dispatcher_that_starts_while_its_queue_denies_access_or_does_not_answer_begins_once_it_does(
    house: House, mailroom: Mailroom
) -> None:
    faults = (Weather(harm="error", status=403, code="AccessDenied"), Weather(harm="error", status=503))
    kinds = ("Denied", "Unavailable")
    with proxy_before(mailroom.endpoint_url) as proxy:
        proxy.set_weather(faults[0], "sqs")
        process = house.start("--until-idle", "--endpoint-url", proxy.url)
        for fault, kind in zip(faults, kinds, strict=True):
            proxy.set_weather(fault, "sqs")
            wait_until(lambda kind=kind: kind in _queue_errors(house))  # type: ignore[misc]
        assert process.poll() is None
        proxy.set_weather(FAIR, "sqs")
        assert process.wait(60) == 0, house.log()
    assert '"queue_not_reached"' in house.log()
    assert _queue_errors(house) == []


def _queue_errors(house: House) -> list[str]:
    report = house.folder / "work" / HEALTH_FILE
    if not report.exists():
        return []
    return [found.error_kind for found in read_health(report).troubles if found.place == "queue"]


def test_a_dispatcher_whose_queue_does_not_exist_ends(house: House, mailroom: Mailroom) -> None:
    ended = house.lithify("dispatch", "--queue-url", f"{mailroom.queue_url}-gone", *house.options())
    assert (ended.exit_code, ended.out) == (2, "")
    assert "cannot be used" in ended.err
    assert "Traceback" not in ended.err


def test_until_idle_waits_for_a_message_that_was_put_back(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1}])
    mailroom.send(instruction(job_run_id="nightly"))
    (held,) = mailroom.queue().receive(1, 0, 30)  # as put back: on the queue, and nobody can receive it
    run, stops = house.dispatcher(until_idle=True), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        left = threads.submit(run, stops)
        with pytest.raises(TimeoutError):
            left.result(1.0)
        mailroom.queue().set_visibility(held, 0)
        assert left.result(60) == ()
    assert house.job_run("nightly").status is JobRunStatus.SUCCEEDED


def test_until_idle_that_is_stopped_too_early_says_what_is_left(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1}])
    mailroom.send(instruction(job_run_id="nightly"))
    house.cluster.behaves = lambda job: Hangs()
    run, stops = house.dispatcher(until_idle=True, drain_seconds=0.0), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        left = threads.submit(run, stops)
        wait_until(lambda: house.cluster.running == 1)
        stops.set()
        assert left.result(60) == ("it was stopped before everything was done: the next dispatcher goes on",)


def test_places_that_cannot_be_used_are_refused_at_the_start(
    house: House, mailroom: Mailroom, command: Command
) -> None:
    (house.folder / "file").write_text("no folder")
    options = dict(zip(house.options()[::2], house.options()[1::2], strict=True))
    for option, place, reason in (
        ("--work-folder", str(house.folder / "file" / "work"), "--work-folder"),
        ("--state", str(house.folder / "file"), "file"),
        ("--topic-arn", f"{mailroom.topic_arn}-gone", "cannot be used"),
        ("--topic-arn", "events", "is no SNS topic"),
    ):
        given = [word for pair in {**options, option: place}.items() for word in pair]
        refused = command("dispatch", "--queue-url", mailroom.queue_url, "--until-idle", *given)
        assert refused.exit_code in {1, 2}, refused.err
        sentences = refused.err.splitlines()  # a work folder that cannot be written to has no place for a Java either
        assert reason in sentences[0]
        assert all(sentence.startswith("lithify: ") for sentence in sentences)
