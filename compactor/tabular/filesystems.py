"""Opens PyArrow's filesystem for a URI, and says in our words what went wrong with a file.

A filesystem is opened once per process and kept: it holds connections, and cannot be pickled. Credentials are found
by the AWS SDK inside PyArrow in each process; no value here carries them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from compactor.errors import Corrupt, Invalid, LithifyError, Unavailable
from compactor.object_store import StoreLocation

S3_ATTEMPTS_MAX = 5
"""Attempts of one request on 500, 503 and connection resets, with exponential backoff."""

S3_CONNECT_TIMEOUT_SECONDS = 5.0
S3_REQUEST_TIMEOUT_SECONDS = 60.0

_REGION_OF_STAND_INS = "us-east-1"


def open_filesystem(location: StoreLocation, uri: str) -> tuple[fs.FileSystem, str]:
    """The filesystem that holds `uri`, and the path of `uri` on it.

    The URI's scheme decides, not the location's: a lake in a folder may have files registered on S3. The location
    gives the S3 endpoint and region; without an endpoint they are AWS's own. URIs are not percent-decoded: what stands
    in them is the file's name. Raises `Invalid` for any scheme but `s3://` and `file://` (an absolute path is local).
    """
    if uri.startswith("s3://"):
        path = uri.removeprefix("s3://")
        bucket, _, key = path.partition("/")
        if not bucket or not key:
            raise Invalid(f"{uri!r} names no object: write s3://bucket/key")
        return _open_s3(os.getpid(), location.endpoint_url, location.region), path
    path = uri.removeprefix("file://")
    if not path.startswith("/"):
        raise Invalid(f"{uri!r} is no place for a data file: use s3://bucket/key or file:///absolute/path")
    return _open_local(), path


@lru_cache(maxsize=1)
def _open_local() -> fs.LocalFileSystem:
    return fs.LocalFileSystem()


@lru_cache(maxsize=32)
def _open_s3(_process_id: int, endpoint_url: str | None, region: str | None) -> fs.S3FileSystem:
    """The process is part of the cache's key only: connections do not survive a fork."""
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=S3_ATTEMPTS_MAX)
    if endpoint_url is None:
        return fs.S3FileSystem(
            region=region,
            connect_timeout=S3_CONNECT_TIMEOUT_SECONDS,
            request_timeout=S3_REQUEST_TIMEOUT_SECONDS,
            allow_delayed_open=True,
            retry_strategy=retries,
        )
    endpoint = urlsplit(endpoint_url)
    if endpoint.scheme not in ("http", "https") or not endpoint.netloc:
        raise Invalid(f"{endpoint_url!r} is no S3 endpoint: write http://host:port or https://host")
    return fs.S3FileSystem(
        scheme=endpoint.scheme,
        endpoint_override=endpoint.netloc,
        # Without a region the SDK would ask EC2's metadata service and wait for it.
        region=region or _REGION_OF_STAND_INS,
        connect_timeout=S3_CONNECT_TIMEOUT_SECONDS,
        request_timeout=S3_REQUEST_TIMEOUT_SECONDS,
        allow_delayed_open=True,
        retry_strategy=retries,
    )


@contextmanager
def reading(uri: str, what: str) -> Iterator[None]:
    """Translates whatever PyArrow raises while `uri` is read as `what`.

    A missing file is `Corrupt` (somebody refers to it); for the rest see `_explain`.
    """
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if _is_missing(error):
            raise Corrupt(f"{uri} is not there") from error
        raise _explain(error, uri, f"cannot be read as {what}") from error


@contextmanager
def written_here() -> Iterator[None]:
    """Around the reading of a file that Lithify wrote: where its bytes make no sense it is damaged, `Corrupt`, and not
    input that somebody has to mend."""
    try:
        yield
    except Invalid as error:
        raise Corrupt(str(error)) from error


@contextmanager
def writing(uri: str, what: str) -> Iterator[None]:
    """Translates whatever PyArrow raises while `uri` is written as `what`; see `_explain`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if _is_missing(error):
            raise Invalid(f"{uri} cannot be written: its bucket or folder is not there") from error
        raise _explain(error, uri, f"cannot be written as {what}") from error


def _explain(error: Exception, uri: str, complaint: str) -> LithifyError:
    """A disk or service that fails is `Unavailable`; one that refuses, and bytes that make no sense, are `Invalid`.

    PyArrow raises OSError for all of them; a disk's failure carries an errno, a service's the AWS SDK's words.
    """
    sentence = _sentence(error)
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return Invalid(f"{uri} is a folder, not a file")
    if isinstance(error, PermissionError) or "ACCESS_DENIED" in sentence:
        return Invalid(f"{uri} may not be accessed with these credentials: {sentence}")
    if _REFUSAL.search(sentence) is not None:
        return Invalid(f"{uri} is refused by S3, check its region, endpoint and credentials: {sentence}")
    if isinstance(error, OSError) and (error.errno is not None or "AWS Error" in sentence):
        return Unavailable(f"{uri} cannot be reached now: {sentence}")
    return Invalid(f"{uri} {complaint}: {sentence}")


def _is_missing(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) or _MISSING.search(_sentence(error)) is not None


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


_MISSING = re.compile(r"AWS Error (NO_SUCH_KEY|NO_SUCH_BUCKET|RESOURCE_NOT_FOUND)")
_REFUSAL = re.compile(
    r"AWS Error \w+ \(HTTP status (3\d\d|4(?!08|29)\d\d)\)|AWS Error (INVALID_|SIGNATURE_|UNRECOGNIZED_)"
)
