"""How `make test` shares tests among its processes: those of a file run in one, and so do all that need the Spark.

A Spark takes memory, both cores while it starts, and its first job takes longer than most tests: one process has one.
Tests that start a cluster of their own are shared like any others.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling

_STARTS_ITS_OWN = (
    r"test_(?:cores_seen|emr|lake_on_s3|local_cluster|process_deaths|standalone|stopped_executors|streams)\b"
)
_NEEDS_THE_SPARK = re.compile(
    rf"^tests/(?:spark/(?!{_STARTS_ITS_OWN})|golden/test_paper_example\b|contract/test_spark\b)|on_spark\b|\[spark\b"
)
"""Beginnings of paths, the end of a test's name, or its first parameter."""


class ByFileWithOneSpark(LoadFileScheduling):  # type: ignore[misc]
    """A test that the pattern misses starts a second Spark, and is as right."""

    def _split_scope(self, nodeid: str) -> str:
        return "the Spark" if _NEEDS_THE_SPARK.search(nodeid) else str(super()._split_scope(nodeid))
