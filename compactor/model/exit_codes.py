"""Exit codes of Lithify's processes. From the Spark job's the launcher decides what to do next."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_INVALID = 2
"""The input can never work."""
EXIT_FENCED = 3
"""Of the Spark job: another compactor has committed to the stream. Nothing is wrong; a new plan is needed."""
EXIT_INTERRUPTED = 130
"""Of the command: Ctrl-C, by the convention of shells."""
