"""Runs a session's Spark job by a `spark-submit` of this machine, in a process group of its own.

`LocalCluster` has its executors in the same process. `StandaloneCluster` has them on the workers of a standalone Spark,
which know nothing of Lithify: their Python environment comes with the job, as an archive (`launcher/archive.py`). If
its driver dies, the master ends the application, and so its executors.
"""

import re
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from compactor.model.clock import Clock
from compactor.model.machine import free_disk_bytes, usable_cores
from compactor.planning.cluster_plan import ClusterPlan
from compactor.planning.sizing import Resources
from compactor.storage.location import StoreLocation
from launcher.archive import PYTHON
from launcher.clusters.drivers import Driver, Drivers, DriverSettings, find_program, process_environment
from launcher.spark_job import ClusterReference, SparkJob
from launcher.submit import local_spark_conf, standalone_spark_conf, submit_arguments

START_SECONDS = 40.0
"""Seconds of a session on a standalone Spark beside its work, until a place has launches of its own: each executor
unpacks the archive first."""

_MASTER = re.compile(r"spark://(?P<hosts>[^\s/,:]+:[0-9]{1,5}(?:,[^\s/,:]+:[0-9]{1,5})*)")


@dataclass(frozen=True, kw_only=True)
class LocalClusterSettings(DriverSettings):
    """
    Attributes:
        resources: of one session
        driver_memory_bytes: the JVM's heap
        spark_home: a folder with bin/spark-submit
        java_home: of a Java that this Spark runs on
        environment: environment that the processes inherit"""

    resources: Resources
    driver_memory_bytes: int
    spark_home: Path
    java_home: Path
    environment: Mapping[str, str]


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


@dataclass(frozen=True, kw_only=True)
class StandaloneClusterSettings(LocalClusterSettings):
    """
    Attributes:
        resources: all tasks of a session's executors, and the memory of each
        master_url: spark://host:port; several masters as spark://a:7077,b:7077
        archive: the environment of the executors' Python workers, a file of this machine
        executor_cores: tasks of one executor, None: all cores of a worker
        driver_host: by which executors reach the driver, None: this machine's host name"""

    master_url: str
    archive: Path
    executor_cores: int | None = None
    driver_host: str | None = None


class LocalCluster:
    """Every launch is a fresh process group, so that stopping one ends the shell, the JVM and the Python workers."""

    status_is_free = True
    _kind = "local"
    _worker_python = sys.executable

    def __init__(self, settings: LocalClusterSettings, clock: Clock) -> None:
        self._settings = settings
        self._drivers = Drivers(self._kind, settings, clock)

    @property
    def place(self) -> str:
        return self._drivers.place

    def resources(self) -> Resources:
        settings = self._settings
        return session_resources(settings.resources, settings.driver_memory_bytes, settings.work_folder)

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        spark_submit = str(self._settings.spark_home / "bin" / "spark-submit")

        def command(scratch: Path) -> tuple[str, ...]:
            return submit_arguments(spark_submit, str(find_program()), job, self._spark_conf(job.resources, scratch))

        return self._drivers.launch(job.name, command, self._process_environment)

    def attach(self, reference: ClusterReference) -> Driver | None:
        return self._drivers.attach(reference)

    def find(self, name: str) -> ClusterReference | None:
        return self._drivers.find(name)

    def _spark_conf(self, resources: Resources, scratch: Path) -> dict[str, str]:
        return local_spark_conf(resources, self._settings.driver_memory_bytes, str(scratch))

    def _process_environment(self, scratch: Path) -> dict[str, str]:
        """The driver's environment; executors on other machines have their worker's."""
        settings = self._settings
        return process_environment(
            settings.environment, settings.spark_home, settings.java_home, scratch, worker_python=self._worker_python
        )


class StandaloneCluster(LocalCluster):
    """One application a session."""

    _kind = "standalone"
    _worker_python = PYTHON

    def __init__(self, settings: StandaloneClusterSettings, clock: Clock) -> None:
        super().__init__(settings, clock)
        self._cluster = settings

    def resources(self) -> Resources:
        return self._cluster.resources

    def _spark_conf(self, resources: Resources, scratch: Path) -> dict[str, str]:
        return standalone_spark_conf(
            self._cluster.master_url,
            str(self._cluster.archive),
            resources,
            self._cluster.driver_memory_bytes,
            str(scratch),
            executor_cores=self._cluster.executor_cores,
            driver_host=self._cluster.driver_host,
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
