"""Parts are read in several threads: their batches come in order, and what is decoded and not taken is bounded."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.reading.ordered_batches import STEP_BYTES, Batches, batches_in_order

THREADS = 3


def batch_of(number: int, size_bytes: int = 8) -> pa.RecordBatch:
    return pa.record_batch({"n": np.full(max(size_bytes // 8, 1), number)})


def numbers_of(batches: Batches) -> list[int]:
    return [batch["n"][0].as_py() for batch in batches]


def part_of(numbers: list[int], size_bytes: int = 8) -> Batches:
    for number in numbers:
        yield batch_of(number, size_bytes)


def scan_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "scan"]


def assert_that_all_threads_end() -> None:
    for thread in scan_threads():
        thread.join(timeout=60)
    assert not scan_threads()


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=60), st.integers(1, 5))
def test_batches_come_in_the_order_of_their_parts(parts: list[list[int]], threads: int) -> None:
    read = batches_in_order([partial(part_of, each) for each in parts], threads)
    assert numbers_of(read) == [number for each in parts for number in each]
    assert_that_all_threads_end()


def test_parts_are_read_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)

    def meeting(number: int) -> Batches:
        both.wait()
        yield batch_of(number)

    assert numbers_of(batches_in_order([partial(meeting, 0), partial(meeting, 1)], 2)) == [0, 1]


class Counted:
    """Parts whose batches are counted from when they are decoded to when they are taken."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._lock = threading.Lock()
        self.in_flight_bytes = 0
        self.most_bytes = 0

    def part(self, batches: int) -> Batches:
        for number in range(batches):
            with self._lock:
                self.in_flight_bytes += self._batch_bytes
                self.most_bytes = max(self.most_bytes, self.in_flight_bytes)
            yield batch_of(number, self._batch_bytes)

    def take(self) -> None:
        with self._lock:
            self.in_flight_bytes -= self._batch_bytes


@pytest.mark.parametrize("batches_of_a_part", [1, 3, 40])
def test_the_bytes_that_are_decoded_and_not_taken_are_bounded(batches_of_a_part: int) -> None:
    batch_bytes, bytes_max = STEP_BYTES // 4, 4 * STEP_BYTES
    counted = Counted(batch_bytes)
    parts: list[Callable[[], Batches]] = [partial(counted.part, batches_of_a_part)] * (80 // batches_of_a_part)
    taken = 0
    for _ in batches_in_order(parts, THREADS, bytes_max):
        # The slowest consumer there is: no thread has anything left to do when it takes its next batch.
        assert_that_all_threads_end()
        counted.take()
        taken += 1
    assert taken == len(parts) * batches_of_a_part
    # The part whose turn it is may take a step beyond the bound.
    assert STEP_BYTES < counted.most_bytes <= bytes_max + STEP_BYTES + batch_bytes


def test_an_error_comes_in_its_place() -> None:
    def failing() -> Batches:
        yield batch_of(1)
        raise ValueError("damaged")

    read = batches_in_order([partial(part_of, [0]), failing, partial(part_of, [2])], THREADS)
    assert [next(read)["n"][0].as_py() for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="damaged"):
        next(read)
    assert_that_all_threads_end()


def test_a_consumer_that_stops_early_ends_the_threads_and_the_parts() -> None:
    closed = []

    def endless(number: int) -> Batches:
        try:
            while True:
                yield batch_of(number, STEP_BYTES // 4)
        finally:
            closed.append(number)

    with closing(batches_in_order([partial(endless, number) for number in range(9)], THREADS)) as read:
        next(read)
    assert_that_all_threads_end()
    gc.collect()
    assert 0 in closed
    assert len(closed) == len(set(closed)) < 9


def test_a_scan_that_is_forgotten_has_no_threads() -> None:
    read = batches_in_order([partial(part_of, [0] * 1_000, STEP_BYTES // 4)] * 9, THREADS)
    next(read)
    assert_that_all_threads_end()  # they wait for nobody
    del read
    assert_that_all_threads_end()


def test_one_thread_is_the_consumer_s() -> None:
    threads = []

    def part() -> Batches:
        threads.append(threading.current_thread())
        yield batch_of(0)

    assert numbers_of(batches_in_order([part, part], 1)) == [0, 0]
    assert set(threads) == {threading.current_thread()}
