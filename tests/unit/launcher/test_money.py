"""Money, by worked numbers."""

from __future__ import annotations

import pytest

from compactor.model.errors import Invalid
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse, Cost, StoreUse, store_use
from compactor.planning.sizing import SessionSize
from launcher.clusters.emr import use_of_instances
from launcher.emr.service import InstanceSeen
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom, choose_cluster
from launcher.sizing.desired_sla import DesiredSla
from launcher.sizing.instance_types import BUILT_IN, PriceList
from launcher.sizing.money import Nodes, PaidAttempt, cost_of, cost_used, rates_of, shared_by
from launcher.sizing.serverless import disk_gib_of, serverless_rates, with_cost_of_hours

R5N = BUILT_IN.instance_type("r5n.8xlarge")
GIB = 1024**3
SOME_SIZE = SessionSize(0, 10**8, 75 * 10**8, 0, None)


def attempt(plan: ClusterPlan, seconds: float, use: ClusterUse | None = None, *, began: float = 0.0) -> PaidAttempt:
    ended_at_ms = round((began + seconds) * 1_000)
    return PaidAttempt("a launch", plan.rates, plan.start_seconds, round(began * 1_000), ended_at_ms, use)


def used(plan: ClusterPlan, *seconds: float, store: StoreUse) -> Cost:
    return cost_used([attempt(plan, each) for each in seconds], 10**9, store)


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
    store = StoreUse(puts=1_000, gets=10_000, written_bytes=GIB)
    one, two = used(plan, 600.0, store=store), used(plan, 30.0, 600.0, store=store)
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
    costs = [used(part, end * 1.1, store=store) for part, end, store in zip(parts, ends, stores, strict=True)]
    after = cost_of(plan.rates, 990, plan.start_seconds, StoreUse(puts=1_000))
    assert sum(cost.total_usd for cost in costs) == pytest.approx(after.total_usd)


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


# ---------------------------------------------------------------------------------------------- what nodes have run


def seen(instance_type: str, seconds: float | None, *, spot: bool = False, created: float = 0.0) -> InstanceSeen:
    ended_at_ms = None if seconds is None else round((created + seconds) * 1_000)
    return InstanceSeen(instance_type, spot, round(created * 1_000), ended_at_ms)


def priced(*spot_prices: tuple[str, float]) -> PriceList:
    """The built-in prices, with these on Spot."""
    prices = dict(spot_prices)
    types = [
        each.model_copy(update={"spot_usd_hour": prices[each.name]}) if each.name in prices else each
        for each in BUILT_IN.instance_types
    ]
    return BUILT_IN.model_copy(update={"instance_types": tuple(types)})


def plan_of(prices: PriceList = BUILT_IN, *, spot_share: float = 0.0, **values: object) -> ClusterPlan:
    room = ClusterRoom(ClusterLimits(spot_share=spot_share, nodes_min=4), prices.only(("r5.xlarge", "r5.2xlarge")))
    return choose_cluster(SOME_SIZE, room, None).plan.model_copy(update=values)


def test_each_instance_costs_what_its_own_type_and_market_do_with_spot_apart() -> None:
    plan = plan_of(primary_instance_type="r5.2xlarge", scratch_volumes_per_node=1, scratch_volume_gib=32)
    nodes = [seen("r5.2xlarge", 1_800), seen("r5.xlarge", 1_800), seen("r5.xlarge", 900, spot=True)]
    use = use_of_instances(nodes, plan, priced(("r5.xlarge", 0.1)), 10**9)
    assert use is not None
    assert (use.on_demand_seconds, use.spot_seconds) == (3_600, 900)
    assert use.spot_usd == pytest.approx(0.1 / 4)
    assert use.instances_usd == pytest.approx(0.504 / 2 + 0.252 / 2 + 0.1 / 4)
    assert use.surcharge_usd == pytest.approx(0.126 / 2 + 0.75 * 0.063)
    assert use.volumes_usd == pytest.approx(0.75 * 32 * 0.08 / 720), "the primary node has none"


def test_a_node_on_demand_in_place_of_one_on_spot_and_one_of_another_type_cost_their_own_prices() -> None:
    prices = priced(("r5.xlarge", 0.1), ("r6g.xlarge", 0.05))
    as_planned = [seen("r5.xlarge", 3_600), seen("r5.xlarge", 3_600, spot=True)]
    replaced = [seen("r5.xlarge", 3_600), seen("r5.xlarge", 3_000, created=600)]
    equivalent = [seen("r5.xlarge", 3_600), seen("r6g.xlarge", 3_600, spot=True)]
    planned, on_demand, cheaper = (
        use_of_instances(nodes, plan_of(), prices, 10**9) for nodes in (as_planned, replaced, equivalent)
    )
    assert planned is not None
    assert on_demand is not None
    assert cheaper is not None
    assert (planned.instances_usd, planned.spot_usd) == pytest.approx((0.252 + 0.1, 0.1))
    assert (on_demand.instances_usd, on_demand.spot_usd) == pytest.approx((0.252 * (1 + 3_000 / 3_600), 0))
    assert (cheaper.instances_usd, cheaper.spot_usd) == pytest.approx((0.252 + 0.05, 0.05))


def test_an_instance_counts_for_a_minute_at_least_and_until_now_while_it_runs() -> None:
    use = use_of_instances([seen("r5.xlarge", None), seen("r5.xlarge", 10, created=700)], plan_of(), BUILT_IN, 900_000)
    assert use is not None
    assert use.on_demand_seconds == 900 + 60
    assert use_of_instances([], plan_of(), BUILT_IN, 900_000) is None
    with pytest.raises(Invalid, match=r"instance type 'x9\.large' is unknown in us-east-1"):
        use_of_instances([seen("x9.large", 60)], plan_of(), BUILT_IN, 900_000)


def test_nodes_that_ran_as_planned_cost_what_was_planned() -> None:
    prices = priced(("r5.xlarge", 0.1), ("r5.2xlarge", 0.2))
    plan = plan_of(prices, spot_share=0.5)
    assert plan.spot_nodes > 0
    assert plan.primary_instance_type is not None
    nodes = [seen(plan.primary_instance_type, 900)]
    nodes += [seen(plan.instance_type, 900, spot=number < plan.spot_nodes) for number in range(plan.nodes)]
    use = use_of_instances(nodes, plan, prices, 10**9)
    by_plan, by_nodes = (cost_used([attempt(plan, 900, each)], 10**9, StoreUse()) for each in (None, use))
    for name in ("instances_usd", "surcharge_usd", "volumes_usd", "total_usd", "start_usd"):
        assert getattr(by_nodes, name) == pytest.approx(getattr(by_plan, name))


def test_what_emr_serverless_bills_is_what_a_session_has_cost() -> None:
    plan = choose_cluster(SOME_SIZE, ClusterRoom(serverless=True), None).plan
    use = with_cost_of_hours(ClusterUse(vcpu_hours=3.0, gib_hours=24.0, disk_gib_hours=10.0), BUILT_IN)
    cost = cost_used([attempt(plan, 900, use)], 10**9, StoreUse())
    assert cost.instances_usd == pytest.approx(3 * 0.052624 + 24 * 0.0057785)
    assert cost.volumes_usd == pytest.approx(10 * 0.000111)
    assert (cost.surcharge_usd, cost.spot_usd) == (0, 0)


def test_each_attempt_costs_what_its_own_cluster_did_known_or_as_planned() -> None:
    small, large = plan_of(), plan_of()
    large = large.model_copy(update={"rates": large.rates.model_copy(update={"instances_usd_hour": 100.0})})
    use = ClusterUse(on_demand_seconds=7_200, instances_usd=3.0, surcharge_usd=1.0, volumes_usd=0.5, spot_usd=2.0)
    store = StoreUse(puts=1_000)
    cost = cost_used([attempt(small, 900, use), attempt(large, 3_600, began=2_000)], 10**9, store)
    assert cost.instances_usd == pytest.approx(3 + 100)
    assert (cost.spot_usd, cost.requests_usd) == pytest.approx((2, 0.005))
    assert cost.total_usd == pytest.approx(
        cost.instances_usd + cost.surcharge_usd + cost.volumes_usd + cost.requests_usd + cost.storage_usd
    )


def test_the_parts_of_the_sessions_of_a_launch_are_all_that_its_nodes_ran() -> None:
    use = ClusterUse(on_demand_seconds=600, spot_seconds=60, instances_usd=3.0, surcharge_usd=1.5, spot_usd=0.3)
    part = use.part(3)
    assert (part.on_demand_seconds, part.spot_seconds, part.spot_usd) == pytest.approx((200, 20, 0.1))
    assert 3 * part.usd == pytest.approx(use.usd)
