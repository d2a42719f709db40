"""Requests for ranges: neighbours are joined, long ones cut, no byte asked for twice, what is begun is bounded."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.errors import Corrupt, Unavailable
from compactor.storage.ranges import RangeReader, Span, plan_requests
from tests.fakes.memory_ranges import MemoryRanges

URI = "s3://lake/x"
BODY = bytes(range(256)) * 8

SPANS = st.lists(
    st.tuples(st.integers(0, len(BODY)), st.integers(0, len(BODY))).map(lambda ends: Span(min(ends), max(ends))),
    max_size=8,
)


@given(SPANS, st.integers(0, 64), st.integers(1, 300))
def test_requests_bring_every_byte_once_are_short_enough_and_span_only_small_gaps(
    spans: list[Span], gap: int, longest: int
) -> None:
    requests = plan_requests(spans, gap, longest)
    requested = [place for request in requests for place in range(request.start, request.end)]
    wanted = {place for span in spans for place in range(span.start, span.end)}
    assert len(requested) == len(set(requested))
    assert wanted <= set(requested)
    assert requested == sorted(requested)
    assert all(0 < request.length <= longest for request in requests)
    for left, right in pairwise(sorted(wanted)):
        assert {left + 1, right - 1} <= set(requested) if right - left - 1 <= gap and right - left > 1 else True
    # What was not wanted lies between two that were.
    for place in set(requested) - wanted:
        before = max(each for each in wanted if each < place)
        after = min(each for each in wanted if each > place)
        assert after - before - 1 <= gap


@given(SPANS, SPANS, st.booleans())
def test_what_is_read_are_the_object_s_bytes_whatever_was_begun_before(
    begun: list[Span], spans: list[Span], knows_tail: bool
) -> None:
    reader = RangeReader(MemoryRanges({URI: BODY}))
    if knows_tail:
        reader.tail(URI)
    reader.begin(URI, begun)
    assert [bytes(data) for data in reader.read(URI, spans)] == [BODY[span.start : span.end] for span in spans]


def test_what_was_begun_is_not_asked_for_again() -> None:
    objects = MemoryRanges({URI: BODY})
    reader = RangeReader(objects)
    reader.begin(URI, [Span(100, 200)])
    reader.begin(URI, [Span(100, 200)])
    reader.read(URI, [Span(50, 150), Span(150, 400)])
    assert objects.bytes_requested() == 350
    reader.read(URI, [Span(100, 200)])
    assert objects.bytes_requested() == 450  # it was taken


def test_no_more_is_begun_than_there_is_room_for_until_something_is_taken_or_let_go() -> None:
    objects = MemoryRanges({URI: BODY, "s3://lake/y": BODY})
    reader = RangeReader(objects)
    reader.give_room(300)
    assert reader.begin(URI, [Span(0, 200)])
    assert not reader.begin(URI, [Span(1000, 1200)])
    reader.read(URI, [Span(0, 200)])
    assert reader.begin(URI, [Span(1000, 1200)])
    reader.forget(URI)
    assert reader.begin("s3://lake/y", [Span(0, 300)])


def test_the_end_of_an_object_is_read_once_until_the_log_names_another_size_or_it_may_be_new() -> None:
    objects = MemoryRanges({URI: BODY})
    reader = RangeReader(objects)
    assert bytes(reader.tail(URI, length=100).data) == BODY[-100:]
    reader.tail(URI, size_bytes=len(BODY))
    assert len(objects.requests) == 1
    objects.objects[URI] = BODY + b"more"
    assert reader.tail(URI, size_bytes=len(BODY) + 4).size_bytes == len(BODY) + 4
    objects.objects[URI] = b"anew"
    assert reader.tail(URI, refresh=True).size_bytes == 4


def test_ends_that_are_begun_are_read_once_and_anew() -> None:
    other = "s3://lake/y"
    objects = MemoryRanges({URI: BODY, other: BODY})
    reader = RangeReader(objects)
    reader.tail(URI)
    objects.objects[URI] = b"anew"
    reader.begin_tails([URI, other, "s3://lake/gone"])
    assert [reader.tail(each).size_bytes for each in (URI, other, URI, other)] == [4, len(BODY), 4, len(BODY)]
    with pytest.raises(Corrupt):
        reader.tail("s3://lake/gone")
    assert len(objects.requests) == 3


def test_bytes_of_two_versions_of_an_object_are_never_mixed() -> None:
    objects = MemoryRanges({URI: BODY})
    reader = RangeReader(objects)
    reader.tail(URI, length=100)
    objects.objects[URI] = bytes(reversed(BODY))
    with pytest.raises(Corrupt, match="s3://lake/x has changed while it was read"):
        reader.read(URI, [Span(0, 10)])


def test_what_failed_when_it_was_begun_is_asked_for_again_when_it_is_needed() -> None:
    objects = MemoryRanges({URI: BODY})
    has_failed = threading.Event()

    def fail_once(_: str) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise Unavailable("not now")

    objects.fail = fail_once
    reader = RangeReader(objects)
    reader.begin(URI, [Span(0, 10)])
    assert bytes(reader.read(URI, [Span(0, 10)])[0]) == BODY[:10]


def test_an_end_that_is_asked_for_by_two_at_the_same_time_is_read_once() -> None:
    objects = MemoryRanges({URI: BODY})
    both_ask, asking = threading.Event(), threading.Event()

    def wait(_: str) -> None:
        asking.set()
        assert both_ask.wait(30)

    objects.fail = wait
    reader = RangeReader(objects)

    def ask() -> None:
        reader.tail(URI)

    first = reader.soon(ask)
    assert asking.wait(30)
    second = reader.soon(ask)
    both_ask.set()
    first.result()
    second.result()
    assert len(objects.requests) == 1
