"""The outcomes of a session, a closed union. Its end is durable (`SessionEnd`); an interruption is not."""

from __future__ import annotations

from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from typing import Annotated, Literal

from pydantic import Field

from compactor.model.document import Document
from compactor.model.errors import ErrorKind
from compactor.planning.spec import SessionResult


class Succeeded(Document):
    """`result` without its completions, which are in the session's and the table's own logs."""

    end: Literal["succeeded"] = "succeeded"
    result: SessionResult


class NothingToDo(Document):
    """No delta above the watermark, and no file to clean of dead rows: nothing was launched."""

    end: Literal["nothing_to_do"] = "nothing_to_do"


class Failed(Document):
    """`attempt` 0: none was launched."""

    end: Literal["failed"] = "failed"
    attempt: int
    error_kind: ErrorKind
    reasons: tuple[str, ...]


class Cancelled(Document):
    end: Literal["cancelled"] = "cancelled"


SessionEnd = Annotated[Succeeded | NothingToDo | Failed | Cancelled, Field(discriminator="end")]


def level_of(end: str) -> int:
    """The level of a log line about the end of a session or a job run: the severity of its event."""
    return {"failed": ERROR, "cancelled": WARNING}.get(end, INFO)


@dataclass(frozen=True)
class Interrupted:
    """The dispatcher stopped watching it: the next one continues.

    left_running  its Spark job may still run, to be attached; False: nothing of it runs
    """

    left_running: bool = False


@dataclass(frozen=True)
class Postponed:
    """An attempt has failed, or may not be launched now: the next one must not begin before `seconds` have passed."""

    seconds: float


SessionOutcome = Succeeded | NothingToDo | Failed | Cancelled | Interrupted | Postponed
