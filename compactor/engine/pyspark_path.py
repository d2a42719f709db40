"""Lets Python import the installed PySpark rather than Spark's archives of it.

Spark puts `pyspark.zip` and Py4J's archive first on the path of its driver and of its workers. They hold source code
only, so every driver and worker compiles it again when it starts. If pip has installed the same release, its compiled
modules are used.
"""

import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path

_ARCHIVE = re.compile(r"pyspark\.zip|py4j-.*\.zip")
_VERSION = re.compile(rb"""^__version__[^=]*=\s*["'](?P<version>[^"']+)["']""", re.MULTILINE)


def prefer_unpacked_pyspark() -> None:
    """Moves Spark's archives to the end of `sys.path`; must be called before PySpark is imported.

    Does nothing if no PySpark is installed, or another release than the archive's.
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
    """The version of the PySpark in an archive; None if it holds none or cannot be read."""
    try:
        with zipfile.ZipFile(archive) as opened:
            found = _VERSION.search(opened.read("pyspark/version.py"))
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    return None if found is None else found["version"].decode()
