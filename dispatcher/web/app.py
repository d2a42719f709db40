"""`lithify serve` over HTTP: pages for people, the same as JSON under `/api/v1`, and the Iceberg REST catalog.

Everything is read, and nothing written: other methods than GET and HEAD are refused (by the catalog in its own words).
A page needs no script to be read, and no other host.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from compactor.model.errors import Invalid, LithifyError
from compactor.storage.keys import encode_partition
from dispatcher.operations.table_lag import TableLag
from dispatcher.records.liveness import LastSignal
from dispatcher.web import iceberg_rest
from dispatcher.web.charts import dots_of
from dispatcher.web.feed import EventsFeed
from dispatcher.web.iceberg_rest import IcebergRestCatalog
from dispatcher.web.readings import Readings
from dispatcher.web.rendering import PAGES, Renderer, dead_letters_of
from dispatcher.web.shared import Reading
from dispatcher.web.table_readings import OneTable, privacy_waits
from dispatcher.web.troubles import troubles_of

CATALOG = "/iceberg"
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_READ = ("GET", "HEAD")
_STATIC = "/static/"
UNPARTITIONED = encode_partition({})
Next = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Doors:
    """Who is let in.

    Attributes:
        hosts: names that a request may be for, with their port: a page of another site cannot read this one by a name
            of its own that it points here
        token: that every request must bear; None: none"""

    hosts: Sequence[str]
    token: str | None = None


def create_app(
    readings: Readings, catalog: IcebergRestCatalog, doors: Doors, feed: EventsFeed | None = None
) -> FastAPI:
    app = FastAPI(
        title="Lithify",
        summary="Job runs and tables, as `lithify serve` shows them. Read-only.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    renderer = Renderer(readings, feed)
    app.middleware("http")(_guard(doors))
    app.add_exception_handler(HTTPException, _no_page)  # type: ignore[arg-type]  # it gets what it is registered for
    app.add_exception_handler(RequestValidationError, _malformed)  # type: ignore[arg-type]  # as above
    app.add_exception_handler(LithifyError, _failed)  # type: ignore[arg-type]  # it gets what it is registered for
    app.mount(_STATIC, StaticFiles(directory=Path(__file__).with_name("static")), name="static")
    _add_pages(app, renderer)
    _add_api(app, readings, feed)
    _add_catalog(app, catalog)
    return app


def _guard(doors: Doors) -> Callable[[Request, Next], Awaitable[Response]]:
    async def guard(request: Request, call_next: Next) -> Response:
        refused = _refusal(request, doors)
        response = refused if refused is not None else await call_next(request)
        for name, value in SECURITY.items():
            response.headers[name] = value
        return response

    return guard


def _refusal(request: Request, doors: Doors) -> Response | None:
    is_of_catalog = request.url.path.startswith(f"{CATALOG}/")
    problem = _catalog_problem if is_of_catalog else _problem
    host = request.headers.get("host", "")
    if host.lower() not in map(str.lower, doors.hosts):
        return problem(403, f"this server is not {host!r}: start it with --allow-host {host}", {})
    if doors.token is not None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), doors.token.encode()):
            return problem(401, "this server wants a bearer token", {"WWW-Authenticate": "Bearer"})
    if request.method not in _READ and not is_of_catalog:
        return problem(405, "this server only shows: GET and HEAD", {"Allow": ", ".join(_READ)})
    return None


def _problem(status: int, reason: str, headers: Mapping[str, str]) -> Response:
    return JSONResponse({"reason": reason}, status, headers=dict(headers))


def _catalog_problem(status: int, reason: str, headers: Mapping[str, str]) -> Response:
    """In the words of the catalog's specification, which its clients show."""
    kind = "NotAuthorizedException" if status == HTTPStatus.UNAUTHORIZED else "ForbiddenException"
    answer = iceberg_rest.error_answer(HTTPStatus(status), kind, reason)
    return Response(answer.body, status, dict(headers), media_type="application/json")


async def _no_page(request: Request, error: HTTPException) -> Response:
    """What no route answers. Without it the reason would be FastAPI's own, and of no page."""
    reason = (
        f"there is no page {request.url.path}: the menu has all pages"
        if error.status_code == HTTPStatus.NOT_FOUND
        else error.detail
    )
    return _told(request, error.status_code, reason, error.headers)


async def _malformed(request: Request, error: RequestValidationError) -> Response:
    if request.url.path.startswith("/api/"):
        return await request_validation_exception_handler(request, error)
    return _told(request, 400, f"the address is wrong: {error.errors()[0]['msg']}")


async def _failed(request: Request, error: LithifyError) -> Response:
    """404 for what is not there, 503 for a store that does not answer."""
    status = 503
    if isinstance(error, Invalid):
        status = 404 if str(error).startswith("there is no ") or " was dropped at " in str(error) else 400
    return _told(request, status, str(error))


def _told(request: Request, status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    if request.url.path.startswith("/api/"):
        return _problem(status, reason, headers or {})
    return HTMLResponse(Renderer.problem(status, reason), status, headers)


# --------------------------------------------------------------------------------------------------------------- pages


def _add_pages(app: FastAPI, renderer: Renderer) -> None:
    def answer(request: Request, html: str) -> Response:
        tag = f'"{hashlib.sha256(html.encode()).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if iceberg_rest.has_tag(request.headers.get("if-none-match"), tag):
            return Response(status_code=304, headers=headers)
        return HTMLResponse(html, headers=headers)

    for path, name in PAGES.items():

        def page(request: Request, name: str = name) -> Response:
            return answer(request, renderer.page(name))

        app.add_api_route(path, page, methods=list(_READ), include_in_schema=False)

    def job_run(request: Request, job_run_id: str) -> Response:
        return answer(request, renderer.job_run(job_run_id))

    def table(request: Request, table_id: str) -> Response:
        return answer(request, renderer.table(table_id))

    def table_log(
        request: Request, table_id: str, partition: str = UNPARTITIONED, before: int | None = None
    ) -> Response:
        return answer(request, renderer.table_log(table_id, partition, before))

    app.add_api_route("/tables/{table_id:path}/log", table_log, methods=list(_READ), include_in_schema=False)
    app.add_api_route("/job-runs/{job_run_id:path}", job_run, methods=list(_READ), include_in_schema=False)
    app.add_api_route("/tables/{table_id:path}", table, methods=list(_READ), include_in_schema=False)

    async def live() -> Response:
        """Not in a thread: all of those may wait for a store."""
        return PlainTextResponse("live\n")

    app.add_api_route("/live", live, methods=list(_READ), include_in_schema=False)


# ----------------------------------------------------------------------------------------------------------------- API


_OVERVIEW: dict[int | str, dict[str, Any]] = {
    each: {"description": what, "content": {"application/json": {}}}
    for each, what in (
        (400, "it cannot be asked like this"),
        (401, "no token"),
        (403, "another host"),
        (503, "the store does not answer"),
    )
}
_ONE = {**_OVERVIEW, 404: {**_OVERVIEW[503], "description": "nothing has this id"}}
"""Answers beside 200 that are described, of a list and of one thing."""


def _add_api(app: FastAPI, readings: Readings, feed: EventsFeed | None) -> None:
    @app.get("/api/v1/now", responses=_OVERVIEW)
    def now() -> dict[str, Any]:
        """Open job runs and the last ones that have ended, pauses, signs of life, and what is wrong, by urgency."""
        reading = readings.now()
        troubles = troubles_of(reading.value, readings.commands, reading.silence_at_ms(readings.now_ms()))
        return _as_read(
            reading,
            {
                "job_runs": [each.model_dump(mode="json", exclude={"sessions"}) for each in reading.value.job_runs],
                "pauses": [each.model_dump(mode="json") for each in reading.value.pauses],
                "dispatchers": [_signal(each) for each in reading.value.dispatchers],
                "ingests": [_signal(each) for each in reading.value.ingests],
                "keepers": [{"lake": lake, "looked_at_ms": at_ms} for lake, at_ms in reading.value.keepers.items()],
                "queue": None if reading.value.queue is None else asdict(reading.value.queue),
                "feed": None if feed is None else asdict(feed.state),
                "troubles": [asdict(each) for each in troubles],
            },
        )

    @app.get("/api/v1/job_runs", responses=_OVERVIEW)
    def job_runs() -> dict[str, Any]:
        """Job runs: open ones, then those that have ended, the latest first."""
        reading = readings.history()
        ended = {each.job_run_id for each in reading.value}
        opened = [each for each in readings.now().value.open_job_runs if each.job_run_id not in ended]
        views = [each.model_dump(mode="json", exclude={"sessions"}) for each in (*opened, *reading.value)]
        return _as_read(reading, {"job_runs": views})

    @app.get("/api/v1/job_runs/{job_run_id:path}", responses=_ONE)
    def job_run(job_run_id: str) -> dict[str, Any]:
        """A job run with its sessions, as `lithify status JOB_RUN_ID --output json`; attempts, rounds and plans of
        these, its events and its result."""
        reading = readings.job_run(job_run_id)
        run, result = reading.value, reading.value.result
        shown = {
            "courses": {session_id: asdict(course) for session_id, course in run.courses.items()},
            "ended_shards": [{**asdict(each), "outcome": each.outcome.model_dump(mode="json")} for each in run.shards],
            "plans": [{"partition": name, **plan.model_dump(mode="json")} for name, plan in run.plans],
            "events": [each.event.model_dump(mode="json") for each in run.events],
            "result": None if result is None else result.model_dump(mode="json"),
        }
        return _as_read(reading, {**run.view.model_dump(mode="json"), **shown})

    @app.get("/api/v1/dead_letters", responses=_OVERVIEW)
    def dead_letters() -> dict[str, Any]:
        """Documents that were rejected, the latest first, and whether one of their id was accepted later."""
        reading = readings.history()
        letters = [
            {**each.view.model_dump(mode="json", exclude={"sessions"}), "accepted_later": each.accepted_later}
            for each in dead_letters_of(reading.value)
        ]
        return _as_read(reading, {"dead_letters": letters})

    @app.get("/api/v1/money", responses=_OVERVIEW)
    def money() -> dict[str, Any]:
        """Dollars by day (UTC) and table of the job runs that ended in the last 30 days, the latest day first."""
        reading = readings.money()
        return _as_read(reading, {"days": [asdict(each) for each in reading.value], "usd_per_day_max": readings.caps})

    @app.get("/api/v1/prediction", responses=_OVERVIEW)
    def prediction() -> dict[str, Any]:
        """Seconds taken and expected of job runs that succeeded lately. `times`: without pauses; a miss is above 1."""
        reading = readings.history()
        names = {"job_run_id", "table", "seconds", "paused_seconds", "expected_sla"}
        dots = [{**dot.view.model_dump(include=names), "times": dot.times} for dot in dots_of(reading.value)]
        return _as_read(reading, {"job_runs": dots})

    _add_api_of_tables(app, readings)


def _add_api_of_tables(app: FastAPI, readings: Readings) -> None:
    @app.get("/api/v1/tables", responses=_OVERVIEW)
    def tables() -> dict[str, Any]:
        """Tables, the one that is most behind its bound first."""
        reading = readings.tables()
        value = reading.value
        found = {"tables": [_table(each) for each in value.lags], "unread": [asdict(each) for each in value.unread]}
        return _as_read(reading, found)

    @app.get("/api/v1/tables/{table_id:path}/lag", responses=_ONE)
    def lag(table_id: str) -> dict[str, Any]:
        """The most lag of each hour of the last 30 days, as a keeper has sampled it."""
        readings.table(table_id)
        reading = readings.lag_hours(table_id)
        return _as_read(reading, {"table_id": table_id, "hours": [asdict(each) for each in reading.value]})

    @app.get("/api/v1/tables/{table_id:path}/log", responses=_ONE)
    def table_log(table_id: str, partition: str = UNPARTITIONED, before: int | None = None) -> dict[str, Any]:
        """Entries of a stream's log, the latest first: those below the number `before`, or the newest."""
        reading = readings.table_log(table_id, partition, before)
        return _as_read(reading, asdict(reading.value))

    @app.get("/api/v1/tables/{table_id:path}", responses=_ONE)
    def table(table_id: str) -> dict[str, Any]:
        """How far it is behind, its streams, those that are most behind first, the keeper's last decisions, what a
        privacy delete still waits for, and its properties, of which `compact_when` is its policy."""
        reading = readings.table(table_id)
        one = reading.value
        shown = {
            "streams": _streams(one),
            "decisions": readings.decisions(table_id).value,
            "privacy_waits": [asdict(each) for each in privacy_waits(one.lag, one.table, readings.commands)],
            "properties": one.table.properties.model_dump(mode="json", exclude_defaults=True),
        }
        return _as_read(reading, {**_table(one.lag), **shown})


def _as_read(reading: Reading[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """`failure`, `since_ms`: why and since when nothing newer could be read."""
    read = {"read_at_ms": reading.at_ms, "failure": reading.failure, "since_ms": reading.since_ms}
    return {**read, **value}


def _signal(signal: LastSignal) -> dict[str, Any]:
    """`silent_seconds`, `workers`: None where its sign of life cannot be read."""
    sign = signal.sign
    silent_seconds, workers = (None, None) if sign is None else (sign.silent_seconds, sign.workers)
    owner, at_ms = signal.owner, signal.at_ms
    return {"owner": owner, "signalled_at_ms": at_ms, "silent_seconds": silent_seconds, "workers": workers}


def _streams(table: OneTable) -> list[dict[str, Any]]:
    at_ms = table.lag.at_ms
    names = ("pending_deltas", "pending_rows", "files", "file_bytes", "small_files", "rows", "dead_rows")
    return [
        {"partition": each.partition, "lag_seconds": each.figures.lag_seconds(at_ms)}
        | {name: getattr(each.figures, name) for name in names}
        for each in table.streams
    ]


def _table(lag: TableLag) -> dict[str, Any]:
    figures = lag.figures
    return {
        "table_id": lag.table_id,
        "partitions": lag.partitions,
        "lag_seconds": lag.lag_seconds,
        "lag_bound_seconds": lag.bound_seconds,
        **{name: getattr(figures, name) for name in ("pending_rows", "pending_bytes", "small_files", "dead_rows")},
        "published_lag_seconds": lag.published_lag_seconds,
    }


# ------------------------------------------------------------------------------------------------------------- catalog


def _add_catalog(app: FastAPI, catalog: IcebergRestCatalog) -> None:
    async def ask(request: Request) -> Response:
        raw = request.scope["raw_path"].decode("ascii").partition("?")[0].removeprefix(CATALOG)
        asked = iceberg_rest.Request(
            request.method, raw, dict(request.query_params), request.headers.get("if-none-match")
        )
        answer = await run_in_threadpool(catalog.answer, asked)
        return Response(answer.body or b"", answer.status, dict(answer.headers), media_type="application/json")

    methods = [*_READ, "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    app.add_api_route(f"{CATALOG}/{{path:path}}", ask, methods=methods, include_in_schema=False)
