"""Runs a session's Spark job on this machine: `spark-submit` as a process of its own, in a process group of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from compactor.model.clock import Clock
from compactor.model.machine import free_disk_bytes, usable_cores
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.sizing import Resources
from launcher.clusters.drivers import Driver, Drivers, DriverSettings, find_program, process_environment
from launcher.spark_job import ClusterReference, SparkJob
from launcher.submit import local_spark_conf, submit_arguments

KIND = "local"


@dataclass(frozen=True)
class LocalClusterSettings:
    """
    resources            of one session
    driver_memory_bytes  the JVM's heap
    spark_home           a folder with bin/spark-submit
    java_home            of a Java that this Spark runs on
    work_folder          where output (logs/), Spark's scratch files (scratch/) and records (jobs/) go
    environment          environment that the processes inherit
    stop_seconds, unattended_seconds, logs_kept  as in `DriverSettings`
    """

    resources: Resources
    driver_memory_bytes: int
    spark_home: Path
    java_home: Path
    work_folder: Path
    environment: Mapping[str, str]
    stop_seconds: float = DriverSettings.stop_seconds
    unattended_seconds: float = DriverSettings.unattended_seconds
    logs_kept: int = DriverSettings.logs_kept


def session_resources(share: Resources, driver_memory_bytes: int, work_folder: Path) -> Resources:
    """The current resources of one session: its share of the machine, its driver's memory and scratch folders.

    Concurrent sessions share the free space of the work folder, like the cores.
    """
    share_of_disk = min(share.tasks / usable_cores(), 1.0)
    return replace(
        share,
        scratch_bytes=int(free_disk_bytes(work_folder) * share_of_disk),
        driver_memory_bytes=driver_memory_bytes,
    )


class LocalCluster:
    """Every launch is a fresh process group, so that stopping one ends the shell, the JVM and the Python workers."""

    status_is_free = True

    def __init__(self, settings: LocalClusterSettings, clock: Clock) -> None:
        self._settings = settings
        self._drivers = Drivers(
            DriverSettings(
                KIND, settings.work_folder, settings.stop_seconds, settings.unattended_seconds, settings.logs_kept
            ),
            clock,
        )

    @property
    def place(self) -> str:
        return self._drivers.place

    def resources(self) -> Resources:
        settings = self._settings
        return session_resources(settings.resources, settings.driver_memory_bytes, settings.work_folder)

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        settings = self._settings
        spark_submit = str(settings.spark_home / "bin" / "spark-submit")

        def command(scratch: Path) -> tuple[str, ...]:
            conf = local_spark_conf(job.resources, settings.driver_memory_bytes, str(scratch))
            return submit_arguments(spark_submit, str(find_program()), job, conf)

        return self._drivers.launch(job.name, command, self._process_environment)

    def attach(self, reference: ClusterReference) -> Driver | None:
        return self._drivers.attach(reference)

    def find(self, name: str) -> ClusterReference | None:
        return self._drivers.find(name)

    def _process_environment(self, scratch: Path) -> dict[str, str]:
        settings = self._settings
        return process_environment(
            settings.environment, settings.spark_home, settings.java_home, scratch, worker_python=sys.executable
        )
