"""The ends of a session, a closed union."""

from logging import ERROR, INFO, WARNING
from typing import Annotated, Literal

from pydantic import Field

from compactor.model.document import Document
from compactor.model.errors import ErrorKind
from compactor.planning.spec import SessionResult


class Succeeded(Document):
    """`result` without its completions, which are in the table's own log."""

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
