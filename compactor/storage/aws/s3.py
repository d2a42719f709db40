"""A lake on S3, or on a service with S3's API. Put-if-absent is a PUT with `If-None-Match: *`.

Requests that are safe to repeat (reads, listings, overwrites of hints, deletes) are repeated here, not by botocore,
which has no limit for a whole try. A conditional PUT must not be repeated: if the first one succeeded and its answer
was lost, the second one gets the answer "taken", and our own object looks like another writer's. So it is sent once,
and each answer has one meaning:

| answer | meaning |
|---|---|
| 200 | created, by us |
| 412 | taken: the object existed before our request |
| 409 | a concurrent write to the key; nothing was written: sent again |
| timeout, reset, 5xx, throttled | unknown: `Unavailable`, and the caller finds out |

The log finds out by its entry's id (`log/durable_log.py`). Other callers, whose bodies have no id, cannot know who won:
after `True` or `False` the object exists, after `Unavailable` nothing is known.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

from botocore.config import Config
from botocore.exceptions import ClientError

from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import Corrupt, Denied, Invalid, Unavailable
from compactor.model.machine import this_release
from compactor.model.retries import Backoff, Retry
from compactor.storage.aws import native
from compactor.storage.aws.boto import REGION_OF_STAND_INS, new_session
from compactor.storage.aws.failures import code_of, is_temporary, kind_of, translated
from compactor.storage.aws.limits import LIMITS, RequestLimits, within
from compactor.storage.aws.native import CHECKSUM, Endpoint, NotByObstore, checksum_of
from compactor.storage.concurrently import AT_ONCE
from compactor.storage.location import StoreLocation, bucket_and_key, key_bytes_max
from compactor.storage.object_store import ObjectEntry, UnfinishedWrite, check_key

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3 import S3Client, type_defs
    from obstore.store import S3Store as Bucket

AnswerT = TypeVar("AnswerT")

KEY_BYTES_MAX = 1_024

CONNECTIONS_MAX = AT_ONCE * AT_ONCE
"""Connections that one client keeps open; all threads of a process share the client: calls side by side, each of which
reads a log whose entries are read side by side. A connection beyond this is closed after its answer, with a warning of
urllib3's."""

DELETED_AT_ONCE = 1_000
"""Objects that S3 deletes in one request, at most."""

CREDENTIALS_SECONDS = 120.0
"""Time for which obstore uses the same credentials. botocore has newer ones by then, where they expire."""

RENEW_SECONDS_MIN = 30.0
"""Least time between two renewals of clients whose credentials are refused."""

REPEATS = Backoff(first_seconds=0.2, longest_seconds=20.0, jitter=0.5)
"""Pauses between the tries of a request: with nine tries, half a minute in all."""

CONFLICTS = Retry(Backoff(first_seconds=0.02, longest_seconds=1.0, jitter=1.0), tries_max=10)
"""A conditional put that S3 refuses since another one for the same key is under way."""

_CONFLICT_CODES = ("ConditionalRequestConflict", "OperationAborted")

_UPLOAD = "?uploadId="


class S3Clients:
    """The clients of one S3 service, which send a request once: obstore's for small objects and ranges, botocore's for
    all else. Safe to share between threads and stores.

    botocore reads the credentials file once, when a client is opened. A client whose credentials were refused is opened
    again, so that a corrected file needs no restart of this process.
    """

    def __init__(self, endpoint_url: str | None, region: str | None, limits: RequestLimits) -> None:
        self.limits = limits
        self._endpoint_url = endpoint_url
        self._region = region
        self._lock = threading.Lock()
        self._renewed_at_seconds: float | None = None
        self._buckets: dict[str, tuple[float, Bucket]] = {}
        self.client = self._open()

    @classmethod
    def open(cls, endpoint_url: str | None, region: str | None, limits: RequestLimits = LIMITS) -> S3Clients:
        """botocore finds the credentials in its usual places."""
        return cls(endpoint_url, region, limits)

    @property
    def region(self) -> str:
        return self.client.meta.region_name

    def bucket(self, name: str) -> Bucket:
        """obstore's client. Raises `Denied` without credentials."""
        now_seconds = SystemClock().monotonic_seconds()
        with self._lock:
            opened_seconds, bucket = self._buckets.get(name, (0.0, None))
            if bucket is None or now_seconds - opened_seconds > CREDENTIALS_SECONDS:
                keys = self._credentials()
                endpoint = self._endpoint(name)
                bucket = native.open_bucket(name, self.region, endpoint, keys, self.limits, self._certificates)
                self._buckets[name] = now_seconds, bucket
            return bucket

    def get(self, bucket: str, key: str) -> bytes:
        """The whole object, by one try. Raises what botocore raises."""
        try:
            return native.read(self.bucket(bucket), key)
        except NotByObstore:
            return self.get_by_botocore({"Bucket": bucket, "Key": key})[1]

    def get_by_botocore(
        self, request: type_defs.GetObjectRequestTypeDef
    ) -> tuple[type_defs.GetObjectOutputTypeDef, bytes]:
        found = self.once(lambda client: client.get_object(**request))
        return found, within(self.limits.seconds_for(found["ContentLength"]), request["Key"], found["Body"].read)

    def put(self, bucket: str, key: str, body: bytes, *, if_absent: bool = False) -> None:
        """Writes the whole object, by one try. Raises botocore's errors: `PreconditionFailed`, if the key is taken."""
        try:
            native.put(self.bucket(bucket), key, body, if_absent=if_absent)
        except NotByObstore:
            metadata = {CHECKSUM: checksum_of(body)}
            request: type_defs.PutObjectRequestTypeDef = {
                "Bucket": bucket,
                "Key": key,
                "Body": body,
                "Metadata": metadata,
            }
            if if_absent:
                request["IfNoneMatch"] = "*"
            self.once(lambda client: client.put_object(**request), len(body))

    def once(self, ask: Callable[[S3Client], AnswerT], size_bytes: int = 0) -> AnswerT:
        """The answer to one request with a body of this size. Raises what botocore raises."""
        client = self.client
        return within(self.limits.seconds_for(size_bytes), client.meta.endpoint_url, partial(ask, client))

    def repeated(self, ask: Callable[[S3Client], AnswerT], clock: Clock, size_bytes: int = 0) -> AnswerT:
        """The answer to a request that is repeated while the service is unavailable."""
        return self.until_answered(partial(self.once, ask, size_bytes), clock)

    def until_answered(self, ask: Callable[[], AnswerT], clock: Clock) -> AnswerT:
        """The answer of the first try that gets one. Raises what botocore raises at the last one."""
        return Retry(REPEATS, self.limits.tries_max, self.limits.repeat_seconds_max).call(ask, clock, is_temporary)

    def _endpoint(self, bucket: str) -> Endpoint:
        """Where botocore sends requests for a bucket, which may follow from the environment. Asks nobody."""
        # botocore names no region in the address of an object, unless its bucket has a dot in its name.
        own, regional = (
            urlsplit(self.client.generate_presigned_url("get_object", {"Bucket": name, "Key": "key"}))
            for name in (bucket, "bucket.of.region")
        )
        path = regional.path.removesuffix("/bucket.of.region/key")
        if own.netloc.startswith(f"{bucket}."):
            return Endpoint(f"{regional.scheme}://{bucket}.{regional.netloc}{path}", names_bucket=True)
        return Endpoint(f"{regional.scheme}://{regional.netloc}{path}", names_bucket=False)

    def _credentials(self) -> ReadOnlyCredentials:
        """The current ones. Raises `Denied` if botocore finds none."""
        found = self._session.get_credentials()
        if found is None:
            raise Denied("S3 cannot be asked: no credentials are found; set AWS credentials for this process")
        return found.get_frozen_credentials()

    def renew(self, now_seconds: float) -> None:
        """Opens the client again after credentials were refused, but not at every refusal: opening it is slow."""
        with self._lock:
            self._buckets.clear()
            last_seconds = self._renewed_at_seconds
            if last_seconds is not None and now_seconds - last_seconds < RENEW_SECONDS_MIN:
                return
            self._renewed_at_seconds = now_seconds
            self.client = self._open()

    def _open(self) -> S3Client:
        self._session = session = new_session()
        bundle = session.get_config_variable("ca_bundle")
        self._certificates = _certificates(bundle) if bundle else None
        is_stand_in = self._endpoint_url is not None
        client: S3Client = session.create_client(  # type: ignore[assignment]
            "s3",
            endpoint_url=self._endpoint_url,
            region_name=self._region or (REGION_OF_STAND_INS if is_stand_in else None),
            config=Config(
                connect_timeout=self.limits.connect_seconds,
                read_timeout=self.limits.answer_seconds,
                max_pool_connections=CONNECTIONS_MAX,
                retries={"mode": "standard", "total_max_attempts": 1},
                user_agent=f"lithify/{this_release()}",
                # Another endpoint gets the bucket in the path: `http://bucket.127.0.0.1` cannot be resolved.
                s3={"addressing_style": "path"} if is_stand_in else {},
                # Both are botocore's defaults; said here because a table's bytes depend on them.
                request_checksum_calculation="when_supported",
                response_checksum_validation="when_supported",
            ),
        )
        client.meta.events.register("before-parse.s3.ListObjectsV2", read_contents)
        return client


def _certificates(bundle: str) -> bytes:
    try:
        return Path(bundle).read_bytes()
    except OSError as error:
        raise Invalid(f"S3 cannot be asked: the certificates of AWS_CA_BUNDLE cannot be read: {error}") from error


def read_contents(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Reads the objects of a page before botocore does, whose parser of any answer takes ten times as long for them.
    An answer that is no page is left to botocore."""
    try:
        page = ElementTree.fromstring(response_dict["body"])
        space = page.tag.removesuffix("ListBucketResult")
        contents = [_content(found, space) for found in page.findall(f"{space}Contents")]
    except (ElementTree.ParseError, ValueError):
        return
    if not contents:
        return
    page[:] = [each for each in page if each.tag != f"{space}Contents"]
    response_dict["body"] = ElementTree.tostring(page)
    customized_response_dict["Contents"] = contents


def _content(found: ElementTree.Element, space: str) -> dict[str, Any]:
    key, size, modified, etag = (found.findtext(f"{space}{name}") for name in ("Key", "Size", "LastModified", "ETag"))
    content = {"Key": key or "", "Size": int(size or ""), "LastModified": datetime.fromisoformat(modified or "")}
    return content if etag is None else {**content, "ETag": etag}


def shared_clients(endpoint_url: str | None, region: str | None) -> S3Clients:
    """The clients of this process for a service. A forked process opens its own: connections do not survive a fork."""
    return _clients_of_process(os.getpid(), endpoint_url, region)


@lru_cache(maxsize=32)
def _clients_of_process(_process_id: int, endpoint_url: str | None, region: str | None) -> S3Clients:
    return S3Clients.open(endpoint_url, region)


class S3Store:
    """An `ObjectStore` over the objects below a prefix of a bucket. Safe to share between threads."""

    def __init__(self, location: StoreLocation, clients: S3Clients, clock: Clock) -> None:
        bucket, prefix = bucket_and_key(location.root_uri)
        self.location = location
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self.clients = clients
        self._clock = clock

    @classmethod
    def open(cls, location: StoreLocation) -> S3Store:
        return cls(location, shared_clients(location.endpoint_url, location.region), SystemClock())

    def put_if_absent(self, key: str, body: bytes) -> bool:
        full_key = self._full_key(key)
        create = partial(self.clients.put, self._bucket, full_key, body, if_absent=True)
        with self._translating(f"{self._uri(key)} cannot be created"):
            try:
                CONFLICTS.call(create, self._clock, _is_conflict)
            except ClientError as error:
                if code_of(error) == "PreconditionFailed":
                    return False
                if _is_conflict(error):
                    raise Unavailable(
                        f"{self._uri(key)} cannot be created: other writers write to it all the time; try later"
                    ) from error
                raise
        return True

    def overwrite(self, key: str, body: bytes) -> None:
        full_key = self._full_key(key)
        with self._translating(f"{self._uri(key)} cannot be written"):
            self.clients.until_answered(partial(self.clients.put, self._bucket, full_key, body), self._clock)

    def read(self, key: str) -> bytes | None:
        with self._translating(f"{self._uri(key)} cannot be read"):
            try:
                return self.clients.until_answered(
                    partial(self.clients.get, self._bucket, self._full_key(key)), self._clock
                )
            except ClientError as error:
                if code_of(error) == "NoSuchKey":
                    return None
                raise

    def read_range(self, key: str, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        with self._translating(f"{self._uri(key)} cannot be read"):
            try:
                wanted = f"bytes={start}-{start + length - 1}"
                request: type_defs.GetObjectRequestTypeDef = {
                    "Bucket": self._bucket,
                    "Key": self._full_key(key),
                    "Range": wanted,
                }
                return self.clients.until_answered(partial(self.clients.get_by_botocore, request), self._clock)[1]
            except ClientError as error:
                if code_of(error) == "NoSuchKey":
                    raise Corrupt(f"{self._uri(key)} does not exist, but a log refers to it") from error
                if code_of(error) == "InvalidRange":
                    return b""  # it begins beyond the end
                raise

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        request: type_defs.ListObjectsV2RequestTypeDef = {"Bucket": self._bucket, "Prefix": self._root + prefix}
        if start_after is not None:
            request["StartAfter"] = self._root + start_after
        with self._translating(f"{self._uri(prefix)} cannot be listed"):
            for page in self._pages(request):
                for found in page.get("Contents", []):
                    # Consoles create keys that end with a slash as empty folders; they are not our objects.
                    if not found["Key"].endswith("/"):
                        modified_at_ms = int(found["LastModified"].timestamp() * 1000)
                        key = found["Key"].removeprefix(self._root)
                        yield ObjectEntry(key, found["Size"], modified_at_ms, found.get("ETag"))

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        folder = self._root + prefix
        with self._translating(f"{self._uri(prefix)} cannot be listed"):
            for page in self._pages({"Bucket": self._bucket, "Prefix": folder, "Delimiter": "/"}):
                for found in page.get("CommonPrefixes", []):
                    yield found["Prefix"].removeprefix(folder).removesuffix("/")

    def _pages(self, request: type_defs.ListObjectsV2RequestTypeDef) -> Iterator[type_defs.ListObjectsV2OutputTypeDef]:
        while True:
            page = self.clients.repeated(lambda client: client.list_objects_v2(**request), self._clock)
            yield page
            if not page.get("NextContinuationToken"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, key: str) -> None:
        full_key = self._full_key(key)
        with self._translating(f"{self._uri(key)} cannot be deleted"):
            self.clients.repeated(lambda client: client.delete_object(Bucket=self._bucket, Key=full_key), self._clock)

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        full_keys = [self._full_key(key) for key in keys]
        failed: dict[str, str] = {}
        for start in range(0, len(full_keys), DELETED_AT_ONCE):
            failed |= self._delete_at_once(full_keys[start : start + DELETED_AT_ONCE])
        return failed

    def _delete_at_once(self, full_keys: Sequence[str]) -> dict[str, str]:
        """Within one answer S3 may refuse some objects, and be too busy for others: these are tried again."""
        failed: dict[str, str] = {}
        for tries in range(1, self.clients.limits.tries_max + 1):
            refused = self._ask_to_delete(full_keys)
            full_keys = []
            for error in refused:
                full_key, code = error.get("Key", ""), error.get("Code", "")
                if kind_of(code, 0) is Unavailable and tries < self.clients.limits.tries_max:
                    full_keys.append(full_key)
                else:
                    reason = f"{error.get('Message') or code} ({code})"
                    failed[full_key.removeprefix(self._root)] = (
                        f"s3://{self._bucket}/{full_key} cannot be deleted: {reason}"
                    )
            if not full_keys:
                break
            REPEATS.sleep(tries, self._clock)
        return failed

    def _ask_to_delete(self, full_keys: Sequence[str]) -> Sequence[type_defs.ErrorTypeDef]:
        objects: list[type_defs.ObjectIdentifierTypeDef] = [{"Key": full_key} for full_key in full_keys]
        with self._translating(f"{len(full_keys)} objects below {self._uri('')} cannot be deleted"):
            answer = self.clients.repeated(
                lambda client: client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}),
                self._clock,
            )
        return answer.get("Errors", [])

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        """Multipart uploads, with the sum of their parts' sizes."""
        request: type_defs.ListMultipartUploadsRequestTypeDef = {"Bucket": self._bucket, "Prefix": self._root}
        with self._translating(f"unfinished uploads to {self._uri('')} cannot be listed"):
            while True:
                page = self.clients.repeated(lambda client: client.list_multipart_uploads(**request), self._clock)
                for found in page.get("Uploads", []):
                    size_bytes = self._size_of_upload(found["Key"], found["UploadId"])
                    if size_bytes is not None:
                        name = f"{found['Key'].removeprefix(self._root)}{_UPLOAD}{found['UploadId']}"
                        yield UnfinishedWrite(name, size_bytes, int(found["Initiated"].timestamp() * 1000))
                if not page.get("IsTruncated"):
                    return
                request["KeyMarker"], request["UploadIdMarker"] = page["NextKeyMarker"], page["NextUploadIdMarker"]

    def _size_of_upload(self, full_key: str, upload_id: str) -> int | None:
        """The bytes of its parts; None: it has ended since it was listed."""
        request: type_defs.ListPartsRequestTypeDef = {"Bucket": self._bucket, "Key": full_key, "UploadId": upload_id}
        size_bytes = 0
        try:
            while True:
                page = self.clients.repeated(lambda client: client.list_parts(**request), self._clock)
                size_bytes += sum(part["Size"] for part in page.get("Parts", []))
                if not page.get("IsTruncated"):
                    return size_bytes
                request["PartNumberMarker"] = page["NextPartNumberMarker"]
        except ClientError as error:
            if code_of(error) == "NoSuchUpload":
                return None
            raise

    def give_up(self, write: UnfinishedWrite) -> None:
        key, _, upload_id = write.name.partition(_UPLOAD)
        with self._translating(f"the unfinished upload to {self._uri(key)} cannot be aborted"):
            try:
                self.clients.repeated(
                    lambda client: client.abort_multipart_upload(
                        Bucket=self._bucket, Key=self._full_key(key), UploadId=upload_id
                    ),
                    self._clock,
                )
            except ClientError as error:
                if code_of(error) != "NoSuchUpload":
                    raise

    @contextmanager
    def _translating(self, failure: str) -> Iterator[None]:
        try:
            with translated(failure):
                yield
        except Denied:
            self.clients.renew(self._clock.monotonic_seconds())
            raise

    def _full_key(self, key: str) -> str:
        check_key(key)
        if len(key.encode()) > key_bytes_max(self.location):
            raise Invalid(f"{self._uri(key)} is longer than the {KEY_BYTES_MAX} bytes that S3 allows")
        return self._root + key

    def _uri(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._root}{key}"


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, ClientError) and code_of(error) in _CONFLICT_CODES
