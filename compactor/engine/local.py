"""Starts a local Spark for `compact()` if the caller has none: in this process, on this machine's cores."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socket import socket

from pyspark import SparkConf, SparkContext

from compactor.engine.errors import SPARK_UNREACHABLE
from compactor.engine.java_home import find_java_home, utf8_locale
from compactor.engine.prestart import prestart_workers
from compactor.engine.settings import JOB_SETTINGS, LOCAL_SETTINGS, driver_settings
from compactor.log_context import LOG, is_verbose
from compactor.model.interrupts import deferred_interrupts
from compactor.model.machine import free_disk_bytes, usable_cores, usable_memory_bytes
from compactor.planning.machine_share import guest_share
from compactor.planning.sizing import Resources

_QUIET_LOGS = Path(__file__).with_name("log4j2.properties")
_HEAP_BYTES = 1024**3
_LOCAL_MASTER = re.compile(r"local(\[.*\])?")


@contextmanager
def local_spark(app_name: str, master: str | None = None) -> Iterator[SparkContext]:
    """Starts Spark in local mode and stops it at the end. Raises `Invalid` where there is no Java to run it.

    Args:
        master: overrides `local` with all usable cores

    PySpark finds its Java and its workers' Python by the environment alone: only this module and the mains change it.
    """
    environment = os.environ  # noqa: TID251
    environment["JAVA_HOME"] = str(find_java_home(environment, Path.home() / ".cache" / "lithify"))
    environment.update(utf8_locale(environment))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setAppName(app_name).setMaster(master or f"local[{usable_cores()}]")
    of_tasks = "error" if is_verbose() else "off"
    driver = driver_settings(_HEAP_BYTES, f'-Dlog4j2.configurationFile="{_QUIET_LOGS}"', f"-Dlithify.tasks={of_tasks}")
    for name, value in {**JOB_SETTINGS, **LOCAL_SETTINGS, **driver}.items():
        conf.set(name, value)
    spark: SparkContext | None = None
    try:
        # An interrupt here would leave an unreachable Java process. A Java that is fully launched ends with this
        # process. A SparkContext installs a handler of its own, which fails once Spark is stopped.
        with deferred_interrupts():
            spark = SparkContext(conf=conf)
        _silence_java_exit(spark)
        spark.setLogLevel("ERROR")
        prestart_workers(spark)
        yield spark
    finally:
        if spark is not None:
            with suppress(*SPARK_UNREACHABLE):
                # Else tasks that end while it stops, after another one has failed, leave stacks that say so.
                spark.setLogLevel("ERROR" if is_verbose() else "OFF")
            stop_spark(spark)


def _silence_java_exit(spark: SparkContext) -> None:
    """A thread of PySpark reads from Java and prints a stack when Java ends; the session reports that already."""
    server = spark._accumulatorServer  # noqa: SLF001
    print_stack = server.handle_error

    def handle_error(request: socket | tuple[bytes, socket], client_address: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            print_stack(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def stop_spark(spark: SparkContext) -> None:
    """Stops Spark, even if its Java has died: else no other Spark could start in this process."""
    try:
        spark.stop()
    except SPARK_UNREACHABLE as error:
        LOG.debug("spark_not_stopped", reason=str(error))
        spark.stop()  # stops the parts in this process
    java = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if java is not None and java.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def local_resources(spark: SparkContext | None = None) -> Resources:
    """A session's resources on this machine: a guest's share of its memory, and all free space of Spark's scratch disk.

    Args:
        spark: a running Spark, instead of one that `local_spark` starts; of a cluster only the number of cores is known
    """
    cores = usable_cores() if spark is None else spark.defaultParallelism
    resources = guest_share(usable_memory_bytes(), cores)
    if spark is not None and not runs_here(spark):
        return resources
    scratch = Path(_scratch_folder() if spark is None else spark._temp_dir)  # noqa: SLF001
    return replace(resources, scratch_bytes=free_disk_bytes(scratch), driver_memory_bytes=_HEAP_BYTES)


def runs_here(spark: SparkContext) -> bool:
    """Whether its tasks run on the driver's machine."""
    return _LOCAL_MASTER.fullmatch(spark.master or "") is not None


def _scratch_folder() -> str:
    """Spark's default scratch folder."""
    return os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]  # noqa: TID251
