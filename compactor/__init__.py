"""Lithify's compactor: the catalog of tables and deltas, the primary key index, and the compaction itself.

    from compactor import DeltaCatalog, compact

imports neither PySpark nor botocore; a Spark job that starts, or a lake on S3, loads them. Importing one of the
package's modules imports what that one needs: the names here are loaded when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compactor.api import compact
    from compactor.catalog.table_appends import Delta
    from compactor.lake import DeltaCatalog, Table
    from compactor.model.errors import Conflict, Corrupt, Denied, Fenced, Invalid, LithifyError, Unavailable
    from compactor.planning.spec import JobRunResult, SessionResult
    from compactor.reading.scan import Scan

    __version__: str

__all__ = [
    "Conflict",
    "Corrupt",
    "Delta",
    "DeltaCatalog",
    "Denied",
    "Fenced",
    "Invalid",
    "JobRunResult",
    "LithifyError",
    "Scan",
    "SessionResult",
    "Table",
    "Unavailable",
    "__version__",
    "compact",
]

_ERRORS = ("Conflict", "Corrupt", "Denied", "Fenced", "Invalid", "LithifyError", "Unavailable")
_MODULES = {
    **dict.fromkeys(("JobRunResult", "SessionResult"), "compactor.planning.spec"),
    **dict.fromkeys(("DeltaCatalog", "Table"), "compactor.lake"),
    **dict.fromkeys(_ERRORS, "compactor.model.errors"),
    "Delta": "compactor.catalog.table_appends",
    "compact": "compactor.api",
    "Scan": "compactor.reading.scan",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from compactor.model.machine import this_release

        return this_release()
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
