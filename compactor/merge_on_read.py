"""Merge on read: what a partition stream would hold if its pending deltas were compacted now. Writes nothing.

Runs the steps of a round in this process, up to the point where the survivors are known: reads the key columns of
the pending deltas and the whole index of the stream. Made for streams compacted often enough for that to be little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.catalog.actions import DataFile
from compactor.catalog.catalog import DeltaCatalog
from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.clock import SystemClock
from compactor.object_store import ObjectStore
from compactor.planning import RoundPlan, split_into_rounds
from compactor.round_planner import RoundTurn, plan_round
from compactor.session_input import SessionInput, read_session_input
from compactor.session_planner import spec_as_compacted
from compactor.spec import SessionPlan, SessionSpec
from compactor.steps.dedupe import RunPiece, dedupe_bucket
from compactor.steps.hash_bucket import HashedRows, hash_files

_NAME = "merge-on-read"
_NO_BOUND = 1 << 62


@dataclass(frozen=True)
class MergedFile:
    """A compacted file or a delta file, and which of its rows survive (int64, ascending)."""

    uri: str
    file: DataFile
    kept: npt.NDArray[np.int64]
    is_delta: bool


@dataclass(frozen=True)
class MergedStream:
    schema: pa.Schema
    files: tuple[MergedFile, ...]


def merge_stream(store: ObjectStore, stream: PartitionStream) -> MergedStream | None:
    """The merged view of a compacted stream; None where nothing was compacted, so that no keys are known."""
    compacted = stream.load().state.compacted
    if compacted is None:
        return None
    lake = DeltaCatalog(store, SystemClock())
    spec = spec_as_compacted(lake, stream, compacted, _NAME)
    session = read_session_input(spec, lake)
    files = tuple(ref for turn in split_into_rounds(session.pending, _NO_BOUND) for ref in turn)
    plan = _plan(lake, spec, session, compacted, RoundTurn(1, 1, files, None, _NAME))
    kept = _surviving_rows(plan)
    compacted_files = [(stream.uri_of(file.path), file) for _, file in sorted(compacted.files.items())]
    everything = [*compacted_files, *((ref.uri, ref.file) for ref in files)]
    return MergedStream(
        session.schema,
        tuple(
            MergedFile(uri, file, kept[ordinal], is_delta=ordinal >= len(compacted_files))
            for ordinal, (uri, file) in enumerate(everything)
        ),
    )


def _plan(
    lake: DeltaCatalog, spec: SessionSpec, session: SessionInput, compacted: CompactedStream, turn: RoundTurn
) -> RoundPlan:
    plan = SessionPlan(
        spec=spec,
        hash_bucket_count=compacted.hash_bucket_count,
        max_rows_per_round=_NO_BOUND,
        task_memory_bytes=_NO_BOUND,
        tasks=1,
        expected_sla=0.0,
        arithmetic=(),
    )
    round_plan = plan_round(lake.location, plan, session, session.snapshot, turn)
    # With every run absorbed, what dedupe leaves names every live row of the stream.
    return replace(round_plan, absorbed_runs=frozenset(file.run for file in round_plan.index_files))


def _surviving_rows(plan: RoundPlan) -> Sequence[npt.NDArray[np.int64]]:
    """The surviving rows of every source file, by ordinal."""
    blocks: dict[int, list[HashedRows]] = defaultdict(list)
    for file in plan.deltas:
        for bucket, block in hash_files(plan, [file]):
            blocks[bucket].append(block)
    found = chain.from_iterable(dedupe_bucket(plan, bucket, blocks[bucket]) for bucket in range(plan.hash_bucket_count))
    pointers = [(each.run.ordinals, each.run.row_indices) for each in found if isinstance(each, RunPiece)]
    ordinals = np.concatenate([np.empty(0, np.int32), *(ordinals for ordinals, _ in pointers)])
    rows = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in pointers)])
    order = np.lexsort((rows, ordinals))
    starts = np.searchsorted(ordinals[order], np.arange(len(plan.sources) + 1))
    return [rows[order[starts[ordinal] : starts[ordinal + 1]]] for ordinal in range(len(plan.sources))]
