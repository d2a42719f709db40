"""The stack: all resources of Lithify in an AWS account, one construct per concern, and its outputs."""

from aws_cdk import Aws, BootstraplessSynthesizer, CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_logs as logs
from constructs import Construct

from dispatcher.ingest.ingest import VISIBILITY_SECONDS
from infra.access.dispatcher import dispatcher_part, execution_part
from infra.access.ingesting import ingest_part
from infra.access.people import people, serve_part
from infra.access.places import ARCHIVE_FOLDER, Folder, Places
from infra.access.running import flow_logs_part, keeper_part, keeper_schedule_part, workflow_part
from infra.alarms import Alarms, alarms
from infra.aws.regions import partition_of
from infra.dashboard import dashboard_body
from infra.dispatcher_environment import Addresses, cluster_settings, dispatcher_environment, lake_uris, state_uri
from infra.ingest import announce_files, ingest_container
from infra.keeper import count_runs, create_schedule, keeper_container
from infra.network import Network
from infra.outputs import OUTPUTS
from infra.permissions import Part
from infra.queues import EventsTopic, QueueNames, QueueWithDeadLetters
from infra.roles import create_role
from infra.service import (
    Container,
    ContainerPlace,
    create_workflow,
    dispatcher_container,
    run_service,
    serve_container,
    task_definition,
)
from infra.spark import Spark
from infra.stage_checks import STATE_PREFIX
from infra.stages import ANY_ACCOUNT, Stage
from infra.storage import Storage, encryption_key


def stack_name(stage: Stage) -> str:
    return f"Lithify-{stage.name}"


class LithifyStack(Stack):
    """The template names no account: the stack is deployed to the account of the caller's credentials, after a check
    that it is the stage's (`infra/deploy.py`). `parts`: every role with its permissions."""

    def __init__(self, scope: Construct, construct_id: str, stage: Stage) -> None:
        super().__init__(
            scope,
            construct_id,
            description=f"Lithify: compacts data lake tables, stage {stage.name}",
            # Nothing is uploaded before the template, so the account needs no CDK bootstrap.
            synthesizer=BootstraplessSynthesizer(),
        )
        # The template has the stage's region. The account may be any.
        self._region = stage.region or ""
        self._partition = partition_of(self._region)
        self._account: str = Aws.ACCOUNT_ID if stage.account in {None, ANY_ACCOUNT} else f"{stage.account}"
        self._stage = stage
        self._name = f"lithify-{stage.name}"
        self._key = encryption_key(self, "Key", stage)
        self._network = Network(self, "Network", stage)
        self._storage = Storage(self, "Storage", stage, self._key)
        names = ("Instructions", "DeadLetters")
        self._instructions = QueueWithDeadLetters(self, "Queues", names, stage, self._key, stage.visibility_seconds)
        names = ("Announcements", "Refused")
        self._landing = QueueWithDeadLetters(self, "Landing", names, stage, self._key, VISIBILITY_SECONDS)
        self._events = EventsTopic(self, "Events", self._key)
        self._place = ContainerPlace(self, "Containers", stage, self._name)
        self._places = self._all_places()
        self._addresses = self._all_addresses()
        self._spark = Spark(self, "Spark", stage, self._places, self._network)
        self.parts: list[Part] = list(self._spark.parts)
        self._run_dispatchers()
        self._run_keeper()
        self._run_ingest()
        if stage.serve:
            self._run_page()
        parts = people(self._places, self._spark.roles, serves=stage.serve)
        roles = {part.role: create_role(self, self._noted(part)) for part in parts}
        self._alarms = Alarms(self, "Alarms", stage, self._key, alarms(stage, self._queue_names()))
        dashboard = cloudwatch.CfnDashboard(
            self,
            "Dashboard",
            dashboard_name=self._name,
            dashboard_body=self.to_json_string(dashboard_body(stage, self._region, self._queue_names())),
        )
        if stage.flow_logs:
            self._log_connections()
        self._tell(dashboard.ref, {f"{name}Arn": role.attr_arn for name, role in roles.items()})

    def _all_places(self) -> Places:
        own = self._storage.lakes.bucket_arn
        return Places(
            partition=self._partition,
            region=self._region,
            account=self._account,
            stack_name=self.stack_name,
            queue=self._instructions.queue.queue_arn,
            dead_letters=self._instructions.dead_letters.queue_arn,
            announcements=self._landing.queue.queue_arn,
            refused=self._landing.dead_letters.queue_arn,
            topic=self._events.topic.topic_arn,
            page_feed=self._events.page_feed.queue_arn,
            key=self._key.key_arn,
            state_bucket=self._storage.state.bucket_arn,
            state_prefix=STATE_PREFIX,
            lakes=tuple(_folder(each, own, self._partition) for each in self._stage.lakes),
            files=tuple(_folder(each, own, self._partition) for each in self._stage.allow_files),
            landing=tuple(_folder(each, own, self._partition) for each in self._stage.landing),
            glue_databases=self._stage.glue_databases,
            cluster_name=self._name,
            dispatcher_family=f"{self._name}-dispatcher",
            keeper_family=f"{self._name}-keeper",
            workflow_name=f"{self._name}-dispatchers",
            repository=self._place.repository.attr_arn,
            log_groups=tuple(self._log_group(f"/{self._name}/{each}") for each in self._stage.containers),
        )

    def _log_group(self, name: str) -> str:
        return f"arn:{self._partition}:logs:{self._region}:{self._account}:log-group:{name}"

    def _all_addresses(self) -> Addresses:
        return Addresses(
            queue_url=self._instructions.queue.queue_url,
            dead_letter_queue_url=self._instructions.dead_letters.queue_url,
            announcements_url=self._landing.queue.queue_url,
            refused_url=self._landing.dead_letters.queue_url,
            topic_arn=self._events.topic.topic_arn,
            page_feed_url=self._events.page_feed.queue_url,
            state_bucket=self._storage.state.bucket_name,
            lake_bucket=self._storage.lakes.bucket_name,
            region=self._region,
            stack_name=self.stack_name,
        )

    def _noted(self, part: Part) -> Part:
        self.parts.append(part)
        return part

    def _task(self, container: Container, part: Part) -> tuple[ecs.CfnTaskDefinition, str]:
        """With the ARN of its role."""
        role = create_role(self, self._noted(part))
        return task_definition(self, container, role, self._container_start_role, self._stage), role.attr_arn

    def _run_dispatchers(self) -> None:
        stage, places = self._stage, self._places
        self._container_start_role = create_role(self, self._noted(execution_part(places)))
        environment = dispatcher_environment(stage, self._addresses, self._spark.addresses, self.to_json_string)
        container = dispatcher_container(self._place, stage, environment)
        task, role_arn = self._task(container, dispatcher_part(places, self._spark.roles, stage.workers))
        part = workflow_part(places, role_arn, self._container_start_role.attr_arn)
        self._workflow = create_workflow(
            self,
            places.workflow_name,
            stage,
            network=self._network,
            place=self._place,
            task=task,
            role=create_role(self, self._noted(part)),
        )

    def _run_keeper(self) -> None:
        stage, places = self._stage, self._places
        task, role_arn = self._task(keeper_container(self._place, stage, self._addresses), keeper_part(places))
        count_runs(self, stage, self._place)
        part = keeper_schedule_part(places, role_arn, self._container_start_role.attr_arn)
        create_schedule(self, stage, self._network, self._place, task, create_role(self, self._noted(part)))

    def _run_ingest(self) -> None:
        announce_files(self, self._stage, self._landing.queue)
        task, _ = self._task(ingest_container(self._place, self._stage, self._addresses), ingest_part(self._places))
        run_service(self, "Ingest", task, self._stage.ingests, self._network, self._place)

    def _run_page(self) -> None:
        task, _ = self._task(serve_container(self._place, self._stage, self._addresses), serve_part(self._places))
        run_service(self, "Serve", task, 1, self._network, self._place, has_sessions=True)

    def _queue_names(self) -> QueueNames:
        return QueueNames(
            self._instructions.queue.queue_name,
            self._instructions.dead_letters.queue_name,
            self._landing.queue.queue_name,
            self._landing.dead_letters.queue_name,
        )

    def _log_connections(self) -> None:
        group = logs.CfnLogGroup(
            self, "ConnectionLogs", log_group_name=f"/{self._name}/connections", retention_in_days=self._stage.log_days
        )
        group.apply_removal_policy(RemovalPolicy.DESTROY)
        role = create_role(self, self._noted(flow_logs_part(self._log_group(f"/{self._name}/connections"))))
        ec2.CfnFlowLog(
            self,
            "Connections",
            resource_id=self._network.vpc.vpc_id,
            resource_type="VPC",
            traffic_type="ALL",
            deliver_logs_permission_arn=role.attr_arn,
            log_group_name=group.ref,
        )

    def _tell(self, dashboard_name: str, role_arns: dict[str, str]) -> None:
        addresses, repository = self._addresses, self._place.repository
        console = f"https://{self._region}.console.aws.amazon.com/cloudwatch/home?region={self._region}"
        values = {
            "Cluster": self._stage.spark,
            "Workers": str(self._stage.workers),
            "DefaultPolicy": self._stage.default_policy,
            "ClusterSettings": self._cluster_settings(),
            "LakeUri": lake_uris(self._stage, addresses.lake_bucket)[0],
            "StateUri": state_uri(addresses),
            "InstructionQueueUrl": addresses.queue_url,
            "DeadLetterQueueUrl": addresses.dead_letter_queue_url,
            "AnnouncementQueueUrl": addresses.announcements_url,
            "RefusedFilesQueueUrl": addresses.refused_url,
            "EventTopicArn": addresses.topic_arn,
            "PageFeedUrl": addresses.page_feed_url,
            "Region": addresses.region,
            "ArchiveFolder": f"s3://{addresses.state_bucket}/{ARCHIVE_FOLDER}",
            "RepositoryUri": repository.attr_repository_uri,
            "WorkflowArn": self._workflow.ref,
            "AlarmTopicArn": self._alarms.topic.topic_arn,
            "DashboardUrl": f"{console}#dashboards:name={dashboard_name}",
            **role_arns,
        }
        for output in OUTPUTS:
            if values[output.name]:
                CfnOutput(self, output.name, value=values[output.name], description=output.description)

    def _cluster_settings(self) -> str:
        """As JSON; empty where sessions run in the dispatcher's own task."""
        spark = self._spark.addresses
        return "" if spark is None else self.to_json_string(cluster_settings(self._stage, self._addresses, spark))


def _folder(uri: str, own_bucket_arn: str, partition: str) -> Folder:
    if not uri.startswith("s3://"):
        return Folder(own_bucket_arn, uri)
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return Folder(f"arn:{partition}:s3:::{bucket}", prefix)
