"""Checks a stage: reports all errors together, each with what to write instead."""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import fields

from compactor.catalog.properties import default_policy_of_text
from compactor.model.errors import Invalid, refuse_if
from compactor.planning.machine_share import MIB, service_memory_bytes, workers_share
from compactor.planning.where_to_run import WorkerPool
from infra.aws.regions import boto3_release, services_without
from infra.prices import wrong_prices
from infra.stages import ANY_ACCOUNT, SPARKS, Stage

_ACCOUNT = re.compile(r"[0-9]{12}")
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_GLUE_DATABASE = re.compile(r"[a-z0-9_]{1,255}")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()-]+(?:/[A-Za-z0-9!_.*'()-]+)*")
_KEY = re.compile(r"arn:aws[a-z-]*:kms:(?P<region>[a-z0-9-]+):[0-9]{12}:key/[A-Za-z0-9-]+")
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

STATE_PREFIX = "state"
"""Prefix of the state in its bucket. Beside it lie the archive and Spark's logs."""

MAY_BE_ZERO = {"nat_gateways", "workers", "ingests", "spot_share"}
"""Numbers of a stage that may be zero. Limits of zero are no limits: nothing could run."""

FARGATE_MIB = {
    256: (512, 1_024, 2_048),
    512: range(1_024, 4_097, 1_024),
    1_024: range(2_048, 8_193, 1_024),
    2_048: range(4_096, 16_385, 1_024),
    4_096: range(8_192, 30_721, 1_024),
    8_192: range(16_384, 61_441, 4_096),
    16_384: range(32_768, 122_881, 8_192),
}
ABSENT_SERVICES = 8
"""Services that may be lacking: where more are, there is no such region."""

FARGATE_STOP_SECONDS_MAX = 120
LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653)
"""Days of retention that CloudWatch takes."""

KEEPER_MINUTES_MAX = 60
"""Minutes between two runs of the keeper, at most: with more its alarm would be late."""

EXECUTION_EVENTS_LIMIT = 25_000
EVENTS_OF_A_RESTART = 40
"""Events of a restart in the workflow's history, at most."""

EVENTS_OF_A_LOOK = 9
"""Events of a look, at least, whatever dispatchers do: of its wait, its request and its choice."""

EXECUTION_DAYS_MAX = 90


def check_stage(stage: Stage) -> None:
    """Raises `Invalid` with every error of the stage."""
    refuse_if([f"stage {stage.name}: {reason}" for reason in violations(stage)])


def violations(stage: Stage) -> Iterator[str]:
    for each in fields(stage):
        if getattr(stage, each.name) is None:
            yield f"{each.name} is missing: give it, {each.name}=..., behind the stage's name"
    for name in [each.name for each in fields(stage) if each.name not in MAY_BE_ZERO]:
        value = getattr(stage, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            yield f"{name} is {value}: it must be more than 0"
    yield from _wrong_place(stage)
    yield from _wrong_lakes(stage)
    yield from _wrong_files(stage)
    yield from _wrong_landing(stage)
    for database in stage.glue_databases:
        if not _GLUE_DATABASE.fullmatch(database):
            yield f"glue_databases: {database!r} is no name: write 1 to 255 small letters, digits and _"
    yield from _wrong_network(stage)
    yield from _wrong_dispatchers(stage)
    yield from _wrong_queues(stage)
    yield from _wrong_keeper(stage)
    yield from _wrong_spark(stage)


def _wrong_place(stage: Stage) -> Iterator[str]:
    if stage.account not in (None, ANY_ACCOUNT) and not _ACCOUNT.fullmatch(stage.account or ""):
        yield f"account is {stage.account!r}: write its twelve digits, or {ANY_ACCOUNT}"
    if stage.region is not None:
        if not _REGION.fullmatch(stage.region):
            yield f"region is {stage.region!r}: write one like eu-west-1"
        else:
            lacking = services_without(stage.region, serverless=stage.spark == "emr_serverless")
            if len(lacking) > ABSENT_SERVICES:
                yield f"region is {stage.region}: boto3 {boto3_release()} knows no such region"
            elif lacking:
                yield f"region {stage.region} has no {', '.join(lacking)}, as far as boto3 {boto3_release()} knows"
            else:
                yield from wrong_prices(stage)
    key = _KEY.fullmatch(stage.key_arn)
    if stage.key_arn and key is None:
        yield f"key_arn is {stage.key_arn!r}: write one like arn:aws:kms:eu-west-1:123456789012:key/..."
    elif key is not None and stage.region is not None and key["region"] != stage.region:
        yield f"key_arn is of {key['region']}, and the stage is in {stage.region}: a key is used in its own region"
    for address in stage.alarm_addresses or ():
        if not _ADDRESS.fullmatch(address):
            yield f"alarm_addresses: {address!r} is no e-mail address"


def _wrong_lakes(stage: Stage) -> Iterator[str]:
    if not stage.lakes:
        yield "lakes is empty: name one at least"
    if stage.state_bucket and not _BUCKET.fullmatch(stage.state_bucket):
        yield f"state_bucket is {stage.state_bucket!r}: write 3 to 63 small letters, digits and -"
    places: list[tuple[str, str]] = []
    for lake in stage.lakes:
        bucket, _, prefix = lake.removeprefix("s3://").partition("/") if lake.startswith("s3://") else ("", "", lake)
        if not _PREFIX.fullmatch(prefix) or (lake.startswith("s3://") and not _BUCKET.fullmatch(bucket)):
            yield f"lakes: {lake!r} is no place for a lake: write a prefix like lake, or s3://bucket/prefix"
            continue
        if bucket and bucket == stage.state_bucket:
            yield f"lakes: {lake} overlaps the state, which has the bucket {bucket} for itself"
        places.append((bucket, prefix))
    for index, (bucket, prefix) in enumerate(places):
        for other_bucket, other in places[:index]:
            if bucket == other_bucket and _overlap(prefix, other):
                yield f"lakes: {prefix} and {other} overlap: a lake is not inside another"


def _wrong_files(stage: Stage) -> Iterator[str]:
    for folder in stage.allow_files:
        bucket, _, prefix = folder.removeprefix("s3://").partition("/")
        if not folder.startswith("s3://") or not _BUCKET.fullmatch(bucket) or not _PREFIX.fullmatch(prefix):
            yield f"allow_files: {folder!r} is no place of files: write s3://bucket/prefix"
        elif bucket == stage.state_bucket:
            yield f"allow_files: {folder} is in the bucket of the state, which holds secrets: take another one"


def _wrong_landing(stage: Stage) -> Iterator[str]:
    if stage.ingests < 0:
        yield f"ingests is {stage.ingests}: write 0 for none"
    if stage.landing and stage.ingests == 0:
        yield "landing names folders, and ingests is 0: nothing would take their files in; write ingests=1"
    for folder in stage.landing:
        bucket, _, prefix = folder.removeprefix("s3://").partition("/")
        if not folder.startswith("s3://") or not _BUCKET.fullmatch(bucket) or not _PREFIX.fullmatch(prefix):
            yield f"landing: {folder!r} is no folder where files land: write s3://bucket/prefix"
            continue
        if bucket == stage.state_bucket:
            yield f"landing: {folder} is in the bucket of the state, which holds secrets: take another one"
        for lake in stage.lakes:
            lake_bucket, _, lake_prefix = lake.removeprefix("s3://").partition("/")
            if lake.startswith("s3://") and lake_bucket == bucket and _overlap(prefix, lake_prefix):
                yield f"landing: {folder} overlaps the lake {lake}: what is appended would land again"


def _overlap(prefix: str, other: str) -> bool:
    return f"{prefix}/".startswith(f"{other}/") or f"{other}/".startswith(f"{prefix}/")


def _wrong_network(stage: Stage) -> Iterator[str]:
    try:
        network = ipaddress.ip_network(stage.cidr)
    except ValueError as error:
        yield f"cidr is {stage.cidr!r}: {error}"
    else:
        if not network.is_private or not 16 <= network.prefixlen <= 24:
            yield f"cidr is {stage.cidr}: write a private network of 16 to 24 bits, like 10.20.0.0/16"
    if not 0 <= stage.nat_gateways <= stage.zones:
        yield f"nat_gateways is {stage.nat_gateways}: 0 to {stage.zones}, one a zone at most"
    if stage.zones > 3:
        yield f"zones is {stage.zones}: 3 at most, since not every region has more"


def _wrong_dispatchers(stage: Stage) -> Iterator[str]:
    if stage.dispatchers == 1 or stage.zones == 1:
        yield (
            f"dispatchers is {stage.dispatchers} in {stage.zones} zones: two of each at least, "
            "or one fault ends the service"
        )
    if stage.dispatcher_memory_mib not in FARGATE_MIB.get(stage.dispatcher_cpu, ()):
        yield (
            f"dispatcher_cpu {stage.dispatcher_cpu} with dispatcher_memory_mib {stage.dispatcher_memory_mib}: "
            f"Fargate has no such task (cpu is one of {', '.join(map(str, FARGATE_MIB))})"
        )
    yield from _workers_without_room(stage)
    if not _TAG.fullmatch(stage.image_tag):
        yield f"image_tag is {stage.image_tag!r}: write letters, digits, . - and _"
    if stage.stop_seconds > FARGATE_STOP_SECONDS_MAX:
        yield f"stop_seconds is {stage.stop_seconds}: Fargate kills a task after {FARGATE_STOP_SECONDS_MAX}"
    if stage.stop_seconds <= stage.drain_seconds:
        yield (
            f"stop_seconds is {stage.stop_seconds} and drain_seconds is {stage.drain_seconds}: "
            "a dispatcher must not be killed while it drains"
        )
    restarts = stage.dispatchers * 2 * stage.watch_seconds // max(stage.restart_seconds, 1)
    events = stage.execution_events_max + restarts * EVENTS_OF_A_RESTART
    if events > EXECUTION_EVENTS_LIMIT:
        yield (
            f"execution_events_max is {stage.execution_events_max}: with dispatchers that fail at once, an execution "
            f"has {events} events after two more looks, and Step Functions ends it at {EXECUTION_EVENTS_LIMIT}; take "
            "less, or a shorter watch_seconds, or a longer restart_seconds"
        )
    days = stage.execution_events_max / EVENTS_OF_A_LOOK * stage.watch_seconds / 86_400
    if days > EXECUTION_DAYS_MAX:
        yield (
            f"execution_events_max is {stage.execution_events_max} and watch_seconds is {stage.watch_seconds}: a quiet "
            f"execution continues as a new one after {days:.0f} days, and {EXECUTION_DAYS_MAX} are the most; take less "
            "of one of them"
        )


def _workers_without_room(stage: Stage) -> Iterator[str]:
    if stage.workers < 0:
        yield f"workers is {stage.workers}: write 0 for none"
        return
    service_bytes = service_memory_bytes(stage.dispatcher_memory_mib * MIB)
    is_here = stage.spark == "local"
    held = workers_share(service_bytes, stage.workers, None, WorkerPool.seconds, spark_is_here=is_here)
    count = 0 if held is None else held.pool.workers
    if count < stage.workers:
        yield (
            f"workers is {stage.workers}: a dispatcher with dispatcher_memory_mib {stage.dispatcher_memory_mib} holds "
            f"{count}{', beside Spark' if is_here else ''}; take fewer, or more memory"
        )


def _wrong_queues(stage: Stage) -> Iterator[str]:
    if stage.visibility_seconds > 43_200:
        yield f"visibility_seconds is {stage.visibility_seconds}: SQS takes 43200 at most"
    for name in ("retention_days", "dead_letter_days"):
        if getattr(stage, name) > 14:
            yield f"{name} is {getattr(stage, name)}: SQS takes 14 at most"
    if stage.dead_letter_days < stage.retention_days:
        yield (
            f"dead_letter_days is {stage.dead_letter_days} and retention_days {stage.retention_days}: a dead letter's "
            "age counts from when it was sent, so it would be lost before somebody has read it"
        )
    if stage.log_days not in LOG_DAYS:
        yield f"log_days is {stage.log_days}: CloudWatch takes {', '.join(map(str, LOG_DAYS))}"


def _wrong_keeper(stage: Stage) -> Iterator[str]:
    try:
        default_policy_of_text(stage.default_policy)
    except Invalid as error:
        yield from (f"default_policy: {reason}" for reason in error.reasons)
    if stage.keeper_minutes > KEEPER_MINUTES_MAX:
        yield (
            f"keeper_minutes is {stage.keeper_minutes}: {KEEPER_MINUTES_MAX} at most; what the keeper does seldom is "
            "bounded by the policies of tables, and by keeper_hours"
        )


def _wrong_spark(stage: Stage) -> Iterator[str]:
    if stage.spark not in SPARKS:
        yield f"spark is {stage.spark!r}: write one of {', '.join(SPARKS)}"
    if not 0 <= stage.spot_share <= 1:
        yield f"spot_share is {stage.spot_share}: write 0 to 1"
