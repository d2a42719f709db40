"""The service of waiting workflows (AWS Step Functions): callbacks by task token, and the length of an execution.

A token names one try of one task of one execution. The service takes heartbeats with it, and one answer: a success or a
failure. After that, or after the task's time-out, the token is unknown.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

OUTPUT_BYTES_MAX = 262_144
ERROR_CHARACTERS_MAX = 256
CAUSE_CHARACTERS_MAX = 32_768
"""Limits that Step Functions sets on answers."""


class Reception(StrEnum):
    """The service's reply to a heartbeat or an answer."""

    TAKEN = "taken"
    GONE = "gone"
    """The token is not waited for any more: it was answered, has timed out, or its execution has ended."""


class Callbacks(Protocol):
    """Every method raises `Denied` for credentials and rights, `Unavailable` if the service does not answer or
    throttles, and `Invalid` for a permanently refused request. No error contains the token."""

    def send_heartbeat(self, task_token: str) -> Reception:
        """The task continues: restarts its heartbeat time-out."""

    def succeed(self, task_token: str, output: str) -> Reception:
        """The task has succeeded; `output` is JSON, of at most `OUTPUT_BYTES_MAX` bytes."""

    def fail(self, task_token: str, error: str, cause: str) -> Reception:
        """The task has failed. `error` is what a workflow catches, of at most `ERROR_CHARACTERS_MAX` characters;
        `cause` is for people, of at most `CAUSE_CHARACTERS_MAX`."""


@dataclass(frozen=True)
class ExecutionLength:
    """
    events in its history so far: the service ends an execution at 25,000

    Attributes:
        started_at_ms: by the service's clock"""

    events: int
    started_at_ms: int


class Executions(Protocol):
    def length(self, execution_arn: str) -> ExecutionLength:
        """Raises `Denied` and `Unavailable` as `Callbacks` do, and `Invalid` if there is no such execution."""


class Workflows(Callbacks, Executions, Protocol):
    """A service with both."""
