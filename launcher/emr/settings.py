"""A user's settings for EMR and EMR Serverless: one frozen value, read at start. Every violation is reported at once,
with a correction; none costs a request.

    {"kind": "emr", "region": "eu-west-1", "release_label": "emr-7.13.0", "subnet_ids": ["subnet-0123456789abcdef0"],
     "service_role": "EMR_DefaultRole", "instance_profile": "EMR_EC2_DefaultRole",
     "archive_uri": "s3://bucket/lithify.tar.gz", "log_uri": "s3://bucket/logs/"}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import BaseModel, ValidationError

from compactor.model.document import Document
from compactor.model.errors import Invalid
from compactor.model.wrong_input import sentences
from compactor.storage.location import StoreLocation, checked_endpoint
from launcher.emr.tags import OUR_TAGS, OUR_TAGS_OF_A_JOB, VALUE_CHARACTERS_MAX

IDLE_SECONDS_MIN, IDLE_SECONDS_MAX = 60, 604_800
"""The idle timeouts that EMR accepts."""

TAG_KEY_CHARACTERS_MAX = 128
TAGS_MAX = 50 - OUR_TAGS_OF_A_JOB

_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}")
_RELEASE_LABEL = re.compile(r"emr-(?:spark-)?(?P<major>[0-9]+)\.[0-9]+\.[0-9]+")
_OLDEST_RELEASE = 7
"""The first one with Spark 3.5 and Python 3.11."""

_SUBNET = re.compile(r"subnet-(?:[0-9a-f]{8}|[0-9a-f]{17})")
_SECURITY_GROUP = re.compile(r"sg-(?:[0-9a-f]{8}|[0-9a-f]{17})")
_ROLE_NAME = r"[\w+=,.@-]{1,64}"
_ROLE = re.compile(rf"(?:arn:aws[a-z-]*:iam::[0-9]{{12}}:role/(?:[!-.0-~]+/)*)?{_ROLE_NAME}")
_ROLE_ARN = re.compile(rf"arn:aws[a-z-]*:iam::[0-9]{{12}}:role/(?:[!-.0-~]+/)*{_ROLE_NAME}")
_PROFILE = re.compile(rf"(?:arn:aws[a-z-]*:iam::[0-9]{{12}}:instance-profile/(?:[!-.0-~]+/)*)?{_ROLE_NAME}")
_APPLICATION = re.compile(r"[0-9a-z]{1,64}")
_OBJECT = re.compile(r"s3://[^/\s]+/\S+")
_FOLDER = re.compile(r"s3://[^/\s]+/\S*")
_TAG_TEXT = re.compile(r"[A-Za-z0-9_.:/=+@ -]*")
_OURS = (
    "spark.archives",
    "spark.master",
    "spark.pyspark.driver.python",
    "spark.pyspark.python",
    "spark.submit.deployMode",
    "spark.yarn.maxAppAttempts",
)
"""Settings of Spark that the launcher decides."""


class SecurityGroups(Document):
    """`primary` and `nodes` as EMR manages them; `service_access` where the subnet is private."""

    primary: str
    nodes: str
    service_access: str | None = None


class _OnAws(Document):
    """The settings of both kinds.

    archive_uri    the environment that `lithify archive` packs, uploaded
    log_uri        a folder, for the logs of clusters and of Spark
    tags           the user's own, beside Lithify's
    spark_settings  of the user's, for the Spark job
    endpoint_url   of the service, if it is not AWS's own
    """

    region: str
    archive_uri: str
    log_uri: str
    tags: dict[str, str] = {}
    spark_settings: dict[str, str] = {}
    endpoint_url: str | None = None

    def violations(self) -> Iterator[str]:
        if not _REGION.fullmatch(self.region):
            yield f"region is {self.region!r}: write one like eu-west-1"
        yield from _not_an_object("archive_uri", self.archive_uri)
        if not _FOLDER.fullmatch(self.log_uri):
            yield f"log_uri is {self.log_uri!r}: write a folder, s3://bucket/prefix/"
        yield from _wrong_tags(self.tags)
        for name in sorted(self.spark_settings):
            if not name.startswith("spark.") or name in _OURS:
                yield f"spark_settings.{name}: only settings of Spark are taken, beside {', '.join(_OURS)}"
        try:
            checked_endpoint(self.endpoint_url)
        except Invalid as error:
            yield f"endpoint_url: {error}"


class EmrSettings(_OnAws):
    """
    release_label           of EMR, emr-7.0.0 or later, or emr-spark-8.0.0 or later
    subnet_ids              several: EMR chooses one by its capacity, and launches fleets
    service_role            of EMR itself, by name or ARN
    instance_profile        of the nodes: it must read and write lake and state, and read the archive
    security_groups         None: EMR makes its own
    use_fleets              whether instance fleets choose among instance types that are alike; else groups of one type
    idle_seconds            after which a cluster without a step ends, if no dispatcher ends it
    """

    kind: Literal["emr"]
    release_label: str
    subnet_ids: tuple[str, ...]
    service_role: str
    instance_profile: str
    security_configuration: str | None = None
    security_groups: SecurityGroups | None = None
    use_fleets: bool = False
    idle_seconds: int = 600

    def violations(self) -> Iterator[str]:
        yield from super().violations()
        label = _RELEASE_LABEL.fullmatch(self.release_label)
        if label is None:
            yield f"release_label is {self.release_label!r}: write one like emr-7.13.0 or emr-spark-8.0.0"
        elif int(label["major"]) < _OLDEST_RELEASE:
            yield f"release_label is {self.release_label}: its Spark and Python are too old, write emr-7.0.0 or later"
        yield from self._wrong_network()
        if not _ROLE.fullmatch(self.service_role):
            yield _wrong_role("service_role", self.service_role, "role")
        if not _PROFILE.fullmatch(self.instance_profile):
            yield _wrong_role("instance_profile", self.instance_profile, "instance-profile")
        if not IDLE_SECONDS_MIN <= self.idle_seconds <= IDLE_SECONDS_MAX:
            yield f"idle_seconds is {self.idle_seconds}: EMR takes {IDLE_SECONDS_MIN} to {IDLE_SECONDS_MAX}"

    def _wrong_network(self) -> Iterator[str]:
        if not self.subnet_ids:
            yield "subnet_ids is empty: name at least one subnet, like subnet-0123456789abcdef0"
        for subnet_id in self.subnet_ids:
            if not _SUBNET.fullmatch(subnet_id):
                yield f"subnet_ids: {subnet_id!r} is no subnet: write subnet- and 8 or 17 hexadecimal digits"
        if len(self.subnet_ids) > 1 and not self.use_fleets:
            yield 'subnet_ids has more than one: only instance fleets choose among them, so add "use_fleets": true'
        groups = self.security_groups
        for group_id in (groups.primary, groups.nodes, groups.service_access) if groups is not None else ():
            if group_id is not None and not _SECURITY_GROUP.fullmatch(group_id):
                yield f"security_groups: {group_id!r} is no security group: write sg- and 8 or 17 hexadecimal digits"


class EmrServerlessSettings(_OnAws):
    """
    application_id      of an application of type Spark, which exists already
    execution_role_arn  of the jobs: it must read and write lake and state, and read archive and program
    program_uri         compactor/main.py of the archive's release, uploaded
    timeout_minutes     after which the service ends a job run
    """

    kind: Literal["emr_serverless"]
    application_id: str
    execution_role_arn: str
    program_uri: str
    timeout_minutes: int = 24 * 60

    def violations(self) -> Iterator[str]:
        yield from super().violations()
        yield from _not_an_object("program_uri", self.program_uri)
        if not _APPLICATION.fullmatch(self.application_id):
            yield f"application_id is {self.application_id!r}: write the application's id, like 00f1abcdefgh2345"
        if not _ROLE_ARN.fullmatch(self.execution_role_arn):
            yield (
                f"execution_role_arn is {self.execution_role_arn!r}: write a role's whole ARN, "
                "arn:aws:iam::123456789012:role/name"
            )
        if not 1 <= self.timeout_minutes <= 1_000_000:
            yield f"timeout_minutes is {self.timeout_minutes}: EMR Serverless takes 1 to 1000000"


AwsClusterSettings = EmrSettings | EmrServerlessSettings
_KINDS: Mapping[str, type[AwsClusterSettings]] = {"emr": EmrSettings, "emr_serverless": EmrServerlessSettings}


class _AnySettings(BaseModel):
    kind: Literal["emr", "emr_serverless"]


def parse_settings(body: bytes, where: str) -> AwsClusterSettings:
    """`where`: the name of the settings in reasons."""
    model: type[BaseModel] = _AnySettings
    try:
        model = _KINDS[_AnySettings.model_validate_json(body).kind]
        settings = model.model_validate_json(body)
    except ValidationError as error:
        raise Invalid(*(f"{where}: {reason}" for reason in sentences(error, model))) from error
    reasons = tuple(f"{where}: {reason}" for reason in settings.violations())
    if reasons:
        raise Invalid(*reasons)
    return settings


def check_places(state: StoreLocation, lake: StoreLocation | None) -> None:
    """Raises `Invalid`, with both, for a state or a lake that another machine cannot reach."""
    places = {"state": state, "lake": lake}
    reasons = [
        f"the {name} {place.root_uri} is a folder of this machine, which the nodes of a cluster cannot reach: "
        f"write s3://bucket/prefix"
        for name, place in places.items()
        if place is not None and not place.is_remote
    ]
    if reasons:
        raise Invalid(*reasons)


def _not_an_object(name: str, uri: str) -> Iterator[str]:
    if not _OBJECT.fullmatch(uri):
        yield f"{name} is {uri!r}: the nodes of a cluster download it, so write s3://bucket/key"


def _wrong_role(name: str, value: str, resource: str) -> str:
    return f"{name} is {value!r}: write its name, or arn:aws:iam::123456789012:{resource}/name"


def _wrong_tags(tags: Mapping[str, str]) -> Iterator[str]:
    if len(tags) > TAGS_MAX:
        yield f"tags has {len(tags)}: at most {TAGS_MAX} fit beside Lithify's own"
    for key, value in tags.items():
        if key in OUR_TAGS or key.lower().startswith("aws:") or not key:
            yield f"tags: {key!r} is not free: choose another name"
        elif len(key) > TAG_KEY_CHARACTERS_MAX or len(value) > VALUE_CHARACTERS_MAX:
            yield f"tags: {key!r} is too long: {TAG_KEY_CHARACTERS_MAX} and {VALUE_CHARACTERS_MAX} characters at most"
        elif not _TAG_TEXT.fullmatch(key) or not _TAG_TEXT.fullmatch(value):
            yield f"tags: {key!r}: only letters, digits, spaces and _ . : / = + @ - are taken"
