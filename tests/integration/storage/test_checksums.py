"""Every object is written with S3's additional checksum, which the service compares with what arrived."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator

import boto3
import pytest

from compactor.model.clock import SystemClock
from compactor.storage.aws.s3 import S3Clients, S3Store
from compactor.storage.aws.upload import PART_BYTES, S3Upload
from compactor.storage.location import StoreLocation
from tests.servers import REGION, aws_environment, moto_server

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with aws_environment(), moto_server() as url:
        boto3.client("s3", endpoint_url=url, region_name=REGION).create_bucket(Bucket="checksums")
        yield url


def watched(url: str) -> tuple[S3Clients, list[tuple[str, str | None]]]:
    """Clients, and each request that they send: its verb, and the CRC-32 in its headers."""
    clients = S3Clients.open(url, REGION)
    sent: list[tuple[str, str | None]] = []

    def see(request: object, **_: object) -> None:
        headers, verb = request.headers, request.method  # type: ignore[attr-defined]
        given = headers.get("x-amz-checksum-crc32")
        sent.append((verb, given.decode() if isinstance(given, bytes) else given))

    for client in (clients.client,):
        client.meta.events.register_first("before-send.s3", see)
    return clients, sent


def encoded(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def test_objects_of_one_request_are_sent_with_their_crc32(url: str) -> None:
    clients, sent = watched(url)
    root = f"s3://checksums/{SystemClock().new_id()}"
    store = S3Store(StoreLocation(root, url, REGION), clients, SystemClock())
    store.put_if_absent("entry", b"an entry")
    store.overwrite("hint", b"a hint")
    upload = S3Upload(clients, f"{root}/file")
    upload.write(b"a small file")
    upload.finish()
    assert sent == [("PUT", encoded(body)) for body in (b"an entry", b"a hint", b"a small file")]


def test_each_part_of_an_upload_is_sent_with_its_crc32(url: str) -> None:
    clients, sent = watched(url)
    bodies: list[bytes] = []
    clients.client.meta.events.register_first(
        "before-send.s3.CompleteMultipartUpload", lambda request, **_: bodies.append(request.body)
    )
    upload = S3Upload(clients, f"s3://checksums/{SystemClock().new_id()}/file")
    upload.write(bytes(PART_BYTES) + b"the rest")
    upload.finish()
    parts = sorted(checksum or "" for verb, checksum in sent if verb == "PUT")
    assert parts == sorted([encoded(bytes(PART_BYTES)), encoded(b"the rest")])
    assert all(f"<ChecksumCRC32>{part}</ChecksumCRC32>".encode() in bodies[0] for part in parts)
