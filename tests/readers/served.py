"""The Iceberg REST catalog of a lake, over HTTP, for as long as a test reads through it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from compactor import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.publishing.published_lake import PublishedLake, lake_names
from dispatcher.web.iceberg_rest import IcebergRestCatalog, Request

ROOT = "/iceberg"


@contextmanager
def served(lake: DeltaCatalog) -> Iterator[str]:
    """The catalog's URL."""
    root_uri = lake.location.root_uri
    published = PublishedLake(lake.store, SystemClock(), lake_names([root_uri])[root_uri])
    catalog = IcebergRestCatalog([published])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = urlsplit(self.path)
            query = dict(parse_qsl(asked.query, keep_blank_values=True))
            path, tag = asked.path.removeprefix(ROOT), self.headers.get("If-None-Match")
            answer = catalog.answer(Request(self.command, path, query, tag))
            body = answer.body or b""
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 (http.server names them)

        def log_message(self, format: str, *arguments: object) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{ROOT}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
