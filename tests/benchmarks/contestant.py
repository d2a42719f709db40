"""What a contestant is given and what it answers: the documents between the benchmark and a contestant's process."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from compactor.model.document import Document
from compactor.planning.spec import SessionResult


class Task(Document):
    """What to compact, with what.

    table_files           Parquet files of the table
    delta_files           Parquet files of the delta over it
    cores                 how many may be used
    compacted_lake        ours only: a lake whose table is compacted already; the delta is appended to it
    by_position           ours only: the default sort key instead of the column
    through_spark         ours only: records pass as on a cluster, none in files
    rows_per_compacted_file, hash_bucket_count, max_rows_per_round  ours only: None is the default of `compact()`
    max_dead_row_share    ours only: 0 rewrites every file that a row died in
    published             ours only: as Delta Lake and Apache Iceberg
    own_parquet_pages     ours only: False leaves all pages to Arrow
    """

    table_files: tuple[str, ...]
    delta_files: tuple[str, ...] = ()
    cores: int
    compacted_lake: str | None = None
    by_position: bool = False
    through_spark: bool = False
    rows_per_compacted_file: int | None = None
    hash_bucket_count: int | None = None
    max_rows_per_round: int | None = None
    max_dead_row_share: float = 0.0
    published: bool = False
    own_parquet_pages: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.table_files, *self.delta_files)


class Call(Document):
    """Do this in that folder. The first call of a folder is `prepare`, and is not timed; the second is `run`."""

    verb: str
    folder: str


class Answer(Document):
    """What came of a call.

    started_ms, ended_ms  by the wall clock, to find a run's stages in Spark's event log
    written               the Parquet files that hold the surviving rows
    session               ours only
    bytes_read            ours only: delta files, and compacted files that were rewritten
    bytes_written         ours only: compacted files, deletion vectors and index files
    """

    seconds: float
    started_ms: int
    ended_ms: int
    written: tuple[str, ...] = ()
    session: SessionResult | None = None
    bytes_read: int = 0
    bytes_written: int = 0


class Contestant(Protocol):
    """Lives in a process of its own, started and warm to whatever degree its last run left it."""

    def prepare(self, folder: Path) -> None:
        """Whatever comes before the clock starts."""

    def run(self, folder: Path) -> None:
        """What is timed."""

    def describe(self, folder: Path, answer: Answer) -> Answer:
        """The answer with what was written, after the clock has stopped."""


def parquet_files(folder: Path) -> tuple[str, ...]:
    return tuple(str(path) for path in sorted(folder.rglob("*.parquet")))
