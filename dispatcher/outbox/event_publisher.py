"""Publishes the events of the logs, in a thread of its own: an unresponsive topic delays nothing else.

    an entry is durable --notify--> story: a job run's log and its sessions' logs --a round--> topic --> cursor moved
                                                                                 |
                                    topic does not answer: paused, twice as long each time
                                    topic refuses: paused for long; ended job runs are marked as unpublished
    the state's store does not answer, or the history is unreadable: the job run is paused, twice as long each time

    it has ended, all is published --> recorded in the history --> marker removed --> not followed any more

Events follow from the logs, and cursors beside them hold the published position, so nothing is lost with this process:
an unfinished job run keeps a marker, and the dispatcher that finds it continues. In a round each topic gets one try:
after the first failure nothing more is sent to it. An ended job run is followed until all of its events are published.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from compactor.events.relay import Event, EventSink, NoSink
from compactor.log_context import LOG
from compactor.model.background import BackgroundLoop
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Denied, LithifyError, Unavailable, kind_of
from compactor.model.retries import Backoff
from compactor.sessions.session_log import SessionLog
from dispatcher.outbox.job_run_publication import JobRunPublication, launched
from dispatcher.outbox.workflow_callbacks import WorkflowAnswers
from dispatcher.records.claims import JobRunLog
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.job_run_store import JobRunStore

REFUSED_MAX = 10_000
"""Job runs that are kept here while their topic refuses events. Of further ones only the marker is kept."""

ANNOUNCED_MAX = 1_000
"""Unpublished events that are in no log. Of more than that the oldest are dropped."""


BACKOFF = Backoff(first_seconds=5.0, longest_seconds=300.0)
"""Pauses of a topic that did not answer, and of a job run whose state was not read or written. After a refusal the
pause is the longest."""


@dataclass(frozen=True)
class PublisherSettings:
    """
    Attributes:
        round_seconds: between two rounds; one without news sends no request
        flush_seconds: to publish pending events when the dispatcher stops"""

    round_seconds: float = 0.1
    backoff: Backoff = BACKOFF
    flush_seconds: float = 10.0


class TopicError(Exception):
    """Wraps an error of a sink, to distinguish it from an error of a log."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _TopicSink:
    """A sink whose every error is `TopicError`."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink

    @property
    def name(self) -> str:
        return self._sink.name

    def publish(self, events: Sequence[Event]) -> None:
        try:
            self._sink.publish(events)
        except Exception as error:  # wrapped, to distinguish it from an error of a log
            raise TopicError(error) from error


@dataclass(kw_only=True)
class _Retried:
    """
    Attributes:
        failures: in a row
        last_error: None: the last try succeeded
        not_before_seconds: of the next try, by the monotonic clock"""

    failures: int = 0
    last_error: Exception | None = None
    not_before_seconds: float = 0.0

    def failed(self, error: Exception, pauses: Backoff, clock: Clock) -> float:
        """Returns the seconds until the next try."""
        self.failures, self.last_error = self.failures + 1, error
        seconds = pauses.seconds(self.failures)
        self.not_before_seconds = clock.monotonic_seconds() + seconds
        return seconds

    def succeeded(self) -> None:
        self.failures, self.last_error = 0, None


@dataclass
class _Followed(_Retried):
    """Its failures are those of the state's store.

    Attributes:
        sessions: sessions whose logs may have pending events; with the log, as far as it was read, if that has them
        quiet: launched sessions of which no attempt runs; all of their events are published or in `sessions`
        progress: the newest unpublished heartbeat of each session
        has_updates: whether the job run's own log may have pending events
        must_load: whether it has entries that this dispatcher has not read
        is_ending: it has ended: once all is published, its marker is removed
        is_leaving: another dispatcher continues it: it is dropped after one more try
        is_refused: its topic refuses it, and its marker says so
        is_published: all events are published; the marker stays until waiting workflows have their answers"""

    publication: JobRunPublication
    sessions: dict[str, SessionLog | None] = field(default_factory=dict)
    quiet: set[str] = field(default_factory=set)
    progress: dict[str, Event] = field(default_factory=dict)
    has_updates: bool = True
    must_load: bool = False
    is_ending: bool = False
    is_leaving: bool = False
    is_refused: bool = False
    is_published: bool = False

    @property
    def is_due(self) -> bool:
        has_events = bool(self.has_updates or self.sessions or self.progress or self.is_leaving)
        return has_events or (self.is_ending and not self.is_published)


@dataclass
class _Topic(_Retried):
    announced: list[Event] = field(default_factory=list)


class _Topics(defaultdict[str | None, _Topic]):
    """By name. Not thread-safe."""

    def __init__(self) -> None:
        super().__init__(_Topic)

    def due(self, followed: Iterable[_Followed], now_seconds: float) -> list[str | None]:
        """The topics of these job runs and of announced events, except paused ones."""
        with_events = {each.publication.topic_arn for each in followed}
        with_events |= {topic_arn for topic_arn, topic in self.items() if topic.announced}
        return [topic_arn for topic_arn in with_events if self[topic_arn].not_before_seconds <= now_seconds]

    def forget_all_but(self, followed: Iterable[_Followed]) -> None:
        """Forgets the failures of topics without pending events: nothing else would ever try them again."""
        with_events = {each.publication.topic_arn for each in followed}
        for topic_arn in [each for each, topic in self.items() if not topic.announced and each not in with_events]:
            del self[topic_arn]

    @property
    def last_errors(self) -> Iterator[tuple[str, Exception]]:
        for topic_arn, topic in self.items():
            if topic.last_error is not None:
                yield f"topic {topic_arn}" if topic_arn else "topic", topic.last_error


class EventPublisher:
    """`publish_round` is for one thread at a time. All other methods are thread-safe and quick."""

    def __init__(
        self,
        records: JobRunStore,
        sink_for: Callable[[str | None], EventSink],
        answers: WorkflowAnswers,
        settings: PublisherSettings,
        clock: Clock,
    ) -> None:
        """
        Args:
            sink_for: returns the sink of a job run, by the topic that it names or None
            answers: the marker of an ended job run stays until its events are published and its waiters answered"""
        self._records = records
        self._answers = answers
        self._sink_for = sink_for
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}
        self._topics = _Topics()

    # -- notifications, from any thread

    @property
    def followed(self) -> frozenset[str]:
        """Job runs whose events are published here, and those whose topic refuses them, while they are cached."""
        with self._lock:
            return frozenset(self._followed)

    @property
    def waiting_count(self) -> int:
        """Job runs with pending events that their topic, or the state, did not take at the last try."""
        with self._lock:
            pending = self._pending()
            return sum(bool(each.failures or self._topics[each.publication.topic_arn].failures) for each in pending)

    @property
    def troubles(self) -> dict[str, Exception]:
        """The last errors of paused topics, by "topic" and the topic's name, if it has one; and that of the state."""
        with self._lock:
            of_state = (("state", each.last_error) for each in self._followed.values() if each.last_error is not None)
            return dict(chain(of_state, self._topics.last_errors))

    @property
    def is_idle(self) -> bool:
        """Whether no events are pending, except for paused topics."""
        with self._lock:
            return not self._topics.due(self._pending(), self._clock.monotonic_seconds())

    def follow(
        self, job_run_id: str, log: JobRunLog, state: JobRunState, *, is_ending: bool = False, is_new: bool = False
    ) -> None:
        """Publishes this job run from its cursors on: the dispatcher that published it before may have crashed.
        `is_new`: no dispatcher has held it before."""
        quiet = {session_id for session_id in launched(state) if state.sessions[session_id].end is not None}
        with self._lock:
            publication = JobRunPublication(job_run_id, log, state, is_new=is_new)
            must_load = log.newest.entry_number == 0
            self._followed[job_run_id] = _Followed(
                publication, launched(state), quiet, must_load=must_load, is_ending=is_ending
            )

    def notify(self, job_run_id: str, session_id: str | None = None, log: SessionLog | None = None) -> bool:
        """A session's log, or the job run's own as read or written here, may have pending events. False: it is not
        followed.

        Args:
            log: the session's log, as read until now; None: it must be read"""
        with self._lock:
            followed = self._followed.get(job_run_id)
            if followed is None or followed.is_leaving:
                return False
            if session_id is not None:
                followed.sessions[session_id] = log
                followed.quiet.discard(session_id)
            else:
                followed.has_updates = True
            return True

    def notify_repeated(self, job_run_id: str) -> bool:
        """Another message repeated its document, which is an entry of its log. False: the job run is not followed."""
        with self._lock:
            followed = self._followed.get(job_run_id)
            if followed is None or followed.is_leaving:
                return False
            followed.has_updates = followed.must_load = True
            return True

    def attempt_ended(self, job_run_id: str, session_id: str) -> None:
        """No attempt at a session runs, and nothing is added to its log, which was read to its end, until another
        one."""
        with self._lock:
            followed = self._followed.get(job_run_id)
            if followed is not None and not followed.is_leaving:
                followed.quiet.add(session_id)

    def show_progress(self, job_run_id: str, event: Event) -> None:
        """Progress: published in the next round, or not at all if a newer one replaces it."""
        with self._lock:
            followed = self._followed.get(job_run_id)
            if followed is not None:
                followed.progress[event.subject or ""] = event

    def announce(self, topic_arn: str | None, event: Event) -> None:
        """Publishes an event that is in no log."""
        with self._lock:
            announced = self._topics[topic_arn].announced
            announced.append(event)
            del announced[:-ANNOUNCED_MAX]

    def ending(self, job_run_id: str) -> None:
        """The job run has ended: publish all of its events, then remove its marker. Sessions whose watcher failed, or
        was stopped, are read once more: no other thread would."""
        with self._lock:
            followed = self._followed.get(job_run_id)
            if followed is not None:
                unread = launched(followed.publication.newest).keys() - followed.quiet
                followed.sessions = {**dict.fromkeys(unread), **followed.sessions}
                followed.is_ending = followed.has_updates = True

    def leave(self, job_run_id: str) -> None:
        """Another dispatcher has it, or will: publish the pending events, then stop following it."""
        with self._lock:
            followed = self._followed.get(job_run_id)
            if followed is not None and not followed.is_ending:
                followed.is_leaving = True

    # -- publishing, in one thread

    def loop(self, ends: threading.Event) -> BackgroundLoop:
        """Its rounds, of which none raises."""
        return BackgroundLoop("event-publisher", self.publish_round, self._settings.round_seconds, ends=ends)

    def flush(self) -> None:
        """Publishes pending events for at most `flush_seconds`."""
        until_seconds = self._clock.monotonic_seconds() + self._settings.flush_seconds
        self.publish_round()
        while not self.is_idle and self._clock.monotonic_seconds() < until_seconds:
            self._clock.sleep(self._settings.round_seconds)
            self.publish_round()

    def publish_round(self) -> None:
        """One try for each topic that has pending events and is not paused."""
        with self._lock:
            published = [each for each in self._followed.values() if each.is_published]
        for each in published:
            if self._is_answered(each):
                each.is_published = False  # the marker can be removed
        with self._lock:
            due = self._topics.due(self._due(), self._clock.monotonic_seconds())
        for topic_arn in due:
            try:
                self._publish_to(topic_arn)
            except TopicError as error:
                self._give_up(topic_arn, error.cause)
            except Exception as error:  # noqa: BLE001  (an error of one topic must not delay the others)
                self._give_up(topic_arn, error)
        with self._lock:
            self._topics.forget_all_but(self._pending())

    def _publish_to(self, topic_arn: str | None) -> None:
        topic = self._topics[topic_arn]
        found = self._sink_for(topic_arn)
        sink = found if isinstance(found, NoSink) else _TopicSink(found)
        announced = list(topic.announced)
        if announced:
            sink.publish(announced)
            with self._lock:
                topic.announced = [event for event in topic.announced if event not in announced]
        with self._lock:
            due = [each for each in self._due() if each.publication.topic_arn == topic_arn]
        published: list[_Followed] = []
        try:
            published.extend(followed for followed in due if self._publish_followed(followed, sink))
        finally:  # those published before the topic failed
            self._close(published, sink)
        if topic.failures and (announced or due):
            LOG.info("topic_takes_events_again", topic=topic_arn)
        topic.succeeded()

    def _publish_followed(self, followed: _Followed, sink: EventSink) -> bool:
        """Whether the job run has ended and all events are published. Raises `TopicError`."""
        with self._lock:
            sessions, progress = followed.sessions, list(followed.progress.values())
            must_load = followed.must_load
            followed.sessions, followed.progress, followed.has_updates, followed.must_load = {}, {}, False, False

        def publish_pending() -> bool:
            if must_load:
                followed.publication.load()
            followed.publication.publish_pending(self._records, sink, sessions)
            if progress and not followed.is_ending:
                sink.publish(progress)
            return followed.is_ending and not self._has_more(followed) and not self._awaits_answers(followed)

        is_published = self._try(followed, publish_pending, sessions)
        if followed.is_leaving:
            self._forget(followed)
        return is_published

    def _try(
        self, followed: _Followed, act: Callable[[], bool], sessions: dict[str, SessionLog | None] | None = None
    ) -> bool:
        """An error of a log is not an error of the topic, and is logged here. `sessions` stay pending."""
        try:
            if act():
                return True
            followed.succeeded()
        except (Unavailable, Conflict) as error:  # the state's store: tried again after a pause
            LOG.warning("events_not_read", job_run_id=followed.publication.job_run_id, reason=str(error))
            self._give_back(followed, sessions or {}, error)
        except TopicError:
            self._give_back(followed, sessions or {})
            raise
        except Exception as error:  # noqa: BLE001  (an unreadable log does not block the others)
            LOG.error("job_run_not_published", job_run_id=followed.publication.job_run_id, exc_info=error)
            self._forget(followed)
        return False

    def _close(self, published: Sequence[_Followed], sink: EventSink) -> None:
        """Records ended and published job runs in the history, then removes their markers. Raises
        `TopicError`."""
        if not published:
            return
        try:
            self._records.history.record(record for each in published for record in each.publication.ended)
            for each in published:  # the job run of a shard needs its end before its last marker is removed
                self._records.record_shard_end(each.publication.newest)
        except LithifyError as error:  # the markers stay: tried again after a pause
            LOG.warning("history_not_written", job_runs=len(published), reason=str(error))
            for each in published:
                self._give_back(each, {}, error)
            return
        for each in published:

            def finish(each: _Followed = each) -> bool:
                self._mark_published(each)
                self._publish_late(each, sink)
                each.succeeded()
                return True

            if self._try(each, finish) and not each.is_published and not self._has_more(each):
                self._forget(each)

    def _mark_published(self, followed: _Followed) -> None:
        if followed.is_refused:
            self._records.mark_published(followed.publication.job_run_id)
        else:
            self._records.mark_closed(followed.publication.job_run_id)

    def _publish_late(self, followed: _Followed, sink: EventSink) -> None:
        """Publishes a repeat that was logged just before the marker was removed, and that relies on the marker."""
        try:
            followed.publication.load()
            followed.publication.publish_pending(self._records, sink, {})
        except (LithifyError, TopicError):
            self._records.mark_over(followed.publication.job_run_id)
            raise
        if self._awaits_answers(followed):  # the repeat may have brought a task token
            self._records.mark_over(followed.publication.job_run_id)
            return
        self._answers.leave(followed.publication.job_run_id)

    def _awaits_answers(self, followed: _Followed) -> bool:
        followed.is_published = not self._is_answered(followed)
        return followed.is_published

    def _is_answered(self, followed: _Followed) -> bool:
        return self._answers.are_answered(followed.publication.job_run_id, followed.publication.newest)

    def _has_more(self, followed: _Followed) -> bool:
        with self._lock:
            return followed.has_updates or bool(followed.sessions)

    def _give_back(
        self, followed: _Followed, sessions: dict[str, SessionLog | None], error: LithifyError | None = None
    ) -> None:
        """`error`: of the state, which pauses the job run."""
        with self._lock:
            followed.sessions = {**sessions, **followed.sessions}
            followed.has_updates = followed.must_load = True
            if error is not None:
                followed.failed(error, self._settings.backoff, self._clock)

    def _forget(self, followed: _Followed) -> None:
        with self._lock:
            if self._followed.get(followed.publication.job_run_id) is followed:
                del self._followed[followed.publication.job_run_id]

    # -- topics

    def _pending(self) -> list[_Followed]:
        """With the lock held."""
        return [each for each in self._followed.values() if each.is_due]

    def _due(self) -> list[_Followed]:
        """With the lock held. Without paused ones, but one that leaves gets its last try at once."""
        now_seconds = self._clock.monotonic_seconds()
        return [each for each in self._pending() if each.is_leaving or each.not_before_seconds <= now_seconds]

    def _give_up(self, topic_arn: str | None, error: Exception) -> None:
        pauses = self._settings.backoff
        if not isinstance(error, Unavailable):
            pauses = Backoff(pauses.longest_seconds, pauses.longest_seconds)
            self._mark_unpublished(topic_arn)
        seconds = self._topics[topic_arn].failed(error, pauses, self._clock)
        emit = LOG.warning if isinstance(error, Unavailable) and not isinstance(error, Denied) else LOG.error
        kind = kind_of(error)
        emit("events_not_published", topic=topic_arn, error_kind=kind, reason=str(error), again_in_seconds=seconds)
        with self._lock:
            leaving = [
                each for each in self._followed.values() if each.is_leaving and each.publication.topic_arn == topic_arn
            ]
        for followed in leaving:  # its next dispatcher publishes it
            self._forget(followed)

    def _mark_unpublished(self, topic_arn: str | None) -> None:
        """Marks ended job runs of a topic that refuses events: dispatchers skip them, `lithify events publish` finds
        them."""
        with self._lock:
            ended = [
                each for each in self._followed.values() if each.is_ending and each.publication.topic_arn == topic_arn
            ]
            pending = sum(each.is_refused for each in self._followed.values())
        for followed in ended:
            if followed.is_refused or not self._is_answered(followed):
                continue
            try:
                self._records.history.record(followed.publication.ended)
                self._records.record_shard_end(followed.publication.newest)
                self._records.mark_unpublished(followed.publication.job_run_id)
            except LithifyError as error:
                LOG.warning("refused_job_run_not_marked", job_run_id=followed.publication.job_run_id, reason=str(error))
                return
            followed.is_refused = True
            self._answers.leave(followed.publication.job_run_id)
            pending += 1
            if pending > REFUSED_MAX:
                self._forget(followed)


def publish_to_the_end(records: JobRunStore, job_run_id: str, sink_for: Callable[[str | None], EventSink]) -> bool:
    """Publishes all pending events of a job run, from the cursors on. Returns False if it has not ended: then its
    dispatcher publishes. Raises the errors of the topic and the store; nothing is lost then."""
    log = records.log(job_run_id)
    state = log.load().state
    if state.ended is None and state.rejected is None:
        return False
    publication = JobRunPublication(job_run_id, log, state)
    sink = sink_for(publication.topic_arn)
    if not isinstance(sink, NoSink):
        publication.publish_pending(records, sink, launched(state))
    records.history.record(publication.ended)
    records.record_shard_end(publication.newest)
    records.mark_published(job_run_id)
    if state.waiters and records.callbacks.has_tokens(job_run_id):
        records.mark_over(job_run_id)  # a dispatcher must answer them
    return True
