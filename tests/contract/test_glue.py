"""The guarantees of every `GlueService`: in memory, and boto3's on moto's server.

moto takes an update that names a version which is not the newest one. So the lock is tested on the one in memory, and
the answer that Glue's real lock gives (`ConcurrentModificationException`) with boto3's own model of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import boto3
import pytest
from botocore.stub import Stubber

from compactor.model.clock import SystemClock
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from compactor.publishing.aws.glue import BotoGlue
from compactor.publishing.glue import GlueService, GlueTable
from dispatcher.demo.stand_ins import queue_server
from tests.fakes.memory_glue import MemoryGlue
from tests.servers import REGION, aws_environment

TABLE = GlueTable("acme_orders_v1", "s3://lake/tables/X/iceberg", {"table_type": "ICEBERG", "metadata_location": "v1"})


@dataclass
class Catalog:
    service: GlueService
    database: str


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with aws_environment(), queue_server() as url:
        yield url


@pytest.fixture(params=["memory", pytest.param("moto", marks=pytest.mark.servers)])
def catalog(request: pytest.FixtureRequest) -> Catalog:
    database = f"d{SystemClock().new_id()}"
    if request.param == "memory":
        return Catalog(MemoryGlue({database}), database)
    url = request.getfixturevalue("endpoint")
    boto3.client("glue", endpoint_url=url, region_name=REGION).create_database(DatabaseInput={"Name": database})
    return Catalog(BotoGlue.open(REGION, url), database)


def read(catalog: Catalog) -> GlueTable:
    found = catalog.service.table(catalog.database, TABLE.name)
    assert found is not None
    return found


def test_a_table_that_nobody_has_created_is_not_there(catalog: Catalog) -> None:
    assert catalog.service.table(catalog.database, TABLE.name) is None


def test_a_table_is_read_as_it_was_created(catalog: Catalog) -> None:
    assert catalog.service.create(catalog.database, TABLE)
    found = read(catalog)
    assert (found.name, found.location, dict(found.parameters)) == (TABLE.name, TABLE.location, dict(TABLE.parameters))
    assert found.version_id


def test_a_second_creation_changes_nothing_and_says_so(catalog: Catalog) -> None:
    assert catalog.service.create(catalog.database, TABLE)
    assert not catalog.service.create(catalog.database, replace(TABLE, location="s3://other"))
    assert read(catalog).location == TABLE.location


def test_an_update_replaces_the_table_and_its_version(catalog: Catalog) -> None:
    catalog.service.create(catalog.database, TABLE)
    before = read(catalog)
    changed = replace(before, parameters={**before.parameters, "metadata_location": "v2"})
    assert catalog.service.update(catalog.database, changed)
    after = read(catalog)
    assert dict(after.parameters) == {"table_type": "ICEBERG", "metadata_location": "v2"}
    assert (after.location, after.version_id != before.version_id) == (before.location, True)


def test_an_update_of_a_table_that_is_gone_says_so(catalog: Catalog) -> None:
    assert not catalog.service.update(catalog.database, replace(TABLE, version_id="0"))


def test_a_database_that_is_not_there_is_invalid_to_a_creation_and_has_no_tables(catalog: Catalog) -> None:
    assert catalog.service.table("nowhere", TABLE.name) is None
    with pytest.raises(Invalid, match=r"nowhere\.acme_orders_v1 cannot be created: .*not found"):
        catalog.service.create("nowhere", TABLE)


def test_an_update_by_an_earlier_version_changes_nothing_and_says_so() -> None:
    catalog = Catalog(MemoryGlue({"d"}), "d")
    catalog.service.create("d", TABLE)
    before = read(catalog)
    assert catalog.service.update("d", replace(before, location="s3://first"))
    assert not catalog.service.update("d", replace(before, location="s3://second"))
    assert read(catalog).location == "s3://first"


@pytest.mark.servers
def test_an_update_over_boto3_leaves_what_others_have_written_beside_it(endpoint: str) -> None:
    client = boto3.client("glue", endpoint_url=endpoint, region_name=REGION)
    database = f"d{SystemClock().new_id()}"
    client.create_database(DatabaseInput={"Name": database})
    catalog = Catalog(BotoGlue.open(REGION, endpoint), database)
    catalog.service.create(database, TABLE)
    ours = client.get_table(DatabaseName=database, Name=TABLE.name)["Table"]
    described = {
        "Name": TABLE.name,
        "Description": "orders, for finance",
        "Owner": "finance",
        "StorageDescriptor": ours["StorageDescriptor"],
        "Parameters": {**ours["Parameters"], "theirs": "kept"},
    }
    client.update_table(DatabaseName=database, TableInput=described)
    found = read(catalog)
    assert catalog.service.update(database, replace(found, parameters={**found.parameters, "metadata_location": "v2"}))
    after = client.get_table(DatabaseName=database, Name=TABLE.name)["Table"]
    assert (after["Description"], after["Owner"]) == ("orders, for finance", "finance")
    assert (after["Parameters"]["theirs"], after["Parameters"]["metadata_location"]) == ("kept", "v2")
    assert after["StorageDescriptor"]["SerdeInfo"]["Parameters"]["path"] == TABLE.location


@pytest.mark.servers
def test_moto_takes_an_update_by_an_earlier_version_so_the_lock_is_not_tested_on_it(endpoint: str) -> None:
    database = f"d{SystemClock().new_id()}"
    boto3.client("glue", endpoint_url=endpoint, region_name=REGION).create_database(DatabaseInput={"Name": database})
    catalog = Catalog(BotoGlue.open(REGION, endpoint), database)
    catalog.service.create(database, TABLE)
    before = read(catalog)
    assert catalog.service.update(database, before)
    assert catalog.service.update(database, before), "moto has a lock now: move the test of the lock to the suite"


UPDATE = {
    "DatabaseName": "d",
    "TableInput": {
        "TableType": "EXTERNAL_TABLE",
        "StorageDescriptor": {
            "Location": TABLE.location,
            "Columns": [],
            "SerdeInfo": {"Parameters": {"path": TABLE.location}},
        },
        "Name": TABLE.name,
        "Parameters": dict(TABLE.parameters),
    },
    "VersionId": "7",
    "SkipArchive": True,
}


def test_an_update_names_the_version_that_was_read_and_keeps_no_earlier_ones() -> None:
    client = boto3.client("glue", region_name=REGION, aws_access_key_id="a", aws_secret_access_key="b")
    with Stubber(client) as stub:
        stub.add_response("update_table", {}, UPDATE)
        assert BotoGlue(client).update("d", replace(TABLE, version_id="7"))
        stub.assert_no_pending_responses()


def test_what_glue_answers_to_an_earlier_version_is_no_failure() -> None:
    client = boto3.client("glue", region_name=REGION, aws_access_key_id="a", aws_secret_access_key="b")
    with Stubber(client) as stub:
        stub.add_client_error("update_table", "ConcurrentModificationException", http_status_code=400)
        assert not BotoGlue(client).update("d", replace(TABLE, version_id="7"))


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AccessDeniedException", 400, Denied),
        ("InternalServiceException", 500, Unavailable),
        ("OperationTimeoutException", 400, Unavailable),
        ("ResourceNotReadyException", 400, Unavailable),
        ("ThrottlingException", 400, Unavailable),
        ("InvalidInputException", 400, Invalid),
    ],
)
def test_errors_of_glue_are_told_by_kind(code: str, status: int, kind: type[LithifyError]) -> None:
    client = boto3.client("glue", region_name=REGION, aws_access_key_id="a", aws_secret_access_key="b")
    with Stubber(client) as stub:
        for request in ("get_table", "create_table", "update_table"):
            stub.add_client_error(request, code, "because", status)
        service = BotoGlue(client)
        for call in (
            lambda: service.table("d", "t"),
            lambda: service.create("d", TABLE),
            lambda: service.update("d", replace(TABLE, version_id="1")),
        ):
            with pytest.raises(kind, match=r"Glue table .* because"):
                call()
