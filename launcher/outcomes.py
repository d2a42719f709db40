"""What can come of a session, a closed union. How it ended is durable (`SessionEnd`); an interruption is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from compactor.document import Document
from compactor.spec import SessionResult


class Succeeded(Document):
    """`result` without its completions, which stand in the session's and the table's own logs."""

    end: Literal["succeeded"] = "succeeded"
    result: SessionResult


class NothingToDo(Document):
    """No delta above the watermark: nothing was launched."""

    end: Literal["nothing_to_do"] = "nothing_to_do"


class Failed(Document):
    """`error_kind` is the class in errors.py, "stalled", "crashed" or "bug". `attempt` 0: none was launched."""

    end: Literal["failed"] = "failed"
    attempt: int
    error_kind: str
    reasons: tuple[str, ...]


class Cancelled(Document):
    end: Literal["cancelled"] = "cancelled"


SessionEnd = Annotated[Succeeded | NothingToDo | Failed | Cancelled, Field(discriminator="end")]


@dataclass(frozen=True)
class Interrupted:
    """The process that watched it drains: the Spark job was stopped, and whoever comes next goes on."""


SessionOutcome = Succeeded | NothingToDo | Failed | Cancelled | Interrupted
