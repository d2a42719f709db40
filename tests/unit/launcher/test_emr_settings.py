"""What a user says of EMR: everything wrong is told at once, with what to write instead."""

from __future__ import annotations

import json

import pytest

from compactor.model.errors import Invalid
from compactor.storage.location import StoreLocation
from launcher.emr.settings import EmrServerlessSettings, EmrSettings, check_places, parse_settings

EMR = {
    "kind": "emr",
    "region": "eu-west-1",
    "release_label": "emr-7.13.0",
    "subnet_ids": ["subnet-0123456789abcdef0"],
    "service_role": "EMR_DefaultRole",
    "instance_profile": "EMR_EC2_DefaultRole",
    "archive_uri": "s3://code/lithify.tar.gz",
    "log_uri": "s3://logs/emr/",
}
SERVERLESS = {
    "kind": "emr_serverless",
    "region": "eu-west-1",
    "application_id": "00f1abcdefgh2345",
    "execution_role_arn": "arn:aws:iam::123456789012:role/lithify/jobs",
    "archive_uri": "s3://code/lithify.tar.gz",
    "program_uri": "s3://code/main.py",
    "log_uri": "s3://logs/emr/",
}


def reasons_of(document: object) -> tuple[str, ...]:
    with pytest.raises(Invalid) as refused:
        parse_settings(document if isinstance(document, bytes) else json.dumps(document).encode(), "emr.json")
    return refused.value.reasons


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"release_label": "emr-spark-8.0.0"},
        {"service_role": "arn:aws:iam::123456789012:role/path/emr", "instance_profile": "nodes"},
        {"subnet_ids": ["subnet-01234567", "subnet-0123456789abcdef0"], "use_fleets": True},
        {"security_groups": {"primary": "sg-01234567", "nodes": "sg-01234567"}},
        {"tags": {"cost centre": "42"}, "spark_settings": {"spark.ui.enabled": "false"}},
    ],
)
def test_good_settings_are_taken(more: dict[str, object]) -> None:
    assert isinstance(parse_settings(json.dumps(EMR | more).encode(), "emr.json"), EmrSettings)


def test_good_settings_of_serverless_are_taken() -> None:
    assert isinstance(parse_settings(json.dumps(SERVERLESS).encode(), "emr.json"), EmrServerlessSettings)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"region": "Ireland"}, "region is 'Ireland': write one like eu-west-1"),
        ({"release_label": "7.13"}, "release_label is '7.13': write one like emr-7.13.0"),
        ({"release_label": "emr-6.15.0"}, "release_label is emr-6.15.0: its Spark and Python are too old"),
        ({"subnet_ids": ["vpc-1"]}, "subnet_ids: 'vpc-1' is no subnet: write subnet- and 8 or 17"),
        ({"subnet_ids": []}, "subnet_ids is empty: name at least one"),
        ({"subnet_ids": ["subnet-01234567", "subnet-89abcdef"]}, "has more than one: only instance fleets"),
        ({"service_role": "arn:aws:iam::1:role/x"}, "service_role is 'arn:aws:iam::1:role/x': write its name, or arn:"),
        ({"instance_profile": "arn:aws:iam::123456789012:role/x"}, "write its name, or arn:aws:iam::123456789012:inst"),
        ({"archive_uri": "file:///lithify.tar.gz"}, "archive_uri is 'file:///lithify.tar.gz': the nodes of a cluster"),
        ({"log_uri": "/logs"}, "log_uri is '/logs': write a folder, s3://bucket/prefix/"),
        ({"idle_seconds": 5}, "idle_seconds is 5: EMR takes 60 to 604800"),
        ({"tags": {"aws:x": "1"}}, "tags: 'aws:x' is not free"),
        ({"tags": {"lithify-state": "1"}}, "tags: 'lithify-state' is not free"),
        ({"tags": {"a": "é"}}, "tags: 'a': only letters, digits"),
        ({"spark_settings": {"spark.archives": "x"}}, "spark_settings.spark.archives: only settings of Spark"),
        ({"security_groups": {"primary": "a", "nodes": "sg-01234567"}}, "security_groups: 'a' is no security group"),
        ({"endpoint_url": "here"}, "endpoint_url: 'here' is not an endpoint"),
        ({"subnet_id": ["subnet-01234567"]}, "subnet_id: there is no such field; did you mean 'subnet_ids'?"),
        ({"idle_seconds": "600"}, 'idle_seconds is "600": it must be a valid integer'),
        ({"kind": "yarn"}, "kind is \"yarn\": it must be 'emr' or 'emr_serverless'"),
    ],
)
def test_violations_are_named_with_their_correction(changes: dict[str, object], reason: str) -> None:
    (found,) = reasons_of(EMR | changes)
    assert found.startswith("emr.json: ")
    assert reason in found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"application_id": "My app"}, "application_id is 'My app': write the application's id"),
        ({"execution_role_arn": "jobs"}, "execution_role_arn is 'jobs': write a role's whole ARN"),
        ({"program_uri": "s3://code"}, "program_uri is 's3://code': the nodes of a cluster download it"),
        ({"timeout_minutes": 0}, "timeout_minutes is 0: EMR Serverless takes 1 to 1000000"),
    ],
)
def test_violations_of_serverless_settings_are_named(changes: dict[str, object], reason: str) -> None:
    (found,) = reasons_of(SERVERLESS | changes)
    assert reason in found


def test_everything_that_is_wrong_is_told_at_once() -> None:
    wrong = EMR | {"region": "x", "release_label": "y", "subnet_ids": ["z"], "service_role": "", "log_uri": ""}
    assert len(reasons_of(wrong)) == 5
    missing = {"kind": "emr", "region": "eu-west-1"}
    assert [reason for reason in reasons_of(missing) if "is missing" in reason] == [
        f"emr.json: {name} is missing" for name in ("archive_uri", "log_uri", "release_label", "subnet_ids")
    ] + [f"emr.json: {name} is missing" for name in ("service_role", "instance_profile")]


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"{", "it is not JSON"), (b"[]", "it is []: it must be an object"), (b"{}", "kind is missing")],
)
def test_a_document_that_is_not_settings_is_refused(body: bytes, reason: str) -> None:
    (found,) = reasons_of(body)
    assert reason in found


def test_places_of_this_machine_are_refused_for_a_cluster_elsewhere() -> None:
    folder, bucket = StoreLocation("file:///data"), StoreLocation("s3://lake/root")
    check_places(bucket, bucket)
    check_places(bucket, None)
    with pytest.raises(Invalid) as refused:
        check_places(folder, folder)
    assert [reason.partition(":")[0] for reason in refused.value.reasons] == ["the state file", "the lake file"]
    assert all("write s3://bucket/prefix" in reason for reason in refused.value.reasons)
