"""The few kinds of error, named by what the reader has to do about them.

Every edge (S3, SQS, Spark, PyArrow) translates its library's errors into one of these, once. Anything else that is
raised is a bug in Lithify and keeps its traceback.
"""

from __future__ import annotations


class LithifyError(Exception):
    """Base of all errors a caller is expected to handle. The message is one clear sentence for a person."""


class Invalid(LithifyError):
    """The input can never work as it stands: fix the instruction, the argument or the file. Exit code 2."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons: tuple[str, ...] = reasons


class Conflict(LithifyError):
    """Somebody else wrote first: read again, then retry."""


class Unavailable(LithifyError):
    """A service did not answer, or answered that it cannot now: retry later. The outcome of a write is unknown."""


class Fenced(LithifyError):
    """Another owner has taken over this work: stop, write nothing more."""


class Corrupt(LithifyError):
    """Durable data is not what it must be: wake somebody. Never retried, nothing is deleted."""
