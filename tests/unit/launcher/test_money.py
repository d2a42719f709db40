"""Money, by worked numbers."""

from __future__ import annotations

import pytest

from compactor.planning.cluster_plan import ClusterUse, StoreUse, store_use
from compactor.planning.sizing import SessionSize
from launcher.clusters.emr import use_of_instances
from launcher.emr.service import InstanceSeen
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom, choose_cluster
from launcher.sizing.desired_sla import DesiredSla
from launcher.sizing.instance_types import BUILT_IN
from launcher.sizing.money import Nodes, cost_of, cost_used, rates_of, shared_by
from launcher.sizing.serverless import disk_gib_of, serverless_rates

R5N = BUILT_IN.instance_type("r5n.8xlarge")
GIB = 1024**3


def test_the_paper_s_cheapest_point_costs_24_cents_a_tib() -> None:
    """The paper, "Efficiency": 20 TiB in 655 s on 11 r5n.8xlarge at $2.384, neither EMR's nor with volumes."""
    cost = cost_of(rates_of(Nodes(11, 0, R5N, None), BUILT_IN), 655, 0.0, StoreUse())
    assert round(cost.instances_usd / 20, 2) == 0.24


def test_a_cluster_is_paid_by_the_second_and_for_a_minute_at_least() -> None:
    rates = rates_of(Nodes(1, 0, R5N, None), BUILT_IN)
    paid = [cost_of(rates, seconds, 0.0, StoreUse()) for seconds in (1, 60, 61)]
    assert [each.seconds for each in paid] == [60, 60, 61]
    assert paid[0].total_usd == paid[1].total_usd < paid[2].total_usd
    assert paid[2].instances_usd == pytest.approx(61 * 2.384 / 3600)


def test_the_surcharge_the_primary_node_volumes_and_s3_are_told_apart() -> None:
    primary = BUILT_IN.instance_type("r5.xlarge")
    rates = rates_of(Nodes(2, 0, R5N, primary, volume_gib=720), BUILT_IN)
    cost = cost_of(rates, 3_600, 360, StoreUse(puts=10_000, gets=100_000, written_bytes=100 * GIB))
    assert cost.instances_usd == pytest.approx(2 * 2.384 + 0.252)
    assert cost.surcharge_usd == pytest.approx(2 * 0.27 + 0.063)
    assert cost.volumes_usd == pytest.approx(0.08)
    assert cost.requests_usd == pytest.approx(0.05 + 0.04)
    assert cost.storage_usd == pytest.approx(2.3)
    parts = (cost.instances_usd, cost.surcharge_usd, cost.volumes_usd, cost.requests_usd, cost.storage_usd)
    assert cost.total_usd == pytest.approx(sum(parts))
    assert cost.start_usd == pytest.approx(sum(parts[:3]) / 10)
    assert cost.priced_on == BUILT_IN.priced_on.isoformat()


def test_requests_follow_from_files_and_bytes() -> None:
    use = store_use(rounds=1, files_read=100, bytes_read=GIB, files_written=10, bytes_written=GIB)
    assert (use.gets, use.puts, use.written_bytes) == (300 + 128 + 40, 10 + 128 + 40, GIB)


def test_the_used_cost_is_the_sum_of_all_attempts_plus_the_store_once() -> None:
    plan = choose_cluster(SessionSize(0, 10**9, 75 * 10**9, 0, None, lake_is_remote=True), ClusterRoom(), None).plan
    use = StoreUse(puts=1_000, gets=10_000, written_bytes=GIB)
    one, two = cost_used(plan, [600.0], use), cost_used(plan, [30.0, 600.0], use)
    assert one.instances_usd == pytest.approx(plan.rates.instances_usd_hour / 6)
    assert two.seconds == 660
    assert two.instances_usd == pytest.approx(one.instances_usd * 1.1)
    assert two.requests_usd == one.requests_usd == pytest.approx(0.005 + 0.004)
    assert two.storage_usd == one.storage_usd


def test_the_parts_of_sessions_that_share_a_cluster_are_equal_and_all_of_it_before_and_after() -> None:
    size = SessionSize(index_rows=0, delta_rows=1, delta_bytes=1, sort_values_bytes=0, inherited_hash_bucket_count=None)
    plan = choose_cluster(size, ClusterRoom(), None).plan
    ends, stores = [450.0, 600.0, 900.0], [StoreUse(puts=1_000), StoreUse(), StoreUse()]
    parts = shared_by(plan, ends, stores)
    whole = cost_of(plan.rates, 900, plan.start_seconds, StoreUse(puts=1_000))
    assert sum(part.cost.total_usd for part in parts) == pytest.approx(whole.total_usd)
    assert [part.cost.requests_usd for part in parts] == [pytest.approx(0.005), 0, 0]
    assert {round(part.cost.instances_usd, 9) for part in parts} == {round(whole.instances_usd / 3, 9)}
    # all of them took a tenth longer
    used = [cost_used(part, [seconds * 1.1], store) for part, seconds, store in zip(parts, ends, stores, strict=True)]
    after = cost_of(plan.rates, 990, plan.start_seconds, StoreUse(puts=1_000))
    assert sum(cost.total_usd for cost in used) == pytest.approx(after.total_usd)


def test_a_shared_cluster_is_paid_for_a_minute_at_least_too() -> None:
    size = SessionSize(index_rows=0, delta_rows=1, delta_bytes=1, sort_values_bytes=0, inherited_hash_bucket_count=None)
    plan = choose_cluster(size, ClusterRoom(), None).plan
    parts = shared_by(plan, [5.0, 10.0], [StoreUse(), StoreUse()])
    whole = cost_of(plan.rates, 10, plan.start_seconds, StoreUse())
    assert sum(part.cost.total_usd for part in parts) == pytest.approx(whole.total_usd)


def test_workers_of_emr_serverless_are_paid_by_vcpus_and_memory_without_their_start_and_a_primary_node() -> None:
    rates = serverless_rates(BUILT_IN, executors=8, disk_gib=20, driver_gib=8)
    assert rates.instances_usd_hour == pytest.approx(18 * 0.052624 + 136 * 0.0057785)
    assert (rates.surcharge_usd_hour, rates.volumes_usd_hour) == (0, 0)
    cost = cost_of(rates, 1_020, 120, StoreUse())
    assert (cost.seconds, cost.start_usd) == (900, 0)
    assert cost.total_usd == pytest.approx(rates.instances_usd_hour / 4)
    with_disks = serverless_rates(BUILT_IN, executors=8, disk_gib=120, driver_gib=31)
    assert with_disks.volumes_usd_hour == pytest.approx(8 * 100 * 0.000111)
    assert with_disks.instances_usd_hour == pytest.approx(24 * 0.052624 + 159 * 0.0057785)


def test_a_session_on_emr_serverless_is_planned_by_its_own_prices() -> None:
    size = SessionSize(0, 10**8, 75 * 10**8, 0, None, delta_files=50, lake_is_remote=True)
    chosen = choose_cluster(size, ClusterRoom(serverless=True), DesiredSla(1_200))
    plan = chosen.plan
    assert plan.primary_instance_type is None
    assert plan.spot_nodes == 0
    assert plan.within_desired_sla
    workers = -(-plan.tasks // 2)
    disk_gib = disk_gib_of(plan.nodes * plan.scratch_bytes_per_node, workers)
    assert plan.rates == serverless_rates(BUILT_IN, workers, disk_gib, driver_gib=8)
    assert f"cluster: {workers} workers of EMR Serverless and one for the driver" in chosen.arithmetic[0]
    assert plan.usd_hour_charged > plan.rates.usd_hour


def test_the_parts_of_sessions_that_share_workers_of_emr_serverless_are_all_of_it() -> None:
    size = SessionSize(index_rows=0, delta_rows=1, delta_bytes=1, sort_values_bytes=0, inherited_hash_bucket_count=None)
    plan = choose_cluster(size, ClusterRoom(serverless=True), None).plan
    ends = [500.0, 900.0]
    parts = shared_by(plan, ends, [StoreUse(), StoreUse()])
    whole = cost_of(plan.rates, 900, plan.start_seconds, StoreUse())
    assert sum(part.cost.total_usd for part in parts) == pytest.approx(whole.total_usd)


def test_what_nodes_have_really_run_is_what_a_session_has_cost_with_spot_apart() -> None:
    worker, primary = BUILT_IN.instance_type("r5.xlarge"), BUILT_IN.instance_type("r5.2xlarge")
    worker = worker.model_copy(update={"spot_usd_hour": 0.1})
    plan = choose_cluster(SessionSize(0, 1, 1, 0, None), ClusterRoom(), None).plan
    plan = plan.model_copy(update={"rates": rates_of(Nodes(2, 1, worker, primary, volume_gib=96), BUILT_IN)})
    use = ClusterUse(on_demand_seconds=2 * 1_800, spot_seconds=900, primary_seconds=1_800)
    cost = cost_used(plan, [30.0, 1_900.0], StoreUse(), use)
    failed = cost_of(plan.rates, 30, plan.start_seconds, StoreUse())
    assert cost.spot_usd == pytest.approx(0.1 / 4)
    assert cost.instances_usd - failed.instances_usd == pytest.approx(0.252 + 0.1 / 4 + 0.504 / 2)
    assert cost.surcharge_usd - failed.surcharge_usd == pytest.approx(1.25 * 0.063 + 0.126 / 2)
    assert cost.volumes_usd - failed.volumes_usd == pytest.approx(1.25 * 32 * 0.08 / 720)
    parts = (cost.instances_usd, cost.surcharge_usd, cost.volumes_usd, cost.requests_usd, cost.storage_usd)
    assert cost.total_usd == pytest.approx(sum(parts))


def test_nodes_that_ran_as_planned_cost_what_was_planned() -> None:
    plan = choose_cluster(SessionSize(0, 10**8, 75 * 10**8, 0, None), ClusterRoom(ClusterLimits(spot_share=0.5)), None)
    nodes, cluster = plan.plan.nodes, plan.plan
    on_demand = nodes - cluster.spot_nodes
    use = ClusterUse(on_demand_seconds=on_demand * 900, spot_seconds=cluster.spot_nodes * 900, primary_seconds=900)
    planned, used = (cost_used(cluster, [900.0], StoreUse(), each) for each in (None, use))
    for name in ("instances_usd", "surcharge_usd", "volumes_usd", "total_usd"):
        assert getattr(used, name) == pytest.approx(getattr(planned, name))


def test_what_emr_serverless_bills_is_what_a_session_has_cost() -> None:
    plan = choose_cluster(SessionSize(0, 10**8, 75 * 10**8, 0, None), ClusterRoom(serverless=True), None).plan
    use = ClusterUse(vcpu_hours=3.0, gib_hours=24.0, disk_gib_hours=10.0)
    cost = cost_used(plan, [900.0], StoreUse(), use)
    assert cost.instances_usd == pytest.approx(3 * 0.052624 + 24 * 0.0057785)
    assert cost.volumes_usd == pytest.approx(10 * 0.000111)
    assert (cost.surcharge_usd, cost.spot_usd) == (0, 0)


def test_the_first_instance_on_demand_is_the_primary_node_and_each_counts_for_a_minute() -> None:
    def seen(created: int, ended: int | None, *, spot: bool = False) -> InstanceSeen:
        return InstanceSeen("r5.xlarge", spot, created * 1_000, None if ended is None else ended * 1_000)

    instances = [seen(10, None), seen(0, None), seen(10, 610), seen(700, 710), seen(20, 320, spot=True)]
    use = use_of_instances(instances, 900_000)
    assert use == ClusterUse(on_demand_seconds=890 + 600 + 60, spot_seconds=300, primary_seconds=900)
    assert use_of_instances([], 900_000) is None
