"""Holds a job run against its lake, before it is accepted: is there such a table, are there such columns.

Only logs and one file's schema per partition stream are read, and nothing is written. What a look at every file would
show (a corrupt one, one that lacks a key column) is found by the session that reads them, before it writes anything.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from compactor.catalog.actions import DataFile
from compactor.catalog.catalog import DeltaCatalog, Table
from compactor.catalog.snapshot import SourceStream
from compactor.catalog.stream import PartitionStream
from compactor.errors import Invalid
from compactor.key_columns import check_key_columns
from compactor.names import Operation, PartitionValues
from compactor.schemas import unify_schemas
from compactor.spec import JobRunSpec
from compactor.tabular import TabularFile, read_schema

STREAMS_LOOKED_AT_MAX = 64
"""A table's partitions have the same columns, nearly always; where one has others, its own session says so."""


def check_against_lake(job_run: JobRunSpec, lake: DeltaCatalog) -> tuple[str, ...]:
    """Every reason why this job run can never work on the lake as it is; empty if there is none."""
    try:
        table = lake.table(job_run.source_table_id)
    except Invalid as error:
        return error.reasons
    reasons: list[str] = []
    streams = []
    for partition in job_run.partitions or ():
        try:
            streams.append(_existing_stream(table, partition))
        except Invalid as error:
            reasons.extend(error.reasons)
    if job_run.partitions is None:
        streams = [table.stream(partition) for partition in table.partitions()[:STREAMS_LOOKED_AT_MAX]]
    reasons.extend(_check_columns(job_run, lake, table, streams[:STREAMS_LOOKED_AT_MAX]))
    return tuple(reasons)


def _existing_stream(table: Table, partition: PartitionValues) -> PartitionStream:
    stream = table.stream(partition)
    if stream.load().entry_number == 0:
        raise Invalid(f"there is no partition stream {stream}: nothing was ever appended to it")
    return stream


def _check_columns(
    job_run: JobRunSpec, lake: DeltaCatalog, table: Table, streams: list[PartitionStream]
) -> tuple[str, ...]:
    try:
        named = list(_schemas(lake, table, streams))
        schema = unify_schemas(named) if named else None
    except Invalid as error:
        return error.reasons
    return check_key_columns(schema, job_run.primary_keys, job_run.sort_keys) if schema is not None else ()


def _schemas(lake: DeltaCatalog, table: Table, streams: list[PartitionStream]) -> Iterator[tuple[str, pa.Schema]]:
    """The declared schema, and that of the newest upsert of each stream."""
    if table.schema is not None:
        yield f"the schema of {table.table_id}", table.schema
    for stream in streams:
        active = stream.load().state.active
        file = _newest_upserted_file(active) if active is not None else None
        if file is not None:
            uri = stream.uri_of(file.path)
            yield uri, read_schema(lake.location, TabularFile(uri, file.content_type), table.schema)


def _newest_upserted_file(active: SourceStream) -> DataFile | None:
    for delta in reversed(active.deltas):
        if delta.operation is Operation.UPSERT and delta.files:
            return delta.files[-1]
    return None
