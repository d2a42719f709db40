"""Instance types and prices: a built-in table, which a user's file replaces entirely.

    {"region": "eu-west-1", "priced_on": "2026-11-01",
     "instance_types": [{"name": "r6g.4xlarge", "vcpus": 16, "memory_gib": 128, "network_gbps": 10,
                         "local_disk_gib": 0, "on_demand_usd_hour": 0.9, "emr_usd_hour": 0.2}],
     "s3": {"put_usd_1000": 0.005, "get_usd_1000": 0.0004, "storage_usd_gib_month": 0.023},
     "volume_usd_gib_month": 0.08,
     "serverless": {"vcpu_usd_hour": 0.05, "gib_usd_hour": 0.006, "disk_gib_usd_hour": 0.0001}}

`lithify prices` writes such a file from the price list that AWS publishes.
Only types with at least 8 GiB of memory a vCPU (the paper, "Compaction sessions") are taken.
"""

from dataclasses import dataclass
from datetime import date
from typing import Self

from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from compactor.model.document import Document
from compactor.model.errors import Invalid, refuse_if
from compactor.model.wrong_input import sentences

MEMORY_GIB_PER_VCPU_MIN = 8
BUILT_IN_REGION = "us-east-1"
BUILT_IN_PRICED_ON = "2024-12-01"

PRICES_DAYS_MAX = 366
"""Age above which prices are warned of."""


class InstanceType(Document):
    """
    Attributes:
        network_gbps: sustained, not in bursts
        local_disk_gib: of its own disks, in all; 0: none
        on_demand_usd_hour: EC2's price for Linux
        emr_usd_hour: EMR's surcharge
        spot_usd_hour: for an instance on Spot; None: as on demand, which it never exceeds"""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)

    name: str
    vcpus: PositiveInt
    memory_gib: PositiveFloat
    network_gbps: PositiveFloat
    local_disk_gib: NonNegativeInt = 0
    on_demand_usd_hour: PositiveFloat
    emr_usd_hour: NonNegativeFloat
    spot_usd_hour: PositiveFloat | None = None

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 1024**3)

    @property
    def usd_hour_max(self) -> float:
        """On demand, on EMR."""
        return self.on_demand_usd_hour + self.emr_usd_hour

    def usd_hour(self, *, spot: bool = False) -> float:
        """EC2's price alone."""
        return self.spot_usd_hour if spot and self.spot_usd_hour is not None else self.on_demand_usd_hour


class S3Prices(Document):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)

    put_usd_1000: NonNegativeFloat = 0.005
    get_usd_1000: NonNegativeFloat = 0.0004
    storage_usd_gib_month: NonNegativeFloat = 0.023


class ServerlessPrices(Document):
    """Of workers of EMR Serverless on x86. disk_gib_usd_hour: beyond the 20 GiB that each has for nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)

    vcpu_usd_hour: NonNegativeFloat
    gib_usd_hour: NonNegativeFloat
    disk_gib_usd_hour: NonNegativeFloat


class PriceList(Document):
    """`priced_on`: the date of the prices. `serverless` None: EMR Serverless cannot be used with it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)

    region: str
    priced_on: date
    instance_types: tuple[InstanceType, ...]
    s3: S3Prices = S3Prices()
    volume_usd_gib_month: NonNegativeFloat = 0.08
    serverless: ServerlessPrices | None = None

    def instance_type(self, name: str) -> InstanceType:
        """Raises `Invalid` for a type that is not in the list."""
        return self.only((name,)).instance_types[0]

    def warnings(self, region: str | None, today: date) -> tuple[str, ...]:
        """Reasons not to trust these prices for clusters in a region, a sentence each. `region` None: not known."""
        found = []
        if region not in (None, self.region):
            found.append(
                f"prices are those of {self.region}, and clusters run in {region}, which may have other prices and "
                f"lack instance types: write those of {region} with `lithify prices`, and give them as --price-file"
            )
        if (today - self.priced_on).days > PRICES_DAYS_MAX:
            found.append(
                f"prices are of {self.priced_on}, more than a year old: write new ones with `lithify prices`, and give "
                "them as --price-file"
            )
        return tuple(found)

    def only(self, names: tuple[str, ...]) -> Self:
        """The same with these instance types. Raises `Invalid`, with every reason, for unknown names."""
        unknown = sorted(set(names) - {each.name for each in self.instance_types})
        if unknown:
            have = ", ".join(each.name for each in self.instance_types)
            raise Invalid(
                *(f"instance type {name!r} is unknown in {self.region}: take one of {have}" for name in unknown)
            )
        return self.model_copy(
            update={"instance_types": tuple(each for each in self.instance_types if each.name in names)}
        )


@dataclass(frozen=True)
class _Family:
    """An instance family; its members differ by size. Prices are of the xlarge, with 4 vCPUs and 32 GiB.

    Attributes:
        emr_usd_hour_max: EMR's surcharge is a quarter of EC2's price, for older families up to this much
        disk_gib: of the xlarge's local disks"""

    name: str
    usd_hour: float
    network_gbps_xlarge: float
    network_gbps_max: float
    emr_usd_hour_max: float | None = None
    disk_gib: int = 0


_FAMILIES = (
    _Family("r5", 0.252, 1.25, 25, emr_usd_hour_max=0.27),
    _Family("r5d", 0.288, 1.25, 25, emr_usd_hour_max=0.27, disk_gib=139),
    _Family("r5n", 0.298, 4.1, 100, emr_usd_hour_max=0.27),
    _Family("r6i", 0.252, 1.5625, 50),
    _Family("r6id", 0.3024, 1.5625, 50, disk_gib=220),
    _Family("r6g", 0.2016, 1.25, 25),
    _Family("r6gd", 0.2304, 1.25, 25, disk_gib=220),
)
_SIZES = {"xlarge": 1, "2xlarge": 2, "4xlarge": 4, "8xlarge": 8, "12xlarge": 12, "16xlarge": 16}
_VCPUS_OF_XLARGE = 4


def _instance(family: _Family, size: str, times: int) -> InstanceType:
    usd_hour = round(family.usd_hour * times, 4)
    emr = round(usd_hour / 4, 4)
    return InstanceType(
        name=f"{family.name}.{size}",
        vcpus=_VCPUS_OF_XLARGE * times,
        memory_gib=_VCPUS_OF_XLARGE * times * MEMORY_GIB_PER_VCPU_MIN,
        network_gbps=min(family.network_gbps_xlarge * times, family.network_gbps_max),
        local_disk_gib=family.disk_gib * times,
        on_demand_usd_hour=usd_hour,
        emr_usd_hour=min(emr, family.emr_usd_hour_max) if family.emr_usd_hour_max is not None else emr,
    )


BUILT_IN = PriceList(
    region=BUILT_IN_REGION,
    priced_on=date.fromisoformat(BUILT_IN_PRICED_ON),
    instance_types=tuple(_instance(family, size, times) for family in _FAMILIES for size, times in _SIZES.items()),
    serverless=ServerlessPrices(vcpu_usd_hour=0.052624, gib_usd_hour=0.0057785, disk_gib_usd_hour=0.000111),
)
"""List prices without discount, as published in that region up to that day. An account's own are in a file."""


def parse_price_list(body: bytes, where: str, today: date) -> PriceList:
    """A price list of the user's. Raises `Invalid`, with every reason, for one that is not valid.

    Args:
        where: the name of the list in reasons"""
    try:
        prices = PriceList.model_validate_json(body)
    except ValidationError as error:
        raise Invalid(*(f"{where}: {reason}" for reason in sentences(error, PriceList))) from error
    reasons = _violations(prices, today)
    refuse_if([f"{where}: {reason}" for reason in reasons])
    return prices


def _violations(prices: PriceList, today: date) -> list[str]:
    reasons = []
    if prices.priced_on > today:
        reasons.append(f"priced_on is {prices.priced_on}, and today is {today}: give the day on which the prices held")
    if not prices.instance_types:
        reasons.append("instance_types is empty: give one at least")
    names = [each.name for each in prices.instance_types]
    reasons += [
        f"instance type {name!r} is given more than once" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    return reasons + [
        f"instance type {each.name!r}: {each.memory_gib / each.vcpus:g} GiB a vCPU: it must have "
        f"{MEMORY_GIB_PER_VCPU_MIN} at least (memory-optimized families do)"
        for each in prices.instance_types
        if each.memory_gib < MEMORY_GIB_PER_VCPU_MIN * each.vcpus
    ]
