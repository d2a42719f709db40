"""`compact()`: the whole compaction as one call in this process (the paper, "Full Python API signature")."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from compactor.catalog.properties import ROWS_PER_COMPACTED_FILE
from compactor.catalog.tables import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid, refuse_if
from compactor.model.names import NOT_WRITTEN, ContentType, SortOrder
from compactor.model.wrong_input import sentences
from compactor.planning.spec import (
    DEFAULT_SORT_KEYS,
    PAGE_CHECK_SHARE,
    ROWS_PER_PRIMARY_KEY_INDEX_FILE,
    JobRunResult,
    JobRunSpec,
    violations,
)
from compactor.planning.table_terms import complete_by_table
from compactor.sessions.session_log import Listener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compactor.engine.protocol import Engine


def compact(  # noqa: PLR0913, PLR0917  (the paper's signature)
    source_table_id: str,
    primary_keys: Collection[str] | None = None,
    sort_keys: Sequence[tuple[str, str]] | None = None,
    desired_sla: int | None = None,
    delta_catalog_client: DeltaCatalog | None = None,
    destination_compacted_table_id: str | None = None,
    rows_per_primary_key_index_file: int = ROWS_PER_PRIMARY_KEY_INDEX_FILE,
    rows_per_compacted_file: int | None = None,
    hash_bucket_count: int | None = None,
    sns_event_topic_arn: str | None = None,
    compacted_file_content_type: str | None = None,
    *,
    partitions: Sequence[Mapping[str, str]] | None = None,
    max_rows_per_round: int | None = None,
    tombstone_retention: int | None = None,
    max_dead_row_share: float = 0.0,
    own_parquet_pages: bool = True,
    page_check_share: float = PAGE_CHECK_SHARE,
    spark: SparkSession | None = None,
    progress: Listener | None = None,
    engine: Engine | None = None,
    wait_seconds: float = 0.0,
) -> JobRunResult:
    """Applies every pending upsert and delete of a table to its compacted streams; returns when all is committed.

    Args:
        delta_catalog_client: the lake, from `DeltaCatalog.open`
        primary_keys: None: the table's own, from its properties; others than these are refused
        sort_keys: (column, "ascending" or "descending") pairs: the row that is last in this order survives. None: the
            table's own; where it has none, the last row of the stream
        destination_compacted_table_id, rows_per_compacted_file, compacted_file_content_type: None: the table's own;
            where it has none, the source table, 4,000,000 and "parquet"
        desired_sla: seconds that it should take at most. The cores are this machine's, so it changes no plan:
            `within_desired_sla` of the result says whether it was met, and a warning before the first session names the
            seconds that are expected if these are more
        sns_event_topic_arn: a topic for events; a session's are published when it has ended
        partitions: the partition streams; None: all that have an active stream version
        max_rows_per_round: delta rows; None: as many as fit into memory
        tombstone_retention: stream positions for which a deleted key is remembered for custom sort keys; None: for ever
        max_dead_row_share: compacted files with at most this share of dead rows are not rewritten; scans and lookups
            leave their dead rows out; 0: files have live rows only
        own_parquet_pages: whether Lithify reads and writes the Parquet pages that it supports; False: Arrow does all
        page_check_share: of the row groups whose pages Lithify wrote, this share is read back by Arrow and compared
            with the source before each commit
        spark: a running SparkSession; None: small sessions run in this process, on one core, side by side, and for
            large ones a Spark is started on this machine and stopped again
        engine: runs the steps of all sessions, instead of `spark`
        progress: called with a `SessionProgress` at each progress, from any thread, one call at a time
        wait_seconds: of a table with `session_plans`, whose streams another compactor may have: how long to wait for
            its end. One that was killed keeps others away until the time of its plan is over, which the error names; 0:
            refused at once. Other partitions are compacted meanwhile

    Returns a result per session. A session with nothing to do has no rounds, and Spark is not started for it.
    Raises `Invalid` with every reason for arguments or input that can never work, `Fenced` if another compactor works
    on the same stream, `Conflict` if that one has announced it (`wait_seconds`), `Unavailable` if the lake cannot be
    reached. If a partition fails, the others are compacted all the same: the error names it, and its `result` has the
    outcome of all (`sessions`, `failures`)."""
    if delta_catalog_client is None:
        raise Invalid("delta_catalog_client is missing: pass DeltaCatalog.open('s3://bucket/prefix') or a local one")
    if isinstance(delta_catalog_client, str | Path):
        raise Invalid(
            f"delta_catalog_client is the name {str(delta_catalog_client)!r}: pass "
            f"DeltaCatalog.open({str(delta_catalog_client)!r})"
        )
    if not 0 <= wait_seconds < float("inf"):
        raise Invalid(f"wait_seconds is {wait_seconds}: give 0 or more seconds")
    clock = SystemClock()
    lake = delta_catalog_client.for_one_run()
    if isinstance(primary_keys, str):
        raise Invalid(f"primary_keys is the string {primary_keys!r}: pass a set of column names")
    by_argument = {
        "primary_keys": primary_keys,
        "sort_keys": sort_keys,
        "destination_compacted_table_id": destination_compacted_table_id,
        "rows_per_compacted_file": rows_per_compacted_file,
        "compacted_file_content_type": compacted_file_content_type,
    }
    given = {name for name, value in by_argument.items() if value is not None}
    try:
        run = JobRunSpec(
            job_run_id=f"compact-{clock.new_id()}",
            source_table_id=source_table_id,
            primary_keys=tuple(sorted(primary_keys or ())),
            sort_keys=tuple(_sort_key(pair) for pair in sort_keys or ()) or DEFAULT_SORT_KEYS,
            desired_sla=desired_sla,
            lake=delta_catalog_client.location,
            destination_compacted_table_id=destination_compacted_table_id or source_table_id,
            rows_per_primary_key_index_file=rows_per_primary_key_index_file,
            rows_per_compacted_file=(
                ROWS_PER_COMPACTED_FILE if rows_per_compacted_file is None else rows_per_compacted_file
            ),
            hash_bucket_count=hash_bucket_count,
            sns_event_topic_arn=sns_event_topic_arn,
            compacted_file_content_type=_content_type(compacted_file_content_type or ContentType.PARQUET),
            partitions=_partitions(partitions),
            max_rows_per_round=max_rows_per_round,
            tombstone_retention=tombstone_retention,
            max_dead_row_share=max_dead_row_share,
            own_parquet_pages=own_parquet_pages,
            page_check_share=page_check_share,
        )
    except ValidationError as error:
        raise Invalid(*sentences(error, JobRunSpec, show=repr)) from error
    refuse_if(violations(run, keys_from_table=primary_keys is None))
    run = complete_by_table(run, given, lake.table(source_table_id))
    # Imported here, so that `from compactor import compact` stays fast.
    from compactor.local_job_run import run_here

    if spark is not None and engine is None:
        from compactor.engine.spark import SparkEngine

        engine = SparkEngine(spark.sparkContext)
    return run_here(run, lake, clock, engine, progress, wait_seconds)


def _partitions(given: Sequence[Mapping[str, str]] | None) -> tuple[dict[str, str], ...] | None:
    if given is None:
        return None
    if isinstance(given, str | Mapping) or not all(isinstance(each, Mapping) for each in given):
        raise Invalid(f"partitions is {given!r}: pass a list of dicts, each with a text by partition key")
    return tuple(dict(each) for each in given)


def _sort_key(pair: tuple[str, str]) -> SortKey:
    try:
        column, order = pair
        return SortKey(column=column, order=SortOrder(order))
    except (TypeError, ValueError) as error:
        raise Invalid(f"sort key {pair!r} is no (column, order) pair: order is 'ascending' or 'descending'") from error


def _content_type(name: str) -> ContentType:
    try:
        return ContentType(name)
    except ValueError as error:
        known = ", ".join(each for each in ContentType if each not in NOT_WRITTEN)
        raise Invalid(f"compacted_file_content_type {name!r} is none of {known}") from error
