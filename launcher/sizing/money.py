"""The cost of a session by its use. Pure: the same arithmetic before a session and after it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from compactor.planning.cluster_plan import ClusterPlan, ClusterUse, Cost, PaidRates, StoreUse, store_use
from compactor.planning.sizing import INDEX_BYTES_PER_ROW, SessionSize
from compactor.planning.time_model import SessionWork
from launcher.sizing.instance_types import InstanceType, PriceList

SECONDS_MIN = 60.0
"""Least seconds that are charged: EC2 and EMR charge by the second, and a minute at least."""

_HOURS_OF_A_MONTH = 30 * 24
_GIB = 1024**3
_NO_USE = StoreUse()


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


@dataclass(frozen=True)
class PaidAttempt:
    """An attempt at a session for which a cluster was launched.

    Attributes:
        launch: its name on the cluster, which all sessions of a launch have
        rates, start_seconds: of its plan: of the cluster, or of the session's part of that
        launched_at_ms, ended_at_ms: by the clock of who watched it; None: it runs, or its end was not seen
        use: the session's part of what the nodes ran; None: it was not read, and counts as planned"""

    launch: str
    rates: PaidRates
    start_seconds: float
    launched_at_ms: int
    ended_at_ms: int | None = None
    use: ClusterUse | None = None

    def ended(self, at_ms: int | None) -> Self:
        return self if self.ended_at_ms is not None else replace(self, ended_at_ms=at_ms)

    def cost(self, now_ms: int, store: StoreUse = _NO_USE) -> Cost:
        ended_at_ms = self.ended_at_ms if self.ended_at_ms is not None else now_ms
        seconds = max(ended_at_ms - self.launched_at_ms, 0) / 1000
        planned = cost_of(self.rates, seconds, self.start_seconds, store)
        if self.use is None:
            return planned
        nodes = ("instances_usd", "surcharge_usd", "volumes_usd", "spot_usd")
        total_usd = self.use.usd + planned.requests_usd + planned.storage_usd
        return planned.model_copy(update={**{name: getattr(self.use, name) for name in nodes}, "total_usd": total_usd})


def cost_used(attempts: Sequence[PaidAttempt], now_ms: int, store: StoreUse) -> Cost:
    """Of a session until now: its attempts, of which there is one at least, and its use of the store, told by the last
    one.

    Worked: an attempt of 30 s, which is paid for a minute, and one of 600 s, at $6 an hour: $1.10."""
    paid = [*(each.cost(now_ms) for each in attempts[:-1]), attempts[-1].cost(now_ms, store)]
    amounts = {name: sum(getattr(cost, name) for cost in paid) for name in Cost.model_fields if name != "priced_on"}
    return Cost(priced_on=paid[-1].priced_on, **amounts)


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
