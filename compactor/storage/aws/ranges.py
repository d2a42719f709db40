"""Ranges of objects on S3, read by obstore, whose requests leave Python's lock alone (`docs/decisions` has figures).

Credentials are boto3's, which finds them in more places than obstore does. obstore sends each request once:
`storage/repeated_ranges.py` repeats it, depending on the answer. Its errors are translated here.
"""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions
from obstore.store import S3Store

from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import Corrupt, Denied, Invalid, LithifyError, Unavailable
from compactor.storage.aws.failures import kind_of
from compactor.storage.aws.limits import RequestLimits
from compactor.storage.aws.s3 import S3Clients, shared_clients
from compactor.storage.location import bucket_and_key
from compactor.storage.ranges import REQUEST_BYTES_MAX, SlowDown, Span, Tail

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import S3Config

CREDENTIALS_SECONDS = 120.0
"""Time for which a process uses the same credentials. boto3 has newer ones by then, where they expire."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_THROTTLED_STATUSES = (429, 503)
_THROTTLED = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
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
            data = self._get(uri, options)[1]
        except _EmptyError as error:
            raise Corrupt(f"{uri} ends before byte {span.start}, but is expected to have {span.end}") from error
        if len(data) != span.length:
            raise Corrupt(f"{uri} ends at byte {span.start + len(data)}, but is expected to have {span.end}")
        return data

    def read_tail(self, uri: str, length: int) -> Tail:
        try:
            found, data = self._get(uri, {"range": {"suffix": length}})
        except _EmptyError:
            found, data = self._get(uri, {})
        meta = found.meta
        modified_at_ms = int(meta["last_modified"].timestamp() * 1000)
        return Tail(meta["size"], meta["e_tag"], modified_at_ms, data)

    def _get(self, uri: str, options: GetOptions) -> tuple[GetResult, memoryview]:
        bucket, key = bucket_and_key(uri)
        try:
            found = obstore.get(self._store(bucket), key, options=options)
            return found, memoryview(found.bytes())
        except (exceptions.BaseError, OSError) as error:
            translated = _translated(error, uri, options)
            if isinstance(translated, Denied):
                with self._lock:
                    self._stores.pop(bucket, None)
                self._clients.renew(self._clock.monotonic_seconds())
            raise translated from error

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
        return Corrupt(f"{uri} has changed while it was read: files of a table are written once and never again")
    if "range" in options and _EMPTY.search(sentence):
        return _EmptyError(f"{uri} is empty, or shorter than it is expected to be")
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
