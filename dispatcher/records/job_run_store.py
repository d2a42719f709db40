"""The store of job runs: one log each, and a marker for those that have not ended.

A marker is a hint that avoids listing all logs and reading most of them: it is written before the first entry, names
the owner of the claim, and is removed after the last event. A job run may have several markers for a while: the one
with the highest epoch counts, and the holder of the job run removes the others. A crash before the first entry leaves a
marker without a log; it costs one read per sweep until it is old enough to be removed.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from compactor.events.relay import EventSink, Relay, SessionRelay, SessionSubject, session_log_events
from compactor.log.durable_log import DurableLog, LogState
from compactor.log.keys import EntryObject
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, LithifyError
from compactor.model.machine import this_release
from compactor.sessions.keys import SessionFolder
from compactor.sessions.session_log import SESSION_LOG, SessionLog
from compactor.storage.object_store import ObjectStore
from dispatcher.records.callbacks import CallbackStore
from dispatcher.records.claims import JobRunLog
from dispatcher.records.history import History, ended_job_run
from dispatcher.records.job_run_events import job_run_events, subject_of
from dispatcher.records.job_run_log import (
    JOB_RUN_LOG,
    JobRunAccepted,
    JobRunAction,
    JobRunEnded,
    JobRunRejected,
    JobRunState,
    JobRunStatus,
    ShardEnded,
)
from dispatcher.records.keys import (
    OPEN_JOB_RUNS,
    JobRunLogFolder,
    JobRunObject,
    MarkedJobRun,
    RejectedDocument,
    ReleaseOfState,
    StartedDispatcher,
    UnpublishedJobRun,
)
from dispatcher.records.outcome import shard_ended
from dispatcher.records.pauses import PauseStore
from dispatcher.records.ranking import mark_of
from dispatcher.records.work_id import WorkId

RETRY_SUFFIX = "-retry-"
RETRIED = (JobRunStatus.FAILED, JobRunStatus.CANCELLED)


def next_retry_id(job_run_id: str, accepted: JobRunAccepted) -> str:
    """The id of the job run that runs this one again: `orders`, `orders-retry-1`, `orders-retry-2`."""
    first, number = job_run_id, 0
    if accepted.predecessor is not None:
        first, _, text = job_run_id.rpartition(RETRY_SUFFIX)
        number = int(text)
    return f"{first}{RETRY_SUFFIX}{number + 1}"


@dataclass(frozen=True)
class Outline:
    """If the job run has ended, `state` lacks the course of its sessions."""

    accepted_at_ms: int
    state: JobRunState


@dataclass(frozen=True)
class OpenMarker:
    """The markers of one job run, or of one shard.

    Attributes:
        valid: the one that counts
        keys: of all of them"""

    work: WorkId
    valid: MarkedJobRun
    keys: frozenset[str] = field(default_factory=frozenset)


JobRunRelay = Relay[JobRunState, JobRunAction]


class JobRunStore:
    """The job runs of one dispatcher state. Thread-safe. Users of one log should share its object."""

    def __init__(self, store: ObjectStore, clock: Clock, owner: str | None = None) -> None:
        """`owner`: the id of the dispatcher that uses it, if any."""
        self.store = store
        self.owner = owner
        self.callbacks = CallbackStore(store, clock)
        self.pauses = PauseStore(store, clock)
        self.history = History(store, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._marks: dict[str, set[str]] = {}

    def check_writable(self, owner: str) -> None:
        """Creates an object as log entries are created, reads it and deletes it. Raises the store's errors."""
        key = StartedDispatcher(owner).key
        self.store.put_if_absent(key, owner.encode())
        if self.store.read(key) != owner.encode():
            raise Invalid(f"{self.store.location.root_uri} does not keep what is written to it")
        self.store.delete(key)

    def note_release(self) -> None:
        """Records that a dispatcher of this release works on the state. Raises the store's errors."""
        self.store.put_if_absent(ReleaseOfState(this_release()).key, b"")

    def releases(self) -> list[str]:
        """Every release whose dispatchers have worked on the state, the latest of them last."""
        listed = sorted(self.store.list(ReleaseOfState.prefix()), key=attrgetter("modified_at_ms"))
        return [ReleaseOfState.parse(entry.key).version for entry in listed]

    def log(self, job_run_id: str) -> JobRunLog:
        """The log of a job run, which may be empty."""
        return DurableLog(self.store, JobRunLogFolder(job_run_id).key, JOB_RUN_LOG, self._clock)

    def accepted_in(self, log: JobRunLog) -> JobRunAccepted | None:
        """The acceptance in a log whose later entries may be damaged; None if the acceptance cannot be read either."""
        try:
            actions = log.entry(1).actions
        except LithifyError:
            return None
        return next((action for action in actions if isinstance(action, JobRunAccepted)), None)

    def state(self, job_run_id: str) -> JobRunState:
        return self.log(job_run_id).load().state

    def outline(self, job_run_id: str) -> Outline | None:
        """The state for an overview: one listing, and two reads if the job run has ended. None: it has no log."""
        log = self.log(job_run_id)
        entries = (EntryObject.parse_or_none(entry.key) for entry in self.store.list(f"{log.folder}/"))
        numbers = [each.entry_number for each in entries if each is not None]
        if not numbers:
            return None
        first, last = log.entry(1), log.entry(max(numbers))
        accepted = next((action for action in first.actions if isinstance(action, JobRunAccepted)), None)
        ended = next((action for action in last.actions if isinstance(action, JobRunEnded)), None)
        if accepted is not None and ended is not None:
            return Outline(first.at_ms, JobRunState(accepted=accepted, ended=ended))
        return Outline(first.at_ms, log.load(as_of=last.number).state)

    def last_retry(self, job_run_id: str, state: JobRunState) -> tuple[str, JobRunState]:
        """The last retry of the job run under another id, or the job run itself; with its state."""
        while state.accepted is not None and state.status in RETRIED:
            next_id = next_retry_id(job_run_id, state.accepted)
            following = self.state(next_id)
            if following.accepted is None or following.accepted.predecessor != job_run_id:
                break
            job_run_id, state = next_id, following
        return job_run_id, state

    # -- markers

    def mark_open(self, accepted: JobRunAccepted, accepted_at_ms: int | None = None) -> MarkedJobRun:
        """Marks an accepted job run: any dispatcher may claim it. `accepted_at_ms` None: it is accepted now."""
        at_ms = self._clock.now_ms() if accepted_at_ms is None else accepted_at_ms
        mark = mark_of(accepted.work, accepted.spec, accepted.partitions, at_ms)
        self.mark(mark)
        return mark

    def mark_over(self, job_run_id: str) -> MarkedJobRun:
        """Marks an ended job run with unpublished events: any dispatcher may publish them."""
        mark = MarkedJobRun(job_run_id, 0, self._clock.now_ms())
        self.mark(mark)
        return mark

    def mark_to_be_published(self, job_run_id: str) -> None:
        """Marks an ended job run with unpublished events as this dispatcher's: others skip it."""
        self.mark(MarkedJobRun(job_run_id, 0, self._clock.now_ms(), self.owner))

    def mark_held(self, mark: MarkedJobRun, known: Iterable[str] = ()) -> None:
        """Marks a held job run. Removes its other markers: `known`, and those that were written or listed here. None of
        a later claim: this one is lost then."""
        with self._lock:
            others = {*known, *self._marks.get(mark.job_run_id, ())} - {mark.key}
        self.mark(mark)
        self._remove(mark.job_run_id, [key for key in others if MarkedJobRun.parse(key).epoch <= mark.epoch])

    def mark_closed(self, job_run_id: str) -> None:
        with self._lock:
            known = set(self._marks.get(job_run_id, ()))
        if not known:
            known = {key for marker in self.open_markers() if marker.work.text == job_run_id for key in marker.keys}
        self._remove(job_run_id, known)

    def give_up_empty(self, marker: OpenMarker) -> None:
        """Removes the markers of a job run whose log was empty for too long. If that has an entry by then, it is marked
        again."""
        self._remove(marker.work.text, marker.keys)
        log = self.log(marker.work.text)
        accepted = log.load().state.accepted
        if accepted is not None:
            self.mark_open(accepted, accepted.accepted_at_ms(log.entry(1).at_ms))

    def open_job_run_ids(self) -> list[str]:
        """Job runs that have a marker: they may have work or unpublished events left. Reads no log."""
        return sorted(work.job_run_id for work in self.open_work() if work.shard is None)

    def open_work(self) -> list[WorkId]:
        """The same, and open shards."""
        return [marker.work for marker in self.open_markers()]

    # -- shards

    def record_shard_end(self, state: JobRunState, log: JobRunLog | None = None) -> ShardEnded | None:
        """Records the end of a shard, with this fold, in the log of its job run, once. None: it is no shard, or has not
        ended. `log`: that log, if it is at hand."""
        ended = shard_ended(state)
        if ended is None or state.accepted is None:
            return None

        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            shards = before.state.shards
            is_open = shards is not None and before.state.ended is None and ended.number not in shards.ended
            return [ended] if is_open else []

        (log or self.log(state.accepted.spec.job_run_id)).append(decide)
        return ended

    def open_markers(self) -> list[OpenMarker]:
        """The markers of all open job runs, by one listing."""
        keys, valid = defaultdict[str, set[str]](set), dict[str, MarkedJobRun]()
        for entry in self.store.list(OPEN_JOB_RUNS):
            mark = MarkedJobRun.parse(entry.key)
            keys[mark.job_run_id].add(entry.key)
            valid[mark.job_run_id] = max(valid.get(mark.job_run_id, mark), mark, key=_weight)
        with self._lock:
            self._marks = {job_run_id: set(each) for job_run_id, each in keys.items()}
        return [OpenMarker(WorkId.parse(each), valid[each], frozenset(found)) for each, found in keys.items()]

    def mark(self, mark: MarkedJobRun) -> None:
        """Writes a marker; once more after the first entry, since it may be removed while that entry is missing."""
        self.store.put_if_absent(mark.key, b"")
        with self._lock:
            self._marks.setdefault(mark.job_run_id, set()).add(mark.key)

    def _remove(self, job_run_id: str, keys: Iterable[str]) -> None:
        for key in sorted(keys):
            self.store.delete(key)
        with self._lock:
            self._marks.get(job_run_id, set()).difference_update(keys)
            if not self._marks.get(job_run_id):
                self._marks.pop(job_run_id, None)

    def mark_unpublished(self, job_run_id: str) -> None:
        """Marks an ended job run whose topic refuses its events: dispatchers skip it from now on."""
        self.store.put_if_absent(UnpublishedJobRun(job_run_id).key, b"")
        self.mark_closed(job_run_id)

    def mark_published(self, job_run_id: str) -> None:
        """Removes all markers of an ended job run: all of its events are published."""
        self.mark_closed(job_run_id)
        self.store.delete(UnpublishedJobRun(job_run_id).key)

    def unpublished_job_run_ids(self) -> list[str]:
        listed = self.store.list(UnpublishedJobRun.prefix())
        return [UnpublishedJobRun.parse(entry.key).job_run_id for entry in listed]

    # -- rejected messages

    def mark_rejected(self, job_run_id: str, message_id: str) -> None:
        """Records, under the job run id in a rejected document, the message id whose log has the rejection."""
        self.store.put_if_absent(RejectedDocument(job_run_id, message_id).key, b"")

    def rejected_message_ids(self, job_run_id: str) -> list[str]:
        """Messages that named this job run and were rejected, the latest first."""
        listed = self.store.list(RejectedDocument.prefix(job_run_id))
        found = [(entry.modified_at_ms, RejectedDocument.parse(entry.key).message_id) for entry in listed]
        return [message_id for _, message_id in sorted(found, reverse=True)]

    # -- events

    def is_cleaned(self, job_run_id: str, state: JobRunState, accepted_at_ms: int) -> bool:
        """Whether its cursors were deleted, since all its events were published. `state`: the fold before."""
        if state.accepted is not None and state.accepted.shard is not None:
            return False  # it is in no history, and is never looked at again once its job run is
        ended = ended_job_run(job_run_id, state, accepted_at_ms)
        return ended is not None and self.history.is_cleaned(ended)

    def relay(
        self,
        job_run_id: str,
        log: JobRunLog,
        state: JobRunState,
        sink: EventSink,
        is_cleaned: Callable[[], bool],
        *,
        is_unpublished: bool = False,
    ) -> JobRunRelay:
        """The relay of a job run's own log, as far as it was read; `state` is any fold after its first entry.

        Args:
            is_unpublished: no dispatcher can have published any of it: there is no cursor to read"""
        at_ms = log.entry(1).at_ms
        accepted_at_ms = at_ms if state.accepted is None else state.accepted.accepted_at_ms(at_ms)
        build = job_run_events(subject_of(job_run_id, state), log.folder, state, accepted_at_ms)
        key = JobRunObject.published(job_run_id).key

        def published_until() -> int:
            return _end_of(log) if is_cleaned() else 0

        return Relay(
            log,
            self.store,
            key,
            build,
            sink,
            is_unpublished=is_unpublished,
            is_complete=True,
            published_until=published_until,
        )

    def session_log(self, job_run_id: str, session_id: str) -> SessionLog:
        return DurableLog(self.store, SessionFolder(job_run_id, session_id).log, SESSION_LOG, self._clock)

    def session_relay(
        self,
        about: SessionSubject,
        sink: EventSink,
        is_cleaned: Callable[[], bool],
        *,
        log: SessionLog | None = None,
        is_unpublished: bool = False,
    ) -> SessionRelay:
        """The relay of one session's log.

        Args:
            log: the log, if another reads it: what it has read is published
            is_unpublished: none of its events can be published yet"""
        folder = SessionFolder(about.of.job_run_id, about.session_id)
        followed = log or self.session_log(about.of.job_run_id, about.session_id)
        return Relay(
            followed,
            self.store,
            folder.published.key,
            lambda entry: session_log_events(about, folder.log, entry),
            sink,
            is_unpublished=is_unpublished,
            is_complete=log is not None,
            published_until=lambda: followed.load().entry_number if is_cleaned() else 0,
        )


def _weight(mark: MarkedJobRun) -> tuple[int, bool, int]:
    """Of several markers the greatest counts. Of one epoch that is the earliest with a table: a repeated document has
    another one written, which is later and does not say what is written to, and a job run must not lose its place."""
    return (mark.epoch, mark.table is not None, -mark.marked_at_ms)


def _end_of(log: JobRunLog) -> int:
    """The entry that ended or rejected a job run. Events of later entries may be unpublished."""
    for entry in log.entries():
        if any(isinstance(action, JobRunEnded | JobRunRejected) for action in entry.actions):
            return entry.number
    return 0


class WatchedJobRuns(JobRunStore):
    """For repeated reads of the same job runs in one thread: a log's new entries only are read."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self._logs: dict[str, JobRunLog] = {}
        self._session_logs: dict[SessionFolder, SessionLog] = {}

    def log(self, job_run_id: str) -> JobRunLog:
        if job_run_id not in self._logs:
            self._logs[job_run_id] = super().log(job_run_id)
        return self._logs[job_run_id]

    def session_log(self, job_run_id: str, session_id: str) -> SessionLog:
        folder = SessionFolder(job_run_id, session_id)
        if folder not in self._session_logs:
            self._session_logs[folder] = super().session_log(job_run_id, session_id)
        return self._session_logs[folder]
