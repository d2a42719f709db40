"""A stream's checkpoint holds everything, and a log folds to the same state with and without it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactor.catalog.actions import (
    DeltaAdded,
    DeltaRetracted,
    DeltasRetired,
    DeltasTaken,
    IndexRehashed,
    PlannedRound,
    RoundCommitted,
    SessionPlanAnnounced,
    SessionPlanEnded,
    StreamAction,
    StreamVersionCreated,
    StreamVersionReleased,
)
from compactor.catalog.checkpoint import SCHEMA, describe, restore
from compactor.catalog.snapshot import CompactedStream, StreamSnapshot, apply
from compactor.catalog.stream import STREAM_LOG
from compactor.log.checkpoints import ReplacedRows
from compactor.log.columns import RecordCodec, codec_of
from compactor.log.durable_log import DurableLog
from compactor.model.counts import RowCounts, SortKey, StepFigures, Watermark
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Outdated
from compactor.model.files import ColumnStats, DataFile, DeletionVector, IndexFile
from compactor.model.names import ContentType, LifecycleState
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

GOLDEN = Path(__file__).parents[2] / "golden/logs/stream_before_retract/00000000000000000003.checkpoint.parquet"

DocumentT = TypeVar("DocumentT", bound=Document)

names = st.text(max_size=4)
numbers = st.integers(1, 2**62)
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    finite,
    names,
)


def some(document: type[DocumentT], **given_fields: st.SearchStrategy[object]) -> st.SearchStrategy[DocumentT]:
    """Any such document: integers of 64 bits, finite floats, short texts, and the rest by its declared type."""
    plain: dict[object, st.SearchStrategy[object]] = {int: numbers, float: finite, str: names}
    fields = {
        name: plain[field.annotation] for name, field in document.model_fields.items() if field.annotation in plain
    }
    return st.builds(document, **{**fields, **given_fields})


def tuples_of(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=2).map(tuple)


column_stats = some(ColumnStats, null_count=st.none() | numbers, min_value=scalars, max_value=scalars)
data_files = some(DataFile, columns=st.dictionaries(names, column_stats, max_size=2))
index_files = some(IndexFile, file_number_bytes=st.integers(1, 4), row_index_bytes=st.integers(1, 8))
deletion_vectors = some(DeletionVector)
rounds = some(
    RoundCommitted,
    files_added=tuples_of(data_files),
    index_files=tuples_of(index_files),
    primary_keys=tuples_of(names),
    sort_keys=tuples_of(some(SortKey)),
    steps=st.dictionaries(names, some(StepFigures), max_size=2),
    counts=some(RowCounts),
    processed=some(Watermark, file_number=st.none() | numbers),
)
rehashes = some(IndexRehashed, index_files=tuples_of(index_files))
deltas = some(DeltaAdded, files=tuples_of(data_files))
plans = some(
    SessionPlanAnnounced,
    from_index_version=st.none() | numbers,
    from_commit_id=st.none() | names,
    rounds=tuples_of(some(PlannedRound, processed=st.none() | some(Watermark, file_number=st.none() | numbers))),
)


@st.composite
def ends_of(draw: st.DrawFn, snapshot: StreamSnapshot, *, retires: bool) -> StreamAction:
    """A delta leaves the snapshot: taken back, or retired with all before it."""
    delta = draw(st.sampled_from([delta for source in snapshot.sources.values() for delta in source.deltas]))
    version, position = delta.stream_version, delta.position
    if not retires:
        return DeltaRetracted(stream_version=version, position=position, delta_id=delta.delta_id)
    at_ms = draw(st.integers(1, 9))
    until_ms = at_ms + draw(st.integers(0, 3))
    return DeltasRetired(stream_version=version, position=position, at_ms=at_ms, ids_refused_until_ms=until_ms)


@st.composite
def plans_after(draw: st.DrawFn, in_flight: SessionPlanAnnounced | None) -> StreamAction:
    """Another plan, or the end of one: of that in force or of an earlier one."""
    if in_flight is None or draw(st.booleans()):
        return draw(plans)
    return SessionPlanEnded(plan_id=draw(st.sampled_from([in_flight.plan_id, "another"])))


@st.composite
def commits_after(
    draw: st.DrawFn, compacted: CompactedStream | None, actions: int, *, rehashes_it: bool
) -> StreamAction:
    """`actions`: so many came before. One log gives a commit id and an index version once."""
    if rehashes_it and compacted is not None:
        versions = {"from_index_version": compacted.index_version, "index_version": actions + 1}
        return draw(rehashes).model_copy(update=versions)
    added = draw(rounds)
    version = draw(st.integers(1, 2))
    continues = compacted is not None and compacted.stream_version == version
    first = compacted.next_file_number if compacted is not None and continues else 1
    live = sorted(compacted.files) if compacted is not None and continues else []
    removed = draw(st.lists(st.sampled_from(live), unique=True)) if live else []
    files = [file.model_copy(update={"file_number": first + place}) for place, file in enumerate(added.files_added)]
    left = [number for number in live if number not in removed] + [file.file_number for file in files]
    with_dead_rows = draw(st.lists(st.sampled_from(left), unique=True)) if left else []
    vectors = [draw(deletion_vectors).model_copy(update={"file_number": number}) for number in with_dead_rows]
    change = {
        "commit_id": f"commit {actions}",
        "index_version": actions + 1,
        "compacted_stream_version": version,
        "files_added": tuple(files),
        "files_removed": tuple(removed),
        "deletion_vectors": tuple(vectors),
    }
    return added.model_copy(update=change)


@st.composite
def histories(draw: st.DrawFn) -> list[StreamAction]:
    """Actions that can follow one another, with everything in them that they may hold."""
    actions: list[StreamAction] = []
    snapshot = StreamSnapshot()

    def follow(action: StreamAction) -> None:
        nonlocal snapshot
        snapshot = apply(snapshot, action)
        actions.append(action)

    for step in draw(
        st.lists(
            st.sampled_from(["version", "release", "delta", "retract", "take", "retire", "round", "rehash", "plan"]),
            max_size=8,
        )
    ):
        if step == "version":
            state = draw(st.sampled_from(LifecycleState))
            follow(StreamVersionCreated(stream_version=len(snapshot.sources) + 1, state=state))
        elif step == "release" and snapshot.sources:
            follow(StreamVersionReleased(stream_version=draw(st.sampled_from(sorted(snapshot.sources)))))
        elif step == "delta" and snapshot.sources:
            number = draw(st.sampled_from(sorted(snapshot.sources)))
            last = snapshot.sources[number].last_position
            position = draw(numbers) - 2**63 if last is None else last + draw(st.integers(1, 9))
            follow(draw(deltas).model_copy(update={"stream_version": number, "position": position}))
        elif step in {"retract", "retire"} and any(source.deltas for source in snapshot.sources.values()):
            follow(draw(ends_of(snapshot, retires=step == "retire")))
        elif step == "take" and snapshot.sources:
            number = draw(st.sampled_from(sorted(snapshot.sources)))
            position, table_id = draw(numbers), draw(names)
            follow(DeltasTaken(stream_version=number, position=position, compacted_table_id=table_id))
        elif step == "plan":
            follow(draw(plans_after(snapshot.in_flight)))
        elif step in {"round", "rehash"}:
            follow(draw(commits_after(snapshot.compacted, len(actions), rehashes_it=step == "rehash")))
    return actions


def fold(actions: Sequence[StreamAction]) -> StreamSnapshot:
    return reduce(apply, actions, StreamSnapshot())


def through_parquet(table: pa.Table) -> pa.Table:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return pq.read_table(sink)


A_ROUND = RoundCommitted(
    commit_id="",
    job_run_id="",
    session_id="",
    round_number=1,
    rounds=1,
    source_table_id="",
    source_stream_version=1,
    processed=Watermark(position=1),
    compacted_table_id="",
    compacted_stream_version=1,
    primary_keys=(),
    sort_keys=(),
    digest_encoding=1,
    compacted_schema="",
    hash_bucket_count=1,
    index_version=1,
    bytes_at_rest=1,
    files_added=(),
    files_removed=(),
    index_files=(),
    counts=RowCounts(
        rows_before=1, rows_in=1, rows_out=1, rows_deduplicated=1, rows_deleted=1, rows_carried=1, tombstones=1
    ),
    steps={
        "least": StepFigures(seconds=5e-324, tasks=1, peak_memory_bytes=1),
        "greatest": StepFigures(seconds=sys.float_info.max, tasks=1, peak_memory_bytes=2**63 - 1),
    },
)


@example([A_ROUND])
@given(histories())
def test_a_snapshot_comes_back_from_its_checkpoint_whole(actions: list[StreamAction]) -> None:
    snapshot = fold(actions)
    described = describe(snapshot)
    rows = {
        each.name: each.rows() if isinstance(each, ReplacedRows) else each.rows_after(None) for each in described.series
    }
    state = json.loads(json.dumps(described.state))
    assert restore(state, {name: through_parquet(table) for name, table in rows.items()}) == snapshot


@settings(max_examples=50)
@given(histories(), st.data())
def test_a_log_folds_to_the_same_state_from_any_checkpoint(actions: list[StreamAction], data: st.DataObject) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    writer = DurableLog(store, "log", STREAM_LOG, clock)
    checkpointed = data.draw(st.sets(st.integers(1, max(1, len(actions)))))
    for action in actions:
        after = writer.append(lambda _, action=action: [action]).after  # type: ignore[misc]
        if after.entry_number in checkpointed:
            writer.write_checkpoint(after)
    for number in range(len(actions) + 1):
        assert DurableLog(store, "log", STREAM_LOG, clock).load(as_of=number).state == fold(actions[:number])
    assert DurableLog(store, "log", STREAM_LOG, clock).load().state == fold(actions)


def test_every_type_of_a_snapshot_has_a_column_of_its_own_type() -> None:
    """Bounds of files can be compared by any Parquet reader, without parsing text."""
    bound = SCHEMA.field("file").type.field("columns").type.item_type.field("min_value").type
    assert {field.name: str(field.type) for field in bound} == {
        "truth": "bool",
        "integer": "int64",
        "great_integer": "string",
        "real": "double",
        "text": "string",
    }
    assert SCHEMA.field("file").type.field("rows").type == pa.int64()


def test_a_checkpoint_that_lacks_a_newer_field_takes_its_default() -> None:
    file = DataFile(file_number=1, path="f", content_type=ContentType.PARQUET, rows=3, size_bytes=9)
    codec = RecordCodec(DataFile)
    stored = codec.to_array([file, None])
    kept = [field for field in stored.type if field.name != "columns"]
    old = pa.StructArray.from_arrays([stored.field(field.name) for field in kept], fields=kept, mask=stored.is_null())
    assert codec.to_values(old) == [file, None]


def test_a_checkpoint_with_a_field_we_do_not_know_or_without_one_we_need_is_not_read() -> None:
    state = describe(StreamSnapshot()).state
    with pytest.raises(Outdated, match="mood"):
        restore({**state, "mood": "good"}, {})
    with pytest.raises(Corrupt, match="last_index_version"):
        restore({"sources": []}, {})
    file = DataFile(file_number=1, path="f", content_type=ContentType.PARQUET, rows=3, size_bytes=9)
    stored = RecordCodec(DataFile).to_array([file])
    newer = pa.StructArray.from_arrays([*stored.flatten(), pa.array(["good"])], [*stored.type.names, "mood"])
    with pytest.raises(Corrupt, match="mood"):
        RecordCodec(DataFile).to_values(newer)


def test_a_type_without_a_codec_is_a_bug_that_shows_at_once() -> None:
    with pytest.raises(TypeError, match="no Arrow column for"):
        codec_of(complex)
