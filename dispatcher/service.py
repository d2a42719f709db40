"""The dispatcher as a running service: threads that receive, tick, publish and answer workflows; and their common end.

stop requested -> nothing more is received -> running sessions may end, for drain_seconds -> Spark jobs are left running
               -> claims are released -> the next dispatcher attaches to running jobs -> pending events are published

If no dispatcher can attach to them, or a user has pressed Ctrl-C, Spark jobs are stopped instead (`stops_jobs`), and
the next dispatcher continues from the logs.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from compactor.log_context import LOG, Logged
from compactor.model.background import BackgroundLoop
from compactor.model.clock import Clock
from compactor.model.errors import Unavailable
from dispatcher.intake.receiver import Receiver
from dispatcher.operations.health import GONE_AFTER_SECONDS, HealthFile
from dispatcher.operations.http_server import Observed
from dispatcher.operations.metrics import (
    EVENTS_WAITING,
    JOB_RUNS,
    OWNERLESS_CLUSTERS,
    QUEUE_AGE,
    TROUBLES,
    WORKFLOWS_WAITING,
    EmbeddedMetrics,
)
from dispatcher.operations.ownerless import sweep_once
from dispatcher.records.history_upkeep import HistoryUpkeep
from dispatcher.records.metrics_samples import Sample
from dispatcher.running.job_run_controller import JobRunController
from dispatcher.running.journal import Listeners
from dispatcher.workflow.dispatcher_task import DispatcherTask
from launcher.clusters.workers import Workers
from launcher.sweep import INTERVAL_SECONDS, Sweep


class DrainJobs(StrEnum):
    """Whether Spark jobs that outlast a drain are stopped. After Ctrl-C they are stopped in any case."""

    AUTO = "auto"
    LEAVE = "leave"
    STOP = "stop"

    def stops_them(self, *, run_elsewhere: bool, process_id: int) -> bool:
        """The end of a container's first process ends all other processes in it, but no cluster on other machines."""
        return self is DrainJobs.STOP or (self is DrainJobs.AUTO and process_id == 1 and not run_elsewhere)


NOT_EVERYTHING_DONE = "it was stopped before everything was done: the next dispatcher goes on"


@dataclass(frozen=True)
class ServiceSettings:
    """
    Attributes:
        drain_seconds: that running sessions get after a stop was requested
        until_idle: stop as soon as the queue is empty and every job run has ended
        metrics_namespace: of metrics that are written to stdout in CloudWatch's embedded format; None: none are
        metrics_seconds: between two writes of them: CloudWatch's metrics have one value a minute
        health_file: the report of services that are not reached, rewritten every `health_seconds`; None: no file
        gone_after_seconds: age of a report that says that the dispatcher hangs or has ended
        cluster_sweep_seconds: between two looks for clusters without an owner; after two that find one, it is ended"""

    drain_seconds: float = 60.0
    until_idle: bool = False
    health_file: Path | None = None
    health_seconds: float = 5.0
    gone_after_seconds: float = GONE_AFTER_SECONDS
    cluster_sweep_seconds: float = INTERVAL_SECONDS
    metrics_namespace: str | None = None
    metrics_seconds: float = 60.0


def health_file(settings: ServiceSettings, owner: str, clock: Clock, warnings: tuple[str, ...] = ()) -> HealthFile:
    return HealthFile(
        settings.health_file, owner, settings.health_seconds, clock, settings.gone_after_seconds, warnings
    )


@dataclass(frozen=True)
class Background:
    """The background work of a dispatcher beside its job runs, each in a thread of its own.

    Attributes:
        history: the upkeep of the history; None: another dispatcher does it
        sweep: of clusters without an owner, if sessions run on clusters that outlive their dispatchers
        task: where a workflow waits for the dispatcher itself
        workers: processes for small sessions, which live as long as it runs"""

    history: HistoryUpkeep | None = None
    sweep: Sweep | None = None
    task: DispatcherTask | None = None
    workers: Workers | None = None


class Dispatcher:
    """Runs until it is stopped, or until its queue turns out to be invalid."""

    def __init__(
        self,
        receiver: Receiver,
        controller: JobRunController,
        listeners: Listeners,
        health: HealthFile,
        settings: ServiceSettings,
        clock: Clock,
        *,
        background: Background = Background(),
    ) -> None:
        self._receiver = receiver
        self._controller = controller
        self._publisher = listeners.publisher
        self._answers = listeners.answers
        self._tables = listeners.tables
        self._metrics = listeners.metrics
        self._health = health
        self._settings = settings
        self._history = background.history
        self._sweep = background.sweep
        self._task = background.task
        self._workers = background.workers
        self._embedded_metrics = EmbeddedMetrics(
            settings.metrics_namespace,
            settings.metrics_seconds,
            self.samples,
            health.owner,
            clock,
        )

    def run(self, stops: threading.Event, stops_jobs: Callable[[], bool] = lambda: True) -> tuple[str, ...]:
        """Returns after a drain: the work that is left, in sentences, if it was to run until idle; otherwise nothing.
        Raises the error that made receiving impossible, also after a drain.

        Args:
            stops_jobs: asked at the end of the drain: whether Spark jobs that still run are stopped, or left running"""
        LOG.info("dispatcher_started")
        loops_end = threading.Event()
        with ExitStack() as loops, ThreadPoolExecutor(1, thread_name_prefix="receiver") as thread:
            if self._workers is not None:
                loops.callback(self._workers.close)
                self._workers.start()
            for loop in self._loops(loops_end, stops):
                loops.enter_context(loop)
            receiving = thread.submit(self._receiver.run, stops)
            try:
                is_done = False
                while not stops.is_set() and not receiving.done() and not is_done:
                    self._controller.tick()
                    self._report()
                    is_done = self._is_done()
                    if not is_done:
                        self._controller.wait_for_tick(stops)
                stops.set()
                self._controller.drain(self._settings.drain_seconds, stops_jobs)
            finally:
                # Also if a tick broke: no thread may outlive this.
                stops.set()
                self._controller.stop(stops_jobs=stops_jobs())
                loops_end.set()
        self._answers.flush()
        self._tables.publish_round()  # the flush below publishes its events
        self._publisher.flush()
        self._embedded_metrics.write()
        receiving.result()
        LOG.info("dispatcher_stopped")
        return self._left(is_done=is_done) if self._settings.until_idle else ()

    @property
    def spark_jobs_left(self) -> int:
        """The number of Spark jobs that may still run, after a drain that did not stop them."""
        return self._controller.spark_jobs_left

    def _loops(self, ends: threading.Event, stops: threading.Event) -> Iterator[BackgroundLoop]:
        """What it does beside its job runs, until `ends` is set."""
        yield self._publisher.loop(ends)
        yield self._answers.loop(ends)
        yield self._tables.loop(ends)
        if self._history is not None:
            yield self._history.loop(ends)
        if self._sweep is not None:
            sweep, seconds = partial(sweep_once, self._sweep), self._settings.cluster_sweep_seconds
            yield BackgroundLoop("sweep", sweep, seconds, at_once=True, ends=ends)
        if self._task is not None:
            yield self._task.loop(ends, stops, lambda: self.stuck)

    # -- its state, for any thread

    @property
    def stuck(self) -> tuple[str, ...]:
        """Its loops that hang, by name."""
        return self._controller.stuck

    @property
    def troubles(self) -> dict[str, Exception]:
        """The last error of each service that it does not reach, by the service's name."""
        own = {
            "queue": self._receiver.last_error,
            "state": self._controller.last_error,
            "workflows": self._answers.last_error,
            "workflow of this dispatcher": self._task.last_error if self._task is not None else None,
        }
        return {
            **{place: error for place, error in own.items() if error is not None},
            **self._publisher.troubles,
        }

    @property
    def observed(self) -> Observed:
        return Observed(lambda: self.stuck, lambda: self.troubles, self.samples)

    def samples(self) -> Iterator[Sample]:
        yield from self._metrics.samples()
        for state, count in self._controller.job_runs_by_state().items():
            yield Sample(JOB_RUNS, count, (("state", state),))
        yield Sample(QUEUE_AGE, self._receiver.queue_age_seconds)
        yield Sample(EVENTS_WAITING, self._publisher.waiting_count)
        yield Sample(WORKFLOWS_WAITING, self._answers.waiting_count)
        yield Sample(TROUBLES, len(self.troubles))
        if self._sweep is not None:
            yield Sample(OWNERLESS_CLUSTERS, self._sweep.ownerless_count)

    def _report(self) -> None:
        self._embedded_metrics.write_when_due()
        with Logged("health_not_written", Unavailable):
            self._health.write_when_due(self.troubles, self._controller.job_runs_held)

    def _is_done(self) -> bool:
        # The queue is counted while the last job runs are at work, and again last: one may have been taken meanwhile.
        return (
            self._settings.until_idle
            and self._receiver.is_empty()
            and self._controller.is_idle
            and self._answers.is_idle
            and self._tables.is_idle
            and self._publisher.is_idle
            and self._receiver.is_empty()
        )

    def _left(self, *, is_done: bool) -> tuple[str, ...]:
        stopped = () if is_done else (NOT_EVERYTHING_DONE,)
        aside = (
            f"job run {job_run_id} was set aside, its log cannot be read: `lithify status` says why"
            for job_run_id in self._controller.quarantined
        )
        paused = (f"job run {job_run_id} waits: it is paused" for job_run_id in self._controller.paused)
        unpublished = (
            f"not all events of job run {job_run_id} could be published: send them with `lithify events publish`"
            for job_run_id in sorted(self._publisher.followed)
        )
        return (*stopped, *aside, *paused, *(unpublished if is_done else ()))
