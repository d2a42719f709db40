"""Answers task tokens of AWS Step Functions, and reads the length of its executions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from botocore.exceptions import ClientError

from compactor.model.errors import Denied, Invalid, LithifyError
from compactor.storage.aws.boto import known_region, open_client
from compactor.storage.aws.failures import translated
from dispatcher.workflow.callbacks import (
    CAUSE_CHARACTERS_MAX,
    ERROR_CHARACTERS_MAX,
    OUTPUT_BYTES_MAX,
    ExecutionLength,
    Reception,
)

if TYPE_CHECKING:
    from mypy_boto3_stepfunctions import SFNClient

_GONE = frozenset({"InvalidToken", "TaskDoesNotExist", "TaskTimedOut"})


class StepFunctionsCallbacks:
    """`Callbacks` and `Executions`. Its client is made with the first call: most dispatchers answer no workflow."""

    def __init__(self, open_client: Callable[[], SFNClient]) -> None:
        self._open_client = open_client
        self._lock = threading.Lock()
        self._client: SFNClient | None = None

    @classmethod
    def open(cls, *, endpoint_url: str | None = None, region: str | None = None) -> Self:
        """`region`: that of the workflows, since a token does not contain it; None: the environment's."""

        def open_now() -> SFNClient:
            found = known_region(region, endpoint_url, "no AWS region is known for Step Functions")
            failure = "Step Functions cannot be reached"
            client: SFNClient = open_client(
                "stepfunctions", failure, found, endpoint_url, tries=2, connect_seconds=2, read_seconds=5
            )
            return client

        return cls(open_now)

    def send_heartbeat(self, task_token: str) -> Reception:
        return self._tell(task_token, lambda client: client.send_task_heartbeat(taskToken=task_token))

    def succeed(self, task_token: str, output: str) -> Reception:
        _refuse_more_than(len(output.encode()), OUTPUT_BYTES_MAX, "output", "bytes")
        return self._tell(task_token, lambda client: client.send_task_success(taskToken=task_token, output=output))

    def fail(self, task_token: str, error: str, cause: str) -> Reception:
        _refuse_more_than(len(error), ERROR_CHARACTERS_MAX, "error", "characters")
        _refuse_more_than(len(cause), CAUSE_CHARACTERS_MAX, "cause", "characters")
        return self._tell(
            task_token, lambda client: client.send_task_failure(taskToken=task_token, error=error, cause=cause)
        )

    def length(self, execution_arn: str) -> ExecutionLength:
        with self._translated("") as client:
            started = client.describe_execution(executionArn=execution_arn)["startDate"]
            newest = client.get_execution_history(executionArn=execution_arn, reverseOrder=True, maxResults=1)
        events = max((event["id"] for event in newest["events"]), default=0)
        return ExecutionLength(events, round(started.timestamp() * 1000))

    def _tell(self, task_token: str, call: Callable[[SFNClient], object]) -> Reception:
        with self._translated(task_token) as client:
            try:
                call(client)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code", "").rsplit("#", 1)[-1] not in _GONE:
                    raise
                return Reception.GONE
        return Reception.TAKEN

    @contextmanager
    def _translated(self, task_token: str) -> Iterator[SFNClient]:
        """The client, while it is used. An error does not quote the token, whatever the service answers."""
        try:
            with self._lock:
                if self._client is None:
                    self._client = self._open_client()
                client = self._client
            with translated("Step Functions refuses a request"):
                yield client
        except LithifyError as error:
            if isinstance(error, Denied):
                with self._lock:  # botocore reads the credentials file once: a new client reads it again
                    self._client = None
            sentence = str(error).replace(task_token, "<task token>") if task_token else str(error)
            raise type(error)(sentence) from None


def _refuse_more_than(size: int, size_max: int, noun: str, unit: str) -> None:
    if size > size_max:
        raise Invalid(f"Step Functions takes no {noun} of {size:,} {unit}: at most {size_max:,}")
