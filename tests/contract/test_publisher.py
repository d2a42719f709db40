"""The guarantees of every publisher."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.catalog.keys import is_open_file
from compactor.catalog.partition_split import Partitioning
from compactor.catalog.properties import GRACE_SECONDS
from compactor.catalog.stream import PartitionStream
from compactor.maintenance.garbage import delete_garbage, find_garbage
from compactor.model.clock import Clock
from compactor.model.errors import Unavailable
from compactor.model.names import OpenFormat
from compactor.publishing.delta import DeltaPublisher
from compactor.publishing.iceberg import IcebergPublisher
from compactor.publishing.protocol import NothingToPublish, Published, PublishedState, TablePublisher
from compactor.storage.keys import encode_partition
from compactor.storage.object_store import ObjectStore
from tests.builders import TABLE_ID
from tests.crashes import HurriedClock
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.open_rounds import ROWS, SCHEMA, OpenLake
from tests.rounds import compact_by_hand

MakePublisher = Callable[[ObjectStore], TablePublisher]


@pytest.fixture(params=list(OpenFormat))
def make(request: pytest.FixtureRequest) -> MakePublisher:
    return maker(request.param)


def maker(format_: OpenFormat, clock: Clock | None = None) -> MakePublisher:
    own_clock = clock or HurriedClock()
    match format_:
        case OpenFormat.DELTA:
            return lambda store: DeltaPublisher(store, TABLE_ID, ("region",), own_clock)
        case OpenFormat.ICEBERG:
            return lambda store: IcebergPublisher(store, TABLE_ID, Partitioning(("region",)), own_clock, GRACE_SECONDS)


def first_version(make: MakePublisher, lake: OpenLake) -> int:
    """Delta Lake counts from 0, Iceberg in a folder from 1."""
    return 0 if make(lake.store).format is OpenFormat.DELTA else 1


@pytest.fixture
def lake(tmp_path: Path) -> OpenLake:
    return OpenLake(tmp_path)


def check(state: PublishedState, streams: Sequence[PartitionStream]) -> None:
    """The published state must be the fold of each log at its published entry."""
    expected: dict[str, tuple[dict[str, str], int, int]] = {}
    for stream in streams:
        entry = state.entries.get(encode_partition(stream.partition), 0)
        compacted = stream.load(as_of=entry).state.compacted if entry else None
        if compacted is not None:
            dead = {vector.file_number: vector.rows for vector in compacted.deletion_vectors}
            expected |= {
                file.path: (dict(stream.partition), file.rows, dead.get(number, 0))
                for number, file in compacted.files.items()
            }
    assert {path: (file.partition, file.rows, file.dead_rows) for path, file in state.files.items()} == expected


def test_a_table_without_rounds_has_nothing_to_publish(make: MakePublisher, lake: OpenLake) -> None:
    store = FaultyStore(lake.store)
    assert make(store).publish([lake.stream("EU")]) == NothingToPublish(make(store).format, None)
    assert store.points == []
    assert make(store).state() == PublishedState()


def test_a_round_is_published_once(make: MakePublisher, lake: OpenLake) -> None:
    entry = lake.commit("EU", added=3)
    publisher = make(lake.store)
    outcome = publisher.publish([lake.stream("EU"), lake.stream("US")])
    assert isinstance(outcome, Published)
    assert (outcome.version, outcome.entries) == (first_version(make, lake), {"region=EU": entry})
    assert (outcome.files_added, outcome.files_removed, outcome.files_marked, outcome.rows) == (3, 0, 0, 300)
    assert publisher.state().entries == {"region=EU": entry}
    check(make(lake.store).state(), [lake.stream("EU")])
    store = FaultyStore(lake.store)
    for again in (publisher, make(store)):
        assert again.publish([lake.stream("EU")]) == NothingToPublish(again.format, first_version(make, lake))
    assert store.points == [], "nothing is written twice"


def test_all_streams_that_have_changed_are_one_commit(make: MakePublisher, lake: OpenLake) -> None:
    names = ["EU", "a/b ü", "100%", "x,y=z"]
    for name in names:
        lake.commit(name, added=2)
    outcome = make(lake.store).publish([lake.stream(name) for name in names])
    assert isinstance(outcome, Published)
    assert (outcome.version, outcome.files_added, len(outcome.entries)) == (first_version(make, lake), 8, 4)
    check(make(lake.store).state(), [lake.stream(name) for name in names])


def test_removed_and_marked_files_follow_the_log(make: MakePublisher, lake: OpenLake) -> None:
    lake.commit("EU", added=3)
    publisher = make(lake.store)
    publisher.publish([lake.stream("EU")])
    lake.commit("EU", added=1, removed=[1], dead={2: [0, 7]})
    lake.commit("EU", dead={2: [0, 7, 99], 3: [5]})
    outcome = publisher.publish([lake.stream("EU")])
    assert isinstance(outcome, Published)
    assert (outcome.files_added, outcome.files_removed, outcome.files_marked, outcome.rows) == (1, 1, 2, -4)
    state = make(lake.store).state()
    check(state, [lake.stream("EU")])
    assert sorted(file.dead_rows for file in state.files.values()) == [0, 1, 3]


def test_deltas_alone_are_nothing_to_publish(make: MakePublisher, lake: OpenLake) -> None:
    from compactor.lake import DeltaCatalog

    table = DeltaCatalog(lake.store, HurriedClock()).create_table(TABLE_ID, ["region"])
    lake.commit("EU", added=1)
    publisher = make(lake.store)
    publisher.publish([lake.stream("EU")])
    table.append({"region": "EU"}, pa.table({"id": [1]}))
    assert isinstance(publisher.publish([lake.stream("EU")]), NothingToPublish)


def test_files_that_were_written_before_are_refused_with_what_to_do(make: MakePublisher, lake: OpenLake) -> None:
    compact_by_hand(lake.stream("old"), [pa.table({"id": [1, 2]})])
    lake.commit("EU", added=1)
    publisher = make(lake.store)
    outcome = publisher.publish([lake.stream("old"), lake.stream("EU")])
    assert isinstance(outcome, Published)
    assert list(outcome.entries) == ["region=EU"]
    (refused,) = outcome.refused
    assert refused.partition == {"region": "old"}
    assert "written before the table was published" in refused.reasons[0]
    assert "compact the partition again" in refused.reasons[0]
    check(publisher.state(), [lake.stream("EU")])


def test_a_partition_whose_columns_cannot_be_reconciled_is_refused_and_the_others_are_published(
    make: MakePublisher, lake: OpenLake
) -> None:
    lake.commit("EU", added=1)
    lake.commit("US", added=1, schema=pa.schema({"id": pa.string()}))
    publisher = make(lake.store)
    outcome = publisher.publish([lake.stream("EU"), lake.stream("US")])
    assert isinstance(outcome, Published)
    (refused,) = outcome.refused
    assert refused.partition == {"region": "US"}
    assert "'id'" in refused.reasons[0]
    check(publisher.state(), [lake.stream("EU")])


def test_a_publisher_that_lost_the_race_says_only_what_is_left(make: MakePublisher, lake: OpenLake) -> None:
    lake.commit("EU", added=2)
    lake.commit("US", added=2)
    slow, quick = make(lake.store), make(lake.store)
    slow.publish([lake.stream("EU")])
    lake.commit("EU", added=1, removed=[1])
    lake.commit("US", added=1)
    assert isinstance(quick.publish([lake.stream("EU")]), Published)
    outcome = slow.publish([lake.stream("EU"), lake.stream("US")])
    assert isinstance(outcome, Published)
    assert list(outcome.entries) == ["region=US"]
    check(quick.state(), [lake.stream("EU"), lake.stream("US")])
    assert slow.state() == quick.state()


def test_a_stream_never_goes_back(make: MakePublisher, lake: OpenLake) -> None:
    lake.commit("EU", added=2)
    late = lake.stream("EU")
    late.load()
    newest = lake.commit("EU", removed=[1])
    publisher = make(lake.store)
    publisher.publish([lake.stream("EU")])

    class Behind(PartitionStream):
        """Sees the log as it was."""

        def load(self, as_of: int | None = None, ahead: int = 1):  # type: ignore[no-untyped-def]
            return super().load(newest - 1 if as_of is None else as_of, ahead)

    behind = Behind(late.location, late.folder, late.log, late.others, late.in_table)
    assert isinstance(publisher.publish([behind]), NothingToPublish)
    assert publisher.state().entries == {"region=EU": newest}


@pytest.mark.parametrize(("seed", "turns"), [(0, 25), (1, 25)])
def test_random_rounds_of_three_publishers_and_their_crashes_are_exact(
    make: MakePublisher, lake: OpenLake, seed: int, turns: int
) -> None:
    """Each publish may be cut off before or after any of its writes, or lose an answer."""
    chance = random.Random(seed)
    names = ["EU", "US", "ü /"]
    publishers = [make(lake.store) for _ in range(3)]
    positions = dict.fromkeys(names, 0)
    for _ in range(turns):
        for name in chance.sample(names, chance.randint(1, 3)):
            lake.random_round(name, chance)
        requested = [lake.stream(name) for name in chance.sample(names, chance.randint(1, 3))]
        if chance.random() < 0.5:
            store = FaultyStore(lake.store)
            if chance.random() < 0.7:
                store.stop_at(chance.randrange(8))
            else:
                store.fail("put_if_absent", when=chance.choice(["before", "after"]), times=chance.choice([1, 2, None]))
            with suppress(Stopped, Unavailable):
                make(store).publish([lake.stream(name, store) for name in (s.partition["region"] for s in requested)])
        else:
            chance.choice(publishers).publish(requested)
        state = make(lake.store).state()
        check(state, [lake.stream(name) for name in names])
        for name in names:
            position = state.entries.get(encode_partition({"region": name}), 0)
            assert position >= positions[name], "no stream goes back"
            positions[name] = position
    chance.choice(publishers).publish([lake.stream(name) for name in names])
    for name in names:
        # A round without any change of the files leaves the position where it was.
        assert isinstance(make(lake.store).publish([lake.stream(name)]), NothingToPublish)
    check(make(lake.store).state(), [lake.stream(name) for name in names])


def test_a_publish_that_is_cut_off_at_any_write_is_finished_by_the_next(make: MakePublisher, tmp_path: Path) -> None:
    def built(folder: Path) -> OpenLake:
        lake = OpenLake(folder)
        lake.commit("EU", added=2)
        for _ in range(9):  # the tenth version comes with a checkpoint
            make(lake.store).publish([lake.stream("EU")])
            lake.commit("EU", added=1)
        make(lake.store).publish([lake.stream("EU")])
        lake.commit("EU", added=1, removed=[1], dead={2: [3], 3: [4, 5]})
        return lake

    sound = built(tmp_path / "sound")
    store = FaultyStore(sound.store)
    make(store).publish([sound.stream("EU")])
    points = len(store.points)
    assert points >= 8, "two vectors, the commit and what follows it, each before and after"
    for point in range(points):
        lake = built(tmp_path / str(point))
        store = FaultyStore(lake.store)
        store.stop_at(point)
        with pytest.raises(Stopped):
            make(store).publish([lake.stream("EU")])
        check(make(lake.store).state(), [lake.stream("EU")])
        make(lake.store).publish([lake.stream("EU")])
        state = make(lake.store).state()
        assert state.entries == {"region=EU": lake.stream("EU").load().entry_number}
        check(state, [lake.stream("EU")])


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_that_was_lost_is_settled_by_reading_the_commit_back(
    make: MakePublisher, lake: OpenLake, when: str
) -> None:
    lake.commit("EU", added=2)
    make(lake.store).publish([lake.stream("EU")])
    lake.commit("EU", added=2)
    store = FaultyStore(lake.store)
    store.fail("put_if_absent", when="before" if when == "before" else "after")
    outcome = make(store).publish([lake.stream("EU")])
    assert isinstance(outcome, Published)
    second = first_version(make, lake) + 1
    assert outcome.version == second
    assert make(lake.store).state().version == second, "published once"


def test_a_publish_in_the_steady_state_lists_nothing_and_opens_no_data_file(
    make: MakePublisher, lake: OpenLake
) -> None:
    store = FaultyStore(lake.store)
    publisher = make(store)
    lake.commit("EU", added=4)
    stream = lake.stream("EU", store)
    publisher.publish([stream])
    lake.commit("EU", dead={1: [1, 2]})
    store.requests.clear()
    assert isinstance(publisher.publish([stream]), Published)
    verbs = [verb for verb, _ in store.requests]
    assert "list" not in verbs
    limit = {OpenFormat.DELTA: 5, OpenFormat.ICEBERG: 9}[publisher.format]
    assert len(verbs) <= limit, store.requests
    assert not any(is_open_file(key) for _, key in store.requests)


@pytest.mark.parametrize("format_", list(OpenFormat))
def test_a_publisher_that_was_idle_for_longer_than_the_grace_period_publishes_after_the_newest_version(
    tmp_path: Path, format_: OpenFormat
) -> None:
    clock = ManualClock()
    lake = OpenLake(tmp_path, clock=clock)
    idle, busy = (maker(format_, clock)(lake.store) for _ in range(2))
    lake.commit("EU", added=2)
    idle.publish([lake.stream("EU")])
    for _ in range(25):
        clock.sleep(60)
        lake.commit("EU", added=1, dead={1: [clock.now_ms() // 60_000 % ROWS]})
        newest = busy.publish([lake.stream("EU")])
    clock.sleep(2 * GRACE_SECONDS)
    gone = {file.key for each in find_garbage(lake.store, TABLE_ID, clock) for file in each.garbage}
    for garbage in find_garbage(lake.store, TABLE_ID, clock):
        delete_garbage(lake.store, garbage)
    assert any(f"{3:020d}.json" in key or "v3.metadata.json" in key for key in gone), "the number is free again"
    lake.commit("EU", added=1)
    outcome = idle.publish([lake.stream("EU")])
    assert newest.version is not None
    assert outcome.version == newest.version + 1
    for each in (idle, busy, maker(format_, clock)(lake.store)):
        check(each.state(), [lake.stream("EU")])


def test_new_columns_and_wider_types_reach_the_published_schema(make: MakePublisher, lake: OpenLake) -> None:
    lake.commit("EU", added=1)
    publisher = make(lake.store)
    publisher.publish([lake.stream("EU")])
    lake.commit("EU", added=1, schema=SCHEMA.append(pa.field("more", pa.float64())))
    outcome = publisher.publish([lake.stream("EU")])
    assert isinstance(outcome, Published)
    assert outcome.refused == ()
    check(make(lake.store).state(), [lake.stream("EU")])
