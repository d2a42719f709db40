"""Ranges of objects on S3, read by obstore, whose requests leave Python's lock alone (`docs/decisions` has figures).

Credentials are boto3's, which finds them in more places than obstore does. obstore sends each request once:
`storage/repeated_ranges.py` repeats it, depending on the answer. Its errors are translated here.

obstore takes keys for paths, and refuses what is no path: `a//b`, `a/../b`, a tab. S3 has such keys: boto3 reads them.
"""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from botocore.exceptions import ClientError
from obstore import exceptions
from obstore.store import S3Store

from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import Corrupt, Denied, Invalid, LithifyError, Unavailable
from compactor.storage.aws.failures import kind_of, translated
from compactor.storage.aws.limits import RequestLimits
from compactor.storage.aws.s3 import S3Clients, shared_clients
from compactor.storage.location import bucket_and_key
from compactor.storage.ranges import REQUEST_BYTES_MAX, SlowDown, Span, Tail

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef
    from obstore import GetOptions
    from obstore.store import S3Config

CREDENTIALS_SECONDS = 120.0
"""Time for which a process uses the same credentials. boto3 has newer ones by then, where they expire."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_THROTTLED_STATUSES = (429, 503)
_THROTTLED = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
_NO_PATH = "Could not parse path"
"""The beginning of obstore's error of a key that is no path."""

_CHANGED = "has changed while it was read: files of a table are written once and never again"
_SHORTER = "is empty, or shorter than it is expected to be"
_EMPTY = re.compile(r"non-partial response|status code: 416")


class S3Ranges:
    """See `ObjectRanges`."""

    def __init__(self, clients: S3Clients, endpoint_url: str | None, clock: Clock) -> None:
        self._clients = clients
        self._endpoint_url = endpoint_url
        self._clock = clock
        self._lock = threading.Lock()
        self._stores: dict[str, tuple[float, S3Store]] = {}

    @classmethod
    def open(cls, endpoint_url: str | None, region: str | None) -> S3Ranges:
        return cls(shared_clients(endpoint_url, region), endpoint_url, SystemClock())

    @property
    def limits(self) -> RequestLimits:
        return self._clients.limits

    def read(self, uri: str, span: Span, version: str | None) -> memoryview:
        options: GetOptions = {"range": (span.start, span.end)}
        if version is not None:
            options["if_match"] = version
        try:
            data = self._get(uri, options).data
        except _EmptyError as error:
            raise Corrupt(f"{uri} ends before byte {span.start}, but is expected to have {span.end}") from error
        if len(data) != span.length:
            raise Corrupt(f"{uri} ends at byte {span.start + len(data)}, but is expected to have {span.end}")
        return data

    def read_tail(self, uri: str, length: int) -> Tail:
        try:
            return self._get(uri, {"range": {"suffix": length}})
        except _EmptyError:
            return self._get(uri, {})

    def _get(self, uri: str, options: GetOptions) -> Tail:
        bucket, key = bucket_and_key(uri)
        try:
            found = obstore.get(self._store(bucket), key, options=options)
            meta = found.meta
            modified_at_ms = int(meta["last_modified"].timestamp() * 1000)
            return Tail(meta["size"], meta["e_tag"], modified_at_ms, memoryview(found.bytes()))
        except ValueError as error:
            if not str(error).startswith(_NO_PATH):
                raise
            return self._get_by_boto3(uri, bucket, key, options)
        except (exceptions.BaseError, OSError) as error:
            translated = _translated(error, uri, options)
            if isinstance(translated, Denied):
                with self._lock:
                    self._stores.pop(bucket, None)
                self._clients.renew(self._clock.monotonic_seconds())
            raise translated from error

    def _get_by_boto3(self, uri: str, bucket: str, key: str, options: GetOptions) -> Tail:
        asked: GetObjectRequestTypeDef = {"Bucket": bucket, "Key": key}
        size_bytes = 0
        match options.get("range"):
            case (int(start), int(end)):
                asked["Range"], size_bytes = f"bytes={start}-{end - 1}", end - start
            case {"suffix": int(length)}:
                asked["Range"], size_bytes = f"bytes=-{length}", length
            case _:
                pass
        version = options.get("if_match")
        if version is not None:
            asked["IfMatch"] = version

        def ask(client: S3Client) -> Tail:
            found = client.get_object(**asked)
            size = int(found.get("ContentRange", "").rpartition("/")[2] or found["ContentLength"])
            modified_at_ms = int(found["LastModified"].timestamp() * 1000)
            return Tail(size, found["ETag"], modified_at_ms, memoryview(found["Body"].read()))

        with translated(f"{uri} cannot be read"):
            try:
                return self._clients.once(ask, size_bytes)
            except ClientError as error:
                match error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0):
                    case 404:
                        raise Corrupt(f"{uri} does not exist") from error
                    case 412:
                        raise Corrupt(f"{uri} {_CHANGED}") from error
                    case 416:
                        raise _EmptyError(f"{uri} {_SHORTER}") from error
                    case _:
                        raise

    def _store(self, bucket: str) -> S3Store:
        with self._lock:
            now_seconds = self._clock.monotonic_seconds()
            opened_seconds, store = self._stores.get(bucket, (0.0, None))
            if store is None or now_seconds - opened_seconds > CREDENTIALS_SECONDS:
                store = self._open(bucket)
                self._stores[bucket] = now_seconds, store
            return store

    def _open(self, bucket: str) -> S3Store:
        keys, limits = self._clients.credentials(), self._clients.limits
        config: S3Config = {
            "region": self._clients.region,
            "access_key_id": keys.access_key or "",
            "secret_access_key": keys.secret_key or "",
            "virtual_hosted_style_request": self._endpoint_url is None,
        }
        if keys.token is not None:
            config["session_token"] = keys.token
        if self._endpoint_url is not None:
            config["endpoint"] = self._endpoint_url
        return S3Store(
            bucket,
            config=config,
            client_options={
                "allow_http": self._endpoint_url is not None,
                "connect_timeout": timedelta(seconds=limits.connect_seconds),
                "timeout": timedelta(seconds=limits.seconds_for(REQUEST_BYTES_MAX)),
            },
            retry_config={
                "max_retries": 0,
                "backoff": {
                    "init_backoff": timedelta(seconds=0.1),
                    "max_backoff": timedelta(seconds=10),
                    "base": 2,
                },
                "retry_timeout": timedelta(seconds=limits.repeat_seconds_max),
            },
        )


class _EmptyError(Invalid):
    """An object without bytes has no last byte."""


def _translated(error: Exception, uri: str, options: GetOptions) -> LithifyError:
    sentence = " ".join(str(error).partition("\n\nDebug source")[0].split()).rstrip(".")
    if isinstance(error, FileNotFoundError):
        return Corrupt(f"{uri} does not exist")
    if isinstance(error, exceptions.PreconditionError):
        return Corrupt(f"{uri} {_CHANGED}")
    if "range" in options and _EMPTY.search(sentence):
        return _EmptyError(f"{uri} {_SHORTER}")
    status, code = _STATUS.search(sentence), _CODE.search(sentence)
    kind = Unavailable if status is None else kind_of(code[1] if code else "", int(status[1]))
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        kind = Denied
    if "redirect" in sentence:
        kind = Invalid
    if kind is Denied:
        return Denied(f"{uri} may not be accessed with these credentials: {sentence}")
    if kind is Invalid:
        return Invalid(f"{uri} is refused by S3, check its region, endpoint and credentials: {sentence}")
    throttles = status is not None and (int(status[1]) in _THROTTLED_STATUSES or (code and code[1] in _THROTTLED))
    return (SlowDown if throttles else Unavailable)(f"{uri} cannot be reached now: {sentence}")
