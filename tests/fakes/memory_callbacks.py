"""`Callbacks` in memory, for tests. Obeys tests/contract/test_callbacks.py as Step Functions' stand-ins do."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from compactor.model.errors import Invalid, Unavailable
from dispatcher.records.result import Failure, Success
from dispatcher.workflow.callbacks import (
    CAUSE_CHARACTERS_MAX,
    ERROR_CHARACTERS_MAX,
    OUTPUT_BYTES_MAX,
    Reception,
)


@dataclass
class MemoryCallbacks:
    """`begin` starts a task that waits; `give_up` is its time-out. `error`: raised by every call while it is set;
    `loses_answers`: calls that are carried out but whose answer is lost."""

    error: Exception | None = None
    loses_answers: int = 0
    waiting: set[str] = field(default_factory=set)
    beats: Counter[str] = field(default_factory=Counter)
    answers: dict[str, Success | Failure] = field(default_factory=dict)
    calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, task_token: str) -> str:
        with self._lock:
            self.waiting.add(task_token)
        return task_token

    def give_up(self, task_token: str) -> None:
        with self._lock:
            self.waiting.discard(task_token)

    def send_heartbeat(self, task_token: str) -> Reception:
        return self._answer(task_token, None)

    def succeed(self, task_token: str, output: str) -> Reception:
        if len(output.encode()) > OUTPUT_BYTES_MAX:
            raise Invalid("the output is too large")
        return self._answer(task_token, Success(output))

    def fail(self, task_token: str, error: str, cause: str) -> Reception:
        if len(error) > ERROR_CHARACTERS_MAX or len(cause) > CAUSE_CHARACTERS_MAX:
            raise Invalid("the error or its cause is too long")
        return self._answer(task_token, Failure(error, cause))

    def _answer(self, task_token: str, answer: Success | Failure | None) -> Reception:
        with self._lock:
            self.calls += 1
            if self.error is not None:
                raise self.error
            if task_token not in self.waiting:
                return Reception.GONE
            if answer is None:
                self.beats[task_token] += 1
            else:
                self.waiting.discard(task_token)
                self.answers[task_token] = answer
            if self.loses_answers:
                self.loses_answers -= 1
                raise Unavailable("the answer was lost")
            return Reception.TAKEN
