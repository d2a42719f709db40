"""Exit codes of Lithify's processes. From the Spark job's the launcher decides what to do next."""

from __future__ import annotations

EXIT_FAILED = 1
"""A service is unavailable, a session failed, or `verify`, `health` or `privacy prove` found something. The sentence on
stderr says what; most can be tried again."""
EXIT_INVALID = 2
"""The input can never work as it stands. Every reason is on stderr: fix it."""
EXIT_FENCED = 3
"""Of the Spark job alone: another compactor has committed to the stream. Nothing is wrong; the launcher plans anew."""
EXIT_INTERRUPTED = 130
"""Ctrl-C. No process is left behind; the same command again goes on, or begins anew."""
