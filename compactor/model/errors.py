"""The few kinds of error, each named by what its reader must do.

Every edge (S3, SQS, Spark, PyArrow) translates its library's errors into one of these, once. Any other exception is a
bug in Lithify and keeps its traceback.
"""

from collections.abc import Callable, Sequence
from enum import Enum, StrEnum, auto
from typing import ClassVar, ParamSpec, Self

Given = ParamSpec("Given")


class AnotherTry(Enum):
    """Whether a session gets another attempt after one that failed with an error of a given kind."""

    NEVER = auto()
    """It can never work."""
    LATER = auto()
    """A service was unavailable, denied access, or had no capacity: tried again for hours."""
    WITH_A_NEW_PLAN = auto()
    """Another compactor was faster, nothing is wrong: tried again with a new plan."""
    A_FEW_TIMES = auto()
    """It may succeed the next time."""


class ErrorKind(StrEnum):
    """How an attempt, a session or a call failed. The values are in logs and events: none may change.

    A kind that this release does not know keeps its spelling and is tried a few times.
    """

    INVALID = "Invalid"
    CORRUPT = "Corrupt"
    CONFLICT = "Conflict"
    UNAVAILABLE = "Unavailable"
    DENIED = "Denied"
    OUTDATED = "Outdated"
    FENCED = "Fenced"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASHED = "crashed"
    """Its process exited without recording an outcome."""
    STALLED = "stalled"
    """It made no progress, and was stopped."""
    BUG = "bug"
    """An exception that no code expects."""

    @property
    def another_try(self) -> AnotherTry:
        return _ANOTHER_TRY.get(self, AnotherTry.A_FEW_TIMES)

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown


_ANOTHER_TRY = {
    ErrorKind.INVALID: AnotherTry.NEVER,
    ErrorKind.CORRUPT: AnotherTry.NEVER,
    ErrorKind.CONFLICT: AnotherTry.LATER,
    ErrorKind.UNAVAILABLE: AnotherTry.LATER,
    ErrorKind.DENIED: AnotherTry.LATER,
    ErrorKind.OUTDATED: AnotherTry.LATER,
    ErrorKind.FENCED: AnotherTry.WITH_A_NEW_PLAN,
}


class LithifyError(Exception):
    """Base of all errors that a caller is expected to handle. Each reason is one clear sentence for a person."""

    kind: ClassVar[ErrorKind] = ErrorKind.BUG

    result: object | None = None
    """The `JobRunResult` if `compact()` could compact only some of the partitions; else None."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)

    def __str__(self) -> str:
        return "; ".join(self.reasons)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of the message: several if several defects were found at once."""
        return self.args


class Invalid(LithifyError):
    """The input can never work as it stands: fix the instruction, the argument or the file. Exit code 2."""

    kind = ErrorKind.INVALID


class Conflict(LithifyError):
    """Another writer wrote first: read again, then retry."""

    kind = ErrorKind.CONFLICT


class Unavailable(LithifyError):
    """A service did not answer, or is overloaded: retry later. The outcome of a write is unknown."""

    kind = ErrorKind.UNAVAILABLE


class Denied(Unavailable):
    """Credentials or rights are missing or expired, or the clock is wrong: fix them. Until then it is tried again.

    Never the fault of a document or a file: code that retries after `Unavailable` retries after this too.
    """

    kind = ErrorKind.DENIED


class Outdated(Unavailable):
    """The data was written by a newer release of Lithify: upgrade this process, or leave the work to a newer one.

    Nothing is wrong with the data; code that retries after `Unavailable` retries after this too.
    """

    kind = ErrorKind.OUTDATED


class OutOfMemory(LithifyError):
    """A process ran out of memory, or was killed as if it had: give it less work at a time, or more memory."""

    kind = ErrorKind.OUT_OF_MEMORY


class Fenced(LithifyError):
    """Another owner has taken over this work: stop, and write nothing more."""

    kind = ErrorKind.FENCED


class Corrupt(LithifyError):
    """Durable data is damaged: alert an operator. Never retried, and nothing is deleted."""

    kind = ErrorKind.CORRUPT


REASONS_SHOWN_MAX = 20
"""Reasons that are reported for many files or rows: the first ones are enough to fix them."""


def refuse_if(reasons: Sequence[str], shown_max: int | None = None) -> None:
    """Raises `Invalid` with these reasons, if there are any; beyond `shown_max` only their number."""
    left_out = 0 if shown_max is None else len(reasons) - shown_max
    if left_out > 0:
        reasons = (*reasons[:shown_max], f"and {left_out:,} more reason{'s' if left_out > 1 else ''}")
    if reasons:
        raise Invalid(*reasons)


def reasons_of(check: Callable[Given, object], *args: Given.args, **named: Given.kwargs) -> tuple[str, ...]:
    """The reasons of the `Invalid` that the check raises; none if it raises none."""
    try:
        check(*args, **named)
    except Invalid as error:
        return error.reasons
    return ()


def kind_of(error: BaseException) -> ErrorKind:
    """The kind to record in logs and events; `BUG` for an exception that is not a `LithifyError`."""
    return error.kind if isinstance(error, LithifyError) else ErrorKind.BUG


def reason_of(error: BaseException) -> str:
    """The sentence to record: of an exception that is not a `LithifyError`, with its name."""
    return str(error) if isinstance(error, LithifyError) else f"{type(error).__name__}: {error}"


# Exit codes of the processes. From the Spark job's the launcher decides what to do next.

EXIT_FAILED = 1
"""A service is unavailable, a session failed, or `verify`, `health` or `privacy prove` found something. The sentence on
stderr says what; most can be tried again."""
EXIT_INVALID = 2
"""The input can never work as it stands. Every reason is on stderr: fix it."""
EXIT_FENCED = 3
"""Of the Spark job alone: another compactor has committed to the stream. Nothing is wrong; the launcher plans anew."""
EXIT_INTERRUPTED = 130
"""Ctrl-C. No process is left behind; the same command again goes on, or begins anew."""
