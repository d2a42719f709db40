"""The AWS regions that have SNS, from botocore's data: a publish to an unknown region would wait for a timeout."""

from __future__ import annotations

from collections.abc import Mapping

import boto3


def sns_regions() -> Mapping[str, frozenset[str]]:
    """The regions of each partition of AWS: `aws`, `aws-cn` and so on."""
    session = boto3.session.Session()
    return {
        partition: frozenset(session.get_available_regions("sns", partition_name=partition))
        for partition in session.get_available_partitions()
    }
