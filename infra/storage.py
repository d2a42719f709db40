"""The buckets: one for lakes, and one for the state (job runs, task tokens, signs of life), archive and Spark's logs.

Not versioned: nothing durable is ever overwritten, and objects that garbage collection deletes must not be kept and
billed. The buckets themselves enforce the main invariant: a log entry is created once, by put-if-absent, and is never
deleted by any client.

Task tokens are secrets of the workflows that wait for job runs. The state's bucket lets only roles with a tag read
them: the dispatcher's. A Spark job in the dispatcher's own task has the dispatcher's role, and so can read them.
"""

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.access.places import DISPATCHER_TAG, LOG_FOLDER
from infra.stages import Stage

# Every log is in a folder named `log` (compactor/catalog/FORMAT.md). Checkpoints, hints and long lists are there too,
# under other names: they may be replaced, or deleted where no entry names them.
LOG_ENTRIES = (f"*/log/{'?' * 20}.json",)

# (This also affects a job run with the id `task_tokens`: a role without the tag cannot run its sessions.)
TASK_TOKENS = ("task_tokens/*", "*/task_tokens/*")

ABANDONED_UPLOAD_DAYS = 7


class Storage(Construct):
    """Both buckets outlive the stack: a lake is not deleted with the service that compacts it."""

    def __init__(self, scope: Construct, construct_id: str, stage: Stage, key: kms.IKey) -> None:
        super().__init__(scope, construct_id)
        self.lakes = self._bucket("Lakes", None, key)
        self.state = self._bucket("State", stage.state_bucket or None, key)
        tag, value = DISPATCHER_TAG
        # A missing tag does not equal the value either, so a principal without the tag is denied.
        untagged = {"StringNotEquals": {f"aws:PrincipalTag/{tag}": value}}
        for bucket in (self.lakes, self.state):
            _deny(bucket, "LogEntriesAreNeverDeleted", ["s3:DeleteObject", "s3:DeleteObjectVersion"], LOG_ENTRIES, {})
            absent = {"Null": {"s3:if-none-match": "true"}}
            _deny(bucket, "LogEntriesAreCreatedOnce", ["s3:PutObject"], LOG_ENTRIES, absent)
            _deny(
                bucket, "TaskTokensAreReadByDispatchers", ["s3:GetObject", "s3:GetObjectVersion"], TASK_TOKENS, untagged
            )
        self.state.add_lifecycle_rule(id="SparkLogs", prefix=f"{LOG_FOLDER}/", expiration=Duration.days(stage.log_days))

    def _bucket(self, construct_id: str, name: str | None, key: kms.IKey) -> s3.Bucket:
        bucket = s3.Bucket(
            self,
            construct_id,
            bucket_name=name,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.KMS,
            encryption_key=key,
            bucket_key_enabled=True,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            removal_policy=RemovalPolicy.RETAIN,
        )
        # A killed writer leaves the parts of its upload. No listing shows them, and they are billed.
        bucket.add_lifecycle_rule(
            id="AbandonedUploads", abort_incomplete_multipart_upload_after=Duration.days(ABANDONED_UPLOAD_DAYS)
        )
        return bucket


def _deny(
    bucket: s3.Bucket,
    statement_id: str,
    actions: list[str],
    objects: tuple[str, ...],
    conditions: dict[str, dict[str, str]],
) -> None:
    bucket.add_to_resource_policy(
        iam.PolicyStatement(
            sid=statement_id,
            effect=iam.Effect.DENY,
            principals=[iam.AnyPrincipal()],
            actions=actions,
            resources=[bucket.arn_for_objects(each) for each in objects],
            conditions=conditions,
        )
    )


def encryption_key(scope: Construct, construct_id: str, stage: Stage) -> kms.IKey:
    if stage.key_arn:
        return kms.Key.from_key_arn(scope, construct_id, stage.key_arn)
    key = kms.Key(
        scope,
        construct_id,
        description=f"Lithify {stage.name}: lakes, state, queues, topics",
        enable_key_rotation=True,
        removal_policy=RemovalPolicy.RETAIN,
    )
    # These services send to encrypted topics and queues themselves.
    senders = {"AlarmsArePublished": "cloudwatch", **({"FilesAreAnnounced": "events"} if stage.landing else {})}
    for statement_id, service in senders.items():
        key.add_to_resource_policy(
            iam.PolicyStatement(
                sid=statement_id,
                principals=[iam.ServicePrincipal(f"{service}.amazonaws.com")],
                actions=["kms:Decrypt", "kms:GenerateDataKey"],
                resources=["*"],
            )
        )
    return key
