"""Limits on what sessions take at a time, and on what they cost: one document.

{"session": {"nodes": 20, "usd": 10}, "table": {"sessions": 2}, "all": {"sessions": 40, "usd_per_day": 500}}
"""

from collections.abc import Iterator
from enum import StrEnum

from pydantic import ConfigDict, Field

from compactor.model.document import Document


class LimitScope(StrEnum):
    """The share whose limit is reached."""

    RUN = "job run"
    DISPATCHER = "dispatcher"
    TABLE = "table"
    ALL = "all"


class _Limits(Document):
    model_config = ConfigDict(use_attribute_docstrings=True)


class SessionLimits(_Limits):
    """A session that cannot run within them is refused before anything is launched."""

    nodes_min: int = Field(1, ge=1)
    """Worker nodes of its cluster, at least."""
    nodes: int = Field(100, ge=1)
    """Worker nodes of its cluster, at most, the cluster's growth included."""
    vcpus: int | None = Field(None, ge=1)
    """vCPUs of its worker nodes, at most."""
    usd: float | None = Field(None, gt=0)
    """US dollars that it may be expected to cost."""


class JobRunLimits(_Limits):
    usd: float | None = Field(None, gt=0)
    """US dollars that its clusters may cost. Further sessions wait."""


class DispatcherLimits(_Limits):
    """Sessions above them wait. The sessions of one dispatcher are limited by `--max-sessions`."""

    clusters: int | None = Field(None, ge=1)
    """Clusters at a time."""
    vcpus: int | None = Field(None, ge=1)
    """vCPUs of the worker nodes of all its clusters at a time."""
    usd_per_day: float | None = Field(None, gt=0)
    """US dollars that its clusters may cost on a day (UTC)."""


class SharedLimits(DispatcherLimits):
    """Counted over all dispatchers of the state. Sessions above them wait."""

    sessions: int | None = Field(None, ge=1)
    """Sessions at a time. Those that share a Spark job count as one."""


class Limits(_Limits):
    """The document of `--limits`. A limit that is left out has its default; most have none. Clusters, vCPUs and money
    count only for clusters that are launched for sessions: a machine that runs anyway costs nothing."""

    session: SessionLimits = SessionLimits()
    """Limits of each session."""
    job_run: JobRunLimits = JobRunLimits()
    """Limits of each job run."""
    table: SharedLimits = SharedLimits()
    """Limits of each table."""
    dispatcher: DispatcherLimits = DispatcherLimits()
    """Limits of this dispatcher."""
    all: SharedLimits = SharedLimits()
    """Limits of all tables together."""

    def of(self, scope: LimitScope) -> DispatcherLimits:
        """Of a share that has vCPUs and clusters, which a job run has not."""
        shares = {LimitScope.DISPATCHER: self.dispatcher, LimitScope.TABLE: self.table, LimitScope.ALL: self.all}
        return shares[scope]

    @property
    def session_vcpus(self) -> int | None:
        """The most vCPUs of one session: it is planned within every limit, or it could never be launched."""
        bounds = (self.session.vcpus, self.dispatcher.vcpus, self.table.vcpus, self.all.vcpus)
        return min((each for each in bounds if each is not None), default=None)

    @property
    def session_usd(self) -> float | None:
        """Likewise the most US dollars: one that no day may cost would wait for ever."""
        days = (self.dispatcher, self.table, self.all)
        bounds = (self.session.usd, self.job_run.usd, *(each.usd_per_day for each in days))
        return min((each for each in bounds if each is not None), default=None)

    def contradictions(self) -> Iterator[str]:
        """The limits that can never be reached, because a wider one is reached before."""
        for narrow, wide in _WITHIN:
            least, most = self._at(narrow), self._at(wide)
            if least is not None and most is not None and least > most:
                yield f"{narrow} {least:g} is above {wide} {most:g}: lower the one, or raise the other"

    def of_clusters(self) -> list[str]:
        """The given limits that count only clusters launched for sessions."""
        given = self.model_dump(exclude_unset=True)
        return [f"{share}.{name}" for share, names in given.items() for name in names if name != "sessions"]

    def _at(self, path: str) -> float | None:
        share, name = path.split(".")
        found: float | None = getattr(getattr(self, share), name)
        return found


_WITHIN = (
    ("session.usd", "job_run.usd"),
    ("table.sessions", "all.sessions"),
    *(
        (f"{share}.{name}", f"all.{name}")
        for name in DispatcherLimits.model_fields
        for share in ("dispatcher", "table")
    ),
)
"""Pairs of limits: the first can never be reached if it is above the second."""
