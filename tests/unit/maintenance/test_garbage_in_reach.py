"""Which files garbage collection keeps, against a plain reading of every entry; and how few of them it reads itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.catalog import appending
from compactor.catalog.actions import DeltaAdded, RestoredSide, RoundCommitted, StreamRestored, StreamVersionCreated
from compactor.catalog.keys import CompactedFilePath, DeltaFilePath, TableFolder
from compactor.catalog.snapshot import CompactedStream, ReadPoint
from compactor.catalog.stream import PartitionStream
from compactor.catalog.transaction import commit
from compactor.index.keys import DeletionVectorPath, IndexFilePath
from compactor.log.durable_log import CHECKPOINT_ENTRIES
from compactor.log.keys import EntryObject
from compactor.maintenance.garbage import find_garbage
from compactor.maintenance.named_files import paths_of_snapshot
from compactor.maintenance.retirement import Retirement, StreamRetirement, retention_of
from compactor.model.files import DataFile, DeletionVector, IndexFile
from compactor.model.names import ContentType, LifecycleState, Operation
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectEntry
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.rounds import a_rehash, a_round

TABLE = "ACME.ORDERS.V1"
HOUR = 3_600
GRACE_SECONDS, RETENTION_SECONDS = 24 * HOUR, 60 * HOUR
RETENTION = retention_of(RETENTION_SECONDS, GRACE_SECONDS)
_PARQUET = ContentType.PARQUET
STEPS = ("append", "append again in place", "round", "failed round", "rehash", "retract", "retire", "drop", "restore")


class Busy(FaultyStore):
    """`while_listed` is called once, when files are listed."""

    while_listed: Callable[[], None] | None = None

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        listed = list(super().list(prefix, start_after))
        act, self.while_listed = (self.while_listed, None) if "/data/" in prefix else (None, self.while_listed)
        if act is not None:
            act()
        return iter(listed)


class Story:
    """A stream whose writers keep to the protocol, and take hours. Its files are empty."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Busy(MemoryStore(self.clock, StoreLocation("s3://lake/x")))
        self.stream = PartitionStream.open(self.store, TableFolder(TABLE).stream({}), self.clock)
        self._numbers = itertools.count(1)
        created = StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE)
        self.stream.log.append(lambda _: [created])

    def step(self, what: str, hours: float) -> None:
        """`hours`: that it takes from its first file to its entry."""
        match what:
            case "append" | "append again in place":
                self.append(hours, again=what != "append")
            case "round" | "failed round":
                self.round(hours, fails=what != "round")
            case "rehash":
                self.rehash(hours)
            case "retract":
                self._retract()
            case "retire":
                StreamRetirement(self.store, self.stream, self.clock).retire(RETENTION)
            case "drop":
                now_ms, drop_id = self.clock.now_ms(), self.clock.new_id()
                self.stream.log.append(lambda at: appending.drop_stream(at.state, drop_id, now_ms))
            case "restore":
                self.restore(max(1, self.stream.load().entry_number - int(hours)))
            case _:
                raise AssertionError(what)

    def append(self, hours: float = 0.0, *, again: bool = False) -> None:
        """`again`: a file that is there already, perhaps since long, becomes part of a delta."""
        number = next(self._numbers)
        append_id = DeltaFilePath.fresh_append_id(self.clock)
        if number % 7 == 6:  # of an earlier release
            append_id = f"f{number:031x}"
        key = DeltaFilePath(self.stream.folder, append_id, 1, _PARQUET).key
        lying = [each.key for each in self.store.list(f"{self.stream.folder.data}/delta/")]
        if again and lying:
            key = lying[number % len(lying)]
        self.store.put_if_absent(key, b"")
        self.clock.sleep(hours * HOUR)
        state = self.stream.load().state
        versions = [] if state.active is not None else [max(state.sources) + 1]
        created = [StreamVersionCreated(stream_version=each, state=LifecycleState.ACTIVE) for each in versions]
        delta = DeltaAdded(
            stream_version=versions[0] if versions else max(state.sources),
            position=number,
            operation=Operation.UPSERT,
            delta_id=f"delta {number}",
            content_digest="",
            files=(DataFile(file_number=1, path=key, content_type=_PARQUET, rows=1, size_bytes=1),),
            at_ms=self.clock.now_ms(),
        )
        self.stream.log.append(lambda _: [*created, delta])

    def round(self, hours: float = 0.0, *, fails: bool = False) -> None:
        """Another writer appends, and every third time another round is first. It replaces all files but the last, of
        which it marks a row dead."""
        snapshot = self.stream.load().state
        read_point, commit_id = ReadPoint.of(snapshot), self.clock.new_id()
        compacted = snapshot.compacted
        first = 1 if compacted is None else compacted.next_file_number
        removed = [] if compacted is None else sorted(compacted.files)[:-1]
        files = [self._compacted_file(commit_id, first + number) for number in range(2)]
        kept = () if compacted is None else compacted.index_files[-1:]
        index = (*kept, self.index_file(snapshot.last_index_version + 1, commit_id))
        vectors = [] if compacted is None else [self.vector(commit_id, max(compacted.files))]
        self.clock.sleep(hours * HOUR / 2)
        self.append()
        if int(hours) % 3 == 2:
            self.round()
        self.clock.sleep(hours * HOUR / 2)
        action = a_round(self.stream, commit_id, files, removed)
        action = action.model_copy(update={"index_files": index, "deletion_vectors": tuple(vectors)})
        if not fails:
            commit(self.stream, action, read_point)

    def rehash(self, hours: float) -> None:
        snapshot = self.stream.load().state
        if snapshot.compacted is None:
            return
        commit_id, read_point = self.clock.new_id(), ReadPoint.of(snapshot)
        index = self.index_file(snapshot.last_index_version + 1, commit_id)
        self.clock.sleep(hours * HOUR)
        commit(self.stream, a_rehash(self.stream, commit_id).model_copy(update={"index_files": (index,)}), read_point)

    def _retract(self) -> None:
        state = self.stream.load().state
        if state.active is not None and state.active.deltas and state.compacted is None:
            last = state.active.deltas[-1].delta_id
            self.stream.log.append(lambda at: appending.retract_delta(at.state, TABLE, last))

    def restore(self, as_of: int) -> None:
        end = self.stream.load()
        then = self.stream.load(as_of=as_of).state.compacted
        side = None if then is None else _side(then, end.state.compacted)
        restored = StreamRestored(restore_id=self.clock.new_id(), as_of_entry=as_of, compacted=side)
        self.stream.log.append(lambda _: [restored])

    def _compacted_file(self, commit_id: str, number: int) -> DataFile:
        key = CompactedFilePath(self.stream.folder, 1, commit_id, number, _PARQUET, "0a").key
        self.store.put_if_absent(key, b"")
        return DataFile(file_number=number, path=key, content_type=_PARQUET, rows=1, size_bytes=1)

    def index_file(self, version: int, commit_id: str) -> IndexFile:
        key = IndexFilePath(self.stream.folder, version, commit_id, 0, 0, "0a").key
        self.store.put_if_absent(key, b"")
        return IndexFile(hash_bucket=0, run=version, part=0, path=key, rows=1, size_bytes=1)

    def vector(self, commit_id: str, number: int) -> DeletionVector:
        key = DeletionVectorPath(self.stream.folder, commit_id, number, "0a").key
        self.store.put_if_absent(key, b"")
        return DeletionVector(file_number=number, path=key, rows=1, size_bytes=1)

    # -- what is garbage

    def found(self, retention_seconds: float | None) -> set[str]:
        garbage = find_garbage(self.store, TABLE, self.clock, GRACE_SECONDS, retention_seconds)
        return {file.key for each in garbage for file in each.garbage if "/data/" in file.key}

    def retirements(self) -> tuple[Retirement, ...]:
        return StreamRetirement(self.store, self.stream, self.clock).find(RETENTION)

    def expected_retirements(self) -> tuple[Retirement, ...]:
        """Deltas of version 1, the only one that is compacted, whose entry is older than the retention."""
        since_ms = self.clock.now_ms() - RETENTION_SECONDS * 1_000
        state = self.stream.load().state
        old = [each for each in self.stream.log.entries() if each.at_ms <= since_ms]
        positions = [
            action.position
            for each in old
            for action in each.actions
            if isinstance(action, DeltaAdded) and action.stream_version == 1
        ]
        if not positions or state.compacted is None:
            return ()
        limit = min(positions[-1], state.compacted.processed.position)
        count = sum(delta.position <= limit for delta in state.sources[1].deltas)
        return (Retirement(1, limit, count),) if count else ()

    def expected(self, retention_seconds: float | None) -> set[str]:
        """Old files that no entry since the retention mentions, nor the snapshot at its begin has."""
        since_ms = self.clock.now_ms() - GRACE_SECONDS * 1_000
        named_since_ms = self.clock.now_ms() - int(max(GRACE_SECONDS, retention_seconds or 0) * 1_000)
        entries = list(self.stream.log.entries())
        before = max((each.number for each in entries if each.at_ms <= named_since_ms), default=0)
        needed = set(paths_of_snapshot(self.stream.load(as_of=before).state)) if before else set()
        bodies = [self.store.read(EntryObject(self.stream.log.folder, each.number).key) for each in entries[before:]]
        return {
            each.key
            for each in self.store.list(f"{self.stream.folder.data}/")
            if each.modified_at_ms < since_ms
            and each.key not in needed
            and not any(each.key.encode() in (body or b"") for body in bodies)
        }


def _side(then: CompactedStream, now: CompactedStream | None) -> RestoredSide:
    fields = {name: getattr(then, name) for name in RestoredSide.model_fields if name not in ("files",)}
    above = then.next_file_number if now is None else max(then.next_file_number, now.next_file_number)
    return RestoredSide(**{**fields, "files": tuple(then.files.values()), "next_file_number": above})


hours = st.sampled_from([0, 0.5, 2, 5, 11])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), hours, st.sampled_from([0, 0.5, 9, 30])), max_size=14),
    retention_seconds=st.sampled_from([None, RETENTION_SECONDS]),
)
def test_what_is_garbage_and_what_retires_is_what_a_reading_of_every_entry_says(
    steps: Sequence[tuple[str, float, float]], retention_seconds: float | None
) -> None:
    story = Story()
    for what, takes, pause in steps:
        story.step(what, takes)
        assert story.retirements() == story.expected_retirements()
        assert story.found(retention_seconds) == story.expected(retention_seconds)
        story.clock.sleep(pause * HOUR)
    assert story.found(retention_seconds) == story.expected(retention_seconds)
    assert story.retirements() == story.expected_retirements()


def test_deltas_retire_that_many_other_entries_follow() -> None:
    story = Story()
    story.append()
    for _ in range(3):
        story.round()
    for _ in range(12):
        story.rehash(0.1)
    story.clock.sleep(RETENTION_SECONDS)
    assert story.retirements() == story.expected_retirements() != ()


@pytest.mark.parametrize("left_by", ["retract", "drop"])
def test_an_old_file_that_was_part_of_a_delta_for_a_moment_stays(left_by: str) -> None:
    story = Story()
    story.append()
    story.step("retract", 0)
    story.clock.sleep(2 * GRACE_SECONDS)
    assert len(story.found(None)) == 1
    story.append(again=True)
    story.step(left_by, 0)
    assert story.found(None) == story.expected(None) == set()


def test_old_files_that_a_restore_brought_back_for_a_moment_stay() -> None:
    story = Story()
    story.round()
    as_of = story.stream.load().entry_number
    story.round()
    story.clock.sleep(2 * GRACE_SECONDS)
    story.append()
    replaced = story.found(None)
    assert replaced
    story.clock.sleep(2 * HOUR)
    story.round()
    story.restore(as_of)
    story.round()
    assert story.found(None) == story.expected(None)
    assert story.found(None) < replaced


def test_a_file_that_becomes_part_of_a_delta_while_files_are_listed_stays() -> None:
    story = Story()
    story.append()
    story.step("retract", 0)
    story.clock.sleep(2 * GRACE_SECONDS)
    story.store.while_listed = lambda: story.append(again=True)
    assert story.found(None) == set()


def entries_read(story: Story) -> int:
    story.store.requests.clear()
    assert story.found(None) == story.expected(None) != set()
    story.store.requests.clear()
    story.found(None)
    return sum(verb == "read" and "/log/0" in key for verb, key in story.store.requests)


def rounds_until_the_grace_period(story: Story, minutes_of_a_round: int) -> None:
    """Every half an hour one, a delta each minute; the grace period begins an hour and a half before the last of all
    entries, ten minutes after a round began."""
    for number in range(6):
        story.round(minutes_of_a_round / 60)
        for _ in range(30 - minutes_of_a_round):
            story.append()
            story.clock.sleep(60)
        if number == 2:
            since_ms = story.clock.now_ms() + 10 * 60_000
    story.clock.set_ms(since_ms + GRACE_SECONDS * 1_000)


def test_no_entry_of_the_grace_period_is_read_where_no_round_was_under_way_at_its_begin() -> None:
    story = Story()
    rounds_until_the_grace_period(story, 0)
    assert story.found(None) == story.expected(None) != set()
    assert entries_read(story) <= 31 + 10  # those after the newest checkpoint, and those around the begin


def test_entries_are_read_up_to_the_round_that_was_under_way_when_the_grace_period_began() -> None:
    story = Story()
    rounds_until_the_grace_period(story, 20)
    under_way = story.expected(None)
    assert under_way
    assert entries_read(story) <= 31 + 10 + 32  # read together
    assert story.found(None) == under_way


@pytest.mark.parametrize("kind", ["another writer's", "compacted", "index", "vector"])
def test_a_file_of_a_later_round_stays_whatever_its_name_or_its_time_says(kind: str) -> None:
    """Another writer's names count nothing; of the others the store's clock went back half an hour."""
    story = Story()
    for _ in range(3):
        story.round()
        story.clock.sleep(HOUR / 2)
    began_ms = story.clock.now_ms()
    story.round()
    story.clock.sleep(60)
    at, commit_id = _now(story), story.clock.new_id()
    if kind != "another writer's":
        story.clock.set_ms(began_ms - HOUR // 2 * 1_000)
    action, key = _round_with_one_file(story, kind, commit_id)
    story.clock.set_ms(began_ms + 10 * 60_000)
    since_ms = story.clock.now_ms()
    story.clock.sleep(60)
    commit(story.stream, action, at)
    story.clock.sleep(60)
    story.round()
    story.round()
    story.clock.set_ms(since_ms + GRACE_SECONDS * 1_000)
    assert key not in story.found(None)
    assert story.found(None) == story.expected(None) != set()


def _now(story: Story) -> ReadPoint:
    return ReadPoint.of(story.stream.load().state)


def _round_with_one_file(story: Story, kind: str, commit_id: str) -> tuple[RoundCommitted, str]:
    compacted = story.stream.load().state.compacted
    assert compacted is not None
    action, number = a_round(story.stream, commit_id), compacted.next_file_number
    if kind == "index":
        index = story.index_file(compacted.index_version + 1, commit_id)
        return action.model_copy(update={"index_files": (index,)}), index.path
    if kind == "vector":
        vector = story.vector(commit_id, max(compacted.files))
        return action.model_copy(update={"deletion_vectors": (vector,)}), vector.path
    key = CompactedFilePath(story.stream.folder, 1, commit_id, number if kind == "compacted" else 1, _PARQUET, "0a").key
    story.store.put_if_absent(key, b"")
    added = DataFile(file_number=number, path=key, content_type=_PARQUET, rows=1, size_bytes=1)
    return action.model_copy(update={"files_added": (added,)}), key


@pytest.mark.parametrize("rounds", [0, 10])
def test_entries_after_the_first_round_of_the_retention_are_not_read(rounds: int) -> None:
    """300 deltas come after it; with no round, nothing has left the stream since."""
    story = Story()
    story.round(fails=True)
    story.round()
    story.clock.sleep(2 * GRACE_SECONDS)
    for number in range(rounds * 30):
        story.append()
        story.clock.sleep(60)
        if number % 30 == 29:
            story.round()
    for _ in range(300 if not rounds else 0):
        story.append()
    assert entries_read(story) <= 32 + 32 + 20
    assert story.stream.load().entry_number > 300


def test_deltas_of_the_grace_period_are_not_listed() -> None:
    story = Story()
    for _ in range(3):
        story.append()
    story.step("retract", 0)
    story.clock.sleep(2 * GRACE_SECONDS)
    for _ in range(2):
        story.append()
    (found,) = find_garbage(story.store, TABLE, story.clock, GRACE_SECONDS)
    assert (found.kept_files, len(found.garbage)) == (2, 1)
    for _ in range(2):
        story.append()  # the second has an id of an earlier release
    (found,) = find_garbage(story.store, TABLE, story.clock, GRACE_SECONDS)
    assert (found.kept_files, len(found.garbage)) == (6, 1)


@pytest.mark.parametrize(("has_round", "multiple"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("minutes", [-10, 10])
def test_the_snapshot_of_an_earlier_collection_is_taken_from_its_checkpoint(
    minutes: int, has_round: bool, multiple: bool
) -> None:
    """It began so many minutes after the retention's begin, in a log of more than 512 entries, or of a multiple of 32,
    where there was a checkpoint that others have followed since."""
    story = Story()
    story.round(fails=True)
    for _ in range(3):
        story.round()
    story.clock.sleep(RETENTION_SECONDS)
    for number in range(780 if not multiple else 1_500):
        if number == 720:
            while multiple and story.stream.load().entry_number % CHECKPOINT_ENTRIES:
                story.append()
            retired = StreamRetirement(story.store, story.stream, story.clock).retire(RETENTION)
            at_ms = story.clock.now_ms()
        if (number % 50 == 25 and not (multiple and number > 720)) or (has_round and number == 715):
            story.round()
        story.append()
        story.clock.sleep(60)
    assert retired
    story.clock.set_ms(at_ms + RETENTION_SECONDS * 1_000 + minutes * 60_000)
    story.store.requests.clear()
    assert story.found(RETENTION_SECONDS) == story.expected(RETENTION_SECONDS) != set()
    story.store.requests.clear()
    story.found(RETENTION_SECONDS)
    read = sum(verb == "read" and "/log/0" in key for verb, key in story.store.requests)
    assert read <= (200 if has_round else 130)  # without the checkpoint 174, if the retention begins before it


def test_a_delta_that_was_retracted_has_every_entry_read() -> None:
    story = Story()
    story.append()
    story.round(fails=True)
    story.clock.sleep(2 * GRACE_SECONDS)
    for _ in range(100):
        story.append()
    story.step("retract", 0)
    assert entries_read(story) >= 100
