"""The values that travel from an instruction to an outcome: *Spec -> Plan -> Result*. All frozen, all printable.

`JobRunSpec`    what was asked, with every default written in (seed 000, "Full Python API signature")
`SessionSpec`   one partition stream of it, its source pinned to one entry of the stream's log
`SessionPlan`   what the launcher decided for it: hash buckets, rounds, memory, expected SLA; the job is told its URI
`SessionResult` what came of one session; `JobRunResult` of all
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from compactor.catalog.actions import RoundCommitted, SortKey
from compactor.document import Document
from compactor.errors import Invalid
from compactor.names import PARTITION_STREAM_POSITION, ContentType, SortOrder, TableId
from compactor.object_store import StoreLocation

ROWS_PER_COMPACTED_FILE = 4_000_000
ROWS_PER_PRIMARY_KEY_INDEX_FILE = 38_000_000
NOT_WRITTEN = frozenset({ContentType.JSON})
"""Content types that PyArrow reads and does not write."""

DEFAULT_SORT_KEYS = (SortKey(column=PARTITION_STREAM_POSITION, order=SortOrder.ASCENDING),)

Partition = Annotated[dict[str, str], Field(description="one string per partition key of the table")]


class JobRunSpec(Document):
    """Everything `compact()` takes, by the same names. Units: rows, seconds.

    max_dead_row_share  a compacted file with at most this share of dead rows is not rewritten: they are noted in a
                        deletion vector. 0: every file holds live rows only, as privacy deletes need it
    """

    job_run_id: str
    source_table_id: str
    primary_keys: tuple[str, ...]
    sort_keys: tuple[SortKey, ...] = DEFAULT_SORT_KEYS
    desired_sla: int | None = None
    lake: StoreLocation
    destination_compacted_table_id: str
    rows_per_primary_key_index_file: int = ROWS_PER_PRIMARY_KEY_INDEX_FILE
    rows_per_compacted_file: int = ROWS_PER_COMPACTED_FILE
    hash_bucket_count: int | None = None
    sns_event_topic_arn: str | None = None
    compacted_file_content_type: ContentType = ContentType.PARQUET
    partitions: tuple[Partition, ...] | None = None
    max_rows_per_round: int | None = None
    tombstone_retention: int | None = None
    max_dead_row_share: float = 0.0
    task_token: str | None = None
    priority: int = 0


class SessionSpec(Document):
    """One session: one partition stream of a job run, with what it reads pinned.

    source_entry_number  the entry of the source stream's log that the session reads at
    source_position      the last stream position at that entry; None where the stream has no delta
    destination_entry_number  where the compacted stream's log stood then: completions of the session come after it
    """

    job_run: JobRunSpec
    session_id: str
    partition: Partition
    source_stream_version: int
    source_entry_number: int
    source_position: int | None
    destination_entry_number: int


class SessionPlan(Document):
    """What was decided for a session before it runs.

    hash_bucket_count   for the index that the session leaves
    max_rows_per_round  delta rows that one round takes at most
    task_memory_bytes   what one task may hold
    tasks               tasks that run side by side (cores of the cluster)
    expected_sla        predicted seconds from the job's start to its end, the 10 % buffer of seed 000 included
    arithmetic          how the figures came about, a sentence each
    """

    spec: SessionSpec
    hash_bucket_count: int = Field(ge=1)
    max_rows_per_round: int = Field(ge=1)
    task_memory_bytes: int = Field(ge=1)
    tasks: int = Field(ge=1)
    expected_sla: float
    arithmetic: tuple[str, ...]


class SessionResult(Document):
    """What a session did. Row counts as in `RowCounts`, over all of its rounds; `seconds` from start to last commit."""

    session_id: str
    partition: Partition
    rounds: int
    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int
    seconds: float
    expected_sla: float
    completions: tuple[RoundCommitted, ...] = ()


class JobRunResult(Document):
    """What `compact()` returns: a result per session, in partition order. No sessions: there was nothing to do."""

    job_run_id: str
    sessions: tuple[SessionResult, ...]


SessionEnd = Literal["succeeded", "failed"]


def violations(run: JobRunSpec) -> tuple[str, ...]:
    """Everything about a job run that can be seen to be wrong without looking at the lake, a sentence each."""
    reasons = list(_wrong_names(run))
    bounded = {
        "rows_per_primary_key_index_file": run.rows_per_primary_key_index_file,
        "rows_per_compacted_file": run.rows_per_compacted_file,
        "hash_bucket_count": run.hash_bucket_count,
        "max_rows_per_round": run.max_rows_per_round,
        "desired_sla": run.desired_sla,
    }
    reasons += [
        f"{name} is {value}: it must be 1 or more" for name, value in bounded.items() if value is not None and value < 1
    ]
    if not 0 <= run.max_dead_row_share < 1:
        reasons.append(f"max_dead_row_share is {run.max_dead_row_share}: it must be at least 0 and below 1")
    if run.tombstone_retention is not None and run.tombstone_retention < 0:
        reasons.append(f"tombstone_retention is {run.tombstone_retention}: it must be 0 or more stream positions")
    if run.compacted_file_content_type in NOT_WRITTEN:
        written = ", ".join(each for each in ContentType if each not in NOT_WRITTEN)
        reasons.append(f"compacted_file_content_type {run.compacted_file_content_type} can be read only: use {written}")
    return tuple(reasons)


def _wrong_names(run: JobRunSpec) -> Iterator[str]:
    for table_id in dict.fromkeys((run.source_table_id, run.destination_compacted_table_id)):
        try:
            TableId.parse(table_id)
        except Invalid as error:
            yield str(error)
    if not run.primary_keys:
        yield "primary_keys is empty: name at least one column"
    columns = [key.column for key in run.sort_keys]
    for column in sorted({column for column in columns if columns.count(column) > 1}):
        yield f"sort key column {column!r} is given more than once: sort keys must reference unique columns"
    if PARTITION_STREAM_POSITION in run.primary_keys:
        yield f"{PARTITION_STREAM_POSITION!r} is a virtual column: it can be a sort key, not a primary key"
