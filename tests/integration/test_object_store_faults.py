"""A compaction and a scan over an object store in trouble end right, and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pytest

import compactor
from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.errors import Unavailable
from compactor.sessions.session_log import SessionProgress
from compactor.storage import opening
from compactor.storage.aws import s3
from compactor.storage.aws.limits import RequestLimits
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from tests.proxy import Proxy, Weather, proxy_before_bucket
from tests.servers import REGION

pytestmark = pytest.mark.servers

TABLE = "ACME.TROUBLED.V1"
ROWS = 30_000


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with proxy_before_bucket("troubled") as made:
        yield made


@pytest.fixture
def fair_afterwards(proxy: Proxy) -> Iterator[None]:
    yield
    proxy.set_weather(Weather(), "s3")


def catalog(proxy: Proxy, prefix: str) -> DeltaCatalog:
    location = parse_location(f"s3://troubled/{prefix}", endpoint_url=proxy.url, region=REGION)
    return DeltaCatalog(open_store(location), SystemClock())


def written(proxy: Proxy, prefix: str) -> None:
    """Two deltas that are not compacted, of whose keys a third comes twice."""
    table = catalog(proxy, prefix).create_table(TABLE, [])
    for start, status in ((0, "old"), (ROWS // 2, "new")):
        ids = np.arange(start, start + ROWS)
        noise = np.random.default_rng(start).integers(0, 2**60, ROWS)
        table.append({}, pa.table({"id": ids, "noise": noise, "status": [status] * ROWS}))


def assert_right(proxy: Proxy, prefix: str) -> None:
    found = catalog(proxy, prefix).table(TABLE).scan().to_table().sort_by("id")
    assert found.column("id").to_pylist() == list(range(ROWS * 3 // 2))
    assert found.column("status").to_pylist() == ["old"] * (ROWS // 2) + ["new"] * ROWS


def compact(proxy: Proxy, prefix: str) -> None:
    compactor.compact(TABLE, {"id"}, delta_catalog_client=catalog(proxy, prefix), rows_per_compacted_file=10_000)


FAULTS = {
    "bodies cut short": Weather("body cut", every=6),
    "resets": Weather("reset", every=6),
    "answers lost": Weather("answer cut", every=9),
    "SlowDown in bursts": Weather("error", every=12, burst=2, code="SlowDown"),
    "a trickle": Weather(bytes_per_second=5_000_000, delay_seconds=0.01),
}


@pytest.mark.usefixtures("fair_afterwards")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_compaction_and_a_scan_end_right_in_spite_of(proxy: Proxy, fault: str) -> None:
    prefix = fault.replace(" ", "-")
    written(proxy, prefix)
    proxy.count_anew()
    proxy.set_weather(FAULTS[fault], "s3")

    compact(proxy, prefix)
    assert_right(proxy, prefix)

    if FAULTS[fault].harm != "none":
        assert sum(proxy.harmed.values()) >= 3


IMPATIENT = RequestLimits(
    connect_seconds=1.0, answer_seconds=1.0, bytes_per_second_min=16 * 1024 * 1024, tries_max=2, repeat_seconds_max=1.0
)


@contextmanager
def impatient() -> Iterator[None]:
    """Requests of this process have short limits: with those of every day the end of a silence takes two minutes. They
    are no limits for a well store on a busy machine."""

    @lru_cache
    def clients(_process_id: int, endpoint_url: str | None, region: str | None) -> s3.S3Clients:
        return s3.S3Clients.open(endpoint_url, region, IMPATIENT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3, "_clients_of_process", clients)
        opening._range_reader.cache_clear()
        yield
    opening._range_reader.cache_clear()


LASTING = {
    "silence from a request on": Weather("silence", every=15, burst=15),
    "a byte a second": Weather(bytes_per_second=1),
}


@pytest.mark.slow
@pytest.mark.usefixtures("fair_afterwards")
@pytest.mark.parametrize("fault", LASTING)
def test_a_compaction_in_lasting_trouble_is_unavailable_and_the_next_one_ends_right(proxy: Proxy, fault: str) -> None:
    """That it ends at all, while the trouble lasts, shows its limits."""
    prefix = fault.replace(" ", "-")
    written(proxy, prefix)
    proxy.set_weather(LASTING[fault], "s3")
    with impatient(), pytest.raises(Unavailable, match="s3://troubled/"):
        compact(proxy, prefix)
    proxy.set_weather(Weather(), "s3")

    compact(proxy, prefix)
    assert_right(proxy, prefix)


@pytest.mark.slow
@pytest.mark.usefixtures("fair_afterwards")
@pytest.mark.parametrize(
    "weather", [Weather("silence"), Weather(bytes_per_second=1)], ids=["silence", "a byte a second"]
)
def test_a_compaction_that_the_store_leaves_in_the_middle_is_unavailable_and_the_next_one_ends_right(
    proxy: Proxy, weather: Weather
) -> None:
    prefix = f"in-the-middle-{weather.harm}"
    written(proxy, prefix)

    def leave(progress: SessionProgress) -> None:
        if progress.heartbeat is not None and progress.heartbeat.step == "materialize":
            proxy.set_weather(weather, "s3")

    with impatient(), pytest.raises(Unavailable, match="s3://troubled/"):
        compactor.compact(
            TABLE,
            {"id"},
            delta_catalog_client=catalog(proxy, prefix),
            rows_per_compacted_file=10_000,
            progress=leave,
        )
    proxy.set_weather(Weather(), "s3")

    compact(proxy, prefix)
    assert_right(proxy, prefix)
