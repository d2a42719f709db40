"""Where sessions run. One implementation per kind of place.

`launch` returns a durable reference. `attach` turns it into an object that can be observed and stopped, in any process;
so every dispatcher works the same way with every job. After a lost answer of a launch, `find` searches the job by its
name, which follows from the attempt (`launcher.spark_job.job_name`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from compactor.log_context import LOG, Logged
from compactor.model.errors import Denied, Invalid, Unavailable
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from compactor.planning.sizing import Resources
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.spark_job import ClusterReference, JobStatus, SparkJob

SeenT = TypeVar("SeenT")


class RunningSparkJob(Protocol):
    """A Spark job that was launched."""

    @property
    def reference(self) -> ClusterReference: ...

    @property
    def description(self) -> str:
        """Where it runs and where its output is, for people."""

    def status(self) -> JobStatus:
        """Its current status. Raises `Unavailable` if it is unknown."""

    def stop(self) -> None:
        """Requests its end and that of its children; `status` shows when it has ended. Idempotent, also for an
        ended job. Raises `Unavailable` if the request failed."""


@runtime_checkable
class MeteredJob(Protocol):
    """A Spark job whose nodes are paid for."""

    def use(self, plan: ClusterPlan) -> ClusterUse | None:
        """What the nodes of its cluster have run until now, and their cost; None: it is not known. Raises `Unavailable`
        if the service does not answer, `Denied` without the right, `Invalid` without a price of a node."""


def use_of(job: RunningSparkJob, plan: ClusterPlan | None) -> ClusterUse | None:
    """None: it has no nodes of its own, or they cannot be read now; then its cost is that of the planned ones."""
    if plan is None or not isinstance(job, MeteredJob):
        return None
    with Logged("cluster_use_not_read", Unavailable, Invalid, cluster=job.description):
        return job.use(plan)
    return None


def unless_denied(describe: Callable[[str], SeenT], service_id: str) -> SeenT | None:
    """What a service says of one of the listed; None: it is another deployment's, of which this one's role may know no
    more."""
    try:
        return describe(service_id)
    except Denied as error:
        LOG.info("cluster_of_others", service_id=service_id, reason=str(error))
        return None


class Cluster(Protocol):
    """A place that runs Spark jobs."""

    @property
    def place(self) -> str:
        """The scope of `find`: a dispatcher whose cluster has the same place finds jobs that this one launched."""

    @property
    def status_is_free(self) -> bool:
        """Whether reading a job's status costs no request: it is then read every second."""

    def resources(self) -> Resources | ClusterRoom:
        """The resources of one session here; or the settings from which a cluster is chosen that is started for it."""

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        """Starts it; if a job of this name was launched already, returns that one.

        Raises `NotLaunched` or `Denied` if the place does not launch now, `Invalid` if it never can, any other
        `Unavailable` if the outcome is unknown: `find` settles it.
        `cluster_plan`: the cluster for the job; None: it runs on existing machines, with `job.resources`.
        """

    def attach(self, reference: ClusterReference) -> RunningSparkJob | None:
        """The launched job, running or not. None: it is not visible from here."""

    def find(self, name: str) -> ClusterReference | None:
        """The job of this name, if one was launched at this place; looks again for as long as a new one may be missing
        from its listings. Raises `Unavailable` if it cannot look."""


@dataclass(frozen=True)
class LaunchedJob:
    """A Spark job on AWS as its service lists it. `state`: as the service names it; `tags`: ours and the user's."""

    reference: ClusterReference
    name: str
    state: str
    tags: Mapping[str, str]
    created_at_ms: int

    @property
    def service_id(self) -> str:
        """Its id at the service, of any kind."""
        return " ".join(self.reference.ids.values())


class ListingCluster(Protocol):
    """A cluster that lists its running jobs, by any dispatcher."""

    def launched(self) -> Iterator[LaunchedJob]:
        """All running jobs that Lithify launched here, of any state store."""

    def attach(self, reference: ClusterReference) -> RunningSparkJob | None: ...


class AwsCluster(Cluster, ListingCluster, Protocol):
    """Runs sessions on their own machines, which may outlive the launching process."""
