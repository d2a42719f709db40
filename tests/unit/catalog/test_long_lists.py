"""Long lists of an entry lie beside it: readers see no difference, and nothing that fails in between is half a fact."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from compactor.catalog.actions import DeltaAdded, RoundCommitted, StreamAction, StreamVersionCreated
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import STREAM_LOG, StreamLog
from compactor.log.checkpoints import LogState
from compactor.log.durable_log import DurableLog
from compactor.log.entries import ENTRY_BYTES_MAX
from compactor.log.long_lists import ListsBeside, LongLists
from compactor.model.errors import Corrupt, Outdated, Unavailable
from compactor.model.files import ColumnStats, DataFile, IndexFile
from compactor.model.names import ContentType, LifecycleState, Operation
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

FORMAT = (files("compactor.catalog") / "FORMAT.md").read_text()
EXAMPLES = [
    STREAM_LOG.action_type.validate_json(each) for each in re.findall(r"```json stream\n(.*?)```", FORMAT, re.DOTALL)
]
LISTS = STREAM_LOG.long_lists or LongLists(dict)
LOG = "stream/log"
GOLDEN = Path(__file__).parents[2] / "golden" / "long_lists"

scalars = st.one_of(
    st.integers(-(2**80), 2**80), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=9), st.booleans()
)
bounds = st.builds(ColumnStats, null_count=st.none() | st.integers(0, 9), min_value=st.none() | scalars)
data_files = st.builds(
    DataFile,
    file_number=st.integers(1, 2**31),
    path=st.text(max_size=20),
    content_type=st.sampled_from(ContentType),
    rows=st.integers(0, 2**40),
    size_bytes=st.integers(0, 2**40),
    columns=st.dictionaries(st.text(max_size=5), bounds, max_size=3),
)


@given(st.data())
def test_any_actions_are_read_back_as_they_were(data: st.DataObject) -> None:
    actions = []
    for action in data.draw(st.lists(st.sampled_from(EXAMPLES), min_size=1, max_size=4)):
        found = tuple(data.draw(st.lists(data_files, max_size=5)))
        changes: dict[str, object] = {
            name: found for name in ("files", "files_added") if name in type(action).model_fields
        }
        actions.append(action.model_copy(update=changes))
    short, lists = LISTS.left_out_of(actions)
    assert all(lists.values())
    body = LISTS.render(lists)
    read = [STREAM_LOG.action_type.validate_json(to_json(each)) for each in short]
    assert list(LISTS.filled_in(read, ListsBeside.of(body, lists), body, "lists")) == actions


def created() -> StreamVersionCreated:
    return StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE)


def delta(position: int, count: int) -> DeltaAdded:
    found = [
        DataFile(
            file_number=number, path=f"{position}/{number}", content_type=ContentType.PARQUET, rows=1, size_bytes=9
        )
        for number in range(1, count + 1)
    ]
    return DeltaAdded(
        stream_version=1,
        position=position,
        operation=Operation.UPSERT,
        delta_id=f"delta {position}",
        content_digest="0",
        files=tuple(found),
    )


def log_of(store: MemoryStore | FaultyStore, clock: ManualClock) -> StreamLog:
    return DurableLog(store, LOG, STREAM_LOG, clock)


def beside(store: MemoryStore | FaultyStore) -> list[str]:
    return [each.key for each in store.list(f"{LOG}/lists/")]


def unneeded(store: MemoryStore | FaultyStore, clock: ManualClock) -> list[str]:
    return [each.key for each in log_of(store, clock).unneeded_objects()]


def test_only_an_entry_above_a_million_bytes_leaves_its_lists_out() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    log = log_of(store, clock)
    log.append(lambda _: [created(), delta(10, 1_000)])
    assert beside(store) == []
    entry = log.append(lambda _: [delta(20, 8_000)]).entry
    assert entry is not None
    (key,) = beside(store)
    assert key == f"{LOG}/lists/{2:020d}-{entry.entry_id}.parquet"
    body = store.read(f"{LOG}/{2:020d}.json") or b""
    assert len(body) < 1_000
    assert json.loads(body)["format"] == 2
    assert log_of(store, clock).load().state == log.newest.state
    assert log_of(store, clock).entry(2) == entry


@pytest.fixture
def all_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list of every entry lies beside it."""
    monkeypatch.setattr("compactor.log.entries.ENTRY_BYTES_MAX", 0)


@pytest.mark.usefixtures("all_beside")
def test_a_writer_that_dies_at_any_write_leaves_the_log_whole_and_its_lists_as_garbage() -> None:
    def run(store: FaultyStore, clock: ManualClock) -> None:
        log_of(store, clock).append(lambda _: [created(), delta(10, 3)])

    clock = ManualClock()
    unhindered = FaultyStore(MemoryStore(clock))
    run(unhindered, clock)
    verbs = [point.rpartition("/")[0] for point in unhindered.points]
    assert verbs == [
        f"{when} put_if_absent {folder}" for folder in (f"{LOG}/lists", LOG) for when in ("before", "after")
    ]
    for point in range(len(unhindered.points)):
        clock = ManualClock()
        store = FaultyStore(MemoryStore(clock))
        store.stop_at(point)
        with pytest.raises(Stopped):
            run(store, clock)
        store.heal()
        left = beside(store)
        is_durable = bool(log_of(store, clock).load().entry_number)
        assert unneeded(store, clock) == ([] if is_durable else left)
        if not is_durable:
            run(store, clock)
        assert unneeded(store, clock) == ([] if is_durable else left)
        assert [len(each.deltas) for each in log_of(store, clock).load().state.sources.values()] == [1]


@pytest.mark.usefixtures("all_beside")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", [f"{LOG}/lists/", f"{LOG}/0"])
def test_a_lost_answer_is_settled_and_an_outage_is_told(when: str, part: str) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    store.fail("put_if_absent", part, when=when)  # type: ignore[arg-type]
    log = log_of(store, clock)
    log.append(lambda _: [created(), delta(10, 3)])
    assert (len(beside(store)), unneeded(store, clock)) == (1, [])
    store.fail("put_if_absent", part, when=when, times=None)  # type: ignore[arg-type]
    store.fail("read", part, times=None)
    with pytest.raises(Unavailable):
        log.append(lambda _: [delta(20, 3)], log.newest)
    store.heal()
    is_durable = (part, when) == (f"{LOG}/0", "after")
    assert log_of(store, clock).load().entry_number == 1 + is_durable


@pytest.mark.usefixtures("all_beside")
def test_of_two_writers_of_a_number_the_later_one_writes_its_lists_again() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    other = log_of(store, clock)
    other.append(lambda _: [created()])

    def race(before: LogState[StreamSnapshot], _: LogState[StreamSnapshot]) -> None:
        if before.entry_number == 1:
            other.append(lambda _: [delta(10, 2)])

    slow: StreamLog = DurableLog(store, LOG, STREAM_LOG, clock, race)
    entry = slow.append(lambda state: [delta(20, 2)]).entry
    assert entry is not None
    assert entry.number == 3
    assert len(beside(store)) == 3
    (lost,) = unneeded(store, clock)
    assert lost == f"{LOG}/lists/{2:020d}-{entry.entry_id}.parquet"
    assert log_of(store, clock).load().state == slow.newest.state


@pytest.mark.usefixtures("all_beside")
def test_lists_that_are_missing_or_damaged_are_refused_by_name_and_audited() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    log_of(store, clock).append(lambda _: [created(), delta(10, 3)])
    (key,) = beside(store)
    body = store.read(key) or b""
    assert list(log_of(store, clock).damaged_lists()) == []
    store.overwrite(key, body[:-1] + b"x")
    (problem,) = log_of(store, clock).damaged_lists()
    assert problem.startswith(f"{key} differs from what its entry says")
    store.delete(key)
    with pytest.raises(Corrupt, match="is missing: it has lists of the entry of this number"):
        log_of(store, clock).load()


def test_an_object_that_its_entry_does_not_describe_is_corrupt() -> None:
    actions = [delta(10, 3)]
    short, lists = LISTS.left_out_of(actions)
    body = LISTS.render(lists)
    good = ListsBeside.of(body, lists)
    for wrong in ("0/nothing", "0/action/files", "7", "0/files_removed"):
        rows = (good.rows[0].model_copy(update={"list": wrong}),)
        with pytest.raises(Corrupt, match="cannot be understood"):
            list(LISTS.filled_in(short, good.model_copy(update={"rows": rows}), body, "lists"))
    with pytest.raises(Corrupt, match="it has 3 rows, and its entry says 6"):
        list(LISTS.filled_in(short, good.model_copy(update={"rows": good.rows * 2}), body, "lists"))


@pytest.mark.usefixtures("all_beside")
def test_a_log_whose_kind_has_no_long_lists_refuses_such_an_entry_as_a_newer_releases() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    log_of(store, clock).append(lambda _: [created(), delta(10, 3)])
    with pytest.raises(Outdated, match="it has format 2"):
        DurableLog(store, LOG, replace(STREAM_LOG, long_lists=None), clock).load()


def test_an_entry_and_its_lists_are_read_as_they_were_written_once() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    for path in GOLDEN.iterdir():
        folder = f"{LOG}/lists" if path.suffix == ".parquet" else LOG
        store.put_if_absent(f"{folder}/{path.name}", path.read_bytes())
    first = log_of(store, clock).entry(1)
    assert first.actions == (created(), delta(10, 3))


def index_files(buckets: int) -> Sequence[IndexFile]:
    return [
        IndexFile(hash_bucket=each, run=7, part=0, path=f"index/7/{each}-0.arrow", rows=36_000_000, size_bytes=10**9)
        for each in range(buckets)
    ]


@pytest.mark.long
def test_an_entry_of_ninety_thousand_files_and_ten_thousand_buckets_has_less_than_a_megabyte() -> None:
    (example,) = (each for each in EXAMPLES if isinstance(each, RoundCommitted))
    (file,) = example.files_added
    added = tuple(file.model_copy(update={"file_number": each}) for each in range(1, 90_001))
    action: StreamAction = example.model_copy(
        update={"files_added": added, "files_removed": tuple(range(90_000)), "index_files": tuple(index_files(10_000))}
    )
    short, lists = LISTS.left_out_of([action])
    assert len(to_json(short)) < ENTRY_BYTES_MAX / 100
    body = LISTS.render(lists)
    assert list(LISTS.filled_in(short, ListsBeside.of(body, lists), body, "lists")) == [action]
