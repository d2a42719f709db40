"""The ARNs that permissions name, and the permissions on lakes, state, keys and queues."""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.permissions import Permission, actions

DISPATCHER_TAG = ("lithify", "dispatcher")
"""Tag, key and value, of the roles that may read task tokens."""

DEPLOYMENT_TAG = "lithify-deployment"
"""Tag of every cluster and job run, with the stack's name: nothing else is described or ended."""

EMR_TAG = ("for-use-with-amazon-emr-managed-policies", "true")
"""Tag that EMR's own policy wants on networks and clusters before it touches them."""

ARCHIVE_FOLDER, LOG_FOLDER = "archive", "emr-logs"
"""Folders beside the state, in its bucket."""


QUARANTINE_FOLDER = "quarantine"
"""Folder of a lake for changes that cannot be applied."""


@dataclass(frozen=True)
class Folder:
    """A lake, or files beside lakes. `prefix` empty: the whole bucket."""

    bucket_arn: str
    prefix: str

    @property
    def objects(self) -> str:
        return f"{self.bucket_arn}/{self.keys}"

    @property
    def keys(self) -> str:
        return f"{self.prefix}/*" if self.prefix else "*"


@dataclass(frozen=True)
class Places:
    """ARNs, which may be CloudFormation's own expressions.

    Attributes:
        arn_head: `arn:aws:{service}:region:account:` with the service left out, as `arn(...)` takes it
        files: outside of the lakes, which the lakes' logs may name
        landing: where files land that announce themselves
        log_groups: of the stage's containers"""

    partition: str
    region: str
    account: str
    stack_name: str
    queue: str
    dead_letters: str
    announcements: str
    refused: str
    topic: str
    page_feed: str
    key: str
    state_bucket: str
    state_prefix: str
    lakes: tuple[Folder, ...]
    files: tuple[Folder, ...]
    landing: tuple[Folder, ...]
    glue_databases: tuple[str, ...]
    cluster_name: str
    dispatcher_family: str
    keeper_family: str
    workflow_name: str
    repository: str
    log_groups: tuple[str, ...]

    def arn(self, service: str, resource: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    @property
    def ecs_cluster(self) -> str:
        return self.arn("ecs", f"cluster/{self.cluster_name}")

    @property
    def workflow(self) -> str:
        return self.arn("states", f"stateMachine:{self.workflow_name}")

    @property
    def executions(self) -> str:
        return self.arn("states", f"execution:{self.workflow_name}:*")

    @property
    def glue_tables(self) -> tuple[str, ...]:
        """Every table of the stage's databases. Glue asks for the right on catalog and database, too."""
        names = [f"{kind}/{name}" for name in self.glue_databases for kind in ("database", "table")]
        return (
            self.arn("glue", "catalog"),
            *(self.arn("glue", f"{name}/*" if name.startswith("table/") else name) for name in names),
        )

    @property
    def container_logs(self) -> tuple[str, ...]:
        """The log streams of dispatchers, keeper, ingest and page."""
        return tuple(f"{each}:*" for each in self.log_groups)

    def state_objects(self, *keys: str) -> tuple[str, ...]:
        return tuple(f"{self.state_bucket}/{self.state_prefix}/{key}" for key in keys)

    def lake_objects(self, *keys: str) -> tuple[str, ...]:
        return tuple(f"{lake.bucket_arn}/{lake.prefix}/{key}" for lake in self.lakes for key in keys)

    def in_state_bucket(self, key: str) -> str:
        return f"{self.state_bucket}/{key}"


def use_key(places: Places, *, writes: bool) -> Permission:
    names = "Decrypt GenerateDataKey" if writes else "Decrypt"
    return Permission(
        "UseKey", "buckets, queues and topics are encrypted with it", actions("kms", names), (places.key,)
    )


def list_lakes(places: Places) -> tuple[Permission, ...]:
    """Permissions to list, one for each bucket. Without them S3 answers 403 instead of 404 for a missing object."""
    return _list_each("ListLakes", "logs of tables are found by listing", places.lakes)


def _list_each(sid: str, why: str, folders: Sequence[Folder]) -> tuple[Permission, ...]:
    found = []
    for number, bucket in enumerate(dict.fromkeys(each.bucket_arn for each in folders), start=1):
        prefixes = sorted(each.keys for each in folders if each.bucket_arn == bucket)
        found.append(_list(f"{sid}{number}", why, bucket, prefixes))
    return tuple(found)


def find_uploads(places: Places) -> Permission:
    return Permission(
        "FindUploads",
        "that killed writers left; AWS knows no prefix for this list",
        ("s3:ListBucketMultipartUploads",),
        tuple(dict.fromkeys((*(lake.bucket_arn for lake in places.lakes), places.state_bucket))),
    )


def list_state(places: Places, *folders: str) -> Permission:
    prefixes = [f"{places.state_prefix}/{folder}*" for folder in folders or ("",)]
    return _list("ListState", "logs of job runs are found by listing", places.state_bucket, prefixes)


def list_archive(places: Places) -> Permission:
    return _list("ListArchive", "its size is found by listing", places.state_bucket, [f"{ARCHIVE_FOLDER}/*"])


def _list(sid: str, why: str, bucket: str, prefixes: Sequence[str]) -> Permission:
    # IfExists: a GET of a missing object has no prefix, and must be answered with 404, not with 403.
    conditions = {"StringLikeIfExists": {"s3:prefix": list(prefixes)}}
    return Permission(sid, why, ("s3:ListBucket",), (bucket,), conditions)


def read_lakes(places: Places) -> tuple[Permission, ...]:
    """With the files outside of them that their logs may name."""
    read = (Permission("ReadLakes", "logs, data and index", ("s3:GetObject",), places.lake_objects("*")),)
    if not places.files:
        return read
    return (
        *read,
        Permission(
            "ReadFiles",
            "outside of the lakes, which their logs may name",
            ("s3:GetObject",),
            tuple(each.objects for each in places.files),
        ),
        *_list_each("ListFiles", "a file that is missing is told from one that is denied", places.files),
    )


def write_lakes(places: Places) -> Permission:
    return Permission(
        "WriteLakes",
        "files, and the log entry that adds them; what is given up is an aborted upload",
        actions("s3", "AbortMultipartUpload PutObject"),
        places.lake_objects("*"),
    )


def write_deltas(places: Places) -> Permission:
    return Permission(
        "WriteDeltas",
        "and what is given up of them; no compacted file",
        actions("s3", "AbortMultipartUpload PutObject"),
        places.lake_objects("tables/*/data/*/delta/*"),
    )


def quarantine_changes(places: Places) -> Permission:
    return Permission(
        "QuarantineChanges",
        "that cannot be applied, of tables whose property quarantine names this folder of the lake",
        actions("s3", "GetObject PutObject"),
        places.lake_objects(f"{QUARANTINE_FOLDER}/*"),
    )


def read_landing(places: Places) -> tuple[Permission, ...]:
    if not places.landing:
        return ()
    return (
        Permission(
            "ReadLanding",
            "files that have landed; nothing of them can be written or deleted",
            ("s3:GetObject",),
            tuple(each.objects for each in places.landing),
        ),
        *_list_each("ListLanding", "files whose announcement was lost are found by listing", places.landing),
    )


def clear_hints(places: Places) -> Permission:
    return Permission(
        "ClearHints",
        "that a stream has something to compact, once it has nothing; no file and no log entry",
        ("s3:DeleteObject",),
        places.lake_objects("tables/*/news/*"),
    )


def publish_tables(places: Places) -> Permission:
    folders = ("compacted/_delta_log", "compacted/dead", "iceberg")
    return Permission(
        "PublishTables",
        "metadata of tables for other engines, and never a file with rows",
        ("s3:PutObject",),
        places.lake_objects(*(f"tables/*/{folder}/*" for folder in folders)),
    )


def read_tables(places: Places) -> Permission:
    """For other engines: what is published, and nothing of Lithify's own."""
    return Permission(
        "ReadTables",
        "published files and their metadata; nothing of it can be written or deleted",
        ("s3:GetObject",),
        places.lake_objects("tables/*/compacted/*", "tables/*/iceberg/*"),
    )


def enter_tables(places: Places) -> tuple[Permission, ...]:
    names = actions("glue", "CreateTable GetTable UpdateTable")
    why = "the newest version of published tables, in the stage's databases"
    return (Permission("EnterTables", why, names, places.glue_tables),) if places.glue_databases else ()


def find_tables(places: Places) -> tuple[Permission, ...]:
    names = actions("glue", "GetDatabase GetPartitions GetTable GetTables")
    why = "published tables, in the stage's databases"
    return (Permission("FindTables", why, names, places.glue_tables),) if places.glue_databases else ()
