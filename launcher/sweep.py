"""Ends jobs on AWS without an owner: clusters of this state whose attempt or bundle is in no open session's log.

The causes: a dispatcher died between the launch and its record, the answer of a launch was lost, or a stop never
arrived. An attempt or a bundle stands in its job run's log before it is launched, and the logs are read here
after the clusters were listed; so a new cluster has its owner. Because of other delays, a cluster is ended only after
two looks, an interval apart, that both found it ownerless.

Never ended: jobs without Lithify's tags, jobs of other state stores, and jobs of a job run whose log cannot be read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.errors import LithifyError
from compactor.storage.location import StoreLocation
from launcher.clusters import LaunchedJob, ListingCluster
from launcher.emr.settings import BUNDLE_TAG, JOB_RUN_TAG, SESSION_TAG, STATE_TAG, state_digest, tag_value

INTERVAL_SECONDS = 300.0


@dataclass(frozen=True)
class Owners:
    """
    Attributes:
        names: of the attempts and bundles that open sessions' logs name: see `launcher.spark_job.job_name`
        unreadable_job_runs: open job runs whose logs cannot be read now"""

    names: frozenset[str]
    unreadable_job_runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepLook:
    """
    Attributes:
        owned: running jobs with an owner
        ownerless: jobs without an owner
        to_end: those of them that had none an interval ago either"""

    owned: tuple[LaunchedJob, ...]
    ownerless: tuple[LaunchedJob, ...]
    to_end: tuple[LaunchedJob, ...]


class Sweep:
    """Sweeps the jobs of one state store on one cluster. Remembers ownerless ones; not thread-safe."""

    def __init__(
        self,
        cluster: ListingCluster,
        state: StoreLocation,
        owners: Callable[[frozenset[str]], Owners],
        clock: Clock,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        """`owners`: of the job runs that clusters are tagged with, as `tag_value` has their ids; read at each look."""
        self._cluster = cluster
        self._state_digest = state_digest(state)
        self._owners = owners
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._ownerless_since: dict[str, float] = {}

    def look(self) -> SweepLook:
        """Raises `Unavailable` if the service or the state does not answer."""
        listed = [job for job in self._cluster.launched() if self._belongs_to_state(job)]
        owners = self._owners(frozenset(job.tags.get(JOB_RUN_TAG, "") for job in listed))
        unreadable = {tag_value(job_run_id) for job_run_id in owners.unreadable_job_runs}
        now_seconds = self._clock.monotonic_seconds()
        ownerless = tuple(
            job for job in listed if job.name not in owners.names and job.tags.get(JOB_RUN_TAG) not in unreadable
        )
        self._ownerless_since = {
            job.service_id: self._ownerless_since.get(job.service_id, now_seconds) for job in ownerless
        }
        return SweepLook(
            owned=tuple(job for job in listed if job not in ownerless),
            ownerless=ownerless,
            to_end=tuple(
                job
                for job in ownerless
                if now_seconds - self._ownerless_since[job.service_id] >= self._interval_seconds
            ),
        )

    @property
    def ownerless_count(self) -> int:
        """The number of ownerless jobs at the last look. Thread-safe."""
        return len(self._ownerless_since)

    def end(self, jobs: Sequence[LaunchedJob]) -> tuple[LaunchedJob, ...]:
        """Requests their end. Returns the successful ones; the next look finds the others again."""
        return tuple(job for job in jobs if self._end(job))

    def _end(self, job: LaunchedJob) -> bool:
        running = self._cluster.attach(job.reference)
        if running is None:
            return False
        try:
            running.stop()
        except LithifyError as error:
            LOG.warning("ownerless_cluster_not_ended", name=job.name, where=running.description, reason=str(error))
            return False
        LOG.warning("ownerless_cluster_ended", name=job.name, where=running.description)
        return True

    def _belongs_to_state(self, job: LaunchedJob) -> bool:
        is_marked = bool(job.tags.get(SESSION_TAG) or job.tags.get(BUNDLE_TAG))
        return is_marked and job.tags.get(STATE_TAG) == self._state_digest
