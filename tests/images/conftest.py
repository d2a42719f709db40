"""Images, built by buildah without a daemon, and processes in them: as root, since a root file system is mounted."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
BASE = os.environ.get("BASE", "")
BUILD_OPTIONS = shlex.split(os.environ.get("BUILD_OPTIONS", ""))
STORE = Path(os.environ.get("IMAGES", REPOSITORY / ".images")).absolute()
BUILDAH = ["buildah", "--storage-driver", "vfs", "--root", f"{STORE}/storage", "--runroot", f"{STORE}/run"]

DEBOOTSTRAP = "debootstrap"
SUITE, PACKAGES = "bookworm", "ca-certificates,python3,python3-venv"

RUN = """\
set -eu
root=$1; volumes=$2; user=$3; folder=$4; mode=$5; shift 5
mount --bind "$root" "$root"
mount -o "remount,bind,$mode" "$root"
for volume in "$volumes"/*; do
    [ -e "$volume" ] || continue  # it has none
    mount --bind "$volume" "$root/$(basename "$volume" | tr : /)"
done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot --userspec="$user" "$root" /usr/bin/env --chdir="$folder" --ignore-environment "$@"
"""
"""Mounts are gone, and every process is killed, when the one that `unshare` started ends."""


@dataclass(frozen=True)
class Container:
    """An image's files, read-only but for its volumes, which last as long as this object's folder.

    config       as in the image: Env, User, Entrypoint, ...
    volumes      a folder for each of its volumes
    is_writable  so is its root
    """

    root: Path
    config: Mapping[str, Any]
    volumes: Path
    is_writable: bool = False

    def command(self, *words: str, variables: Mapping[str, str] | None = None, enters: bool = False) -> list[str]:
        """Runs `words` as the image says: its user, its variables. `enters`: by its entry point."""
        environment = dict(each.split("=", 1) for each in self.config["Env"]) | dict(variables or {})
        program = [*(self.config["Entrypoint"] if enters else ()), *words]
        unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        place = [str(self.root), str(self.volumes), self.config["User"], self.config["WorkingDir"]]
        place.append("rw" if self.is_writable else "ro")
        return [*unshared, "sh", "-c", RUN, "run", *place, *(f"{k}={v}" for k, v in environment.items()), *program]

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
        command = self.command(*words, **options)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def buildah(*words: str) -> str:
    done = subprocess.run([*BUILDAH, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout.strip()


@pytest.fixture(scope="session")
def base() -> str:
    """The name of the base image: $BASE, or one made by debootstrap and kept."""
    if BASE != DEBOOTSTRAP:
        return BASE
    name = f"localhost/lithify-base-{SUITE}"
    if name not in buildah("images", "--format", "{{.Name}}").splitlines():
        files = STORE / "base"
        shutil.rmtree(files, ignore_errors=True)
        options = ["--variant=minbase", f"--include={PACKAGES}", SUITE, str(files)]
        subprocess.run([DEBOOTSTRAP, *options], check=True, stdout=subprocess.DEVNULL)
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, str(files), "/")
        buildah("commit", "--quiet", "--format", "docker", container, name)
        buildah("rm", container)
        shutil.rmtree(files)
    return name


def build(dockerfile: str, base: str, *options: str, argument: str = "BASE", name: str | None = None) -> str:
    """The name of the image. A Docker image: OCI's own form knows no health check.

    argument  of the Dockerfile, which `base` is given as
    """
    image = f"localhost/lithify-{name or dockerfile.partition('.')[0]}"
    of_base = ["--build-arg", f"{argument}={base}"] if base else []
    how = ["--isolation", "chroot", "--network", "host", "--format", "docker"]
    file = REPOSITORY / "docker" / dockerfile
    buildah("build", *how, *of_base, *options, *BUILD_OPTIONS, "--file", str(file), "--tag", image, str(REPOSITORY))
    return image


@contextmanager
def opened(image: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The files of an image and its configuration."""
    config = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    container = buildah("from", "--pull-never", image)
    try:
        yield Path(buildah("mount", container)), config
    finally:
        buildah("rm", container)


def with_new_volumes(
    root: Path, config: Mapping[str, Any], folder: Path, more: Sequence[str] = (), *, is_writable: bool = False
) -> Container:
    """Volumes have the owner and the mode of the image's own folders, as an engine makes them.

    more  volumes beside those that the image has
    """
    folder.mkdir()
    # As an engine writes it: Java asks for the address of the machine's own name.
    (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    for volume in (*(config.get("Volumes") or {}), *more):
        there, made = root / volume.strip("/"), folder / volume.strip("/").replace("/", ":")
        made.mkdir(parents=True)
        os.chown(made, there.stat().st_uid, there.stat().st_gid)
        made.chmod(there.stat().st_mode & 0o7777)
    return Container(root, config, folder, is_writable)


@pytest.fixture(scope="session")
def dispatcher_files(base: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    with opened(build("dispatcher.Dockerfile", base)) as files:
        yield files


@pytest.fixture
def dispatcher(dispatcher_files: tuple[Path, Mapping[str, Any]], tmp_path: Path) -> Container:
    """A container of the dispatcher's image."""
    return with_new_volumes(*dispatcher_files, tmp_path / "volumes")


@pytest.fixture(scope="session")
def standalone_spark_image(base: str) -> str:
    """The stage `spark`, which knows nothing of Lithify."""
    options = ("--target", "spark")
    return build("spark.Dockerfile", base, *options, argument="PYTHON_BASE", name="standalone-spark")


@pytest.fixture(scope="session")
def spark_image(standalone_spark_image: str) -> str:
    """On the image of the stage before: buildah takes a base that an argument names for an image, never for a stage."""
    return build("spark.Dockerfile", standalone_spark_image)
