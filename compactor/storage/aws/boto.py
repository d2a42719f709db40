"""Opens boto3's clients of all services but S3 (`s3.py`)."""

from typing import Any

import boto3
from botocore.config import Config

from compactor.model.errors import Invalid
from compactor.storage.aws.failures import translated
from compactor.storage.location import checked_endpoint

REGION_OF_STAND_INS = "us-east-1"


def open_client(
    service: str,
    failure: str,
    region: str | None,
    endpoint_url: str | None,
    *,
    tries: int = 5,
    connect_seconds: float = 5,
    read_seconds: float = 30,
    further: Config | None = None,
) -> Any:  # noqa: ANN401  (boto3 publishes no type of all clients)
    """A client. Sends no request yet. Raises as `translated`, and `Invalid` for a malformed endpoint.

    Args:
        failure: begins the sentence: "queue https://... cannot be reached"
        region: None: that of the environment
        tries: of a request, the first one included"""
    config = Config(
        retries={"mode": "standard", "total_max_attempts": tries},
        connect_timeout=connect_seconds,
        read_timeout=read_seconds,
    ).merge(further or Config())
    endpoint = checked_endpoint(endpoint_url)
    with translated(failure):
        session = boto3.session.Session()
        return session.client(service, region_name=region, endpoint_url=endpoint, config=config)  # type: ignore[call-overload]


def known_region(region: str | None, endpoint_url: str | None, unknown: str) -> str:
    """The region, else that of the environment; stand-ins need none. Raises `Invalid`, whose sentence begins with
    `unknown`, if there is none."""
    found = region or boto3.session.Session().region_name
    if found is None and endpoint_url is None:
        raise Invalid(f"{unknown}: give --region, or set AWS_REGION")
    return found or REGION_OF_STAND_INS
