"""A launched Spark job as values: its reference, its status, the trace of an earlier launch.

A reference is durable: a dispatcher that takes a session over finds its Spark job by it. Its cluster translates the
status from its service or system into one of the states here.
"""

from __future__ import annotations

from dataclasses import dataclass

from compactor.model.document import Document
from compactor.model.errors import ErrorKind, Unavailable


class NotLaunched(Unavailable):
    """The place has refused a launch for now: nothing of it runs. After any other `Unavailable` something may."""


class ClusterReference(Document):
    """Where a Spark job runs: enough to find it again, from any dispatcher that can reach it.

    kind    of the cluster: `local`, `standalone`, ...
    region  of a cloud, None elsewhere
    ids     what that kind needs to find the job
    """

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

    name       by which its cluster knows it; None: an older release launched it
    place      where it was to be launched; None likewise
    reference  None: its dispatcher died before recording it, or could not
    """

    attempt: int
    name: str | None = None
    place: str | None = None
    reference: ClusterReference | None = None
