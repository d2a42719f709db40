"""Each request to S3 has a time within which its answer must be complete."""

from __future__ import annotations

import threading

import pytest
from botocore.exceptions import ReadTimeoutError

from compactor.storage.aws.limits import within

URL = "https://bucket.example"


def test_a_request_that_gets_no_answer_in_time_is_left_behind() -> None:
    is_answered = threading.Event()
    with pytest.raises(ReadTimeoutError, match=URL):
        within(0.01, URL, lambda: is_answered.wait(60))
    is_answered.set()
    assert within(5, URL, lambda: 7) == 7
