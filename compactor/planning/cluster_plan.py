"""The planned cluster of a session, its use of a store, and its cost: documents that are part of plans, logs and
events.

`launcher/sizing/` chooses and calculates clusters and costs. A session on an existing machine has neither.
"""

from typing import Self

from pydantic import Field

from compactor.model.document import Document


class ClusterUse(Document):
    """What the nodes of a launch have run, as the service of its cluster says, and what they cost. Fields of other
    services are 0.

    Attributes:
        on_demand_seconds, spot_seconds: of EMR's instances by market, each a minute at least
        vcpu_hours, gib_hours, disk_gib_hours: that EMR Serverless bills
        instances_usd, surcharge_usd, volumes_usd, spot_usd: as in `Cost`"""

    on_demand_seconds: float = Field(default=0.0, ge=0)
    spot_seconds: float = Field(default=0.0, ge=0)
    vcpu_hours: float = Field(default=0.0, ge=0)
    gib_hours: float = Field(default=0.0, ge=0)
    disk_gib_hours: float = Field(default=0.0, ge=0)
    instances_usd: float = Field(default=0.0, ge=0)
    surcharge_usd: float = Field(default=0.0, ge=0)
    volumes_usd: float = Field(default=0.0, ge=0)
    spot_usd: float = Field(default=0.0, ge=0)

    @property
    def usd(self) -> float:
        return self.instances_usd + self.surcharge_usd + self.volumes_usd

    def part(self, sessions: int) -> Self:
        """The part of each of the sessions of a launch."""
        return self.model_copy(update={name: value / sessions for name, value in self})


class Cost(Document):
    """US dollars by purpose: expected before a session, used after it.

    Attributes:
        seconds: that the cluster is paid for, its start included; an instance is paid for a minute at least
        instances_usd: EC2, or vCPUs and memory of EMR Serverless, by the second
        surcharge_usd: of the service that runs the cluster (EMR), by the second
        volumes_usd: of volumes attached for scratch files
        requests_usd: of S3
        storage_usd: of what is written to S3, for one month
        start_usd: of the first three, what is paid before the first task can run
        spot_usd: of instances_usd, for nodes on Spot: only after a session whose nodes were read
        priced_on: the day of the oldest price in it, ISO 8601"""

    seconds: float = Field(ge=0)
    instances_usd: float = Field(ge=0)
    surcharge_usd: float = Field(ge=0)
    volumes_usd: float = Field(ge=0)
    requests_usd: float = Field(ge=0)
    storage_usd: float = Field(ge=0)
    start_usd: float = Field(ge=0)
    total_usd: float = Field(ge=0)
    spot_usd: float = Field(default=0.0, ge=0)
    priced_on: str


class PaidRates(Document):
    """Rates of a cluster and its store in US dollars, from which the used cost is calculated afterwards.

    Attributes:
        instances_usd_hour, surcharge_usd_hour, volumes_usd_hour: of the whole cluster as it starts
        start_is_paid: False: only from the first task on"""

    instances_usd_hour: float = Field(ge=0)
    surcharge_usd_hour: float = Field(ge=0)
    volumes_usd_hour: float = Field(ge=0)
    put_usd_1000: float = Field(ge=0)
    get_usd_1000: float = Field(ge=0)
    storage_usd_gib_month: float = Field(ge=0)
    priced_on: str
    start_is_paid: bool = True

    @property
    def usd_hour(self) -> float:
        return self.instances_usd_hour + self.surcharge_usd_hour + self.volumes_usd_hour


class ClusterPlan(Document):
    """A cluster for one session, decided before anything is launched; or for a bundle, as the plan of each of its
    sessions: then rates and cost are the session's part.

    Attributes:
        region: of its prices, in which it is to run
        instance_type: of its worker nodes
        nodes: worker nodes that it starts with, `spot_nodes` included
        nodes_max: that managed scaling may grow it to
        spot_nodes: of `nodes`: task nodes on Spot, which may be taken away; the others are core nodes
        primary_instance_type: of the one node that runs the driver and the cluster's own services; None: there is none
        executors_per_node: Spark executors, each with `executor_cores` tasks side by side
        executor_heap_bytes: of an executor's JVM, which moves shuffle files (spark.executor.memory)
        executor_overhead_bytes: beside it, for the executor's Python workers (spark.executor.memoryOverhead)
        task_memory_bytes: of that, for one task
        driver_heap_bytes: spark.driver.memory
        driver_overhead_bytes: beside it, for the driver's Python
        scratch_volumes_per_node: volumes to attach to each worker node for scratch files; 0: its local disks hold them
        scratch_volume_gib: of each of these volumes
        local_disk_gib: of each worker node's own disks, in all
        start_seconds: from the request for the cluster to the first task
        expected_sla: predicted seconds from that request to the session's end, with the 10 % buffer
        within_desired_sla: None: none was asked for
        rates: what it costs by the hour
        usd_hour_max: what it costs by the hour with `nodes_max` nodes, all on demand; None: not recorded, it does not
            grow
        cost: what the session is expected to cost, without the buffer"""

    region: str
    instance_type: str
    nodes: int = Field(ge=1)
    nodes_max: int = Field(ge=1)
    spot_nodes: int = Field(default=0, ge=0)
    primary_instance_type: str | None
    executors_per_node: int = Field(ge=1)
    executor_cores: int = Field(ge=1)
    executor_heap_bytes: int = Field(ge=1)
    executor_overhead_bytes: int = Field(ge=1)
    task_memory_bytes: int = Field(ge=1)
    driver_heap_bytes: int = Field(ge=1)
    driver_overhead_bytes: int = Field(ge=1)
    scratch_volumes_per_node: int = Field(default=0, ge=0)
    scratch_volume_gib: int = Field(default=0, ge=0)
    local_disk_gib: int = Field(default=0, ge=0)
    start_seconds: float = Field(ge=0)
    expected_sla: float
    within_desired_sla: bool | None = None
    rates: PaidRates
    usd_hour_max: float | None = Field(default=None, ge=0)
    cost: Cost

    @property
    def cores_per_node(self) -> int:
        return self.executors_per_node * self.executor_cores

    @property
    def tasks(self) -> int:
        """Tasks side by side when it has started."""
        return self.nodes * self.cores_per_node

    @property
    def usd_hour_charged(self) -> float:
        """What limits on money count by the hour: the nodes that may run, not those that it starts with."""
        return max(self.usd_hour_max or 0.0, self.rates.usd_hour)

    @property
    def usd_charged(self) -> float:
        """Likewise for all of its expected time.

        Worked: $1.20 for 30 minutes at $2 an hour, S3's $0.20 included, and $4 with all nodes: $2.20.
        """
        grown = self.usd_hour_charged - self.rates.usd_hour
        return self.cost.total_usd + grown * self.cost.seconds / 3600

    @property
    def core_nodes(self) -> int:
        """Worker nodes that are not on Spot."""
        return self.nodes - self.spot_nodes

    @property
    def scratch_bytes_per_node(self) -> int:
        return (self.scratch_volumes_per_node * self.scratch_volume_gib or self.local_disk_gib) * 1024**3


REQUEST_BYTES = 8 * 1024**2
"""Bytes per request for a part of a file, read or written."""

GETS_PER_FILE = 3
"""Requests to open a file of a lake on S3: its size, its footer, its first columns."""

REQUESTS_PER_ROUND = 40
"""Requests of a round in addition to its files: log entries, plan, heartbeats."""


class StoreUse(Document):
    """
    Attributes:
        puts: objects, and parts of large ones
        gets: reads of any kind
        written_bytes: that are stored afterwards"""

    puts: int = Field(default=0, ge=0)
    gets: int = Field(default=0, ge=0)
    written_bytes: int = Field(default=0, ge=0)


def store_use(*, rounds: int, files_read: int, bytes_read: int, files_written: int, bytes_written: int) -> StoreUse:
    """From files and bytes, which are predicted before a session and known after it: requests are not counted.

    Worked: 1 round that reads 100 files of 1 GiB in all and writes 10 files of as much: 300 + 128 + 40 GETs, and
    10 + 128 + 40 PUTs."""
    return StoreUse(
        puts=files_written + bytes_written // REQUEST_BYTES + REQUESTS_PER_ROUND * rounds,
        gets=GETS_PER_FILE * files_read + bytes_read // REQUEST_BYTES + REQUESTS_PER_ROUND * rounds,
        written_bytes=bytes_written,
    )
