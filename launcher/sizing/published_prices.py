"""A price list from the products that AWS publishes (Price List API, format aws_v1). Pure: requests and answers are
values, and `launcher/aws/pricing.py` asks.

    AmazonEC2          instances of the r series: vCPUs, memory, disks, network, price; a GiB of gp3 volumes
    ElasticMapReduce   EMR's surcharge for each instance type; vCPUs, memory and disks of EMR Serverless on x86
    AmazonS3           requests, and the first tier of standard storage

Prices on Spot change by the hour and are not published there: `spot_usd_hour` is left out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

from compactor.model.errors import Invalid
from launcher.sizing.instance_types import MEMORY_GIB_PER_VCPU_MIN, InstanceType, PriceList, S3Prices, ServerlessPrices

Product = Mapping[str, Any]
"""One element of `PriceList` of an answer, decoded: `product.attributes`, `terms.OnDemand`."""

FAMILIES = re.compile(r"r\d+[a-z]*\.")
"""Families of memory-optimized instances, as the paper has them."""

_UP_TO = "Up to "
_RATE = re.compile(r"([\d.]+) (Gigabit|Megabit)")
_DISKS = re.compile(r"(?:(\d+) x )?(\d+)(?: GB)? (?:NVMe )?SSD")


@dataclass(frozen=True)
class PriceRequest:
    """GetProducts: products of a service that have all of these attributes."""

    service_code: str
    attributes: Mapping[str, str]


class PriceService(Protocol):
    def products(self, request: PriceRequest) -> Iterable[Product]:
        """All of them, page by page. Raises `Denied` or `Unavailable`."""


def published_prices(service: PriceService, region: str, today: date) -> PriceList:
    """The prices of a region, asked for today. Raises `Invalid` with everything that is not published for it."""

    def ask(service_code: str, **attributes: str) -> list[Product]:
        return list(service.products(PriceRequest(service_code, {"regionCode": region, **attributes})))

    lacking: list[str] = []
    instances = instance_types(
        ask(
            "AmazonEC2",
            operatingSystem="Linux",
            tenancy="Shared",
            preInstalledSw="NA",
            capacitystatus="Used",
            instanceFamily="Memory optimized",
        ),
        ask("ElasticMapReduce", productFamily="Elastic Map Reduce Instance", softwareType="EMR"),
    )
    if not instances:
        lacking.append("instances of the r series with EMR")
    volumes = _only("gp3 volumes", ask("AmazonEC2", productFamily="Storage", volumeApiName="gp3"), lacking)
    puts = _only("PUT requests of S3", ask("AmazonS3", group="S3-API-Tier1"), lacking)
    gets = _only("GET requests of S3", ask("AmazonS3", group="S3-API-Tier2"), lacking)
    stored = [
        product
        for product in ask("AmazonS3", productFamily="Storage", storageClass="General Purpose", volumeType="Standard")
        if _attributes(product).get("usagetype", "").endswith("TimedStorage-ByteHrs")
    ]
    storage = _only("standard storage of S3", stored, lacking)
    if lacking:
        raise Invalid(
            f"AWS publishes no price in {region} in US dollars of {', '.join(lacking)}: is it a region's code?"
        )
    return PriceList(
        region=region,
        priced_on=today,
        instance_types=instances,
        s3=S3Prices(put_usd_1000=puts * 1000, get_usd_1000=gets * 1000, storage_usd_gib_month=storage),
        volume_usd_gib_month=volumes,
        serverless=_serverless(ask),
    )


def instance_types(instances: Iterable[Product], surcharges: Iterable[Product]) -> tuple[InstanceType, ...]:
    """Those of the r series with 8 GiB a vCPU that EMR runs. A network that is only published as a burst ("Up to 10
    Gigabit") counts as its vCPUs' share of that of the smallest larger one of its family; a family without any is left
    out.

    Worked: r6i.8xlarge has 32 vCPUs and 12.5 Gigabit, so r6i.xlarge has 1.5625 of its "Up to 12.5".
    """
    emr = {_attributes(each).get("instanceType", ""): _usd(each) for each in surcharges}
    described: dict[str, tuple[Mapping[str, str], float]] = {}
    for each in instances:
        attributes, usd = _attributes(each), _usd(each)
        name = attributes.get("instanceType", "")
        if usd and emr.get(name) and FAMILIES.match(name) and attributes.get("marketoption", "OnDemand") == "OnDemand":
            described[name] = (attributes, usd)
    network = _sustained_gbps({name: attributes for name, (attributes, _) in described.items()})
    found = [
        InstanceType(
            name=name,
            vcpus=int(attributes["vcpu"]),
            memory_gib=_number(attributes["memory"]),
            network_gbps=network[name],
            local_disk_gib=_disk_gib(attributes.get("storage", "")),
            on_demand_usd_hour=usd,
            emr_usd_hour=emr[name] or 0.0,
        )
        for name, (attributes, usd) in sorted(described.items())
        if name in network
    ]
    return tuple(each for each in found if each.memory_gib >= MEMORY_GIB_PER_VCPU_MIN * each.vcpus)


def _sustained_gbps(described: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    sustained: dict[str, list[tuple[int, float]]] = {}
    for name, attributes in described.items():
        text = attributes.get("networkPerformance", "")
        rate = _RATE.search(text)
        if rate is not None and not text.startswith(_UP_TO):
            gbps = float(rate[1]) / (1000 if rate[2] == "Megabit" else 1)
            sustained.setdefault(name.partition(".")[0], []).append((int(attributes["vcpu"]), gbps))
    found = {}
    for name, attributes in described.items():
        vcpus = int(attributes["vcpu"])
        larger = sorted(each for each in sustained.get(name.partition(".")[0], ()) if each[0] >= vcpus)
        if larger:
            found[name] = larger[0][1] * vcpus / larger[0][0]
    return found


def _serverless(ask: Any) -> ServerlessPrices | None:  # noqa: ANN401  (a function with keyword arguments)
    """None: the region has no EMR Serverless."""
    prices = {}
    for field, unit in (
        ("vcpu_usd_hour", "CPUHours"),
        ("gib_usd_hour", "GBHours"),
        ("disk_gib_usd_hour", "StorageGBHours"),
    ):
        products = [
            product
            for product in ask("ElasticMapReduce", meterunit=unit)
            if "SERVERLESS" in _attributes(product).get("usagetype", "").upper()
        ]
        usd = [price for price in map(_usd, products) if price is not None]
        if not usd:
            return None
        prices[field] = max(usd)
    return ServerlessPrices(**prices)


def _only(what: str, products: Sequence[Product], lacking: list[str]) -> float:
    """The price; the highest, should there be several. 0 and a note if there is none."""
    prices = [price for price in map(_usd, products) if price]
    if not prices:
        lacking.append(what)
    return max(prices, default=0.0)


def _usd(product: Product) -> float | None:
    """US dollars for a unit on demand, of the first tier; None: there is no such price."""
    dimensions = [
        dimension
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if float(dimension.get("beginRange", "0") or 0) == 0 and "USD" in dimension["pricePerUnit"]
    ]
    return max((float(dimension["pricePerUnit"]["USD"]) for dimension in dimensions), default=None)


def _attributes(product: Product) -> Mapping[str, str]:
    attributes: Mapping[str, str] = product["product"]["attributes"]
    return attributes


def _number(text: str) -> float:
    """Worked: "1,024 GiB" is 1024."""
    return float(text.split(maxsplit=1)[0].replace(",", ""))


def _disk_gib(storage: str) -> int:
    """Worked: "2 x 300 NVMe SSD" are 600 GB, 558 GiB; "EBS only" is none."""
    found = _DISKS.search(storage)
    return 0 if found is None else int(int(found[1] or 1) * int(found[2]) * 10**9 / 1024**3)
