"""Rounds made by hand, for tests of the catalog: compacted files are written, the index is left out."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from compactor.catalog.actions import IndexRehashed, RoundCommitted
from compactor.catalog.keys import CompactedFilePath
from compactor.catalog.snapshot import ReadPoint
from compactor.catalog.stream import PartitionStream
from compactor.catalog.transaction import CommitOutcome, commit
from compactor.model.counts import RowCounts, Watermark
from compactor.model.files import DataFile
from compactor.model.names import ContentType
from compactor.schemas.unify import render_schema, unify_schemas
from compactor.tabular import TabularWriter


def a_round(
    stream: PartitionStream,
    commit_id: str,
    files: Sequence[DataFile] = (),
    removed: Sequence[int] = (),
    schema: pa.Schema | None = None,
) -> RoundCommitted:
    """A round that can follow what the stream is now."""
    snapshot = stream.load().state
    return RoundCommitted(
        commit_id=commit_id,
        job_run_id="run",
        session_id="session",
        round_number=1,
        rounds=1,
        source_table_id=stream.table_id,
        source_stream_version=1,
        processed=Watermark(position=snapshot.last_index_version),
        compacted_table_id=stream.table_id,
        compacted_stream_version=1,
        primary_keys=("id",),
        sort_keys=(),
        digest_encoding=1,
        compacted_schema=render_schema(schema if schema is not None else pa.schema([])),
        hash_bucket_count=1,
        index_version=snapshot.last_index_version + 1,
        bytes_at_rest=0,
        files_added=tuple(files),
        files_removed=tuple(removed),
        index_files=(),
        counts=RowCounts(**dict.fromkeys(RowCounts.model_fields, 0)),
        steps={},
    )


def a_rehash(stream: PartitionStream, commit_id: str) -> IndexRehashed:
    """A rehash that can follow what the stream is now."""
    snapshot = stream.load().state
    return IndexRehashed(
        commit_id=commit_id,
        job_run_id="run",
        session_id="session",
        compacted_stream_version=1,
        from_index_version=snapshot.last_index_version,
        index_version=snapshot.last_index_version + 1,
        hash_bucket_count=2,
        index_files=(),
    )


def commit_now(stream: PartitionStream, action: RoundCommitted | IndexRehashed) -> CommitOutcome:
    return commit(stream, action, ReadPoint.of(stream.load().state))


def compact_by_hand(
    stream: PartitionStream,
    tables: Sequence[pa.Table],
    content_type: ContentType = ContentType.PARQUET,
    removed: Sequence[int] = (),
) -> CommitOutcome:
    """Commit a round that adds one compacted file per table, as they are."""
    compacted = stream.load().state.compacted
    first = 1 if compacted is None else compacted.next_file_number
    commit_id = f"commit-{first}"
    files = []
    for number, table in enumerate(tables, start=first):
        path = CompactedFilePath(stream.folder, 1, commit_id, number, content_type, "0").key
        with TabularWriter.open(stream.location, stream.uri_of(path), content_type, table.schema) as writer:
            writer.write(table)
            measured = writer.close()
        files.append(
            DataFile(
                file_number=number,
                path=path,
                content_type=content_type,
                rows=measured.rows,
                size_bytes=measured.size_bytes,
                columns=dict(measured.columns),
            )
        )
    schema = unify_schemas([(str(place), table.schema) for place, table in enumerate(tables)])
    return commit_now(stream, a_round(stream, commit_id, files, removed, schema))
