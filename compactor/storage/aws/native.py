"""Requests of obstore, which takes a fifth of botocore's time of the processor for one and leaves Python's lock alone.

    read        the bytes of a small object, compared with the CRC-32 that lies beside it
    put         a small object, with its CRC-32 beside it, and its SHA-256 for the service, which compares it

obstore sends each request once here; who asks repeats it. Its errors become those that botocore raises for the same
answer. What is botocore's is `NotByObstore`; nothing has come of it: a key that is no path (`a//b`, a tab), a bucket
of another region, a large object, whose limit depends on its size, and one without its CRC-32 beside it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from xml.sax.saxutils import unescape

import obstore
from botocore.exceptions import ClientError, FlexibleChecksumError, HTTPClientError
from obstore import exceptions
from obstore.store import S3Store

from compactor.model.machine import this_release
from compactor.storage.aws.limits import RequestLimits
from compactor.storage.ranges import REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials
    from obstore.store import ClientConfig, S3Config

CHECKSUM = "lithify-crc32"
"""User metadata of an object (FORMAT.md, section 2)."""

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_NO_PATH = "Could not parse path"
"""Begins obstore's error of a key that is no path."""
_REDIRECTED = "redirect without LOCATION"
"""In its error for a bucket of another region."""
_WHOLE_ANSWER = "non-partial response"
"""In obstore's error of a range that was answered by a whole object: it is empty."""
_NO_ANSWER = {
    "Connect": "no connection",
    "Interrupted": "the answer broke off",
    "Request": "the connection was closed before an answer",
    "Timeout": "no complete answer in time",
}
"""By the kind that is first in the details of obstore's error."""
_KIND = re.compile(r"\bkind: (\w+)")
_CAUSE = re.compile(r'(?:message|error): (?:"([^"]+)"|(\w+)\b(?! \{))')
_CODES = {"304": "PreconditionFailed", "409": "ConditionalRequestConflict", "412": "PreconditionFailed"}
"""Of an answer that ended before it named its code."""


class NotByObstore(Exception):
    """The request must be sent by botocore."""


class NoAnswer(HTTPClientError):
    """Of which botocore's own says that an exception was not handled."""

    fmt = "{error}"


@dataclass(frozen=True)
class Endpoint:
    """
    Attributes:
        names_bucket: it is of one bucket, whose name begins its host; else the name begins the paths"""

    url: str
    names_bucket: bool


def open_bucket(
    bucket: str,
    region: str,
    endpoint: Endpoint,
    keys: ReadOnlyCredentials,
    limits: RequestLimits,
    certificates: bytes | None,
) -> S3Store:
    """Sends no request yet. What botocore finds in more places than obstore does is an argument.

    Args:
        certificates: PEM, trusted beside those of the system"""
    config: S3Config = {
        "region": region,
        "access_key_id": keys.access_key or "",
        "secret_access_key": keys.secret_key or "",
        # Its other name gives way to a variable of the environment.
        "aws_endpoint_url_s3": endpoint.url,
        "virtual_hosted_style_request": endpoint.names_bucket,
        "checksum_algorithm": "sha256",
    }
    if keys.token is not None:
        config["session_token"] = keys.token
    options: ClientConfig = {
        "allow_http": endpoint.url.startswith("http://"),
        "connect_timeout": timedelta(seconds=limits.connect_seconds),
        "timeout": timedelta(seconds=limits.seconds_for(REQUEST_BYTES_MAX)),
        "user_agent": f"lithify/{this_release()}",
    }
    if certificates is not None:
        options["root_certificate"] = certificates
    return S3Store(bucket, config=config, client_options=options, retry_config={"max_retries": 0})


def checksum_of(body: bytes) -> str:
    return f"{zlib.crc32(body):08x}"


def read(bucket: S3Store, key: str) -> bytes:
    """The whole object. Raises what botocore raises, or `NotByObstore`."""
    with answered("GetObject"):
        found = obstore.get(bucket, path_of(key))
        expected = found.attributes.get(CHECKSUM)
        if expected is None or found.meta["size"] > REQUEST_BYTES_MAX:
            raise NotByObstore
        body = found.bytes().to_bytes()
    if checksum_of(body) != expected:
        raise FlexibleChecksumError(error_msg=f"the answer has the CRC-32 {checksum_of(body)}, the object {expected}")
    return body


def put(bucket: S3Store, key: str, body: bytes, *, if_absent: bool) -> None:
    """Raises what botocore raises (`PreconditionFailed`: the key is taken), or `NotByObstore`."""
    if len(body) > REQUEST_BYTES_MAX:
        raise NotByObstore
    with answered("PutObject"):
        obstore.put(
            bucket,
            path_of(key),
            body,
            mode="create" if if_absent else "overwrite",
            attributes={CHECKSUM: checksum_of(body)},
            use_multipart=False,
        )


def path_of(key: str) -> str:
    """obstore drops a slash at either end."""
    if key.startswith("/") or key.endswith("/"):
        raise NotByObstore
    return key


@contextmanager
def answered(operation: str) -> Iterator[None]:
    """While the context is open, an error of obstore becomes botocore's for the same answer, or `NotByObstore`."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(_NO_PATH):
            raise NotByObstore from error
        raise
    except (exceptions.BaseError, OSError) as error:
        raise _error(str(error), operation) from error


def _error(text: str, operation: str) -> ClientError | HTTPClientError | NotByObstore:
    """
    Args:
        text: a sentence, and where it comes from, in Rust's notation"""
    sentence, _, details = text.partition("\n\nDebug source")
    found = _STATUS.search(sentence)
    status = found[1] if found else "416" if _WHOLE_ANSWER in sentence else None
    if status is None:
        return NotByObstore() if _REDIRECTED in sentence else _no_answer(sentence, details)
    code, message = _CODE.search(sentence), _MESSAGE.search(sentence)
    answer = {
        "Code": code[1] if code else _CODES.get(status, status),
        "Message": unescape(message[1]) if message else "",
    }
    return ClientError({"Error": answer, "ResponseMetadata": {"HTTPStatusCode": int(status)}}, operation)  # type: ignore[typeddict-item]


def _no_answer(sentence: str, details: str) -> NoAnswer:
    kind, cause = _KIND.search(details), _CAUSE.search(details)
    reason = (_NO_ANSWER.get(kind[1]) if kind else None) or " ".join(sentence.split())
    return NoAnswer(error=f"{reason} ({cause[1] or cause[2]})" if cause else reason)
