"""A dispatcher leads AWS Glue to the tables that it publishes, after everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.errors import Denied, Unavailable
from compactor.publishing.aws.glue import BotoGlue
from compactor.publishing.glue import GlueTable
from dispatcher.demo.stand_ins import queue_server
from dispatcher.intake.admission import Admission
from dispatcher.records.job_run_log import JobRunStatus
from tests.conftest import Command
from tests.fakes.dispatch_desk import TABLE, Desk
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_glue import MemoryGlue
from tests.servers import REGION, aws_environment

pytestmark = pytest.mark.servers

DATABASE, NAME = "lakehouse", "acme_orders_v1"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with aws_environment(), queue_server() as url:
        yield url


@pytest.fixture
def desk(tmp_path: Path, endpoint: str) -> Iterator[Desk]:
    """A dispatcher whose lake is on S3."""
    bucket = f"b{SystemClock().new_id()}"
    boto3.client("s3", endpoint_url=endpoint, region_name=REGION).create_bucket(Bucket=bucket)
    lake = DeltaCatalog.open(f"s3://{bucket}/lake", endpoint_url=endpoint, region=REGION)
    desk = Desk(
        tmp_path,
        clock=ManualClock(),
        glue=MemoryGlue({DATABASE}),
        admission=Admission(own_lake=lake.location),
        open_lake=lambda _: lake,
    )
    desk.lake = lake
    lake.create_table(TABLE, properties={"publish": "delta,iceberg", "glue_database": DATABASE})
    yield desk
    desk.close()


def compact(desk: Desk, *ids: int) -> str:
    desk.append([{"id": number} for number in ids])
    job_run_id = desk.accept()
    desk.run()
    assert desk.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    return job_run_id


def events(desk: Desk, what: str) -> list[dict[str, object]]:
    desk.publisher.publish_round()
    return [event.data.model_dump() for event in desk.sink.events if event.type == f"lithify.table.{what}.v1"]


def led_to(glue: MemoryGlue) -> str:
    return glue.tables[DATABASE, NAME].parameters["metadata_location"].rsplit("/", 1)[1]


def test_each_published_round_moves_the_table_and_registers_no_partition(desk: Desk) -> None:
    for round_number in (1, 2, 3):
        compact(desk, round_number)
        desk.tables.publish_round()
        assert led_to(desk.glue) == f"v{round_number}.metadata.json"
    assert set(desk.glue.tables) == {(DATABASE, NAME), (DATABASE, f"{NAME}_delta")}
    assert (desk.glue.requests.count("create"), desk.glue.requests.count("update")) == (2, 2)
    assert events(desk, "publish_failed") == []


@pytest.mark.parametrize("error", [Denied("no right to glue:UpdateTable"), Unavailable("no answer")])
def test_a_failure_is_told_and_the_table_moved_later_though_nothing_else_is_due(
    desk: Desk, error: Denied | Unavailable
) -> None:
    desk.glue.fail(error)
    compact(desk, 1)
    desk.tables.publish_round()
    assert [each["format"] for each in events(desk, "published")] == ["delta", "iceberg"]
    failed = events(desk, "publish_failed")
    assert [each["format"] for each in failed] == ["delta", "iceberg"]
    assert str(error) in str(failed[0]["reasons"])
    requests = len(desk.glue.requests)
    desk.tables.publish_round()
    assert len(desk.glue.requests) == requests, "the table is left alone for a while"
    desk.glue.heal()
    desk.move_on(10)
    desk.tables.publish_round()
    assert led_to(desk.glue) == "v1.metadata.json"
    assert len(events(desk, "published")) == 2, "nothing was published again"


def test_what_a_dispatcher_has_left_is_repaired_by_the_one_that_takes_over_though_nothing_is_due(desk: Desk) -> None:
    compact(desk, 1)
    desk.tables.publish_round()
    found = desk.glue.tables[DATABASE, NAME]
    desk.glue.fail(Unavailable("no answer"))
    job_run_id = compact(desk, 2)
    desk.tables.publish_round()  # and is gone before it has tried again
    assert desk.glue.tables[DATABASE, NAME] == found
    desk.glue.heal()
    second = desk.second()
    second.tables.follow(job_run_id, desk.job_run(job_run_id))
    second.tables.publish_round()
    assert led_to(desk.glue) == "v2.metadata.json"
    second.close()


def test_the_table_of_somebody_else_is_told_by_an_event_and_the_other_format_is_entered(desk: Desk) -> None:
    desk.glue.tables[DATABASE, NAME] = GlueTable(NAME, "s3://theirs", {"table_type": "ICEBERG"}, "0")
    compact(desk, 1)
    desk.tables.publish_round()
    (failed,) = events(desk, "publish_failed")
    assert failed["format"] == "iceberg"
    assert "lakehouse.acme_orders_v1 is another one (iceberg, at s3://theirs)" in str(failed["reasons"])
    assert desk.glue.tables[DATABASE, NAME].location == "s3://theirs"
    assert (DATABASE, f"{NAME}_delta") in desk.glue.tables


def test_a_table_without_a_database_asks_glue_for_nothing(desk: Desk) -> None:
    desk.lake.table(TABLE).set_properties({"glue_database": None})
    compact(desk, 1)
    desk.tables.publish_round()
    assert desk.glue.requests == []


def test_pyiceberg_reads_through_glue_what_a_scan_reads(desk: Desk, endpoint: str) -> None:
    from pyiceberg.catalog.glue import GlueCatalog

    database = f"d{SystemClock().new_id()}"
    boto3.client("glue", endpoint_url=endpoint, region_name=REGION).create_database(DatabaseInput={"Name": database})
    desk.lake.table(TABLE).set_properties({"glue_database": database})
    on_moto = BotoGlue.open(REGION, endpoint)
    own = replace(desk, owner="second")
    own.lake = desk.lake
    own.glue = on_moto  # type: ignore[assignment]
    catalog = GlueCatalog("glue", **{"glue.endpoint": endpoint, "glue.region": REGION, "s3.endpoint": endpoint})
    for ids in ((1, 2), (2, 3)):
        compact(own, *ids)
        own.tables.publish_round()
        expected = sorted(desk.lake.table(TABLE).scan().to_table().column("id").to_pylist())
        read = catalog.load_table((database, NAME)).scan().to_arrow()
        assert sorted(read.column("id").to_pylist()) == expected
    assert expected == [1, 2, 3]
    own.close()


def test_publish_on_the_command_line_moves_the_table_too(desk: Desk, endpoint: str, command: Command) -> None:
    database = f"d{SystemClock().new_id()}"
    boto3.client("glue", endpoint_url=endpoint, region_name=REGION).create_database(DatabaseInput={"Name": database})
    desk.lake.table(TABLE).set_properties({"glue_database": f"{database}_"})
    compact(desk, 1)
    where = ("--lake", desk.lake.location.root_uri, "--s3-endpoint-url", endpoint, "--region", REGION)
    refused = command("publish", TABLE, *where, "--endpoint-url", endpoint)
    assert refused.exit_code != 0
    assert f"Database {database}_ not found" in " ".join(refused.out.split())
    desk.lake.table(TABLE).set_properties({"glue_database": database})
    published = command("publish", TABLE, *where, "--endpoint-url", endpoint)
    assert published.exit_code == 0, published.err
    found = BotoGlue.open(REGION, endpoint).table(database, NAME)
    assert found is not None
    assert found.parameters["metadata_location"].endswith("/v1.metadata.json")
