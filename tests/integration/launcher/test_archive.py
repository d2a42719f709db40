"""The archive of a cluster's workers, packed for a processor and unpacked as an executor does it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.archive import ENVIRONMENT, HOME, MANIFEST, PYTHON, ArchiveManifest, read_manifest
from tests.standalone_spark import FAMILY, packed_once

pytestmark = pytest.mark.long

ARCHIVE_BYTES_MAX = 250_000_000
"""Without a Python."""


@dataclass(frozen=True)
class Unpacked:
    folder: Path
    archive: Path
    manifest: ArchiveManifest

    @property
    def environment(self) -> Path:
        return self.folder / ENVIRONMENT

    def python(self, *arguments: str, **variables: str) -> str:
        """What it writes. A worker knows nothing but the system's commands."""
        environment = {"PATH": os.defpath, "HOME": str(self.folder), **variables}
        done = subprocess.run(
            [PYTHON, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory, folder_of_the_run: Path) -> Unpacked:
    folder = tmp_path_factory.mktemp("worker")
    packed = packed_once(folder_of_the_run)
    with tarfile.open(packed) as archive:
        archive.extractall(folder / ENVIRONMENT, filter="fully_trusted")
    return Unpacked(folder, packed, read_manifest(packed))


def test_kernels_are_compiled_in_the_archive_for_the_processors_that_it_was_made_for(unpacked: Unpacked) -> None:
    assert (unpacked.manifest.cpu, unpacked.manifest.platform) == (FAMILY, f"linux-{platform.machine()}")
    loaded = unpacked.python("-m", "compactor.kernels.warm", NUMBA_DEBUG_CACHE="1")
    assert len(re.findall(rf"\[cache\] data loaded from '{unpacked.environment}/", loaded)) > 10
    assert re.findall(r"\[cache\] data saved", loaded) == []
    assert not list(unpacked.environment.rglob("pyspark"))


def test_the_manifest_has_the_size_of_what_is_in_the_archive_which_is_small(unpacked: Unpacked) -> None:
    before_python = 0
    with unpacked.archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:gz") as archive:
        files = []
        for each in archive:
            if each.name == HOME:
                before_python = raw.tell()
            if each.isfile() and each.name != MANIFEST:
                files.append(each.size)
    assert (unpacked.manifest.files, unpacked.manifest.bytes) == (len(files), sum(files))
    assert 0 < before_python <= ARCHIVE_BYTES_MAX


PROGRAM_OF_A_WORKER = """
import bz2, ctypes, lzma, sqlite3, ssl, sys, zlib
import boto3, numba, obstore, pyarrow.dataset, pyarrow.parquet
import compactor.api, compactor.steps.dedupe
mapped = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if " /" in line}
files = {module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
print(sys.version_info[:2])
print(*sorted(mapped | files), sep="\\n")
"""
OF_THE_SYSTEM = re.compile(r"/(?:ld-linux|lib(?:c|m|dl|rt|util|pthread|resolv)\.so|locale/|gconv/)")


def test_an_archive_may_bring_its_python_so_that_workers_need_none(unpacked: Unpacked) -> None:
    assert unpacked.manifest.with_python
    release, *used = unpacked.python("-c", PROGRAM_OF_A_WORKER).splitlines()
    assert release == str(sys.version_info[:2])
    own = unpacked.environment
    assert [each for each in used if not Path(each).is_relative_to(own) and not OF_THE_SYSTEM.search(each)] == []
    assert any(each.startswith(f"{own}/python/bin/python") for each in used)
