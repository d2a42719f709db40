"""Files are sent to a store side by side, within a bound of the memory that they hold."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator

import pytest

from compactor.model.errors import Unavailable
from compactor.storage.sending import Sending

WAIT_SECONDS = 30


class Store:
    """Files that arrive once `may_arrive` is set; `begun` counts those that were begun."""

    def __init__(self) -> None:
        self.may_arrive = threading.Event()
        self.begun = threading.Semaphore(0)
        self.arrived = 0
        self._lock = threading.Lock()

    def send(self) -> None:
        self.begun.release()
        assert self.may_arrive.wait(WAIT_SECONDS)
        with self._lock:
            self.arrived += 1


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.may_arrive.set()


def test_files_for_which_there_is_room_are_sent_side_by_side(store: Store) -> None:
    sending = Sending(room_bytes=30)
    for _ in range(3):
        sending.begin(store.send, 10)
    for _ in range(3):
        assert store.begun.acquire(timeout=WAIT_SECONDS)
    store.may_arrive.set()
    sending.wait()
    assert store.arrived == 3


@pytest.mark.parametrize(("first", "second"), [(20, 11), (1_000, 1), (1, 1_000)])
def test_a_file_that_does_not_fit_beside_the_others_is_begun_once_they_have_arrived(
    store: Store, first: int, second: int
) -> None:
    one, other = Sending(room_bytes=30), Sending(room_bytes=30)
    one.begin(store.send, first)
    found: list[int] = []

    def begin_the_other() -> None:
        other.begin(lambda: found.append(store.arrived), second)

    beginning = threading.Thread(target=begin_the_other)
    beginning.start()
    assert store.begun.acquire(timeout=WAIT_SECONDS)
    store.may_arrive.set()
    beginning.join()
    one.wait()
    other.wait()
    assert found == [1]


def test_a_file_that_cannot_be_sent_fails_who_waits_for_it_and_frees_its_room(store: Store) -> None:
    def fail() -> None:
        raise Unavailable("the store is away")

    store.may_arrive.set()
    sending = Sending(room_bytes=10)
    sending.begin(fail, 10)
    sending.begin(store.send, 10)
    with pytest.raises(Unavailable, match="the store is away"):
        sending.wait()
    after = Sending(room_bytes=10)
    after.begin(store.send, 10)
    after.wait()


def test_files_that_go_to_another_process_have_arrived() -> None:
    store = Store()
    sending = Sending(room_bytes=100)
    sending.begin(store.send, 10)

    def release() -> None:
        assert store.begun.acquire(timeout=WAIT_SECONDS)
        store.may_arrive.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    received = pickle.loads(pickle.dumps(sending))
    assert store.arrived == 1
    received.wait()
    releasing.join()


def test_files_that_failed_do_not_go_to_another_process() -> None:
    def fail() -> None:
        raise Unavailable("the store is away")

    sending = Sending(room_bytes=100)
    sending.begin(fail, 10)
    with pytest.raises(Unavailable, match="the store is away"):
        pickle.dumps(sending)
