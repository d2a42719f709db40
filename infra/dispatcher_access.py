"""What a dispatcher may do, and nothing else: a managed policy for the role of whatever machine runs it."""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.events import EventsTopic
from infra.queues import InstructionQueues
from infra.storage import LakeStorage


class DispatcherAccess(Construct):
    """`policy` also serves the Spark jobs that a dispatcher starts on its own machine, which write the lake's files."""

    def __init__(
        self, scope: Construct, construct_id: str, storage: LakeStorage, queues: InstructionQueues, events: EventsTopic
    ) -> None:
        super().__init__(scope, construct_id)
        self.policy = iam.ManagedPolicy(
            self,
            "Policy",
            description="Lithify's dispatcher: takes instructions, writes the lake, publishes events",
            statements=[
                _allow(
                    "TakeInstructions",
                    ["ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl", "ReceiveMessage"],
                    service="sqs",
                    resource=queues.instructions.queue_arn,
                ),
                _allow(
                    "RefuseInstructions",
                    ["GetQueueAttributes", "GetQueueUrl", "SendMessage"],
                    service="sqs",
                    resource=queues.dead_letters.queue_arn,
                ),
                _allow("PublishEvents", ["Publish"], service="sns", resource=events.topic.topic_arn),
                _allow("ListLake", ["ListBucket"], service="s3", resource=storage.bucket.bucket_arn),
                # What may be written once only, and what may never be deleted, the bucket knows (infra/storage.py).
                _allow(
                    "ReadAndWriteLake",
                    ["AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject"],
                    service="s3",
                    resource=storage.bucket.arn_for_objects("*"),
                ),
            ],
        )


def _allow(statement_id: str, actions: list[str], *, service: str, resource: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        sid=statement_id, actions=[f"{service}:{action}" for action in actions], resources=[resource]
    )
