"""The ingest: rules that announce what lands, and the container that takes it in.

S3 tells EventBridge of each new object of a bucket whose notifications are on, and a rule of each landing folder sends
what is of it to the queue. So a bucket that is there already needs no change by the stack, several rules may watch one
folder, and the queue's policy names the rules.
"""

from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.dispatcher_environment import Addresses, lake_uris, task_variables
from infra.service import Container, ContainerPlace, container_definition
from infra.stages import Stage

CONTAINER = "ingest"


def announce_files(scope: Construct, stage: Stage, queue: sqs.Queue) -> None:
    """A rule of each landing folder."""
    if not stage.landing:
        return
    rules = []
    for number, folder in enumerate(stage.landing, start=1):
        bucket, _, prefix = folder.removeprefix("s3://").partition("/")
        rule = events.CfnRule(
            scope,
            f"Landing{number}",
            description=f"Lithify: files of {folder}",
            event_pattern={
                "source": ["aws.s3"],
                "detail-type": ["Object Created"],
                "detail": {"bucket": {"name": [bucket]}, "object": {"key": [{"prefix": f"{prefix}/"}]}},
            },
            targets=[events.CfnRule.TargetProperty(arn=queue.queue_arn, id=CONTAINER)],
        )
        rules.append(rule.attr_arn)
    queue.add_to_resource_policy(
        iam.PolicyStatement(
            sid="FilesAreAnnounced",
            principals=[iam.ServicePrincipal("events.amazonaws.com")],
            actions=["sqs:SendMessage"],
            resources=[queue.queue_arn],
            conditions={"ArnEquals": {"aws:SourceArn": rules}},
        )
    )


def ingest_container(place: ContainerPlace, stage: Stage, addresses: Addresses) -> Container:
    own = {
        "LAKE": lake_uris(stage, addresses.lake_bucket)[0],
        "QUEUE_URL": addresses.announcements_url,
        "DEAD_LETTER_QUEUE_URL": addresses.refused_url,
    }
    variables = task_variables(stage, addresses, own)
    return container_definition(CONTAINER, place, variables, stage, command=["lithify", "ingest"])
