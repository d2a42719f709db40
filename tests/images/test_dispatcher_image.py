"""The dispatcher's image, built from the repository and looked at from inside, with its root read-only."""

from __future__ import annotations

import io
import json
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import boto3
import pytest

from dispatcher.demo.stand_ins import free_ports, queue_server
from infra.access.places import ARCHIVE_FOLDER
from infra.dispatcher_environment import EXAMPLE_SPARK
from launcher.archive import MANIFEST, ArchiveManifest, python_release
from tests.e2e.conftest import Mailroom
from tests.images.conftest import Container
from tests.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, aws_environment, create_bucket
from tests.waiting import wait_until

# The first test of an image builds it.
pytestmark = pytest.mark.timeout(1_800)

GREEN_SECONDS_MAX = 60.0
COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "ld", "as", "make", "pip")


def test_it_runs_as_a_user_of_its_own_that_can_write_only_to_its_volumes(dispatcher: Container) -> None:
    assert dispatcher.run("id", "-u").stdout.strip() not in ("", "0")
    for folder in ("/", "/opt/lithify", "/usr", "/etc", "/home", "/var"):
        refused = dispatcher.run("touch", f"{folder}/new")
        assert (refused.returncode, "Read-only file system" in refused.stderr) == (1, True), (folder, refused)
    for folder in ("/tmp", "/var/lithify"):
        assert dispatcher.run("touch", f"{folder}/new").returncode == 0


def test_none_of_its_files_can_be_changed_by_its_user_even_if_the_root_were_writable(dispatcher: Container) -> None:
    found = dispatcher.run("find", "/opt/lithify", "!", "-type", "l", "-writable")
    assert (found.returncode, found.stdout) == (0, "")


def test_it_has_no_compiler_and_no_installer(dispatcher: Container) -> None:
    for name in COMPILERS:
        assert dispatcher.run("sh", "-c", f"command -v {name}").stdout == "", name
    for name in ("sh", "python", "lithify"):
        assert dispatcher.run("sh", "-c", f"command -v {name}").stdout != "", name


def test_its_kernels_are_compiled_and_are_loaded(dispatcher: Container) -> None:
    warm = dispatcher.run(
        "python", "-P", "-m", "compactor.kernels.warm", variables={"NUMBA_DEBUG_CACHE": "1"}, enters=True
    )
    assert warm.returncode == 0, warm.stderr
    assert re.findall(r"\[cache\] data loaded", warm.stdout)
    assert not re.findall(r"\[cache\] data saved", warm.stdout)


def test_its_commands_work(dispatcher: Container) -> None:
    """The keeper's, by a shell."""
    assert dispatcher.run("sh", "-c", "lithify --version", enters=True).stdout.startswith("lithify ")
    made = dispatcher.run("lithify", "gc", "--lake", "/tmp/no-lake", enters=True)
    assert "Traceback" not in made.stderr
    assert made.stderr + made.stdout


def test_everything_it_has_can_be_imported(dispatcher: Container) -> None:
    """Files that were left out of the image are none that a module asks for. Spark is not there."""
    names = "compactor.api dispatcher.main launcher.aws pyarrow.dataset pyarrow.parquet pyarrow.orc pyarrow.fs"
    done = dispatcher.run("python", "-c", f"import {names.replace(' ', ', ')}, numba, boto3, obstore", enters=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def mailroom() -> Iterator[Mailroom]:
    with aws_environment(), queue_server() as url:
        create_bucket(url)
        yield Mailroom.open(url)


def archive_without_packages() -> bytes:
    manifest = ArchiveManifest(
        lithify=metadata.version("lithify"),
        python=python_release(),
        platform=f"linux-{platform.machine()}",
        cpu="x86-64-v3",
        spark=None,
        packages={},
        files=0,
        bytes=0,
    )
    body, packed = manifest.model_dump_json().encode(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo(MANIFEST)
        member.size = len(body)
        archive.addfile(member, io.BytesIO(body))
    return packed.getvalue()


def test_its_health_check_turns_green_once_the_dispatcher_works(
    dispatcher: Container, mailroom: Mailroom, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    s3 = boto3.client("s3", endpoint_url=mailroom.endpoint_url, region_name=REGION)
    # A dispatcher looks whether they are there and fit. No session is started here.
    s3.put_object(Bucket=BUCKET, Key=f"{ARCHIVE_FOLDER}/lithify.tar.gz", Body=archive_without_packages())
    s3.put_object(Bucket=BUCKET, Key=f"{ARCHIVE_FOLDER}/main.py", Body=b"")
    variables = {
        "LITHIFY_HTTP_PORT": str(port),
        "LITHIFY_QUEUE_URL": mailroom.queue_url,
        "LITHIFY_TOPIC_ARN": mailroom.topic_arn,
        "LITHIFY_STATE": f"s3://{BUCKET}/state",
        "LITHIFY_LAKE": f"s3://{BUCKET}/lake",
        "LITHIFY_REGION": REGION,
        "LITHIFY_ENDPOINT_URL": mailroom.endpoint_url,
        "LITHIFY_S3_ENDPOINT_URL": mailroom.endpoint_url,
        "LITHIFY_CLUSTER_SETTINGS": json.dumps(
            {
                "kind": "emr_serverless",
                "region": REGION,
                "archive_uri": f"s3://{BUCKET}/{ARCHIVE_FOLDER}/lithify.tar.gz",
                "log_uri": f"s3://{BUCKET}/logs/",
                "application_id": EXAMPLE_SPARK.application_id,
                "execution_role_arn": EXAMPLE_SPARK.job_role,
                "program_uri": f"s3://{BUCKET}/{ARCHIVE_FOLDER}/main.py",
            }
        ),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    kind, *check = dispatcher.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    assert dispatcher.run(*check, variables=variables).returncode != 0, "nothing answers yet"

    log = tmp_path / "log.txt"
    with log.open("wb") as output:
        command = dispatcher.command(*dispatcher.config["Cmd"], variables=variables, enters=True)
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:

        def is_green_or_over() -> bool:
            return process.poll() is not None or dispatcher.run(*check, variables=variables).returncode == 0

        wait_until(is_green_or_over, GREEN_SECONDS_MAX, every_seconds=0.2)
        assert process.poll() is None, log.read_text()

        mailroom.send('{"schema_version": "1"')
        wait_until(lambda: bool(mailroom.queue().dead_letters().receive(1, 0, 0)), GREEN_SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
