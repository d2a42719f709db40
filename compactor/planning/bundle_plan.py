"""Chooses the small sessions of a job run that share a Spark job as a bundle, each in one of its tasks. Pure.

    sessions waiting --predicted to take less than a Spark takes to start--> members, the longest first --> BundlePlan

A member is a session like any other: plan, attempt, session log, commits and end are its own. It shares the Spark job,
whose cores take one member after the other. So its expected SLA follows from its position in that order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapreplace

from pydantic import Field

from compactor.model.document import Document
from compactor.model.names import counted
from compactor.planning.cluster_plan import StoreUse
from compactor.planning.sizing import SESSION_SECONDS
from compactor.planning.spec import SessionPlan
from compactor.planning.time_model import SLA_BUFFER

MEMBERS_OF_A_TASK_MAX = 8
"""Sessions that wait for an object store or a disk side by side in one task: each gets an eighth of its memory."""


class BundleMember(Document):
    """
    Attributes:
        attempt: number of the session's attempt that runs here
        before_seconds: from the launch of the bundle to the beginning of this attempt, as predicted"""

    attempt: int = Field(ge=1)
    before_seconds: float
    plan: SessionPlan


class BundlePlan(Document):
    """The argument of the Spark job. The heartbeat names members by their position in `members`."""

    bundle_id: str
    members: tuple[BundleMember, ...]


@dataclass(frozen=True)
class BundleBounds:
    """
    Attributes:
        sessions: of one bundle, at most; 1: there are no bundles
        seconds: that its members may take one after the other, divided by the cores, as predicted"""

    sessions: int = 1_000
    seconds: float = 300.0

    @property
    def allow_bundles(self) -> bool:
        return self.sessions > 1


@dataclass(frozen=True)
class SmallSession:
    """A session that was planned, and may share a Spark job.

    Attributes:
        attempt: number of the attempt that would run
        seconds: predicted for it, once it has begun
        why: it is small, in a sentence
        store: its predicted use of the lake's store"""

    plan: SessionPlan
    attempt: int
    seconds: float
    why: str
    store: StoreUse


def bundled(small: Iterable[SmallSession], cores: int, bounds: BundleBounds) -> tuple[SmallSession, ...]:
    """The first sessions that fit into one bundle, the longest first; the others remain for the next one.

    Worked: sessions of 2 seconds each on 4 cores, and 300 seconds at most: 600 of them.
    """
    taken: list[SmallSession] = []
    seconds = 0.0
    for session in small:
        seconds += session.seconds / cores
        if len(taken) == bounds.sessions or (taken and seconds > bounds.seconds):
            break
        taken.append(session)
    return tuple(sorted(taken, key=lambda session: -session.seconds))


def share_tasks(plan: BundlePlan, cores: int, task_memory_bytes: int) -> tuple[tuple[int, ...], ...]:
    """The members of each task, by their position. They share one, as far as their parts of the memory fit and each
    core has a task; those that come first, the longest, go to different tasks.

    Worked: 20 members with an eighth of a task's memory each, on 2 cores: 3 tasks of 7, 7 and 6 members.
    """
    sharing = [number for number, member in enumerate(plan.members) if _parts(member, task_memory_bytes) > 1]
    alone = [(number,) for number in range(len(plan.members)) if number not in set(sharing)]
    if not sharing:
        return tuple(alone)
    fitting = min(_parts(plan.members[number], task_memory_bytes) for number in sharing)
    count = min(max(-(-len(sharing) // fitting), cores), len(sharing))
    return (*alone, *(tuple(sharing[start::count]) for start in range(count)))


def _parts(member: BundleMember, task_memory_bytes: int) -> int:
    """Members like this one that a task has memory for."""
    return min(task_memory_bytes // member.plan.task_memory_bytes, MEMBERS_OF_A_TASK_MAX)


def plan_bundle(
    bundle_id: str,
    sessions: Sequence[SmallSession],
    cores: int,
    start_seconds: float = SESSION_SECONDS,
    *,
    in_worker: bool = False,
) -> BundlePlan:
    """Each member begins when a core is free, in this order, once Spark has started. `in_worker`: there is no Spark.

    Worked: 5, 4 and 3 seconds on 2 cores, and a start of 5: the third begins after 5 + 4 and ends after 12, which is
    13.2 with the 10 % buffer.
    """
    free_at = [start_seconds] * cores
    where = "worker" if in_worker else f"Spark job of {counted(cores, 'core')}"
    members = []
    for number, session in enumerate(sessions, 1):
        before_seconds = free_at[0]
        ends_at = before_seconds + session.seconds
        heapreplace(free_at, ends_at)
        members.append(
            BundleMember(
                attempt=session.attempt,
                before_seconds=before_seconds,
                plan=_planned(session, ends_at, number, len(sessions), where),
            )
        )
    return BundlePlan(bundle_id=bundle_id, members=tuple(members))


def _planned(session: SmallSession, ends_at: float, number: int, members: int, where: str) -> SessionPlan:
    expected_sla = ends_at * SLA_BUFFER
    shared = (
        f"number {number:,} of {counted(members, 'session')} in one {where}: "
        f"{expected_sla:.1f} s expected from its launch, its start, the sessions before and the 10 % buffer included"
    )
    plan = session.plan
    # A job run may name thousands of partitions, but each session needs only its own.
    run = plan.spec.job_run.model_copy(update={"partitions": None})
    return plan.model_copy(
        update={
            "spec": plan.spec.model_copy(update={"job_run": run}),
            "expected_sla": expected_sla,
            "predicted_seconds": ends_at,
            "arithmetic": (*plan.arithmetic, session.why, shared),
        }
    )
