"""The stack: all resources of Lithify in an AWS account, one construct per concern, and its outputs."""

from __future__ import annotations

from aws_cdk import Aws, BootstraplessSynthesizer, CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.access.dispatcher import dispatcher_part, execution_part
from infra.access.ingesting import ingest_part
from infra.access.people import people
from infra.access.places import ARCHIVE_FOLDER, Folder, Places
from infra.access.running import flow_logs_part, keeper_part, keeper_schedule_part, workflow_part
from infra.alarms import Alarms, alarms
from infra.aws.regions import partition_of
from infra.dashboard import dashboard_body
from infra.dispatcher_environment import Addresses, cluster_settings, dispatcher_environment, lake_uris, state_uri
from infra.ingest import announce_files, ingest_container, run_ingests
from infra.keeper import count_runs, create_schedule, keeper_container
from infra.network import Network
from infra.outputs import OUTPUTS
from infra.permissions import Part
from infra.queues import AnnouncementQueues, EventsTopic, InstructionQueues, QueueNames
from infra.roles import create_role
from infra.service import ContainerPlace, create_workflow, dispatcher_container, task_definition
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
        self._queues = InstructionQueues(self, "Queues", stage, self._key)
        self._announcements = AnnouncementQueues(self, "Landing", stage, self._key)
        self._events = EventsTopic(self, "Events", self._key)
        self._place = ContainerPlace(self, "Containers", stage, self._name)
        self._places = self._all_places()
        self._addresses = self._all_addresses()
        self._spark = Spark(self, "Spark", stage, self._places, self._network)
        self.parts: list[Part] = list(self._spark.parts)
        self._run_dispatchers()
        self._run_keeper()
        self._run_ingest()
        parts = people(self._places, self._spark.roles)
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
            queue=self._queues.instructions.queue_arn,
            dead_letters=self._queues.dead_letters.queue_arn,
            announcements=self._announcements.announcements.queue_arn,
            refused=self._announcements.refused.queue_arn,
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
            dispatcher_log_group=self._log_group(f"/{self._name}/dispatcher"),
            keeper_log_group=self._log_group(f"/{self._name}/keeper"),
            ingest_log_group=self._log_group(f"/{self._name}/ingest"),
        )

    def _log_group(self, name: str) -> str:
        return f"arn:{self._partition}:logs:{self._region}:{self._account}:log-group:{name}"

    def _all_addresses(self) -> Addresses:
        return Addresses(
            queue_url=self._queues.instructions.queue_url,
            dead_letter_queue_url=self._queues.dead_letters.queue_url,
            announcements_url=self._announcements.announcements.queue_url,
            refused_url=self._announcements.refused.queue_url,
            topic_arn=self._events.topic.topic_arn,
            state_bucket=self._storage.state.bucket_name,
            lake_bucket=self._storage.lakes.bucket_name,
            region=self._region,
            stack_name=self.stack_name,
        )

    def _noted(self, part: Part) -> Part:
        self.parts.append(part)
        return part

    def _run_dispatchers(self) -> None:
        stage, places = self._stage, self._places
        self._container_start_role = create_role(self, self._noted(execution_part(places)))
        role = create_role(self, self._noted(dispatcher_part(places, self._spark.roles, stage.workers)))
        environment = dispatcher_environment(stage, self._addresses, self._spark.addresses, self.to_json_string)
        task = task_definition(
            self,
            "DispatcherTask",
            places.dispatcher_family,
            dispatcher_container(self._place, self._name, stage, environment),
            (role, self._container_start_role),
            stage,
        )
        part = workflow_part(places, role.attr_arn, self._container_start_role.attr_arn)
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
        role = create_role(self, self._noted(keeper_part(places)))
        task = task_definition(
            self,
            "KeeperTask",
            places.keeper_family,
            keeper_container(self._place, self._name, stage, self._addresses),
            (role, self._container_start_role),
            stage,
        )
        count_runs(self, stage, self._place)
        part = keeper_schedule_part(places, role.attr_arn, self._container_start_role.attr_arn)
        create_schedule(self, stage, self._network, self._place, task, create_role(self, self._noted(part)))

    def _run_ingest(self) -> None:
        stage = self._stage
        announce_files(self, stage, self._announcements.announcements)
        role = create_role(self, self._noted(ingest_part(self._places)))
        task = task_definition(
            self,
            "IngestTask",
            f"{self._name}-ingest",
            ingest_container(self._place, self._name, stage, self._addresses),
            (role, self._container_start_role),
            stage,
        )
        run_ingests(self, stage, self._network, self._place, task)

    def _queue_names(self) -> QueueNames:
        return QueueNames(
            self._queues.instructions.queue_name,
            self._queues.dead_letters.queue_name,
            self._announcements.announcements.queue_name,
            self._announcements.refused.queue_name,
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
            "ClusterSettings": self._cluster_settings(),
            "LakeUri": lake_uris(self._stage, addresses.lake_bucket)[0],
            "StateUri": state_uri(addresses),
            "InstructionQueueUrl": addresses.queue_url,
            "DeadLetterQueueUrl": addresses.dead_letter_queue_url,
            "AnnouncementQueueUrl": addresses.announcements_url,
            "RefusedFilesQueueUrl": addresses.refused_url,
            "EventTopicArn": addresses.topic_arn,
            "PageFeedUrl": self._events.page_feed.queue_url,
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
