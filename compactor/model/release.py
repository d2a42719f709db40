"""The release of Lithify that runs."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata


@lru_cache(maxsize=1)
def this_release() -> str:
    """Its version; "unknown" if it is not installed: the source folder is on the path."""
    try:
        return metadata.version("lithify")
    except metadata.PackageNotFoundError:
        return "unknown"
