"""A dispatcher's counts of its own work, for metrics.

They begin with the process; the durable record is in the logs.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from compactor.model.clock import Clock
from compactor.model.errors import ErrorKind

if TYPE_CHECKING:  # who lists tables loads no job run
    from dispatcher.records.job_run_log import JobRunState
    from launcher.outcomes import SessionEnd

Unit = Literal["seconds", "bytes", "count", "usd"]

_OVERTAKEN = (ErrorKind.CONFLICT, ErrorKind.FENCED)


@dataclass(frozen=True)
class Metric:
    """
    Attributes:
        counts: True: it grows, from 0 at the start of the process; False: a gauge
        buckets: upper bounds of a histogram, whose value is the sum of what was observed; none: it has no buckets"""

    name: str
    unit: Unit
    help: str
    counts: bool = True
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sample:
    """`observed`: of a histogram, how many were in each bucket and not in one before; the last: above all bounds."""

    metric: Metric
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    observed: tuple[int, ...] = ()


JOB_RUNS_ENDED = Metric("job_runs_ended", "count", "Job runs that ended here, by how.")
JOB_RUN_SECONDS = Metric("job_run_duration", "seconds", "From acceptance to end, of job runs that had a prediction.")
JOB_RUN_EXPECTED = Metric("job_run_expected_duration", "seconds", "What that was predicted to take.")
JOB_RUNS_LATE = Metric("job_runs_late", "count", "Job runs that took longer than their desired SLA, pauses left out.")
SESSIONS_ENDED = Metric("sessions_ended", "count", "Sessions that ended here, by how.")
SESSION_SECONDS = Metric(
    "session_duration",
    "seconds",
    "Of sessions that succeeded, from their last launch.",
    buckets=(5, 15, 60, 180, 600, 1_800, 3_600, 10_800, 36_000),
)
SESSION_RATIO = Metric(
    "session_actual_over_expected",
    "count",
    "Seconds of sessions that succeeded, over what they were predicted to take.",
    buckets=(0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 5),
)
SESSION_ATTEMPTS = Metric(
    "session_attempts", "count", "Attempts of sessions that ended after one or more.", buckets=(1, 2, 3, 5, 10)
)
SESSION_EXPECTED = Metric("session_expected_duration", "seconds", "What that was predicted to take.")
ROWS = Metric("rows", "count", "Rows of sessions that succeeded, by what became of them.")
WRITTEN_BYTES = Metric("written", "bytes", "Of files that sessions which succeeded wrote to their lakes.")
COST = Metric("cost", "usd", "What sessions used, whatever their end, told at the end of their job run.")
EXPECTED_COST = Metric("expected_cost", "usd", "What they were predicted to use.")
RETRIES = Metric("session_retries", "count", "Attempts that failed and were followed by another, by kind of error.")
CONFLICTS = Metric("conflicts", "count", "Attempts that another compactor overtook.")
MESSAGES = Metric("messages_taken", "count", "Messages that were judged, by outcome.")
HEARTBEAT_AGE = Metric(
    "heartbeat_age", "seconds", "Since the running session that is quiet for longest has progressed.", counts=False
)
SESSIONS_RUNNING = Metric("sessions_running", "count", "Sessions that run here.", counts=False)


class Metrics:
    """Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[Metric, tuple[tuple[str, str], ...]]] = Counter()
        self._observed: dict[Metric, Counter[int]] = {}
        for status in ("succeeded", "failed", "cancelled"):  # Prometheus sees no growth of a count that begins with 1
            self._add(JOB_RUNS_ENDED, 0, status=status)
        self._progressed_at_seconds: dict[tuple[str, str], float] = {}

    # -- recording

    def session_progressed(self, job_run_id: str, session_id: str) -> None:
        """A session that runs here has progressed: its launch is counted."""
        now_seconds = self._clock.monotonic_seconds()
        with self._lock:
            self._progressed_at_seconds[job_run_id, session_id] = now_seconds

    def session_left(self, job_run_id: str, session_id: str) -> None:
        """A session does not run here any more, whatever its end."""
        with self._lock:
            self._progressed_at_seconds.pop((job_run_id, session_id), None)

    def session_ended(self, end: SessionEnd, attempts: int) -> None:
        """`attempts`: that were launched."""
        self._add(SESSIONS_ENDED, 1, end=end.end)
        if attempts:
            self._observe(SESSION_ATTEMPTS, attempts)
        if end.end != "succeeded":
            return
        result = end.result
        for kind, rows in (
            ("in", result.rows_in),
            ("out", result.rows_out),
            ("deduplicated", result.rows_deduplicated),
            ("deleted", result.rows_deleted),
        ):
            self._add(ROWS, rows, kind=kind)
        self._observe(SESSION_SECONDS, result.seconds)
        if result.expected_sla > 0:
            self._observe(SESSION_RATIO, result.seconds / result.expected_sla)
        self._add(SESSION_EXPECTED, result.expected_sla)
        if result.store is not None:
            self._add(WRITTEN_BYTES, result.store.written_bytes)

    def session_retried(self, error_kind: ErrorKind) -> None:
        self._add(RETRIES, 1, error_kind=error_kind)
        if error_kind in _OVERTAKEN:
            self._add(CONFLICTS, 1)

    def job_run_ended(self, state: JobRunState) -> None:
        """Once for each job run that this dispatcher concluded."""
        # Only a dispatcher's counts need job runs.
        from dispatcher.records.outcome import expected_usd, seconds_late, used_usd

        if state.ended is None:
            return
        self._add(JOB_RUNS_ENDED, 1, status=state.ended.outcome.status)
        if state.ended.expected_sla is not None:
            self._add(JOB_RUN_SECONDS, state.ended.seconds)
            self._add(JOB_RUN_EXPECTED, state.ended.expected_sla)
        for metric, usd in ((COST, used_usd(state, self._clock.now_ms())), (EXPECTED_COST, expected_usd(state))):
            if usd is not None:
                self._add(metric, usd)
        desired_sla = state.accepted.spec.desired_sla if state.accepted is not None else None
        late = seconds_late(state.ended.seconds, state.ended.paused_seconds, desired_sla)
        if late is not None and state.ended.outcome.status != "cancelled":
            self._add(JOB_RUNS_LATE, int(late > 0))

    def message_taken(self, outcome: str) -> None:
        self._add(MESSAGES, 1, outcome=outcome)

    # -- sample

    def samples(self) -> Iterator[Sample]:
        now_seconds = self._clock.monotonic_seconds()
        with self._lock:
            counts = dict(self._counts)
            observed = {
                metric: tuple(found[n] for n in range(len(metric.buckets) + 1))
                for metric, found in self._observed.items()
            }
            progressed = list(self._progressed_at_seconds.values())
        for (metric, labels), value in sorted(counts.items(), key=lambda each: (each[0][0].name, each[0][1])):
            yield Sample(metric, value, labels, observed.get(metric, ()))
        yield Sample(HEARTBEAT_AGE, now_seconds - min(progressed, default=now_seconds))
        yield Sample(SESSIONS_RUNNING, len(progressed))

    def _add(self, metric: Metric, value: float, **labels: str) -> None:
        with self._lock:
            self._counts[metric, tuple(sorted((name, str(label)) for name, label in labels.items()))] += value  # type: ignore[assignment]

    def _observe(self, histogram: Metric, value: float) -> None:
        self._add(histogram, value)
        with self._lock:
            self._observed.setdefault(histogram, Counter())[bisect_left(histogram.buckets, value)] += 1
