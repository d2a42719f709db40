"""AWS's Price List API over botocore. It needs the right `pricing:GetProducts`, and no more."""

import json
from collections.abc import Iterator
from typing import Protocol, Self

from compactor.storage.aws.boto import Pages, open_client
from compactor.storage.aws.failures import translated
from launcher.sizing.published_prices import PriceRequest, Product

ENDPOINT_REGION, ENDPOINT_REGION_OF_CHINA = "us-east-1", "cn-northwest-1"
"""The service has an endpoint in few regions, and answers there for all regions of their partition."""


class _PricingClient(Protocol):
    def get_paginator(self, name: str, /) -> Pages: ...


class BotoPrices:
    """A `PriceService`. All of its requests may be repeated."""

    def __init__(self, client: _PricingClient) -> None:
        self._client = client

    @classmethod
    def open(cls, region: str, endpoint_url: str | None = None) -> Self:
        """`region`: whose prices will be asked for."""
        where = ENDPOINT_REGION_OF_CHINA if region.startswith("cn-") else ENDPOINT_REGION
        return cls(open_client("pricing", f"AWS's price list in {where} cannot be reached", where, endpoint_url))

    def products(self, request: PriceRequest) -> Iterator[Product]:
        filters = [
            {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in request.attributes.items()
        ]
        with translated(f"the prices of {request.service_code} cannot be read"):
            pages = self._client.get_paginator("get_products")
            for page in pages.paginate(ServiceCode=request.service_code, FormatVersion="aws_v1", Filters=filters):
                for product in page["PriceList"]:
                    yield json.loads(product)
