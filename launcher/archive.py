"""Packs the environment that a cluster's Python workers run in: Lithify's compiled code and its dependencies.

    lithify-archive.json      its content, and where it can run
    bin/python                starts a Python with the packages below
    lib/python3.11/           the packages, and `compactor`
    python/                   with `--with-python`, for workers that have none: this environment's interpreter, its
                              standard library, and the shared libraries that these and the packages need, except
                              for the C library, which must be the machine's own

Spark unpacks it beside each executor (`spark.archives`, `PYSPARK_PYTHON=./environment/bin/python`). It contains neither
PySpark nor Spark: those are the cluster's. Unless it contains a Python, a worker needs one of the same release as the
packing machine's, by its usual name (`python3.11`) or at the same path.

Kernels are compiled here for one processor; workers with another one compile them again at their start, for half a
minute. A `cpu` that names a family (`x86-64-v3`) is valid for the whole family.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from isal import igzip
from pydantic import ValidationError

from compactor.model.document import Document
from compactor.model.errors import Invalid

HOME = "python"
"""Name of the archive's folder that is the home of its Python."""

RELEASE = f"python{sys.version_info.major}.{sys.version_info.minor}"
PROGRAM = f"{HOME}/bin/{RELEASE}"

_NOT_COPIED = re.compile(
    r"^(?:site-packages|dist-packages|test|idlelib|tkinter|turtledemo|ensurepip|lib2to3|config-[^/]*)(?:/|$)"
    r"|(?:^|/)(?:tests?|__pycache__)/|^lib-dynload/_tkinter|\.(?:a|exe)$"
)
_OF_THE_C_LIBRARY = re.compile(
    r"^(?:linux-vdso|linux-gate|ld-linux|lib(?:c|m|dl|rt|util|pthread|resolv|nss_[a-z]+|anl|mvec)\.so)"
)
_FOUND = re.compile(r"^\s*(?P<name>\S+) => (?P<path>/\S+)", re.MULTILINE)


def copy_python(root: Path) -> None:
    """`root`: of an archive that has its packages. Raises `Invalid` on a system without `ldd`."""
    interpreter = base_python().resolve()
    program, libraries = root / PROGRAM, root / HOME / "lib"
    _copy_file(interpreter, program)
    _copy_tree(Path(sysconfig.get_path("stdlib")), libraries / RELEASE, _NOT_COPIED)
    needed: dict[str, Path] = {}
    for binary in (interpreter, *(each for each in sorted(root.rglob("*.so*")) if each.is_file())):
        for name, path in _libraries_of(binary):
            if not path.is_relative_to(root) and not _OF_THE_C_LIBRARY.match(name):
                needed.setdefault(name, path)
    for name, path in needed.items():
        shutil.copy2(path.resolve(), libraries / name)


def base_python() -> Path:
    """The interpreter on which this environment is based."""
    named = Path(sys.base_prefix) / "bin" / RELEASE
    return named if named.exists() else Path(sys.executable).resolve()


def _copy_tree(source: Path, target: Path, left_out: re.Pattern[str] | None) -> None:
    """`left_out`: the files whose paths below the source match."""
    for file in source.rglob("*"):
        inside = str(file.relative_to(source))
        if left_out is None or left_out.search(inside) is None:
            _copy_file(file, target / inside)


def _copy_file(source: Path, target: Path) -> None:
    """Does nothing for what is no file."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _libraries_of(binary: Path) -> Iterator[tuple[str, Path]]:
    """Name and place of each shared library that the loader of this system takes for it."""
    try:
        listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise Invalid("--with-python needs ldd, which this system lacks: make the archive on Linux") from error
    for found in _FOUND.finditer(listed):
        yield found["name"], Path(found["path"])


ENVIRONMENT = "environment"
"""Name of the folder in which a Spark job unpacks the archive."""

PYTHON = f"./{ENVIRONMENT}/bin/python"
MANIFEST = "lithify-archive.json"
THIS_CPU = "native"
CODE = "compactor"
LIBRARY = f"lib/{RELEASE}"
PROJECT = "lithify"
NOT_PACKED = frozenset({"pyspark", "py4j"})
"""Packages that the cluster has itself."""

_COMPRESS_LEVEL = 2
_LEFT_OUT = re.compile(r"(?:^|/)(?:tests?|testing|include)(?:/|$)|\.(?:pyi|pyx|pxd|c|cc|cpp|h|a)$")
_COMPILED_KERNEL = re.compile(r"\.nb[ci]$")
_NEEDED_ANYWAY = re.compile(r"^(?:numpy/testing|numba/testing|numpy/_core/tests/_natype\.py)")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)")

_PYTHON_SCRIPT = """\
#!/bin/sh
# Made by `lithify archive`: the machine's own Python {version}, with the packages beside this file.
{here}{cpu}for python in {candidates}; do
    if command -v "$python" >/dev/null 2>&1; then
        PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/{library}" exec "$python" -s "$@"
    fi
done
echo "Lithify's archive needs Python {version} on this machine: there is none of {named}" >&2
exit 127
"""


_OWN_PYTHON_SCRIPT = """\
#!/bin/sh
# Made by `lithify archive --with-python`: the Python {version} and the packages beside this file.
{here}{cpu}PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/{library}" PYTHONHOME="$here/{home}" \\
    LD_LIBRARY_PATH="$here/{home}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" exec "$here/{program}" -s "$@"
"""

_HERE = 'here=$(cd "$(dirname "$0")/.." && pwd -P) || exit 127\n'


class ArchiveManifest(Document):
    """The content of an archive, and where it can run.

    Attributes:
        python: release of Python that it runs on, `3.11`; with_python: it contains it
        platform: system and processor
        cpu: what kernels were compiled for
        spark: release of Spark where it was packed, `4.0`; None: there was none
        packages: name and version of each
        files, bytes: before they were compressed"""

    format: int = 1
    lithify: str
    python: str
    platform: str
    cpu: str
    spark: str | None
    packages: dict[str, str]
    files: int
    bytes: int
    with_python: bool = False


@dataclass(frozen=True)
class Packed:
    """The result of packing. `archive_bytes`: compressed."""

    path: Path
    manifest: ArchiveManifest
    archive_bytes: int


def pack_archive(target: Path, scratch: Path, cpu: str = THIS_CPU, *, with_python: bool = False) -> Packed:
    """Write the archive of the installed environment. `scratch`: an empty folder, of about 0.6 GB.

    Args:
        with_python: for workers without one, whose C library is at least as new as this machine's

    Raises `Invalid` if the environment is incomplete, or kernels cannot be compiled for `cpu`."""
    root = scratch / ENVIRONMENT
    packages = dict(sorted(_needed(PROJECT).items()))
    for name in packages:
        _copy_package(name, root / LIBRARY)
    # This process's own code, installed or linked, with the kernels that are compiled already if they are for this CPU.
    own_code = Path(__file__).resolve().parents[1] / CODE
    _copy_tree(own_code, root / LIBRARY / CODE, None if cpu == THIS_CPU else _COMPILED_KERNEL)
    if with_python:
        copy_python(root)
    _write_python(root / "bin" / "python", cpu, with_python=with_python)
    _compile_all(root)
    files = [each for each in sorted(root.rglob("*")) if each.is_file()]
    manifest = ArchiveManifest(
        lithify=metadata.version(PROJECT),
        python=python_release(),
        platform=f"{sys.platform}-{platform.machine()}",
        cpu=cpu,
        spark=_release(_installed("pyspark")),
        packages=packages,
        files=len(files),
        bytes=sum(each.stat().st_size for each in files),
        with_python=with_python,
    )
    _write_tar(target, root, manifest)
    return Packed(target, manifest, target.stat().st_size)


def read_manifest(archive: Path) -> ArchiveManifest:
    """Raises `Invalid` for a file that is not an archive of Lithify."""
    try:
        with archive.open("rb") as opened:
            return manifest_in(opened, str(archive), f"make one with `lithify archive {archive}`")
    except OSError as error:
        raise Invalid(f"{archive} cannot be read: {error.strerror or error}") from error


def manifest_in(archive: BinaryIO, name: str, make_one: str) -> ArchiveManifest:
    """The manifest of an archive, of which the beginning suffices. Raises `Invalid` if it is none of Lithify's."""
    try:
        with tarfile.open(fileobj=archive, mode="r|*") as opened:
            first = opened.next()
            body = opened.extractfile(first) if first is not None and first.name == MANIFEST else None
            if body is None:
                raise Invalid(f"{name} is no archive of Lithify's: {make_one}")
            return ArchiveManifest.model_validate_json(body.read())
    except (tarfile.TarError, EOFError) as error:
        raise Invalid(f"{name} is no archive, or a part of one: {make_one}") from error
    except ValidationError as error:
        raise Invalid(f"{name} is of another release of Lithify, by its {MANIFEST}: {make_one}") from error


def check_archive(archive: Path, spark_release: str | None) -> tuple[str, ...]:
    """Reasons why this driver's sessions cannot run with an archive, a sentence each.

    Args:
        spark_release: of the driver's Spark, `4.0`; None: not known"""
    if not archive.is_file():
        return (f"there is no archive {archive}: make one with `lithify archive {archive}`",)
    try:
        found = read_manifest(archive)
    except Invalid as error:
        return error.reasons
    wrong = []
    if found.python != python_release():
        wrong.append(
            f"{archive} is for Python {found.python}, and this is {python_release()}: both need the same; "
            f"make another with `lithify archive {archive}`"
        )
    if found.lithify != metadata.version(PROJECT):
        wrong.append(
            f"{archive} holds Lithify {found.lithify}, and this is {metadata.version(PROJECT)}: "
            f"make another with `lithify archive {archive}`"
        )
    if spark_release is not None and found.spark not in (None, spark_release):
        wrong.append(
            f"{archive} was made beside Spark {found.spark}, and the driver's is {spark_release}: "
            f"make another where the driver runs, with `lithify archive {archive}`"
        )
    return tuple(wrong)


def python_release() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def spark_release_of(spark_home: Path) -> str | None:
    """`4.0`, from the PySpark in a Spark installation; None: unknown."""
    for place in (spark_home / "python" / "pyspark" / "version.py", spark_home / "version.py"):
        try:
            found = re.search(r"__version__[^=]*= *[\"'](?P<version>[^\"']+)", place.read_text())
        except OSError:
            continue
        if found is not None:
            return _release(found["version"])
    return None


def _release(version: str | None) -> str | None:
    return None if version is None else ".".join(version.split(".")[:2])


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _needed(name: str, seen: dict[str, str] | None = None) -> Mapping[str, str]:
    """The transitive dependencies of a package with their versions, without extras."""
    seen = {} if seen is None else seen
    for requirement in metadata.requires(name) or ():
        found = _REQUIREMENT.match(requirement)
        marker = requirement.partition(";")[2]
        if found is None or "extra ==" in marker:
            continue
        needed = re.sub(r"[-_.]+", "-", found["name"]).lower()
        version = _installed(needed)
        if needed in seen or needed in NOT_PACKED:
            continue
        if version is None:
            if marker:  # for another system, or another Python
                continue
            raise Invalid(f"{name} needs the package {needed}, which is not installed: install Lithify anew")
        seen[needed] = version
        _needed(needed, seen)
    return seen


def _copy_package(name: str, lib: Path) -> None:
    files = metadata.files(name)
    if files is None:
        raise Invalid(f"the package {name} does not say which files are its own: install it with pip")
    for file in files:
        inside = PurePosixPath(file)
        is_left_out = _LEFT_OUT.search(str(inside)) is not None and _NEEDED_ANYWAY.match(str(inside)) is None
        if inside.is_absolute() or ".." in inside.parts or is_left_out:
            continue
        _copy_file(Path(str(file.locate())), lib / inside)


def _write_python(path: Path, cpu: str, *, with_python: bool) -> None:
    """`cpu`: numba compiles for it, and loads what was compiled for it, if its name is in the environment."""
    candidates = ('"${LITHIFY_PYTHON:-' + RELEASE + '}"', shlex.quote(str(base_python())), RELEASE)
    for_cpu = "" if cpu == THIS_CPU else f"export NUMBA_CPU_NAME={shlex.quote(cpu)} NUMBA_CPU_FEATURES=\n"
    path.parent.mkdir(parents=True)
    path.write_text(
        (_OWN_PYTHON_SCRIPT if with_python else _PYTHON_SCRIPT).format(
            version=python_release(),
            here=_HERE,
            library=LIBRARY,
            cpu=for_cpu,
            candidates=" ".join(candidates),
            named=f"{RELEASE}, {base_python()}; LITHIFY_PYTHON names another place",
            home=HOME,
            program=PROGRAM,
        )
    )
    path.chmod(0o755)


def _compile_all(root: Path) -> None:
    """Compiles our modules to bytecode, and kernels to machine code, as a worker would; compiled ones are reused."""
    environment = {"PATH": os.defpath, "HOME": str(root.parent)}
    code = str(root / LIBRARY / CODE)
    for arguments in (["-m", "compileall", "-q", code], ["-m", "compactor.kernels.warm"]):
        command = [str(root / "bin" / "python"), *arguments]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Invalid(f"the packed environment does not run: {done.stderr.strip()[-1_000:]}")


def _write_tar(target: Path, root: Path, manifest: ArchiveManifest) -> None:
    """Writes the manifest first, so that it can be read without unpacking. Atomic.

    Times are in nanoseconds: Python and numba use compiled code only for a source of the same time.
    """
    (root / MANIFEST).write_text(json.dumps(json.loads(manifest.model_dump_json()), indent=1) + "\n")
    target.parent.mkdir(parents=True, exist_ok=True)
    written = target.with_name(f"{target.name}.part")
    try:
        with (
            written.open("wb") as raw,
            igzip.IGzipFile(  # type: ignore[no-untyped-call]
                fileobj=raw, mode="wb", compresslevel=_COMPRESS_LEVEL, mtime=0
            ) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name in (MANIFEST, "bin", "lib", HOME):
                if (root / name).exists():
                    tar.add(root / name, name)
        written.replace(target)
    except OSError as error:
        raise Invalid(f"{target} cannot be written: {error.strerror}") from error
    finally:
        written.unlink(missing_ok=True)
