"""How `make test` shares tests among its processes: those of a file run in one, and so do all that need the Spark.

A Spark takes memory, both cores while it starts, and its first job takes longer than most tests: one process has one.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling

_NEEDS_THE_SPARK = re.compile(r"^tests/(spark|golden/test_paper_example|contract/test_spark)\b|on_spark\b|\[spark\b")
"""Beginnings of paths, the end of a test's name, or its first parameter."""


class ByFileWithOneSpark(LoadFileScheduling):  # type: ignore[misc]
    """A test that the pattern misses starts a second Spark, and is as right."""

    def _split_scope(self, nodeid: str) -> str:
        return "the Spark" if _NEEDS_THE_SPARK.search(nodeid) else str(super()._split_scope(nodeid))
