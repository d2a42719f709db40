"""The values that travel from an instruction to an outcome: *Spec -> Plan -> Result*. All frozen, all printable.

`JobRunSpec`    the request, with every default filled in (the paper, "Full Python API signature")
`SessionSpec`   one partition stream of it, its source pinned to one entry of the stream's log
`SessionPlan`   the launcher's decision: hash buckets, rounds, memory, expected SLA; the job gets its URI
`SessionResult` the result of one session; `JobRunResult` of all
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from compactor.catalog.actions import RoundCommitted
from compactor.catalog.key_columns import check_given_key_names, check_key_names
from compactor.catalog.properties import ROWS_PER_COMPACTED_FILE
from compactor.model.counts import RowTotals, SortKey
from compactor.model.document import Document
from compactor.model.errors import ErrorKind, reasons_of
from compactor.model.names import NOT_WRITTEN, PARTITION_STREAM_POSITION, ContentType, SortOrder, TableId
from compactor.planning.cluster_plan import ClusterPlan, Cost, StoreUse
from compactor.storage.location import StoreLocation

ROWS_PER_PRIMARY_KEY_INDEX_FILE = 38_000_000
PAGE_CHECK_SHARE = 1 / 64
HASH_BUCKET_COUNT_MAX = 1_000_000
FILES_MAX = 1_000_000
"""The most files of one kind that a job run may leave: a log entry names each."""

DEFAULT_SORT_KEYS = (SortKey(column=PARTITION_STREAM_POSITION, order=SortOrder.ASCENDING),)

Partition = Annotated[dict[str, str], Field(description="one string per partition key of the table")]


JobRunOperation = Literal["compact", "rehash"]


class JobRunSpec(Document):
    """Everything `compact()` takes, by the same names. Units: rows, seconds.

    Attributes:
        operation: "rehash": the index moves to `hash_bucket_count` hash buckets, or as many as take half of a task's
            memory, and no delta is compacted
        max_dead_row_share: a compacted file with at most this share of dead rows is not rewritten: they are listed in a
            deletion vector. 0: every file holds live rows only, as privacy deletes require
        own_parquet_pages: whether Lithify reads and writes the Parquet pages that it supports; False: Arrow does all
        page_check_share: of the row groups whose pages Lithify wrote, this share is read back by Arrow and compared
            with the source before a round commits
        bytes_per_compacted_file: about so many at most, by the size of earlier rows; None: only rows count"""

    job_run_id: str
    source_table_id: str
    primary_keys: tuple[str, ...]
    sort_keys: tuple[SortKey, ...] = DEFAULT_SORT_KEYS
    desired_sla: int | None = None
    lake: StoreLocation
    destination_compacted_table_id: str
    rows_per_primary_key_index_file: int = ROWS_PER_PRIMARY_KEY_INDEX_FILE
    rows_per_compacted_file: int = ROWS_PER_COMPACTED_FILE
    bytes_per_compacted_file: int | None = None
    hash_bucket_count: int | None = None
    sns_event_topic_arn: str | None = None
    compacted_file_content_type: ContentType = ContentType.PARQUET
    partitions: tuple[Partition, ...] | None = None
    max_rows_per_round: int | None = None
    tombstone_retention: int | None = None
    max_dead_row_share: float = 0.0
    own_parquet_pages: bool = True
    page_check_share: float = PAGE_CHECK_SHARE
    priority: int = 0
    operation: JobRunOperation = "compact"

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The primary key columns in sorted name order."""
        return tuple(sorted(self.primary_keys))

    @property
    def has_key(self) -> bool:
        """Whether rows have a primary key. Without one nothing is deduplicated, and rows keep their order."""
        return bool(self.primary_keys)

    @property
    def custom_sort_keys(self) -> tuple[SortKey, ...]:
        """None if the stream position alone decides."""
        return () if self.sort_keys == DEFAULT_SORT_KEYS else self.sort_keys


class SessionSpec(Document):
    """One session: one partition stream of a job run, with its pinned input.

    Attributes:
        source_entry_number: the entry of the source stream's log that the session reads at
        source_position: the last stream position at that entry; None if the stream has no delta
        destination_entry_number: the last entry of the compacted stream's log then: completions of the session come
            after it"""

    job_run: JobRunSpec
    session_id: str
    partition: Partition
    source_stream_version: int
    source_entry_number: int
    source_position: int | None
    destination_entry_number: int


class KnownSchema(Document):
    """The columns of all files with this content type and fingerprint.

    Attributes:
        schema_text: as `render_schema` gives it"""

    content_type: ContentType
    fingerprint: str
    schema_text: str


class SessionPlan(Document):
    """The decisions for a session before it runs, and what it need not read again.

    Attributes:
        hash_bucket_count: for the index that the session leaves
        max_rows_per_round: delta rows that one round takes at most
        max_files_per_round: delta files, likewise; None: any number
        scratch_bytes_per_round: scratch bytes for a round's rows; None: not known
        task_memory_bytes: memory of one task
        tasks: tasks that run side by side (cores of the cluster)
        expected_sla: predicted seconds from the job's start to its end, with a buffer: the paper's 10 %, or what the
            table's own sessions say
        predicted_seconds: the same without the buffer; None: not recorded
        arithmetic: sentences that explain the figures
        cluster: the cluster to launch for it; None: it runs on an existing machine
        expected_rows_written: into compacted files, over all rounds; None: not recorded
        first_pass_share: predicted share of hash, shuffle and dedupe in a round's time; None: not recorded
        work_seconds: predicted for its rounds by rows and bytes alone: without the start, and without correction by the
            table's own sessions; None: not recorded
        plain_work_seconds: the same without the steps' correction by the table's own rounds; None: not recorded
        place: as in `SessionTiming`; None: not recorded
        known_schemas: of delta files whose footers were read for the plan"""

    spec: SessionSpec
    hash_bucket_count: int = Field(ge=1)
    max_rows_per_round: int = Field(ge=1)
    task_memory_bytes: int = Field(ge=1)
    tasks: int = Field(ge=1)
    expected_sla: float
    arithmetic: tuple[str, ...]
    max_files_per_round: int | None = Field(default=None, ge=1)
    scratch_bytes_per_round: int | None = Field(default=None, ge=0)
    cluster: ClusterPlan | None = None
    expected_rows_written: int | None = Field(default=None, ge=0)
    first_pass_share: float | None = Field(default=None, ge=0, le=1)
    work_seconds: float | None = Field(default=None, ge=0)
    plain_work_seconds: float | None = Field(default=None, ge=0)
    predicted_seconds: float | None = Field(default=None, ge=0)
    place: str | None = None
    known_schemas: tuple[KnownSchema, ...] = ()


class SessionResult(RowTotals):
    """The figures of an ended session, over all of its rounds.

    Attributes:
        seconds: from its launch, the start of its Spark included, to its end; in its own log, its start is the
            predicted one
        work_seconds: of these, from its first task to its last commit; None: not recorded, or attempts before its last
            one have committed rounds
        expected_sla: the value of `seconds` that its plan predicted
        hash_bucket_count: of its index at the end; None: nothing is compacted, or not recorded
        rehashed_from: what that was before it; None: it has not changed, or not recorded
        store: its use of the lake's store; None: not recorded
        expected_cost: before it, in money; None: nothing was launched for it
        cost: what it used; None likewise"""

    session_id: str
    partition: Partition
    rounds: int
    seconds: float
    expected_sla: float
    completions: tuple[RoundCommitted, ...] = ()
    hash_bucket_count: int | None = None
    rehashed_from: int | None = None
    store: StoreUse | None = None
    expected_cost: Cost | None = None
    cost: Cost | None = None
    work_seconds: float | None = Field(default=None, ge=0)


class SessionFailure(Document):
    session_id: str
    partition: Partition
    error_kind: ErrorKind
    reasons: tuple[str, ...]


class JobRunResult(Document):
    """What `compact()` returns: a result per session, in partition order. No sessions: there was nothing to do.

    Attributes:
        failures: only where `compact()` raises: in the `result` of its error
        seconds: of all sessions together, with their plans
        desired_sla: the seconds that were asked for; None: none were"""

    job_run_id: str
    sessions: tuple[SessionResult, ...]
    failures: tuple[SessionFailure, ...] = ()
    seconds: float = 0.0
    desired_sla: int | None = None

    @property
    def within_desired_sla(self) -> bool | None:
        """None: no `desired_sla` was asked for."""
        return None if self.desired_sla is None else self.seconds <= self.desired_sla


SessionEnd = Literal["succeeded", "failed"]


def violations(run: JobRunSpec, *, keys_from_table: bool = False) -> tuple[str, ...]:
    """Violations in a job run that can be found without the lake, a sentence each.

    Args:
        keys_from_table: whether it may lack primary keys, since the table may have them"""
    reasons = list(_name_violations(run, keys_from_table))
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
    if run.hash_bucket_count is not None and run.hash_bucket_count > HASH_BUCKET_COUNT_MAX:
        reasons.append(f"hash_bucket_count is {run.hash_bucket_count:,}: at most {HASH_BUCKET_COUNT_MAX:,} are allowed")
    if not 0 <= run.max_dead_row_share < 1:
        reasons.append(f"max_dead_row_share is {run.max_dead_row_share}: it must be at least 0 and below 1")
    if not 0 <= run.page_check_share <= 1:
        reasons.append(f"page_check_share is {run.page_check_share}: it must be from 0 to 1")
    if run.tombstone_retention is not None and run.tombstone_retention < 0:
        reasons.append(f"tombstone_retention is {run.tombstone_retention}: it must be 0 or more stream positions")
    if run.compacted_file_content_type in NOT_WRITTEN:
        written = ", ".join(each for each in ContentType if each not in NOT_WRITTEN)
        reasons.append(f"compacted_file_content_type {run.compacted_file_content_type} can be read only: use {written}")
    return tuple(reasons)


def _name_violations(run: JobRunSpec, keys_from_table: bool) -> Iterator[str]:
    for table_id in dict.fromkeys((run.source_table_id, run.destination_compacted_table_id)):
        yield from reasons_of(TableId.parse, table_id)
    check_names = check_given_key_names if keys_from_table else check_key_names
    yield from check_names(run.primary_keys, run.sort_keys)
