"""The gate asks of each request what AWS asks, and answers what AWS answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from compactor.model.clock import SystemClock
from dispatcher.demo.stand_ins import queue_server
from tests.proxy import Request, proxy_before
from tests.roles.gate import RoleGate
from tests.roles.policies import ACCOUNT, REGION, Account, Template
from tests.servers import ACCESS_KEY, SECRET_KEY

KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1"


def allow(*actions: str, resource: str = "*") -> dict[str, object]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": resource}


def template_of(**roles: Sequence[dict[str, object]]) -> Template:
    """Of one bucket, whose policy keeps log entries from being replaced or deleted, and these roles."""
    encryption = {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}}
    entries = {"Fn::Join": ["", [{"Fn::GetAtt": ["State", "Arn"]}, "/*/log/????.json"]]}
    deny = {"Effect": "Deny", "Principal": {"AWS": "*"}, "Resource": entries}
    replaced = {**deny, "Action": "s3:PutObject", "Condition": {"Null": {"s3:if-none-match": "true"}}}
    policy = {"Statement": [{**deny, "Action": "s3:DeleteObject"}, replaced]}
    resources: dict[str, object] = {
        "State": {
            "Type": "AWS::S3::Bucket",
            "Properties": {"BucketEncryption": {"ServerSideEncryptionConfiguration": [encryption]}},
        },
        "Policy": {"Type": "AWS::S3::BucketPolicy", "Properties": {"PolicyDocument": policy}},
    }
    for name, statements in roles.items():
        policies = [{"PolicyDocument": {"Statement": statements}}]
        resources[name] = {"Type": "AWS::IAM::Role", "Properties": {"Policies": policies}}
    return {"Resources": resources}


def denied(gate: RoleGate, role: str, verb: str, target: str, **headers: str) -> list[str]:
    """The rights that this request lacks."""
    gate.denied.clear()
    signed = {"authorization": f"AWS4-HMAC-SHA256 Credential={role}/20260101/{REGION}/s3/aws4_request, Signature=x"}
    gate.rule(Request("s3", verb, verb, target), signed | headers, b"")
    return [each.asked.action for each in gate.denied]


@pytest.fixture
def gate() -> RoleGate:
    template = template_of(
        Writer=[allow("s3:PutObject", "kms:GenerateDataKey")], Plain=[allow("s3:PutObject", "s3:GetObject")]
    )
    return RoleGate(Account(template), lambda bucket, keys: None)


def test_who_writes_needs_the_key_too_and_for_a_file_in_parts_its_other_half(gate: RoleGate) -> None:
    assert denied(gate, "Writer", "PUT", "/state/file") == []
    assert denied(gate, "Plain", "PUT", "/state/file") == ["kms:GenerateDataKey"]
    assert denied(gate, "Plain", "GET", "/state/file") == ["kms:Decrypt"]
    assert denied(gate, "Writer", "POST", "/state/file?uploads") == ["kms:Decrypt"]
    assert denied(gate, "Writer", "PUT", "/state/file?partNumber=1&uploadId=u") == ["kms:Decrypt"]
    assert denied(gate, "Writer", "DELETE", "/state/file?uploadId=u") == ["s3:AbortMultipartUpload"]
    assert denied(gate, "Plain", "PUT", "/somebody-else/file") == []


def test_a_bucket_s_policy_wins_over_a_role(gate: RoleGate) -> None:
    assert denied(gate, "Writer", "PUT", "/state/t/log/0001.json") == ["s3:PutObject"]
    assert denied(gate, "Writer", "PUT", "/state/t/log/0001.json", **{"if-none-match": "*"}) == []


def test_lists_are_asked_for_with_their_prefix(gate: RoleGate) -> None:
    assert denied(gate, "Plain", "GET", "/state?list-type=2&prefix=a%2Fb") == ["s3:ListBucket"]
    assert gate.denied[0].asked.context == {"s3:prefix": "a/b"}
    assert denied(gate, "Plain", "GET", "/state?uploads") == ["s3:ListBucketMultipartUploads"]
    assert denied(gate, "Plain", "HEAD", "/state") == ["s3:ListBucket"]


def test_what_the_gate_does_not_know_is_an_error_and_no_guess(gate: RoleGate) -> None:
    signed = {"authorization": "AWS4-HMAC-SHA256 Credential=Plain/20260101/us-east-1/glue/aws4_request, Signature=x"}
    with pytest.raises(AssertionError, match="glue:GetTable is not evaluated: add it"):
        gate.rule(Request("glue", "GetTable", "POST", "/"), signed, b"{}")


# ------------------------------------------------------------------------------------------- as a client sees it


@pytest.fixture
def account() -> Account:
    everything = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "kms:Decrypt", "kms:GenerateDataKey")
    template = template_of(Lists=[allow(*everything, "s3:ListBucket")], Blind=[allow(*everything)])
    return Account(template, SystemClock().new_id())


def s3(url: str, access_key: str) -> object:
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=access_key,
        aws_secret_access_key=SECRET_KEY,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def url(account: Account) -> Iterator[str]:
    """Of the gate, before a server with the bucket."""
    with queue_server() as server:
        everybody = s3(server, ACCESS_KEY)
        everybody.create_bucket(Bucket=account.ref("State"))  # type: ignore[attr-defined]

        def delete(bucket: str, keys: Sequence[str]) -> None:
            for key in keys:
                everybody.delete_object(Bucket=bucket, Key=key)  # type: ignore[attr-defined]

        with proxy_before(server, RoleGate(account, delete)) as proxy:
            yield proxy.url


def refusal(client: object, **named: str) -> str:
    with pytest.raises(ClientError) as refused:
        client.get_object(**named)  # type: ignore[attr-defined]
    return str(refused.value.response["Error"]["Code"])


@pytest.mark.servers
def test_who_may_not_list_does_not_learn_that_an_object_is_missing(account: Account, url: str) -> None:
    missing = {"Bucket": account.ref("State"), "Key": "missing"}
    assert refusal(s3(url, "Lists"), **missing) == "NoSuchKey"
    assert refusal(s3(url, "Blind"), **missing) == "AccessDenied"
    assert refusal(s3(url, "Stranger"), **missing) == "AccessDenied"


@pytest.mark.servers
def test_of_many_deletes_those_that_are_denied_are_named_and_the_others_done(account: Account, url: str) -> None:
    bucket, client = account.ref("State"), s3(url, "Lists")
    for key in ("a", "t/log/0001.json"):
        client.put_object(Bucket=bucket, Key=key, Body=b"x", IfNoneMatch="*")  # type: ignore[attr-defined]
    objects = {"Objects": [{"Key": "a"}, {"Key": "t/log/0001.json"}], "Quiet": True}
    answer = client.delete_objects(Bucket=bucket, Delete=objects)  # type: ignore[attr-defined]
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [("t/log/0001.json", "AccessDenied")]
    left = client.list_objects_v2(Bucket=bucket)["Contents"]  # type: ignore[attr-defined]
    assert [each["Key"] for each in left] == ["t/log/0001.json"]
