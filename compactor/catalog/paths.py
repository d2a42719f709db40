"""The name of every object that Lithify keeps: built and parsed here, and nowhere else.

    tables/<table id>/log/<log object>                                                  what the table is
    tables/<table id>/streams/<partition>/log/<log object>                              a partition stream's log
    tables/<table id>/data/<partition>/delta/<append id>/<file number>.<suffix>
    tables/<table id>/data/<partition>/compacted/<compacted stream version>/<commit id>/<file number>.<suffix>
    tables/<table id>/data/<partition>/dead/<commit id>/<file number>.arrow
    tables/<table id>/data/<partition>/index/<index version>-<commit id>/<hash bucket>-<part>.arrow
    job_runs/<job run id>/log/<log object>
    job_runs/<job run id>/sessions/<session id>/log/<log object>
    job_runs/<job run id>/published.json                                                how far its events are published
    job_runs/<job run id>/sessions/<session id>/plan.json, heartbeat.json, published.json
    open_job_runs/<job run id>

Every log lies in a folder named `log`, and nothing else does. Data lies beside the streams, not below them: the folders
under `streams/` are the partition streams that exist, though somebody may have written data for one whose first log
entry never came. A name says where an object lies; what it *is* (a delta at a position, part of the table or not) only
the log says.

Ids and partition values are data. They are percent-encoded as UTF-8, all but `A-Z a-z 0-9 _ - .`, and a `.` that they
begin with; so none can be `..` or hold a `/`, and most look as they are. The empty text is `%`. An encoded text that is
longer than a file name may be has its other dots encoded too, and goes on in the next path part: every part but its
last ends with `~`. Nothing but the encoding of a text parses, and it parses to that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias
from urllib.parse import quote, unquote

from compactor.errors import Invalid
from compactor.names import ContentType

PART_BYTES_MAX = 200
"""Of one path part that holds (some of) an encoded text, below the 255 bytes of common file systems."""

NAME_IN_STREAM_BYTES_MAX = 128
"""Room for what follows a partition in the longest key: `/compacted/1000/<32>/1000000.parquet` takes 66."""

_CONTINUES = "~"
_EMPTY = "%"
_UNPARTITIONED = "_"

_SUFFIXES: Mapping[str, ContentType] = MappingProxyType({each.file_suffix: each for each in ContentType})


def encode(text: str) -> str:
    """A text as path parts that no file system and no store reads anything into. `Invalid` if it is not Unicode."""
    return _split(_quote(text))


def decode(encoded: str) -> str:
    """The text of `encode`. Raises `Invalid` for anything that is not exactly what `encode` makes."""
    text = _unquote(_join(encoded))
    if encode(text) != encoded:
        raise Invalid(f"{encoded!r} is not an encoded name")
    return text


def encode_partition(partition: Mapping[str, str]) -> str:
    """`key=value` pairs in the table's key order, joined with `,`; `_` for a table without partition keys."""
    pairs = (f"{_quote(key)}={_quote(value)}" for key, value in partition.items())
    return _split(",".join(pairs) or _UNPARTITIONED)


def decode_partition(encoded: str) -> dict[str, str]:
    """The partition of `encode_partition`. Raises `Invalid` for anything else."""
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
    """Whether a path part is the beginning of an encoded text that goes on in the next part."""
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

    def stream(self, partition: Mapping[str, str]) -> StreamFolder:
        return StreamFolder(self.table_id, tuple(partition.items()))


@dataclass(frozen=True)
class StreamFolder:
    """One partition stream's place. `partition` in the order of the table's partition keys."""

    table_id: str
    partition: tuple[tuple[str, str], ...]

    @property
    def log(self) -> str:
        return f"{TableFolder(self.table_id).streams}/{encode_partition(dict(self.partition))}/log"

    @property
    def data(self) -> str:
        return f"{TableFolder(self.table_id).key}/data/{encode_partition(dict(self.partition))}"


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
class DeltaFilePath:
    """A delta file that the catalog wrote. `append_id` is fresh for every try, so two tries never share a file."""

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

    @property
    def key(self) -> str:
        folder = f"{self.stream.data}/compacted/{self.compacted_stream_version}/{encode(self.commit_id)}"
        return f"{folder}/{self.file_number}.{self.content_type.file_suffix}"


@dataclass(frozen=True)
class IndexFilePath:
    """A file of the primary key index; `part` is its place among the files of its hash bucket."""

    stream: StreamFolder
    index_version: int
    commit_id: str
    hash_bucket: int
    part: int

    @property
    def key(self) -> str:
        folder = f"{self.stream.data}/index/{self.index_version}-{encode(self.commit_id)}"
        return f"{folder}/{self.hash_bucket}-{self.part}.arrow"


@dataclass(frozen=True)
class IndexPointersPath:
    """Pointers that replace those of one index file, of an older run."""

    stream: StreamFolder
    index_version: int
    commit_id: str
    hash_bucket: int
    run: int
    part: int

    @property
    def key(self) -> str:
        folder = f"{self.stream.data}/index/{self.index_version}-{encode(self.commit_id)}"
        return f"{folder}/{self.hash_bucket}-{self.part}.of-run-{self.run}.arrow"


@dataclass(frozen=True)
class DeletionVectorPath:
    """Which rows of a compacted file are dead, as of one commit."""

    stream: StreamFolder
    commit_id: str
    file_number: int

    @property
    def key(self) -> str:
        return f"{self.stream.data}/dead/{encode(self.commit_id)}/{self.file_number}.arrow"


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

    def session(self, session_id: str) -> SessionFolder:
        return SessionFolder(self.job_run_id, session_id)


@dataclass(frozen=True)
class JobRunObject:
    """What lies beside a job run's log."""

    job_run: JobRunFolder
    name: Literal["published.json"]

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

    @property
    def plan(self) -> SessionObject:
        return SessionObject(self, "plan.json")

    @property
    def heartbeat(self) -> SessionObject:
        return SessionObject(self, "heartbeat.json")

    @property
    def published(self) -> SessionObject:
        return SessionObject(self, "published.json")


@dataclass(frozen=True)
class SessionObject:
    """What lies beside a session's log."""

    session: SessionFolder
    name: Literal["plan.json", "heartbeat.json", "published.json"]

    @property
    def key(self) -> str:
        return f"{self.session.key}/{self.name}"


@dataclass(frozen=True)
class OpenJobRun:
    """A job run that has not ended: an empty object, so that a dispatcher finds what to take over by one listing."""

    job_run_id: str

    @property
    def key(self) -> str:
        return f"open_job_runs/{encode(self.job_run_id)}"


ObjectPath: TypeAlias = (
    LogObject
    | DeltaFilePath
    | CompactedFilePath
    | DeletionVectorPath
    | IndexFilePath
    | IndexPointersPath
    | JobRunObject
    | SessionObject
    | OpenJobRun
)


def parse(key: str) -> ObjectPath:
    """What a key names. Raises `Invalid` for a key that nothing here renders."""
    for pattern, read in _PATTERNS:
        match = pattern.fullmatch(key)
        if match is not None:
            path = read(match)
            # Numbers have one spelling: `007` parses, but names nothing.
            if path.key == key:
                return path
    raise Invalid(f"{key!r} is not the key of an object of a lake")


_NAME = rf"(?:[^/]*{_CONTINUES}/)*[^/]*[^/{_CONTINUES}]"
_LOG_OBJECT = r"(?:(?P<number>[0-9]{20})\.(?P<form>json|checkpoint\.parquet)|_last_checkpoint)"
_LOG_FOLDER = (
    rf"tables/(?P<table>{_NAME})/(?:streams/(?P<partition>{_NAME})/)?log"
    rf"|job_runs/(?P<job_run>{_NAME})/(?:sessions/(?P<session>{_NAME})/)?log"
)
_DATA = rf"tables/(?P<table>{_NAME})/data/(?P<partition>{_NAME})"
_INDEX_FILE = rf"{_DATA}/index/(?P<version>[0-9]+)-(?P<commit>{_NAME})/(?P<bucket>[0-9]+)-(?P<part>[0-9]+)"
_DATA_FILE = r"(?P<number>[0-9]+)\.(?P<suffix>[a-z]+)"


def _read_log_object(match: re.Match[str]) -> LogObject:
    for name in ("table", "job_run", "session"):
        if match[name] is not None:
            decode(match[name])
    if match["partition"] is not None:
        decode_partition(match["partition"])
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
    )


def _read_deletion_vector(match: re.Match[str]) -> DeletionVectorPath:
    return DeletionVectorPath(_read_stream(match), decode(match["commit"]), int(match["number"]))


def _read_index_file(match: re.Match[str]) -> IndexFilePath:
    return IndexFilePath(
        _read_stream(match), int(match["version"]), decode(match["commit"]), int(match["bucket"]), int(match["part"])
    )


def _read_index_pointers(match: re.Match[str]) -> IndexPointersPath:
    return IndexPointersPath(
        _read_stream(match),
        int(match["version"]),
        decode(match["commit"]),
        int(match["bucket"]),
        int(match["run"]),
        int(match["part"]),
    )


def _read_session_object(match: re.Match[str]) -> SessionObject:
    session = SessionFolder(decode(match["job_run"]), decode(match["session"]))
    return {"plan.json": session.plan, "heartbeat.json": session.heartbeat}.get(match["name"], session.published)


def _read_job_run_object(match: re.Match[str]) -> JobRunObject:
    return JobRunFolder(decode(match["job_run"])).published


def _read_open_job_run(match: re.Match[str]) -> OpenJobRun:
    return OpenJobRun(decode(match["job_run"]))


_PATTERNS = (
    (re.compile(rf"(?P<folder>{_LOG_FOLDER})/{_LOG_OBJECT}"), _read_log_object),
    (re.compile(rf"{_DATA}/delta/(?P<append>{_NAME})/{_DATA_FILE}"), _read_delta_file),
    (
        re.compile(rf"{_DATA}/compacted/(?P<version>[0-9]+)/(?P<commit>{_NAME})/{_DATA_FILE}"),
        _read_compacted_file,
    ),
    (re.compile(rf"{_DATA}/dead/(?P<commit>{_NAME})/(?P<number>[0-9]+)\.arrow"), _read_deletion_vector),
    (re.compile(rf"{_INDEX_FILE}\.arrow"), _read_index_file),
    (re.compile(rf"{_INDEX_FILE}\.of-run-(?P<run>[0-9]+)\.arrow"), _read_index_pointers),
    (
        re.compile(
            rf"job_runs/(?P<job_run>{_NAME})/sessions/(?P<session>{_NAME})/(?P<name>(?:plan|heartbeat|published)\.json)"
        ),
        _read_session_object,
    ),
    (re.compile(rf"job_runs/(?P<job_run>{_NAME})/published\.json"), _read_job_run_object),
    (re.compile(rf"open_job_runs/(?P<job_run>{_NAME})"), _read_open_job_run),
)


def _split(encoded: str) -> str:
    if len(encoded) > PART_BYTES_MAX:
        # A part that begins within the text must not begin with a dot either.
        encoded = encoded.replace(".", "%2E")
    return (_CONTINUES + "/").join(_chunks(encoded))


def _chunks(encoded: str) -> Iterator[str]:
    for start in range(0, len(encoded), PART_BYTES_MAX):
        yield encoded[start : start + PART_BYTES_MAX]


def _join(encoded: str) -> str:
    return encoded.replace(_CONTINUES + "/", "")


def _quote(text: str) -> str:
    try:
        # quote() keeps `~`, which here has a meaning of its own.
        encoded = quote(text, safe="").replace("~", "%7E") or _EMPTY
        return "%2E" + encoded[1:] if encoded.startswith(".") else encoded
    except UnicodeEncodeError as error:
        raise Invalid(f"{text!r} is not Unicode text, so it cannot name anything") from error


def _unquote(encoded: str) -> str:
    if encoded == _EMPTY:
        return ""
    try:
        return unquote(encoded, errors="strict")
    except UnicodeDecodeError as error:
        raise Invalid(f"{encoded!r} is not UTF-8 behind its percent signs") from error
