"""Every object is written with S3's additional checksum, which the service compares with what arrived."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator

import boto3
import pytest

from compactor.model.clock import SystemClock
from compactor.storage.aws.s3 import S3Clients, S3Store
from compactor.storage.aws.upload import PART_BYTES, S3Upload
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import REQUEST_BYTES_MAX
from dispatcher.demo.stand_ins import queue_server
from tests.servers import REGION, aws_environment

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with aws_environment(), queue_server() as url:
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


@pytest.mark.parametrize("size", [0, 3, REQUEST_BYTES_MAX, REQUEST_BYTES_MAX + 1])
@pytest.mark.parametrize("name", ["plain", "no\tpath"])
def test_objects_of_one_request_have_their_crc32_beside_them_and_a_checksum_for_the_service(
    url: str, size: int, name: str
) -> None:
    clients, sent = watched(url)
    root = f"s3://checksums/{SystemClock().new_id()}"
    store = S3Store(StoreLocation(root, url, REGION), clients, SystemClock())
    bodies = {f"{name}-{number}": bytes([number]) * size for number in range(3)}
    entry, hint, file = bodies
    assert store.put_if_absent(entry, bodies[entry])
    store.overwrite(hint, bodies[hint])
    upload = S3Upload(clients, f"{root}/{file}")
    upload.write(bodies[file])
    upload.finish()
    is_large = size > REQUEST_BYTES_MAX
    assert sent == ([("PUT", encoded(body)) for body in bodies.values()] if is_large or name != "plain" else [])
    for key, body in bodies.items():
        assert store.read(key) == body
        found = clients.client.head_object(
            Bucket="checksums", Key=f"{root.rpartition('/')[2]}/{key}", ChecksumMode="ENABLED"
        )
        assert found["Metadata"] == {"lithify-crc32": f"{zlib.crc32(body):08x}"}
        if not sent:
            assert found["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(body).digest()).decode()


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
