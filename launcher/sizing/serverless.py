"""Workers of EMR Serverless, and their price: vCPUs, memory and disks by the second, from when a worker is ready until
it stops. There is no primary node; the driver is a worker, too. Pure.

Workers have 8 GB a vCPU only with 1 and 2 vCPU (7.5 with 4 and more), and sessions are planned with so much: so an
executor is a worker of 2 vCPU, and a session has as many as give the tasks that the plan counts on.
"""

from compactor.model.errors import Invalid
from compactor.planning.cluster_plan import ClusterUse, PaidRates
from launcher.sizing.instance_types import PriceList, ServerlessPrices

WORKER_VCPUS = 2
WORKER_GIB = 16
"""Memory of a worker, its JVM and its Python workers together."""

HEAP_GIB = 1
"""Memory of a worker's JVM heap: the Python workers hold the rows."""

DRIVER_GIB_MAX = {2: 16, 4: 30, 8: 60, 16: 120}
"""The most memory of a driver by its vCPUs."""

DISK_GIB_MIN, DISK_GIB_MAX = 20, 200
"""Disk of a worker for scratch files; the least of it is not charged."""

_GIB = 1024**3

TASK_MEMORY_BYTES = (WORKER_GIB - HEAP_GIB) * _GIB // WORKER_VCPUS
"""The most memory of a task."""


def executors_of(tasks: int) -> int:
    return -(-tasks // WORKER_VCPUS)


def disk_gib_of(scratch_bytes: int, executors: int) -> int:
    """The disk of each executor for scratch files of so many bytes in all."""
    return min(max(-(-scratch_bytes // (executors * _GIB)), DISK_GIB_MIN), DISK_GIB_MAX)


def driver_vcpus_of(driver_gib: int) -> int:
    """Raises `Invalid` for more than a driver may have."""
    vcpus = next((vcpus for vcpus, gib in DRIVER_GIB_MAX.items() if driver_gib <= gib), None)
    if vcpus is None:
        raise Invalid(
            f"the driver is planned with {driver_gib} GiB, and one on EMR Serverless has at most "
            f"{max(DRIVER_GIB_MAX.values())}: ask for fewer hash buckets or larger compacted files, or use EMR on EC2"
        )
    return vcpus


def serverless_rates(prices: PriceList, executors: int, disk_gib: int, driver_gib: int) -> PaidRates:
    """Raises `Invalid` if the list has no prices of EMR Serverless.

    Args:
        disk_gib, driver_gib: of each executor; memory of the driver's JVM and its Python together

    Worked: 8 executors of 2 vCPU and 16 GB, a driver of 2 vCPU and 8 GB, at $0.052624 and $0.0057785 an hour: $1.73."""
    each = _prices_of(prices)
    vcpus = executors * WORKER_VCPUS + driver_vcpus_of(driver_gib)
    memory_gib = executors * WORKER_GIB + driver_gib
    charged_disk_gib = executors * (disk_gib - DISK_GIB_MIN)
    return PaidRates(
        instances_usd_hour=vcpus * each.vcpu_usd_hour + memory_gib * each.gib_usd_hour,
        surcharge_usd_hour=0.0,
        volumes_usd_hour=charged_disk_gib * each.disk_gib_usd_hour,
        put_usd_1000=prices.s3.put_usd_1000,
        get_usd_1000=prices.s3.get_usd_1000,
        storage_usd_gib_month=prices.s3.storage_usd_gib_month,
        priced_on=prices.priced_on.isoformat(),
        start_is_paid=False,
    )


def with_cost_of_hours(use: ClusterUse, prices: PriceList) -> ClusterUse:
    """Of what EMR Serverless bills. Raises `Invalid` if the list has no prices of it."""
    each = _prices_of(prices)
    workers_usd = use.vcpu_hours * each.vcpu_usd_hour + use.gib_hours * each.gib_usd_hour
    disks_usd = use.disk_gib_hours * each.disk_gib_usd_hour
    return use.model_copy(update={"instances_usd": workers_usd, "volumes_usd": disks_usd})


def _prices_of(prices: PriceList) -> ServerlessPrices:
    if prices.serverless is None:
        raise Invalid(f"the prices of {prices.region} have none of EMR Serverless: add serverless to the price file")
    return prices.serverless
