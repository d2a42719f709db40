"""A dispatcher's metrics, as monitoring reads them: Prometheus' text, and CloudWatch's embedded metric format.

Both have the same source: counts since the start of the process, and current values. CloudWatch sums values, so a line
has the growth of a count since the line before.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TextIO

from compactor.model.clock import Clock
from compactor.model.errors import Invalid
from dispatcher.records.metrics_samples import Metric, Sample

_NAMESPACE = re.compile(r"(?!AWS/)[A-Za-z0-9_.:/#-]{1,255}")
_PREFIX = "lithify"
_CLOUDWATCH_UNITS = {"seconds": "Seconds", "bytes": "Bytes", "count": "Count", "usd": "None"}

JOB_RUNS = Metric("job_runs", "count", "Open job runs that this dispatcher knows of, by state.", counts=False)
QUEUE_AGE = Metric(
    "queue_age", "seconds", "Age of the oldest message that waits on the queue, at most; 0: none waits.", False
)
EVENTS_WAITING = Metric("events_waiting", "count", "Job runs with events that could not be published.", counts=False)
WORKFLOWS_WAITING = Metric("workflows_waiting", "count", "Task tokens that are to be answered.", counts=False)
TROUBLES = Metric("troubles", "count", "Services that are not reached.", counts=False)
OWNERLESS_CLUSTERS = Metric(
    "ownerless_clusters", "count", "Clusters that no open session owned when they were last looked at.", counts=False
)

FIRST_ACTION = {
    "TableLate": (
        "A table's oldest row has been waiting for ten minutes more than its policy allows: `lithify report tables` "
        "says which, `lithify keeper plan` why it is not compacted"
    ),
    "JobRunFailed": "A job run has failed: `lithify status` says which, `lithify status ID` why",
    "KeeperSilent": "No keeper looks at the tables: nothing is compacted or collected. Its log says why",
    "KeeperFails": "The keeper fails for a table, or does not reach a service: its `/ready` and its log say what",
}
"""What each alarm means, and what to do first."""

Samples = Callable[[], Iterable[Sample]]


def prometheus_text(samples: Iterable[Sample]) -> bytes:
    """In Prometheus' text format, version 0.0.4."""
    from prometheus_client import generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector, CollectorRegistry

    families: dict[str, Family] = {}
    for sample in samples:
        metric, labels = sample.metric, dict(sample.labels)
        name, names, values = prometheus_name(metric), list(labels), list(labels.values())
        if metric.buckets:
            bounds = [*map(str, map(float, metric.buckets)), "+Inf"]
            histogram = HistogramMetricFamily(name, metric.help, labels=names)
            histogram.add_metric(values, list(zip(bounds, accumulate(sample.observed))), sample.value)
            families[name] = histogram
            continue
        kind = CounterMetricFamily if metric.counts else GaugeMetricFamily
        family = families.setdefault(name, kind(name, metric.help, labels=names))
        family.add_sample(f"{name}_total" if metric.counts else name, labels, sample.value)

    class Collected(Collector):
        def collect(self) -> Iterator[Family]:
            yield from families.values()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return generate_latest(registry)


def prometheus_name(metric: Metric) -> str:
    """Without the `_total` of a counter, and the `_bucket`, `_sum` and `_count` of a histogram."""
    return f"{_PREFIX}_{metric.name}{'' if metric.unit == 'count' else f'_{metric.unit}'}"


def parse_namespace(text: str) -> str:
    """Raises `Invalid` for a namespace that CloudWatch does not accept."""
    if _NAMESPACE.fullmatch(text) is None:
        raise Invalid(
            f"{text!r} is no namespace of CloudWatch: write letters, digits and . - _ : / #, not AWS/ at first"
        )
    return text


def embedded_lines(
    samples: Iterable[Sample], at_ms: int, properties: Mapping[str, str], namespace: str
) -> Iterator[str]:
    """A JSON line for each set of labels, which are its dimensions. `properties`: found by searching, not by graphs."""
    by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        by_labels.setdefault(sample.labels, []).append(sample)
    for labels, found in by_labels.items():
        dimensions = {_camel_case(name): value for name, value in labels}
        metrics = [
            {"Name": _camel_case(each.metric.name), "Unit": _CLOUDWATCH_UNITS[each.metric.unit]} for each in found
        ]
        directive = {"Namespace": namespace, "Dimensions": [list(dimensions)], "Metrics": metrics}
        values = {_camel_case(each.metric.name): each.value for each in found}
        head = {"_aws": {"Timestamp": at_ms, "CloudWatchMetrics": [directive]}}
        yield json.dumps({**head, **properties, **dimensions, **values})


class EmbeddedMetrics:
    """Writes lines to stdout, from where CloudWatch's agent or a container's log driver takes them. For one thread."""

    def __init__(
        self,
        namespace: str | None,
        every_seconds: float,
        samples: Samples,
        owner: str,
        clock: Clock,
        out: TextIO | None = None,
    ) -> None:
        """`namespace`: None: nothing is written."""
        self._namespace = namespace
        self._every_seconds = every_seconds
        self._samples = samples
        self._owner = owner
        self._clock = clock
        self._out = out
        self._written_at_seconds: float | None = None
        self._before: dict[tuple[Metric, tuple[tuple[str, str], ...]], float] = {}

    def write_when_due(self) -> None:
        """Never raises: a closed pipe must not end a dispatcher."""
        now_seconds = self._clock.monotonic_seconds()
        if self._written_at_seconds is None or now_seconds - self._written_at_seconds >= self._every_seconds:
            self._written_at_seconds = now_seconds
            self.write()

    def write(self) -> None:
        """Writes the growth of counts and the current values; also at the end, so that no count is lost."""
        if self._namespace is None:
            return
        grown = [self._since(sample) for sample in self._samples()]
        out = self._out if self._out is not None else sys.stdout
        try:
            for line in embedded_lines(grown, self._clock.now_ms(), {"Owner": self._owner}, self._namespace):
                out.write(f"{line}\n")
            out.flush()
        except OSError:
            return

    def _since(self, sample: Sample) -> Sample:
        if not sample.metric.counts:
            return sample
        key = (sample.metric, sample.labels)
        before, self._before[key] = self._before.get(key, 0.0), sample.value
        return Sample(sample.metric, sample.value - before, sample.labels)


def _camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
