"""The dispatcher and the page as tasks on Fargate, and the workflow that keeps the stage's dispatchers running."""

from typing import TypeAlias

from aws_cdk import Aws, RemovalPolicy, Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.dispatcher_environment import TMP_FOLDER, WORK_FOLDER, Addresses, lake_uris, task_variables
from infra.network import Network
from infra.stages import Stage
from infra.workflow import CONTAINER, WorkflowPlaces, WorkflowTimes, definition

Container: TypeAlias = ecs.CfnTaskDefinition.ContainerDefinitionProperty

LOOK_SECONDS = 10
"""Interval between two looks at whether new dispatchers are healthy."""

LIVE = "import sys, urllib.request as r; r.urlopen('http://127.0.0.1:' + sys.argv[1] + '/live', timeout=5)"
"""Fails unless the dispatcher's loops turn. One that only does not reach a service is not started anew: that fixes
nothing, and is what the alarm of troubles is for."""


class ContainerPlace(Construct):
    """The cluster of tasks, their image and its repository, and a log group for each container. Names are fixed, for
    use in permissions."""

    def __init__(self, scope: Construct, construct_id: str, stage: Stage, name: str) -> None:
        super().__init__(scope, construct_id)
        self.repository = ecr.CfnRepository(
            self,
            "Images",
            repository_name=name,
            empty_on_delete=True,
            image_scanning_configuration=ecr.CfnRepository.ImageScanningConfigurationProperty(scan_on_push=True),
            image_tag_mutability="IMMUTABLE",
        )
        self.cluster = ecs.CfnCluster(self, "Cluster", cluster_name=name)
        self.image = f"{Aws.ACCOUNT_ID}.dkr.ecr.{Aws.REGION}.{Aws.URL_SUFFIX}/{name}:{stage.image_tag}"
        self.logs = {each: self._logs(f"{each.title()}Logs", f"/{name}/{each}", stage) for each in stage.containers}
        self.workflow_logs = self._logs("WorkflowLogs", f"/aws/vendedlogs/states/{name}", stage)

    def _logs(self, construct_id: str, name: str, stage: Stage) -> logs.CfnLogGroup:
        group = logs.CfnLogGroup(self, construct_id, log_group_name=name, retention_in_days=stage.log_days)
        group.apply_removal_policy(RemovalPolicy.DESTROY)
        return group


def task_definition(
    scope: Construct, container: Container, task_role: iam.CfnRole, start_role: iam.CfnRole, stage: Stage
) -> ecs.CfnTaskDefinition:
    return ecs.CfnTaskDefinition(
        scope,
        f"{container.name.title()}Task",
        family=f"lithify-{stage.name}-{container.name}",
        cpu=str(stage.dispatcher_cpu),
        memory=str(stage.dispatcher_memory_mib),
        network_mode="awsvpc",
        requires_compatibilities=["FARGATE"],
        runtime_platform=ecs.CfnTaskDefinition.RuntimePlatformProperty(
            cpu_architecture="X86_64", operating_system_family="LINUX"
        ),
        execution_role_arn=start_role.attr_arn,
        task_role_arn=task_role.attr_arn,
        container_definitions=[container],
        volumes=[ecs.CfnTaskDefinition.VolumeProperty(name=name) for name in _FOLDERS],
    )


_FOLDERS = {"work": WORK_FOLDER, "tmp": TMP_FOLDER}


def container_definition(
    name: str,
    place: ContainerPlace,
    environment: dict[str, str],
    stage: Stage,
    *,
    command: list[str],
    health_check: list[str] | None = None,
    writes_root: bool = False,
) -> Container:
    return Container(
        name=name,
        image=place.image,
        essential=True,
        command=command,
        environment=[
            ecs.CfnTaskDefinition.KeyValuePairProperty(name=each, value=value)
            for each, value in sorted(environment.items())
        ],
        health_check=None
        if health_check is None
        else ecs.CfnTaskDefinition.HealthCheckProperty(
            command=health_check, interval=15, retries=3, start_period=60, timeout=10
        ),
        linux_parameters=ecs.CfnTaskDefinition.LinuxParametersProperty(init_process_enabled=True),
        log_configuration=ecs.CfnTaskDefinition.LogConfigurationProperty(
            log_driver="awslogs",
            options={
                "awslogs-group": place.logs[name].ref,
                "awslogs-region": Aws.REGION,
                "awslogs-stream-prefix": name,
            },
        ),
        mount_points=[
            ecs.CfnTaskDefinition.MountPointProperty(container_path=path, source_volume=volume, read_only=False)
            for volume, path in _FOLDERS.items()
        ],
        readonly_root_filesystem=not writes_root,
        stop_timeout=stage.stop_seconds,
    )


def create_workflow(
    scope: Construct,
    name: str,
    stage: Stage,
    *,
    network: Network,
    place: ContainerPlace,
    task: ecs.CfnTaskDefinition,
    role: iam.CfnRole,
) -> sfn.CfnStateMachine:
    """The workflow. It is not started here: the image must exist first."""
    places = WorkflowPlaces(
        cluster=place.cluster.attr_arn,
        task_definition=task.ref,
        subnet_ids=network.subnet_ids,
        security_group=network.dispatchers.attr_group_id,
        has_public_addresses=network.has_public_addresses,
    )
    times = WorkflowTimes(
        heartbeat=stage.heartbeat_seconds,
        restart=stage.restart_seconds,
        watch=stage.watch_seconds,
        look=LOOK_SECONDS,
        execution_events_max=stage.execution_events_max,
    )
    return sfn.CfnStateMachine(
        scope,
        "Workflow",
        state_machine_name=name,
        state_machine_type="STANDARD",
        role_arn=role.attr_arn,
        definition_string=Stack.of(scope).to_json_string(definition(places, times, stage.dispatchers)),
        logging_configuration=sfn.CfnStateMachine.LoggingConfigurationProperty(
            destinations=[
                sfn.CfnStateMachine.LogDestinationProperty(
                    cloud_watch_logs_log_group=sfn.CfnStateMachine.CloudWatchLogsLogGroupProperty(
                        log_group_arn=place.workflow_logs.attr_arn
                    )
                )
            ],
            include_execution_data=False,  # it has task tokens
            level="ALL",
        ),
    )


def dispatcher_container(place: ContainerPlace, stage: Stage, environment: dict[str, str]) -> Container:
    check = ["CMD", "python", "-c", LIVE, str(stage.http_port)]
    return container_definition(
        CONTAINER, place, environment, stage, command=["lithify", "dispatch"], health_check=check
    )


def serve_container(place: ContainerPlace, stage: Stage, addresses: Addresses) -> Container:
    """It listens inside its task. Session Manager forwards its port to who IAM lets (docs/operate/serve.md); its agent
    needs a root file system that can be written."""
    own = {
        "LAKE": lake_uris(stage, addresses.lake_bucket)[0],
        "QUEUE_URL": addresses.queue_url,
        "DEAD_LETTER_QUEUE_URL": addresses.dead_letter_queue_url,
        "EVENTS_QUEUE_URL": addresses.page_feed_url,
        "LIMITS": stage.dispatcher.get("limits", ""),
    }
    variables = task_variables(stage, addresses, own)
    return container_definition("serve", place, variables, stage, command=["lithify", "serve"], writes_root=True)


def run_service(
    scope: Construct,
    construct_id: str,
    task: ecs.CfnTaskDefinition,
    count: int,
    network: Network,
    place: ContainerPlace,
    *,
    has_sessions: bool = False,
) -> None:
    """A task that ends is replaced. A deployment whose tasks cannot start, for lack of an image, ends soon and is
    undone, instead of waiting for hours. `has_sessions`: of Session Manager, into its containers."""
    service = ecs.CfnService
    service(
        scope,
        construct_id,
        cluster=place.cluster.ref,
        task_definition=task.ref,
        desired_count=count,
        launch_type="FARGATE",
        deployment_configuration=service.DeploymentConfigurationProperty(
            deployment_circuit_breaker=service.DeploymentCircuitBreakerProperty(enable=True, rollback=True)
        ),
        enable_execute_command=True if has_sessions else None,
        network_configuration=network.placement,
    )
