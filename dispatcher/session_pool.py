"""Which session runs next, and the threads that run them: so many at a time, over all job runs.

Never two sessions of one destination stream at the same time in this dispatcher: the second could only find that the
first had moved the stream. Between dispatchers the stream's log decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from compactor.names import PartitionValues
from compactor.object_store import StoreLocation

StreamName = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class WaitingSession:
    """A session that is to run.

    priority         its job run's: higher first
    accepted_at_ms   its job run's: earlier first
    not_before       monotonic seconds before which it is not started again
    """

    job_run_id: str
    session_id: str
    destination: StreamName
    priority: int
    accepted_at_ms: int
    not_before_seconds: float = 0.0

    @property
    def rank(self) -> tuple[int, int, str]:
        return (-self.priority, self.accepted_at_ms, self.session_id)


def stream_name(lake: StoreLocation, table_id: str, partition: PartitionValues) -> StreamName:
    """What two sessions must not share."""
    return (lake.root_uri, table_id, tuple(sorted(partition.items())))


def choose(
    waiting: Iterable[WaitingSession], running: Iterable[WaitingSession], slots: int, now_seconds: float
) -> tuple[WaitingSession, ...]:
    """The sessions to start now: the first in rank whose stream is free, as many as there are slots. Pure."""
    busy = {session.destination for session in running}
    chosen: list[WaitingSession] = []
    for session in sorted(waiting, key=lambda each: each.rank):
        if len(chosen) >= slots:
            break
        if session.destination not in busy and session.not_before_seconds <= now_seconds:
            busy.add(session.destination)
            chosen.append(session)
    return tuple(chosen)


class SessionPool:
    """Runs sessions in threads. Used from one thread."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._threads = ThreadPoolExecutor(max_sessions, thread_name_prefix="session")
        self._waiting: dict[tuple[str, str], WaitingSession] = {}
        self._running: dict[tuple[str, str], tuple[WaitingSession, Future[None]]] = {}

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        return len(self._running)

    def has_room(self) -> bool:
        """Whether one more session would be started soon."""
        return self.waiting_count + self.running_count < self._max_sessions

    def add(self, session: WaitingSession) -> None:
        self._waiting[session.job_run_id, session.session_id] = session

    def forget(self, job_run_id: str) -> tuple[WaitingSession, ...]:
        """Take a job run's waiting sessions out, and answer them."""
        forgotten = tuple(session for session in self._waiting.values() if session.job_run_id == job_run_id)
        for session in forgotten:
            del self._waiting[job_run_id, session.session_id]
        return forgotten

    def runs(self, job_run_id: str, session_id: str | None = None) -> bool:
        """Whether this session of a job run is in a thread; without a session id: whether any of its sessions is."""
        if session_id is not None:
            return (job_run_id, session_id) in self._running
        return any(running_id == job_run_id for running_id, _ in self._running)

    def start(self, run: Callable[[WaitingSession], None], now_seconds: float) -> None:
        """Start what can be started."""
        running = [session for session, _ in self._running.values()]
        slots = self._max_sessions - len(running)
        for session in choose(self._waiting.values(), running, slots, now_seconds):
            key = (session.job_run_id, session.session_id)
            del self._waiting[key]
            self._running[key] = (session, self._threads.submit(run, session))

    def finished(self) -> tuple[tuple[WaitingSession, BaseException | None], ...]:
        """Sessions whose thread is done, each with what it raised; every one is answered once."""
        done = [(key, session, future) for key, (session, future) in self._running.items() if future.done()]
        for key, _, _ in done:
            del self._running[key]
        return tuple((session, future.exception()) for _, session, future in done)

    def close(self) -> None:
        """Wait for the threads. Whoever runs in one must have been told to stop."""
        self._threads.shutdown(wait=True)
