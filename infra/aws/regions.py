"""The regions that have the services of a stack, by boto3's own tables. Sends no request."""

import boto3

SERVICES = (
    "cloudformation",
    "cloudwatch",
    "ec2",
    "ecr",
    "ecs",
    "emr",
    "iam",
    "kms",
    "logs",
    "s3",
    "scheduler",
    "sns",
    "sqs",
    "stepfunctions",
)
SERVERLESS = "emr-serverless"


def boto3_release() -> str:
    return boto3.__version__


def services_without(region: str, *, serverless: bool) -> tuple[str, ...]:
    """The services that the region lacks. A service whose regions boto3 does not list counts as available."""
    session = boto3.session.Session()
    partitions = session.get_available_partitions()
    wanted = (*SERVICES, SERVERLESS) if serverless else SERVICES
    lacking = []
    for service in wanted:
        regions = {name for each in partitions for name in session.get_available_regions(service, each)}
        if regions and region not in regions:
            lacking.append(service)
    return tuple(lacking)


def partition_of(region: str) -> str:
    """The region's partition: the part of its ARNs after `arn:`."""
    return boto3.session.Session().get_partition_for_region(region)
