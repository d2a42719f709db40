"""The archive of a cluster's workers, packed for a processor and unpacked as an executor does it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.archive import ENVIRONMENT, PYTHON, ArchiveManifest, pack_archive, read_manifest

pytestmark = pytest.mark.slow

FAMILY = "x86-64-v3" if platform.machine() == "x86_64" else "neoverse-n1"
"""A family of processors to which those of EMR's nodes belong."""


@dataclass(frozen=True)
class Unpacked:
    folder: Path
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
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    folder = tmp_path_factory.mktemp("worker")
    packed = pack_archive(folder / "lithify.tar.gz", folder / "scratch", FAMILY, with_python=True)
    with tarfile.open(packed.path) as archive:
        archive.extractall(folder / ENVIRONMENT, filter="fully_trusted")
    shutil.rmtree(folder / "scratch")
    return Unpacked(folder, read_manifest(packed.path))


def test_kernels_are_compiled_in_the_archive_for_the_processors_that_it_was_made_for(unpacked: Unpacked) -> None:
    assert (unpacked.manifest.cpu, unpacked.manifest.platform) == (FAMILY, f"linux-{platform.machine()}")
    loaded = unpacked.python("-m", "compactor.kernels.warm", NUMBA_DEBUG_CACHE="1")
    assert len(re.findall(rf"\[cache\] data loaded from '{unpacked.environment}/", loaded)) > 10
    assert re.findall(r"\[cache\] data saved", loaded) == []
    assert not list(unpacked.environment.rglob("pyspark"))


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
