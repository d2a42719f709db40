"""Ranges of objects on S3, read by obstore, or by botocore what obstore cannot read (`storage/aws/native.py`).

Each request is sent once: `storage/repeated_ranges.py` repeats it, depending on the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import Corrupt, Denied, Invalid, LithifyError, Unavailable
from compactor.storage.aws.failures import code_of, kind_of
from compactor.storage.aws.limits import RequestLimits
from compactor.storage.aws.native import NotByObstore, answered, path_of
from compactor.storage.aws.s3 import S3Clients, shared_clients
from compactor.storage.location import bucket_and_key
from compactor.storage.ranges import SlowDown, Span, Tail

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef
    from obstore import GetOptions

_THROTTLED = frozenset({"RequestLimitExceeded", "SlowDown", "Throttling", "ThrottlingException"})
_THROTTLED_STATUSES = (429, 503)

_CHANGED = "has changed while it was read: files of a table are written once and never again"
_SHORTER = "is empty, or shorter than it is expected to be"
_FAILURES = {
    Denied: "may not be accessed with these credentials",
    Invalid: "is refused by S3, check its region, endpoint and credentials",
    Unavailable: "cannot be reached now",
}


class S3Ranges:
    """See `ObjectRanges`."""

    def __init__(self, clients: S3Clients, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock

    @classmethod
    def open(cls, endpoint_url: str | None, region: str | None) -> S3Ranges:
        return cls(shared_clients(endpoint_url, region), SystemClock())

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
            try:
                return self._get_by_obstore(bucket, key, options)
            except NotByObstore:
                return self._get_by_botocore(bucket, key, options)
        except (BotoCoreError, ClientError, HTTPError) as error:
            failure = _failure(error, uri)
            if isinstance(failure, Denied):
                self._clients.renew(self._clock.monotonic_seconds())
            raise failure from error

    def _get_by_obstore(self, bucket: str, key: str, options: GetOptions) -> Tail:
        with answered("GetObject"):
            found = obstore.get(self._clients.bucket(bucket), path_of(key), options=options)
            meta = found.meta
            modified_at_ms = int(meta["last_modified"].timestamp() * 1000)
            return Tail(meta["size"], meta["e_tag"], modified_at_ms, memoryview(found.bytes()))

    def _get_by_botocore(self, bucket: str, key: str, options: GetOptions) -> Tail:
        asked: GetObjectRequestTypeDef = {"Bucket": bucket, "Key": key}
        match options.get("range"):
            case (int(start), int(end)):
                asked["Range"] = f"bytes={start}-{end - 1}"
            case {"suffix": int(length)}:
                asked["Range"] = f"bytes=-{length}"
            case _:
                pass
        version = options.get("if_match")
        if version is not None:
            asked["IfMatch"] = version
        found, body = self._clients.get_by_botocore(asked)
        size = int(found.get("ContentRange", "").rpartition("/")[2] or found["ContentLength"])
        return Tail(size, found["ETag"], int(found["LastModified"].timestamp() * 1000), memoryview(body))


class _EmptyError(Invalid):
    """An object without bytes has no last byte."""


def _failure(error: BotoCoreError | ClientError | HTTPError, uri: str) -> LithifyError:
    if not isinstance(error, ClientError):
        return Unavailable(f"{uri} cannot be reached now: {error}")
    status, code = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), code_of(error)
    if status == 404:
        return Corrupt(f"{uri} does not exist")
    if status == 412:
        return Corrupt(f"{uri} {_CHANGED}")
    if status == 416:
        return _EmptyError(f"{uri} {_SHORTER}")
    if status in _THROTTLED_STATUSES or code in _THROTTLED:
        return SlowDown(f"{uri} cannot be reached now: {error}")
    kind = kind_of(code, status)
    return kind(f"{uri} {_FAILURES[kind]}: {error}")
