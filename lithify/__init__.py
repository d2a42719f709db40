"""Lithify compacts tables of a data lake: it applies every upsert and delete through a durable primary key index.

    from lithify import DeltaCatalog, compact

    lake = DeltaCatalog.open("s3://bucket/prefix")
    result = compact("ACME.ORDERS.V1", {"order_id"}, delta_catalog_client=lake)

Importing this loads nothing else: each name is loaded when it is asked for. PySpark is loaded where a session is large
enough for a Spark, boto3 where a lake is on S3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import compactor

if TYPE_CHECKING:
    from compactor import *  # noqa: F403
    from compactor import __version__ as __version__

__all__: list[str] = []
__all__ += compactor.__all__


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(compactor, name)


def __dir__() -> list[str]:
    return sorted(__all__)
