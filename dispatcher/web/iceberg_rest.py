"""A read-only Iceberg REST catalog over the published tables of a lake: a request is a value, and so is its answer.

    GET       /v1/config?warehouse=LAKE          what a client asks first: the routes below, and where the files are
    GET       /v1/namespaces                     one level of namespaces
    GET HEAD  /v1/namespaces/N
    GET       /v1/namespaces/N/tables
    GET HEAD  /v1/namespaces/N/tables/T          the newest metadata; with an ETag
    GET       /v1/namespaces/N/views[/V]         for clients that ask all the same: there are no views

A client may name the lake as its warehouse, and gets a prefix then: `/v1/lake-NAME/namespaces...`.

Some clients write whatever the list of endpoints says, and have uploaded files by then. The 403 makes them give up at
once, with a sentence; 404, 409 or 5xx would mean a table that is gone, another attempt, or an unknown outcome.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from urllib.parse import unquote

from pydantic import JsonValue

from compactor.log_context import LOG
from compactor.model.errors import Denied, Invalid, LithifyError, Outdated, Unavailable
from compactor.publishing.published_lake import IcebergJson, PublishedLake, PublishedMetadata, PublishedTable
from compactor.storage.location import StoreLocation

ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
"""The endpoints that are offered. Without this list clients assume that they may write."""

PAGE_SIZE = 1_000
"""Names in a page, for a client that wants pages and does not say how large."""

RETRY_AFTER_SECONDS = 1

_PREFIX = "lake-"
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_READ_ONLY = (
    "this catalog is read-only: its tables are written by Lithify alone; append deltas with `lithify table append`, "
    "and compact them"
)


@dataclass(frozen=True)
class Request:
    """`path`: from `/v1` on, percent-encoded as it was sent; `query`: decoded."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    if_none_match: str | None = None


@dataclass(frozen=True)
class Answer:
    """`body`: JSON; None: none."""

    status: int
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class _Refused(Exception):
    """Why a request gets no content, by the error model of the specification."""

    def __init__(self, status: HTTPStatus, error_type: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type


class IcebergRestCatalog:
    """Safe to share between threads."""

    def __init__(self, lake: PublishedLake) -> None:
        self._lake = lake
        self.prefix = f"{_PREFIX}{lake.name}"

    def answer(self, request: Request) -> Answer:
        """The answer to any request. It has a body except to HEAD, and where there is nothing new."""
        try:
            answer = self._answer(request)
        except _Refused as refused:
            answer = error_answer(refused.status, refused.error_type, str(refused))
        except LithifyError as error:
            answer = _failed(error)
        if request.method == "HEAD":
            status = HTTPStatus.NO_CONTENT if answer.status == HTTPStatus.OK else answer.status
            return replace(answer, status=status, body=None)
        return answer

    def _answer(self, request: Request) -> Answer:
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        if parts == ["v1", "oauth", "tokens"]:
            message = "this catalog issues no tokens: use it without authorization, or with the server's bearer token"
            raise _Refused(HTTPStatus.NOT_FOUND, "NotFoundException", message)
        if request.method in _WRITES:
            raise _Refused(HTTPStatus.FORBIDDEN, "ForbiddenException", _READ_ONLY)
        if request.method not in ("GET", "HEAD"):
            message = f"{request.method} is not supported: use GET or HEAD"
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "UnsupportedOperationException", message)
        match parts:
            case ["v1", "config"]:
                return self._config(request.query.get("warehouse", ""))
            case ["v1", "namespaces", *rest] | ["v1", self.prefix, "namespaces", *rest]:
                return self._below_namespaces(rest, request)
            case _:
                raise _no_route(request)

    def _config(self, warehouse: str) -> Answer:
        lake, overrides = self._lake, dict[str, JsonValue]()
        if warehouse:
            if warehouse.rstrip("/") not in (lake.name, lake.location.root_uri):
                message = f"there is no warehouse {warehouse}: leave it out, or name that of this server: {lake.name}"
                raise _Refused(HTTPStatus.NOT_FOUND, "NoSuchWarehouseException", message)
            overrides["prefix"] = self.prefix
        return _json({"defaults": file_settings(lake.location), "overrides": overrides, "endpoints": list(ENDPOINTS)})

    def _below_namespaces(self, parts: Sequence[str], request: Request) -> Answer:
        match parts:
            case []:
                return self._namespaces(request.query)
            case [namespace]:
                self._check_namespace(namespace)
                return _json({"namespace": [namespace], "properties": {}})
            case [namespace, "tables"]:
                return self._tables(namespace, request.query)
            case [namespace, "views"]:
                self._check_namespace(namespace)
                return _json({"identifiers": []})
            case [namespace, "views", view]:
                self._check_namespace(namespace)
                message = f"there is no view {namespace}.{view}: Lithify has none"
                raise _Refused(HTTPStatus.NOT_FOUND, "NoSuchViewException", message)
            case [namespace, "tables", name]:
                return self._load(namespace, name, request)
            case _:
                raise _no_route(request)

    def _namespaces(self, query: Mapping[str, str]) -> Answer:
        parent = query.get("parent", "")
        if parent:
            self._check_namespace(parent)
            return _page([], query, "namespaces", lambda namespace: [namespace])
        names = sorted({table.namespace for table in self._lake.tables()})
        return _page(names, query, "namespaces", lambda namespace: [namespace])

    def _tables(self, namespace: str, query: Mapping[str, str]) -> Answer:
        names = sorted({table.name for table in self._lake.tables() if table.namespace == namespace})
        if not names:
            self._check_namespace(namespace)
        return _page(names, query, "identifiers", lambda name: {"namespace": [namespace], "name": name})

    def _load(self, namespace: str, name: str, request: Request) -> Answer:
        wanted = request.query.get("snapshots", "all")
        if wanted not in ("all", "refs"):
            raise Invalid(f"snapshots is {wanted!r}: write all or refs")
        metadata = self._lake.newest(self._found(namespace, name))
        if metadata is None:
            raise _no_table(namespace, name)
        settings = file_settings(self._lake.location)
        etag = _etag(metadata, settings, wanted)
        if request.method == "GET" and has_tag(request.if_none_match, etag):
            return Answer(HTTPStatus.NOT_MODIFIED, headers={"ETag": etag})
        content = metadata.parsed if wanted == "all" else _with_named_snapshots(metadata.parsed)
        answer = _json({"metadata-location": metadata.uri, "metadata": content, "config": settings})
        return replace(answer, headers={**answer.headers, "ETag": etag})

    def _found(self, namespace: str, name: str) -> PublishedTable:
        found = self._lake.find(namespace, name)
        if len(found) > 1:
            which = " and ".join(table.table_id for table in found)
            raise Invalid(
                f"{namespace}.{name} is the name of {which}: set the property glue_database of one of them to another "
                "namespace"
            )
        if not found:
            # Also in an unknown namespace: Java's client then asks for `t.files` as metadata of the table `t`.
            raise _no_table(namespace, name)
        return found[0]

    def _check_namespace(self, namespace: str) -> None:
        """Raises 404 for a namespace that has no table."""
        if not any(table.namespace == namespace for table in self._lake.tables()):
            message = f"there is no namespace {namespace}: it is a glue_database of published tables, or a lake's name"
            raise _Refused(HTTPStatus.NOT_FOUND, "NoSuchNamespaceException", message)


def file_settings(location: StoreLocation) -> dict[str, JsonValue]:
    """What clients need to find the files of a lake. They use credentials of their own."""
    if not location.is_remote:
        return {}
    settings: dict[str, JsonValue] = {}
    if location.region is not None:
        settings |= {"client.region": location.region, "s3.region": location.region}
    if location.endpoint_url is not None:
        settings |= {"s3.endpoint": location.endpoint_url, "s3.path-style-access": "true"}
    return settings


def error_answer(status: int, error_type: str, message: str) -> Answer:
    """An error as clients of the specification read it."""
    return replace(_json({"error": {"message": message, "type": error_type, "code": int(status)}}), status=int(status))


def _failed(error: LithifyError) -> Answer:
    if isinstance(error, Invalid):
        return error_answer(HTTPStatus.BAD_REQUEST, "BadRequestException", str(error))
    if isinstance(error, Unavailable) and not isinstance(error, Denied | Outdated):
        answer = error_answer(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException", str(error))
        return replace(answer, headers={**answer.headers, "Retry-After": str(RETRY_AFTER_SECONDS)})
    LOG.warning("catalog_request_failed", reason=str(error))
    if isinstance(error, Denied):  # clients try again after a 500
        return error_answer(HTTPStatus.FORBIDDEN, "ForbiddenException", str(error))
    return error_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError", str(error))


def _no_route(request: Request) -> _Refused:
    message = f"the Iceberg catalog has nothing at {request.path}: it begins at /iceberg/v1/config"
    return _Refused(HTTPStatus.NOT_FOUND, "NotFoundException", message)


def _no_table(namespace: str, name: str) -> _Refused:
    message = f"there is no table {namespace}.{name}: publish it with the property publish=iceberg"
    return _Refused(HTTPStatus.NOT_FOUND, "NoSuchTableException", message)


def _json(content: IcebergJson) -> Answer:
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    return Answer(HTTPStatus.OK, body, {"Content-Type": "application/json"})


def _page(names: Sequence[str], query: Mapping[str, str], member: str, shown: Callable[[str], JsonValue]) -> Answer:
    """The names after the token's, or all of them for a client that sends no token. A token is the last name of a page,
    so that names that come and go meanwhile make no others appear twice or be left out."""
    token = query.get("pageToken")
    if token is None:
        return _json({member: [shown(name) for name in names]})
    after = _name_of(token)
    later = [name for name in names if name > after]
    page = later[: _page_size(query)]
    next_token = _token_of(page[-1]) if len(page) < len(later) else None
    return _json({member: [shown(name) for name in page], "next-page-token": next_token})


def _page_size(query: Mapping[str, str]) -> int:
    text = query.get("pageSize", str(PAGE_SIZE))
    digits = text.lstrip("0")
    if not (text.isascii() and digits.isdigit()):
        raise Invalid(f"pageSize is {text!r}: write a number from 1 on")
    return min(int(digits[:9]), PAGE_SIZE)  # one of thousands of digits is no int


def _token_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _name_of(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise Invalid(f"pageToken {token!r} is not of this catalog: begin again without one") from error


def _etag(metadata: PublishedMetadata, settings: Mapping[str, JsonValue], wanted: str) -> str:
    """Differs wherever the answer does."""
    digest = hashlib.sha256(metadata.body)
    digest.update(json.dumps([metadata.uri, settings], sort_keys=True).encode())
    return f'"{digest.hexdigest()[:32]}-{wanted}"'


def has_tag(if_none_match: str | None, etag: str) -> bool:
    tags = [] if if_none_match is None else [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags


def _with_named_snapshots(metadata: IcebergJson) -> IcebergJson:
    """With the snapshots alone that a branch or a tag names."""
    refs, snapshots = metadata.get("refs"), metadata.get("snapshots")
    if not isinstance(refs, dict) or not isinstance(snapshots, list):
        return metadata
    named = [ref.get("snapshot-id") for ref in refs.values() if isinstance(ref, dict)]
    kept: list[JsonValue] = [each for each in snapshots if isinstance(each, dict) and each.get("snapshot-id") in named]
    return {**metadata, "snapshots": kept}
