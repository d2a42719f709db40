"""Events say where to look again, and who goes first when requests are short. No page is wrong without them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from compactor.model.errors import Invalid
from dispatcher.intake.queue import QueueMessage
from dispatcher.web.app import Doors, create_app
from dispatcher.web.feed import Changed, EventsFeed, changed_by
from dispatcher.web.rendering import Renderer
from dispatcher.web.shared import (
    KEPT_OBJECT_BYTES_MAX,
    RATE_SHARES,
    SECONDS_MIN,
    WATCHED_SECONDS,
    CountedStore,
    Rank,
    SharedReadings,
)
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_store import MemoryStore
from tests.fakes.served_page import HOST, Served
from tests.waiting import wait_until

EVENT = {"specversion": "1.0", "jobrunid": "one", "table": "A.T.V1", "type": "lithify.job_run.succeeded.v1"}
RATE = 1.0


class LostQueue(MemoryQueue):
    """Deleted until it is made again."""

    is_lost = False

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        if self.is_lost:
            raise Invalid("there is no queue events")
        return super().receive(messages_max, wait_seconds, visibility_seconds)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    page = Served(tmp_path)
    yield page
    page.desk.close()


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        (EVENT, Changed("one", "A.T.V1", has_ended=True)),
        ({"Type": "Notification", "Message": json.dumps(EVENT)}, Changed("one", "A.T.V1", has_ended=True)),
        ({"jobrunid": "one", "type": "lithify.of_a_later_release.v7"}, Changed("one", None, has_ended=False)),
    ],
)
def test_an_event_names_a_job_run_and_its_table(message: object, changed: Changed) -> None:
    assert changed_by(json.dumps(message)) == changed


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "7", "null", '{"jobrunid": 7}', '{"Message": "no JSON"}', '{"Message": "[1]"}', "[" * 99_999],
)
def test_a_message_that_is_no_event_is_taken_and_ignored(body: str) -> None:
    clock, told = ManualClock(), list[Changed]()
    queue = MemoryQueue(clock)
    queue.send(body)
    queue.send(json.dumps(EVENT))
    feed = EventsFeed(queue, told.append, clock)
    feed.listen()
    assert [each.job_run_id for each in told] == ["one"]
    assert queue.messages_left() == 0
    assert feed.state.failure is None


def test_a_feed_that_is_lost_says_since_when_until_it_is_heard_again(served: Served) -> None:
    queue = LostQueue(served.clock)
    feed = EventsFeed(queue, served.readings.look_again, served.clock)
    renderer = Renderer(served.readings, feed)
    assert "not heard" not in renderer.page("now")
    queue.is_lost = True
    lost_at_ms = served.clock.now_ms()
    feed.listen()
    served.clock.sleep(60.0)
    feed.listen()
    assert feed.state.since_ms == lost_at_ms
    assert "No event is heard since" in renderer.page("now")
    assert "there is no queue events" in renderer.page("tables")
    job_run_id = served.compacted()
    served.clock.sleep(60.0)
    assert job_run_id in renderer.page("now")
    client = TestClient(create_app(served.readings, served.catalog, Doors([HOST]), feed), base_url=f"http://{HOST}")
    answer = client.get("/api/v1/now").json()
    assert answer["feed"] == {"heard_at_ms": None, "failure": "there is no queue events", "since_ms": lost_at_ms}
    queue.is_lost = False
    feed.listen()
    served.clock.sleep(60.0)
    feed.listen()
    assert "No event is heard" not in renderer.page("now")


def test_what_an_event_names_is_shown_at_the_next_look_though_requests_are_owed(served: Served) -> None:
    queue = MemoryQueue(served.clock)
    feed = EventsFeed(queue, served.readings.look_again, served.clock)
    served.desk.append([{"id": 1}])
    job_run_id = served.desk.accept()
    served.readings.job_run(job_run_id)
    served.clock.sleep(3.0)
    read = served.readings.job_run(job_run_id)
    served.clock.sleep(1.0)
    assert served.readings.job_run(job_run_id) is read, "requests are owed"
    served.desk.publish(job_run_id)
    assert served.desk.sink.events
    for event in served.desk.sink.events:
        queue.send(event.render().decode())
    feed.listen()
    assert feed.state.heard_at_ms is not None
    again = served.readings.job_run(job_run_id)
    assert again is not read
    assert again.at_ms > read.at_ms


# ------------------------------------------------------------------------------------------------- who goes first


class Costly:
    """Readings that cost so many requests. `counts`: how often each was read."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.shared = SharedReadings(MemoryStore(self.clock), RATE, self.clock)
        self.counts: dict[str, int] = {}

    def reading(self, name: str, requests: int) -> Callable[[], int]:
        def read() -> int:
            for _ in range(requests):
                self.shared.store.read("key")
            self.counts[name] = self.counts.get(name, 0) + 1
            return self.counts[name]

        return read

    def look(self, name: str, requests: int, rank: Rank) -> int:
        return self.shared.of(name, self.reading(name, requests), rank).value


def test_after_a_year_of_history_what_is_open_now_is_read_again_at_once_and_history_waits() -> None:
    costly = Costly()
    costly.look("now", 3, Rank.OPEN_NOW)
    costly.look("job run", 2, Rank.ONE_THING)
    costly.look("history", 350, Rank.OVERVIEW)
    for _ in range(30):
        costly.clock.sleep(10.0)
        costly.look("now", 3, Rank.OPEN_NOW)
        costly.look("job run", 2, Rank.ONE_THING)
        costly.look("history", 350, Rank.OVERVIEW)
    assert costly.counts == {"now": 31, "job run": 31, "history": 1}


@pytest.mark.parametrize("has_events", [False, True])
def test_whatever_is_looked_at_and_whatever_events_say_the_rate_of_requests_holds(has_events: bool) -> None:
    costly = Costly()
    looks = {"now": (4, Rank.OPEN_NOW), "job run": (6, Rank.ONE_THING), "history": (9, Rank.OVERVIEW)}
    for name, (requests, rank) in looks.items():
        costly.look(name, requests, rank)
    before, seconds = costly.shared.store.requests, 1_200
    for _ in range(seconds):
        costly.clock.sleep(1.0)
        for name, (requests, rank) in looks.items():
            if has_events:
                costly.shared.look_again(name)
            costly.look(name, requests, rank)
    assert costly.shared.store.requests - before <= seconds * RATE + 9
    for name, (requests, rank) in looks.items():
        assert costly.counts[name] * requests >= 0.8 * seconds * RATE * RATE_SHARES[rank], name


def test_who_keeps_looking_does_not_wait_for_the_store_and_who_comes_back_does() -> None:
    clock, answers, counts = ManualClock(), threading.Event(), list[int]()
    shared = SharedReadings(MemoryStore(clock), RATE, clock, patience_seconds=0.0)

    def read() -> int:
        assert answers.wait(60)
        counts.append(len(counts) + 1)
        return counts[-1]

    def look() -> int:
        return shared.of("now", read, Rank.OPEN_NOW).value

    answers.set()
    assert look() == 1
    clock.sleep(10.0)
    answers.clear()
    assert [look(), look(), look()] == [1, 1, 1]
    answers.set()
    wait_until(lambda: look() == 2)
    clock.sleep(WATCHED_SECONDS)
    assert look() == 3
    assert counts == [1, 2, 3]


def test_what_is_gone_is_told_at_the_next_look_to_who_did_not_wait_for_it() -> None:
    clock, answers = ManualClock(), threading.Event()
    shared = SharedReadings(MemoryStore(clock), RATE, clock, patience_seconds=0.0)
    assert shared.of("table", lambda: 1, Rank.OPEN_NOW).value == 1

    def read() -> int:
        assert answers.wait(60)
        raise Invalid("there is no such table")

    def is_gone() -> bool:
        try:
            return shared.of("table", read, Rank.OPEN_NOW).value != 1
        except Invalid:
            return True

    clock.sleep(10.0)
    assert not is_gone(), "it is not known yet"
    answers.set()
    wait_until(is_gone)


def test_viewers_who_look_at_the_same_moment_all_have_the_reading() -> None:
    clock, found, all_here = ManualClock(), list[object](), threading.Barrier(16)
    shared = SharedReadings(MemoryStore(clock), 1e9, clock, patience_seconds=0.0)

    def look() -> None:
        all_here.wait()
        try:
            for _ in range(30_000):
                clock.sleep(SECONDS_MIN)
                shared.of("now", lambda: 1, Rank.OPEN_NOW)
            found.append(1)
        except Exception as error:  # noqa: BLE001  (of a thread)
            found.append(error)

    viewers = [threading.Thread(target=look) for _ in range(all_here.parties)]
    interval_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for viewer in viewers:
            viewer.start()
        for viewer in viewers:
            viewer.join()
    finally:
        sys.setswitchinterval(interval_seconds)
    assert found == [1] * len(viewers)


def test_a_reading_that_nobody_else_is_beside_has_all_requests() -> None:
    costly = Costly()
    for _ in range(1_200):
        costly.clock.sleep(1.0)
        costly.look("history", 9, Rank.OVERVIEW)
    assert costly.counts["history"] * 9 == pytest.approx(1_200 * RATE, rel=0.1)


def test_a_listing_of_many_names_is_as_many_requests_as_s3_has_pages_of_it() -> None:
    store = MemoryStore(ManualClock())
    for number in range(2_500):
        store.put_if_absent(f"job_runs/{number}/log/1", b"x")
    counted = CountedStore(store)
    assert len(list(counted.list("job_runs/"))) == len(list(counted.list_folders("job_runs/"))) == 2_500
    assert counted.requests == 3 + 3
    assert list(counted.list("none/")) == []
    assert counted.requests == 7


def test_what_never_changes_is_asked_for_once_and_what_is_kept_of_it_is_bounded() -> None:
    store = MemoryStore(ManualClock())
    entries = [f"job_runs/run/log/{number:020}.json" for number in range(1, 21)]
    for key in entries:
        store.put_if_absent(key, b"x" * KEPT_OBJECT_BYTES_MAX)
    store.put_if_absent("job_runs/run/log/_last_checkpoint", b"16")
    counted = CountedStore(store)
    for _ in range(3):
        assert counted.read(entries[0]) is not None
        assert counted.read("job_runs/run/log/_last_checkpoint") == b"16"
        assert counted.read(f"job_runs/run/log/{21:020}.json") is None, "it may be written at any time"
    assert counted.requests == 1 + 3 + 3
    for key in entries:
        counted.read(key)
    before = counted.requests
    assert counted.read(entries[-1]) is not None
    assert counted.requests == before
    assert counted.read(entries[0]) is not None
    assert counted.requests == before + 1, "another has taken its place"
