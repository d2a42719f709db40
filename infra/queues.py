"""The queues of instructions and of announced files, each with its dead letters: what can never work.

The dispatcher deletes a message as soon as its job run is durably recorded, long before the job run ends, so the
visibility timeout only has to cover the recording. It moves a document that can never work to the dead-letter queue
itself, with its reasons. The queue moves only messages there that crashed a dispatcher at every delivery. The same is
true of announcements and the ingest, which takes files in before it deletes their messages.
"""

from dataclasses import dataclass

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.stages import Stage

LONG_POLL_SECONDS = 20
"""Time of a long poll, the longest that SQS offers."""


@dataclass(frozen=True)
class QueueNames:
    """For metrics. `refused`: the dead letters of announcements."""

    instructions: str
    dead_letters: str
    announcements: str
    refused: str


class QueueWithDeadLetters(Construct):
    """`dead_letters`, for operators, outlives the stack."""

    def __init__(
        self, scope: Construct, construct_id: str, names: tuple[str, str], stage: Stage, key: kms.IKey, seconds: int
    ) -> None:
        """`names`: of the queue and of its dead letters. `seconds`: after which a message is visible again."""
        super().__init__(scope, construct_id)
        self.dead_letters = sqs.Queue(
            self,
            names[1],
            encryption=sqs.QueueEncryption.KMS,
            encryption_master_key=key,
            enforce_ssl=True,
            removal_policy=RemovalPolicy.RETAIN,
            retention_period=Duration.days(stage.dead_letter_days),
        )
        self.queue = sqs.Queue(
            self,
            names[0],
            dead_letter_queue=sqs.DeadLetterQueue(max_receive_count=stage.deliveries_max, queue=self.dead_letters),
            encryption=sqs.QueueEncryption.KMS,
            encryption_master_key=key,
            enforce_ssl=True,
            receive_message_wait_time=Duration.seconds(LONG_POLL_SECONDS),
            removal_policy=RemovalPolicy.DESTROY,
            retention_period=Duration.days(stage.retention_days),
            visibility_timeout=Duration.seconds(seconds),
        )


PAGE_FEED_MINUTES = 5
"""Minutes for which messages of the page's feed are kept: the page looks by itself more often."""


class EventsTopic(Construct):
    """`topic`: standard, not FIFO. An event has its own id and sequence, so consumers can order and deduplicate.
    `page_feed`: a queue of its events, of which the page of `lithify serve` learns where to look again."""

    def __init__(self, scope: Construct, construct_id: str, key: kms.IKey) -> None:
        super().__init__(scope, construct_id)
        self.topic = sns.Topic(self, "Topic", enforce_ssl=True, master_key=key)
        self.page_feed = sqs.Queue(
            self,
            "PageFeed",
            encryption=sqs.QueueEncryption.KMS,
            encryption_master_key=key,
            enforce_ssl=True,
            removal_policy=RemovalPolicy.DESTROY,
            retention_period=Duration.minutes(PAGE_FEED_MINUTES),
        )
        self.topic.add_subscription(subscriptions.SqsSubscription(self.page_feed, raw_message_delivery=True))
