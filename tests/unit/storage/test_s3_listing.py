"""Pages of S3's listings are read as botocore reads them."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

import pytest
from botocore.parsers import create_parser
from botocore.session import get_session

from compactor.storage.aws.s3 import read_contents

SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
KEYS = ("a/b.json", "a/%C3%BC+%26.parquet", "a/<&>", "a/")


def page(*objects: str, space: str = SPACE) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult{space}><Name>lake</Name><Prefix>a/</Prefix>'
        f"<NextContinuationToken>next</NextContinuationToken><EncodingType>url</EncodingType>{''.join(objects)}"
        "<CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes><IsTruncated>true</IsTruncated></ListBucketResult>"
    ).encode()


def an_object(key: str, etag: str = "<ETag>&quot;12&quot;</ETag>") -> str:
    times = f"<LastModified>2026-11-26T13:23:23.{len(key):03}Z</LastModified>"
    return f"<Contents><Key>{escape(key)}</Key>{times}{etag}<Size>{len(key)}</Size></Contents>"


def parsed(body: bytes, *, read: bool) -> dict[str, Any]:
    """What a caller gets, with the objects read beforehand or by botocore."""
    shape = get_session().get_service_model("s3").operation_model("ListObjectsV2").output_shape
    assert shape is not None
    response: dict[str, Any] = {"body": body, "headers": {}, "status_code": 200}
    contents: dict[str, Any] = {}
    if read:
        read_contents(response, contents)
        assert bool(contents) == (b"<Contents>" in body)
    found: dict[str, Any] = create_parser("rest-xml").parse(response, shape)
    return {**found, **contents}


@pytest.mark.parametrize("space", [SPACE, ""])
@pytest.mark.parametrize(
    "objects", [(), tuple(map(an_object, KEYS)), (an_object("no-etag", ""),)], ids=["none", "many", "no etag"]
)
def test_a_page_is_what_botocore_reads(objects: tuple[str, ...], space: str) -> None:
    body = page(*objects, space=space)
    assert parsed(body, read=True) == parsed(body, read=False)


@pytest.mark.parametrize("body", [b"", b"<html", b"<Error><Code>SlowDown</Code></Error>"])
def test_an_answer_that_is_no_page_is_left_to_botocore(body: bytes) -> None:
    response, contents = {"body": body}, dict[str, Any]()
    read_contents(response, contents)
    assert (response, contents) == ({"body": body}, {})
