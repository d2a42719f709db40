"""A standalone Spark: what its sessions are started with, and which settings are refused."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest

from compactor.model.errors import Invalid
from compactor.planning.machine_share import GIB
from compactor.planning.sizing import Resources
from compactor.storage.location import StoreLocation
from dispatcher.options.service_options import ServiceOptions, ServicePlaces, SparkOptions
from dispatcher.options.settings import standalone_address
from launcher.archive import MANIFEST, ArchiveManifest, check_archive, python_release, read_manifest
from launcher.clusters.local import is_this_machine, violations
from launcher.submit import EXECUTORS_SECONDS_MAX, standalone_spark_conf
from tests.conftest import Command

NOTHING: Mapping[str, object] = {}
HERE, FAR = "spark://127.0.0.1:7077", "spark://node-1:7077,node-2:7077"
FOLDER, BUCKET = StoreLocation("file:///data/state"), StoreLocation("s3://bucket/state")
FITS = ArchiveManifest(
    lithify="0.1.0",
    python=python_release(),
    platform="linux-x86_64",
    cpu="native",
    spark="4.0",
    packages={},
    files=0,
    bytes=0,
)


def archive(path: Path, changes: Mapping[str, object] = NOTHING, name: str = MANIFEST) -> Path:
    body = json.dumps({**json.loads(FITS.model_dump_json()), **changes}).encode()
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(body)
        tar.addfile(member, BytesIO(body))
    return path


def options(tmp_path: Path, lake: str | None = None, **changes: object) -> ServiceOptions:
    given: dict[str, object] = {
        "master_url": HERE,
        "archive": archive(tmp_path / "lithify.tar.gz"),
        "executor_cores": None,
        "driver_host": None,
        "cores": 8,
        "memory_gib": 64.0,
        **changes,
    }
    return ServiceOptions(places=ServicePlaces(lake=lake), spark=SparkOptions(**given))  # type: ignore[arg-type]


def test_a_session_takes_its_cores_of_the_cluster_and_its_environment_from_the_archive() -> None:
    conf = standalone_spark_conf(
        FAR, "/a/lithify.tar.gz", Resources(4 * GIB, 16), GIB, "/scratch", executor_cores=4, driver_host="me"
    )
    assert conf["spark.master"] == FAR
    assert conf["spark.archives"] == "/a/lithify.tar.gz#environment"
    assert (conf["spark.cores.max"], conf["spark.executor.cores"]) == ("16", "4")
    assert conf["spark.driver.host"] == "me"
    assert conf["spark.python.daemon.module"] == "compactor.worker_daemon"
    assert conf["spark.executor.extraJavaOptions"] == "-Djava.io.tmpdir=."


def test_a_session_waits_some_seconds_for_all_of_its_executors_before_its_first_task() -> None:
    conf = standalone_spark_conf(
        FAR, "/a/lithify.tar.gz", Resources(4 * GIB, 16), GIB, "/scratch", executor_cores=4, driver_host="me"
    )
    assert conf["spark.scheduler.minRegisteredResourcesRatio"] == "1.0"
    assert conf["spark.scheduler.maxRegisteredResourcesWaitingTime"] == f"{EXECUTORS_SECONDS_MAX}s"


@pytest.mark.parametrize(
    "master_url", ["", "yarn", "local[2]", "node:7077", "spark://node", "spark://a:1,b", HERE + " "]
)
def test_a_master_that_is_none_is_refused_with_what_to_write(master_url: str) -> None:
    (reason,) = violations(master_url, {})
    assert "write spark://host:port" in reason


def test_a_folder_of_this_machine_is_refused_where_the_workers_are_elsewhere() -> None:
    (reason,) = violations(FAR, {"--state": FOLDER, "--lake": BUCKET})
    assert reason.startswith("--state file:///data/state is a folder of this machine")
    assert reason.endswith("write s3://bucket/prefix")
    assert list(violations(HERE, {"--state": FOLDER})) == []
    assert not is_this_machine("spark://127.0.0.1:7077,node-2:7077")


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    wrong = options(
        tmp_path, "/data/lake", master_url=FAR, archive=tmp_path / "none", cores=None, cluster_settings="{}"
    )
    with pytest.raises(Invalid) as refused:
        standalone_address(wrong, BUCKET)
    assert [reason.split()[0] for reason in refused.value.reasons] == [
        "--lake",
        "--master-url",
        "there",
        "--master-url",
    ]


def test_settings_of_a_standalone_spark_without_one_are_refused(tmp_path: Path) -> None:
    assert standalone_address(ServiceOptions(), FOLDER) is None
    with pytest.raises(Invalid, match="--archive is about a standalone Spark: add --master-url"):
        standalone_address(options(tmp_path, master_url=None), FOLDER)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"python": "3.9"}, "is for Python 3.9"),
        ({"spark": "3.5"}, "was made beside Spark 3.5, and the driver's is 4.0"),
        ({"lithify": "0.0.1"}, "holds Lithify 0.0.1"),
    ],
)
def test_an_archive_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, object], expected: str) -> None:
    (reason,) = check_archive(archive(tmp_path / "a.tar.gz", changes), "4.0")
    assert expected in reason
    assert "with `lithify archive" in reason


def test_an_archive_that_fits_is_taken_whatever_spark_it_was_made_beside_if_none_is_known(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar.gz")
    assert read_manifest(path) == FITS
    assert check_archive(path, "4.0") == ()
    assert check_archive(path, None) == ()
    assert check_archive(archive(tmp_path / "b.tar.gz", {"spark": None}), "4.0") == ()


def test_a_file_that_is_not_our_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    for path, expected in {
        tmp_path / "text": "is no archive, or a part of one: make one with `lithify archive",
        archive(tmp_path / "newer.tar.gz", {"colour": 1}): "is of another release of Lithify",
        archive(tmp_path / "other.tar.gz", name="something"): "is no archive of Lithify's",
        tmp_path / "none": "there is no archive",
    }.items():
        (reason,) = check_archive(path, None)
        assert expected in reason


def test_the_dispatcher_says_so_at_start_with_exit_code_2(tmp_path: Path, command: Command) -> None:
    result = command(
        *("dispatch", "--queue-url", "http://127.0.0.1:1/queue", "--state", str(tmp_path / "state")),
        *("--lake", str(tmp_path / "lake"), "--work-folder", str(tmp_path / "work"), "--region", "us-east-1"),
        *("--master-url", FAR, "--archive", str(tmp_path / "none.tar.gz")),
    )
    assert result.exit_code == 2
    reasons = result.err.splitlines()
    assert len(reasons) == 4, result.err
    assert all(reason.startswith("lithify: ") for reason in reasons)
