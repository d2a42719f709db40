"""The choice of a session's cluster: by worked numbers, and what holds for any limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.planning.bundle_plan import SmallSession
from compactor.planning.cluster_plan import ClusterPlan, StoreUse
from compactor.planning.sizing import SessionSize
from compactor.planning.spec import SessionSpec
from compactor.planning.time_model import SLA_BUFFER
from compactor.storage.location import parse_location
from launcher.plan import plan_shared_job, room_for_bundles, room_in_time
from launcher.sizing.cluster_choice import (
    ChosenCluster,
    ClusterLimits,
    ClusterRoom,
    choose_cluster,
    executors_of,
    resources_of,
    scratch_volumes,
    task_memory_bytes_of,
)
from launcher.sizing.desired_sla import DesiredSla
from launcher.sizing.instance_types import BUILT_IN
from tests.plans import a_plan, a_run, a_session

GIB = 1024**3
FEW_TYPES = BUILT_IN.only(("r5.xlarge", "r5.8xlarge", "r5d.4xlarge", "r6g.2xlarge"))

sizes = st.builds(
    SessionSize,
    index_rows=st.integers(0, 10**10),
    delta_rows=st.integers(1, 10**10),
    delta_bytes=st.integers(0, 10**13),
    sort_values_bytes=st.integers(0, 32),
    inherited_hash_bucket_count=st.just(None),
    delta_files=st.integers(1, 10_000),
    lake_is_remote=st.booleans(),
)
limits = st.builds(
    ClusterLimits,
    nodes_max=st.integers(1, 12),
    vcpus_max=st.none() | st.integers(4, 200),
    spot_share=st.sampled_from([0.0, 0.5, 1.0]),
    start_seconds=st.sampled_from([0.0, 60.0, 420.0]),
)
desired = st.none() | st.floats(1, 10**6)


def terabytes(count: float = 1) -> SessionSize:
    """A narrow table on S3: 75 bytes a row, files of 250 MB."""
    rows = int(count * 10**12 / 75)
    return SessionSize(0, rows, 75 * rows, 9, None, delta_files=int(count * 4_000), lake_is_remote=True)


def asked(desired_sla: float | None) -> DesiredSla | None:
    return None if desired_sla is None else DesiredSla(desired_sla)


def chosen(size: SessionSize, desired_sla: float | None, **fields: object) -> ChosenCluster:
    return choose_cluster(size, ClusterRoom(ClusterLimits(**fields), BUILT_IN), asked(desired_sla))  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(sizes, limits, desired)
def test_no_other_cluster_within_the_limits_meets_the_sla_for_less(
    size: SessionSize, limits: ClusterLimits, desired_sla: float | None
) -> None:
    room = ClusterRoom(limits, FEW_TYPES)
    others = [
        choose_cluster(
            size,
            ClusterRoom(
                ClusterLimits(nodes, nodes, limits.vcpus_max, None, limits.spot_share, limits.start_seconds), FEW_TYPES
            ),
            asked(desired_sla),
        )
        for nodes in range(1, limits.nodes_max + 1)
        if limits.vcpus_max is None or nodes * 4 <= limits.vcpus_max
    ]
    plan = choose_cluster(size, room, asked(desired_sla)).plan
    meeting = [each.plan for each in others if desired_sla is None or each.plan.expected_sla <= desired_sla]
    if meeting:
        assert desired_sla is None or plan.expected_sla <= desired_sla
        assert plan.cost.total_usd <= min(each.cost.total_usd for each in meeting)
    else:
        assert plan.within_desired_sla is False
        assert plan.expected_sla <= min(each.plan.expected_sla for each in others)


@settings(max_examples=40, deadline=None)
@given(sizes, limits, st.floats(1, 10**6), st.floats(1, 100))
def test_a_longer_sla_never_costs_more_where_the_shorter_one_is_met(
    size: SessionSize, limits: ClusterLimits, desired_sla: float, times: float
) -> None:
    room = ClusterRoom(limits, FEW_TYPES)
    tight, loose = (choose_cluster(size, room, asked(desired_sla * each)).plan for each in (1, times))
    if tight.within_desired_sla:
        assert loose.within_desired_sla
        assert loose.cost.total_usd <= tight.cost.total_usd


@settings(max_examples=40, deadline=None)
@given(sizes, limits)
def test_a_plan_keeps_to_its_limits_and_to_its_nodes(size: SessionSize, limits: ClusterLimits) -> None:
    found = choose_cluster(size, ClusterRoom(limits, FEW_TYPES), None)
    plan, instance = found.plan, FEW_TYPES.instance_type(found.plan.instance_type)
    assert limits.nodes_min <= plan.nodes <= plan.nodes_max <= limits.nodes_max
    assert limits.vcpus_max is None or plan.nodes_max * instance.vcpus <= limits.vcpus_max
    assert plan.spot_nodes <= plan.nodes * limits.spot_share
    assert plan.core_nodes >= 1
    per_node = plan.executors_per_node * (plan.executor_heap_bytes + plan.executor_overhead_bytes)
    assert per_node <= instance.memory_bytes
    assert plan.task_memory_bytes * plan.executor_cores <= plan.executor_overhead_bytes
    assert plan.tasks == found.resources.tasks
    primary = FEW_TYPES.instance_type(plan.primary_instance_type or "")
    assert plan.driver_heap_bytes + plan.driver_overhead_bytes <= primary.memory_bytes
    assert ClusterPlan.model_validate_json(plan.render()) == plan


def test_a_tighter_sla_takes_more_nodes_and_says_what_they_cost() -> None:
    hours, minutes = chosen(terabytes(), 20_000), chosen(terabytes(), 900)
    assert minutes.plan.tasks > hours.plan.tasks
    assert (hours.plan.within_desired_sla, minutes.plan.within_desired_sla) == (True, True)
    assert minutes.plan.expected_sla <= 900
    assert minutes.plan.cost.total_usd >= hours.plan.cost.total_usd
    assert "the cheapest within the desired 900 s and at most 100 nodes" in minutes.arithmetic[0]
    assert f"{minutes.plan.nodes} x {minutes.plan.instance_type}" in minutes.arithmetic[0]
    assert f"${minutes.plan.cost.total_usd:,.4f}" in minutes.arithmetic[-1]


def test_where_no_cluster_is_fast_enough_the_fastest_is_taken_and_it_says_by_how_much_it_is_late() -> None:
    late = chosen(terabytes(), 600, nodes_max=2)
    assert late.plan.within_desired_sla is False
    assert late.plan.nodes == 2
    assert late.plan.expected_sla > 600
    assert "the fastest within at most 2 nodes" in late.arithmetic[0]
    assert "more than the desired 600 s" in late.arithmetic[0]


def test_a_session_that_costs_more_than_it_may_is_refused_with_both_figures() -> None:
    with pytest.raises(Invalid, match=r"expected to cost \$\d+\.\d{4} at least, on \d+ x .*, and may cost \$0\.1000"):
        chosen(terabytes(), None, usd_max=0.10)


def test_the_limit_of_money_comes_before_the_desired_sla() -> None:
    cheapest = chosen(terabytes(), None)
    bound = cheapest.plan.cost.total_usd * 1.05
    plan = chosen(terabytes(), 600, usd_max=bound).plan
    assert plan.cost.total_usd <= bound
    assert plan.within_desired_sla is False


def test_limits_that_no_instance_type_fits_into_are_refused_with_both_figures() -> None:
    with pytest.raises(Invalid, match=r"2 nodes of the smallest .* type r5.xlarge have 8 vCPUs, .* may take 7"):
        chosen(terabytes(), None, nodes_min=2, vcpus_max=7)


def test_limits_are_refused_together() -> None:
    with pytest.raises(Invalid, match="at least 3 nodes and at most 2: the least is above the greatest") as refused:
        ClusterLimits(nodes_min=3, nodes_max=2, spot_share=2.0).check()
    assert len(refused.value.reasons) == 2


def test_a_bucket_count_that_cannot_hold_the_index_is_refused_with_both_figures() -> None:
    index = SessionSize(10**10, 1, 75, 0, 100)
    with pytest.raises(Invalid, match=r"10,000,000,000 index rows of 49 bytes in 2 hash buckets are 245,000,000,000 b"):
        choose_cluster(index, ClusterRoom(), None, hash_bucket_count=2)


def test_an_instance_type_with_more_memory_holds_an_index_that_others_cannot() -> None:
    """Or else the first type of the list decided for all."""
    usual = BUILT_IN.instance_type("r5.xlarge")
    roomy = usual.model_copy(update={"name": "x2iedn.xlarge", "memory_gib": 128.0, "on_demand_usd_hour": 0.83})
    prices = BUILT_IN.model_copy(update={"instance_types": (usual, roomy)})
    index = SessionSize(5 * 10**8, 1, 75, 0, 100)
    plan = choose_cluster(index, ClusterRoom(prices=prices), None, hash_bucket_count=4).plan
    assert plan.instance_type == "x2iedn.xlarge"
    with pytest.raises(Invalid, match=f"which may take 75% of its {task_memory_bytes_of(roomy):,}: ask for"):
        choose_cluster(index, ClusterRoom(prices=prices), None, hash_bucket_count=1)


def test_where_no_instance_type_that_holds_the_index_is_within_the_limits_it_is_refused_with_both_figures() -> None:
    small = BUILT_IN.instance_type("r5.xlarge")
    roomy = small.model_copy(update={"name": "x2iedn.2xlarge", "vcpus": 8, "memory_gib": 256.0})
    room = ClusterRoom(ClusterLimits(vcpus_max=4), BUILT_IN.model_copy(update={"instance_types": (small, roomy)}))
    room.check()
    with pytest.raises(Invalid, match=r"type x2iedn.2xlarge has 8 vCPUs, and a session may take 4: allow more"):
        choose_cluster(SessionSize(5 * 10**8, 1, 75, 0, 100), room, None, hash_bucket_count=4)


def test_the_driver_of_a_table_with_many_files_gets_the_memory_that_their_counts_take() -> None:
    size = SessionSize(360 * 10**9, 10**9, 10**11, 0, 10_000, delta_files=1_000, compacted_files=90_000)
    cluster = choose_cluster(size, ClusterRoom(ClusterLimits(nodes_max=100)), None, hash_bucket_count=10_000)
    plan, needed = cluster.plan, cluster.sizing.driver_memory_needed
    assert needed <= plan.driver_overhead_bytes < needed + GIB
    assert plan.driver_heap_bytes == plan.driver_overhead_bytes // 2
    assert cluster.resources.driver_memory_bytes == plan.driver_overhead_bytes
    assert BUILT_IN.instance_type(plan.primary_instance_type or "").memory_bytes >= 1.5 * needed
    few = choose_cluster(replace(size, compacted_files=100), ClusterRoom(), None, hash_bucket_count=10_000)
    assert few.plan.driver_overhead_bytes == few.plan.driver_heap_bytes == 4 * GIB


def test_a_driver_that_no_instance_type_holds_is_refused_with_both_figures() -> None:
    size = SessionSize(10**12, 10**9, 10**11, 0, 30_000, delta_files=1_000, compacted_files=2_000_000)
    with pytest.raises(Invalid, match=r"2,000,000 compacted files in 30,000 hash buckets need [\d,]+ GiB"):
        choose_cluster(size, ClusterRoom(), None, hash_bucket_count=30_000)


def test_a_row_group_that_no_allowed_instance_type_holds_is_refused_and_told_what_helps() -> None:
    size = SessionSize(0, 10**6, 10**9, 0, None, largest_delta_file_rows=10**6, held_row_group_bytes=8 * GIB)
    with pytest.raises(Invalid, match=r"on r\w+\.\w+, whose tasks have most memory, .* a task has [\d,]+ ") as refused:
        choose_cluster(size, ClusterRoom(), None)
    assert str(refused.value).endswith("or allow instance types with more memory a vCPU")
    assert "more nodes" not in str(refused.value)
    roomy = BUILT_IN.instance_type("r5.xlarge").model_copy(update={"name": "x2iedn.xlarge", "memory_gib": 128.0})
    prices = BUILT_IN.model_copy(update={"instance_types": (*BUILT_IN.instance_types, roomy)})
    assert choose_cluster(size, ClusterRoom(prices=prices), None).plan.instance_type == "x2iedn.xlarge"


def test_a_file_takes_as_many_nodes_as_have_its_scratch_and_is_refused_where_they_are_too_few() -> None:
    disks = BUILT_IN.only(("r5d.xlarge",))
    rows = 10 * 139 * GIB // 68 - 10**6
    size = SessionSize(0, rows, 10**9, 0, None, largest_delta_file_rows=rows)
    assert choose_cluster(size, ClusterRoom(ClusterLimits(nodes_max=10), disks), None).plan.nodes == 10
    with pytest.raises(Invalid, match=r"on 9 x r5d.xlarge, the largest .* bytes of scratch folders, which have [\d,]+"):
        choose_cluster(size, ClusterRoom(ClusterLimits(nodes_max=9), disks), None)


def test_tasks_of_serverless_are_planned_with_what_a_worker_has_whatever_an_instance_type_does() -> None:
    roomy = BUILT_IN.instance_type("r5.xlarge").model_copy(update={"name": "x2iedn.xlarge", "memory_gib": 128.0})
    prices = BUILT_IN.model_copy(update={"instance_types": (roomy,)})
    size = SessionSize(0, 10**9, 10**11, 0, None)
    plan = choose_cluster(size, ClusterRoom(prices=prices, serverless=True), None).plan
    assert plan.task_memory_bytes == 7.5 * GIB
    assert choose_cluster(size, ClusterRoom(prices=prices), None).plan.task_memory_bytes > 20 * GIB


def test_a_driver_on_serverless_needs_no_instance_type_of_the_list() -> None:
    size = SessionSize(10**11, 10**9, 10**11, 0, 10_000, delta_files=1_000, compacted_files=160_000)
    small = ClusterRoom(prices=BUILT_IN.only(("r5.xlarge",)), serverless=True)
    assert choose_cluster(size, small, None, hash_bucket_count=10_000).plan.driver_overhead_bytes > 20 * GIB
    with pytest.raises(Invalid, match=r"the largest instance type, r5\.xlarge, has 32"):
        choose_cluster(size, replace(small, serverless=False), None, hash_bucket_count=10_000)


def test_workers_of_serverless_are_told_as_workers() -> None:
    plan = choose_cluster(terabytes(), ClusterRoom(ClusterLimits(nodes_max=4), serverless=True), None)
    told = " ".join(plan.arithmetic)
    assert "each worker has 2 vCPU, 16 GiB of memory, and" in told
    assert f"Spark asks for {plan.plan.tasks // 2} to " in told
    assert "each node" not in told
    assert "managed scaling" not in told


def test_the_disks_of_serverless_workers_bound_a_round() -> None:
    rows = 2_000 * 10**6
    size = SessionSize(0, 20 * rows, 10**12, 0, None, delta_files=20, largest_delta_file_rows=rows)
    few = ClusterRoom(ClusterLimits(nodes_max=1), BUILT_IN.only(("r5.xlarge",)), serverless=True)
    sizing = choose_cluster(size, few, None).sizing
    assert sizing.resources.scratch_bytes == 2 * 200 * GIB
    assert sizing.rounds > choose_cluster(size, replace(few, serverless=False), None).sizing.rounds


def test_volumes_hold_the_rows_of_a_rehash() -> None:
    size = SessionSize(10**10, 1_000, 10**5, 0, 300, largest_delta_file_rows=1_000, touched_rows=0)
    kept, moved = (choose_cluster(size, ClusterRoom(), None, hash_bucket_count=count).plan for count in (300, 600))
    assert moved.nodes * moved.scratch_bytes_per_node >= 1.5 * 32 * 10**10 > kept.nodes * kept.scratch_bytes_per_node


def test_executors_take_the_whole_node_and_tasks_have_most_of_its_memory() -> None:
    r5 = BUILT_IN.instance_type("r5.4xlarge")
    assert executors_of(r5) == (2, 8)
    assert task_memory_bytes_of(r5) / GIB == pytest.approx(6.7)
    three = resources_of(r5, 3, 420.0)
    assert (three.tasks, three.machines, three.start_seconds) == (48, 3, 420.0)


def test_volumes_are_as_large_as_a_round_needs_and_none_where_a_node_has_disks() -> None:
    assert scratch_volumes(BUILT_IN.instance_type("r5.4xlarge"), 4, 600 * 10**9) == (1, 210)
    assert scratch_volumes(BUILT_IN.instance_type("r5.4xlarge"), 1, 6 * 1024 * GIB) == (8, 1_024)
    assert scratch_volumes(BUILT_IN.instance_type("r5.4xlarge"), 4, 0) == (1, 32)
    assert scratch_volumes(BUILT_IN.instance_type("r5d.4xlarge"), 4, 600 * 10**9) == (0, 0)


def test_spot_nodes_are_task_nodes_and_cost_what_the_price_list_says() -> None:
    cheap = tuple(
        each.model_copy(update={"spot_usd_hour": each.on_demand_usd_hour / 2}) for each in BUILT_IN.instance_types
    )
    prices = BUILT_IN.model_copy(update={"instance_types": cheap})
    limits = ClusterLimits(nodes_min=4, nodes_max=4, spot_share=0.5)
    half = choose_cluster(terabytes(), ClusterRoom(limits, prices.only(("r5.4xlarge",))), None).plan
    none = choose_cluster(
        terabytes(), ClusterRoom(ClusterLimits(nodes_min=4, nodes_max=4), prices.only(("r5.4xlarge",))), None
    ).plan
    assert (half.spot_nodes, half.core_nodes) == (2, 2)
    # four workers and a primary node: two of five at half of the price
    assert half.cost.instances_usd == pytest.approx(none.cost.instances_usd * 4 / 5)
    assert half.cost.surcharge_usd == pytest.approx(none.cost.surcharge_usd)


def test_the_expected_sla_on_a_cluster_includes_its_start_and_the_buffer() -> None:
    slow, quick = (chosen(terabytes(), None, nodes_min=9, nodes_max=9, start_seconds=each) for each in (400.0, 100.0))
    assert slow.plan.expected_sla - quick.plan.expected_sla == pytest.approx(300 * SLA_BUFFER)
    assert slow.plan.cost.start_usd == pytest.approx(4 * quick.plan.cost.start_usd)


def test_what_was_waited_is_no_longer_there_for_the_cluster() -> None:
    at_once = choose_cluster(terabytes(), ClusterRoom(), DesiredSla(2_000))
    late = choose_cluster(terabytes(), ClusterRoom(), DesiredSla(2_000, gone_seconds=1_000))
    assert late.plan.tasks > at_once.plan.tasks
    assert late.plan.expected_sla <= 1_000
    assert "the cheapest within the 1,000 s that are left of the desired 2,000 s" in late.arithmetic[0]


def test_when_all_of_the_desired_sla_is_gone_the_fastest_is_taken() -> None:
    limits = ClusterRoom(ClusterLimits(nodes_max=2))
    gone = choose_cluster(terabytes(), limits, DesiredSla(600, gone_seconds=600))
    assert gone.plan.within_desired_sla is False
    assert gone.plan.nodes == 2
    assert "more than the 0 s that are left of the desired 600 s" in gone.arithmetic[0]


@given(st.integers(1, 10**6), st.floats(-10, 10**7))
def test_the_seconds_that_are_gone_are_never_too_few_nor_a_twentieth_and_a_second_too_many(
    seconds: int, since_seconds: float
) -> None:
    found = DesiredSla.of(session_of(seconds), since_seconds)
    assert found is not None
    assert min(since_seconds, seconds) <= found.gone_seconds + 1
    assert found.gone_seconds <= max(since_seconds, 0) * 1.05 + 1.0001
    assert found.left_seconds >= 0


def test_a_session_that_waits_for_a_day_is_planned_anew_some_times_and_not_each_time_it_is_looked_at() -> None:
    plans = {DesiredSla.of(session_of(86_400), since) for since in range(0, 100_000, 30)}
    assert len(plans) < 130


def session_of(desired_sla: int) -> SessionSpec:
    return a_session(a_run(desired_sla=desired_sla, lake=parse_location("s3://lake")))


def test_a_bundle_gets_the_nodes_that_its_last_member_needs_to_be_in_time() -> None:
    room = ClusterRoom(ClusterLimits(nodes_max=16), BUILT_IN.only(("r5.xlarge",)))
    members = [small_session(20.0)] * 100
    one = room_for_bundles(room)
    assert one.cluster_plan is not None
    assert one.cluster_plan.nodes == 1
    nodes = {
        left: room_in_time(members, one, room, DesiredSla(left)).resources.machines for left in (1_100, 700, 500, 10)
    }
    assert nodes == {1_100: 1, 700: 4, 500: 16, 10: 16}
    assert room_in_time(members, one, room, None) is one
    within = ClusterRoom(ClusterLimits(nodes_max=16, vcpus_max=8), room.prices)
    assert room_in_time(members, one, within, DesiredSla(500)).resources.machines == 2


def test_a_session_of_a_bundle_is_told_that_it_is_late_and_that_prices_are_doubtful_as_one_alone_is() -> None:
    room = ClusterRoom(ClusterLimits(nodes_max=1), BUILT_IN.only(("r5.xlarge",)), warnings=("prices are old",))
    members = [small_session(20.0)] * 3
    for left, in_time in ((10, False), (2_000, True)):
        found = room_in_time(members, room_for_bundles(room), room, DesiredSla(left))
        for member in plan_shared_job("bundle", members, found).plan.members:
            cluster = member.plan.cluster
            assert cluster is not None
            assert cluster.within_desired_sla is in_time
            assert member.plan.arithmetic[-1] == "prices are old"
            assert ("s more than the desired 10 s" in member.plan.arithmetic[-2]) is not in_time


def small_session(seconds: float) -> SmallSession:
    plan = a_plan(session_of(1), expected_sla=seconds)
    return SmallSession(plan, 1, seconds, "it is small", StoreUse())


@settings(max_examples=40, deadline=None)
@given(sizes, limits, st.floats(1.0, 3.0))
def test_a_cluster_grows_to_no_more_nodes_than_its_session_may_cost(
    size: SessionSize, limits: ClusterLimits, times: float
) -> None:
    free = choose_cluster(size, ClusterRoom(limits, FEW_TYPES), None).plan
    usd_max = free.cost.total_usd * times
    plan = choose_cluster(size, ClusterRoom(replace(limits, usd_max=usd_max), FEW_TYPES), None).plan
    assert plan.cost.total_usd <= usd_max
    assert plan.usd_charged <= usd_max * (1 + 1e-9) or plan.nodes_max == plan.nodes
    assert plan.usd_charged >= plan.cost.total_usd
    assert plan.nodes <= plan.nodes_max <= free.nodes_max


def test_limits_on_money_count_the_nodes_that_may_run() -> None:
    plan = chosen(terabytes(), 900).plan
    assert plan.nodes_max == 2 * plan.nodes
    instances = plan.cost.total_usd - plan.cost.requests_usd - plan.cost.storage_usd
    assert plan.cost.total_usd + 0.8 * instances < plan.usd_charged < plan.cost.total_usd + instances
    assert plan.usd_hour_charged > 1.8 * plan.rates.usd_hour


def test_limits_on_money_count_nodes_on_spot_as_on_demand() -> None:
    """A fleet replaces those that it does not get by nodes on demand, and Spot may cost as much."""
    size = SessionSize(0, 10**8, 75 * 10**8, 0, None)
    types = [BUILT_IN.instance_type(name) for name in ("r5.xlarge", "r5.2xlarge")]
    on_spot = tuple(each.model_copy(update={"spot_usd_hour": 0.01}) for each in types)
    limits = ClusterLimits(spot_share=0.5, nodes_min=4, nodes_max=4)
    room = ClusterRoom(limits, BUILT_IN.model_copy(update={"instance_types": on_spot}))
    plan = choose_cluster(size, room, None).plan
    assert (plan.nodes_max, plan.spot_nodes) == (4, 2)
    dearer = 2 * (BUILT_IN.instance_type(plan.instance_type).usd_hour() - 0.01)
    assert plan.usd_hour_charged == pytest.approx(plan.rates.usd_hour + dearer)
    assert plan.usd_charged == pytest.approx(plan.cost.total_usd + dearer * plan.cost.seconds / 3_600)
    within = replace(room, limits=replace(limits, usd_max=plan.usd_charged + 0.001))
    assert choose_cluster(size, within, None).plan == plan
    between = (plan.cost.total_usd + plan.usd_charged) / 2
    with pytest.raises(Invalid, match=f"at least, on 4 x .*, and may cost .{between:.4f}"):
        choose_cluster(size, replace(room, limits=replace(limits, usd_max=between)), None)
