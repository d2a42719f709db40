"""The Iceberg REST catalog: each answer obeys the specification, and PyIceberg's own models read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel
from pyiceberg.catalog.rest import (
    ConfigResponse,
    ListNamespaceResponse,
    ListTablesResponse,
    NamespaceResponse,
    TableResponse,
)
from pyiceberg.catalog.rest.response import ErrorResponse

from compactor.catalog.keys import TableFolder
from compactor.model.errors import Denied
from compactor.publishing.keys import IcebergFolder, IcebergMetadata
from compactor.publishing.published_lake import PublishedLake
from compactor.storage.location import StoreLocation
from dispatcher.web.iceberg_rest import ENDPOINTS, Answer, IcebergRestCatalog, Request
from tests.published_tables import PublishedTables

ORDERS, CARS = "ACME.ORDERS.V1", "ACME.CARS.V2"
LAKE = "s3://bucket/lake"

TEXT: Mapping[str, object] = {"type": "string"}
TEXTS: Mapping[str, object] = {"type": "object", "additionalProperties": TEXT}
LEVELS: Mapping[str, object] = {"type": "array", "items": TEXT, "minItems": 1}
TOKEN: Mapping[str, object] = {"type": ["string", "null"]}


def an_object(**members: Mapping[str, object]) -> Mapping[str, object]:
    """Of exactly these members; `_` stands for `-`, and a `_` at the end for one that may be missing."""
    named = {name.strip("_").replace("_", "-"): schema for name, schema in members.items()}
    required = [name.replace("_", "-") for name in members if not name.endswith("_")]
    return {"type": "object", "properties": named, "required": required, "additionalProperties": False}


IDENTIFIER = an_object(namespace=LEVELS, name=TEXT)
CONFIG = an_object(defaults=TEXTS, overrides=TEXTS, endpoints={"type": "array", "items": TEXT, "minItems": 1})
NAMESPACES = an_object(namespaces={"type": "array", "items": LEVELS}, next_page_token_=TOKEN)
NAMESPACE = an_object(namespace=LEVELS, properties=TEXTS)
TABLES = an_object(identifiers={"type": "array", "items": IDENTIFIER}, next_page_token_=TOKEN)
TABLE = an_object(metadata_location=TEXT, metadata={"type": "object", "required": ["format-version"]}, config=TEXTS)
ERROR = an_object(error=an_object(message=TEXT, type=TEXT, code={"type": "integer", "minimum": 400, "maximum": 599}))
"""The specification's schemas, of what this catalog serves, and no more than it allows."""


class Served:
    """A catalog over a lake in memory, whose answers are all checked."""

    def __init__(self, place: StoreLocation | str = LAKE) -> None:
        self.world = PublishedTables(place)
        self.catalog = IcebergRestCatalog(PublishedLake(self.world.store, self.world.clock))

    def ask(self, path: str, method: str = "GET", if_none_match: str | None = None, **query: str) -> Answer:
        answer = self.catalog.answer(Request(method, path, query, if_none_match))
        if answer.body is not None:
            assert answer.headers["Content-Type"] == "application/json"
        if answer.status >= 400 and method != "HEAD":
            error = self._valid(answer, ERROR, ErrorResponse)["error"]
            assert isinstance(error, dict)
            assert error["code"] == answer.status
        return answer

    def get(self, path: str, schema: Mapping[str, object], model: type[BaseModel], **query: str) -> dict[str, object]:
        answer = self.ask(path, **query)
        assert answer.status == 200, answer.body
        return self._valid(answer, schema, model)

    def _valid(self, answer: Answer, schema: Mapping[str, object], model: type[BaseModel]) -> dict[str, object]:
        assert answer.body is not None
        content = json.loads(answer.body)
        Draft202012Validator(schema).validate(content)
        model.model_validate(content)
        assert isinstance(content, dict)
        return content

    def error(self, path: str, method: str = "GET", **query: str) -> tuple[int, str, str]:
        """Status, type and message."""
        answer = self.ask(path, method, **query)
        assert answer.body is not None
        error = json.loads(answer.body)["error"]
        return answer.status, error["type"], error["message"]

    def config(self, **query: str) -> dict[str, object]:
        return self.get("/v1/config", CONFIG, ConfigResponse, **query)

    def namespaces(self, root: str = "/v1", **query: str) -> dict[str, object]:
        return self.get(f"{root}/namespaces", NAMESPACES, ListNamespaceResponse, **query)

    def tables(self, namespace: str = "lake", root: str = "/v1", **query: str) -> dict[str, object]:
        return self.get(f"{root}/namespaces/{namespace}/tables", TABLES, ListTablesResponse, **query)

    def table(self, name: str = "acme_orders_v1", namespace: str = "lake", **query: str) -> dict[str, object]:
        return self.get(f"/v1/namespaces/{namespace}/tables/{name}", TABLE, TableResponse, **query)


@pytest.fixture
def served() -> Served:
    served = Served()
    served.world.published(ORDERS)
    return served


def test_the_configuration_lists_endpoints_that_read_and_none_that_writes(served: Served) -> None:
    assert served.config() == {"defaults": {}, "overrides": {}, "endpoints": list(ENDPOINTS)}
    assert all(each.startswith(("GET ", "HEAD ")) for each in ENDPOINTS)


def test_every_listed_endpoint_is_served(served: Served) -> None:
    for endpoint in ENDPOINTS:
        method, path = endpoint.split()
        for prefix in ("", "lake-lake/"):
            asked = path.replace("{prefix}/", prefix).format(namespace="lake", table="acme_orders_v1")
            assert served.ask(asked, method).status == (204 if method == "HEAD" else 200), (method, asked)


def test_a_table_is_listed_below_its_namespace_alone(served: Served) -> None:
    served.world.published(CARS, glue_database="lakehouse")
    assert served.namespaces() == {"namespaces": [["lake"], ["lakehouse"]]}
    assert served.tables() == {"identifiers": [{"namespace": ["lake"], "name": "acme_orders_v1"}]}
    assert served.tables("lakehouse") == {"identifiers": [{"namespace": ["lakehouse"], "name": "acme_cars_v2"}]}
    namespace = served.get("/v1/namespaces/lakehouse", NAMESPACE, NamespaceResponse)
    assert namespace == {"namespace": ["lakehouse"], "properties": {}}


def test_there_are_no_namespaces_below_another_one(served: Served) -> None:
    assert served.namespaces(parent="lake") == {"namespaces": []}
    assert served.namespaces(parent="") == served.namespaces()
    assert served.error("/v1/namespaces", parent="x")[:2] == (404, "NoSuchNamespaceException")
    assert served.error("/v1/namespaces", parent="lake\x1fx")[:2] == (404, "NoSuchNamespaceException")


def test_a_load_has_the_newest_metadata_as_they_are_in_the_lake(served: Served) -> None:
    for version in (1, 2, 3):
        loaded = served.table()
        key = IcebergMetadata(ORDERS, version).key
        body = served.world.store.read(key)
        assert body is not None
        assert loaded == {"metadata-location": f"{LAKE}/{key}", "metadata": json.loads(body), "config": {}}
        served.world.commit(ORDERS)


def test_a_load_without_history_has_the_snapshots_that_are_named(served: Served) -> None:
    served.world.commit(ORDERS)
    whole, named = served.table()["metadata"], served.table(snapshots="refs")["metadata"]
    assert isinstance(whole, dict)
    assert isinstance(named, dict)
    assert len(whole["snapshots"]) == 2
    assert named == {**whole, "snapshots": [whole["snapshots"][-1]]}
    assert served.table(snapshots="all")["metadata"] == whole
    path = "/v1/namespaces/lake/tables/acme_orders_v1"
    assert served.error(path, snapshots="some") == (
        400,
        "BadRequestException",
        "snapshots is 'some': write all or refs",
    )


def test_a_load_that_has_nothing_new_has_no_body(served: Served) -> None:
    path = "/v1/namespaces/lake/tables/acme_orders_v1"
    etag = served.ask(path).headers["ETag"]
    assert etag.startswith('"')
    assert etag.endswith('"')
    for given in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        assert served.ask(path, if_none_match=given) == Answer(304, None, {"ETag": etag})
    assert served.ask(path, if_none_match='"x"').status == 200
    assert served.ask(path, if_none_match=etag, snapshots="refs").status == 200
    served.world.commit(ORDERS)
    changed = served.ask(path, if_none_match=etag)
    assert (changed.status, changed.headers["ETag"] == etag) == (200, False)


def test_what_is_not_there_is_404_with_its_type(served: Served) -> None:
    served.world.create(CARS, publish=None)
    for name in ("acme_cars_v2", "ACME_ORDERS_V1", "acme_orders_v1.files", "x%2Fy", "%00", "%F0%9F%90%98"):
        status, kind, message = served.error(f"/v1/namespaces/lake/tables/{name}")
        assert (status, kind) == (404, "NoSuchTableException")
        assert "publish=iceberg" in message
    for namespace in ("other", "lake%1Facme_orders_v1", "%20"):
        missing = served.error(f"/v1/namespaces/{namespace}/tables/files")
        assert missing[:2] == (404, "NoSuchTableException"), "Java goes on and looks for metadata of a table"
        for rest in ("", "/tables", "/views", "/views/x"):
            assert served.error(f"/v1/namespaces/{namespace}{rest}")[:2] == (404, "NoSuchNamespaceException")
    assert served.error("/v1/namespaces/lake/views/v")[:2] == (404, "NoSuchViewException")
    assert served.ask("/v1/namespaces/lake/views").body == b'{"identifiers":[]}'


def test_an_unknown_route_is_404_and_not_a_missing_table(served: Served) -> None:
    for path in (
        *(
            "/",
            "/v1",
            "/v2/config",
            "/v1/config/x",
            "/v1/x/namespaces",
            "/v1/lake-x/namespaces",
            "/v1/lake-lake/config",
        ),
        *("/v1/namespaces/lake/tables/acme_orders_v1/credentials", "/v1/namespaces/lake/functions"),
    ):
        assert served.error(path)[:2] == (404, "NotFoundException"), path


def test_a_head_says_whether_something_is_there_without_a_body(served: Served) -> None:
    for path, status in {
        "/v1/namespaces/lake": 204,
        "/v1/namespaces/lake/tables/acme_orders_v1": 204,
        "/v1/namespaces/other": 404,
        "/v1/namespaces/lake/tables/other": 404,
        "/v1/namespaces/other/tables/acme_orders_v1": 404,
    }.items():
        answer = served.ask(path, "HEAD")
        assert (answer.status, answer.body) == (status, None), path


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/namespaces"),
        ("DELETE", "/v1/namespaces/lake"),
        ("POST", "/v1/namespaces/lake/properties"),
        ("POST", "/v1/namespaces/lake/tables"),
        ("POST", "/v1/namespaces/lake/register"),
        ("POST", "/v1/namespaces/lake/tables/acme_orders_v1"),
        ("POST", "/v1/namespaces/lake/tables/acme_orders_v1/metrics"),
        ("DELETE", "/v1/lake-lake/namespaces/lake/tables/acme_orders_v1"),
        ("POST", "/v1/tables/rename"),
        ("POST", "/v1/transactions/commit"),
        ("PUT", "/v1/x"),
    ],
)
def test_a_write_is_forbidden_with_a_sentence_and_asks_the_store_nothing(
    served: Served, method: str, path: str
) -> None:
    served.world.requests()
    status, kind, message = served.error(path, method)
    assert (status, kind) == (403, "ForbiddenException")
    assert "written by Lithify alone" in message
    assert served.world.requests() == 0


def test_it_issues_no_tokens_and_has_no_other_methods(served: Served) -> None:
    status, kind, message = served.error("/v1/oauth/tokens", "POST")
    assert (status, kind) == (404, "NotFoundException")
    assert "without authorization" in message
    assert served.error("/v1/config", "OPTIONS")[:2] == (405, "UnsupportedOperationException")


def pages(served: Served, size: int, member: str, **query: str) -> Iterator[list[object]]:
    token: object = ""
    while token is not None:
        assert isinstance(token, str)
        answer = served.tables(pageToken=token, pageSize=str(size))
        found = answer[member]
        assert isinstance(found, list)
        yield found
        token = answer["next-page-token"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100])
def test_pages_have_every_name_once_in_order(size: int) -> None:
    served = Served()
    for number in range(7):
        served.world.published(f"ACME.T{number}.V1")
    whole = served.tables()["identifiers"]
    assert isinstance(whole, list)
    found = list(pages(served, size, "identifiers"))
    assert [name for page in found for name in page] == whole
    assert all(len(page) == size for page, _ in pairwise(found))
    assert served.tables(pageSize="2")["identifiers"] == whole, "paging begins with a token, an empty one"
    assert served.namespaces(pageToken="", pageSize="1") == {"namespaces": [["lake"]], "next-page-token": None}


def test_a_table_that_comes_or_goes_between_two_pages_moves_no_other(served: Served) -> None:
    served.world.published("ACME.A.V1")
    served.world.published("ACME.Z.V1")
    first = served.tables(pageToken="", pageSize="2")
    served.world.set("ACME.A.V1", publish=None)
    served.world.published("ACME.B.V1")
    served.world.clock.sleep(60)
    second = served.tables(pageToken=str(first["next-page-token"]), pageSize="2")
    assert [first["identifiers"], second["identifiers"]] == [
        [{"namespace": ["lake"], "name": name} for name in ("acme_a_v1", "acme_orders_v1")],
        [{"namespace": ["lake"], "name": "acme_z_v1"}],
    ]


def test_a_page_that_cannot_be_is_a_bad_request(served: Served) -> None:
    for query in ({"pageToken": "ä"}, {"pageToken": "!"}, {"pageToken": "_w=="}):
        assert served.error("/v1/namespaces", **query)[:2] == (400, "BadRequestException")
    for size in ("0", "-1", "x", "", "1.5", "²"):
        assert served.error("/v1/namespaces", pageToken="", pageSize=size)[:2] == (400, "BadRequestException")
    assert served.namespaces(pageToken="", pageSize="9" * 5_000)["namespaces"] == [["lake"]]


# ------------------------------------------------------------------------------------------------------- the lake


def test_clients_learn_where_the_files_are_and_get_no_credentials() -> None:
    region = {"client.region": "eu-west-1", "s3.region": "eu-west-1"}
    at_an_endpoint = {**region, "s3.endpoint": "http://127.0.0.1:9000", "s3.path-style-access": "true"}
    for endpoint_url, settings in (("http://127.0.0.1:9000", at_an_endpoint), (None, region)):
        served = Served(StoreLocation("s3://a/lake", endpoint_url, "eu-west-1"))
        served.world.published(ORDERS)
        assert served.table()["config"] == served.config()["defaults"] == settings
    assert Served("file:///data/lake").config()["defaults"] == {}


def test_a_warehouse_is_the_lake(served: Served) -> None:
    for warehouse in ("lake", LAKE, f"{LAKE}/"):
        assert served.config(warehouse=warehouse)["overrides"] == {"prefix": "lake-lake"}
    assert served.namespaces("/v1/lake-lake") == served.namespaces()
    assert served.error("/v1/lake-three/namespaces")[:2] == (404, "NotFoundException")
    status, kind, message = served.error("/v1/config", warehouse="three")
    assert (status, kind) == (404, "NoSuchWarehouseException")
    assert message.endswith("name that of this server: lake")
    assert served.config(warehouse="") == served.config()


def test_two_tables_of_one_name_are_refused_with_what_to_do() -> None:
    served = Served()
    served.world.published(CARS, glue_database="shared")
    served.world.published("Acme.cars.V2", glue_database="shared")
    assert served.tables("shared") == {"identifiers": [{"namespace": ["shared"], "name": "acme_cars_v2"}]}
    status, kind, message = served.error("/v1/namespaces/shared/tables/acme_cars_v2")
    assert (status, kind) == (400, "BadRequestException")
    assert "ACME.CARS.V2 and Acme.cars.V2: set the property glue_database" in message


def test_a_lake_without_rights_says_so(served: Served) -> None:
    served.world.store.fail("list_folders", times=None, error=Denied)
    served.world.store.fail("read", times=None, error=Denied)
    for path in ("/v1/namespaces", "/v1/namespaces/lake/tables/acme_orders_v1"):
        status, kind, message = served.error(path)
        assert (status, kind) == (403, "ForbiddenException")
        assert "as the test told it to" in message


# ------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    "path", ["/v1/namespaces", "/v1/namespaces/lake", "/v1/namespaces/lake/tables", "/v1/namespaces/lake/tables/x"]
)
def test_a_store_that_is_unavailable_is_503_and_never_404(path: str) -> None:
    served = Served()
    served.world.store.fail("list_folders", times=None)
    for method in ("GET", "HEAD"):
        answer = served.ask(path, method)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    served.world.store.heal()
    served.world.published(ORDERS)
    served.table()


@pytest.mark.parametrize("key", [TableFolder(ORDERS).definition_log, IcebergFolder(ORDERS).key])
def test_a_load_whose_objects_cannot_be_read_is_503_and_never_an_old_version(served: Served, key: str) -> None:
    served.table()
    served.world.store.fail("read", key, times=None)
    assert served.ask("/v1/namespaces/lake/tables/acme_orders_v1").status == 503
    served.world.store.heal()
    served.table()


def test_damaged_metadata_are_500_with_what_to_do(served: Served) -> None:
    served.world.store.overwrite(IcebergMetadata(ORDERS, 1).key, b"{")
    status, kind, message = served.error("/v1/namespaces/lake/tables/acme_orders_v1")
    assert (status, kind) == (500, "InternalServerError")
    assert "publish the table again" in message


@pytest.mark.parametrize("table_id", ["a.b.V1", "A.X-Y.V1"])
def test_an_id_of_other_letters_has_a_name_that_needs_no_quotes(table_id: str) -> None:
    served = Served()
    served.world.published(table_id)
    name = table_id.lower().replace(".", "_").replace("-", "_")
    assert served.tables() == {"identifiers": [{"namespace": ["lake"], "name": name}]}
    served.table(name)
