"""Checks the destination of a compaction: its own source, an empty table, or its earlier output. Reads logs only.

Any other would hide the deltas of others, or mistake their compaction for another table's.
"""

from compactor.catalog.snapshot import CompactedStream, StreamSnapshot
from compactor.catalog.tables import Table
from compactor.model.errors import Invalid
from compactor.model.names import render_partition
from compactor.planning.spec import JobRunSpec


def check_destination(source_table_id: str, destination: Table) -> None:
    """Raises `Invalid` unless the table is the source, is empty, or is the source's compaction already.

    The first non-empty stream decides; each written stream is checked again by its session.
    """
    if destination.table_id == source_table_id:
        return
    for partition in destination.each_partition(with_news=False):
        snapshot = destination.stream(partition).load().state
        check_destination_stream(source_table_id, destination.table_id, partition, snapshot)
        if snapshot.compacted is not None:
            return


def check_destination_stream(
    source_table_id: str, destination_table_id: str, partition: dict[str, str], snapshot: StreamSnapshot
) -> None:
    """Raises `Invalid` if a stream holds another table's compaction, or deltas of its own and no compaction."""
    where = f"{destination_table_id} {render_partition(partition)}"
    compacted = snapshot.compacted
    if compacted is not None:
        if compacted.source_table_id != source_table_id:
            raise Invalid(
                f"{where} holds the compaction of {compacted.source_table_id}: "
                f"choose another destination for {source_table_id}"
            )
    elif destination_table_id != source_table_id and any(stream.deltas for stream in snapshot.sources.values()):
        raise Invalid(
            f"{where} holds deltas of its own: choose another destination for {source_table_id}, a table that is empty "
            "or is not there yet"
        )


def check_keys(compacted: CompactedStream, run: JobRunSpec) -> None:
    """Raises `Invalid` if the index was built for other keys than those of the job run."""
    key_columns, sort_keys = run.key_columns, run.custom_sort_keys
    if compacted.primary_keys != key_columns:
        raise Invalid(
            f"the index was built for primary keys {list(compacted.primary_keys)}, not {list(key_columns)}: "
            "compact into another destination table"
        )
    if compacted.sort_keys != sort_keys:
        before, now = ([f"{key.column} {key.order}" for key in keys] for keys in (compacted.sort_keys, sort_keys))
        raise Invalid(f"the index was built for sort keys {before}, not {now}: compact into another destination table")
