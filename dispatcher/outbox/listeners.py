"""Listeners to the progress of job runs: the publisher of events, answers to workflows, metrics, and the publisher of
the tables that sessions write."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.outbox.event_publisher import EventPublisher
from dispatcher.outbox.table_publications import TablePublications
from dispatcher.outbox.workflow_callbacks import WorkflowAnswers
from dispatcher.records.metrics_samples import Meter
from dispatcher.records.work_id import WorkId


@dataclass(frozen=True)
class Listeners:
    """Thread-safe: each has its own thread, or none."""

    publisher: EventPublisher
    answers: WorkflowAnswers
    meter: Meter
    tables: TablePublications

    def session_progressed(self, job_run_id: str, session_id: str) -> None:
        """The session was planned or launched, has written to its log, or has a new heartbeat."""
        self.answers.progressed(WorkId.parse(job_run_id).job_run_id)
        self.meter.session_progressed(job_run_id, session_id)
        self.tables.moved(job_run_id, session_id)

    def leave(self, job_run_id: str) -> None:
        """Another dispatcher continues it."""
        self.publisher.leave(job_run_id)
        self.tables.leave(job_run_id)
        self.answers.leave(job_run_id)  # a shard has no waiters: its holder leaves those of the job run
