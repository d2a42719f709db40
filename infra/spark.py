"""Resources for sessions: roles, groups and security configuration of EMR, or an EMR Serverless application.

The dispatcher launches a cluster or job run for each session. The resources here run nothing and cost nothing.
"""

from aws_cdk import CfnTag
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_emr as emr
from aws_cdk import aws_emrserverless as serverless
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.access.dispatcher import SparkRoles
from infra.access.places import Places
from infra.access.spark_job import emr_service_part, spark_job_part
from infra.dispatcher_environment import SparkAddresses
from infra.network import Network
from infra.permissions import Part
from infra.roles import create_role
from infra.stages import Stage

WORKER_VCPUS_PER_SESSION = 64
"""vCPUs of an application's limit for each session that runs at a time, drivers included."""

WORKER_GIB_PER_VCPU = 8
CLUSTER_PORT, ACCESS_PORT = 8443, 9443
"""Ports by which EMR's service reaches the nodes of a private subnet, and they it."""


class Spark(Construct):
    """`addresses`, `roles`: None if sessions run in the dispatcher's own task. `parts`: all roles made here."""

    def __init__(self, scope: Construct, construct_id: str, stage: Stage, places: Places, network: Network) -> None:
        super().__init__(scope, construct_id)
        self._stage, self._places, self._network = stage, places, network
        self.addresses: SparkAddresses | None = None
        self.roles: SparkRoles | None = None
        self.parts: tuple[Part, ...] = ()
        if stage.spark == "emr":
            self._create_emr()
        elif stage.spark == "emr_serverless":
            self._create_serverless()

    def _create_emr(self) -> None:
        job_part = spark_job_part(self._places, serverless=False)
        job = create_role(self, job_part)
        service_part = emr_service_part(self._places, job.attr_arn)
        service = create_role(self, service_part)
        profile = iam.CfnInstanceProfile(self, "Nodes", roles=[job.ref])
        configuration = emr.CfnSecurityConfiguration(
            self, "SecurityConfiguration", security_configuration=_security(self._places.key)
        )
        nodes = self._network.group_of_clusters("ClusterNodes", "Lithify clusters: EMR adds the rules of its nodes")
        self.roles = SparkRoles(service.attr_arn, job.attr_arn)
        self.parts = (job_part, service_part)
        self.addresses = SparkAddresses(
            subnet_ids=self._network.subnet_ids,
            service_role=service.attr_arn,
            instance_profile=profile.attr_arn,
            security_configuration=configuration.ref,
            node_group=nodes.attr_group_id,
            access_group="" if self._network.has_public_addresses else self._service_access(nodes).attr_group_id,
            job_role=job.attr_arn,
        )

    def _service_access(self, nodes: ec2.CfnSecurityGroup) -> ec2.CfnSecurityGroup:
        """The rules between the two groups are the stack's own, so both can be deleted with it."""
        access = self._network.group_of_clusters(
            "ServiceAccess", "Lithify: access of EMR to clusters in private subnets"
        )
        for rule, source, target, port in (
            ("AccessToNodes", access, nodes, CLUSTER_PORT),
            ("NodesToAccess", nodes, access, ACCESS_PORT),
        ):
            ec2.CfnSecurityGroupIngress(
                self,
                rule,
                group_id=target.attr_group_id,
                source_security_group_id=source.attr_group_id,
                ip_protocol="tcp",
                from_port=port,
                to_port=port,
            )
        return access

    def _create_serverless(self) -> None:
        stage, part = self._stage, spark_job_part(self._places, serverless=True)
        job = create_role(self, part)
        vcpus = WORKER_VCPUS_PER_SESSION * stage.max_sessions
        application = serverless.CfnApplication(
            self,
            "Application",
            name=self._places.cluster_name,
            type="SPARK",
            release_label=stage.release_label,
            maximum_capacity=serverless.CfnApplication.MaximumAllowedResourcesProperty(
                cpu=f"{vcpus} vCPU", memory=f"{vcpus * WORKER_GIB_PER_VCPU} GB"
            ),
            tags=[CfnTag(key="lithify-stage", value=stage.name)],
        )
        self.roles = SparkRoles(None, job.attr_arn, application.attr_arn)
        self.parts = (part,)
        self.addresses = SparkAddresses(job_role=job.attr_arn, application_id=application.ref)


def _security(key: str) -> dict[str, object]:
    """Encryption at rest; nodes give their role's credentials for tokens only (IMDSv2)."""
    return {
        "EncryptionConfiguration": {
            "EnableInTransitEncryption": False,
            "EnableAtRestEncryption": True,
            "AtRestEncryptionConfiguration": {
                "S3EncryptionConfiguration": {"EncryptionMode": "SSE-KMS", "AwsKmsKey": key},
                "LocalDiskEncryptionConfiguration": {
                    "EncryptionKeyProviderType": "AwsKms",
                    "AwsKmsKey": key,
                    "EnableEbsEncryption": True,
                },
            },
        },
        "InstanceMetadataServiceConfiguration": {
            "MinimumInstanceMetadataServiceVersion": 2,
            "HttpPutResponseHopLimit": 1,
        },
    }
