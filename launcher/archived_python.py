"""Copies this environment's Python into an archive, for workers that have none: interpreter, standard library, and the
shared libraries that these and the packages need, except for the C library, which must be the machine's own.

    python/bin/python3.11    the interpreter
    python/lib/python3.11/   the standard library
    python/lib/              shared libraries
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from compactor.model.errors import Invalid

HOME = "python"
"""Name of the archive's folder that is the home of its Python."""

RELEASE = f"python{sys.version_info.major}.{sys.version_info.minor}"
PROGRAM = f"{HOME}/bin/{RELEASE}"

_LEFT_OUT = re.compile(
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
    program.parent.mkdir(parents=True)
    shutil.copy2(interpreter, program)
    _copy_standard_library(Path(sysconfig.get_path("stdlib")), libraries / RELEASE)
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


def _copy_standard_library(source: Path, target: Path) -> None:
    for file in source.rglob("*"):
        inside = file.relative_to(source)
        if file.is_file() and _LEFT_OUT.search(str(inside)) is None:
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target / inside)


def _libraries_of(binary: Path) -> Iterator[tuple[str, Path]]:
    """Name and place of each shared library that the loader of this system takes for it."""
    try:
        listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise Invalid("--with-python needs ldd, which this system lacks: make the archive on Linux") from error
    for found in _FOUND.finditer(listed):
        yield found["name"], Path(found["path"])
