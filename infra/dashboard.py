"""The dashboard: the age of the oldest instruction, time against what was expected, cost, job runs, retries, lag."""

from collections.abc import Sequence

from dispatcher.operations import lag_board, metrics, table_lag
from dispatcher.records import metrics_samples as samples
from infra.alarms import PERIOD_SECONDS, metric_name
from infra.dispatcher_environment import metrics_namespace
from infra.permissions import JsonObject
from infra.queues import QueueNames
from infra.stages import Stage

WIDTH, HEIGHT = 12, 6

Line = list[object]


def dashboard_body(stage: Stage, region: str, queues: QueueNames) -> JsonObject:
    return {
        "widgets": [
            {
                "type": "metric",
                "x": WIDTH * (number % 2),
                "y": HEIGHT * (number // 2),
                "width": WIDTH,
                "height": HEIGHT,
                "properties": {"title": title, "region": region, "period": PERIOD_SECONDS, "metrics": lines},
            }
            for number, (title, lines) in enumerate(_graphs(stage, queues))
        ]
    }


def _graphs(stage: Stage, queues: QueueNames) -> Sequence[tuple[str, list[Line]]]:
    """Each graph's title and lines, in the order of the dashboard."""
    ours = metrics_namespace(stage)

    def total(of: samples.Metric, statistic: str, label: str) -> Line:
        return [ours, metric_name(of), {"stat": statistic, "label": label}]

    def by(label: str, of: samples.Metric, statistic: str) -> Line:
        search = f"SEARCH('{{{ours},{label}}} MetricName=\"{metric_name(of)}\"', '{statistic}', {PERIOD_SECONDS})"
        return [{"expression": search}]

    return (
        (
            "Age of the oldest instruction that waits to be taken, seconds",
            [
                _of_queue("ApproximateAgeOfOldestMessage", queues.instructions, "as the queue sees it"),
                total(metrics.QUEUE_AGE, "Maximum", "as dispatchers see it"),
            ],
        ),
        (
            "Age of the oldest file that has landed and waits to be taken in, seconds",
            [_of_queue("ApproximateAgeOfOldestMessage", queues.announcements, "as the queue sees it")],
        ),
        (
            "Waiting",
            [
                _messages(queues.instructions, "instructions"),
                _messages(queues.dead_letters, "dead letters"),
                _messages(queues.announcements, "announced files"),
                _messages(queues.refused, "refused files"),
                total(metrics.EVENTS_WAITING, "Maximum", "job runs whose events wait"),
                total(metrics.WORKFLOWS_WAITING, "Maximum", "workflows"),
            ],
        ),
        (
            "Job runs: seconds, actual and expected",
            [
                total(samples.JOB_RUN_SECONDS, "Sum", "actual"),
                total(samples.JOB_RUN_EXPECTED, "Sum", "expected"),
                total(samples.JOB_RUNS_LATE, "Sum", "later than desired"),
            ],
        ),
        (
            "Sessions: seconds, actual and expected",
            [
                total(samples.SESSION_SECONDS, "Sum", "actual"),
                total(samples.SESSION_EXPECTED, "Sum", "expected"),
            ],
        ),
        ("Job runs by state", [by("State", metrics.JOB_RUNS, "Maximum")]),
        ("Job runs that ended", [by("Status", samples.JOB_RUNS_ENDED, "Sum")]),
        (
            "Retries, by kind of error",
            [by("ErrorKind", samples.RETRIES, "Sum"), total(samples.CONFLICTS, "Sum", "overtaken")],
        ),
        (
            "Money: US dollars, used and expected",
            [total(samples.COST, "Sum", "used"), total(samples.EXPECTED_COST, "Sum", "expected")],
        ),
        (
            "Sessions that run",
            [
                total(samples.SESSIONS_RUNNING, "Sum", "running"),
                total(samples.HEARTBEAT_AGE, "Maximum", "seconds since the quietest has progressed"),
            ],
        ),
        (
            "Lag of tables, seconds",
            [by("Table", table_lag.TABLE_LAG, "Maximum"), by("Table", table_lag.TABLE_LAG_BOUND, "Maximum")],
        ),
        (
            "Rows and small files of tables that wait",
            [by("Table", table_lag.TABLE_PENDING_ROWS, "Maximum"), by("Table", table_lag.TABLE_SMALL_FILES, "Maximum")],
        ),
        ("Lag of what is published, seconds", [by("Table", table_lag.TABLE_PUBLISHED_LAG, "Maximum")]),
        (
            "Keeper",
            [
                total(table_lag.TABLES_WATCHED, "Maximum", "tables"),
                total(table_lag.TABLES_LATE, "Maximum", "late tables"),
                total(lag_board.KEEPER_LOOKS, "Sum", f"looks in {PERIOD_SECONDS} s"),
                total(lag_board.KEEPER_TROUBLES, "Maximum", "failures"),
            ],
        ),
        (
            "Dispatchers",
            [
                total(metrics.EVENTS_WAITING, "SampleCount", f"reports in {PERIOD_SECONDS} s"),
                total(metrics.TROUBLES, "Maximum", "services not reached"),
                total(metrics.OWNERLESS_CLUSTERS, "Maximum", "clusters without an owner"),
            ],
        ),
    )


def _messages(queue_name: str, label: str) -> Line:
    return _of_queue("ApproximateNumberOfMessagesVisible", queue_name, label)


def _of_queue(metric: str, queue_name: str, label: str) -> Line:
    return ["AWS/SQS", metric, "QueueName", queue_name, {"stat": "Maximum", "label": label}]
