"""A lake on S3, or on a service that speaks its language. Put-if-absent is a PUT with `If-None-Match: *`.

What may be repeated without harm (reads, listings, overwrites of hints, deletes) botocore repeats. A conditional PUT it
never does: had the first try been carried out and its answer lost, the second would be told "taken", and our own object
would look like another's. So here it is sent once, and each answer has one meaning:

| answer | meaning |
|---|---|
| 200 | created, by us |
| 412 | taken: the object was there before our request |
| 409 | the service could not decide while another writer was at the key; nothing was written: sent again |
| timeout, reset, 5xx, throttled | unknown: `Unavailable`, and the caller finds out |

The log finds out by its entry's id (`catalog/log.py`). A caller whose bodies carry no id of their own must not ask who
won: it may only conclude from `True` or `False` that the object is there now, and from `Unavailable` nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from compactor.aws.failures import translated
from compactor.clock import Clock, SystemClock
from compactor.errors import Corrupt, Invalid, Unavailable
from compactor.object_store import ObjectEntry, StoreLocation, check_key, key_bytes_max

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

KEY_BYTES_MAX = 1_024

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 30
REPEATS_MAX = 6
"""Tries of a request that may be repeated, by botocore's standard mode: about 10 seconds in all."""

CONFLICT_TRIES_MAX = 10
CONFLICT_PAUSE_SECONDS_MAX = 1.0
CONFLICT_PAUSE_SECONDS_MIN = 0.02

_REGION_OF_STAND_INS = "us-east-1"


@dataclass(frozen=True)
class S3Clients:
    """Both ways to ask one S3 service. Safe to share between threads and stores.

    repeating  for requests that may be repeated
    sent_once  for those that may not: configured without retries
    """

    repeating: S3Client
    sent_once: S3Client

    @classmethod
    def open(cls, endpoint_url: str | None, region: str | None) -> S3Clients:
        """boto3 finds the credentials, where every AWS client looks for them."""
        # One boto session for both: reading the service's description is most of what opening a client takes.
        session = boto3.session.Session()
        return cls(*(_open_client(session, endpoint_url, region, tries) for tries in (REPEATS_MAX, 1)))


class S3Store:
    """An `ObjectStore` over the objects below a prefix of a bucket. Safe to share between threads."""

    def __init__(self, location: StoreLocation, clients: S3Clients, clock: Clock) -> None:
        bucket, _, prefix = location.root_uri.removeprefix("s3://").partition("/")
        self._location = location
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self._clients = clients
        self._clock = clock

    @classmethod
    def open(cls, location: StoreLocation) -> S3Store:
        return cls(location, S3Clients.open(location.endpoint_url, location.region), SystemClock())

    @property
    def location(self) -> StoreLocation:
        return self._location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        full_key = self._full_key(key)
        for tries in range(CONFLICT_TRIES_MAX):
            with translated(f"{self._uri(key)} cannot be created"):
                try:
                    self._clients.sent_once.put_object(Bucket=self._bucket, Key=full_key, Body=body, IfNoneMatch="*")
                    return True
                except ClientError as error:
                    if _code(error) == "PreconditionFailed":
                        return False
                    if _code(error) not in ("ConditionalRequestConflict", "OperationAborted"):
                        raise
            self._pause(tries)
        raise Unavailable(f"{self._uri(key)} cannot be created: other writers are at it all the time; try later")

    def overwrite(self, key: str, body: bytes) -> None:
        full_key = self._full_key(key)
        with translated(f"{self._uri(key)} cannot be written"):
            self._clients.repeating.put_object(Bucket=self._bucket, Key=full_key, Body=body)

    def read(self, key: str) -> bytes | None:
        full_key = self._full_key(key)
        with translated(f"{self._uri(key)} cannot be read"):
            try:
                return self._clients.repeating.get_object(Bucket=self._bucket, Key=full_key)["Body"].read()
            except ClientError as error:
                if _code(error) == "NoSuchKey":
                    return None
                raise

    def read_range(self, key: str, start: int, length: int) -> bytes:
        full_key = self._full_key(key)
        if length == 0:
            return b""
        with translated(f"{self._uri(key)} cannot be read"):
            try:
                wanted = f"bytes={start}-{start + length - 1}"
                return self._clients.repeating.get_object(Bucket=self._bucket, Key=full_key, Range=wanted)[
                    "Body"
                ].read()
            except ClientError as error:
                if _code(error) == "NoSuchKey":
                    raise Corrupt(f"{self._uri(key)} is not there, though it is referred to") from error
                if _code(error) == "InvalidRange":
                    return b""  # it begins beyond the end
                raise

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        pages = self._clients.repeating.get_paginator("list_objects_v2")
        after = "" if start_after is None else self._root + start_after
        with translated(f"{self._uri(prefix)} cannot be listed"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._root + prefix, StartAfter=after):
                for found in page.get("Contents", []):
                    # A key that ends with a slash is a console's idea of an empty folder, not an object of ours.
                    if not found["Key"].endswith("/"):
                        modified_at_ms = int(found["LastModified"].timestamp() * 1000)
                        yield ObjectEntry(found["Key"].removeprefix(self._root), found["Size"], modified_at_ms)

    def list_folders(self, prefix: str) -> Iterator[str]:
        folder = self._root + prefix
        pages = self._clients.repeating.get_paginator("list_objects_v2")
        with translated(f"{self._uri(prefix)} cannot be listed"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=folder, Delimiter="/"):
                for found in page.get("CommonPrefixes", []):
                    yield found["Prefix"].removeprefix(folder).removesuffix("/")

    def delete(self, key: str) -> None:
        full_key = self._full_key(key)
        with translated(f"{self._uri(key)} cannot be deleted"):
            self._clients.repeating.delete_object(Bucket=self._bucket, Key=full_key)

    def _full_key(self, key: str) -> str:
        check_key(key)
        if len(key.encode()) > key_bytes_max(self._location):
            raise Invalid(f"{self._uri(key)} is longer than the {KEY_BYTES_MAX} bytes that S3 allows")
        return self._root + key

    def _uri(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._root}{key}"

    def _pause(self, tries: int) -> None:
        pause_seconds = min(CONFLICT_PAUSE_SECONDS_MAX, CONFLICT_PAUSE_SECONDS_MIN * 2.0**tries)
        chance = int(self._clock.new_id()[:8], 16) / 0xFFFF_FFFF
        self._clock.sleep(pause_seconds * chance)


def _open_client(
    session: boto3.session.Session, endpoint_url: str | None, region: str | None, tries_max: int
) -> S3Client:
    is_stand_in = endpoint_url is not None
    return session.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=region or (_REGION_OF_STAND_INS if is_stand_in else None),
        config=Config(
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            read_timeout=READ_TIMEOUT_SECONDS,
            retries={"mode": "standard", "total_max_attempts": tries_max},
            # `http://bucket.127.0.0.1` leads nowhere: on an endpoint of its own the bucket goes into the path.
            s3={"addressing_style": "path"} if is_stand_in else {},
        ),
    )


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")
