"""The guarantees of every `Callbacks`: in memory, and Step Functions on moto's server and on ministack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Protocol

import pytest

from compactor.model.errors import Invalid, Unavailable
from dispatcher.aws.step_functions import StepFunctionsCallbacks
from dispatcher.records.result import Failure, Success
from dispatcher.workflow.callbacks import (
    CAUSE_CHARACTERS_MAX,
    ERROR_CHARACTERS_MAX,
    OUTPUT_BYTES_MAX,
    Callbacks,
    Reception,
)
from tests.fakes.memory_callbacks import MemoryCallbacks
from tests.servers import REGION
from tests.waiting import wait_until
from tests.workflows import WAITS, StepFunctions, ministack_workflows, moto_workflows


class Waiting(Protocol):
    """A service and what waits in it."""

    @property
    def callbacks(self) -> Callbacks: ...

    def begin(self) -> str:
        """A task that waits: its token."""

    def outcome(self, token: str) -> object:
        """The task's result: its parsed output, or (error,)."""


class InMemory:
    def __init__(self) -> None:
        self.callbacks = MemoryCallbacks()
        self._begun = 0

    def begin(self) -> str:
        self._begun += 1
        return self.callbacks.begin(f"token-{self._begun}")

    def outcome(self, token: str) -> object:
        match self.callbacks.answers[token]:
            case Success(output):
                return json.loads(output)
            case Failure(error):
                return (error,)


class InStepFunctions:
    """Executions whose only state waits for an answer."""

    def __init__(self, services: StepFunctions) -> None:
        self.callbacks = StepFunctionsCallbacks.open(endpoint_url=services.endpoint_url, region=REGION)
        self._services = services
        self._queue_url = services.create_queue()
        self._machine = services.create_state_machine(WAITS, queue_url=self._queue_url)
        self._executions: dict[str, str] = {}

    def begin(self) -> str:
        execution = self._services.start(self._machine, {})
        token: str = self._services.receive(self._queue_url)["task_token"]
        self._executions[token] = execution
        # moto sends the token before it listens for heartbeats.
        wait_until(lambda: self.callbacks.send_heartbeat(token) is Reception.TAKEN, 10)
        return token

    def outcome(self, token: str) -> object:
        ended = self._services.await_end(self._executions[token])
        return json.loads(ended["output"]) if ended["status"] == "SUCCEEDED" else (ended["error"],)


@pytest.fixture(scope="module")
def moto_services() -> Iterator[StepFunctions]:
    with moto_workflows() as services:
        yield services


@pytest.fixture(scope="module")
def ministack_services() -> Iterator[StepFunctions]:
    with ministack_workflows() as services:
        yield services


@pytest.fixture(
    params=[
        "memory",
        pytest.param("moto_services", marks=pytest.mark.servers),
        pytest.param("ministack_services", marks=pytest.mark.servers),
    ]
)
def service(request: pytest.FixtureRequest) -> Waiting:
    return InMemory() if request.param == "memory" else InStepFunctions(request.getfixturevalue(request.param))


def test_a_task_that_is_told_of_a_success_has_its_output(service: Waiting) -> None:
    token = service.begin()
    assert service.callbacks.send_heartbeat(token) is Reception.TAKEN
    assert service.callbacks.succeed(token, '{"rows_out": 5, "reasons": ["ü"]}') is Reception.TAKEN
    assert service.outcome(token) == {"rows_out": 5, "reasons": ["ü"]}


def test_a_task_that_is_told_of_a_failure_has_its_error(service: Waiting) -> None:
    token = service.begin()
    assert service.callbacks.fail(token, "Lithify.JobRunFailed", '{"reasons": []}') is Reception.TAKEN
    assert service.outcome(token) == ("Lithify.JobRunFailed",)


def test_a_token_that_was_answered_is_gone(service: Waiting) -> None:
    token = service.begin()
    service.callbacks.succeed(token, "{}")
    service.outcome(token)
    assert service.callbacks.send_heartbeat(token) is Reception.GONE
    assert service.callbacks.succeed(token, "{}") is Reception.GONE  # moto takes any number of failures


def test_a_token_that_never_was_is_gone(service: Waiting) -> None:
    assert service.callbacks.send_heartbeat("never handed out") is Reception.GONE
    assert service.callbacks.succeed("never handed out", "{}") is Reception.GONE


def test_the_largest_answers_are_taken_and_larger_ones_refused(service: Waiting) -> None:
    callbacks = service.callbacks
    with pytest.raises(Invalid, match="output"):
        callbacks.succeed(service.begin(), json.dumps("x" * OUTPUT_BYTES_MAX))
    for error, cause in (("E" * (ERROR_CHARACTERS_MAX + 1), ""), ("E", "x" * (CAUSE_CHARACTERS_MAX + 1))):
        with pytest.raises(Invalid, match=r"error|cause"):
            callbacks.fail(service.begin(), error, cause)
    assert callbacks.succeed(service.begin(), json.dumps("x" * (OUTPUT_BYTES_MAX - 2))) is Reception.TAKEN
    longest = service.begin()
    assert callbacks.fail(longest, "E" * ERROR_CHARACTERS_MAX, "x" * CAUSE_CHARACTERS_MAX) is Reception.TAKEN


def test_a_service_that_does_not_answer_is_unavailable_and_its_error_does_not_name_the_token() -> None:
    callbacks = StepFunctionsCallbacks.open(endpoint_url="http://127.0.0.1:9", region=REGION)
    with pytest.raises(Unavailable) as refused:
        callbacks.send_heartbeat("a-secret-token")
    assert "a-secret-token" not in str(refused.value)
