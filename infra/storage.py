"""The bucket of the lake: tables, their logs, and the dispatcher's records.

Not versioned: nothing durable is ever overwritten, and what garbage collection deletes should be gone (and not paid
for). The one promise that everything rests on is kept by the bucket itself: an entry of a log is created once, by
put-if-absent, and is never deleted, whatever a client does and whoever it is.
"""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

# Every log lies in a folder named `log` (compactor/catalog/FORMAT.md). Checkpoints and hints lie there too, under other
# names, and may be replaced.
LOG_ENTRIES = (f"*/log/{'?' * 20}.json",)

ABANDONED_UPLOAD_DAYS = 7


class LakeStorage(Construct):
    """`bucket` outlives the stack: a lake is not deleted with the service that compacts it."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            removal_policy=RemovalPolicy.RETAIN,
        )
        # A writer that died leaves the parts of its upload, which no listing shows and which are paid for.
        self.bucket.add_lifecycle_rule(
            id="AbandonedUploads", abort_incomplete_multipart_upload_after=Duration.days(ABANDONED_UPLOAD_DAYS)
        )
        self._deny("LogEntriesAreNeverDeleted", ["s3:DeleteObject", "s3:DeleteObjectVersion"], {})
        self._deny("LogEntriesAreCreatedOnce", ["s3:PutObject"], {"Null": {"s3:if-none-match": "true"}})

    def _deny(self, statement_id: str, actions: list[str], conditions: dict[str, dict[str, str]]) -> None:
        self.bucket.add_to_resource_policy(
            iam.PolicyStatement(
                sid=statement_id,
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                actions=actions,
                resources=[self.bucket.arn_for_objects(entries) for entries in LOG_ENTRIES],
                conditions=conditions,
            )
        )
