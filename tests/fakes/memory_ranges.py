"""Remote objects in memory. Records every request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from hashlib import sha256

from compactor.model.errors import Corrupt
from compactor.storage.ranges import Span, Tail


class MemoryRanges:
    """Objects by URI. `requests` has the requests in order; `fail` is called before each answer."""

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        self.objects = dict(objects or {})
        self.requests: list[tuple[str, Span]] = []
        self.fail: Callable[[str], None] = lambda uri: None
        self._lock = threading.Lock()

    def read(self, uri: str, span: Span, version: str | None) -> memoryview:
        body = self._object(uri)
        self._ask(uri, span)
        if version is not None and version != _version(body):
            raise Corrupt(f"{uri} has changed while it was read: files of a table are written once and never again")
        if span.end > len(body):
            raise Corrupt(f"{uri} ends at byte {len(body)}, but is expected to have {span.end}")
        return memoryview(body)[span.start : span.end]

    def read_tail(self, uri: str, length: int) -> Tail:
        body = self._object(uri)
        start = max(len(body) - length, 0)
        self._ask(uri, Span(start, len(body)))
        return Tail(len(body), _version(body), 0, memoryview(body)[start:])

    def bytes_requested(self, uri: str = "") -> int:
        return sum(span.length for requested, span in self.requests if uri in requested)

    def _object(self, uri: str) -> bytes:
        self.fail(uri)
        if uri not in self.objects:
            raise Corrupt(f"{uri} does not exist")
        return self.objects[uri]

    def _ask(self, uri: str, span: Span) -> None:
        with self._lock:
            self.requests.append((uri, span))


def _version(body: bytes) -> str:
    return sha256(body).hexdigest()
