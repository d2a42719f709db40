"""Lithify's compactor: the catalog of tables and deltas, the primary key index, and the compaction itself.

    from compactor import DeltaCatalog, compact

imports neither PySpark nor boto3; they are loaded when a Spark job starts or a lake on S3 is opened. Importing one of
the package's modules imports what that one needs: the two names here are loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compactor.api import compact
    from compactor.lake import DeltaCatalog

__all__ = ["DeltaCatalog", "compact"]


def __getattr__(name: str) -> object:
    if name == "compact":
        from compactor.api import compact

        return compact
    if name == "DeltaCatalog":
        from compactor.lake import DeltaCatalog

        return DeltaCatalog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
