"""The archive of a cluster's workers, packed for a processor and unpacked as an executor does it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from launcher.archive import ENVIRONMENT, PYTHON, pack_archive, read_manifest

pytestmark = pytest.mark.slow

FAMILY = "x86-64-v3" if platform.machine() == "x86_64" else "neoverse-n1"
"""A family of processors to which those of EMR's nodes belong."""


def test_kernels_are_compiled_in_the_archive_for_the_processors_that_it_was_made_for(tmp_path: Path) -> None:
    packed = pack_archive(tmp_path / "lithify.tar.gz", tmp_path / "scratch", FAMILY)
    manifest = read_manifest(packed.path)
    assert (manifest.cpu, manifest.platform.endswith("x86_64")) == (FAMILY, not is_of_arm_processor())
    with tarfile.open(packed.path) as archive:
        archive.extractall(tmp_path / ENVIRONMENT, filter="fully_trusted")
    # A worker knows nothing but its machine's own Python.
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "NUMBA_DEBUG_CACHE": "1"}
    command = [PYTHON, "-m", "compactor.kernels.warm"]
    loaded = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert len(re.findall(rf"\[cache\] data loaded from '{tmp_path}/{ENVIRONMENT}/", loaded)) > 10
    assert re.findall(r"\[cache\] data saved", loaded) == []
    assert not list((tmp_path / ENVIRONMENT).rglob("pyspark"))


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


def test_an_archive_may_bring_its_python_so_that_workers_need_none(tmp_path: Path) -> None:
    packed = pack_archive(tmp_path / "lithify.tar.gz", tmp_path / "scratch", with_python=True)
    assert read_manifest(packed.path).with_python
    with tarfile.open(packed.path) as archive:
        archive.extractall(tmp_path / ENVIRONMENT, filter="fully_trusted")
    environment = {"PATH": os.defpath, "HOME": str(tmp_path)}
    command = [PYTHON, "-c", PROGRAM_OF_A_WORKER]
    release, *used = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert release == str(sys.version_info[:2])
    own = tmp_path / ENVIRONMENT
    assert [each for each in used if not Path(each).is_relative_to(own) and not OF_THE_SYSTEM.search(each)] == []
    assert any(each.startswith(f"{own}/python/bin/python") for each in used)


def is_of_arm_processor() -> bool:
    return platform.machine() in ("aarch64", "arm64")
