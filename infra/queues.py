"""The instruction queue, and the dead-letter queue for documents that can never work.

The dispatcher deletes a message as soon as its job run is durably recorded, and long before the job run ends, so the
visibility timeout only has to cover the recording. It moves a document that can never work to the dead-letter queue
itself, with its reasons; what the queue moves there, after `DELIVERIES_MAX`, is a document that no dispatcher survived.
"""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_sqs as sqs
from constructs import Construct

DELIVERIES_MAX = 5
VISIBILITY_SECONDS = 120
LONG_POLL_SECONDS = 20
"""The longest that SQS offers."""
RETENTION_DAYS = 14
"""The longest that SQS offers: an instruction outlives any outage of the dispatcher."""


class InstructionQueues(Construct):
    """`instructions`, where job runs are asked for, and `dead_letters`, where a person looks."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.dead_letters = sqs.Queue(
            self,
            "DeadLetters",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=Duration.days(RETENTION_DAYS),
        )
        self.instructions = sqs.Queue(
            self,
            "Instructions",
            dead_letter_queue=sqs.DeadLetterQueue(max_receive_count=DELIVERIES_MAX, queue=self.dead_letters),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            receive_message_wait_time=Duration.seconds(LONG_POLL_SECONDS),
            retention_period=Duration.days(RETENTION_DAYS),
            visibility_timeout=Duration.seconds(VISIBILITY_SECONDS),
        )
