"""Distinguishes the attempts of one task.

Spark runs a task again when it has lost contact with the first attempt, and with speculation when the first attempt is
slow; both may then write at the same time. So each attempt writes under its own names, and none can replace, truncate
or delete the files of another.
"""

from __future__ import annotations

from compactor.model.clock import Clock

TASK_ATTEMPT_DIGITS = 16


def new_task_attempt(clock: Clock) -> str:
    """A new name for this attempt: hexadecimal digits. Call it where the task runs, not where it is planned."""
    return clock.new_id()[:TASK_ATTEMPT_DIGITS]
