"""The HTTP endpoints of a dispatcher for orchestrators and monitoring. Read-only, without secrets.

GET /live     200 while its loops turn; 503 with the names of those that hang: restart it
GET /ready    200 while it reaches queue, state, topics and workflows; 503 with the unreachable ones and reasons:
              a restart does not help
GET /metrics  in Prometheus' text format
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from compactor.log_context import LOG
from compactor.model.errors import Invalid, Unavailable, kind_of
from dispatcher.operations.health import FirstContact
from dispatcher.operations.metrics import prometheus_text
from dispatcher.records.metrics_samples import Sample

_JSON = "application/json"
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class HttpAddress:
    """`port` 0: any that is free; None: nothing is served."""

    host: str = "127.0.0.1"
    port: int | None = None


@dataclass(frozen=True)
class Observed:
    """The sources of the answers. They are called from the server's threads, and are quick.

    Attributes:
        stuck: loops that do not turn, by name
        troubles: services that are not reached, by name"""

    stuck: Callable[[], Sequence[str]]
    troubles: Callable[[], Mapping[str, Exception]]
    samples: Callable[[], Iterable[Sample]]


class Probes:
    """The current sources, which change at the start: a starting dispatcher reaches nothing yet, and is live."""

    def __init__(self, troubles: Callable[[], Mapping[str, Exception]]) -> None:
        """`troubles`: of the start."""
        self._observed = Observed(lambda: (), lambda: troubles() or {"start": STARTS}, lambda: ())

    def __call__(self) -> Observed:
        return self._observed

    def observe(self, observed: Observed) -> None:
        self._observed = observed


@contextmanager
def probes_over_http(address: HttpAddress, first_contact: FirstContact) -> Iterator[Probes]:
    """Serves from the start: a dispatcher that waits for a service is live, but not ready."""
    probes = Probes(lambda: first_contact.troubles)
    with http_server(address, probes):
        yield probes


STARTS = Unavailable("the dispatcher starts")


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes
    content_type: str = _JSON


@contextmanager
def http_server(address: HttpAddress, observed: Callable[[], Observed]) -> Iterator[int | None]:
    """Serves inside the block; yields the port. Raises `Invalid` for a used
    one."""
    if address.port is None:
        yield None
        return
    try:
        server = ThreadingHTTPServer((address.host, address.port), _handler(observed))
    except OSError as error:
        raise Invalid(f"--http-port {address.port} cannot be used on {address.host}: {error.strerror}") from error
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    serving.start()
    port: int = server.server_address[1]
    LOG.info("http_served", host=address.host, port=port)
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def answer_to(path: str, observed: Observed) -> _Answer:
    """Pure, but for what is observed."""
    match path.partition("?")[0]:
        case "/live":
            stuck = list(observed.stuck())
            return _verdict(not stuck, {"live": not stuck, "stuck": stuck})
        case "/ready":
            troubles = {
                place: {"error_kind": kind_of(error), "reason": str(error)}
                for place, error in sorted(observed.troubles().items())
            }
            return _verdict(not troubles, {"ready": not troubles, "troubles": troubles})
        case "/metrics":
            return _Answer(200, prometheus_text(observed.samples()), _PROMETHEUS)
        case _:
            return _Answer(404, b'{"error": "there are /live, /ready and /metrics"}\n')


def _verdict(well: bool, value: Mapping[str, object]) -> _Answer:
    return _Answer(200 if well else 503, json.dumps(value).encode() + b"\n")


def _handler(observed: Callable[[], Observed]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # for a client that sends nothing

        def do_GET(self) -> None:
            try:
                answer = answer_to(self.path, observed())
            except Exception as error:  # noqa: BLE001  (an answer that breaks is an answer)
                LOG.error("http_not_answered", path=self.path, exc_info=error)
                answer = _Answer(500, b'{"error": "see the log"}\n')
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not logged."""

    return Handler
