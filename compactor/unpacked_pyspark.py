"""Lets Python import PySpark from where it is installed rather than from Spark's archives.

Spark puts `pyspark.zip` and Py4J's archive first on the path of its driver and of its workers. They hold source code
alone, so every process compiles it anew: 0.4 s of the start of a driver, and as much of its workers'. Where pip has
installed the same release, its compiled modules are used.
"""

from __future__ import annotations

import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path

_ARCHIVE = re.compile(r"pyspark\.zip|py4j-.*\.zip")
_VERSION = re.compile(rb"""^__version__[^=]*=\s*["'](?P<version>[^"']+)["']""", re.MULTILINE)


def prefer_unpacked_pyspark() -> None:
    """Moves Spark's archives behind the rest of `sys.path`, to be called before PySpark is imported.

    Changes nothing where no PySpark is installed, or another release than the archive's.
    """
    archives = [entry for entry in sys.path if _ARCHIVE.fullmatch(Path(entry).name)]
    packed = [version for archive in archives if (version := _packed_version(archive)) is not None]
    if packed and packed == [_installed_version()]:
        sys.path[:] = [entry for entry in sys.path if entry not in archives] + archives


def _installed_version() -> str | None:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return None


def _packed_version(archive: str) -> str | None:
    """Of the PySpark in an archive; None: it holds none, or cannot be read."""
    try:
        with zipfile.ZipFile(archive) as opened:
            found = _VERSION.search(opened.read("pyspark/version.py"))
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    return None if found is None else found["version"].decode()
