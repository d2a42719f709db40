"""The network of dispatchers and clusters. It accepts no connections from outside.

Without NAT gateways, tasks and clusters have public addresses and accept no connection; with them, they are in private
subnets. S3 is reached through a gateway endpoint, which is free.
"""

from aws_cdk import Fn, Tags
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infra.access.places import EMR_TAG
from infra.stages import Stage


class Network(Construct):
    """`subnet_ids`: one for each zone. `has_public_addresses`: whether tasks and clusters need them."""

    def __init__(self, scope: Construct, construct_id: str, stage: Stage) -> None:
        super().__init__(scope, construct_id)
        self.has_public_addresses = stage.nat_gateways == 0
        kinds = [ec2.SubnetConfiguration(name="Public", subnet_type=ec2.SubnetType.PUBLIC)]
        if not self.has_public_addresses:
            kinds.append(ec2.SubnetConfiguration(name="Private", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS))
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(stage.cidr),
            availability_zones=[Fn.select(number, Fn.get_azs()) for number in range(stage.zones)],
            nat_gateways=stage.nat_gateways,
            restrict_default_security_group=False,  # it would need a Lambda function; the group is not used
            subnet_configuration=kinds,
            gateway_endpoints={"S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3)},
        )
        subnets = self.vpc.public_subnets if self.has_public_addresses else self.vpc.private_subnets
        self.subnet_ids = tuple(subnet.subnet_id for subnet in subnets)
        key, value = EMR_TAG
        for subnet in subnets:
            Tags.of(subnet).add(key, value)
        self.dispatchers = self._group("Dispatchers", "Lithify dispatchers and keeper: no connection comes in")

    @property
    def placement(self) -> dict[str, dict[str, object]]:
        """The network configuration of a task, in CDK's own names, for services and schedules."""
        return {
            "awsvpcConfiguration": {
                "subnets": list(self.subnet_ids),
                "securityGroups": [self.dispatchers.attr_group_id],
                "assignPublicIp": "ENABLED" if self.has_public_addresses else "DISABLED",
            }
        }

    def _group(self, construct_id: str, description: str) -> ec2.CfnSecurityGroup:
        return ec2.CfnSecurityGroup(
            self,
            construct_id,
            group_description=description,
            vpc_id=self.vpc.vpc_id,
            security_group_egress=[
                ec2.CfnSecurityGroup.EgressProperty(
                    ip_protocol="-1", cidr_ip="0.0.0.0/0", description="services of AWS"
                )
            ],
        )

    def group_of_clusters(self, construct_id: str, description: str) -> ec2.CfnSecurityGroup:
        """EMR adds the rules that its nodes need."""
        group = self._group(construct_id, description)
        Tags.of(group).add(*EMR_TAG)
        return group
