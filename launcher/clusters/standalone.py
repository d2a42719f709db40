"""Runs a session's Spark job on a standalone Spark: the driver on this machine, its executors on the cluster's workers.

Workers know nothing of Lithify: their Python environment comes with the job, as an archive (`launcher/archive.py`).
The driver is a process of this machine, as that of `local` is: it is found again, attached to and stopped alike. If it
dies, the master ends the application, and so its executors.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from compactor.model.clock import Clock
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.sizing import Resources
from compactor.storage.location import StoreLocation
from launcher.archive import PYTHON
from launcher.clusters.drivers import Driver, Drivers, DriverSettings, find_program, process_environment
from launcher.spark_job import ClusterReference, SparkJob
from launcher.submit import standalone_spark_conf, submit_arguments

KIND = "standalone"
START_SECONDS = 40.0
"""Of a session beside its work, until a place has launches of its own: each executor unpacks the archive first."""
_MASTER = re.compile(r"spark://(?P<hosts>[^\s/,:]+:[0-9]{1,5}(?:,[^\s/,:]+:[0-9]{1,5})*)")


@dataclass(frozen=True)
class StandaloneClusterSettings:
    """
    master_url           spark://host:port; several masters as spark://a:7077,b:7077
    archive              the environment of the executors' Python workers, a file of this machine
    resources            of one session: all its executors' tasks, and the memory of each
    executor_cores       tasks of one executor, None: all cores of a worker
    driver_host          by which executors reach the driver, None: this machine's host name
    driver_memory_bytes, spark_home, java_home, work_folder, environment  as for `LocalCluster`
    """

    master_url: str
    archive: Path
    resources: Resources
    driver_memory_bytes: int
    spark_home: Path
    java_home: Path
    work_folder: Path
    environment: Mapping[str, str]
    executor_cores: int | None = None
    driver_host: str | None = None
    stop_seconds: float = DriverSettings.stop_seconds
    unattended_seconds: float = DriverSettings.unattended_seconds


class StandaloneCluster:
    """One application a session."""

    status_is_free = True

    def __init__(self, settings: StandaloneClusterSettings, clock: Clock) -> None:
        self._settings = settings
        drivers = DriverSettings(KIND, settings.work_folder, settings.stop_seconds, settings.unattended_seconds)
        self._drivers = Drivers(drivers, clock)

    @property
    def place(self) -> str:
        return self._drivers.place

    def resources(self) -> Resources:
        return self._settings.resources

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        settings = self._settings

        def command(scratch: Path) -> tuple[str, ...]:
            conf = standalone_spark_conf(
                settings.master_url,
                str(settings.archive),
                job.resources,
                settings.driver_memory_bytes,
                str(scratch),
                executor_cores=settings.executor_cores,
                driver_host=settings.driver_host,
            )
            spark_submit = str(settings.spark_home / "bin" / "spark-submit")
            return submit_arguments(spark_submit, str(find_program()), job, conf)

        return self._drivers.launch(job.name, command, self._process_environment)

    def attach(self, reference: ClusterReference) -> Driver | None:
        return self._drivers.attach(reference)

    def find(self, name: str) -> ClusterReference | None:
        return self._drivers.find(name)

    def _process_environment(self, scratch: Path) -> dict[str, str]:
        """The driver's environment; executors have their worker's."""
        settings = self._settings
        return process_environment(
            settings.environment, settings.spark_home, settings.java_home, scratch, worker_python=PYTHON
        )


def violations(master_url: str, stores: Mapping[str, StoreLocation]) -> Iterator[str]:
    """Violations of a master, and of `stores` (by their options) that its workers must reach, a sentence each."""
    found = _MASTER.fullmatch(master_url)
    if found is None:
        yield f"--master-url {master_url} is no standalone Spark: write spark://host:port"
        return
    if is_this_machine(master_url):
        return
    for option, location in stores.items():
        if not location.is_remote:
            yield (
                f"{option} {location.root_uri} is a folder of this machine, which the workers of {master_url} cannot "
                "see: write s3://bucket/prefix"
            )


def is_this_machine(master_url: str) -> bool:
    """Whether every master named is here."""
    hosts = {each.rpartition(":")[0] for each in master_url.removeprefix("spark://").split(",")}
    return hosts <= {"127.0.0.1", "localhost", "::1", socket.gethostname()}
