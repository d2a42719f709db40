"""Where services answer: what is not an endpoint, and the region that a queue's URL names."""

from __future__ import annotations

import pytest

from compactor.model.errors import Invalid
from compactor.storage.location import checked_endpoint, parse_location
from dispatcher.aws.sqs import region_of


@pytest.mark.parametrize(
    "url",
    ["", "here", "here:80", "ftp://host", "http://", "http://:80", "http://[::1", "http://host:port", "http://a b"],
)
def test_an_invalid_endpoint_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="is not an endpoint: write http://host:port or https://host"):
        checked_endpoint(url)
    with pytest.raises(Invalid, match="is not an endpoint"):
        parse_location("s3://bucket/lake", endpoint_url=url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:4566", "https://sqs.eu-west-1.amazonaws.com", "http://[::1]:80/", None]
)
def test_a_valid_endpoint_is_accepted(url: str | None) -> None:
    assert checked_endpoint(url) == url


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.us-east-1.amazonaws.com/123456789012/q", "us-east-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/q", "cn-north-1"),
        ("https://sqs-fips.us-gov-west-1.amazonaws.com/123456789012/q", "us-gov-west-1"),
        ("https://vpce-0a1b.sqs.eu-central-1.vpce.amazonaws.com/123456789012/q", "eu-central-1"),
        ("https://sqs.ap-southeast-2.api.aws/123456789012/q", "ap-southeast-2"),
        ("https://eu-west-1.queue.amazonaws.com/123456789012/q", "eu-west-1"),
        ("http://sqs.us-east-1.localhost.localstack.cloud:4566/000000000000/q", "us-east-1"),
        ("http://127.0.0.1:5000/123456789012/sqs.us-east-1.q", None),
        ("https://queue.example.com/q", None),
    ],
)
def test_a_queues_url_names_its_region(url: str, region: str | None) -> None:
    assert region_of(url) == region
