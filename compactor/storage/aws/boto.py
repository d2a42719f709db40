"""Opens the clients of AWS services, which are botocore's. That of S3 is set up in `s3.py`."""

from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol

import botocore.session
from botocore.config import Config
from botocore.loaders import Loader, create_loader

from compactor.model.errors import Invalid
from compactor.storage.aws.failures import translated
from compactor.storage.location import checked_endpoint

REGION_OF_STAND_INS = "us-east-1"

Answer = dict[str, Any]
"""An answer of a service whose types are not installed: botocore's description of the service defines it."""


class Pages(Protocol):
    """A paginator of such a service."""

    def paginate(self, **request: object) -> Iterable[Answer]: ...


def new_session() -> botocore.session.Session:
    """A session that reads the credentials file anew. It shares the descriptions of services with all others of this
    process: each takes 13 MB and a tenth of a second to read."""
    session = botocore.session.get_session()
    session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
    return session


@cache
def _descriptions(data_path: str | None) -> Loader:
    return create_loader(data_path)


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
) -> Any:  # noqa: ANN401  (botocore publishes no type of all clients)
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
        return new_session().create_client(service, region, endpoint_url=endpoint, config=config)


def known_region(region: str | None, endpoint_url: str | None, unknown: str) -> str:
    """The region, else that of the environment; stand-ins need none. Raises `Invalid`, whose sentence begins with
    `unknown`, if there is none."""
    found = region or new_session().get_config_variable("region")
    if found is None and endpoint_url is None:
        raise Invalid(f"{unknown}: give --region, or set AWS_REGION")
    return found or REGION_OF_STAND_INS
