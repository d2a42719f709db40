"""EMR and EMR Serverless over HTTP, for boto3's `endpoint_url`: JSON 1.1 and REST, one port for both.

Requests are validated by botocore's model of the service, and so are the answers. `tests/fakes/emr_account.py` and
`tests/fakes/emr_serverless_account.py` are the account; failures of the transport are here: requests for an operation
take its `faults` in order.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from botocore import xform_name
from botocore.model import OperationModel

from tests.fakes.emr_account import EmrAccount
from tests.fakes.emr_serverless_account import ServerlessAccount
from tests.fakes.emr_shapes import Refused, check_answer, check_request, rendered, service_model

EMR, SERVERLESS = service_model("emr"), service_model("emr-serverless")


@dataclass(frozen=True)
class Throttled:
    operation: str


@dataclass(frozen=True)
class Denies:
    """The caller lacks the right."""

    operation: str


@dataclass(frozen=True)
class AnswerLost:
    """The service carries out the request, then the connection breaks."""

    operation: str


@dataclass(frozen=True)
class Away:
    """The connection breaks before the service has done anything."""

    operation: str


Fault = Throttled | Denies | AnswerLost | Away


@dataclass
class EmrServer:
    """
    faults    that are still pending
    requests  requested operations with their bodies, in order
    """

    url: str
    emr: EmrAccount
    serverless: ServerlessAccount
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def reset(self, emr: EmrAccount, serverless: ServerlessAccount) -> None:
        """Starts over with these new accounts."""
        with self.lock:
            self.emr.stop()
            self.serverless.stop()
            self.emr, self.serverless = emr, serverless
            self.faults.clear()
            self.requests.clear()

    def requests_of(self, operation: str) -> list[Mapping[str, Any]]:
        return [request for name, request in self.requests if name == operation]

    def take_fault(self, operation: str) -> Fault | None:
        for fault in self.faults:
            if fault.operation == operation:
                self.faults.remove(fault)
                return fault
        return None

    def answer(self, operation: OperationModel, request: Mapping[str, Any]) -> bytes | None:
        """The answer's body; None: the connection breaks. Raises `Refused`."""
        with self.lock:
            self.requests.append((operation.name, request))
            fault = self.take_fault(operation.name)
            match fault:
                case Throttled():
                    raise Refused("ThrottlingException", "Rate exceeded")
                case Denies():
                    message = f"User: tests is not authorized to perform: {operation.name}"
                    raise Refused("AccessDeniedException", message)
                case Away():
                    return None
                case AnswerLost() | None:
                    pass
            check_request(operation, request)
            account = self.emr if operation.service_model is EMR else self.serverless
            account.let_time_pass()
            done: Callable[[Mapping[str, Any]], dict[str, Any]] | None
            done = getattr(account, xform_name(operation.name), None)
            if done is None:
                raise Refused("InvalidRequestException", f"the fake does not have {operation.name}", 501)
            found = done(request)
            check_answer(operation, found)
            return None if isinstance(fault, AnswerLost) else json.dumps(rendered(found)).encode()


@contextmanager
def emr_server(emr: EmrAccount, serverless: ServerlessAccount) -> Iterator[EmrServer]:
    server = EmrServer("", emr, serverless)

    class Handler(_Handler):
        fake = server

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
        with server.lock:
            server.emr.stop()
            server.serverless.stop()


class _Handler(BaseHTTPRequestHandler):
    fake: EmrServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second of two waits for the client's delayed acknowledgement

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        is_json_rpc = "X-Amz-Target" in self.headers
        try:
            operation, request = self._rpc(body) if is_json_rpc else self._rest(body)
            answer = self.fake.answer(operation, request)
        except Refused as error:
            self._refuse(error, is_json_rpc=is_json_rpc)
            return
        if answer is None:
            self.close_connection = True
            return
        self._send(200, answer, {})

    def _rpc(self, body: bytes) -> tuple[OperationModel, Mapping[str, Any]]:
        prefix, _, name = self.headers["X-Amz-Target"].partition(".")
        if prefix != EMR.metadata["targetPrefix"] or name not in EMR.operation_names:
            raise Refused("UnknownOperationException", f"there is no {prefix}.{name}")
        return EMR.operation_model(name), json.loads(body or b"{}")

    def _rest(self, body: bytes) -> tuple[OperationModel, Mapping[str, Any]]:
        parts = urlsplit(self.path)
        for name in SERVERLESS.operation_names:
            operation = SERVERLESS.operation_model(name)
            if operation.http["method"] != self.command:
                continue
            pattern = re.sub(r"\\?\{(\w+)\\?\}", r"(?P<\1>[^/]+)", operation.http["requestUri"])
            found = re.fullmatch(pattern, parts.path)
            if found is not None:
                in_path = {key: unquote(value) for key, value in found.groupdict().items()}
                return operation, {**in_path, **_query(operation, parts.query), **json.loads(body or b"{}")}
        raise Refused("ResourceNotFoundException", f"there is no {self.command} {parts.path}", 404)

    def _refuse(self, error: Refused, *, is_json_rpc: bool) -> None:
        if is_json_rpc:
            self._send(error.status, json.dumps({"__type": error.code, "message": error.message}).encode(), {})
        else:
            headers = {"X-Amzn-Errortype": error.code}
            self._send(error.status, json.dumps({"message": error.message}).encode(), headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _query(operation: OperationModel, query: str) -> dict[str, Any]:
    """The members in the query string, by their own names and types."""
    found: dict[str, Any] = {}
    given = parse_qs(query)
    assert operation.input_shape is not None
    for name, shape in operation.input_shape.members.items():
        values = given.get(shape.serialization.get("name", name))
        if shape.serialization.get("location") == "querystring" and values is not None:
            found[name] = values if shape.type_name == "list" else _of_type(shape.type_name, values[0])
    return found


def _of_type(type_name: str, text: str) -> str | int | float:
    match type_name:
        case "integer" | "long":
            return int(text)
        case "timestamp":
            return datetime.fromisoformat(text).timestamp()
        case _:
            return text
