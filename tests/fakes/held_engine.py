"""The in-process engine, held between a round's steps and its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compactor.engine.in_process import InProcessEngine, InProcessExchange


class HeldEngine(InProcessEngine):
    """Calls `before_commit` after all steps of a round: there a test waits, or ends the session by an error."""

    def __init__(self, before_commit: Callable[[], None]) -> None:
        super().__init__()
        self._before_commit = before_commit

    @contextmanager
    def exchange(self, spare_scratch_bytes: int | None = None) -> Iterator[InProcessExchange]:
        with super().exchange(spare_scratch_bytes) as exchange:
            yield exchange
        self._before_commit()
