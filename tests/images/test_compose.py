"""The services of docker/compose.yaml, started by hand from the images that it names, the stages of spark.Dockerfile,
with the file's own commands and variables. What differs is the network: host names are this machine, and ports are
free ones; the stand-ins for AWS are the releases that the file names, as processes of this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.aws.sqs import SqsQueue
from dispatcher.demo.stand_ins import free_ports, queue_server
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from tests.images.conftest import REPOSITORY, Container, opened, with_new_volumes
from tests.images.test_dispatcher_image import COMPILERS
from tests.servers import ACCESS_KEY, REGION, SECRET_KEY, aws_environment, seaweedfs_server
from tests.waiting import wait_until

# The first test of an image builds it.
pytestmark = pytest.mark.timeout(2_400)

SERVICES: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())["services"]
STAND_INS = "create_stand_ins.py"
TABLE = "ACME.ORDERS.V1"
START_SECONDS_MAX, END_SECONDS_MAX = 240.0, 300.0
COMPILERS_OF_SPARK = tuple(name for name in COMPILERS if name != "pip")


@dataclass
class Compose:
    """`containers`: of each service that has an image of ours."""

    folder: Path
    containers: dict[str, Container]
    places: dict[str, str]
    variables: dict[str, str]
    ports: dict[str, str]

    def here(self, word: str) -> str:
        for name, place in self.places.items():
            word = word.replace(name, place)
        return word

    def given(self, name: str) -> tuple[list[str], dict[str, str]]:
        """The command and the variables of a service."""
        service = SERVICES[name]
        variables = {key: self.here(value) for key, value in service.get("environment", {}).items()}
        words = ["127.0.0.1" if word == name else self.here(word) for word in service["command"]]
        return words, variables | self.variables

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        words, variables = self.given(name)
        return self.containers[name].run(*words, variables=variables)

    def start(self, name: str, up: ExitStack) -> subprocess.Popen[bytes]:
        words, variables = self.given(name)
        log = up.enter_context(self.log(name).open("wb"))
        process = subprocess.Popen(self.containers[name].command(*words, variables=variables), stdout=log, stderr=log)
        up.callback(process.wait)
        up.callback(process.kill)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def master_state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['SPARK_MASTER_WEBUI_PORT']}/json/") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def has_worker(self) -> bool:
        with suppress(OSError, ValueError):
            return [each["state"] for each in self.master_state()["workers"]] == ["ALIVE"]
        return False

    def is_healthy(self) -> bool:
        """As the file's health check says, from inside."""
        kind, *check = [self.here(word) for word in SERVICES["dispatcher"]["healthcheck"]["test"]]
        assert kind == "CMD"
        return self.containers["dispatcher"].run(*check).returncode == 0


@pytest.fixture(scope="module")
def compose(
    standalone_spark_image: str, spark_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compose]:
    folder = tmp_path_factory.mktemp("compose")
    images = {"lithify-standalone-spark": standalone_spark_image, "lithify-spark": spark_image}
    names = ("http", "SPARK_MASTER_PORT", "SPARK_MASTER_WEBUI_PORT", "SPARK_WORKER_WEBUI_PORT")
    ports = {name: str(port) for name, port in zip(names, free_ports(len(names)), strict=True)}
    with ExitStack() as up:
        up.enter_context(aws_environment())
        aws, s3 = up.enter_context(queue_server()), up.enter_context(seaweedfs_server(folder / "s3"))
        containers = {}
        for name in ("create-stand-ins", "master", "worker", "dispatcher"):
            service = SERVICES[name]
            root, config = up.enter_context(opened(images[service["image"]]))
            volumes = [each.partition(":")[2] for each in service.get("volumes", ()) if "create_stand" not in each]
            volumes += service.get("tmpfs", ())
            writable = not service.get("read_only", False)
            containers[name] = with_new_volumes(root, config, folder / f"of-{name}", volumes, is_writable=writable)
        # Mounted by an engine.
        shutil.copy(REPOSITORY / "docker" / STAND_INS, containers["create-stand-ins"].root / "opt" / STAND_INS)
        places = {
            "http://aws:5000": aws,
            "http://s3:8333": s3,
            "spark://master:7077": f"spark://127.0.0.1:{ports['SPARK_MASTER_PORT']}",
            "http://127.0.0.1:8080": f"http://127.0.0.1:{ports['http']}",
        }
        variables = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "LITHIFY_DRIVER_HOST": "127.0.0.1",
            "LITHIFY_HTTP_HOST": "127.0.0.1",
            "LITHIFY_HTTP_PORT": ports["http"],
            "SPARK_LOCAL_IP": "127.0.0.1",
            **{name: port for name, port in ports.items() if name.startswith("SPARK_")},
        }
        yield Compose(folder, containers, places, variables, ports)


def test_services_of_spark_run_as_a_user_of_their_own_without_a_compiler(compose: Compose) -> None:
    for name, container in compose.containers.items():
        assert container.run("id", "-u").stdout.strip() == "10001", (name, container.run("id", "-u"))
        for compiler in COMPILERS_OF_SPARK:
            assert container.run("sh", "-c", f"command -v {compiler}").stdout == "", (name, compiler)


def test_master_and_worker_have_a_root_that_is_read_only_and_nothing_of_lithify(compose: Compose) -> None:
    for name in ("master", "worker"):
        refused = compose.containers[name].run("touch", "/opt/new")
        assert "Read-only file system" in refused.stderr, name
        python = compose.containers[name].run("/opt/spark-python/bin/python", "-c", "import compactor")
        assert "No module named 'compactor'" in python.stderr, name


def test_an_instruction_goes_through_the_services_and_its_session_runs_on_the_worker(compose: Compose) -> None:
    made = compose.run("create-stand-ins")
    assert made.returncode == 0, made.stderr
    environment = compose.given("dispatcher")[1]
    lake = DeltaCatalog.open(
        environment["LITHIFY_LAKE"], endpoint_url=environment["LITHIFY_S3_ENDPOINT_URL"], region=REGION
    )
    table = lake.create_table(TABLE)
    table.append({}, pa.table({"id": [1, 2, 3], "value": ["old", "old", "old"]}))
    table.append({}, pa.table({"id": [2, 4], "value": ["new", "new"]}))
    state = open_store(
        parse_location(environment["LITHIFY_STATE"], endpoint_url=environment["LITHIFY_S3_ENDPOINT_URL"], region=REGION)
    )
    records = JobRunStore(state, SystemClock())
    queue = SqsQueue.open(
        environment["LITHIFY_QUEUE_URL"], endpoint_url=environment["LITHIFY_ENDPOINT_URL"], region=REGION
    )
    with ExitStack() as up:
        spark = {name: compose.start(name, up) for name in ("master", "worker")}
        wait_until(
            lambda: any(each.poll() is not None for each in spark.values()) or compose.has_worker(),
            START_SECONDS_MAX,
            every_seconds=0.2,
        )
        ended = [compose.log(name).read_text() for name, process in spark.items() if process.poll() is not None]
        assert not ended, ended
        dispatcher = compose.start("dispatcher", up)
        wait_until(lambda: dispatcher.poll() is not None or compose.is_healthy(), START_SECONDS_MAX, every_seconds=1.0)
        assert dispatcher.poll() is None, compose.log("dispatcher").read_text()
        document = {"schema_version": "1", "job_run_id": "run", "source_table_id": TABLE, "primary_keys": ["id"]}
        queue.send(json.dumps(document))
        ends = (JobRunStatus.SUCCEEDED, JobRunStatus.FAILED)
        wait_until(lambda: records.state("run").status in ends, END_SECONDS_MAX, every_seconds=0.5)
        assert records.state("run").status is JobRunStatus.SUCCEEDED, compose.log("dispatcher").read_text()
        master = compose.master_state()
    assert [each["name"].startswith("lithify-run") for each in (*master["activeapps"], *master["completedapps"])] == [
        True
    ]
    rows = table.scan().to_table().select(["id", "value"]).to_pylist()
    found = sorted((row["id"], row["value"]) for row in rows)
    assert found == [(1, "old"), (2, "new"), (3, "old"), (4, "new")]
