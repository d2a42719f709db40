"""The ingest: rules that announce what lands, and the service that takes it in.

S3 tells EventBridge of each new object of a bucket whose notifications are on, and a rule of each landing folder sends
what is of it to the queue. So a bucket that is there already needs no change by the stack, several rules may watch one
folder, and the queue's policy names the rules.
"""

from __future__ import annotations

from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.dispatcher_environment import Addresses, lake_uris, task_variables
from infra.network import Network
from infra.service import ContainerPlace, container_definition, image_uri
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


def ingest_environment(stage: Stage, addresses: Addresses) -> dict[str, str]:
    own = {
        "LAKE": lake_uris(stage, addresses.lake_bucket)[0],
        "QUEUE_URL": addresses.announcements_url,
        "DEAD_LETTER_QUEUE_URL": addresses.refused_url,
    }
    return task_variables(stage, addresses, own)


def ingest_container(
    place: ContainerPlace, repository_name: str, stage: Stage, addresses: Addresses
) -> ecs.CfnTaskDefinition.ContainerDefinitionProperty:
    return container_definition(
        CONTAINER,
        image_uri(repository_name, stage),
        place.ingest_logs,
        ingest_environment(stage, addresses),
        stage,
        command=["lithify", "ingest"],
    )


def run_ingests(
    scope: Construct, stage: Stage, network: Network, place: ContainerPlace, task: ecs.CfnTaskDefinition
) -> None:
    """A task that ends is replaced. A deployment whose tasks cannot start, for lack of an image, ends soon and is
    undone, instead of waiting for hours."""
    service = ecs.CfnService
    service(
        scope,
        "Ingest",
        cluster=place.cluster.ref,
        task_definition=task.ref,
        desired_count=stage.ingests,
        launch_type="FARGATE",
        deployment_configuration=service.DeploymentConfigurationProperty(
            deployment_circuit_breaker=service.DeploymentCircuitBreakerProperty(enable=True, rollback=True)
        ),
        network_configuration=network.placement,
    )
