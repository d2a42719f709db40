"""EMR and EMR Serverless as the launcher needs them; `launcher/aws/emr.py` is both over botocore.

Every method raises `Denied` or `Unavailable` if the service does not answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from compactor.planning.cluster_plan import ClusterUse
from launcher.emr.request import JsonObject

COMING_STATES = frozenset({"STARTING", "BOOTSTRAPPING"})
LIVE_STATES = frozenset({*COMING_STATES, "RUNNING", "WAITING"})
ENDED_STATES = frozenset({"TERMINATED", "TERMINATED_WITH_ERRORS"})
PAID_STATES = frozenset({*LIVE_STATES, "TERMINATING"})
"""A `TERMINATING` cluster no longer runs anything, but is still billed."""

SERVERLESS_LIVE_STATES = frozenset({"SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "QUEUED"})
SERVERLESS_PAID_STATES = frozenset({*SERVERLESS_LIVE_STATES, "CANCELLING"})
SERVERLESS_ENDED_STATES = frozenset({"SUCCESS", "FAILED", "CANCELLED"})


@dataclass(frozen=True)
class ClusterSeen:
    """A cluster as EMR describes it. `code`, `message` and `error_codes`: why it is ending. Lists have no tags."""

    cluster_id: str
    name: str
    state: str
    code: str = ""
    message: str = ""
    error_codes: tuple[str, ...] = ()
    created_at_ms: int = 0
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class StepSeen:
    state: str
    message: str = ""
    log_file: str = ""


@dataclass(frozen=True)
class InstanceSeen:
    """An instance of a cluster. ended_at_ms None: it runs. One that EC2 has not granted is none."""

    instance_type: str
    is_spot: bool
    created_at_ms: int
    ended_at_ms: int | None = None


@dataclass(frozen=True)
class JobRunSeen:
    """A job run as EMR Serverless describes it. Lists have no tags. `billed`: its hours, as far as they are told."""

    job_run_id: str
    name: str
    state: str
    details: str = ""
    created_at_ms: int = 0
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    billed: ClusterUse | None = None


class EmrService(Protocol):
    def run_job_flow(self, request: JsonObject) -> str:
        """The new cluster's id. Asked once, as there is no token. Raises `NotLaunched` or `Denied` for a request that
        was refused for now, `Invalid` for one that can never work, and any other `Unavailable` if the cluster may have
        been launched."""

    def clusters(self, states: Sequence[str], created_after_ms: int | None = None) -> Iterator[ClusterSeen]:
        """All of the account and region that are in one of these states, page by page."""

    def cluster(self, cluster_id: str) -> ClusterSeen | None:
        """None: the cluster no longer exists."""

    def steps(self, cluster_id: str) -> Sequence[StepSeen]:
        """The last one first."""

    def instances(self, cluster_id: str) -> Sequence[InstanceSeen]:
        """All that the cluster has had, for 30 days; it tells of 2,000 at most."""

    def terminate(self, cluster_ids: Sequence[str]) -> None:
        """Allowed for ended clusters."""


class EmrServerlessService(Protocol):
    def start_job_run(self, request: JsonObject) -> str:
        """The job run's id, the same for every request with this client token. Raises `Invalid` for a request that
        can never work."""

    def job_runs(self, states: Sequence[str], created_after_ms: int | None = None) -> Iterator[JobRunSeen]:
        """All of the application that are in one of these states, page by page."""

    def job_run(self, job_run_id: str) -> JobRunSeen | None:
        """None: the job run no longer exists."""

    def cancel(self, job_run_id: str) -> None:
        """Allowed for an ended job run."""
