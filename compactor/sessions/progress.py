"""Progress of a job run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compactor.model.names import PartitionValues
from compactor.sessions.session_log import Heartbeat


@dataclass(frozen=True)
class SessionProgress:
    """One progress report.

    number, sessions  the number of the session among those with work, and their count
    heartbeat         its progress; None: it starts, and perhaps a Spark for it
    waits_for         the session that has its stream, if it waits for the end of that one; then `number` and
                      `sessions` count the waiting sessions
    """

    number: int
    sessions: int
    partition: PartitionValues
    heartbeat: Heartbeat | None
    waits_for: str | None = None


Listener = Callable[[SessionProgress], None]
"""Called from any thread; must return quickly. Its errors are logged and have no other effect."""
