"""What a session runs on. One implementation a place: `local` here; later a standalone cluster, and EMR."""

from __future__ import annotations

from typing import Protocol

from compactor.sizing import Resources
from launcher.submit import SparkJob


class RunningSparkJob(Protocol):
    """A Spark job that was launched."""

    @property
    def reference(self) -> str:
        """Where it runs and where its output lies: enough for a person to find it."""

    def poll(self) -> int | None:
        """Its exit code, None while it runs. 0 succeeded, 1 failed, 2 invalid; anything else: it crashed."""

    def stop(self) -> None:
        """End it and everything it started; returns when it is gone. Fine to call for a job that has ended."""

    def output_tail(self) -> str:
        """The end of what it wrote, for whoever has to find out why it crashed."""


class Cluster(Protocol):
    """A place that runs Spark jobs."""

    def resources(self) -> Resources:
        """What one session gets here."""

    def launch(self, job: SparkJob) -> RunningSparkJob:
        """Start it. Raises `Unavailable` if the place cannot now, `Invalid` if it never will."""
