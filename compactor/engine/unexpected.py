"""One sentence for an unexpected error of any engine."""

from __future__ import annotations

import re

_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Iteration)(?::|$)(?<!SparkException:)")


def sentence_of(error: Exception) -> str:
    """One line of an unexpected error: the error that the task raised, without Spark's stack; else its first line."""
    lines = str(error).splitlines()
    raised = [line for line in lines if _RAISED.match(line)]
    return raised[-1] if raised else next(iter(lines), "")
