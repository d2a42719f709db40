"""`compact()`: the whole compaction as one call in this process (contract 4; seed 000, "Full Python API signature")."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from compactor.catalog.actions import SortKey
from compactor.catalog.catalog import DeltaCatalog
from compactor.clock import SystemClock
from compactor.errors import Invalid
from compactor.names import PARTITION_STREAM_POSITION, ContentType, SortOrder
from compactor.spec import (
    ROWS_PER_COMPACTED_FILE,
    ROWS_PER_PRIMARY_KEY_INDEX_FILE,
    JobRunResult,
    JobRunSpec,
    violations,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_SORT_KEYS = ((PARTITION_STREAM_POSITION, "ascending"),)


def compact(  # noqa: PLR0913, PLR0917  (the paper's signature)
    source_table_id: str,
    primary_keys: Collection[str],
    sort_keys: Sequence[tuple[str, str]] = DEFAULT_SORT_KEYS,
    desired_sla: int | None = None,
    delta_catalog_client: DeltaCatalog | None = None,
    destination_compacted_table_id: str | None = None,
    rows_per_primary_key_index_file: int = ROWS_PER_PRIMARY_KEY_INDEX_FILE,
    rows_per_compacted_file: int = ROWS_PER_COMPACTED_FILE,
    hash_bucket_count: int | None = None,
    sns_event_topic_arn: str | None = None,
    compacted_file_content_type: str = "parquet",
    *,
    partitions: Sequence[Mapping[str, str]] | None = None,
    max_rows_per_round: int | None = None,
    tombstone_retention: int | None = None,
    max_dead_row_share: float = 0.0,
    spark: SparkSession | None = None,
) -> JobRunResult:
    """Applies every pending upsert and delete of a table to its compacted streams, and returns when all is committed.

    delta_catalog_client  the lake, from `DeltaCatalog.open`
    sort_keys             (column, "ascending" or "descending") pairs: the row that is last in this order survives
    desired_sla           seconds the caller would like it to take
    sns_event_topic_arn   a topic that is told of each session when it has ended, round by round
    partitions            which partition streams; None: all that have an active stream version
    max_rows_per_round    delta rows; None: as many as memory holds
    tombstone_retention   stream positions that a deleted key is remembered for custom sort keys; None: for ever
    max_dead_row_share    compacted files with at most this share of dead rows are not rewritten, and only `scan` leaves
                          their dead rows out; 0: files hold live rows only
    spark                 a running SparkSession; None: one is started on this machine and stopped again

    Returns a result per session. A session with nothing to do has no rounds, and if none has, Spark is not started.
    Raises `Invalid` with every reason for arguments or input that can never work, `Fenced` where another compactor is
    at work on the same stream, `Unavailable` where the lake cannot be reached.
    """
    if delta_catalog_client is None:
        raise Invalid("delta_catalog_client is missing: pass DeltaCatalog.open('s3://bucket/prefix') or a local one")
    clock = SystemClock()
    if isinstance(primary_keys, str):
        raise Invalid(f"primary_keys is the string {primary_keys!r}: pass a set of column names")
    run = JobRunSpec(
        job_run_id=f"compact-{clock.new_id()}",
        source_table_id=source_table_id,
        primary_keys=tuple(sorted(primary_keys)),
        sort_keys=tuple(_sort_key(pair) for pair in sort_keys) or (SortKey(column=PARTITION_STREAM_POSITION),),
        desired_sla=desired_sla,
        lake=delta_catalog_client.location,
        destination_compacted_table_id=destination_compacted_table_id or source_table_id,
        rows_per_primary_key_index_file=rows_per_primary_key_index_file,
        rows_per_compacted_file=rows_per_compacted_file,
        hash_bucket_count=hash_bucket_count,
        sns_event_topic_arn=sns_event_topic_arn,
        compacted_file_content_type=_content_type(compacted_file_content_type),
        partitions=None if partitions is None else tuple(dict(each) for each in partitions),
        max_rows_per_round=max_rows_per_round,
        tombstone_retention=tombstone_retention,
        max_dead_row_share=float(max_dead_row_share),
    )
    reasons = violations(run)
    if reasons:
        raise Invalid(*reasons)
    # Spark and all that needs it is loaded here, so that importing `compact` costs nothing.
    from compactor.job_run import run_here

    return run_here(run, delta_catalog_client, clock, None if spark is None else spark.sparkContext)


def _sort_key(pair: tuple[str, str]) -> SortKey:
    try:
        column, order = pair
        return SortKey(column=column, order=SortOrder(order))
    except ValueError as error:
        raise Invalid(f"sort key {pair!r} is no (column, order) pair: order is 'ascending' or 'descending'") from error


def _content_type(name: str) -> ContentType:
    try:
        return ContentType(name)
    except ValueError as error:
        known = ", ".join(ContentType)
        raise Invalid(f"compacted_file_content_type {name!r} is none of {known}") from error
