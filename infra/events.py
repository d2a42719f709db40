"""The topic to which every job run's events go; consumers subscribe with filter policies on its message attributes."""

from __future__ import annotations

from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct


class EventsTopic(Construct):
    """`topic`: standard, not FIFO. An event has its own id and sequence, so consumers can order and deduplicate."""

    def __init__(self, scope: Construct, construct_id: str, key: kms.IKey) -> None:
        super().__init__(scope, construct_id)
        self.topic = sns.Topic(self, "Topic", enforce_ssl=True, master_key=key)
