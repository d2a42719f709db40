"""What a compaction of a stream is expected to take, from its figures alone: no file and no schema is read. Pure."""

from __future__ import annotations

from compactor.model.errors import Invalid
from compactor.planning.due import Expected
from compactor.planning.sizing import SessionSize, size_session
from compactor.planning.stream_figures import StreamFigures
from compactor.planning.where_to_run import in_one_process
from launcher.plan import Room
from launcher.sizing.cluster_choice import ClusterRoom, choose_cluster


def expected_cost(figures: StreamFigures, room: Room, *, is_remote: bool) -> Expected:
    """An upper estimate: every compacted row counts as touched, and the session as alone on its cluster.

    A session that no cluster within the limits can run costs nothing here: its dispatcher refuses it, with the reason.
    """
    size = SessionSize(
        index_rows=figures.rows + figures.dead_rows,
        delta_rows=figures.pending_rows,
        delta_bytes=figures.pending_bytes,
        sort_values_bytes=0,
        inherited_hash_bucket_count=None,
        delta_files=figures.pending_deltas,
        largest_delta_file_rows=-(-figures.pending_rows // max(figures.pending_deltas, 1)),
        compacted_files=figures.files,
        compacted_bytes=figures.file_bytes,
        lake_is_remote=is_remote,
    )
    try:
        if isinstance(room, ClusterRoom):
            plan = choose_cluster(size, room, None).plan
            return Expected(plan.expected_sla, plan.cost.total_usd)
        alone = in_one_process(size, None, room.task_memory_bytes)
        if not alone.reasons_for_spark:
            return Expected(alone.seconds)
        return Expected(size_session(size, room, None, None, 1.0).expected_sla)
    except Invalid:
        return Expected(0.0)
