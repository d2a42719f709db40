"""The keys of tables: definitions, partition streams, and their data files.

Data is beside the streams, not below them: the folders under `streams/` are the existing partition streams, although
data may have been written for one whose first log entry was never created. A key says where an object is; what it
contains (which delta, and whether it is part of the table) only the log says.

Spark may run a task a second time while the first attempt still writes, so each attempt writes under its own names:
`task_attempt` is a fresh id. The log names the files of the attempt that succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from operator import attrgetter
from typing import Annotated

from compactor.model.clock import Clock
from compactor.model.names import ContentType
from compactor.storage.keys import Hex, Key, PartitionItems, Spelling, encode_partition, spelled

_SUFFIXES = {each.file_suffix: each for each in ContentType}

Suffix = Annotated[
    ContentType, Spelling[ContentType]("|".join(_SUFFIXES), attrgetter("file_suffix"), _SUFFIXES.__getitem__)
]
"""A content type, as the suffix of a file's name."""


TABLES = "tables"
"""The folder of a lake below which its tables write."""


class TableFolder(Key, template="tables/{table_id}"):
    table_id: str

    @property
    def definition_log(self) -> str:
        return TableLogFolder(self.table_id).key

    @property
    def streams(self) -> str:
        return f"{self.key}/streams"

    @property
    def data(self) -> str:
        return f"{self.key}/data"

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

    def stream(self, partition: Mapping[str, str]) -> StreamFolder:
        return StreamFolder(self.table_id, tuple(partition.items()))


class TableLogFolder(Key, template="tables/{table_id}/log"):
    table_id: str


class StreamFolder(Key, template="tables/{table_id}/data/{partition}"):
    table_id: str
    partition: PartitionItems

    @property
    def log(self) -> str:
        return StreamLogFolder(self).key

    @property
    def data(self) -> str:
        return self.key

    @property
    def news(self) -> str:
        return f"{TableFolder(self.table_id).news}/{encode_partition(dict(self.partition))}"


class StreamLogFolder(Key, template="tables/{stream.table_id}/streams/{stream.partition}/log"):
    stream: StreamFolder


class NewsHint(Key, template="tables/{stream.table_id}/news/{stream.partition}/{entry_number:020}"):
    """An empty object: from this entry on, the stream has something to compact (`compactor/catalog/news.py`)."""

    stream: StreamFolder
    entry_number: int


class DropMark(Key, template="tables/{stream.table_id}/dropped/{stream.partition}/{entry_number:020}{has_begun}"):
    """An empty object: at this entry the stream is dropped, or has begun anew (`compactor/catalog/drop_marks.py`)."""

    stream: StreamFolder
    entry_number: int
    has_begun: Annotated[bool, Spelling[bool](r"(?:\.begun)?", lambda has: ".begun" if has else "", bool)] = False


class DroppedTable(Key, template="dropped_tables/{table_id}"):
    """Marks a table that was dropped at least once: an empty object. The table's log says whether it still is."""

    table_id: str


class DeltaFilePath(
    Key, template="tables/{stream.table_id}/data/{stream.partition}/delta/{append_id}/{file_number}.{content_type}"
):
    """A delta file that the catalog wrote. Each attempt has a fresh `append_id`, so two attempts never share a file."""

    stream: StreamFolder
    append_id: str
    file_number: int
    content_type: Suffix

    @staticmethod
    def fresh_append_id(clock: Clock) -> str:
        """32 hexadecimal digits that begin with the time, so that a listing has the oldest appends first."""
        return f"{clock.now_ms():012x}{clock.new_id()[12:]}"

    @staticmethod
    def begin_of(stream: StreamFolder, at_ms: int | None = None) -> str:
        """What precedes the keys of appends that began at a time or later (None: of all), and follows the others."""
        return f"{stream.data}/delta/{'' if at_ms is None else f'{at_ms:012x}'}"


class CompactedFilePath(
    Key,
    template="tables/{stream.table_id}/data/{stream.partition}/compacted/{compacted_stream_version}/{commit_id}/"
    "{file_number}-{task_attempt}.{content_type}",
):
    stream: StreamFolder
    compacted_stream_version: int
    commit_id: str
    file_number: int
    content_type: Suffix
    task_attempt: Hex


class OpenFilePath(
    Key, template="tables/{table_id}/compacted/{partition_hash}/{commit_id}/{file_number}-{task_attempt}.parquet"
):
    """A compacted file of a published table. Other engines read it, and some misread names that need percent-encoding:
    so its name has `A-Z a-z 0-9 . _ -` alone. The partition is in the file and in the log; the name has a hash of it,
    so that one folder does not hold the files of all."""

    table_id: str
    partition_hash: Annotated[str, spelled("[0-9a-f]{32}")]
    commit_id: Annotated[str, spelled("[A-Za-z0-9_-]+")]
    file_number: int
    task_attempt: Hex


NAME_IN_STREAM_BYTES_MAX = 128
"""Reserved for the rest of the longest key after the partition, that of index pointers with 10-digit numbers: 113."""


def partition_hash(partition: Mapping[str, str]) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of the encoded partition."""
    return sha256(encode_partition(partition).encode()).hexdigest()[:32]


def is_open_file(key: str) -> bool:
    """Whether a compacted file was written for other engines, by its name."""
    return OpenFilePath.parse_or_none(key) is not None
