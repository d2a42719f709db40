"""Lithify compacts tables of a data lake: it applies every upsert and delete through a durable primary key index.

    from lithify import DeltaCatalog, compact

    lake = DeltaCatalog.open("s3://bucket/prefix")
    result = compact("ACME.ORDERS.V1", {"order_id"}, delta_catalog_client=lake)

Importing this loads nothing else: each name is loaded when it is asked for. PySpark is loaded where a session is large
enough for a Spark, boto3 where a lake is on S3.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compactor.api import compact
    from compactor.lake import DeltaCatalog, Table
    from compactor.model.errors import Conflict, Corrupt, Denied, Fenced, Invalid, LithifyError, Unavailable
    from compactor.planning.spec import JobRunResult, SessionFailure, SessionResult

    __version__: str

__all__ = [
    "Conflict",
    "Corrupt",
    "DeltaCatalog",
    "Denied",
    "Fenced",
    "Invalid",
    "JobRunResult",
    "LithifyError",
    "SessionFailure",
    "SessionResult",
    "Table",
    "Unavailable",
    "__version__",
    "compact",
]

_MODULES = {
    "compact": "compactor.api",
    "DeltaCatalog": "compactor.lake",
    "Table": "compactor.lake",
    "JobRunResult": "compactor.planning.spec",
    "SessionFailure": "compactor.planning.spec",
    "SessionResult": "compactor.planning.spec",
}
"""Of each name its module; all others are errors."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("compactor.model.release").this_release()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "compactor.model.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
