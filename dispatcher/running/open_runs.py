"""Open job runs that this dispatcher may claim, in order: offered ones, and those that markers name.

    offered, marked --> WAITING: no dispatcher has it  by priority, then by acceptance; claimed when there is room
                    --> CLAIMED by a live dispatcher     skipped, its log is not read
                    --> ORPHANED: its owner is gone      taken over at once, oldest first, shared among live dispatchers
                    --> EMPTY: its acceptance is not written, and perhaps never will be

A marker has the rank and the owner of a job run, so a sweep is one listing, and another listing of live dispatchers if
any of them holds a job run. Logs are read of job runs to claim. An unreadable log does not affect other job runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, LithifyError, Outdated, Unavailable, reason_of
from compactor.model.machine import this_release
from compactor.storage.concurrently import run_concurrently
from dispatcher.outbox.event_publisher import EventPublisher
from dispatcher.records.claims import JobRunLog
from dispatcher.records.job_run_events import set_aside_event
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.job_run_store import JobRunStore, OpenMarker
from dispatcher.records.keys import MarkedJobRun
from dispatcher.records.liveness import Peers
from dispatcher.records.ranking import SlotRank, StreamRank, mark_of, slot_rank, stream_rank
from dispatcher.records.work_id import WorkId
from dispatcher.scheduling.session_pool import SchedulerSnapshot

READS_MAX = 64
"""Logs read in one look, so that a tick stays short however many job runs are open: the next tick goes on."""

EMPTY_SECONDS_MAX = 3_600.0
"""A marker whose log has been seen to be empty for so long is removed. Whoever takes longer from the marker to the
first entry puts another one after it (`dispatcher/intake/intake.py`)."""


@dataclass(frozen=True)
class OpenRunsIntervals:
    """
    Attributes:
        sweep_seconds: between two listings of the markers
        set_aside_seconds: before an unreadable log is read again"""

    sweep_seconds: float
    set_aside_seconds: float


@dataclass
class OpenJobRun:
    """
    Attributes:
        priority, accepted_at_ms: its rank
        marker: as last listed; None: not listed yet
        state: as last read; None: not read
        is_due: whether its log is to be read at the next look
        not_before_seconds: by the monotonic clock: it is skipped until then
        waits_until_seconds: by the monotonic clock: it could not start before that
        cancel_checked_at_seconds: when its log was last read for a cancel
        was_tried: it could not be claimed; tried again after the next sweep
        orphaned_at_seconds: when its owner was first seen to be gone
        empty_since_seconds: when its log was first seen to be empty
        failure: the error of the last read, or of a claim that failed since because of the log"""

    work: WorkId
    log: JobRunLog
    priority: int = 0
    accepted_at_ms: int = 0
    marker: OpenMarker | None = None
    state: JobRunState | None = None
    is_due: bool = False
    was_read: bool = False
    not_before_seconds: float = 0.0
    waits_until_seconds: float = 0.0
    cancel_checked_at_seconds: float | None = None
    was_tried: bool = False
    orphaned_at_seconds: float | None = None
    empty_since_seconds: float | None = None
    failure: Exception | None = None

    @property
    def rank(self) -> StreamRank:
        return stream_rank(self.priority, self.accepted_at_ms, self.work.text)

    @property
    def mark(self) -> MarkedJobRun:
        """Its marker, or the marker that it should have."""
        if self.marker is not None and self.marker.valid.table is not None:
            return self.marker.valid
        if self.state is not None and self.state.accepted is not None:
            accepted = self.state.accepted
            return mark_of(accepted.work, accepted.spec, accepted.partitions, self.accepted_at_ms)
        return MarkedJobRun(self.work.text, self.priority, self.accepted_at_ms)

    @property
    def owner(self) -> str | None:
        """Its last known owner: by its marker, or by its log if it has no such marker yet."""
        if self.marker is not None and self.marker.valid.owner is not None:
            return self.marker.valid.owner
        return self.state.claim.owner if self.state is not None and self.state.claim is not None else None

    @property
    def is_empty(self) -> bool:
        return self.state is not None and self.state.accepted is None and self.state.rejected is None

    @property
    def is_over(self) -> bool:
        """Whether it has ended and only its events are left to publish."""
        return self.state is not None and (self.state.ended is not None or self.state.rejected is not None)

    @property
    def is_cancelled(self) -> bool:
        return self.state is not None and self.state.cancel is not None


class OpenJobRuns:
    """Not thread-safe: for the ticking thread."""

    def __init__(
        self,
        records: JobRunStore,
        peers: Peers,
        publisher: EventPublisher,
        intervals: OpenRunsIntervals,
        clock: Clock,
    ) -> None:
        self._records = records
        self._peers = peers
        self._publisher = publisher
        self._intervals = intervals
        self._clock = clock
        self._quarantined: set[WorkId] = set()
        self._open: dict[WorkId, OpenJobRun] = {}
        self._markers: list[MarkedJobRun] = []
        self._swept_at_seconds: float | None = None
        self.last_error: Exception | None = None
        """The error of the last listing of the markers, if any."""

    @property
    def are_all_others(self) -> bool:
        """Whether a sweep was made, and all that it found is quarantined, or has an owner with a sign of life since."""
        now_seconds = self._clock.monotonic_seconds()
        return self._swept_at_seconds is not None and all(
            each.not_before_seconds > now_seconds or (each.owner is not None and self._peers.has_seen_life(each.owner))
            for each in self._open.values()
        )

    @property
    def known_count(self) -> int:
        """Number of open job runs that are not claimed here. Thread-safe."""
        return len(self._open)

    @property
    def waiting_count(self) -> int:
        """Number of job runs without a known owner, except skipped ones. Shards are parts of one."""
        now_seconds = self._clock.monotonic_seconds()
        whole = [each for each in self._open.values() if each.work.shard is None]
        waiting = [each for each in whole if each.owner is None and not each.is_empty]
        return sum(each.not_before_seconds <= now_seconds for each in waiting)

    def offer(self, work: WorkId, log: JobRunLog | None = None) -> None:
        """Adds a job run that was just accepted or rejected here. `log`: its log with the cached fold, if available."""
        if work not in self._open:
            self._open[work] = self._new(work, log)
        each = self._open[work]
        each.is_due = True
        each.was_tried = False  # a sweep may have found its marker before its first entry
        each.was_read = log is not None and each.log is log and log.newest.state.accepted is not None

    def poll(self, claimed: Mapping[WorkId, MarkedJobRun], publishing: Iterable[str]) -> None:
        """Lists the markers when a sweep is due, and reads logs that are due. Skips `claimed`, our job runs with the
        marker that each must have, and `publishing`, whose events are published here."""
        try:
            self._sweep_when_due(claimed, frozenset(publishing))
        except LithifyError as error:
            self.last_error = error
            LOG.warning("open_job_runs_not_listed", reason=str(error))
        else:
            self.last_error = None
        now_seconds = self._clock.monotonic_seconds()
        due = [each for each in self._open.values() if each.is_due and each.not_before_seconds <= now_seconds]
        unread = [each for each in due[:READS_MAX] if each.failure is not None]
        run_concurrently(self._records.store.location, self._read, due[:READS_MAX])
        self._quarantined.difference_update(each.work for each in unread if each.failure is None)
        for each in due[:READS_MAX]:
            self._judge(each)

    def next(self, moment: SchedulerSnapshot) -> OpenJobRun | None:
        """The unclaimed job run that gets the next slot."""

        def rank(each: OpenJobRun) -> SlotRank:
            return slot_rank(each.rank, moment.now_ms, moment.running_of.get(each.mark.table or "", 0))

        free = [each for each in self._takeable() if each.owner is None]
        return min(free, key=rank, default=None)

    @property
    def markers(self) -> Iterable[MarkedJobRun]:
        """The markers of all open job runs as last listed, including those claimed here."""
        return self._markers

    def list_again(self, claimed: Mapping[WorkId, MarkedJobRun], publishing: Iterable[str]) -> None:
        """Lists the markers now, before a start: no session may pass an earlier job run. Raises the store's errors."""
        self._list(claimed, frozenset(publishing))

    def wait(self, work: WorkId, seconds: float) -> None:
        """It could not start now. It is not claimed before `seconds` have passed or `retry_blocked` is called."""
        each = self._open.get(work)
        if each is not None:
            each.waits_until_seconds = self._clock.monotonic_seconds() + seconds

    def is_cancelled(self, found: OpenJobRun, every_seconds: float) -> bool:
        """Whether its log has a cancel. Reads the log at most once in `every_seconds`. Raises the store's errors."""
        now_seconds = self._clock.monotonic_seconds()
        if found.cancel_checked_at_seconds is None:  # known from its acceptance, or from when it was found
            found.cancel_checked_at_seconds = now_seconds
        elif now_seconds - found.cancel_checked_at_seconds >= every_seconds:
            found.cancel_checked_at_seconds = now_seconds
            found.log.load()
        return found.log.newest.state.cancel is not None

    def is_left(self, work: WorkId) -> bool:
        """Whether it is open, and neither claimed here nor by a live dispatcher."""
        each = self._open.get(work)
        return each is not None and (each.owner is None or self.is_gone(each.owner))

    def retry_blocked(self) -> None:
        """Waiting job runs may be tried again: the state has changed."""
        for each in self._open.values():
            each.waits_until_seconds = 0.0

    def left_behind(self) -> list[OpenJobRun]:
        """Job runs that need no free slot: those whose owner is gone and that are assigned to this dispatcher, the
        oldest first; and those that are cancelled, or have ended and have unpublished events."""
        found = [
            each
            for each in self._takeable()
            if (each.owner is None and (each.is_over or each.is_cancelled)) or self._is_assigned_here(each)
        ]
        return sorted(found, key=lambda each: (each.accepted_at_ms, each.work.text))

    def taken(self, work: WorkId) -> None:
        """Removes a job run: it is claimed here now, or has no work left."""
        self._open.pop(work, None)

    def leave_alone(self, work: WorkId, seconds: float) -> None:
        """Skips the job run for `seconds`; 0: until the next sweep."""
        each = self._open.get(work)
        if each is not None:
            each.not_before_seconds = self._clock.monotonic_seconds() + seconds
            each.was_tried, each.is_due = True, seconds > 0

    def wake(self, work: WorkId) -> None:
        """The job run that was left alone may be claimed from the next look on."""
        each = self._open.get(work)
        if each is not None:
            each.not_before_seconds, each.was_tried, each.is_due = 0.0, False, True

    def held_by_another(self, work: WorkId, state: JobRunState) -> None:
        """By its log another dispatcher holds it, whatever its marker says. That dispatcher is watched from now on."""
        each = self._open.get(work)
        if each is not None:
            each.state, each.was_tried = state, True
            self._note_empty(each)

    @property
    def quarantined(self) -> frozenset[WorkId]:
        """Open job runs whose log could not be read."""
        return frozenset(self._quarantined)

    def quarantine(self, work: WorkId, log: JobRunLog, error: Exception) -> None:
        """Skips a job run whose log is unreadable. Nothing is written to it: a newer release may have written it."""
        self.leave_alone(work, self._intervals.set_aside_seconds)
        if work in self._open and isinstance(error, LithifyError):  # a bug is not over once its log is read
            self._open[work].failure = error
        if work in self._quarantined:
            return
        bug = None if isinstance(error, LithifyError) else error
        reason = reason_of(error) + (self._what_to_install() if isinstance(error, Outdated) else "")
        LOG.error("job_run_set_aside", job_run_id=str(work), reason=reason, exc_info=bug)
        self._quarantined.add(work)
        accepted = self._records.accepted_in(log)
        topic_arn = accepted.spec.sns_event_topic_arn if accepted is not None else None
        event = set_aside_event(work, log.folder, accepted, reason, self._clock.now_ms())
        self._publisher.announce(topic_arn, event)

    def _what_to_install(self) -> str:
        """For a log that a newer release wrote: the other releases whose dispatchers work on this state."""
        try:
            others = [each for each in self._records.releases() if each != this_release()]
        except LithifyError:  # the reason without it is better than none
            return ""
        if not others:
            return ""
        return f"; this is release {this_release()}, and dispatchers of {', '.join(others)} have worked on this state"

    def _takeable(self) -> list[OpenJobRun]:
        now_seconds = self._clock.monotonic_seconds()
        return [
            each
            for each in self._open.values()
            if each.not_before_seconds <= now_seconds
            and each.waits_until_seconds <= now_seconds
            and not each.was_tried
            and not each.is_empty
            and not (each.state is None and each.is_due)
        ]

    def _is_assigned_here(self, each: OpenJobRun) -> bool:
        if each.owner is None or not self.is_gone(each.owner):
            each.orphaned_at_seconds = None
            return False
        now_seconds = self._clock.monotonic_seconds()
        if each.orphaned_at_seconds is None:
            each.orphaned_at_seconds = now_seconds
        # The assigned dispatcher may be gone too. Each looks once a sweep, so after one sweep any may take it.
        is_left = now_seconds - each.orphaned_at_seconds >= self._intervals.sweep_seconds
        return is_left or each.owner == self._peers.owner or self._peers.is_assigned_here(each.work.text)

    def is_gone(self, owner: str) -> bool:
        """Whether the owner of a claim works no more."""
        return self._peers.is_gone(owner)

    def _sweep_when_due(self, claimed: Mapping[WorkId, MarkedJobRun], publishing: frozenset[str]) -> None:
        now_seconds = self._clock.monotonic_seconds()
        if self._swept_at_seconds is not None and now_seconds - self._swept_at_seconds < self._intervals.sweep_seconds:
            return
        markers = self._list(claimed, publishing)
        self._swept_at_seconds = now_seconds
        for each in self._open.values():
            each.was_tried = False
        owners = {each.owner for each in self._open.values() if each.owner is not None}
        if owners:
            self._peers.poll(owners)
        for each in self._open.values():
            each.is_due = each.is_due or self._must_be_read(each)
        self._repair_marker(markers, claimed)

    def _list(self, claimed: Mapping[WorkId, MarkedJobRun], publishing: frozenset[str]) -> dict[WorkId, OpenMarker]:
        markers = {marker.work: marker for marker in self._records.open_markers()}
        for gone in self._open.keys() - markers.keys():
            del self._open[gone]
        self._quarantined.intersection_update(markers)
        for work, marker in markers.items():
            if work not in claimed and work.text not in publishing:
                self._seen(work, marker)
        self._markers = [marker.valid for marker in markers.values()]
        return markers

    def _seen(self, work: WorkId, marker: OpenMarker) -> None:
        if work not in self._open:
            self._open[work] = self._new(work)
        each = self._open[work]
        each.marker = marker
        each.priority, each.accepted_at_ms = marker.valid.priority, marker.valid.marked_at_ms

    def _must_be_read(self, each: OpenJobRun) -> bool:
        """Whether its log must be read, since its marker does not say enough."""
        is_marked_as_held = each.marker is not None and each.marker.valid.owner is not None
        is_claimed = each.state is not None and each.state.claim is not None
        return each.is_empty or (is_claimed and not is_marked_as_held)

    def _repair_marker(self, markers: Mapping[WorkId, OpenMarker], claimed: Mapping[WorkId, MarkedJobRun]) -> None:
        """A claimed job run has exactly one marker, ours: it may be missing, or an old one written again."""
        for work, mark in claimed.items():
            marker = markers.get(work)
            if marker is None or marker.keys != {mark.key}:
                self._records.mark_held(mark, marker.keys if marker is not None else ())

    def _new(self, work: WorkId, log: JobRunLog | None = None) -> OpenJobRun:
        return OpenJobRun(work, log or self._records.log(work.text))

    def _read(self, each: OpenJobRun) -> None:
        """Runs in a thread of its own; keeps its error for `_judge`."""
        each.failure = None
        try:
            each.state = (each.log.newest if each.was_read else each.log.load()).state
            each.was_read = False
            if not each.accepted_at_ms and not each.is_empty:
                at_ms, accepted = each.log.entry(1).at_ms, each.state.accepted
                each.accepted_at_ms = at_ms if accepted is None else accepted.accepted_at_ms(at_ms)
        except Exception as error:  # noqa: BLE001  (an error of one log must not stop the others)
            each.failure = error

    def _judge(self, each: OpenJobRun) -> None:
        each.is_due = False
        match each.failure:
            case None:
                if each.state is not None and each.state.accepted is not None:
                    each.priority = each.state.accepted.spec.priority
                self._note_empty(each)
            case Outdated():  # the dispatchers that can read it may be gone: report it
                self.quarantine(each.work, each.log, each.failure)
            case Unavailable() | Conflict():
                LOG.warning("job_run_not_read", job_run_id=str(each.work), reason=str(each.failure))
            case error:
                self.quarantine(each.work, each.log, error)

    def _note_empty(self, each: OpenJobRun) -> None:
        """Measures here, by one clock, how long it has been empty."""
        now_seconds = self._clock.monotonic_seconds()
        if not each.is_empty:
            each.empty_since_seconds = None
        elif each.empty_since_seconds is None:
            each.empty_since_seconds = now_seconds
        elif now_seconds - each.empty_since_seconds >= EMPTY_SECONDS_MAX and each.marker is not None:
            try:
                self._records.give_up_empty(each.marker)
            except LithifyError as error:
                LOG.warning("marker_not_removed", job_run_id=str(each.work), reason=str(error))
            else:
                del self._open[each.work]
