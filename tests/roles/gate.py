"""What AWS asks its policies before it carries out a request: who calls, by the access key, and for which rights.

A role's access key is its name in the template (`SparkJobRole`). Whoever has the tests' own key may do everything.
Buckets, queues and topics of the template are encrypted with its key, so their use needs rights on the key too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.proxy import ACCESS_DENIED, DENIED_STATUS, Request, Ruling, error_answer
from tests.roles.policies import ACCOUNT, REGION, Account
from tests.roles.policies import Request as Asked
from tests.servers import ACCESS_KEY

_CALLER = re.compile(r"Credential=([^/]+)/")
ANY = "*"
DECRYPT, ENCRYPT = "kms:Decrypt", "kms:GenerateDataKey"

_OF_AN_UPLOAD = ("uploads", "uploadId")
_NAMESPACE = re.compile(r"^\{.*\}")


@dataclass(frozen=True)
class Denied:
    """A right that a role lacked."""

    role: str
    asked: Asked

    def __str__(self) -> str:
        context = " ".join(f"{name}={value}" for name, value in self.asked.context.items())
        return f"{self.role}: {self.asked.action} {self.asked.resource} {context}".rstrip()


class RoleGate:
    """Rules on requests for S3, SQS, SNS, EMR, EMR Serverless, logs and Step Functions; any other service is refused.

    denied  every right that was lacking, in order
    used    every right that was there, by role and action
    """

    def __init__(
        self,
        account: Account,
        delete: Callable[[str, Sequence[str]], None],
        tags_of_cluster: Callable[[str], Mapping[str, str]] = lambda _: {},
        tags_of_job_run: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """`delete`: deletes keys of a bucket, for requests of which only a part is allowed."""
        self._account = account
        self._delete = delete
        self._tags_of_cluster = tags_of_cluster
        self._tags_of_job_run = tags_of_job_run
        self._roles = account.roles()
        self._key = account.key()
        self.denied: list[Denied] = []
        self.used: set[tuple[str, str]] = set()

    def rule(self, request: Request, headers: Mapping[str, str], body: bytes) -> Ruling:
        caller = _CALLER.search(headers.get("authorization", ""))
        name = caller[1] if caller else ""
        if name == ACCESS_KEY:
            return Ruling()
        if name not in self._roles:
            return Ruling(error_answer(request, DENIED_STATUS, ACCESS_DENIED, f"nobody has the key {name!r}"))
        if request.service == "s3":
            return self._rule_on_s3(name, request, headers, body)
        return self._ruled(name, request, self._asked(request, body))

    def _ruled(self, role: str, request: Request, asked: Sequence[Asked]) -> Ruling:
        denied = [each for each in asked if not self._allows(role, each)]
        if not denied:
            return Ruling()
        what = f"{role} is not authorized to perform: {', '.join(each.action for each in denied)}"
        return Ruling(error_answer(request, DENIED_STATUS, ACCESS_DENIED, what))

    def _allows(self, role: str, asked: Asked) -> bool:
        allowed = self._account.allows(self._roles[role], asked)
        if allowed:
            self.used.add((role, asked.action))
        else:
            self.denied.append(Denied(role, asked))
        return allowed

    # -- S3

    def _rule_on_s3(self, role: str, request: Request, headers: Mapping[str, str], body: bytes) -> Ruling:
        target = urlsplit(request.target)
        bucket, _, key = unquote(target.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(target.query, keep_blank_values=True).items()}
        if request.verb == "POST" and not key and "delete" in query:
            return self._rule_on_deletes(role, bucket, body)
        ruling = self._ruled(role, request, list(self._asked_of_s3(request.verb, bucket, key, query, headers)))
        if ruling.refusal is None and key and request.verb in ("GET", "HEAD"):
            may_list = Asked("s3:ListBucket", f"arn:aws:s3:::{bucket}")
            return Ruling(hides_absence=not self._account.allows(self._roles[role], may_list))
        return ruling

    def _asked_of_s3(
        self, verb: str, bucket: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Iterator[Asked]:
        place, found = f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/{key}"
        if not key:
            prefix = {"s3:prefix": query["prefix"]} if "prefix" in query else {}
            action = "s3:ListBucketMultipartUploads" if "uploads" in query else "s3:ListBucket"
            yield Asked(action if verb in ("GET", "HEAD") else f"s3:{verb}Bucket", place, prefix)
            return
        is_encrypted = self._account.is_own_bucket(bucket)
        if verb in ("GET", "HEAD"):
            yield Asked("s3:ListMultipartUploadParts" if "uploadId" in query else "s3:GetObject", found)
            yield from self._asked_of_key(DECRYPT) if is_encrypted else ()
        elif verb == "DELETE":
            yield Asked("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", found)
        else:
            source = headers.get("x-amz-copy-source")
            if source is not None:
                yield Asked("s3:GetObject", f"arn:aws:s3:::{unquote(source).lstrip('/')}")
            if_absent = {"s3:if-none-match": headers["if-none-match"]} if "if-none-match" in headers else {}
            yield Asked("s3:PutObject", found, if_absent)
            is_in_parts = any(name in query for name in _OF_AN_UPLOAD)
            if is_encrypted:
                yield from self._asked_of_key(ENCRYPT, *((DECRYPT,) if is_in_parts or source is not None else ()))

    def _rule_on_deletes(self, role: str, bucket: str, body: bytes) -> Ruling:
        """As S3 answers a request for many: each that is denied is named, and the others are deleted."""
        keys = [each.text or "" for each in ElementTree.fromstring(body).iter() if _local(each.tag) == "Key"]
        denied = [
            key for key in keys if not self._allows(role, Asked("s3:DeleteObject", f"arn:aws:s3:::{bucket}/{key}"))
        ]
        if not denied:
            return Ruling()
        allowed = [key for key in keys if key not in denied]
        if allowed:
            self._delete(bucket, allowed)
        errors = "".join(
            f"<Error><Key>{escape(key)}</Key><Code>{ACCESS_DENIED}</Code><Message>Access Denied</Message></Error>"
            for key in denied
        )
        answer = f"<DeleteResult>{errors}</DeleteResult>".encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(answer)}\r\n\r\n"
        return Ruling(head.encode() + answer)

    # -- the others

    def _asked(self, request: Request, body: bytes) -> list[Asked]:
        name = request.operation.removesuffix("Batch")
        if request.service == "sns":
            form = parse_qs(body.decode())
            topic = form.get("TopicArn", form.get("TargetArn", [ANY]))[0]
            writes = (ENCRYPT, DECRYPT) if name == "Publish" else ()
            return [Asked(f"sns:{name}", topic), *self._asked_of_key(*writes)]
        given = json.loads(body or b"{}")
        if request.service == "emr-serverless":
            return list(self._asked_of_serverless(request, given))
        if request.service == "sqs":
            return list(self._asked_of_sqs(name, given))
        if request.service == "elasticmapreduce":
            return list(self._asked_of_emr(name, given))
        if request.service == "logs":
            group = given.get("logGroupName", "")
            return [Asked(f"logs:{name}", f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{group}:log-stream:")]
        if request.service == "states":
            of = given.get("executionArn") or given.get("stateMachineArn") or ANY
            return [Asked(f"states:{name}", of)]
        raise AssertionError(f"{request.service}:{name} is not evaluated: add it")

    def _asked_of_sqs(self, name: str, given: Mapping[str, str]) -> Iterator[Asked]:
        queue = given.get("QueueName") or given["QueueUrl"].rpartition("/")[2]
        yield Asked(f"sqs:{name}", f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}")
        if name in ("SendMessage", "ReceiveMessage"):
            yield from self._asked_of_key(DECRYPT, *((ENCRYPT,) if name == "SendMessage" else ()))

    def _asked_of_emr(self, name: str, given: Mapping[str, object]) -> Iterator[Asked]:
        service = "elasticmapreduce"
        tags = _tags(given.get("Tags"))
        wanted = {f"{service}:RequestTag/{key}": value for key, value in tags.items()}
        if name == "RunJobFlow":
            yield Asked(f"{service}:{name}", ANY, wanted)
            yield Asked(f"{service}:AddTags", f"arn:aws:{service}:{REGION}:{ACCOUNT}:cluster/j-new", wanted)
            for role, receiver in (("ServiceRole", service), ("JobFlowRole", "ec2")):
                passed = self._role_passed(str(given[role]))
                yield Asked("iam:PassRole", passed, {"iam:PassedToService": f"{receiver}.amazonaws.com"})
            return
        ids = given.get("JobFlowIds") or [given.get("ClusterId")]
        assert isinstance(ids, list)
        for cluster in ids:
            if cluster is None:
                yield Asked(f"{service}:{name}", ANY)
                continue
            of = {f"{service}:ResourceTag/{key}": value for key, value in self._tags_of_cluster(cluster).items()}
            yield Asked(f"{service}:{name}", f"arn:aws:{service}:{REGION}:{ACCOUNT}:cluster/{cluster}", of)

    def _asked_of_serverless(self, request: Request, given: Mapping[str, Any]) -> Iterator[Asked]:
        service, path = "emr-serverless", urlsplit(request.target).path
        resource = f"arn:aws:{service}:{REGION}:{ACCOUNT}:{path.removesuffix('/jobruns')}"
        match request.verb, path.endswith("/jobruns"):
            case "POST", True:
                wanted = {f"aws:RequestTag/{key}": value for key, value in given["tags"].items()}
                yield from (Asked(f"{service}:{name}", resource, wanted) for name in ("StartJobRun", "TagResource"))
                passed = {"iam:PassedToService": f"{service}.amazonaws.com"}
                yield Asked("iam:PassRole", given["executionRoleArn"], passed)
            case "GET", True:
                yield Asked(f"{service}:ListJobRuns", resource)
            case verb, False if "/jobruns/" in path:
                tags = self._tags_of_job_run(path.rpartition("/")[2])
                of = {f"aws:ResourceTag/{key}": value for key, value in tags.items()}
                yield Asked(f"{service}:{'CancelJobRun' if verb == 'DELETE' else 'GetJobRun'}", resource, of)
            case verb, _:
                raise AssertionError(f"{service}: {verb} {path} is not evaluated: add it")

    def _role_passed(self, name: str) -> str:
        """The ARN of a role, or of the role of an instance profile."""
        return name if ":role/" in name else self._account.role_of_profile(name)

    def _asked_of_key(self, *actions: str) -> Iterator[Asked]:
        yield from (Asked(action, self._key) for action in actions)


def _local(tag: str) -> str:
    return _NAMESPACE.sub("", tag)


def _tags(given: object) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in given} if isinstance(given, list) else {}
