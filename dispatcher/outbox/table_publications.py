"""Publishes the tables that sessions write, for other engines, beside the relay of events, in a thread of its own.

    a session progressed or ended --notify--> its stream is due --a round--> one publish per table, for all due streams
                                                                 |
                                                                 |--> AWS Glue, if the table names a database
                                     it fails: the table is paused, twice as long each time

The published metadata say how far each stream is published. So nothing here is durable, and nothing is lost with this
process: the first publish of a table reads all of its streams. A failure ends no session and no job run.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from compactor.catalog.properties import TableProperties
from compactor.catalog.tables import DeltaCatalog, Table
from compactor.events.publish_events import publish_event
from compactor.events.relay import Event, Subject
from compactor.log_context import LOG
from compactor.model.background import BackgroundLoop
from compactor.model.clock import Clock
from compactor.model.errors import Invalid, LithifyError, reason_of
from compactor.model.retries import Backoff
from compactor.planning.spec import JobRunSpec
from compactor.publishing.glue import GlueService
from compactor.publishing.protocol import Outcome, TablePublisher
from compactor.publishing.publication import PublishFailed, lead_glue, publish, publishers_of, with_gone_streams
from compactor.storage.keys import encode_partition
from compactor.storage.location import StoreLocation
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.sessions import SessionPin

BACKOFF = Backoff(first_seconds=5.0, longest_seconds=300.0)
"""Pauses of a table after a failure."""

RECHECK_SECONDS = 60.0
"""Time until a table without the property `publish` is checked again."""


@dataclass(frozen=True)
class TablePublicationSettings:
    """`round_seconds`: between two rounds."""

    round_seconds: float = 2.0
    backoff: Backoff = BACKOFF


@dataclass(frozen=True)
class _JobRun:
    spec: JobRunSpec
    partitions: dict[str, dict[str, str]]


@dataclass
class _Table:
    """
    Attributes:
        due: the partitions that may have new rounds, by encoded partition
        of: the job run that last reported a round of them
        publishers: None: not read yet
        properties: of the table, for which these are"""

    of: _JobRun
    due: dict[str, dict[str, str]] = field(default_factory=dict)
    publishers: tuple[TablePublisher, ...] | None = None
    properties: TableProperties | None = None
    failures: int = 0
    not_before_seconds: float = 0.0


_Place = tuple[StoreLocation, str]


class TablePublications:
    """`publish_round` is for one thread at a time. All other methods are thread-safe and quick."""

    def __init__(
        self,
        open_lake: Callable[[StoreLocation], DeltaCatalog],
        open_glue: Callable[[StoreLocation], GlueService],
        announce: Callable[[str | None, Event], None],
        settings: TablePublicationSettings,
        clock: Clock,
    ) -> None:
        """
        Args:
            open_glue: the Glue Data Catalog of a lake's region
            announce: publishes an event that is in no log"""
        self._open_lake = open_lake
        self._open_glue = open_glue
        self._glue: dict[StoreLocation, GlueService] = {}
        self._announce = announce
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._job_runs: dict[str, _JobRun] = {}
        self._tables: dict[_Place, _Table] = {}

    # -- notifications, from any thread

    def follow(self, job_run_id: str, state: JobRunState) -> None:
        """Its sessions may have committed rounds that are not published yet."""
        if state.accepted is None:
            return
        partitions = {session_id: dict(each.pin.partition) for session_id, each in state.sessions.items()}
        with self._lock:
            job_run = self._job_runs[job_run_id] = _JobRun(state.accepted.spec, partitions)
            for session_id in partitions:
                if state.sessions[session_id].attempt:
                    self._mark(job_run, session_id)

    def leave(self, job_run_id: str) -> None:
        """It has ended, or another dispatcher continues it. What was committed is published all the same."""
        with self._lock:
            self._job_runs.pop(job_run_id, None)

    @property
    def followed(self) -> frozenset[str]:
        """Job runs whose sessions may commit further rounds."""
        with self._lock:
            return frozenset(self._job_runs)

    def add_sessions(self, job_run_id: str, pins: Iterable[SessionPin]) -> None:
        """It has further sessions."""
        with self._lock:
            job_run = self._job_runs.get(job_run_id)
            if job_run is not None:
                job_run.partitions.update((pin.session_id, dict(pin.partition)) for pin in pins)

    def notify(self, job_run_id: str, session_id: str) -> None:
        """The session may have committed a round."""
        with self._lock:
            job_run = self._job_runs.get(job_run_id)
            if job_run is not None and session_id in job_run.partitions:
                self._mark(job_run, session_id)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is due, except for paused tables."""
        with self._lock:
            return not self._due()

    # -- publishing, in one thread

    def loop(self, ends: threading.Event) -> BackgroundLoop:
        """Its rounds, of which none raises."""
        return BackgroundLoop("table-publications", self.publish_round, self._settings.round_seconds, ends=ends)

    def publish_round(self) -> None:
        with self._lock:
            due = self._due()
        for place in due:
            self._publish(place)

    def _mark(self, job_run: _JobRun, session_id: str) -> None:
        """With the lock held."""
        place = (job_run.spec.lake, job_run.spec.destination_compacted_table_id)
        table = self._tables.setdefault(place, _Table(job_run))
        partition = job_run.partitions[session_id]
        table.of, table.due[encode_partition(partition)] = job_run, partition

    def _due(self) -> list[_Place]:
        """With the lock held."""
        now_seconds = self._clock.monotonic_seconds()
        return [place for place, each in self._tables.items() if each.due and each.not_before_seconds <= now_seconds]

    def _publish(self, place: _Place) -> None:
        with self._lock:
            table = self._tables[place]
            due, table.due = table.due, {}
            job_run = table.of
        try:
            failed = self._publish_due(place, table, due, job_run)
        except LithifyError as error:  # the lake, or its logs
            failed = True
            LOG.warning("table_not_published", table=place[1], reason=str(error))
        except Exception as error:  # noqa: BLE001  (a defect of a publisher must not end the thread, nor a dispatcher)
            failed = True
            LOG.error("table_not_published", table=place[1], reason=reason_of(error))
        if failed:
            self._pause(table, due)
        else:
            table.failures = 0

    def _publish_due(self, place: _Place, table: _Table, due: dict[str, dict[str, str]], job_run: _JobRun) -> bool:
        """Publishes the due streams of a table. Returns whether a stream must be tried again."""
        location, table_id = place
        catalog = self._open_lake(location)
        try:
            opened = catalog.table(table_id)
        except Invalid as error:  # it was dropped: there is nothing to publish until another one has rounds
            LOG.info("table_not_published", table=table_id, reason=str(error))
            table.publishers = None
            return False
        if not opened.properties.publish:
            table.publishers = None
            table.not_before_seconds = self._clock.monotonic_seconds() + RECHECK_SECONDS
            return False
        known = table.publishers or ()
        is_new = not known or table.properties != opened.properties
        if is_new:
            known, table.properties = publishers_of(catalog.store, opened, self._clock), opened.properties
        streams = [opened.stream(partition) for partition in (opened.partitions() if is_new else due.values())]
        published = publish(known, with_gone_streams(opened, known, streams))
        outcomes = (*published, *self._lead_glue(catalog, opened, published))
        subject = Subject(job_run.spec.job_run_id, job_run.spec.source_table_id)
        for outcome in outcomes:
            event = publish_event(subject, table_id, outcome, self._clock.now_ms())
            if event is not None:
                self._announce(job_run.spec.sns_event_topic_arn, event)
        failed = any(isinstance(each, PublishFailed) for each in outcomes)
        table.publishers = None if failed else known
        return failed

    def _lead_glue(
        self, catalog: DeltaCatalog, table: Table, outcomes: Sequence[Outcome | PublishFailed]
    ) -> tuple[PublishFailed, ...]:
        if table.properties.glue_database is None:
            return ()
        location = catalog.location
        service = self._glue.get(location) or self._open_glue(location)
        failed = lead_glue(service, catalog.store, table, outcomes)
        self._glue.pop(location, None)
        if not failed:  # botocore reads the credentials file once: after a failure a new client reads it again
            self._glue[location] = service
        return failed

    def _pause(self, table: _Table, due: dict[str, dict[str, str]]) -> None:
        settings = self._settings
        with self._lock:
            table.due = due | table.due
            table.failures += 1
            seconds = settings.backoff.seconds(table.failures)
            table.not_before_seconds = self._clock.monotonic_seconds() + seconds
