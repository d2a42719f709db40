"""Permissions of the dispatcher: receives instructions, records job runs, launches Spark jobs, publishes events."""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.access.places import (
    ARCHIVE_FOLDER,
    DEPLOYMENT_TAG,
    DISPATCHER_TAG,
    Places,
    clear_hints,
    enter_tables,
    list_archive,
    list_lakes,
    list_state,
    publish_tables,
    read_lakes,
    use_key,
    write_lakes,
)
from infra.permissions import Part, Permission, actions


@dataclass(frozen=True)
class SparkRoles:
    """ARNs of the roles that a dispatcher passes to EMR, and of the application, if there is one.

    Attributes:
        service: EMR's own, None on EMR Serverless
        job: of the Spark jobs
        application: of EMR Serverless"""

    service: str | None
    job: str
    application: str | None = None


def dispatcher_part(places: Places, spark: SparkRoles | None, workers: int) -> Part:
    """Sessions that run in the dispatcher's own task have its rights: all of them without `spark`, and the small ones
    of its `workers`. Then it has the Spark job's rights to lakes, beside its own."""
    return Part(
        "dispatcher",
        "DispatcherRole",
        ("ecs-tasks",),
        (
            *_queue_and_topic(places),
            *_state_and_lakes(places, writes_lakes=spark is None or workers > 0),
            *(_launching(places, spark) if spark is not None else ()),
        ),
        tags=dict((DISPATCHER_TAG,)),
    )


def _queue_and_topic(places: Places) -> tuple[Permission, ...]:
    return (
        Permission(
            "TakeInstructions",
            "and send a copy in place of one that has waited for long",
            actions(
                "sqs",
                "ChangeMessageVisibility DeleteMessage GetQueueAttributes GetQueueUrl ReceiveMessage SendMessage",
            ),
            (places.queue,),
        ),
        Permission(
            "RefuseInstructions",
            "documents that can never work",
            actions("sqs", "GetQueueAttributes GetQueueUrl SendMessage"),
            (places.dead_letters,),
        ),
        Permission(
            "PublishEvents",
            "after a look, at its start, whether the topic exists",
            actions("sns", "GetTopicAttributes Publish"),
            (places.topic,),
        ),
        Permission(
            "AnswerWorkflows",
            "AWS knows no resource for a task token: who has it may answer it",
            actions("states", "SendTaskFailure SendTaskHeartbeat SendTaskSuccess"),
            ("*",),
        ),
        Permission(
            "MeasureExecution",
            "its own workflow's, to end before that is too long",
            actions("states", "DescribeExecution GetExecutionHistory"),
            (places.executions,),
        ),
        use_key(places, writes=True),
    )


def _state_and_lakes(places: Places, *, writes_lakes: bool) -> tuple[Permission, ...]:
    state = places.state_objects("*")
    return (
        list_state(places),
        Permission(
            "ReadAndWriteState",
            "job runs, claims, tokens, signs of life; the bucket keeps log entries from being deleted or replaced",
            actions("s3", "AbortMultipartUpload DeleteObject GetObject PutObject"),
            state,
        ),
        list_archive(places),
        Permission(
            "ReadArchive",
            "its manifest, before anything is launched with it",
            ("s3:GetObject",),
            (places.in_state_bucket(f"{ARCHIVE_FOLDER}/*"),),
        ),
        *list_lakes(places),
        *read_lakes(places),
        *((write_lakes(places), clear_hints(places)) if writes_lakes else (publish_tables(places),)),
        *enter_tables(places),
    )


def _launching(places: Places, spark: SparkRoles) -> tuple[Permission, ...]:
    if spark.service is None:
        return _serverless(places, spark)
    tagged: Mapping[str, Mapping[str, object]] = {
        "StringEquals": {f"elasticmapreduce:RequestTag/{DEPLOYMENT_TAG}": places.stack_name}
    }
    return (
        Permission(
            "LaunchClusters",
            "with this deployment's tag only; AWS knows no resource for a cluster that is not there yet",
            ("elasticmapreduce:RunJobFlow",),
            ("*",),
            tagged,
        ),
        Permission("TagClusters", "at their launch", ("elasticmapreduce:AddTags",), (_clusters(places),), tagged),
        *end_clusters(places, spark),
        _pass("PassServiceRole", spark.service, "elasticmapreduce.amazonaws.com"),
        _pass("PassJobRole", spark.job, "ec2.amazonaws.com"),
    )


def _serverless(places: Places, spark: SparkRoles) -> tuple[Permission, ...]:
    application = spark.application or ""
    return (
        Permission(
            "StartJobRuns",
            "with this deployment's tag only",
            actions("emr-serverless", "StartJobRun TagResource"),
            (application,),
            {"StringEquals": {f"aws:RequestTag/{DEPLOYMENT_TAG}": places.stack_name}},
        ),
        *end_clusters(places, spark),
        _pass("PassJobRole", spark.job, "emr-serverless.amazonaws.com"),
    )


def end_clusters(places: Places, spark: SparkRoles) -> tuple[Permission, ...]:
    """To find, watch and end the clusters or job runs of sessions, of this deployment only."""
    if spark.service is None:
        application = spark.application or ""
        return (
            Permission(
                "WatchAndEndJobRuns",
                "of this deployment's tag",
                actions("emr-serverless", "CancelJobRun GetJobRun"),
                (f"{application}/jobruns/*",),
                {"StringEquals": {f"aws:ResourceTag/{DEPLOYMENT_TAG}": places.stack_name}},
            ),
            Permission(
                "FindJobRuns", "an attempt whose answer was lost", ("emr-serverless:ListJobRuns",), (application,)
            ),
        )
    return (
        Permission(
            "WatchAndEndClusters",
            "of this deployment's tag",
            actions("elasticmapreduce", "DescribeCluster ListInstances ListSteps TerminateJobFlows"),
            (_clusters(places),),
            {"StringEquals": {f"elasticmapreduce:ResourceTag/{DEPLOYMENT_TAG}": places.stack_name}},
        ),
        Permission(
            "FindClusters",
            "an attempt whose answer was lost is found by its name; AWS knows no resource for a list",
            ("elasticmapreduce:ListClusters",),
            ("*",),
        ),
    )


def _clusters(places: Places) -> str:
    return places.arn("elasticmapreduce", "cluster/*")


def _pass(sid: str, role: str, service: str) -> Permission:
    return Permission(
        sid,
        f"this role only, to {service} only",
        ("iam:PassRole",),
        (role,),
        {"StringEquals": {"iam:PassedToService": service}},
    )


def execution_part(places: Places) -> Part:
    """The role that starts the containers, before Lithify runs in them."""
    return Part(
        "start of containers",
        "ContainerStartRole",
        ("ecs-tasks",),
        (
            Permission(
                "SignIn",
                "AWS knows no resource for a sign-in to the registry",
                ("ecr:GetAuthorizationToken",),
                ("*",),
            ),
            Permission(
                "PullImage",
                "Lithify's own repository",
                actions("ecr", "BatchCheckLayerAvailability BatchGetImage GetDownloadUrlForLayer"),
                (places.repository,),
            ),
            Permission(
                "WriteLogs",
                "of the containers",
                actions("logs", "CreateLogStream PutLogEvents"),
                places.container_logs,
            ),
        ),
    )
