"""Alarms. Each is a value, so that its threshold and its reason stand side by side."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from aws_cdk import Aws
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from dispatcher.operations import lag_board, metrics, table_lag
from dispatcher.operations.metrics import FIRST_ACTION
from dispatcher.records import metrics_samples as samples
from dispatcher.service import ServiceSettings
from infra.dispatcher_environment import metrics_namespace
from infra.queues import QueueNames
from infra.stages import Stage
from launcher.verdict import WatchTimers

DAY_SECONDS = 86_400
PERIOD_SECONDS = 300
KEEPER_RUNS = "KeeperRuns"
"""The metric of the keeper's runs that ended well."""

KEEPER_RUNS_MISSED_MAX = 4
"""Runs that do not end well one after the other, before an alarm says so: one may be long, or be started late."""

READS, ACTS = "OperatorReadRole", "OperatorActRole"


@dataclass(frozen=True)
class Alarm:
    """
    Attributes:
        why: the meaning, and what to do: the first command is what to do first
        role: with which that command works
        statistic: over `period_seconds`; the alarm is raised while it is at or above `threshold`, or below it
        times: of `periods`; None: in each of them"""

    name: str
    why: str
    namespace: str
    metric: str
    threshold: float
    statistic: str = "Maximum"
    period_seconds: int = PERIOD_SECONDS
    periods: int = 1
    times: int | None = None
    role: str = READS
    is_raised_below: bool = False
    dimensions: dict[str, str] = field(default_factory=dict)


def metric_name(of: samples.Metric) -> str:
    """The metric's name in CloudWatch's embedded format, as the dispatcher writes it."""
    return "".join(part.capitalize() for part in of.name.split("_"))


def alarms(stage: Stage, queues: QueueNames) -> Iterator[Alarm]:
    yield from _of_queues(stage, queues)
    yield from _of_ingest(stage, queues)
    yield from _of_sessions(metrics_namespace(stage))
    yield from _of_dispatchers(stage, metrics_namespace(stage))
    yield from _of_clusters(stage, metrics_namespace(stage))
    yield from _of_keeper(stage, metrics_namespace(stage))


def _log_of(stage: Stage, part: str) -> str:
    return f"`aws logs tail /lithify-{stage.name}/{part}`"


def _of_queues(stage: Stage, queues: QueueNames) -> Iterator[Alarm]:
    log, queue = _log_of(stage, "dispatcher"), {"QueueName": queues.instructions}
    yield Alarm(
        "OldestInstruction",
        f"Instructions are not taken: {log} says whether dispatchers run, and what they do not reach",
        "AWS/SQS",
        "ApproximateAgeOfOldestMessage",
        stage.oldest_instruction_seconds,
        dimensions=queue,
    )
    yield Alarm(
        "InstructionsSoonLost",
        f"An instruction has waited for half of the queue's retention, at whose end SQS deletes it: {log} says why",
        "AWS/SQS",
        "ApproximateAgeOfOldestMessage",
        stage.retention_days * DAY_SECONDS / 2,
        dimensions=queue,
    )
    yield Alarm(
        "DeadLetters",
        "Documents that can never work: `lithify redrive --list` says why, `lithify redrive` sends them again",
        "AWS/SQS",
        "ApproximateNumberOfMessagesVisible",
        1,
        role=ACTS,
        dimensions={"QueueName": queues.dead_letters},
    )


def _of_ingest(stage: Stage, queues: QueueNames) -> Iterator[Alarm]:
    yield Alarm(
        "OldestAnnouncement",
        f"Files that have landed are not taken in: {_log_of(stage, 'ingest')} says whether an ingest runs, and what it "
        "does not reach",
        "AWS/SQS",
        "ApproximateAgeOfOldestMessage",
        stage.oldest_instruction_seconds,
        dimensions={"QueueName": queues.announcements},
    )
    yield Alarm(
        "FilesRefused",
        "Files that have landed cannot be taken in: "
        "`lithify redrive --list --queue-url $ANNOUNCEMENTS --dead-letter-queue-url $REFUSED_FILES` says why",
        "AWS/SQS",
        "ApproximateNumberOfMessagesVisible",
        1,
        role=ACTS,
        dimensions={"QueueName": queues.refused},
    )


def _of_sessions(ours: str) -> Iterator[Alarm]:
    yield Alarm(
        "StalledSession",
        "A session has made no progress for longer than a stall takes to be ended: `lithify status` lists open job "
        "runs, `lithify status ID` the sessions of one",
        ours,
        metric_name(samples.HEARTBEAT_AGE),
        WatchTimers.stall_seconds + WatchTimers.exit_seconds,
    )
    yield Alarm(
        "JobRunFailed",
        FIRST_ACTION["JobRunFailed"],
        ours,
        metric_name(samples.JOB_RUNS_ENDED),
        1,
        statistic="Sum",
        dimensions={"Status": "failed"},
    )
    yield Alarm(
        "SlaMissed",
        "A job run took longer than its desired SLA: `lithify status` says which",
        ours,
        metric_name(samples.JOB_RUNS_LATE),
        1,
        statistic="Sum",
    )


def _of_dispatchers(stage: Stage, ours: str) -> Iterator[Alarm]:
    log = _log_of(stage, "dispatcher")
    yield Alarm(
        "DispatchersMissing",
        f"Fewer dispatchers report than should run: {log}, and then the workflow's execution, say why",
        ours,
        metric_name(metrics.EVENTS_WAITING),
        (stage.dispatchers - 0.5) * PERIOD_SECONDS / ServiceSettings.metrics_seconds,
        statistic="SampleCount",
        periods=2,
        is_raised_below=True,
    )
    yield Alarm(
        "Troubles",
        f"A dispatcher does not reach a service: {log} says which",
        ours,
        metric_name(metrics.TROUBLES),
        1,
        periods=3,
    )
    yield Alarm(
        "EventsWaiting",
        "A topic does not accept events: fix it, then they are published; refused ones by `lithify events publish`",
        ours,
        metric_name(metrics.EVENTS_WAITING),
        1,
        role=ACTS,
        periods=3,
    )


def _of_clusters(stage: Stage, ours: str) -> Iterator[Alarm]:
    yield Alarm(
        "MoneyOfTheDay",
        "Sessions have cost more today than the stage expects: `lithify status` says which",
        ours,
        metric_name(samples.COST),
        stage.usd_per_day,
        statistic="Sum",
        period_seconds=DAY_SECONDS,
    )
    yield Alarm(
        "ClustersWithoutOwner",
        "A cluster runs that no open session owns, and was not ended: `lithify clusters --end`",
        ours,
        metric_name(metrics.OWNERLESS_CLUSTERS),
        1,
        role=ACTS,
        periods=3,
    )


def _of_keeper(stage: Stage, ours: str) -> Iterator[Alarm]:
    log, between = _log_of(stage, "keeper"), -(-stage.keeper_minutes * 60 // PERIOD_SECONDS)
    yield Alarm(
        "TableLate",
        FIRST_ACTION["TableLate"],
        ours,
        metric_name(table_lag.TABLES_LATE),
        1,
        periods=between + 1,  # so many have one run, which may begin late
        times=1,
    )
    yield Alarm(
        "KeeperSilent",
        f"{FIRST_ACTION['KeeperSilent']}: {log}",
        ours,
        KEEPER_RUNS,
        1,
        statistic="Sum",
        periods=KEEPER_RUNS_MISSED_MAX * between,
        is_raised_below=True,
    )
    yield Alarm(
        "KeeperFails",
        f"The keeper fails for a table, a service or a right: {log} says for which; until it does not, that table is "
        "not compacted, or logs grow and deleted rows stay",
        ours,
        metric_name(lag_board.KEEPER_TROUBLES),
        1,
    )


class Alarms(Construct):
    """`topic`: the topic that alarms are sent to."""

    def __init__(
        self, scope: Construct, construct_id: str, stage: Stage, key: kms.IKey, raised: Iterator[Alarm]
    ) -> None:
        super().__init__(scope, construct_id)
        self.topic = sns.Topic(self, "Topic", enforce_ssl=True, master_key=key)
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsArePublished",
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[self.topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )
        for number, address in enumerate(stage.alarm_addresses or (), start=1):
            sns.CfnSubscription(
                self, f"Address{number}", protocol="email", endpoint=address, topic_arn=self.topic.topic_arn
            )
        for each in raised:
            cloudwatch.CfnAlarm(
                self,
                each.name,
                alarm_description=f"{each.why}. Role: {each.role}.",
                namespace=each.namespace,
                metric_name=each.metric,
                dimensions=[
                    cloudwatch.CfnAlarm.DimensionProperty(name=name, value=value)
                    for name, value in each.dimensions.items()
                ],
                statistic=each.statistic,
                period=each.period_seconds,
                evaluation_periods=each.periods,
                datapoints_to_alarm=each.times,
                threshold=each.threshold,
                comparison_operator="LessThanThreshold" if each.is_raised_below else "GreaterThanOrEqualToThreshold",
                treat_missing_data="breaching" if each.is_raised_below else "notBreaching",
                alarm_actions=[self.topic.topic_arn],
                ok_actions=[self.topic.topic_arn],
            )
