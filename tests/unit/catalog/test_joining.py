"""Small appends that become one delta: each is there once, and of a file's versions the later ones stay the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.catalog import table_appends
from compactor.catalog.actions import DeltaAdded, JoinedDelta, StreamAction, StreamVersionCreated
from compactor.catalog.appending import DeltaRequest, add_delta
from compactor.catalog.delta_files import DeltaFiles, digest_rows, write_files
from compactor.catalog.joining import JOINED_BYTES_MAX, Arrival, Overtaken, join, left_to_add
from compactor.catalog.snapshot import StreamSnapshot, apply
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid
from compactor.model.names import LifecycleState, Operation
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from tests.fakes.manual_clock import ManualClock

WRITTEN = DeltaFiles((), "digest", ())


def arrival(name: str, version: str = "v", sequencer: str | None = None, rows: pa.Table | None = None) -> Arrival:
    found = pa.table({"id": [f"{name} {version}"], "v": [version]}) if rows is None else rows
    return Arrival({}, found, Operation.UPSERT, f"{name}@{version}", digest_rows(found), sequencer)


@pytest.fixture
def shelf(tmp_path: Path) -> Callable[[], Table]:
    """One table, as several processes have it."""
    clock, location = ManualClock(), parse_location(str(tmp_path / "lake"))
    DeltaCatalog(open_store(location), clock).create_table("SHOP.STOCK.V1", primary_keys=["id"])
    return lambda: DeltaCatalog(open_store(location), clock).table("SHOP.STOCK.V1")


def deltas(table: Table) -> list[DeltaAdded]:
    return [each for source in table.stream({}).load().state.sources.values() for each in source.deltas]


def appends(table: Table) -> list[str]:
    return [each for delta in deltas(table) for each in delta.append_ids]


def test_appends_that_follow_one_another_are_one_file_and_are_known_again(shelf: Callable[[], Table]) -> None:
    found = [arrival(str(number)) for number in range(5)]
    shelf().append_joined(found)
    shelf().append_joined([*found[3:], arrival("5"), arrival("6"), *found[:3]])
    first, second = deltas(shelf())
    assert (len(first.files), len(first.joined), first.files[0].rows) == (1, 5, 5)
    assert [each.delta_id for each in second.joined] == ["5@v", "6@v"]
    assert shelf().scan(view="merged").to_table().num_rows == 7


def test_other_columns_another_operation_and_large_rows_are_deltas_of_their_own() -> None:
    large = pa.table({"id": ["x" * 1024] * (JOINED_BYTES_MAX // 1024 + 1), "v": ["v"] * (JOINED_BYTES_MAX // 1024 + 1)})
    more = pa.table({"id": ["1"], "w": [1]})
    found = [arrival("1"), arrival("2"), arrival("3", rows=more), arrival("4", rows=large), arrival("5", rows=large)]
    found += [arrival("6"), replace(arrival("7"), operation=Operation.DELETE), arrival("8")]
    ids = [[each.delta_id[0] for each in one.arrivals] for one in join(found)]
    assert ids == [["1", "2"], ["3"], ["4"], ["5"], ["6"], ["7"], ["8"]]


def test_what_another_process_adds_while_the_file_is_written_is_left_out(
    shelf: Callable[[], Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [[arrival("1"), arrival("9")], [arrival("2", "new", "B")], []]

    def write(*arguments: object) -> DeltaFiles:
        written = write_files(*arguments)  # type: ignore[arg-type]
        if others and (found := others.pop(0)):
            shelf().append_joined(found)
        return written

    monkeypatch.setattr(table_appends, "write_files", write)
    late = shelf().append_joined([arrival("1"), arrival("2", "old", "A"), arrival("3"), arrival("4", "v", "C")])
    assert late == ["2@old"]
    assert sorted(appends(shelf())) == ["1@v", "2@new", "3@v", "4@v", "9@v"]


def test_of_an_object_that_has_old_bytes_again_they_are_the_last(shelf: Callable[[], Table]) -> None:
    row = pa.table({"id": ["1"], "v": ["first"]})
    first, second = arrival("o", "A", "1", row), arrival("o", "B", "2", row.set_column(1, "v", [["second"]]))
    third = replace(first, sequencer="3")
    for one in (first, second, third, third, first, second, replace(first, sequencer=None)):
        shelf().append_joined([one])
    assert appends(shelf()) == ["o@A", "o@B", "o@A~3"]
    assert shelf().scan(view="merged").to_table().to_pylist() == [{"id": "1", "v": "first"}]


def test_other_rows_with_an_id_that_was_used_are_refused(shelf: Callable[[], Table]) -> None:
    other = replace(arrival("1"), content_digest="other")
    with pytest.raises(Invalid, match="'1@v' was already used, with other content"):
        shelf().append_joined([arrival("1"), other])
    shelf().append_joined([arrival("1"), arrival("2")])
    with pytest.raises(Invalid, match="'1@v' was already used, with other content"):
        shelf().append_joined([other])


def test_appends_are_taken_back_with_their_delta_and_not_added_again(shelf: Callable[[], Table]) -> None:
    shelf().append_joined([arrival("1"), arrival("2")])
    (delta,) = deltas(shelf())
    with pytest.raises(Invalid, match=f"'1@v' is one of 2 small appends in delta '{delta.delta_id}'"):
        shelf().retract({}, "1@v")
    shelf().retract({}, delta.delta_id)
    with pytest.raises(Invalid, match="'2@v' was taken back"):
        shelf().append_joined([arrival("2")])
    assert deltas(shelf()) == []


VERSIONS = [(name, sequencer) for name in "ab" for sequencer in (None, "1", "2", "3")]
BATCHES = st.lists(st.tuples(st.lists(st.sampled_from(VERSIONS), min_size=1, max_size=4), st.booleans()), max_size=12)


@settings(max_examples=200, deadline=None)
@given(BATCHES)
def test_whatever_is_announced_twice_late_or_to_two_services_each_version_is_once_and_none_after_a_later_one(
    batches: Sequence[tuple[list[tuple[str, str | None]], bool]],
) -> None:
    """Batches come from services; one that `is_stale` has seen the log as it was before the batch before."""
    snapshot = before = _empty()
    for batch, is_stale in batches:
        found = [arrival(name, f"v{sequencer}", sequencer) for name, sequencer in batch]
        seen, before = before if is_stale else snapshot, snapshot
        snapshot = _added(snapshot, found, seen)
        for name, sequencer in batch:  # it is there, or a later one is
            of_name = [each for each in _joined(snapshot) if each.delta_id.startswith(f"{name}@")]
            last = max((each.sequencer or "" for each in of_name), default="")
            assert any(each.delta_id == f"{name}@v{sequencer}" for each in of_name) or (sequencer or "") < last
    ids = [each for source in snapshot.sources.values() for delta in source.deltas for each in delta.ids]
    assert len(ids) == len(set(ids))
    for name in "ab":
        sequencers = [each.sequencer for each in _joined(snapshot) if each.delta_id.startswith(name) and each.sequencer]
        assert sequencers == sorted(set(sequencers))


def _empty() -> StreamSnapshot:
    return apply(StreamSnapshot(), StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE))


def _joined(snapshot: StreamSnapshot) -> list[JoinedDelta]:
    return [each for source in snapshot.sources.values() for delta in source.deltas for each in delta.joined]


def _added(snapshot: StreamSnapshot, found: Sequence[Arrival], seen: StreamSnapshot) -> StreamSnapshot:
    """As `TableAppends.append_joined` does, but for the files."""
    newest: dict[str, Arrival] = {}
    for each in found:  # of one collection the newest of each file, as the service takes them
        name = each.delta_id.partition("@")[0]
        kept = newest.setdefault(name, each)
        newest[name] = max(kept, each, key=lambda one: one.sequencer or "")
    arrivals = [each for each in found if each.sequencer is None or newest[each.delta_id[0]] == each]
    for at in (seen, snapshot):
        left, _ = left_to_add(at, arrivals)
        now = snapshot
        try:
            for number, one in enumerate(join(left)):
                delta_id = one.delta_id or f"joint {len(_joined(snapshot))} {number}"
                request = DeltaRequest(Operation.UPSERT, None, delta_id, None, one.joined)
                actions: Sequence[StreamAction] = add_delta(now, request, WRITTEN, 1)
                for action in actions:
                    now = apply(now, action)
        except Overtaken:
            continue
        return now
    raise AssertionError("it was overtaken by nobody")
