"""Writes down how a session goes: facts into the session log, progress into the heartbeat beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from compactor.catalog.actions import RoundCommitted
from compactor.catalog.log import DurableLog, LogState
from compactor.catalog.paths import SessionFolder
from compactor.clock import Clock
from compactor.errors import Fenced, Unavailable
from compactor.object_store import ObjectStore
from compactor.session_log import (
    SESSION_LOG,
    ExpectedSlaChanged,
    Heartbeat,
    IndexMoved,
    RoundDone,
    SessionAction,
    SessionFailed,
    SessionStarted,
    SessionState,
    SessionSucceeded,
)
from compactor.spec import SessionResult

POLL_SECONDS = 1.0

TasksDone = Callable[[], int]
"""How many tasks of the step that is running are done; asked from the journal's own thread."""


class SessionJournal:
    """The `SessionReport` of an attempt that is watched from elsewhere. A context manager: inside it the heart beats.

    A heartbeat is written only when something has moved since the last one, so a job that hangs is seen to hang.
    Who was fenced writes none any more: it would cover that of who took over.
    """

    def __init__(self, store: ObjectStore, folder: SessionFolder, attempt: int, clock: Clock) -> None:
        self._store = store
        self._folder = folder
        self._attempt = attempt
        self._clock = clock
        self._log: DurableLog[SessionState, SessionAction] = DurableLog(store, folder.log, SESSION_LOG, clock)
        self._tasks_done: TasksDone = lambda: 0
        self._beat = Heartbeat(
            attempt=attempt,
            at_ms=0,
            round_number=0,
            rounds=0,
            step="starting",
            tasks_done=0,
            tasks=0,
            rows_done=0,
            rows=0,
        )
        self._written: Heartbeat | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)

    def count_tasks_with(self, tasks_done: TasksDone) -> None:
        """From now on progress within a step is asked of `tasks_done`."""
        self._tasks_done = tasks_done

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if not isinstance(error, Fenced):
            self._write_heartbeat()

    def started(self, rounds_done: int, rounds: int, rows: int, expected_sla: float) -> None:
        self._append(SessionStarted(attempt=self._attempt, rounds=rounds, expected_sla=expected_sla))
        self._move(round_number=rounds_done, rounds=rounds, rows=rows, step="planned")

    def step_started(self, round_number: int, rounds: int, step: str, tasks: int) -> None:
        self._move(round_number=round_number, rounds=rounds, step=step, tasks=tasks, tasks_done=0)

    def rehashed(self, entry_number: int, hash_bucket_count: int) -> None:
        self._append(IndexMoved(attempt=self._attempt, entry_number=entry_number, hash_bucket_count=hash_bucket_count))

    def round_done(self, entry_number: int, completion: RoundCommitted, seconds: float) -> None:
        self._append(
            RoundDone(
                attempt=self._attempt,
                round_number=completion.round_number,
                rounds=completion.rounds,
                entry_number=entry_number,
                counts=completion.counts,
                seconds=seconds,
            )
        )
        self._move(step="committed", rows_done=self._beat.rows_done + rows_arrived(completion))

    def expected_sla_changed(self, before: float, now: float) -> None:
        self._append(ExpectedSlaChanged(attempt=self._attempt, before=before, now=now))

    def succeeded(self, result: SessionResult) -> None:
        self._append(SessionSucceeded(attempt=self._attempt, result=result))

    def failed(self, error_kind: str, reasons: tuple[str, ...]) -> None:
        self._append(SessionFailed(attempt=self._attempt, error_kind=error_kind, reasons=reasons))

    def _append(self, action: SessionAction) -> None:
        def decide(before: LogState[SessionState]) -> tuple[SessionAction, ...]:
            if before.state.attempt > self._attempt:
                raise Fenced(f"attempt {self._attempt} was superseded by attempt {before.state.attempt} and stops")
            return (action,)

        self._log.append(decide)

    def _move(self, **changes: int | str) -> None:
        with self._lock:
            self._beat = self._beat.model_copy(update={**changes, "at_ms": self._clock.now_ms()})

    def _keep_beating(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            done = self._tasks_done()
            if done != self._beat.tasks_done:
                self._move(tasks_done=done)
            self._write_heartbeat()

    def _write_heartbeat(self) -> None:
        beat = self._beat
        if beat == self._written:
            return
        try:
            self._store.overwrite(self._folder.heartbeat.key, beat.render())
            self._written = beat
        except Unavailable:
            # A hint that is missed is made up for by the next one; the facts are in the log.
            return


def rows_arrived(completion: RoundCommitted) -> int:
    """Delta rows that a round took in: all rows in, less those that were compacted before it."""
    return completion.counts.rows_in - completion.counts.rows_before
