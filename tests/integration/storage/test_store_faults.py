"""Each operation of a store, and each fault of a store: it ends right, or with `Unavailable` within its time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from compactor.model.clock import SystemClock
from compactor.model.errors import Unavailable
from compactor.storage.aws.limits import RequestLimits
from compactor.storage.aws.ranges import S3Ranges
from compactor.storage.aws.s3 import S3Clients, S3Store
from compactor.storage.aws.upload import S3Upload
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import CONNECTIONS_MAX, Span
from compactor.storage.repeated_ranges import RepeatedRanges
from tests.proxy import FAIR, Proxy, Weather, proxy_before_bucket
from tests.servers import REGION

pytestmark = pytest.mark.servers

IMPATIENT = RequestLimits(
    connect_seconds=1.0, answer_seconds=1.0, bytes_per_second_min=16 * 1024 * 1024, tries_max=2, repeat_seconds_max=1.0
)
PATIENT = replace(IMPATIENT, tries_max=9, answer_seconds=5.0, repeat_seconds_max=30.0)
BODY = bytes(range(256)) * 200
PART_BYTES = 5 * 1024 * 1024

FOR_EVER = {
    "silence": Weather("silence"),
    "answers lost": Weather("answer cut"),
    "bodies cut": Weather("body cut"),
    "resets": Weather("reset"),
    "requests cut": Weather("request cut"),
    "SlowDown": Weather("error", code="SlowDown"),
    "a byte a second": Weather(bytes_per_second=1),
    "delays beyond the limit": Weather(delay_seconds=5),
}
FOR_A_WHILE = {
    "answers lost": Weather("answer cut", every=4),
    "bodies cut": Weather("body cut", every=4),
    "resets": Weather("reset", every=4),
    "requests cut": Weather("request cut", every=4),
    "SlowDown in bursts": Weather("error", every=6, burst=2, code="SlowDown"),
    "delays": Weather(delay_seconds=0.1),
    "little bandwidth": Weather(bytes_per_second=4_000_000),
}


@dataclass(frozen=True)
class StoreUnderTest:
    """A prefix of its own, with the object `there`, seen through the proxy and past it."""

    store: S3Store
    ranges: RepeatedRanges
    past: S3Store

    def upload(self) -> S3Upload:
        return S3Upload(self.store.clients, f"{self.store.location.root_uri}/new")

    @property
    def uri(self) -> str:
        return f"{self.store.location.root_uri}/there"


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with proxy_before_bucket("faults") as made:
        yield made


def new_place(through: S3Clients, url: str, past: S3Clients, past_url: str) -> StoreUnderTest:
    root = f"s3://faults/{SystemClock().new_id()}"
    made = StoreUnderTest(
        S3Store(StoreLocation(root, url, REGION), through, SystemClock()),
        RepeatedRanges(
            S3Ranges(through, SystemClock()),
            SystemClock(),
            tries_max=through.limits.tries_max,
            repeat_seconds_max=through.limits.repeat_seconds_max,
        ),
        S3Store(StoreLocation(root, past_url, REGION), past, SystemClock()),
    )
    made.past.overwrite("there", BODY)
    made.past.overwrite("a/1", b"")
    made.past.overwrite("a/2", b"")
    return made


def create(place: StoreUnderTest) -> None:
    # False: the answer to our own request was lost, and the log would find its entry by its id.
    assert place.store.put_if_absent("new", BODY) in (True, False)
    assert place.past.read("new") == BODY


def overwrite(place: StoreUnderTest) -> None:
    place.store.overwrite("there", b"anew")
    assert place.past.read("there") == b"anew"


def read(place: StoreUnderTest) -> None:
    assert place.store.read("there") == BODY


def read_nothing(place: StoreUnderTest) -> None:
    assert place.store.read("not there") is None


def read_range(place: StoreUnderTest) -> None:
    assert place.store.read_range("there", 1000, 20_000) == BODY[1000:21_000]


def list_objects(place: StoreUnderTest) -> None:
    assert [each.key for each in place.store.list("a/")] == ["a/1", "a/2"]


def list_folders(place: StoreUnderTest) -> None:
    assert list(place.store.list_folders("")) == ["a"]


def delete(place: StoreUnderTest) -> None:
    place.store.delete("there")
    assert place.past.read("there") is None


def delete_many(place: StoreUnderTest) -> None:
    assert place.store.delete_many(["there", "not there"]) == {}
    assert place.past.read("there") is None


def list_unfinished(place: StoreUnderTest) -> None:
    assert list(place.store.unfinished()) == []


def write_small_file(place: StoreUnderTest) -> None:
    upload = place.upload()
    upload.write(BODY)
    assert upload.finish() == len(BODY)
    assert place.past.read("new") == BODY


def write_in_parts(place: StoreUnderTest) -> None:
    upload = place.upload()
    try:
        upload.write(bytes(PART_BYTES))
        upload._send_part()
        upload.write(BODY)
        assert upload.finish() == PART_BYTES + len(BODY)
    except Unavailable:
        upload.discard()
        raise
    assert place.past.read("new") == bytes(PART_BYTES) + BODY


def fetch_range(place: StoreUnderTest) -> None:
    assert place.ranges.read(place.uri, Span(1000, 21_000), None) == BODY[1000:21_000]


def fetch_end(place: StoreUnderTest) -> None:
    tail = place.ranges.read_tail(place.uri, 30_000)
    assert (tail.size_bytes, bytes(tail.data)) == (len(BODY), BODY[-30_000:])


OPERATIONS: tuple[Callable[[StoreUnderTest], None], ...] = (
    create,
    overwrite,
    read,
    read_nothing,
    read_range,
    list_objects,
    list_folders,
    delete,
    delete_many,
    list_unfinished,
    write_small_file,
    write_in_parts,
    fetch_range,
    fetch_end,
)


def operate_all(proxy: Proxy, limits: RequestLimits, weather: Weather, silent_seconds: float | None = None) -> None:
    """All operations at the same time, each in a place of its own. An unexpected outcome is named."""
    past_url = f"http://{proxy.host}:{proxy.port}"
    past, through = S3Clients.open(past_url, REGION), S3Clients.open(proxy.url, REGION, limits)
    places = [new_place(through, proxy.url, past, past_url) for _ in OPERATIONS]
    proxy.set_weather(weather)
    speaks_again = threading.Timer(silent_seconds or 0.0, proxy.set_weather, (FAIR,))
    if silent_seconds is not None:
        speaks_again.start()
    lasts = silent_seconds is None and weather in FOR_EVER.values()
    reaches_nobody = lasts and weather.harm in ("silence", "error", "request cut")
    try:
        with ThreadPoolExecutor(len(OPERATIONS)) as threads:
            outcomes = list(threads.map(outcome, OPERATIONS, places))
    finally:
        if silent_seconds is not None:
            speaks_again.join()
        proxy.set_weather(FAIR)
    for operate, place, found in zip(OPERATIONS, places, outcomes, strict=True):
        name = operate.__name__
        if lasts:
            # Right at last where the answer has no body to lose.
            assert isinstance(found, Unavailable) or (found is None and not reaches_nobody), (name, found)
            assert found is None or "s3://faults/" in str(found)
        elif operate is create and isinstance(found, Unavailable):
            # A conditional PUT is sent once: without its answer the outcome is unknown, and the log finds out.
            assert place.past.read("new") in (None, BODY)
        else:
            assert found is None, (name, found)
        assert place.past.read("a/1") == b"", name


def outcome(operate: Callable[[StoreUnderTest], None], place: StoreUnderTest) -> Exception | None:
    try:
        operate(place)
    except Exception as error:  # noqa: BLE001  (the caller judges it)
        return error
    return None


@pytest.mark.parametrize("fault", FOR_EVER)
def test_every_operation_in_lasting_trouble_ends_right_or_is_unavailable(proxy: Proxy, fault: str) -> None:
    """That they end at all, while the fault lasts, shows their limits."""
    operate_all(proxy, IMPATIENT, FOR_EVER[fault])


@pytest.mark.parametrize("fault", FOR_A_WHILE)
def test_every_operation_on_a_store_in_passing_trouble_ends_right(proxy: Proxy, fault: str) -> None:
    operate_all(proxy, PATIENT, FOR_A_WHILE[fault])


def test_every_operation_on_a_store_that_is_silent_for_a_while_ends_right(proxy: Proxy) -> None:
    operate_all(proxy, PATIENT, Weather("silence"), silent_seconds=1.0)


def test_a_store_that_throttles_gets_fewer_requests_for_ranges_at_a_time_and_all_of_them_again_later(
    proxy: Proxy,
) -> None:
    past_url = f"http://{proxy.host}:{proxy.port}"
    past, through = S3Clients.open(past_url, REGION), S3Clients.open(proxy.url, REGION, PATIENT)
    place = new_place(through, proxy.url, past, past_url)
    proxy.count_anew()
    proxy.set_weather(Weather("error", every=3, code="SlowDown"))
    try:
        for _ in range(6):
            fetch_range(place)
    finally:
        proxy.set_weather(FAIR)
    lowered = place.ranges.connections.allowed
    assert lowered <= CONNECTIONS_MAX // 4
    assert len(proxy.seen()) == 6
    for _ in range(8 * lowered):
        fetch_range(place)
    assert place.ranges.connections.allowed > lowered
