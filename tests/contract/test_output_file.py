"""A new file, in a folder and on S3, is visible as a whole or not at all, and does not change an existing one."""

from __future__ import annotations

import gc
import gzip
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.model.clock import SystemClock
from compactor.model.errors import Denied, Unavailable
from compactor.storage.aws import upload
from compactor.storage.aws.s3 import S3Store
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.tabular.output_file import OutputFile
from tests.contract.conftest import S3Service
from tests.proxy import FAIR, Proxy, Weather, proxy_before
from tests.servers import BUCKET
from tests.waiting import wait_until

PART_BYTES = 5 * 1024 * 1024
"""The least that S3 takes for a part."""


@pytest.fixture(
    params=[
        "folder",
        pytest.param("seaweedfs", marks=pytest.mark.servers),
        pytest.param("moto", marks=pytest.mark.servers),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    if request.param == "folder":
        return LocalStore(StoreLocation(f"file://{tmp_path}/lake"))
    monkeypatch.setattr(upload, "PART_BYTES", PART_BYTES)
    service: S3Service = request.getfixturevalue(request.param)
    location = StoreLocation(f"s3://{BUCKET}/{SystemClock().new_id()}", service.endpoint_url)
    return S3Store(location, service.clients, SystemClock())


def start(place: ObjectStore, name: str = "a/file") -> OutputFile:
    return OutputFile.open(place.location, f"{place.location.root_uri}/{name}")


def what_is_left(place: ObjectStore) -> list[str]:
    """All objects, files in folders and unfinished uploads."""
    location = place.location
    if isinstance(place, LocalStore):
        root = Path(location.root_uri.removeprefix("file://"))
        return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    assert isinstance(place, S3Store)
    prefix = location.root_uri.removeprefix(f"s3://{BUCKET}/")
    client = place.clients.client
    uploads = client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", [])
    return [entry.key for entry in place.list("")] + [f"upload of {each['Key']}" for each in uploads]


SIZES = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 17]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_there_when_it_is_finished_and_not_before(place: ObjectStore, size: int) -> None:
    body = random.Random(size).randbytes(size)
    output = start(place)
    for at in range(0, size, 1_000_000):
        output.stream.write(body[at : at + 1_000_000])
    assert place.read("a/file") is None
    assert output.finish() == size
    assert place.read("a/file") == body
    assert what_is_left(place) == ["a/file"]


def test_a_finished_file_is_durable_with_its_name_and_those_of_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsynced: list[str] = []

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        fsynced.append("file" if path.is_file() else f"{path.relative_to(tmp_path)}")

    monkeypatch.setattr(os, "fsync", note)
    for number in (1, 2):
        output = start(LocalStore(StoreLocation(f"file://{tmp_path}")), f"a/b/{number}")
        output.finish()
    assert fsynced == ["file", "a/b", ".", "a", "file", "a/b"]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_that_is_given_up_leaves_nothing_and_what_has_its_name_alone(place: ObjectStore, size: int) -> None:
    """Another attempt at the same task may have finished a file of this name, and the log may name it."""
    place.overwrite("a/file", b"of the other attempt")
    output = start(place)
    output.stream.write(bytes(size))
    output.discard()
    output.stream.write(b"a footer")
    output.stream.close()
    assert place.read("a/file") == b"of the other attempt"
    assert what_is_left(place) == ["a/file"]


def test_a_file_that_is_dropped_does_not_finish_itself(place: ObjectStore) -> None:
    output = start(place)
    output.stream.write(b"half of it")
    del output
    gc.collect()
    assert place.read("a/file") is None


def test_a_name_that_ends_with_gz_is_gzipped(place: ObjectStore) -> None:
    output = start(place, "a/file.csv.gz")
    output.stream.write(b"text")
    size = output.finish()
    body = place.read("a/file.csv.gz")
    assert body is not None
    assert (len(body), gzip.decompress(body)) == (size, b"text")


def test_large_parts_follow_a_thousand_small_ones() -> None:
    """10,000 parts hold the 5 TiB that an object may have."""
    assert sum(1_000 * upload.PART_BYTES * 2**doublings for doublings in range(10)) >= 5 * 2**40
    assert upload.PARTS_OF_ONE_SIZE == 1_000


@pytest.fixture
def weathered(seaweedfs: S3Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[S3Store, OutputFile, Proxy]]:
    """A store, and a file of two parts in it that is written through a proxy; the first part is sent."""
    monkeypatch.setattr(upload, "PART_BYTES", PART_BYTES)
    location = StoreLocation(f"s3://{BUCKET}/{SystemClock().new_id()}", seaweedfs.endpoint_url)
    with proxy_before(seaweedfs.endpoint_url) as proxy:
        output = OutputFile.open(replace(location, endpoint_url=proxy.url), f"{location.root_uri}/file")
        output.stream.write(bytes(PART_BYTES + 1))
        yield S3Store(location, seaweedfs.clients, SystemClock()), output, proxy


@pytest.mark.servers
@pytest.mark.parametrize("every", [2, 3])
def test_answers_that_are_lost_do_no_harm(weathered: tuple[S3Store, OutputFile, Proxy], every: int) -> None:
    """The service does not know a completed upload any more when the request to complete it is repeated."""
    store, output, proxy = weathered
    proxy.set_weather(Weather("answer cut", every=every))
    assert output.finish() == PART_BYTES + 1
    assert sum(proxy.harmed.values()) > 0
    assert store.read("file") == bytes(PART_BYTES + 1)
    assert what_is_left(store) == ["file"]


@pytest.mark.servers
def test_a_file_whose_last_part_is_refused_fails_and_leaves_nothing(
    weathered: tuple[S3Store, OutputFile, Proxy],
) -> None:
    store, output, proxy = weathered
    proxy.set_weather(Weather("error", status=403, code="AccessDenied"))
    with pytest.raises(Denied, match=r"file cannot be written: .*AccessDenied"):
        output.finish()
    proxy.set_weather(FAIR)
    output.discard()
    assert what_is_left(store) == []


@pytest.mark.servers
def test_an_upload_whose_writer_was_killed_is_shown_and_can_be_cleared(
    weathered: tuple[S3Store, OutputFile, Proxy],
) -> None:
    store, _, _ = weathered
    wait_until(lambda: [each.size_bytes for each in store.unfinished()] == [PART_BYTES])
    (left,) = store.unfinished()
    assert left.name.startswith("file?uploadId=")
    for _ in range(2):
        store.give_up(left)
        assert list(store.unfinished()) == []
    assert what_is_left(store) == []


@pytest.mark.servers
def test_an_upload_that_somebody_else_has_aborted_is_to_be_tried_again(
    weathered: tuple[S3Store, OutputFile, Proxy],
) -> None:
    store, output, _ = weathered
    output.stream.write(bytes(PART_BYTES))
    for each in store.clients.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
        store.clients.client.abort_multipart_upload(Bucket=BUCKET, Key=each["Key"], UploadId=each["UploadId"])
    with pytest.raises(Unavailable, match="somebody has aborted its upload"):
        output.finish()
    output.discard()
    assert what_is_left(store) == []
