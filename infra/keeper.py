"""The keeper of every lake, on a schedule: compacts tables by their policies, collects garbage, cleans the state."""

from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.alarms import KEEPER_RUNS
from infra.dispatcher_environment import Addresses, lake_uris, metrics_namespace, task_variables
from infra.network import Network
from infra.prices import price_document
from infra.service import Container, ContainerPlace, container_definition
from infra.stages import Stage

CONTAINER = "keeper"
SCRIPT = (
    'grace=$1; upkeep=$2; namespace=$3; shift 3; failed=0; for lake in "$@"; do '
    'lithify keeper run --once --lake "$lake" --grace-hours "$grace" --upkeep-hours "$upkeep" '
    '--metrics-namespace "$namespace" --output jsonl || failed=1; done; exit $failed'
)
"""One lake after the other, whatever became of the one before; it fails if one failed. Hours and lakes are the script's
arguments, so none of them is a word of the shell. The line that each writes is counted: an alarm misses it."""

LOOKED = "{ $.decided >= 0 }"
"""The pattern of that line: all tables were looked at, whatever failed for some of them."""


def keeper_command(stage: Stage, lake_bucket: str) -> list[str]:
    given = [str(stage.grace_hours), str(stage.keeper_hours), metrics_namespace(stage)]
    return ["sh", "-c", SCRIPT, CONTAINER, *given, *lake_uris(stage, lake_bucket)]


def keeper_environment(stage: Stage, addresses: Addresses) -> dict[str, str]:
    own = {
        "QUEUE_URL": addresses.queue_url,
        "TOPIC_ARN": addresses.topic_arn,
        "PRICE_FILE": price_document(stage),
        "DEFAULT_POLICY": stage.default_policy,
        "CLUSTER": stage.spark,
        "WORKERS": str(stage.workers),
    }
    return task_variables(stage, addresses, own)


def keeper_container(place: ContainerPlace, stage: Stage, addresses: Addresses) -> Container:
    command = keeper_command(stage, addresses.lake_bucket)
    return container_definition(CONTAINER, place, keeper_environment(stage, addresses), stage, command=command)


def count_runs(scope: Construct, stage: Stage, place: ContainerPlace) -> None:
    """The metric of looks that ended. One that never began is missed as one that could not be made."""
    logs.CfnMetricFilter(
        scope,
        "KeeperRuns",
        filter_pattern=LOOKED,
        log_group_name=place.logs[CONTAINER].ref,
        metric_transformations=[
            logs.CfnMetricFilter.MetricTransformationProperty(
                metric_name=KEEPER_RUNS, metric_namespace=metrics_namespace(stage), metric_value="1"
            )
        ],
    )


def create_schedule(
    scope: Construct,
    stage: Stage,
    network: Network,
    place: ContainerPlace,
    task: ecs.CfnTaskDefinition,
    role: iam.CfnRole,
) -> scheduler.CfnSchedule:
    target = scheduler.CfnSchedule
    return scheduler.CfnSchedule(
        scope,
        "KeeperSchedule",
        description="Lithify: the keeper",
        flexible_time_window=target.FlexibleTimeWindowProperty(mode="OFF"),
        schedule_expression=f"rate({stage.keeper_minutes} minutes)" if stage.keeper_minutes > 1 else "rate(1 minute)",
        target=target.TargetProperty(
            arn=place.cluster.attr_arn,
            role_arn=role.attr_arn,
            ecs_parameters=target.EcsParametersProperty(
                launch_type="FARGATE",
                task_definition_arn=task.ref,
                network_configuration=network.placement,
            ),
            retry_policy=target.RetryPolicyProperty(maximum_event_age_in_seconds=60, maximum_retry_attempts=1),
        ),
    )
