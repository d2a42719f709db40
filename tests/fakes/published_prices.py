"""What AWS's price list answers, in the shape of its format aws_v1: products of a made-up region."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from launcher.sizing.published_prices import PriceRequest, Product

REGION = "eu-west-1"


def product(service_code: str, family: str, usd: str | Sequence[str], unit: str = "Hrs", **attributes: str) -> Product:
    """`usd`: of each tier."""
    tiers = [usd] if isinstance(usd, str) else list(usd)
    sku = sha1(repr((service_code, family, sorted(attributes.items()))).encode()).hexdigest()[:16].upper()
    dimensions = {
        f"{sku}.JRTCKXETXF.{number}": {
            "unit": unit,
            "endRange": "Inf" if number == len(tiers) - 1 else str((number + 1) * 51_200),
            "description": f"${price} per {unit}",
            "appliesTo": [],
            "rateCode": f"{sku}.JRTCKXETXF.{number}",
            "beginRange": str(number * 51_200),
            "pricePerUnit": {"USD": price},
        }
        for number, price in enumerate(tiers)
    }
    term = {
        "priceDimensions": dimensions,
        "sku": sku,
        "effectiveDate": "2026-11-01T00:00:00Z",
        "offerTermCode": "JRTCKXETXF",
        "termAttributes": {},
    }
    return {
        "product": {
            "productFamily": family,
            "attributes": {"regionCode": REGION, "servicecode": service_code, **attributes},
            "sku": sku,
        },
        "serviceCode": service_code,
        "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}},
        "version": "20261101000000",
        "publicationDate": "2026-11-01T00:00:00Z",
    }


def instance(name: str, usd: str, vcpus: int, memory: str, network: str, storage: str = "EBS only") -> Product:
    return product(
        "AmazonEC2",
        "Compute Instance",
        usd,
        instanceType=name,
        vcpu=str(vcpus),
        memory=memory,
        networkPerformance=network,
        storage=storage,
        operatingSystem="Linux",
        tenancy="Shared",
        preInstalledSw="NA",
        capacitystatus="Used",
        instanceFamily="Memory optimized",
        marketoption="OnDemand",
    )


def surcharge(name: str, usd: str) -> Product:
    family = "Elastic Map Reduce Instance"
    return product("ElasticMapReduce", family, usd, instanceType=name, softwareType="EMR", productFamily=family)


def serverless(unit: str, usd: str, usagetype: str) -> Product:
    return product("ElasticMapReduce", "EMR Serverless", usd, unit, meterunit=unit, usagetype=usagetype)


PUBLISHED: tuple[Product, ...] = (
    instance("r6i.xlarge", "0.2820000000", 4, "32 GiB", "Up to 12500 Megabit"),
    instance("r6i.8xlarge", "2.2560000000", 32, "256 GiB", "12500 Megabit"),
    instance("r6i.16xlarge", "4.5120000000", 64, "512 GiB", "25000 Megabit"),
    instance("r5d.xlarge", "0.3200000000", 4, "32 GiB", "Up to 10 Gigabit", "1 x 150 NVMe SSD"),
    instance("r5d.24xlarge", "7.6800000000", 96, "768 GiB", "25 Gigabit", "4 x 900 NVMe SSD"),
    instance("r5.large", "0", 2, "16 GiB", "Up to 10 Gigabit"),
    instance("r9x.xlarge", "0.5000000000", 4, "32 GiB", "Up to 10 Gigabit"),
    instance("r6g.xlarge", "0.2250000000", 4, "32 GiB", "Up to 10 Gigabit"),
    instance("x2gd.xlarge", "0.4000000000", 4, "64 GiB", "Up to 10 Gigabit"),
    surcharge("r6i.xlarge", "0.0630000000"),
    surcharge("r6i.8xlarge", "0.2700000000"),
    surcharge("r6i.16xlarge", "0.2700000000"),
    surcharge("r5d.xlarge", "0.0720000000"),
    surcharge("r5d.24xlarge", "0.2700000000"),
    surcharge("r9x.xlarge", "0.1250000000"),
    surcharge("x2gd.xlarge", "0.0840000000"),
    product("AmazonEC2", "Storage", "0.0880000000", "GB-Mo", productFamily="Storage", volumeApiName="gp3"),
    product("AmazonS3", "API Request", "0.0000050000", "Requests", group="S3-API-Tier1"),
    product("AmazonS3", "API Request", "0.0000004000", "Requests", group="S3-API-Tier2"),
    product(
        "AmazonS3",
        "Storage",
        ("0.0230000000", "0.0220000000", "0.0210000000"),
        "GB-Mo",
        productFamily="Storage",
        storageClass="General Purpose",
        volumeType="Standard",
        usagetype="EU-TimedStorage-ByteHrs",
    ),
    serverless("CPUHours", "0.0526240000", "EU-EMR-SERVERLESS-vCPUHours"),
    serverless("CPUHours", "9.0000000000", "EU-EMR-EKS-EC2-vCPUHours"),
    serverless("GBHours", "0.0057785000", "EU-EMR-SERVERLESS-GBHours"),
    serverless("StorageGBHours", "0.0001220000", "EU-EMR-SERVERLESS-StorageGBHours"),
)


class PublishedPrices:
    """A `PriceService`."""

    def __init__(self, products: Sequence[Product] = PUBLISHED) -> None:
        self.requests: list[PriceRequest] = []
        self._products = products

    def products(self, request: PriceRequest) -> Iterator[Product]:
        self.requests.append(request)
        for each in self._products:
            attributes: Mapping[str, Any] = each["product"]["attributes"]
            family = {"productFamily": each["product"]["productFamily"]}
            wanted = {"servicecode": request.service_code, **request.attributes}
            if wanted.items() <= {**family, **attributes}.items():
                yield json.loads(json.dumps(each))


@contextmanager
def price_server() -> Iterator[str]:
    """The same over HTTP, a few products a page. The value: its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            attributes = {each["Field"]: each["Value"] for each in asked["Filters"]}
            found = list(PublishedPrices().products(PriceRequest(asked["ServiceCode"], attributes)))
            first = int(asked.get("NextToken", "0"))
            answer: dict[str, Any] = {
                "FormatVersion": "aws_v1",
                "PriceList": [json.dumps(each) for each in found[first : first + PAGE]],
            }
            if first + PAGE < len(found):
                answer["NextToken"] = str(first + PAGE)
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


PAGE = 3
