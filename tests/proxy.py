"""An HTTP proxy in front of a stand-in for AWS, for tests that want it slow, deaf, forbidding or gone, and counted.

    client --> proxy, where the weather is --> server

It knows enough of AWS to tell services and operations apart (all of a client's requests may come to one port), to
answer errors in each service's own words, and to count. What is passed on is passed on unchanged, `Host` included, so
signatures hold. It lives in a thread of its own and listens on 127.0.0.1; any thread may call its methods.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol
from urllib.parse import parse_qs, urlsplit

import boto3

from dispatcher.demo.stand_ins import queue_server
from tests.servers import REGION, aws_environment

Harm = Literal["none", "request cut", "answer cut", "body cut", "reset", "silence", "error"]

_AFTER_THE_SERVER = ("answer cut", "body cut", "reset")
"""Harms to the answer of a server that has done what was requested."""

ANY_SERVICE = "*"
DENIED_STATUS, ACCESS_DENIED = 403, "AccessDenied"
_JSON_SERVICES = ("sqs", "elasticmapreduce", "logs", "states")
_PIECE_BYTES = 64 * 1024
_HEAD_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Weather:
    """What becomes of the requests to a service.

    harm              request cut: the connection ends, the server never saw it; answer cut: the server has done it, the
                      answer is lost; body cut: the answer's head and half of its body arrive, then the connection ends;
                      reset: the same, by a TCP reset; silence: nothing is passed on or answered until the weather
                      changes; error: the answer is `status` and `code`, the server never saw it
    every             of the requests, each so-many-th is harmed
    burst             and so many from it on, at most `every`
    delay_seconds     before a request is passed on
    bytes_per_second  of one connection, each way; None: as fast as it goes. A few bytes a second trickle
    """

    harm: Harm = "none"
    every: int = 1
    burst: int = 1
    status: int = 503
    code: str = "ServiceUnavailable"
    delay_seconds: float = 0.0
    bytes_per_second: float | None = None


FAIR = Weather()


@dataclass(frozen=True)
class Request:
    """
    service    as its signature names it: s3, sqs, sns; "" for an unsigned one
    operation  of S3 the verb, told apart where it matters (LIST, PUT if absent, GET range); else the operation's name
    """

    service: str
    operation: str
    verb: str
    target: str


@dataclass(frozen=True)
class Ruling:
    """What a gate says of a request.

    refusal         the answer in place of the server's; None: the request is passed on
    hides_absence   that something is not there is answered with 403, as S3 does to who may not list
    """

    refusal: bytes | None = None
    hides_absence: bool = False


class Gate(Protocol):
    def rule(self, request: Request, headers: Mapping[str, str], body: bytes) -> Ruling:
        """`headers`: names in small letters. It is called in the proxy's thread."""


@dataclass
class Traffic:
    """What was passed on of one operation."""

    requests: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass
class Seen:
    """One request that was passed on: from its arrival to the end of its answer, in seconds of one clock.

    requested_range  the range of a GET with one; else ""
    """

    request: Request
    requested_range: str
    began_seconds: float
    ended_seconds: float = 0.0
    bytes_down: int = 0


@dataclass
class _Message:
    """A request, or the head of an answer, whose body is passed on piece by piece."""

    first_line: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str:
        return next((value for given, value in self.headers if given.lower() == name), "")

    def head(self) -> bytes:
        lines = [self.first_line, *(f"{name}: {value}" for name, value in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass
class _Upstream:
    """A connection to the server that may serve several requests."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass
class Proxy:
    """Made by `proxy_before`. `traffic` and `harmed` are by (service, operation)."""

    host: str
    port: int
    gate: Gate | None = None
    traffic: dict[tuple[str, str], Traffic] = field(default_factory=dict)
    harmed: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.own_port = 0
        self._loop = asyncio.new_event_loop()
        self._weather: dict[str, Weather] = {}
        self._changed = asyncio.Event()
        self._seen: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._requests: list[Seen] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.own_port}"

    # -- what a test does

    def set_weather(self, weather: Weather, service: str = ANY_SERVICE) -> None:
        """From now on, for the requests to this service; what waits in silence is cut off."""
        self._do(self._set_weather(weather, service))

    def refuse(self) -> None:
        """Nobody listens any more, and every connection ends: connections are refused until `listen`."""
        self._do(self._refuse())

    def listen(self) -> None:
        self._do(self._listen())

    def counted(self) -> Mapping[tuple[str, str], Traffic]:
        return dict(self.traffic)

    def seen(self) -> Sequence[Seen]:
        """Every request that was passed on, in the order in which they were."""
        return list(self._requests)

    def count_anew(self) -> None:
        self.traffic.clear()
        self._requests.clear()
        self.harmed.clear()

    def start(self) -> None:
        self._thread.start()
        self.listen()

    def close(self) -> None:
        self.refuse()
        self._do(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- in the proxy's thread

    def _do(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)  # type: ignore[arg-type]

    async def _set_weather(self, weather: Weather, service: str) -> None:
        self._weather[service] = weather
        self._changed.set()
        self._changed = asyncio.Event()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.own_port, limit=_HEAD_BYTES_MAX)
            self.own_port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._connections):
            _cut(writer)
        self._changed.set()
        self._changed = asyncio.Event()
        await asyncio.sleep(0)

    async def _end_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        upstream: _Upstream | None = None
        try:
            while (message := await _read_request(reader, writer)) is not None:
                began_seconds = time.monotonic()
                request = _describe(message)
                ruling = self._ruling(request, message)
                if ruling.refusal is not None:
                    writer.write(ruling.refusal)
                    await writer.drain()
                    continue
                weather = self._weather_for(request)
                upload_seconds = len(message.body) / weather.bytes_per_second if weather.bytes_per_second else 0.0
                await asyncio.sleep(weather.delay_seconds + upload_seconds)
                if weather.harm not in ("none", *_AFTER_THE_SERVER):
                    await self._harm(request, weather, writer)
                    if weather.harm != "error":
                        return
                    continue
                upstream = await self._ask(upstream, message)
                seen = Seen(request, message.header("range"), began_seconds)
                self._requests.append(seen)
                is_open = await self._pass_answer(seen, message, upstream, weather, writer, ruling)
                seen.ended_seconds = time.monotonic()
                if upstream.writer.is_closing():
                    upstream = None
                if not is_open:
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return  # one of the two has gone away
        finally:
            self._connections.discard(writer)
            for each in (writer, *([upstream.writer] if upstream is not None else [])):
                _cut(each)

    def _ruling(self, request: Request, message: _Message) -> Ruling:
        if self.gate is None:
            return Ruling()
        headers = {name.lower(): value for name, value in message.headers}
        return self.gate.rule(request, headers, message.body)

    def _weather_for(self, request: Request) -> Weather:
        weather = self._weather.get(request.service) or self._weather.get(ANY_SERVICE) or FAIR
        if weather.harm == "none":
            return weather
        self._seen[request.service] += 1
        # The last of `every` requests begins a burst, which reaches into the next ones.
        if (self._seen[request.service] - weather.every) % weather.every >= weather.burst or (
            self._seen[request.service] < weather.every
        ):
            return Weather(delay_seconds=weather.delay_seconds, bytes_per_second=weather.bytes_per_second)
        self.harmed[request.service, request.operation] += 1
        return weather

    async def _harm(self, request: Request, weather: Weather, writer: asyncio.StreamWriter) -> None:
        if weather.harm == "silence":
            await self._changed.wait()
        elif weather.harm == "error":
            writer.write(error_answer(request, weather.status, weather.code))
            await writer.drain()

    async def _ask(self, upstream: _Upstream | None, message: _Message) -> _Upstream:
        if upstream is None or upstream.reader.at_eof():  # the server need not keep what nobody uses
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=_HEAD_BYTES_MAX)
            upstream = _Upstream(reader, writer)
        upstream.writer.write(message.head() + message.body)
        await upstream.writer.drain()
        return upstream

    async def _pass_answer(
        self,
        seen: Seen,
        message: _Message,
        upstream: _Upstream,
        weather: Weather,
        writer: asyncio.StreamWriter,
        ruling: Ruling,
    ) -> bool:
        """Whether the client's connection can go on."""
        request = seen.request
        answer = await _read_head(upstream.reader)
        while answer is not None and answer.first_line.split(" ")[1].startswith("1"):
            answer = await _read_head(upstream.reader)
        if answer is None:
            return False
        if ruling.hides_absence and answer.first_line.split(" ")[1] == "404":
            writer.write(error_answer(request, DENIED_STATUS, ACCESS_DENIED))
            await writer.drain()
            _cut(upstream.writer)  # the rest of its answer is nobody's
            return True
        traffic = self.traffic.setdefault((request.service, request.operation), Traffic())
        traffic.requests += 1
        traffic.bytes_up += len(message.body)
        is_lost = weather.harm in _AFTER_THE_SERVER
        arrives = 0 if weather.harm == "answer cut" else int(answer.header("content-length") or 0) // 2
        if weather.harm != "answer cut":
            writer.write(answer.head())
        passed = 0
        async for piece in _body_of(answer, request.verb, upstream.reader):
            traffic.bytes_down += len(piece)
            seen.bytes_down += len(piece)
            await self._pass_piece(piece[: max(arrives - passed, 0)] if is_lost else piece, weather, writer)
            passed += len(piece)
        if weather.harm == "reset":
            _reset(writer)
        closes = answer.header("connection").lower() == "close" or answer.first_line.startswith("HTTP/1.0")
        if closes or not _has_length(answer, request.verb):
            _cut(upstream.writer)
        return not is_lost and not closes and _has_length(answer, request.verb)

    async def _pass_piece(self, piece: bytes, weather: Weather, writer: asyncio.StreamWriter) -> None:
        """At the pace of the weather, in steps of at most a tenth of a second."""
        rate = weather.bytes_per_second
        step = max(int(rate / 10), 1) if rate else max(len(piece), 1)
        for start in range(0, len(piece), step):
            part = piece[start : start + step]
            if rate:
                await asyncio.sleep(len(part) / rate)
            writer.write(part)
            await writer.drain()


@contextmanager
def proxy_before(url: str, gate: Gate | None = None) -> Iterator[Proxy]:
    """A proxy in front of the server at this URL. `gate`: what it refuses to pass on; None: nothing."""
    address = urlsplit(url)
    proxy = Proxy(address.hostname or "127.0.0.1", address.port or 80, gate)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def proxy_before_bucket(bucket: str) -> Iterator[Proxy]:
    """A proxy before an S3 server of this process that has this bucket. Give it a name of its own."""
    with aws_environment(), queue_server() as url:
        boto3.client("s3", endpoint_url=url, region_name=REGION).create_bucket(Bucket=bucket)
        with proxy_before(url) as proxy:
            yield proxy


@contextmanager
def proxy_process_before(url: str) -> Iterator[ProxyProcess]:
    """A proxy in a process of its own, so that it does not share a lock with what is measured."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve_orders, args=(url, there), name="proxy", daemon=True)
    process.start()
    try:
        yield ProxyProcess(here.recv(), here)
    finally:
        with suppress(OSError):
            here.send(None)
        process.join(10)
        process.kill()


class ProxyProcess:
    """What a test may do with a `Proxy` that runs in another process."""

    def __init__(self, url: str, orders: Connection) -> None:
        self.url = url
        self._orders = orders

    def set_weather(self, weather: Weather, service: str = ANY_SERVICE) -> None:
        self._ask("set_weather", weather, service)

    def counted(self) -> Mapping[tuple[str, str], Traffic]:
        traffic: Mapping[tuple[str, str], Traffic] = self._ask("counted")
        return traffic

    def seen(self) -> Sequence[Seen]:
        seen: Sequence[Seen] = self._ask("seen")
        return seen

    def count_anew(self) -> None:
        self._ask("count_anew")

    def _ask(self, what: str, *arguments: object) -> Any:  # noqa: ANN401  (what that method answers)
        self._orders.send((what, arguments))
        return self._orders.recv()


def _serve_orders(url: str, orders: Connection) -> None:
    with proxy_before(url) as proxy:
        orders.send(proxy.url)
        while (order := orders.recv()) is not None:
            what, arguments = order
            orders.send(getattr(proxy, what)(*arguments))


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends the connection at once, and tells the other side so."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _cut(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, RuntimeError):
        writer.close()


# ------------------------------------------------------------------------------------------------------------- HTTP


async def _read_head(reader: asyncio.StreamReader) -> _Message | None:
    """The first line and the headers, None where the other side has closed the connection instead."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first_line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    split = (line.partition(":") for line in lines)
    return _Message(first_line, [(name.strip(), value.strip()) for name, _, value in split])


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Message | None:
    message = await _read_head(reader)
    if message is None:
        return None
    if message.header("expect").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        message.headers = [(name, value) for name, value in message.headers if name.lower() != "expect"]
    if message.header("transfer-encoding").lower() == "chunked":
        message.body = b"".join([piece async for piece in _chunks(reader)])
    else:
        message.body = await reader.readexactly(int(message.header("content-length") or 0))
    return message


def _has_length(answer: _Message, verb: str) -> bool:
    """Whether the end of the answer can be known without the end of the connection."""
    return (
        _is_without_body(answer, verb)
        or bool(answer.header("content-length"))
        or answer.header("transfer-encoding").lower() == "chunked"
    )


def _is_without_body(answer: _Message, verb: str) -> bool:
    return verb == "HEAD" or answer.first_line.split(" ")[1] in ("204", "304")


async def _body_of(answer: _Message, verb: str, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The answer's body as it came, chunk sizes included."""
    if _is_without_body(answer, verb):
        return
    if answer.header("transfer-encoding").lower() == "chunked":
        async for piece in _chunks(reader):
            yield piece
        return
    length = answer.header("content-length")
    left = int(length) if length else None
    while left is None or left > 0:
        piece = await reader.read(_PIECE_BYTES if left is None else min(_PIECE_BYTES, left))
        if not piece:
            if left:
                raise ConnectionResetError("the answer ends before its end")
            return
        left = None if left is None else left - len(piece)
        yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A chunked body, undecoded, up to its end."""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            trailer = line
            while (more := await reader.readuntil(b"\r\n")) != b"\r\n":
                trailer += more
            yield trailer + b"\r\n"
            return
        yield line + await reader.readexactly(size + 2)


# -------------------------------------------------------------------------------------------------------------- AWS

_SCOPE = re.compile(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request")


def _describe(message: _Message) -> Request:
    verb, target, _ = message.first_line.split(" ", 2)
    found = _SCOPE.search(message.header("authorization"))
    service = found[1] if found else ""
    return Request(service, _operation(message, service, verb, target), verb, target)


def _operation(message: _Message, service: str, verb: str, target: str) -> str:
    if message.header("x-amz-target"):
        return message.header("x-amz-target").rpartition(".")[2]
    if service != "s3":
        action = parse_qs(message.body.decode("latin-1")).get("Action") if message.body else None
        return action[0] if action else verb
    if verb == "GET":
        if "list-type=" in target or "prefix=" in target:
            return "LIST"
        return "GET range" if message.header("range") else "GET"
    if verb == "PUT" and message.header("if-none-match"):
        return "PUT if absent"
    return verb


def error_answer(request: Request, status: int, code: str, what: str = "") -> bytes:
    """A whole answer, in the words of the request's service."""
    what = what or f"{code}, says the proxy"
    headers = {"x-amzn-RequestId": "proxy"}
    if request.service in _JSON_SERVICES:
        body = json.dumps({"__type": f"com.amazonaws.{request.service}#{code}", "message": what}).encode()
        headers |= {"Content-Type": "application/x-amz-json-1.0", "x-amzn-query-error": f"{code};Sender"}
    else:
        error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{what}</Message></Error>"
        body = (error if request.service == "s3" else f"<ErrorResponse>{error}</ErrorResponse>").encode()
        headers |= {"Content-Type": "application/xml"}
    if request.verb == "HEAD":
        body = b""
    headers |= {"Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {code}\r\n{lines}\r\n".encode() + body
