"""A user's settings for EMR and EMR Serverless: one frozen value, read at start. Every violation is reported at once,
with a correction; none costs a request.

    {"kind": "emr", "region": "eu-west-1", "release_label": "emr-7.13.0", "subnet_ids": ["subnet-0123456789abcdef0"],
     "service_role": "EMR_DefaultRole", "instance_profile": "EMR_EC2_DefaultRole",
     "archive_uri": "s3://bucket/lithify.tar.gz", "log_uri": "s3://bucket/logs/"}
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from io import BytesIO
from typing import Literal

from pydantic import BaseModel, ValidationError

from compactor.model.document import Document
from compactor.model.errors import Corrupt, Invalid, refuse_if
from compactor.model.wrong_input import sentences
from compactor.sessions.keys import BundleObject, SessionObject
from compactor.storage.keys import parse_any
from compactor.storage.location import StoreLocation, checked_endpoint
from compactor.storage.object_store import ObjectStore
from launcher.archive import PROJECT, ArchiveManifest, manifest_in
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.sizing.instance_types import PriceList
from launcher.spark_job import SparkJob

DIGEST_CHARACTERS = 32
VALUE_CHARACTERS_MAX = 256
STATE_TAG, JOB_RUN_TAG = "lithify-state", "lithify-job-run"
SESSION_TAG, BUNDLE_TAG = "lithify-session", "lithify-bundle"
"""A job has one of the two: it runs one session, or a bundle of them."""

ATTEMPT_TAG, OWNER_TAG = "lithify-attempt", "lithify-owner"
OUR_TAGS = (STATE_TAG, JOB_RUN_TAG, SESSION_TAG, BUNDLE_TAG, ATTEMPT_TAG, OWNER_TAG)
OUR_TAGS_OF_A_JOB = len(OUR_TAGS) - 1

_NOT_TAKEN = re.compile(r"[^A-Za-z0-9_.:/=+@ -]+")


def state_digest(state: StoreLocation) -> str:
    """Distinguishes the clusters of state stores; a digest, because a URI may be longer than a tag."""
    exact = f"{state.root_uri}\0{state.endpoint_url or ''}".encode()
    return hashlib.sha256(exact).hexdigest()[:DIGEST_CHARACTERS]


def tags_of(job: SparkJob, owner: str, own: Mapping[str, str]) -> dict[str, str]:
    """The tags of an attempt: the user's `own`, and ours, which win.

    Args:
        owner: the dispatcher that launched it"""
    ours = {
        STATE_TAG: state_digest(job.state),
        **_plan_tags(job.plan_key),
        ATTEMPT_TAG: str(job.attempt),
        OWNER_TAG: owner,
    }
    return {**own, **{key: tag_value(value) for key, value in ours.items()}}


def tag_value(text: str) -> str:
    """Characters that tags do not allow become `-`; long values are truncated."""
    return _NOT_TAKEN.sub("-", text)[:VALUE_CHARACTERS_MAX]


def _plan_tags(plan_key: str) -> dict[str, str]:
    match parse_any(plan_key, (SessionObject, BundleObject)):
        case SessionObject(session=session):
            return {JOB_RUN_TAG: session.job_run_id, SESSION_TAG: session.session_id}
        case BundleObject(bundle=bundle):
            return {JOB_RUN_TAG: bundle.job_run_id, BUNDLE_TAG: bundle.bundle_id}
        case _:
            raise Corrupt(f"{plan_key} is no plan of a session, nor of a bundle")


IDLE_SECONDS_MIN, IDLE_SECONDS_MAX = 60, 604_800
"""The idle timeouts that EMR accepts."""

TAG_KEY_CHARACTERS_MAX = 128
TAGS_MAX = 50 - OUR_TAGS_OF_A_JOB

_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}")
_RELEASE_LABEL = re.compile(r"emr-(?:spark-)?(?P<major>[0-9]+)\.[0-9]+\.[0-9]+")
_OLDEST_RELEASE = 7
"""The oldest release that is accepted: the first one with Spark 3.5 and Python 3.11."""

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

    Attributes:
        archive_uri: the environment that `lithify archive` packs, uploaded
        log_uri: a folder, for the logs of clusters and of Spark
        tags: the user's own, beside Lithify's
        spark_settings: of the user's, for the Spark job
        endpoint_url: of the service, if it is not AWS's own"""

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
    Attributes:
        release_label: of EMR, emr-7.0.0 or later, or emr-spark-8.0.0 or later
        subnet_ids: several: EMR chooses one by its capacity, and launches fleets
        service_role: of EMR itself, by name or ARN
        instance_profile: of the nodes: it must read and write lake and state, and read the archive
        security_groups: None: EMR makes its own
        use_fleets: whether instance fleets choose among instance types that are alike, and cost no more where money is
            limited; else groups of one type
        idle_seconds: after which a cluster without a step ends, if no dispatcher ends it"""

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
    Attributes:
        application_id: of an application of type Spark, which exists already
        execution_role_arn: of the jobs: it must read and write lake and state, and read archive and program
        program_uri: compactor/main.py of the archive's release, uploaded
        timeout_minutes: after which the service ends a job run"""

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
    refuse_if([f"{where}: {reason}" for reason in settings.violations()])
    return settings


def check_places(state: StoreLocation, lake: StoreLocation | None) -> None:
    """Raises `Invalid`, with both, for a state or a lake that another machine cannot reach."""
    reasons = [
        f"the {name} {place.root_uri} is a folder of this machine, which the nodes of a cluster cannot reach: "
        f"write s3://bucket/prefix"
        for name, place in (("state", state), ("lake", lake))
        if place is not None and not place.is_remote
    ]
    refuse_if(reasons)


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


READ_BYTES = 1024 * 1024
PACK_AGAIN = "make one with `lithify archive lithify.tar.gz`, and upload it"
PYTHONS = ("3.11", "3.12", "3.13")
"""Releases of Python on nodes of EMR: 3.11 from emr-7.0.0 on, all of them from emr-spark-8.0.0 on."""

_ARM = ("aarch64", "arm64")
_GRAVITON = re.compile(r"[a-z]+[0-9]+[a-z]*g[a-z]*\.")
"""The pattern of families with ARM processors: the letters behind the generation have a g, as in r6g, r7gd, x2gd."""


def check_archive(uri: str, open_folder: Callable[[str], ObjectStore]) -> ArchiveManifest:
    """The manifest of the archive. Raises `Invalid` if it does not exist, is not an archive of Lithify, or is of
    another release or Python, and the errors of `open_folder` if its service does not answer."""
    found = _read_manifest(uri, open_folder)
    release = metadata.version(PROJECT)
    if found.lithify != release:
        raise Invalid(f"archive_uri is {uri}: it holds Lithify {found.lithify}, and this is {release}: {PACK_AGAIN}")
    if found.python not in PYTHONS:
        raise Invalid(
            f"archive_uri is {uri}: it is for Python {found.python}, and nodes of EMR have {', '.join(PYTHONS)}: "
            f"{PACK_AGAIN}"
        )
    return found


def room_on(manifest: ArchiveManifest, room: ClusterRoom) -> ClusterRoom:
    """The instance types whose processors can run the archive. Raises `Invalid` if no session can run on those."""
    is_arm = manifest.platform.endswith(_ARM)
    fitting = tuple(each for each in room.prices.instance_types if is_of_arm(each.name) == is_arm)
    if not fitting:
        names = ", ".join(each.name for each in room.prices.instance_types)
        raise Invalid(
            f"the archive is for {manifest.platform}, and no instance type that is allowed has such a processor "
            f"({names}): make it on such a machine, or allow others"
        )
    prices: PriceList = room.prices.model_copy(update={"instance_types": fitting})
    fitting_room = replace(room, prices=prices)
    fitting_room.check()
    return fitting_room


def is_of_arm(instance_type: str) -> bool:
    return _GRAVITON.match(instance_type) is not None


def _read_manifest(uri: str, open_folder: Callable[[str], ObjectStore]) -> ArchiveManifest:
    folder, _, key = uri.rpartition("/")
    store = open_folder(folder)
    entry = next((each for each in store.list(key) if each.key == key), None)
    if entry is None:
        raise Invalid(f"archive_uri is {uri}: there is no such object: {PACK_AGAIN}")
    beginning = store.read_range(key, 0, min(READ_BYTES, entry.size_bytes)) if entry.size_bytes else b""
    return manifest_in(BytesIO(beginning), f"archive_uri is {uri}: it", PACK_AGAIN)
