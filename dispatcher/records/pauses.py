"""Pauses of everything, tables or job runs: one object each in the state's store, which all dispatchers obey.

No dispatcher starts a new session of a paused table or job run. Running sessions continue to their end, with all of
their rounds. The next attempt of a failed session counts as new. Messages are received and accepted as before. No
notification is needed: a dispatcher reads the pauses before it starts a session.
"""

from collections.abc import Sequence

from compactor.log.durable_log import DurableLog, LogState
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Outdated
from compactor.planning.spec import JobRunSpec
from compactor.storage.object_store import ObjectStore
from dispatcher.records.job_run_log import JobRunAction, JobRunPaused, JobRunResumed, JobRunState
from dispatcher.records.keys import PausedObject


class PauseNote(Document):
    """`at_ms`: by the clock of the pausing process, for display only."""

    at_ms: int
    reason: str


class Pause(Document):
    """`table` and `job_run_id` None: everything."""

    table: str | None = None
    job_run_id: str | None = None
    at_ms: int
    reason: str

    @property
    def scope(self) -> str:
        """The scope as text, for display."""
        if self.table is not None:
            return f"table {self.table}"
        return "everything" if self.job_run_id is None else f"job run {self.job_run_id}"

    def covers(self, job_run: JobRunSpec) -> bool:
        if self.job_run_id is not None:
            return self.job_run_id == job_run.job_run_id
        return self.table is None or self.table in (job_run.source_table_id, job_run.destination_compacted_table_id)


class PauseStore:
    """Thread-safe."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def pause(self, target: PausedObject, reason: str) -> bool:
        """Pauses. False: it is paused already, and the first reason stays."""
        note = PauseNote(at_ms=self._clock.now_ms(), reason=reason)
        return self._store.put_if_absent(target.key, note.render())

    def resume(self, target: PausedObject) -> bool:
        """Removes the pause. False: there was none."""
        was_paused = self._store.read(target.key) is not None
        self._store.delete(target.key)
        return was_paused

    def all(self) -> tuple[Pause, ...]:
        """All pauses: that of everything first, then job runs and tables by name."""
        found = []
        for entry in self._store.list(PausedObject.prefix()):
            body = self._store.read(entry.key)
            if body is not None:
                found.append(_pause(PausedObject.parse(entry.key), body))
        return tuple(found)


class Pauses:
    """The pauses as last read. Not thread-safe: for the ticking thread."""

    def __init__(self, store: PauseStore, look_seconds: float, clock: Clock) -> None:
        """`look_seconds`: between two reads. Pauses are read only on a call of `now` or `of`."""
        self._store = store
        self._look_seconds = look_seconds
        self._clock = clock
        self._known: tuple[Pause, ...] = ()
        self._checked_at_seconds: float | None = None

    def now(self) -> tuple[Pause, ...]:
        """The pauses. Raises the store's errors: nothing is started until the pauses can be read."""
        now_seconds = self._clock.monotonic_seconds()
        if self._checked_at_seconds is None or now_seconds - self._checked_at_seconds >= self._look_seconds:
            self._known = self._store.all()
            self._checked_at_seconds = now_seconds
        return self._known

    def forget(self, job_run_id: str) -> None:
        """Removes the pause of an ended job run. Raises the store's errors."""
        for pause in self._known:
            if pause.job_run_id == job_run_id:
                self._store.resume(PausedObject("job_runs", job_run_id))

    def of(self, job_run: JobRunSpec) -> Pause | None:
        """The pause that applies to this job run; None: its sessions may start. Raises as `now` does."""
        return next((pause for pause in self.now() if pause.covers(job_run)), None)


def _pause(path: PausedObject, body: bytes) -> Pause:
    """A damaged note is a pause too: sessions that an operator paused must not start because of it."""
    try:
        note = PauseNote.parse_durable(body, path.key)
    except (Corrupt, Outdated):
        note = PauseNote(at_ms=0, reason="its note cannot be read")
    return Pause(
        table=path.name if path.scope == "tables" else None,
        job_run_id=path.name if path.scope == "job_runs" else None,
        at_ms=note.at_ms,
        reason=note.reason,
    )


def note_pause(log: DurableLog[JobRunState, JobRunAction], pause: Pause | None, at_ms: int) -> bool:
    """Logs once for each change that an open job run is paused or resumed. False: the log says so already."""

    def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
        state = before.state
        if not state.status.is_open or (pause is None) == (state.paused is None):
            return []
        if pause is None:
            return [JobRunResumed(at_ms=at_ms)]
        return [JobRunPaused(scope=pause.scope, reason=pause.reason, at_ms=at_ms)]

    return log.append(decide, log.newest).entry is not None
