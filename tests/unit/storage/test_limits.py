"""Each request to S3 is asked in a thread, which can be left behind."""

from __future__ import annotations

import threading

import pytest
from botocore.exceptions import ReadTimeoutError

from compactor.storage.aws.limits import within

URL = "https://bucket.example"


def test_a_thread_is_kept_for_the_next_request() -> None:
    first = within(5, URL, threading.get_ident)
    assert first != threading.get_ident()
    assert within(5, URL, threading.get_ident) == first


def test_a_request_that_gets_no_answer_is_left_behind_and_its_thread_serves_again_when_it_has_one() -> None:
    is_answered = threading.Event()
    asked_by: list[int] = []

    def ask() -> None:
        asked_by.append(threading.get_ident())
        is_answered.wait()

    with pytest.raises(ReadTimeoutError, match=URL):
        within(0.01, URL, ask)
    beside = within(5, URL, threading.get_ident)
    assert asked_by != [beside]
    is_answered.set()
    while within(5, URL, threading.get_ident) != asked_by[0]:
        pass


def test_an_error_is_raised_to_who_asked() -> None:
    def fail() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        within(5, URL, fail)
