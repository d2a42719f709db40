"""A Spark job as values: what is launched under which name, its reference, its status, an earlier launch's trace.

A reference is durable: a dispatcher that takes a session over finds its Spark job by it. Its cluster translates the
status from its service or system into one of the states here.
"""

import hashlib
import re
from dataclasses import dataclass

from compactor.model.document import Document
from compactor.model.errors import ErrorKind, Unavailable
from compactor.planning.sizing import Resources
from compactor.storage.location import StoreLocation

NAME_LENGTH_MAX = 100
"""Limit of a job's name: services take 64 to 256 characters, file systems 255 bytes with a suffix."""


JOB_NAMES_BEGIN = "lithify-"
"""Names of jobs and clusters begin so."""


def job_name(state: StoreLocation, job_run_id: str, session_id: str, attempt: int) -> str:
    """The name of an attempt on every cluster: letters, digits and hyphens. The same attempt has the same name, so that
    a launch with a lost answer can be found; a job run of the same id in another state has other names. Pure.

    Worked: `lithify-nightly-1-a2-5f0c9d1e7a3b`, for attempt 2 of session `nightly.1`.
    """
    whole = "\0".join((state.root_uri, state.endpoint_url or "", job_run_id, session_id, str(attempt)))
    end = f"-a{attempt}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", f"{JOB_NAMES_BEGIN}{session_id}").strip("-")
    return cleaned[: NAME_LENGTH_MAX - len(end)].rstrip("-") + end


@dataclass(frozen=True)
class SparkJob:
    """One attempt of a session.

    Attributes:
        name: of the application and its cluster: see `job_name`
        state: where the plan, the session log and the heartbeat lie
        plan_key: of the attempt's plan in `state`
        resources: resources of that plan
        launched_at_ms: by the dispatcher's wall clock; None: not known"""

    name: str
    state: StoreLocation
    plan_key: str
    attempt: int
    resources: Resources
    launched_at_ms: int | None = None


class NotLaunched(Unavailable):
    """The place has refused a launch for now: nothing of it runs. After any other `Unavailable` something may."""


class ClusterReference(Document):
    """Where a Spark job runs: enough to find it again, from any dispatcher that can reach it.

    Attributes:
        kind: of the cluster: `local`, `standalone`, ...
        region: of a cloud, None elsewhere
        ids: what that kind needs to find the job"""

    kind: str
    region: str | None = None
    ids: dict[str, str]


@dataclass(frozen=True)
class JobRunning:
    """It runs, or its machines are being started."""


@dataclass(frozen=True)
class JobSucceeded:
    """It has ended with success."""


@dataclass(frozen=True)
class JobFailed:
    """It has ended without success. `reason` continues "attempt 2 ...": `exited with code 1; its last output: ...`."""

    error_kind: ErrorKind
    reason: str


@dataclass(frozen=True)
class NoCapacity:
    """It never ran: the cluster had no capacity. `reason` as in `JobFailed`."""

    reason: str


@dataclass(frozen=True)
class JobVanished:
    """It has ended in an unknown way. `reason` as in `JobFailed`."""

    reason: str


@dataclass(frozen=True)
class OutOfReach:
    """It is not observable from here (its driver is on another machine), except by its log and heartbeat."""


JobStatus = JobRunning | JobSucceeded | JobFailed | NoCapacity | JobVanished | OutOfReach


@dataclass(frozen=True)
class InFlight:
    """An attempt that was launched, or was about to be, without a recorded end.

    Attributes:
        name: by which its cluster knows it; None: it is not recorded
        place: where it was to be launched; None likewise
        reference: None: its dispatcher died before recording it, or could not"""

    attempt: int
    name: str | None = None
    place: str | None = None
    reference: ClusterReference | None = None
