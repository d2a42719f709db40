"""Spark jobs that Lithify launched on AWS, as its services list them by tags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from launcher.clusters import RunningSparkJob
from launcher.spark_job import ClusterReference


@dataclass(frozen=True)
class LaunchedJob:
    """`state` as the service names it. `tags`: ours and the user's."""

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
