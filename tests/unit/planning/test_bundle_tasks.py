"""Members of a bundle share tasks, since small ones mostly wait: for an object store, or for the disk."""

from __future__ import annotations

from compactor.planning.bundle_plan import BundleMember, BundlePlan, share_tasks
from compactor.storage.location import StoreLocation
from tests.plans import a_plan

TASK_BYTES = 1024**3
LAKE = StoreLocation("s3://lake/x")


def bundle(*memory_bytes: int) -> BundlePlan:
    return BundlePlan(bundle_id="b", members=tuple(_member(each) for each in memory_bytes))


def _member(memory_bytes: int) -> BundleMember:
    plan = a_plan(task_memory_bytes=memory_bytes)
    return BundleMember(attempt=1, before_seconds=0.0, plan=plan)


def test_members_share_tasks_within_their_memory() -> None:
    plan = bundle(*[TASK_BYTES // 8] * 20)
    assert share_tasks(plan, 2, TASK_BYTES) == (tuple(range(0, 20, 3)), tuple(range(1, 20, 3)), tuple(range(2, 20, 3)))
    assert [len(task) for task in share_tasks(plan, 2, TASK_BYTES // 2)] == [4] * 5


def test_each_core_has_a_task_as_long_as_there_are_members() -> None:
    assert share_tasks(bundle(*[TASK_BYTES // 8] * 4), 2, TASK_BYTES) == ((0, 2), (1, 3))
    assert share_tasks(bundle(*[TASK_BYTES // 8] * 2), 8, TASK_BYTES) == ((0,), (1,))


def test_a_member_that_was_planned_with_all_of_the_memory_has_a_task_of_its_own() -> None:
    plan = bundle(TASK_BYTES, TASK_BYTES // 8, TASK_BYTES, TASK_BYTES // 8)
    assert share_tasks(plan, 1, TASK_BYTES) == ((0,), (2,), (1, 3))


def test_a_bundle_without_members_has_no_tasks() -> None:
    assert share_tasks(bundle(), 2, TASK_BYTES) == ()
