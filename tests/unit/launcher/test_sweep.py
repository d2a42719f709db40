"""Clusters of other deployments in the account, which the role of this one may list and not describe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import cast

import pytest

from compactor.model.errors import Denied
from compactor.storage.location import StoreLocation
from launcher.clusters import ListingCluster
from launcher.clusters.emr import EmrCluster
from launcher.clusters.emr_serverless import EmrServerlessCluster
from launcher.emr.service import ClusterSeen, EmrServerlessService, EmrService, JobRunSeen
from launcher.emr.settings import JOB_RUN_TAG, SESSION_TAG, STATE_TAG, state_digest
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.sweep import Owners, Sweep
from tests.fakes.manual_clock import ManualClock
from tests.unit.launcher.test_emr_request import SERVERLESS_SETTINGS, SETTINGS

STATE = StoreLocation("s3://lakehouse/state")
TAGS = MappingProxyType({STATE_TAG: state_digest(STATE), JOB_RUN_TAG: "run", SESSION_TAG: "run.1"})
NAMES = {"theirs": "nightly etl", "of_another_stage": "lithify-nightly-1-a1-0123456789ab", "ours": "lithify-run-1-a1-0"}


class Account:
    """Both services; only what is ours may be described."""

    def clusters(self, states: object, created_after_ms: int | None = None) -> Iterator[ClusterSeen]:
        return (ClusterSeen(cluster_id, name, "RUNNING") for cluster_id, name in NAMES.items())

    def cluster(self, cluster_id: str) -> ClusterSeen:
        return ClusterSeen(cluster_id, NAMES[self._allowed(cluster_id)], "RUNNING", tags=TAGS)

    def job_runs(self, states: object, created_after_ms: int | None = None) -> Iterator[JobRunSeen]:
        return (JobRunSeen(job_run_id, name, "RUNNING") for job_run_id, name in NAMES.items())

    def job_run(self, job_run_id: str) -> JobRunSeen:
        return JobRunSeen(job_run_id, NAMES[self._allowed(job_run_id)], "RUNNING", tags=TAGS)

    def _allowed(self, service_id: str) -> str:
        if service_id != "ours":
            raise Denied(f"{service_id} may not be described")
        return service_id


def emr(clock: ManualClock) -> ListingCluster:
    return EmrCluster(cast(EmrService, Account()), SETTINGS, ClusterRoom(), "owner", clock)


def serverless(clock: ManualClock) -> ListingCluster:
    service = cast(EmrServerlessService, Account())
    return EmrServerlessCluster(service, SERVERLESS_SETTINGS, ClusterRoom(), "owner", clock)


@pytest.mark.parametrize("cluster", [emr, serverless])
def test_a_cluster_without_an_owner_is_found_beside_those_of_other_deployments(
    cluster: Callable[[ManualClock], ListingCluster],
) -> None:
    clock = ManualClock()
    sweep = Sweep(cluster(clock), STATE, lambda _: Owners(frozenset()), clock, interval_seconds=300.0)
    assert [job.name for job in sweep.look().ownerless] == [NAMES["ours"]]
    clock.sleep(300.0)
    assert [job.name for job in sweep.look().to_end] == [NAMES["ours"]]
