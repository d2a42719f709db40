"""Reads ranges of remote objects: plans the requests, sends them in parallel, and prefetches ranges that will be needed
soon. All bytes of remote data and index files are read here.

    plan_requests   joins ranges that are close together, and cuts long ones
    RangeReader     sends requests; one for each process and service
    ObjectRanges    a service: `storage/aws/ranges.py`

Objects that are read here never change. If the end of an object was read first, every later request names the version
found then, so that rows of two versions are never mixed.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from compactor.model.errors import Unavailable

JOIN_GAP_BYTES = 128 * 1024
"""Ranges closer than this are read by one request: these bytes cost less than a second request."""

REQUEST_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of one request, at most: longer ranges are cut, since one connection may give 100 MB/s or less."""

CONNECTIONS_MAX = 32
"""Requests of one process that are answered at the same time."""

TAIL_BYTES = 64 * 1024
"""Bytes read at an object's end, where formats have their footers."""

TAILS_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of object ends that a process caches: a session reads each file's footer several times."""

AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""Prefetched bytes that are not taken yet, unless `RangeReader.give_room` says less. `sizing` counts them."""


_OPENERS = 8
"""Footers that are read and decoded at the same time."""


@dataclass(frozen=True, order=True)
class Span:
    """Bytes [start, end) of an object."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Tail:
    """The end of an object; later requests name `version`; None: the service has no versions."""

    size_bytes: int
    version: str | None
    modified_at_ms: int
    data: memoryview

    @property
    def span(self) -> Span:
        return Span(self.size_bytes - len(self.data), self.size_bytes)


class SlowDown(Unavailable):
    """The service throttles its requests."""


class ObjectRanges(Protocol):
    """A service. Every method raises `Corrupt` for an object that does not exist, `Unavailable` for a service that does
    not answer (`SlowDown` if it throttles), `Denied`, and `Invalid` for refused requests. Thread-safe."""

    def read(self, uri: str, span: Span, version: str | None) -> memoryview:
        """All of these bytes. `Corrupt` if the object ends before, or has another version than the one named."""

    def read_tail(self, uri: str, length: int) -> Tail:
        """The last `length` bytes, or all of a shorter object."""


def plan_requests(
    spans: Sequence[Span], join_gap_bytes: int = JOIN_GAP_BYTES, request_bytes_max: int = REQUEST_BYTES_MAX
) -> list[Span]:
    """The requests that cover these ranges, in order and without overlaps."""
    joined: list[Span] = []
    for span in sorted(span for span in spans if span.length):
        if joined and span.start - joined[-1].end <= join_gap_bytes:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return [piece for span in joined for piece in _cut(span, request_bytes_max)]


def _cut(span: Span, request_bytes_max: int) -> list[Span]:
    """Pieces of about the same length."""
    count = -(-span.length // request_bytes_max)
    bounds = [span.start + span.length * number // count for number in range(count + 1)]
    return [Span(start, end) for start, end in pairwise(bounds)]


@dataclass(frozen=True)
class _SentRequest:
    span: Span
    answer: Future[memoryview]


class RangeReader:
    """The ranges of one service's objects. Safe to share between threads."""

    def __init__(self, objects: ObjectRanges) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(CONNECTIONS_MAX, thread_name_prefix="ranges")
        self._openers = ThreadPoolExecutor(_OPENERS, thread_name_prefix="openers")
        self._tails: OrderedDict[str, Tail] = OrderedDict()
        self._tails_bytes = 0
        self._tails_pending: dict[tuple[str, int], Future[Tail]] = {}
        self._ahead: OrderedDict[str, list[_SentRequest]] = OrderedDict()
        self._ahead_bytes = 0
        self._ahead_bytes_max = AHEAD_BYTES_MAX

    def give_room(self, ahead_bytes_max: int) -> None:
        """Sets the limit of prefetched bytes."""
        self._ahead_bytes_max = ahead_bytes_max

    def tail(self, uri: str, *, size_bytes: int | None = None, length: int = TAIL_BYTES, refresh: bool = False) -> Tail:
        """The object's end, which is cached.

        Args:
            size_bytes: from the log; a cached end of an object of another size is read again
            refresh: read again, since the object may have been replaced"""
        with self._lock:
            known = None if refresh else self._tails.get(uri)
            if known is not None and (size_bytes is None or known.size_bytes == size_bytes):
                self._tails.move_to_end(uri)
                return known
            pending = None if refresh else self._tails_pending.get((uri, length))
            if pending is None:
                pending = self._threads.submit(self._objects.read_tail, uri, length)
                self._tails_pending[uri, length] = pending
        try:
            found = pending.result()
        finally:
            with self._lock:
                if self._tails_pending.get((uri, length)) is pending:
                    del self._tails_pending[uri, length]
        with self._lock:
            self._keep_tail(uri, found)
        return found

    def begin_tails(self, uris: Sequence[str]) -> None:
        """Requests the ends of these objects, which may have been replaced: the next `tail` of each waits for it."""
        for uri in uris:
            self.forget_end(uri)
            with self._lock:
                self._tails_pending[uri, TAIL_BYTES] = self._threads.submit(self._objects.read_tail, uri, TAIL_BYTES)

    def read(self, uri: str, spans: Sequence[Span], join_gap_bytes: int = JOIN_GAP_BYTES) -> list[memoryview]:
        """The bytes of each range, in order. Waits for prefetched bytes, which are then dropped from the cache."""
        return next(self.read_groups(uri, [spans], join_gap_bytes))

    def read_groups(
        self, uri: str, groups: Sequence[Sequence[Span]], join_gap_bytes: int = JOIN_GAP_BYTES
    ) -> Iterator[list[memoryview]]:
        """As `read`, for several groups of ranges, requested together. Yields each once its bytes are there."""
        spans = [span for group in groups for span in group]
        pieces = [*self._take_ahead(uri, spans), *self._known_end(uri)]
        pieces += self._send(uri, _plan_around(sorted(piece.span for piece in pieces), spans, join_gap_bytes))
        pieces.sort(key=lambda piece: piece.span)
        starts = [piece.span.start for piece in pieces]
        for group in groups:
            yield [_assembled(span, pieces, starts) for span in group]

    def begin(self, uri: str, spans: Sequence[Span], join_gap_bytes: int = JOIN_GAP_BYTES) -> bool:
        """Prefetches ranges that will be read soon. False: there is no room, and no request is sent."""
        with self._lock:
            begun = sorted(sent.span for sent in [*self._ahead.get(uri, []), *self._known_end(uri)])
        requests = _plan_around(begun, spans, join_gap_bytes)
        size = sum(request.length for request in requests)
        with self._lock:
            if self._ahead_bytes + size > self._ahead_bytes_max:
                return False
            self._ahead_bytes += size
        sent = self._send(uri, requests)
        with self._lock:
            self._ahead.setdefault(uri, []).extend(sent)
        return True

    def soon(self, work: Callable[[], None]) -> Future[None]:
        """Runs the preparation of a later read in a thread of its own."""
        return self._openers.submit(work)

    def forget(self, uri: str) -> None:
        """Drops prefetched bytes of an object that is not read any more."""
        with self._lock:
            for sent in self._ahead.pop(uri, []):
                sent.answer.cancel()
                self._ahead_bytes -= sent.span.length

    def forget_end(self, uri: str) -> None:
        """Drops the cached end of an object that cannot be read: the answer may have been damaged."""
        with self._lock:
            tail = self._tails.pop(uri, None)
            self._tails_bytes -= 0 if tail is None else len(tail.data)

    def _send(self, uri: str, requests: Sequence[Span]) -> list[_SentRequest]:
        with self._lock:
            tail = self._tails.get(uri)
        version = None if tail is None else tail.version
        return [_SentRequest(span, self._threads.submit(self._objects.read, uri, span, version)) for span in requests]

    def _known_end(self, uri: str) -> list[_SentRequest]:
        """The object's end, if it is cached."""
        tail = self._tails.get(uri)
        if tail is None:
            return []
        there: Future[memoryview] = Future()
        there.set_result(tail.data)
        return [_SentRequest(tail.span, there)]

    def _take_ahead(self, uri: str, spans: Sequence[Span]) -> list[_SentRequest]:
        """Prefetched bytes that overlap these ranges, after waiting for them. Failed requests must be sent again."""
        with self._lock:
            waiting = self._ahead.get(uri, [])
            taken = [sent for sent in waiting if any(_overlap(sent.span, span) for span in spans)]
            if taken:
                self._ahead[uri] = [sent for sent in waiting if sent not in taken]
                self._ahead_bytes -= sum(sent.span.length for sent in taken)
                if not self._ahead[uri]:
                    del self._ahead[uri]
        return [sent for sent in taken if sent.answer.exception() is None]

    def _keep_tail(self, uri: str, tail: Tail) -> None:
        before = self._tails.pop(uri, None)
        self._tails_bytes += len(tail.data) - (0 if before is None else len(before.data))
        self._tails[uri] = tail
        while self._tails_bytes > TAILS_BYTES_MAX and len(self._tails) > 1:
            _, oldest = self._tails.popitem(last=False)
            self._tails_bytes -= len(oldest.data)


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end


def _plan_around(covered: Sequence[Span], spans: Sequence[Span], join_gap_bytes: int) -> list[Span]:
    """Requests for the parts of these ranges that the ascending `covered` do not cover, without overlaps with those."""
    starts = [each.start for each in covered]
    between: dict[int, list[Span]] = {}
    for span in spans:
        for gap in _without(span, covered):
            between.setdefault(bisect_right(starts, gap.start), []).append(gap)
    return [request for gaps in between.values() for request in plan_requests(gaps, join_gap_bytes)]


def _without(span: Span, covered: Sequence[Span]) -> list[Span]:
    """The parts of a range outside of the ascending `covered`."""
    left, start = [], span.start
    for each in covered:
        if each.end <= start or each.start >= span.end:
            continue
        if each.start > start:
            left.append(Span(start, each.start))
        start = max(start, each.end)
    if start < span.end:
        left.append(Span(start, span.end))
    return left


def _assembled(span: Span, pieces: Sequence[_SentRequest], starts: Sequence[int]) -> memoryview:
    """A range's bytes from the answers that contain it: a part of one, or several joined."""
    if not span.length:
        return memoryview(b"")
    first_number = max(bisect_right(starts, span.start) - 1, 0)
    first = pieces[first_number]
    if span.end <= first.span.end:
        return first.answer.result()[span.start - first.span.start : span.end - first.span.start]
    joined, filled = bytearray(span.length), 0
    for piece in pieces[first_number:]:
        at = span.start + filled
        if filled == span.length:
            break
        part = piece.answer.result()[at - piece.span.start : span.end - piece.span.start]
        joined[filled : filled + len(part)] = part
        filled += len(part)
    return memoryview(joined).toreadonly()
