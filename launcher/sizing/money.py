"""The cost of a session by its use. Pure: the same arithmetic before a session and after it."""

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.planning.cluster_plan import ClusterPlan, ClusterUse, Cost, PaidRates, StoreUse, UnitRates, store_use
from compactor.planning.sizing import INDEX_BYTES_PER_ROW, SessionSize
from compactor.planning.time_model import SessionWork
from launcher.sizing.instance_types import InstanceType, PriceList

SECONDS_MIN = 60.0
"""Least seconds that are charged: EC2 and EMR charge by the second, and a minute at least."""

_HOURS_OF_A_MONTH = 30 * 24
_GIB = 1024**3


@dataclass(frozen=True)
class Nodes:
    """The instances of a cluster: workers on demand and on Spot, and one primary node; and the workers' volumes."""

    on_demand: int
    spot: int
    worker: InstanceType
    primary: InstanceType | None
    volume_gib: int = 0


def rates_of(nodes: Nodes, prices: PriceList) -> PaidRates:
    """Worked: 11 r5n.8xlarge without EMR and without a primary node are $26.22 an hour."""
    volume_usd = prices.volume_usd_gib_month / _HOURS_OF_A_MONTH
    primary_usd = nodes.primary.usd_hour() if nodes.primary is not None else 0.0
    primary_emr_usd = nodes.primary.emr_usd_hour if nodes.primary is not None else 0.0
    workers_usd = nodes.on_demand * nodes.worker.usd_hour() + nodes.spot * nodes.worker.usd_hour(spot=True)
    return PaidRates(
        instances_usd_hour=workers_usd + primary_usd,
        surcharge_usd_hour=(nodes.on_demand + nodes.spot) * nodes.worker.emr_usd_hour + primary_emr_usd,
        volumes_usd_hour=nodes.volume_gib * volume_usd,
        put_usd_1000=prices.s3.put_usd_1000,
        get_usd_1000=prices.s3.get_usd_1000,
        storage_usd_gib_month=prices.s3.storage_usd_gib_month,
        priced_on=prices.priced_on.isoformat(),
        units=UnitRates(
            on_demand_usd_hour=nodes.worker.usd_hour(),
            spot_usd_hour=nodes.worker.usd_hour(spot=True),
            surcharge_usd_hour=nodes.worker.emr_usd_hour,
            volumes_usd_hour=nodes.volume_gib * volume_usd / (nodes.on_demand + nodes.spot),
            primary_usd_hour=primary_usd,
            primary_surcharge_usd_hour=primary_emr_usd,
        ),
    )


def cost_of(rates: PaidRates, seconds: float, start_seconds: float, store: StoreUse) -> Cost:
    """The cost of a cluster for these seconds, and of its session's use of S3.

    Worked: $26.22 an hour for 655 seconds are $4.77; for 20 TiB $0.24 a TiB.
    """
    free_seconds = 0.0 if rates.start_is_paid else start_seconds
    paid_seconds = max(seconds - free_seconds, SECONDS_MIN)
    hours = paid_seconds / 3600
    paid = {
        "instances_usd": rates.instances_usd_hour * hours,
        "surcharge_usd": rates.surcharge_usd_hour * hours,
        "volumes_usd": rates.volumes_usd_hour * hours,
        "requests_usd": (store.puts * rates.put_usd_1000 + store.gets * rates.get_usd_1000) / 1000,
        "storage_usd": store.written_bytes / _GIB * rates.storage_usd_gib_month,
    }
    return Cost(
        seconds=paid_seconds,
        start_usd=rates.usd_hour * min(start_seconds - free_seconds, paid_seconds) / 3600,
        total_usd=sum(paid.values()),
        priced_on=rates.priced_on,
        **paid,
    )


def cost_used(
    plan: ClusterPlan, attempt_seconds: Sequence[float], store: StoreUse, use: ClusterUse | None = None
) -> Cost:
    """Of a session that has ended: each of its attempts had a cluster of its own, which is paid for a minute at least.

    Args:
        attempt_seconds: from each attempt's launch to its end, the cluster's start included; at least one
        use: of the last attempt's nodes; None: it was not read, and counts as planned"""
    each = [cost_of(plan.rates, seconds, plan.start_seconds, StoreUse()) for seconds in attempt_seconds]
    last = cost_of(plan.rates, attempt_seconds[-1], plan.start_seconds, store)
    last = last if use is None or plan.rates.units is None else _by_use(last, plan.rates.units, use)
    paid = [*each[:-1], last]
    amounts = {name: sum(getattr(cost, name) for cost in paid) for name in Cost.model_fields if name != "priced_on"}
    return Cost(priced_on=plan.rates.priced_on, **amounts)


def _by_use(cost: Cost, units: UnitRates, use: ClusterUse) -> Cost:
    """With the real seconds of nodes in place of the planned ones.

    Worked: 2 nodes on demand at $0.50 an hour for 30 minutes, one on Spot at $0.20 for 15, and a primary one at $0.30
    for 30: $0.50 + 0.05 + 0.15.
    """
    spot_usd = use.spot_seconds / 3600 * units.spot_usd_hour
    nodes_hours = (use.on_demand_seconds + use.spot_seconds) / 3600
    on_demand_usd = use.on_demand_seconds / 3600 * units.on_demand_usd_hour
    primary_hours = use.primary_seconds / 3600
    serverless_usd = use.vcpu_hours * units.vcpu_usd_hour + use.gib_hours * units.gib_usd_hour
    paid = {
        "instances_usd": on_demand_usd + spot_usd + primary_hours * units.primary_usd_hour + serverless_usd,
        "surcharge_usd": nodes_hours * units.surcharge_usd_hour + primary_hours * units.primary_surcharge_usd_hour,
        "volumes_usd": nodes_hours * units.volumes_usd_hour + use.disk_gib_hours * units.disk_gib_usd_hour,
    }
    total_usd = sum(paid.values()) + cost.requests_usd + cost.storage_usd
    return cost.model_copy(update={**paid, "spot_usd": spot_usd, "total_usd": total_usd})


def cost_sentences(cost: Cost, region: str) -> str:
    """The arithmetic of the money."""
    return (
        f"${cost.total_usd:,.4f}: instances ${cost.instances_usd:,.4f} + EMR ${cost.surcharge_usd:,.4f} + volumes "
        f"${cost.volumes_usd:,.4f} for {cost.seconds:,.0f} s, ${cost.start_usd:,.4f} of it while the cluster starts; "
        f"S3 requests ${cost.requests_usd:,.4f} + a month of what is written ${cost.storage_usd:,.4f}; "
        f"prices of {region} on {cost.priced_on}"
    )


def shared_by(plan: ClusterPlan, end_seconds: Sequence[float], stores: Sequence[StoreUse]) -> tuple[ClusterPlan, ...]:
    """One cluster for several sessions, as the plan of each: every session pays the same part of it, and its own use
    of S3. The rates of a session are such that it has paid its part at its expected end, so that the parts of all
    sessions are the whole, before and after.

    Worked: $1 an hour, and ends after 450 and 900 s: $0.125 each, at $1 and at $0.50 an hour.

    Args:
        end_seconds, stores: of each session: predicted end since the request for the cluster, and use of S3"""
    free_seconds = 0.0 if plan.rates.start_is_paid else plan.start_seconds
    whole_seconds = max(max(end_seconds) - free_seconds, SECONDS_MIN)
    return tuple(
        _part(plan, whole_seconds / (max(ends_at - free_seconds, SECONDS_MIN) * len(end_seconds)), ends_at, store)
        for ends_at, store in zip(end_seconds, stores, strict=True)
    )


def _part(plan: ClusterPlan, share: float, seconds: float, store: StoreUse) -> ClusterPlan:
    rates = plan.rates.model_copy(
        update={
            "instances_usd_hour": plan.rates.instances_usd_hour * share,
            "surcharge_usd_hour": plan.rates.surcharge_usd_hour * share,
            "volumes_usd_hour": plan.rates.volumes_usd_hour * share,
        }
    )
    most = None if plan.usd_hour_max is None else plan.usd_hour_max * share
    cost = cost_of(rates, seconds, plan.start_seconds, store)
    return plan.model_copy(update={"rates": rates, "usd_hour_max": most, "cost": cost})


def expected_store_use(work: SessionWork, size: SessionSize, hash_bucket_count: int) -> StoreUse:
    """The use of S3; none for a lake elsewhere."""
    if not size.lake_is_remote:
        return StoreUse()
    rows_per_file = size.delta_rows / max(size.delta_files, 1)
    compacted_files = max(work.rows_written / max(rows_per_file, 1), work.rounds)
    index_bytes = INDEX_BYTES_PER_ROW * (work.index_rows + work.delta_rows + work.rehashed_rows)
    from_buckets, to_buckets = (
        (size.inherited_hash_bucket_count or 0, hash_bucket_count) if work.rehashed_rows else (0, 0)
    )
    return store_use(
        rounds=work.rounds,
        files_read=work.files_read + hash_bucket_count * work.rounds + from_buckets,
        bytes_read=work.bytes_read + index_bytes,
        files_written=int(compacted_files) + hash_bucket_count * work.rounds + to_buckets,
        bytes_written=work.bytes_written + index_bytes,
    )
