"""Everything that Lithify keeps in an AWS account, one construct per concern, and where to find it."""

from __future__ import annotations

from aws_cdk import BootstraplessSynthesizer, CfnOutput, Stack
from constructs import Construct

from infra.dispatcher_access import DispatcherAccess
from infra.events import EventsTopic
from infra.queues import InstructionQueues
from infra.storage import LakeStorage


class LithifyStack(Stack):
    """Names no account and no region: it is deployed to whichever the caller's credentials lead to."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Lithify: compacts data lake tables",
            # There is nothing to upload before the template, so the account needs no preparation for the CDK.
            synthesizer=BootstraplessSynthesizer(),
        )
        storage = LakeStorage(self, "Lake")
        queues = InstructionQueues(self, "Queues")
        events = EventsTopic(self, "Events")
        access = DispatcherAccess(self, "DispatcherAccess", storage, queues, events)

        self._tell("LakeUri", f"s3://{storage.bucket.bucket_name}", "the lake's root URI")
        self._tell("InstructionQueueUrl", queues.instructions.queue_url, "where instruction documents are sent")
        self._tell("DeadLetterQueueUrl", queues.dead_letters.queue_url, "where documents lie that can never work")
        self._tell("EventTopicArn", events.topic.topic_arn, "where events are published")
        self._tell("DispatcherPolicyArn", access.policy.managed_policy_arn, "attach it to the dispatcher's role")

    def _tell(self, name: str, value: str, description: str) -> None:
        CfnOutput(self, name, value=value, description=description)
