"""Records the course of a session: facts in the session log, progress in the heartbeat beside it.

An attempt is fenced here: once a later one has begun in the session log, `Fenced` is raised in place of each entry.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Self

from compactor.catalog.actions import IndexRehashed, RoundCommitted
from compactor.log.durable_log import DurableLog, LogState
from compactor.log_context import LOG, operator_log
from compactor.model.background import BackgroundLoop, SharedLoop, SharedWork, soon
from compactor.model.clock import Clock
from compactor.model.errors import ErrorKind, Fenced, LithifyError, reason_of
from compactor.planning.session_streams import Commit
from compactor.planning.spec import SessionResult
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import (
    SESSION_LOG,
    ExpectedSlaChanged,
    Heartbeat,
    IndexMoved,
    RoundDone,
    SessionAction,
    SessionFailed,
    SessionLogState,
    SessionStarted,
    SessionSucceeded,
)
from compactor.storage.object_store import ObjectStore

POLL_SECONDS = 1.0
"""Interval between two reads of the attempt's progress, which listeners in this process get."""

WRITE_SECONDS = 10.0
"""Least interval between two writes of the heartbeat: readers read as often."""

HeartbeatListener = Callable[[Heartbeat], None]
"""Receives each heartbeat in this process, before it is written. It must not raise."""

Count = Callable[[], int]
"""A progress count; read from the journal's own thread."""


class SessionJournal:
    """The `SessionReport` of an attempt that is watched by other processes. A context manager that writes heartbeats.

    A heartbeat is written only after progress, so that a job that hangs is detected; and at most every `WRITE_SECONDS`,
    except for the last one. A fenced attempt writes none any more: it would overwrite that of its successor.

    On an object store, the entries of a start and of a round are written while the session goes on with its reads.
    `settled` waits for them before the session's next durable write, so a fenced attempt commits nothing after it. The
    error of such a write is raised there, or by the next entry, whichever comes first.

    Args:
        is_brief: the attempt is a small one: if it ends before the first heartbeat is due, none is written
        beats: from which its heartbeats come; None: from a thread of its own"""

    def __init__(
        self,
        store: ObjectStore,
        folder: SessionFolder,
        attempt: int,
        clock: Clock,
        poll_seconds: float = POLL_SECONDS,
        *,
        on_heartbeat: HeartbeatListener = lambda _: None,
        is_brief: bool = False,
        beats: SharedLoop | None = None,
    ) -> None:
        self.attempt = attempt
        self._is_brief = is_brief
        self._store = store
        self._folder = folder
        self._clock = clock
        self._on_heartbeat = on_heartbeat
        self._log: DurableLog[SessionLogState, SessionAction] = DurableLog(store, folder.log, SESSION_LOG, clock)
        self._tasks_done: Count = _none
        self._rows_in_tasks: Count = _none
        self._done: Count = _none
        self._unwritten: tuple[RoundDone, ...] = ()
        self._last_beat: Future[None] | None = None
        self._pending: Future[None] | None = None
        self._read = 0
        self._rows_reported: Callable[[int], None] = lambda _: None
        self._watch: Callable[[], None] = lambda: None
        self._beat = Heartbeat(
            attempt=attempt,
            at_ms=clock.now_ms(),
            round_number=0,
            rounds=0,
            step="starting",
            tasks_done=0,
            tasks=0,
            rows_done=0,
            rows=0,
        )
        self._share_done: float | None = None
        self._written: Heartbeat | None = None
        self._write_due_seconds = float("-inf")
        self._lock = threading.Lock()
        self._beating: BackgroundLoop | SharedWork = (
            BackgroundLoop("heartbeat", self.beat, poll_seconds) if beats is None else SharedWork(beats, self.beat)
        )

    def count_with(self, tasks_done: Count, rows_in_tasks: Count) -> None:
        """Sets the sources of progress within a step: the number of done tasks, and of rows that running tasks have
        reported."""
        self._tasks_done, self._rows_in_tasks = tasks_done, rows_in_tasks

    def follow(self, rows_reported: Callable[[int], None], watch: Callable[[], None]) -> None:
        """Sets the function that is called when tasks have reported more rows, and the one of every heartbeat."""
        self._rows_reported, self._watch = rows_reported, watch

    def __enter__(self) -> Self:
        self._beating.__enter__()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._beating.end()
        wait([each for each in (self._pending, self._last_beat) if each is not None])
        if not self._is_unseen() and not isinstance(error, Fenced):
            self._write_heartbeat()

    def _is_unseen(self) -> bool:
        """Whether the session is over so soon that nobody has seen a heartbeat."""
        return self._is_brief and self._written is None

    def started(self, rounds_done: int, rounds: int, rows: int, expected_sla: float) -> None:
        self._append_meanwhile(SessionStarted(attempt=self.attempt, rounds=rounds, expected_sla=expected_sla))
        operator_log("session_started", rounds_done=rounds_done, rounds=rounds, rows=rows, expected_sla=expected_sla)
        self._move(round_number=rounds_done, rounds=rounds, rows=rows, step="planned")

    def found(self, commits: Sequence[Commit]) -> None:
        """Logs commits that their own attempt did not log because it crashed."""
        if not commits:
            return
        self._append_if(lambda state: [self._late_entry(*each) for each in commits if each[0] not in state.told])

    def reading(self, step: str, of: int) -> None:
        """`step` reads `of` objects next; `read_one` is called for each."""
        self._read = 0
        self._done = lambda: self._read
        self._move(step=step, tasks=of, tasks_done=0)

    def read_one(self) -> None:
        self._read += 1

    def step_started(self, round_number: int, rounds: int, step: str, tasks: int) -> None:
        self._done = self._tasks_done
        self._move(round_number=round_number, rounds=rounds, step=step, tasks=tasks, tasks_done=0)

    def rehashed(self, entry_number: int, hash_bucket_count: int) -> None:
        self._append(IndexMoved(attempt=self.attempt, entry_number=entry_number, hash_bucket_count=hash_bucket_count))

    def round_done(self, entry_number: int, completion: RoundCommitted, seconds: float) -> None:
        """The last round is written with the session's end, in the next entry: one request less to wait for."""
        done = RoundDone(
            attempt=self.attempt,
            round_number=completion.round_number,
            rounds=completion.rounds,
            entry_number=entry_number,
            counts=completion.counts,
            seconds=seconds,
        )
        if completion.round_number == completion.rounds:
            self._unwritten = (done,)
        else:
            self._append_meanwhile(done)
        self._done = _none
        done_rows = self._beat.rows_done + rows_arrived(completion)
        self._move(step="committed", tasks=0, tasks_done=0, rows_done=done_rows)

    def expected_sla_changed(self, before: float, now: float) -> None:
        self._append(ExpectedSlaChanged(attempt=self.attempt, before=before, now=now))

    def share_done(self, share: float) -> None:
        """For the next heartbeat: what it follows from, a step or rows, is progress that has one anyway."""
        self._share_done = share

    def succeeded(self, result: SessionResult) -> None:
        """The entry has no completions: the table's own log has them, and they hold bounds of its rows.

        On an object store the last heartbeat is written meanwhile: both say that the last round is committed.
        """
        if self._store.location.is_remote and self._beating.is_running:
            self._beating.end()
            self.settled()
            if not self._is_unseen():
                self._last_beat = soon(self._write_heartbeat)
        without_completions = result.model_copy(update={"completions": ()})
        self._append(SessionSucceeded(attempt=self.attempt, result=without_completions))

    def failed(self, error_kind: ErrorKind, reasons: tuple[str, ...]) -> None:
        try:
            self.settled()
        except Fenced:
            raise
        except LithifyError:  # this entry is tried all the same: it says why the session failed
            self._pending = None
        self._append(SessionFailed(attempt=self.attempt, error_kind=error_kind, reasons=reasons))

    def settled(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _append_meanwhile(self, action: SessionAction) -> None:
        self.settled()
        if self._store.location.is_remote:
            self._pending = soon(partial(self._write, lambda _: (action,)))
        else:
            self._append(action)

    def _append(self, action: SessionAction) -> None:
        self._append_if(lambda _: (action,))

    def _append_if(self, choose: Callable[[SessionLogState], Sequence[SessionAction]]) -> None:
        self.settled()
        self._write(choose)

    def _write(self, choose: Callable[[SessionLogState], Sequence[SessionAction]]) -> None:
        def decide(before: LogState[SessionLogState]) -> Sequence[SessionAction]:
            if before.state.attempt > self.attempt:
                raise Fenced(f"attempt {self.attempt} was superseded by attempt {before.state.attempt} and stops")
            return (*self._unwritten, *choose(before.state))

        # Other writers are rare: the last entry read or written is the log's end, or the number is taken.
        self._log.append(decide, self._log.newest)
        self._unwritten = ()

    def _late_entry(self, entry_number: int, commit: RoundCommitted | IndexRehashed) -> SessionAction:
        if isinstance(commit, IndexRehashed):
            return IndexMoved(
                attempt=self.attempt, entry_number=entry_number, hash_bucket_count=commit.hash_bucket_count
            )
        return RoundDone(
            attempt=self.attempt,
            round_number=commit.round_number,
            rounds=commit.rounds,
            entry_number=entry_number,
            counts=commit.counts,
            seconds=sum(step.seconds for step in commit.steps.values()),
        )

    def _move(self, **changes: int | str) -> None:
        with self._lock:
            update = {**changes, "share_done": self._share_done, "at_ms": self._clock.now_ms()}
            self._beat = self._beat.model_copy(update=update)
        self._on_heartbeat(self._beat)

    def beat(self) -> None:
        """Notes the progress, and writes it if a heartbeat is due. For the journal's own thread."""
        try:
            done, rows = self._done(), self._rows_in_tasks()
            self._watch()
            more_rows = rows != self._beat.rows_in_tasks
            if more_rows:
                self._rows_reported(rows)
            if more_rows or done != self._beat.tasks_done:
                self._move(tasks_done=done, rows_in_tasks=rows)
        except Exception as error:  # noqa: BLE001  (a watcher would take silence for a stall)
            LOG.warning("heartbeat_failed", reason=reason_of(error))
        if self._clock.monotonic_seconds() >= self._write_due_seconds:
            self._write_heartbeat()

    def _write_heartbeat(self) -> None:
        beat = self._beat
        if beat == self._written:
            return
        try:
            self._store.overwrite(self._folder.heartbeat.key, beat.render())
            self._written = beat
            self._write_due_seconds = self._clock.monotonic_seconds() + WRITE_SECONDS
        except Exception as error:  # noqa: BLE001  (a hint: the next one makes up for it, and the facts are in the log)
            LOG.warning("heartbeat_not_written", reason=reason_of(error))


def _none() -> int:
    return 0


def rows_arrived(completion: RoundCommitted) -> int:
    """The delta rows of a round: all rows in, minus those that were compacted before."""
    return completion.counts.rows_in - completion.counts.rows_before
