"""The key of every object that Lithify stores: built and parsed here, and nowhere else.

    tables/<table id>/log/<log object>                                                  the table's definition
    tables/<table id>/streams/<partition>/log/<log object>                              a partition stream's log
    tables/<table id>/data/<partition>/delta/<append id>/<file number>.<suffix>
    tables/<table id>/data/<partition>/compacted/<compacted stream version>/<commit id>/<file number>-<attempt>.<suffix>
    tables/<table id>/data/<partition>/dead/<commit id>/<file number>-<attempt>.arrow
    tables/<table id>/data/<partition>/index/<index version>-<commit id>/<bucket>-<part>-<attempt>.arrow
    tables/<table id>/data/<partition>/index/<index version>-<commit id>/<bucket>-<part>-<attempt>.of-run-<run>.arrow
    tables/<table id>/compacted/<partition hash>/<commit id>/<file number>-<attempt>.parquet    an open file
    tables/<table id>/compacted/_delta_log/<version>.json, <version>.checkpoint.parquet, _last_checkpoint
    tables/<table id>/compacted/dead/<commit id>/deletion_vector_<uuid>.bin             as Delta Lake reads it
    tables/<table id>/iceberg/metadata/v<version>.metadata.json, version-hint.text      Apache Iceberg's metadata
    tables/<table id>/iceberg/metadata/snap-<commit id>.avro                            a list of manifests
    tables/<table id>/iceberg/metadata/<commit id>-<group>-<content>.avro               a manifest
    tables/<table id>/iceberg/dead/<uuid>-<commit id>.parquet                           a position delete file
    dropped_tables/<table id>
    job_runs/<job run id>/log/<log object>
    job_runs/<job run id>/sessions/<session id>/log/<log object>
    job_runs/<job run id>/published.json                                                how far its events are published
    job_runs/<job run id>/result.json                                                   what workflows got the URI of
    job_runs/<job run id>/sessions/<session id>/plan.json, plan-<attempt>.json, heartbeat.json, published.json
    job_runs/<job run id>/bundles/<bundle id>/plan.json, heartbeat.json                 of a shared Spark job
    open_job_runs_by_owner/<job run id>,<priority>,<time>[,<epoch>,<owner>[,<table>,<streams>]]  a job run that is open
    live_dispatchers/<owner>                                                            overwritten while it lives
    rejected_documents/<job run id>/<message id>
    task_tokens/<job run id>/<message id>
    answered_waiters/<job run id>/<message id>
    untold_job_runs/<job run id>
    paused/everything, paused/tables/<table id>, paused/job_runs/<job run id>
    history/days/<day>/log/<log object>                                                 job runs that ended on a day
    history/job_runs/day=<day>/job_runs.parquet                                         the same, once the day is closed
    history/cleaned/<day>                                                               what is not needed is deleted
    turns/log/<log object>                                                              which sessions run, and where
    started_dispatchers/<owner>
    releases/<version>                                                                  whose dispatchers worked on it

Every log is in a folder named `log`, and nothing else is. Data is beside the streams, not below them: the folders
under `streams/` are the existing partition streams, although data may have been written for one whose first log entry
was never created. A key says where an object is; what it contains (which delta, and whether it is part of the table)
only the log says.

Spark may run a task a second time while the first attempt still writes, so each attempt writes under its own names: the
`<attempt>` in them is a fresh id. The log names the files of the attempt that succeeded.

Open files, those of published tables, lie below one folder of the table, under names of `A-Z a-z 0-9 . _ -` alone:
other engines read them there, and some misread names that need percent-encoding. The partition is in the file and in
the log; the name has a hash of it, so that one folder does not hold the files of all.

Ids and partition values are data. They are percent-encoded as UTF-8, except `A-Z a-z 0-9 _ - .`; a leading `.` is
encoded. So none can be `..` or contain a `/`, and most are readable. The empty text is `%`. An encoded text that is
longer than a file name may be has its other dots encoded too, and continues in the next path part: every part but the
last ends with `~`. Only the encoding of a text can be parsed, and parsing returns that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Literal, TypeAlias
from urllib.parse import quote, unquote

from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation

PART_BYTES_MAX = 200
"""Of one path part of an encoded text; common file systems allow 255 bytes."""

NAME_IN_STREAM_BYTES_MAX = 128
"""Reserved for the rest of the longest key after the partition: the key of index pointers, with 10-digit numbers, has
113 bytes there."""

TASK_TOKENS = "task_tokens/"
"""The prefix of the keys of secrets, which only dispatchers may read."""

NAMES_KEPT = 4_096
"""Encoded names that a process keeps: the keys of one session have its table's and its partition's again and again."""

_CONTINUES = "~"
_EMPTY = "%"
_UNPARTITIONED = "_"

_SUFFIXES: Mapping[str, ContentType] = MappingProxyType({each.file_suffix: each for each in ContentType})


def encode(text: str) -> str:
    """A text as path parts without special meaning for a file system or a store. Raises `Invalid` if it is not
    Unicode."""
    return _split(_quote(text))


def decode(encoded: str) -> str:
    """The inverse of `encode`. Raises `Invalid` for anything that `encode` does not return."""
    text = _unquote(_join(encoded))
    if encode(text) != encoded:
        raise Invalid(f"{encoded!r} is not an encoded name")
    return text


def encode_partition(partition: Mapping[str, str]) -> str:
    """`key=value` pairs in the table's key order, joined with `,`; `_` for a table without partition keys."""
    pairs = (f"{_quote(key)}={_quote(value)}" for key, value in partition.items())
    return _split(",".join(pairs) or _UNPARTITIONED)


def decode_partition(encoded: str) -> dict[str, str]:
    """The inverse of `encode_partition`. Raises `Invalid` for anything else."""
    joined = _join(encoded)
    partition: dict[str, str] = {}
    if joined != _UNPARTITIONED:
        for pair in joined.split(","):
            key, _, value = pair.partition("=")
            partition[_unquote(key)] = _unquote(value)
    if encode_partition(partition) != encoded:
        raise Invalid(f"{encoded!r} is not an encoded partition")
    return partition


def continues(part: str) -> bool:
    """Whether the encoded text continues in the next path part."""
    return part.endswith(_CONTINUES)


@dataclass(frozen=True)
class TableFolder:
    table_id: str

    @property
    def key(self) -> str:
        return f"tables/{encode(self.table_id)}"

    @property
    def definition_log(self) -> str:
        return f"{self.key}/log"

    @property
    def streams(self) -> str:
        return f"{self.key}/streams"

    @property
    def news(self) -> str:
        return f"{self.key}/news"

    @property
    def dropped(self) -> str:
        return f"{self.key}/dropped"

    @property
    def open_files(self) -> str:
        """The root of the files that other engines read."""
        return f"{self.key}/compacted"

    @property
    def delta_log(self) -> str:
        """The transaction log of Delta Lake."""
        return f"{self.open_files}/_delta_log"

    @property
    def iceberg(self) -> str:
        """The location of the Apache Iceberg table: metadata and position deletes."""
        return f"{self.key}/iceberg"

    def stream(self, partition: Mapping[str, str]) -> StreamFolder:
        return StreamFolder(self.table_id, tuple(partition.items()))


@dataclass(frozen=True)
class StreamFolder:
    """The folders of one partition stream. `partition` is in the order of the table's partition keys."""

    table_id: str
    partition: tuple[tuple[str, str], ...]

    @property
    def log(self) -> str:
        return f"{TableFolder(self.table_id).streams}/{encode_partition(dict(self.partition))}/log"

    @property
    def data(self) -> str:
        return f"{TableFolder(self.table_id).key}/data/{encode_partition(dict(self.partition))}"

    @property
    def news(self) -> str:
        return f"{TableFolder(self.table_id).news}/{encode_partition(dict(self.partition))}"


@dataclass(frozen=True)
class NewsHint:
    """An empty object: from this entry on, the stream has something to compact (`compactor/catalog/news.py`)."""

    stream: StreamFolder
    entry_number: int

    @property
    def key(self) -> str:
        return f"{self.stream.news}/{self.entry_number:020d}"


@dataclass(frozen=True)
class DropMark:
    """An empty object: at this entry the stream is dropped, or has begun anew (`compactor/catalog/drop_marks.py`)."""

    stream: StreamFolder
    entry_number: int
    has_begun: bool = False

    @property
    def key(self) -> str:
        folder = f"{TableFolder(self.stream.table_id).dropped}/{encode_partition(dict(self.stream.partition))}"
        return f"{folder}/{self.entry_number:020d}{'.begun' if self.has_begun else ''}"


@dataclass(frozen=True)
class LogObject:
    """An object of a durable log. `entry_number` is None for the hint only."""

    folder: str
    kind: Literal["entry", "checkpoint", "hint"]
    entry_number: int | None = None

    @property
    def key(self) -> str:
        match self.kind:
            case "entry":
                return f"{self.folder}/{self.entry_number:020d}.json"
            case "checkpoint":
                return f"{self.folder}/{self.entry_number:020d}.checkpoint.parquet"
            case "hint":
                return f"{self.folder}/_last_checkpoint"


@dataclass(frozen=True)
class CheckpointObject:
    """A head or a piece of a checkpoint that shares its pieces with others (`compactor/log/checkpoints.py`).

    folder  of the log
    """

    folder: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.folder_of(self.folder)}{self.name}"

    @staticmethod
    def folder_of(log_folder: str) -> str:
        return f"{log_folder}/checkpoints/"

    @staticmethod
    def head_name(entry_number: int) -> str:
        return f"{entry_number:020d}.json"

    @classmethod
    def head(cls, log_folder: str, entry_number: int) -> CheckpointObject:
        return cls(log_folder, cls.head_name(entry_number))

    @classmethod
    def piece(cls, log_folder: str, entry_number: int, piece_id: str) -> CheckpointObject:
        """`piece_id`: hexadecimal digits, fresh for every piece."""
        return cls(log_folder, f"{entry_number:020d}-{piece_id}.parquet")


@dataclass(frozen=True)
class DeltaFilePath:
    """A delta file that the catalog wrote. Each attempt has a fresh `append_id`, so two attempts never share a file."""

    stream: StreamFolder
    append_id: str
    file_number: int
    content_type: ContentType

    @property
    def key(self) -> str:
        name = f"{self.file_number}.{self.content_type.file_suffix}"
        return f"{self.stream.data}/delta/{encode(self.append_id)}/{name}"


@dataclass(frozen=True)
class CompactedFilePath:
    stream: StreamFolder
    compacted_stream_version: int
    commit_id: str
    file_number: int
    content_type: ContentType
    task_attempt: str

    @property
    def key(self) -> str:
        folder = f"{self.stream.data}/compacted/{self.compacted_stream_version}/{encode(self.commit_id)}"
        return f"{folder}/{self.file_number}-{self.task_attempt}.{self.content_type.file_suffix}"


@dataclass(frozen=True)
class OpenFilePath:
    """A compacted file of a published table.

    partition_hash  see `partition_hash`
    """

    table_id: str
    partition_hash: str
    commit_id: str
    file_number: int
    task_attempt: str

    @property
    def key(self) -> str:
        folder = f"{TableFolder(self.table_id).open_files}/{self.partition_hash}/{self.commit_id}"
        return f"{folder}/{self.file_number}-{self.task_attempt}.parquet"


_GLUE_NAME_MAX = 200
"""Glue takes 255, with what is added to an id."""


def partition_hash(partition: Mapping[str, str]) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of the encoded partition."""
    return sha256(encode_partition(partition).encode()).hexdigest()[:32]


def reasons_against_place(location: StoreLocation, table_id: str) -> tuple[str, ...]:
    """Why other engines would not find a table's files here: some decode the names of folders, others do not."""
    return tuple(
        f"{noun} {name!r} has characters other than A-Z a-z 0-9 . _ ~ / -, which some engines decode: {instead}"
        for noun, name, instead in (
            ("the lake's root", location.root_uri, "publish a lake at another place"),
            ("the table's folder", TableFolder(table_id).key, "publish a table with another id"),
        )
        if _NEEDS_ENCODING.search(name)
    )


def reasons_against_glue(location: StoreLocation, table_id: str) -> tuple[str, ...]:
    """Why AWS Glue cannot lead to a table here."""
    found = []
    if not location.is_remote:
        found.append(f"glue_database: AWS Glue leads to tables on S3, and this lake is at {location.root_uri}")
    if len(table_id) > _GLUE_NAME_MAX:
        found.append(
            f"glue_database: a table id of {len(table_id)} characters has no name in Glue: {_GLUE_NAME_MAX} at most"
        )
    return tuple(found)


def is_open_file(key: str) -> bool:
    """Whether a compacted file was written for other engines, by its name."""
    return _OPEN_FILE.fullmatch(key) is not None


@dataclass(frozen=True)
class DeltaLogObject:
    """An object of the transaction log of Delta Lake. `version` is None for the hint only."""

    table_id: str
    kind: Literal["commit", "checkpoint", "hint"]
    version: int | None = None

    @property
    def key(self) -> str:
        folder = TableFolder(self.table_id).delta_log
        match self.kind:
            case "commit":
                return f"{folder}/{self.version:020d}.json"
            case "checkpoint":
                return f"{folder}/{self.version:020d}.checkpoint.parquet"
            case "hint":
                return f"{folder}/_last_checkpoint"


@dataclass(frozen=True)
class DeltaVectorPath:
    """A deletion vector as Delta Lake reads it.

    vector_id  a UUID in its usual text form
    commit_id  of the attempt that wrote it, 32 hex digits
    """

    table_id: str
    vector_id: str
    commit_id: str

    @property
    def key(self) -> str:
        return f"{TableFolder(self.table_id).open_files}/dead/{self.commit_id}/deletion_vector_{self.vector_id}.bin"


@dataclass(frozen=True)
class IcebergMetadata:
    """A version of an Apache Iceberg table. None: the hint that names the newest one."""

    table_id: str
    version: int | None

    @property
    def key(self) -> str:
        name = "version-hint.text" if self.version is None else f"v{self.version}.metadata.json"
        return f"{TableFolder(self.table_id).iceberg}/metadata/{name}"


@dataclass(frozen=True)
class IcebergManifestList:
    """The manifests of a snapshot. Each attempt to commit writes under a `commit_id` of its own, 32 hex digits."""

    table_id: str
    commit_id: str

    @property
    def key(self) -> str:
        return f"{TableFolder(self.table_id).iceberg}/metadata/snap-{self.commit_id}.avro"


@dataclass(frozen=True)
class IcebergManifest:
    """The files of a group of streams, or their position deletes."""

    table_id: str
    commit_id: str
    group: int
    content: Literal["data", "deletes"]

    @property
    def key(self) -> str:
        return f"{TableFolder(self.table_id).iceberg}/metadata/{self.commit_id}-{self.group}-{self.content}.avro"


@dataclass(frozen=True)
class IcebergDeletes:
    """The dead rows of one file, as Apache Iceberg reads them. `vector_id`: as in `DeltaVectorPath`."""

    table_id: str
    vector_id: str
    commit_id: str

    @property
    def key(self) -> str:
        return f"{TableFolder(self.table_id).iceberg}/dead/{self.vector_id}-{self.commit_id}.parquet"


@dataclass(frozen=True)
class IndexFilePath:
    """A file of the primary key index; `part` is its number among the files of its hash bucket."""

    stream: StreamFolder
    index_version: int
    commit_id: str
    hash_bucket: int
    part: int
    task_attempt: str

    @property
    def key(self) -> str:
        folder = f"{self.stream.data}/index/{self.index_version}-{encode(self.commit_id)}"
        return f"{folder}/{self.hash_bucket}-{self.part}-{self.task_attempt}.arrow"


@dataclass(frozen=True)
class IndexPointersPath:
    """Pointers that replace those of one index file, of an older run."""

    stream: StreamFolder
    index_version: int
    commit_id: str
    hash_bucket: int
    run: int
    part: int
    task_attempt: str

    @property
    def key(self) -> str:
        folder = f"{self.stream.data}/index/{self.index_version}-{encode(self.commit_id)}"
        name = f"{self.hash_bucket}-{self.part}-{self.task_attempt}"
        return f"{folder}/{name}.of-run-{self.run}.arrow"


@dataclass(frozen=True)
class DeletionVectorPath:
    """Which rows of a compacted file are dead, as of one commit."""

    stream: StreamFolder
    commit_id: str
    file_number: int
    task_attempt: str

    @property
    def key(self) -> str:
        folder = f"{self.stream.data}/dead/{encode(self.commit_id)}"
        return f"{folder}/{self.file_number}-{self.task_attempt}.arrow"


@dataclass(frozen=True)
class JobRunFolder:
    job_run_id: str

    @property
    def key(self) -> str:
        return f"job_runs/{encode(self.job_run_id)}"

    @property
    def log(self) -> str:
        return f"{self.key}/log"

    @property
    def published(self) -> JobRunObject:
        return JobRunObject(self, "published.json")

    @property
    def result(self) -> JobRunObject:
        return JobRunObject(self, "result.json")

    def session(self, session_id: str) -> SessionFolder:
        return SessionFolder(self.job_run_id, session_id)

    def bundle(self, bundle_id: str) -> BundleFolder:
        return BundleFolder(self.job_run_id, bundle_id)


@dataclass(frozen=True)
class JobRunObject:
    """An object beside a job run's log."""

    job_run: JobRunFolder
    name: Literal["published.json", "result.json"]

    @property
    def key(self) -> str:
        return f"{self.job_run.key}/{self.name}"


@dataclass(frozen=True)
class SessionFolder:
    job_run_id: str
    session_id: str

    @property
    def key(self) -> str:
        return f"{JobRunFolder(self.job_run_id).key}/sessions/{encode(self.session_id)}"

    @property
    def log(self) -> str:
        return f"{self.key}/log"

    def plan(self, attempt: int) -> SessionObject:
        """The attempt's plan; the first attempt's key has no number."""
        return SessionObject(self, "plan.json" if attempt == 1 else f"plan-{attempt}.json")

    @property
    def heartbeat(self) -> SessionObject:
        return SessionObject(self, "heartbeat.json")

    @property
    def published(self) -> SessionObject:
        return SessionObject(self, "published.json")


@dataclass(frozen=True)
class SessionObject:
    """An object beside a session's log."""

    session: SessionFolder
    name: str

    @property
    def key(self) -> str:
        return f"{self.session.key}/{self.name}"


@dataclass(frozen=True)
class BundleFolder:
    """The folder of a bundle: sessions that share one Spark job. Their logs are in their own folders."""

    job_run_id: str
    bundle_id: str

    @property
    def key(self) -> str:
        return f"{JobRunFolder(self.job_run_id).key}/bundles/{encode(self.bundle_id)}"

    @property
    def plan(self) -> BundleObject:
        return BundleObject(self, "plan.json")

    @property
    def heartbeat(self) -> BundleObject:
        return BundleObject(self, "heartbeat.json")


@dataclass(frozen=True)
class BundleObject:
    bundle: BundleFolder
    name: Literal["plan.json", "heartbeat.json"]

    @property
    def key(self) -> str:
        return f"{self.bundle.key}/{self.name}"


DROPPED_TABLES = "dropped_tables"


@dataclass(frozen=True)
class DroppedTable:
    """Marks a table that was dropped at least once: an empty object. The table's log says whether it still is."""

    table_id: str

    @property
    def key(self) -> str:
        return f"{DROPPED_TABLES}/{encode(self.table_id)}"


OPEN_JOB_RUNS = "open_job_runs_by_owner/"
"""The key prefix of all markers of open job runs: one listing finds them all."""

NO_OWNER, ANY_STREAM = "_", "_"
"""In markers. A quoted text may be the same: so an owner or a stream of that name is written with a percent sign."""

MARKED_STREAMS_MAX = 8
"""That a marker names: of a job run with more, it may be any stream of the table."""


@dataclass(frozen=True)
class MarkedJobRun:
    """Marks a job run that has not ended, or whose events are not all published: an empty object. Its key has all that
    a dispatcher needs to rank it, or to leave it to its owner, and to see which others must wait for it.

    marked_at_ms  when it was accepted, by the accepting dispatcher's clock
    owner, epoch  of its claim; None and 0: it is not claimed
    table         the digest of its destination; None: the marker does not say
    streams       the digests of its destination streams; None: any of its table
    """

    job_run_id: str
    priority: int
    marked_at_ms: int
    owner: str | None = None
    epoch: int = 0
    table: str | None = None
    streams: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        parts = [_quote(self.job_run_id), str(self.priority), str(self.marked_at_ms)]
        if self.owner is not None or self.table is not None:
            parts += [str(self.epoch), NO_OWNER if self.owner is None else _quote_owner(self.owner)]
        if self.table is not None:
            parts += [self.table, ANY_STREAM if self.streams is None else "-".join(self.streams)]
        return f"{OPEN_JOB_RUNS}{_split(','.join(parts))}"


@dataclass(frozen=True)
class LiveDispatcher:
    """The sign of life that a dispatcher overwrites repeatedly while it runs."""

    owner: str

    @property
    def key(self) -> str:
        return f"{LIVE_DISPATCHERS}{encode(self.owner)}"


LIVE_DISPATCHERS = "live_dispatchers/"


@dataclass(frozen=True)
class ReleaseOfState:
    """Marks a release of Lithify whose dispatchers have worked on this state: an empty object."""

    version: str

    @property
    def key(self) -> str:
        return f"{RELEASES}{encode(self.version)}"


RELEASES = "releases/"


@dataclass(frozen=True)
class RejectedDocument:
    """Marks a rejected message that named a job run: an empty object. The log of the message id has the reasons."""

    job_run_id: str
    message_id: str

    @property
    def key(self) -> str:
        return f"{rejected_documents_of(self.job_run_id)}{encode(self.message_id)}"


def rejected_documents_of(job_run_id: str) -> str:
    """The key prefix of all `RejectedDocument` of a job run."""
    return f"rejected_documents/{encode(job_run_id)}/"


@dataclass(frozen=True)
class TaskToken:
    """The task token that a message brought for a job run: a secret, so no log and no plan repeats it."""

    job_run_id: str
    message_id: str

    @property
    def key(self) -> str:
        return f"{task_tokens_of(self.job_run_id)}{encode(self.message_id)}"


def task_tokens_of(job_run_id: str) -> str:
    """The key prefix of all `TaskToken` of a job run."""
    return f"{TASK_TOKENS}{encode(job_run_id)}/"


@dataclass(frozen=True)
class AnsweredWaiter:
    """The workflow whose task token came with this message is answered. The object has the answer, not the token."""

    job_run_id: str
    message_id: str

    @property
    def key(self) -> str:
        return f"{answered_waiters_of(self.job_run_id)}{encode(self.message_id)}"


def answered_waiters_of(job_run_id: str) -> str:
    """The key prefix of all `AnsweredWaiter` of a job run."""
    return f"answered_waiters/{encode(job_run_id)}/"


HISTORY_DAYS = "history/days/"
HISTORY_FILES = "history/job_runs/"


@dataclass(frozen=True)
class HistoryDay:
    """The folder of a day of the history; `day` as YYYY-MM-DD, in UTC."""

    day: str

    @property
    def log(self) -> str:
        return f"{HISTORY_DAYS}{self.day}/log"

    @property
    def file(self) -> HistoryFile:
        return HistoryFile(self.day)

    @property
    def cleaned(self) -> CleanedDay:
        return CleanedDay(self.day)


@dataclass(frozen=True)
class HistoryFile:
    """All job runs of a closed day, in one table. SQL engines read the column `day` from the folder's name."""

    day: str

    @property
    def key(self) -> str:
        return f"{HISTORY_FILES}day={self.day}/job_runs.parquet"


@dataclass(frozen=True)
class CleanedDay:
    """Plans, heartbeats and cursors of this day's job runs are deleted."""

    day: str

    @property
    def key(self) -> str:
        return f"{CLEANED_DAYS}{self.day}"


CLEANED_DAYS = "history/cleaned/"


@dataclass(frozen=True)
class StartedDispatcher:
    """Written and deleted again when a dispatcher starts, to check that it may write here."""

    owner: str

    @property
    def key(self) -> str:
        return f"started_dispatchers/{encode(self.owner)}"


@dataclass(frozen=True)
class UnpublishedJobRun:
    """Marks a job run that has ended with events that its topic refuses: an empty object."""

    job_run_id: str

    @property
    def key(self) -> str:
        return f"untold_job_runs/{encode(self.job_run_id)}"


TURNS_LOG = "turns/log"
"""The folder of the log of turns, of which a state has one."""

PAUSED = "paused/"
"""What the keys of all `PausedObject` begin with."""


@dataclass(frozen=True)
class PausedObject:
    """A pause: no new session of a table, of a job run, or of anything (`name` None) is started."""

    scope: Literal["everything", "tables", "job_runs"]
    name: str | None = None

    @property
    def key(self) -> str:
        return f"{PAUSED}{self.scope}" if self.name is None else f"{PAUSED}{self.scope}/{encode(self.name)}"


ObjectPath: TypeAlias = (
    LogObject
    | CheckpointObject
    | NewsHint
    | DropMark
    | DeltaFilePath
    | CompactedFilePath
    | DeletionVectorPath
    | IndexFilePath
    | IndexPointersPath
    | OpenFilePath
    | DeltaLogObject
    | DeltaVectorPath
    | IcebergMetadata
    | IcebergManifestList
    | IcebergManifest
    | IcebergDeletes
    | JobRunObject
    | SessionObject
    | BundleObject
    | DroppedTable
    | MarkedJobRun
    | LiveDispatcher
    | ReleaseOfState
    | RejectedDocument
    | TaskToken
    | AnsweredWaiter
    | StartedDispatcher
    | UnpublishedJobRun
    | PausedObject
    | HistoryFile
    | CleanedDay
)


def parse(key: str) -> ObjectPath:
    """The path of a key. Raises `Invalid` for a key that no path here has."""
    for pattern, read in _PATTERNS:
        match = pattern.fullmatch(key)
        if match is not None:
            path = read(match)
            # A number has one spelling: `007` matches the pattern, but no path has it.
            if path.key == key:
                return path
    raise Invalid(f"{key!r} is not the key of an object of a lake")


def parse_or_none(key: str) -> ObjectPath | None:
    """The path of a key; None if it is not one of Lithify's."""
    try:
        return parse(key)
    except Invalid:
        return None


_NAME = rf"(?:[^/]*{_CONTINUES}/)*[^/]*[^/{_CONTINUES}]"
_LOG_OBJECT = r"(?:(?P<number>[0-9]{20})\.(?P<form>json|checkpoint\.parquet)|_last_checkpoint)"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CHECKPOINT_NAME = r"[0-9]{20}(?:\.json|-[0-9a-f]+\.parquet)"
_LOG_FOLDER = (
    rf"tables/(?P<table>{_NAME})/(?:streams/(?P<partition>{_NAME})/)?log"
    rf"|job_runs/(?P<job_run>{_NAME})/(?:sessions/(?P<session>{_NAME})/)?log"
    rf"|history/days/(?P<day>{_DAY})/log"
    r"|turns/log"
)
_DATA = rf"tables/(?P<table>{_NAME})/data/(?P<partition>{_NAME})"
_OPEN_FILES = rf"tables/(?P<table>{_NAME})/compacted"
_ICEBERG = rf"tables/(?P<table>{_NAME})/iceberg"
_NEEDS_ENCODING = re.compile(r"[^A-Za-z0-9._~/:-]")
_OPEN_FILE = re.compile(
    rf"{_OPEN_FILES}/(?P<partition>[0-9a-f]{{32}})/(?P<commit>[A-Za-z0-9_-]+)"
    r"/(?P<number>[0-9]+)-(?P<attempt>[0-9a-f]+)\.parquet"
)
_OF_ATTEMPT = r"-(?P<attempt>[0-9a-f]+)"
_INDEX_FILE = rf"{_DATA}/index/(?P<version>[0-9]+)-(?P<commit>{_NAME})/(?P<bucket>[0-9]+)-(?P<part>[0-9]+){_OF_ATTEMPT}"
_INTEGER = re.compile(r"-?[0-9]+")
_DATA_FILE = r"(?P<number>[0-9]+)\.(?P<suffix>[a-z]+)"


def _check_log_folder(match: re.Match[str]) -> None:
    for name in ("table", "job_run", "session"):
        if match[name] is not None:
            decode(match[name])
    if match["partition"] is not None:
        decode_partition(match["partition"])
    if match["day"] is not None:
        _check_day(match)


def _read_checkpoint_object(match: re.Match[str]) -> CheckpointObject:
    _check_log_folder(match)
    return CheckpointObject(match["folder"], match["name"])


def _read_log_object(match: re.Match[str]) -> LogObject:
    _check_log_folder(match)
    if match["number"] is None:
        return LogObject(match["folder"], "hint")
    return LogObject(match["folder"], "entry" if match["form"] == "json" else "checkpoint", int(match["number"]))


def _read_stream(match: re.Match[str]) -> StreamFolder:
    return StreamFolder(decode(match["table"]), tuple(decode_partition(match["partition"]).items()))


def _read_content_type(match: re.Match[str]) -> ContentType:
    content_type = _SUFFIXES.get(match["suffix"])
    if content_type is None:
        raise Invalid(f"{match[0]!r} ends with no suffix of a data file")
    return content_type


def _read_news_hint(match: re.Match[str]) -> NewsHint:
    return NewsHint(_read_stream(match), int(match["number"]))


def _read_drop_mark(match: re.Match[str]) -> DropMark:
    return DropMark(_read_stream(match), int(match["number"]), has_begun=match["begun"] is not None)


def _read_delta_file(match: re.Match[str]) -> DeltaFilePath:
    number = int(match["number"])
    return DeltaFilePath(_read_stream(match), decode(match["append"]), number, _read_content_type(match))


def _read_compacted_file(match: re.Match[str]) -> CompactedFilePath:
    return CompactedFilePath(
        _read_stream(match),
        int(match["version"]),
        decode(match["commit"]),
        int(match["number"]),
        _read_content_type(match),
        match["attempt"],
    )


def _read_open_file(match: re.Match[str]) -> OpenFilePath:
    return OpenFilePath(
        decode(match["table"]), match["partition"], match["commit"], int(match["number"]), match["attempt"]
    )


def _read_delta_log_object(match: re.Match[str]) -> DeltaLogObject:
    table_id = decode(match["table"])
    if match["version"] is None:
        return DeltaLogObject(table_id, "hint")
    return DeltaLogObject(table_id, "commit" if match["form"] == "json" else "checkpoint", int(match["version"]))


def _read_delta_vector(match: re.Match[str]) -> DeltaVectorPath:
    return DeltaVectorPath(decode(match["table"]), match["vector"], match["commit"])


def _read_iceberg_metadata(match: re.Match[str]) -> IcebergMetadata:
    return IcebergMetadata(decode(match["table"]), None if match["version"] is None else int(match["version"]))


def _read_iceberg_manifest_list(match: re.Match[str]) -> IcebergManifestList:
    return IcebergManifestList(decode(match["table"]), match["commit"])


def _read_iceberg_manifest(match: re.Match[str]) -> IcebergManifest:
    content: Literal["data", "deletes"] = "data" if match["content"] == "data" else "deletes"
    return IcebergManifest(decode(match["table"]), match["commit"], int(match["group"]), content)


def _read_iceberg_deletes(match: re.Match[str]) -> IcebergDeletes:
    return IcebergDeletes(decode(match["table"]), match["vector"], match["commit"])


def _read_deletion_vector(match: re.Match[str]) -> DeletionVectorPath:
    return DeletionVectorPath(_read_stream(match), decode(match["commit"]), int(match["number"]), match["attempt"])


def _read_index_file(match: re.Match[str]) -> IndexFilePath:
    return IndexFilePath(
        _read_stream(match),
        int(match["version"]),
        decode(match["commit"]),
        int(match["bucket"]),
        int(match["part"]),
        match["attempt"],
    )


def _read_index_pointers(match: re.Match[str]) -> IndexPointersPath:
    return IndexPointersPath(
        _read_stream(match),
        int(match["version"]),
        decode(match["commit"]),
        int(match["bucket"]),
        int(match["run"]),
        int(match["part"]),
        match["attempt"],
    )


def _read_session_object(match: re.Match[str]) -> SessionObject:
    session = SessionFolder(decode(match["job_run"]), decode(match["session"]))
    if match["attempt"] is not None:
        return session.plan(int(match["attempt"]))
    return {"plan.json": session.plan(1), "heartbeat.json": session.heartbeat}.get(match["name"], session.published)


def _read_bundle_object(match: re.Match[str]) -> BundleObject:
    bundle = BundleFolder(decode(match["job_run"]), decode(match["bundle"]))
    return bundle.plan if match["name"] == "plan.json" else bundle.heartbeat


def _read_job_run_object(match: re.Match[str]) -> JobRunObject:
    folder = JobRunFolder(decode(match["job_run"]))
    return folder.result if match["name"] == "result.json" else folder.published


def _read_rejected_document(match: re.Match[str]) -> RejectedDocument:
    return RejectedDocument(decode(match["job_run"]), decode(match["message"]))


def _read_task_token(match: re.Match[str]) -> TaskToken:
    return TaskToken(decode(match["job_run"]), decode(match["message"]))


def _read_answered_waiter(match: re.Match[str]) -> AnsweredWaiter:
    return AnsweredWaiter(decode(match["job_run"]), decode(match["message"]))


def _read_started_dispatcher(match: re.Match[str]) -> StartedDispatcher:
    return StartedDispatcher(decode(match["owner"]))


def _read_unpublished_job_run(match: re.Match[str]) -> UnpublishedJobRun:
    return UnpublishedJobRun(decode(match["job_run"]))


def _read_paused_object(match: re.Match[str]) -> PausedObject:
    if match["name"] is None:
        return PausedObject("everything")
    return PausedObject("tables" if match["scope"] == "tables" else "job_runs", decode(match["name"]))


def _check_day(match: re.Match[str]) -> str:
    try:
        return date.fromisoformat(match["day"]).isoformat()
    except ValueError as error:
        raise Invalid(f"{match[0]!r} names a day that is none") from error


def _read_history_file(match: re.Match[str]) -> HistoryFile:
    return HistoryFile(_check_day(match))


def _read_cleaned_day(match: re.Match[str]) -> CleanedDay:
    return CleanedDay(_check_day(match))


def _read_dropped_table(match: re.Match[str]) -> DroppedTable:
    return DroppedTable(decode(match["table"]))


def _read_marked_job_run(match: re.Match[str]) -> MarkedJobRun:
    parts = _join(match["mark"]).split(",")
    if len(parts) not in (3, 5, 7) or not all(_INTEGER.fullmatch(number) for number in parts[1:4]):
        raise Invalid(f"{match[0]!r} is no marker of a job run")
    owner, epoch = (
        (None if parts[4] == NO_OWNER else _unquote(parts[4]), int(parts[3])) if len(parts) > 3 else (None, 0)
    )
    table, streams = (parts[5], parts[6]) if len(parts) > 5 else (None, ANY_STREAM)
    named = None if streams == ANY_STREAM else tuple(filter(None, streams.split("-")))
    return MarkedJobRun(_unquote(parts[0]), int(parts[1]), int(parts[2]), owner, epoch, table, named)


def _read_release_of_state(match: re.Match[str]) -> ReleaseOfState:
    return ReleaseOfState(decode(match["version"]))


def _read_live_dispatcher(match: re.Match[str]) -> LiveDispatcher:
    return LiveDispatcher(decode(match["owner"]))


_PATTERNS = (
    (re.compile(rf"(?P<folder>{_LOG_FOLDER})/{_LOG_OBJECT}"), _read_log_object),
    (re.compile(rf"(?P<folder>{_LOG_FOLDER})/checkpoints/(?P<name>{_CHECKPOINT_NAME})"), _read_checkpoint_object),
    (
        re.compile(rf"tables/(?P<table>{_NAME})/news/(?P<partition>{_NAME})/(?P<number>[0-9]{{20}})"),
        _read_news_hint,
    ),
    (
        re.compile(
            rf"tables/(?P<table>{_NAME})/dropped/(?P<partition>{_NAME})/(?P<number>[0-9]{{20}})(?P<begun>\.begun)?"
        ),
        _read_drop_mark,
    ),
    (re.compile(rf"{_DATA}/delta/(?P<append>{_NAME})/{_DATA_FILE}"), _read_delta_file),
    (
        re.compile(
            rf"{_DATA}/compacted/(?P<version>[0-9]+)/(?P<commit>{_NAME})"
            rf"/(?P<number>[0-9]+){_OF_ATTEMPT}\.(?P<suffix>[a-z]+)"
        ),
        _read_compacted_file,
    ),
    (
        re.compile(rf"{_DATA}/dead/(?P<commit>{_NAME})/(?P<number>[0-9]+){_OF_ATTEMPT}\.arrow"),
        _read_deletion_vector,
    ),
    (_OPEN_FILE, _read_open_file),
    (
        re.compile(
            rf"{_OPEN_FILES}/_delta_log/"
            r"(?:(?P<version>[0-9]{20})\.(?P<form>json|checkpoint\.parquet)|_last_checkpoint)"
        ),
        _read_delta_log_object,
    ),
    (
        re.compile(rf"{_OPEN_FILES}/dead/(?P<commit>[0-9a-f]{{32}})/deletion_vector_(?P<vector>[0-9a-f-]{{36}})\.bin"),
        _read_delta_vector,
    ),
    (
        re.compile(rf"{_ICEBERG}/metadata/(?:v(?P<version>0|[1-9][0-9]*)\.metadata\.json|version-hint\.text)"),
        _read_iceberg_metadata,
    ),
    (re.compile(rf"{_ICEBERG}/metadata/snap-(?P<commit>[0-9a-f]{{32}})\.avro"), _read_iceberg_manifest_list),
    (
        re.compile(
            rf"{_ICEBERG}/metadata/(?P<commit>[0-9a-f]{{32}})-(?P<group>0|[1-9][0-9]*)-(?P<content>data|deletes)\.avro"
        ),
        _read_iceberg_manifest,
    ),
    (
        re.compile(rf"{_ICEBERG}/dead/(?P<vector>[0-9a-f-]{{36}})-(?P<commit>[0-9a-f]{{32}})\.parquet"),
        _read_iceberg_deletes,
    ),
    (re.compile(rf"{_INDEX_FILE}\.arrow"), _read_index_file),
    (re.compile(rf"{_INDEX_FILE}\.of-run-(?P<run>[0-9]+)\.arrow"), _read_index_pointers),
    (
        re.compile(
            rf"job_runs/(?P<job_run>{_NAME})/sessions/(?P<session>{_NAME})/"
            r"(?P<name>(?:plan(?:-(?P<attempt>[0-9]+))?|heartbeat|published)\.json)"
        ),
        _read_session_object,
    ),
    (re.compile(rf"job_runs/(?P<job_run>{_NAME})/(?P<name>published\.json|result\.json)"), _read_job_run_object),
    (
        re.compile(rf"job_runs/(?P<job_run>{_NAME})/bundles/(?P<bundle>{_NAME})/(?P<name>(?:plan|heartbeat)\.json)"),
        _read_bundle_object,
    ),
    (re.compile(rf"dropped_tables/(?P<table>{_NAME})"), _read_dropped_table),
    (re.compile(rf"open_job_runs_by_owner/(?P<mark>{_NAME})"), _read_marked_job_run),
    (re.compile(rf"live_dispatchers/(?P<owner>{_NAME})"), _read_live_dispatcher),
    (re.compile(rf"releases/(?P<version>{_NAME})"), _read_release_of_state),
    (re.compile(rf"rejected_documents/(?P<job_run>{_NAME})/(?P<message>{_NAME})"), _read_rejected_document),
    (re.compile(rf"task_tokens/(?P<job_run>{_NAME})/(?P<message>{_NAME})"), _read_task_token),
    (re.compile(rf"answered_waiters/(?P<job_run>{_NAME})/(?P<message>{_NAME})"), _read_answered_waiter),
    (re.compile(rf"started_dispatchers/(?P<owner>{_NAME})"), _read_started_dispatcher),
    (re.compile(rf"untold_job_runs/(?P<job_run>{_NAME})"), _read_unpublished_job_run),
    (re.compile(rf"paused/(?:everything|(?P<scope>tables|job_runs)/(?P<name>{_NAME}))"), _read_paused_object),
    (re.compile(rf"history/job_runs/day=(?P<day>{_DAY})/job_runs\.parquet"), _read_history_file),
    (re.compile(rf"history/cleaned/(?P<day>{_DAY})"), _read_cleaned_day),
)


def _split(encoded: str) -> str:
    if len(encoded) > PART_BYTES_MAX:
        # No later part may begin with a dot either.
        encoded = encoded.replace(".", "%2E")
    return (_CONTINUES + "/").join(_chunks(encoded))


def _chunks(encoded: str) -> Iterator[str]:
    for start in range(0, len(encoded), PART_BYTES_MAX):
        yield encoded[start : start + PART_BYTES_MAX]


def _join(encoded: str) -> str:
    return encoded.replace(_CONTINUES + "/", "")


@lru_cache(maxsize=NAMES_KEPT)
def _quote(text: str) -> str:
    try:
        # quote() keeps `~`, which has a special meaning here.
        encoded = quote(text, safe="").replace("~", "%7E") or _EMPTY
        return "%2E" + encoded[1:] if encoded.startswith(".") else encoded
    except UnicodeEncodeError as error:
        raise Invalid(f"{text!r} is not Unicode text, so it cannot name anything") from error


def _quote_owner(owner: str) -> str:
    return "%5F" if owner == NO_OWNER else _quote(owner)


def _unquote(encoded: str) -> str:
    if encoded == _EMPTY:
        return ""
    try:
        return unquote(encoded, errors="strict")
    except UnicodeDecodeError as error:
        raise Invalid(f"{encoded!r} is not UTF-8 behind its percent signs") from error
