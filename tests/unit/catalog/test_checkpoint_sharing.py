"""Checkpoints of a stream share what has not changed, and earlier ones go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from compactor.catalog.actions import DeltaAdded, DeltasRetired, StreamAction, StreamVersionCreated
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import STREAM_LOG, StreamLog
from compactor.log.checkpoints import CHECKPOINT_ENTRIES, KEPT_BYTES_RATIO, CheckpointHead
from compactor.log.durable_log import DurableLog
from compactor.model.errors import Denied, Unavailable
from compactor.model.files import DataFile
from compactor.model.names import ContentType, LifecycleState, Operation
from compactor.storage.object_store import ObjectEntry
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

CREATED = StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE)


def delta(position: int) -> DeltaAdded:
    file = DataFile(
        file_number=1, path=f"d/{position}.parquet", content_type=ContentType.PARQUET, rows=1, size_bytes=position + 1
    )
    return DeltaAdded(
        stream_version=1,
        position=position,
        operation=Operation.UPSERT,
        delta_id=f"delta {position}",
        content_digest=f"digest {position}",
        files=(file,),
    )


def retired(position: int) -> DeltasRetired:
    return DeltasRetired(stream_version=1, position=position, at_ms=1, ids_refused_until_ms=2)


class Stream:
    """A stream's log, written by several processes in turn."""

    def __init__(self, processes: int = 1) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.requests = FaultyStore(self.store)
        self._writers = itertools.cycle([self.log() for _ in range(processes)])
        self._positions = itertools.count(1)
        self.write(CREATED)

    def log(self) -> StreamLog:
        return DurableLog(self.requests, "log", STREAM_LOG, self.clock)

    def write(self, *actions: StreamAction) -> StreamSnapshot:
        return next(self._writers).append(lambda _: actions).after.state

    def add(self, entries: int) -> None:
        for _ in range(entries):
            self.write(delta(next(self._positions)))

    def checkpoint_objects(self) -> list[ObjectEntry]:
        return list(self.store.list("log/checkpoints/"))

    def newest(self) -> CheckpointHead:
        key = max(entry.key for entry in self.checkpoint_objects() if entry.key.endswith(".json"))
        body = self.store.read(key)
        assert body is not None
        return CheckpointHead.parse_durable(body, key)

    def replayed(self) -> StreamSnapshot:
        """The fold of the entries alone."""
        bare = MemoryStore(self.clock)
        for entry in self.store.list("log/"):
            if entry.key.count("/") == 1 and entry.key.endswith(".json"):
                bare.overwrite(entry.key, self.store.read(entry.key) or b"")
        return DurableLog(bare, "log", STREAM_LOG, self.clock).load().state


def test_where_deltas_retire_a_reader_as_of_an_entry_replays_few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces that earlier checkpoints need have been merged since."""
    monkeypatch.setattr("compactor.log.checkpoints.MERGED_ENTRIES", 64)
    stream = Stream()
    for step in range(1, 10):
        stream.add(100)
        stream.write(retired(max(100 * step - 200, 1)))
    stream.add(30)
    end = stream.log().load().entry_number
    stream.requests.requests.clear()
    stream.log().load(as_of=end - 200)
    assert entries_read(stream) <= 2 * 200
    for back in (500, 900):
        stream.requests.requests.clear()
        stream.log().load(as_of=end - back)
        assert entries_read(stream) <= 64 + 32


def test_the_bytes_of_all_kept_checkpoints_are_bounded_by_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.log.checkpoints.KEPT_BYTES_MIN", 0)
    stream = Stream()
    for step in range(60):
        stream.add(CHECKPOINT_ENTRIES)
        if step in (20, 35, 50):
            stream.write(retired(step * CHECKPOINT_ENTRIES - 5))
        newest = stream.newest()
        one = len(newest.render()) + sum(piece.size_bytes for piece in newest.pieces)
        assert sum(entry.size_bytes for entry in stream.checkpoint_objects()) <= KEPT_BYTES_RATIO * one
    assert stream.log().load().state == stream.replayed()


@pytest.mark.parametrize("processes", [1, 3])
def test_a_delta_is_written_into_checkpoints_three_times_at_most(processes: int) -> None:
    stream = Stream(processes)
    written = rows_written(stream, 600)
    assert written <= 2 * 600
    assert len(stream.newest().pieces) <= 15 + 15
    assert stream.log().load().state == stream.replayed()


def rows_written(stream: Stream, entries: int) -> int:
    """Rows in the pieces that were ever written."""
    rows: dict[str, int] = {}
    for _ in range(entries // CHECKPOINT_ENTRIES):
        stream.add(CHECKPOINT_ENTRIES)
        rows |= {piece.name: piece.rows for piece in stream.newest().pieces}
    return sum(rows.values())


def test_retired_deltas_leave_checkpoints_with_their_pieces() -> None:
    stream = Stream()
    stream.add(20 * CHECKPOINT_ENTRIES)
    before = {piece.name for piece in stream.newest().pieces}
    stream.write(retired(19 * CHECKPOINT_ENTRIES))
    stream.add(CHECKPOINT_ENTRIES)
    after = stream.newest()
    assert {piece.series for piece in after.pieces} == {"deltas/1", "refused_ids/1/2"}
    assert sum(piece.rows for piece in after.pieces if piece.series == "deltas/1") < 4 * CHECKPOINT_ENTRIES
    assert not before <= {piece.name for piece in after.pieces}
    loaded = stream.log().load().state
    assert loaded == stream.replayed()
    assert loaded.sources[1].deltas[0].position == 19 * CHECKPOINT_ENTRIES + 1


def test_a_reader_as_of_an_entry_replays_about_as_many_as_were_written_since() -> None:
    stream = Stream()
    stream.add(40 * CHECKPOINT_ENTRIES)
    end = stream.log().load().entry_number
    for back in (40, 200, 500, 1_000):
        stream.requests.requests.clear()
        assert stream.log().load(as_of=end - back).entry_number == end - back
        assert entries_read(stream) <= 3 * back + CHECKPOINT_ENTRIES


def entries_read(stream: Stream) -> int:
    keys = [key for verb, key in stream.requests.requests if verb == "read"]
    return sum(key.count("/") == 1 and key.endswith(".json") for key in keys)


def damages(stream: Stream) -> Iterator[tuple[str, str, bytes | None]]:
    newest = stream.newest()
    head = f"log/checkpoints/{newest.entry_number:020d}.json"
    piece = f"log/checkpoints/{newest.pieces[-1].name}"
    for what, key in (("head", head), ("piece", piece)):
        whole = stream.store.read(key) or b""
        yield f"{what} missing", key, None
        yield f"{what} empty", key, b""
        yield f"{what} cut", key, whole[:-9]
        yield f"{what} flipped", key, whole[:40] + bytes([whole[40] ^ 0xFF]) + whole[41:]


def test_a_damaged_checkpoint_is_passed_over_and_the_next_one_shares_nothing_with_it() -> None:
    for number in range(8):
        stream = Stream()
        stream.add(6 * CHECKPOINT_ENTRIES + 3)
        name, key, body = list(damages(stream))[number]
        if body is None:
            stream.store.delete(key)
        else:
            stream.store.overwrite(key, body)
        stream.requests.requests.clear()
        reader = stream.log()
        with capture_logs() as logged:
            assert reader.load().state == stream.replayed(), name
        assert {event["event"] for event in logged} <= {"checkpoint_unreadable"}, name
        assert entries_read(stream) <= 2 * CHECKPOINT_ENTRIES + 5, name
        for position in range(1_000, 1_000 + CHECKPOINT_ENTRIES):
            reader.append(lambda _, position=position: [delta(position)])  # type: ignore[misc]
        stream.requests.requests.clear()
        assert stream.log().load().state == stream.replayed(), name
        assert entries_read(stream) <= CHECKPOINT_ENTRIES, name


def test_a_slow_writer_of_an_earlier_checkpoint_leaves_the_newest_one_named() -> None:
    stream = Stream(processes=2)
    stream.add(2 * CHECKPOINT_ENTRIES)
    slow = stream.log()
    early = slow.load(as_of=CHECKPOINT_ENTRIES + 7)
    before = stream.checkpoint_objects()
    slow.write_checkpoint(early)
    assert stream.checkpoint_objects() == before
    assert stream.log().load().state == stream.replayed()


def test_a_writer_asks_once_whether_it_may_delete_and_warns_nobody_if_it_may_not() -> None:
    stream = Stream()
    stream.requests.fail("delete", times=None, error=Denied)
    with capture_logs() as logged:
        stream.add(20 * CHECKPOINT_ENTRIES)
    assert [(event["event"], event["log_level"]) for event in logged] == [("earlier_checkpoints_left_to_gc", "debug")]


@pytest.mark.parametrize("error", [Denied, Unavailable])
def test_a_writer_that_cannot_delete_goes_on_and_garbage_collection_finds_what_it_left(error: type[Exception]) -> None:
    stream = Stream()
    stream.requests.fail("delete", times=None, error=error)
    stream.add(20 * CHECKPOINT_ENTRIES)
    unneeded = [entry.key for entry in stream.log().unneeded_objects()]
    assert unneeded
    for key in unneeded:
        stream.store.delete(key)
    assert list(stream.log().unneeded_objects()) == []
    stream.requests.requests.clear()
    assert stream.log().load().state == stream.replayed()
    assert entries_read(stream) <= CHECKPOINT_ENTRIES


def test_a_writer_reads_none_of_its_own_small_pieces_when_it_merges_them() -> None:
    stream = Stream()
    stream.add(16 * CHECKPOINT_ENTRIES)
    assert max(piece.rows for piece in stream.newest().pieces) >= 15 * CHECKPOINT_ENTRIES
    assert stream.requests.count("read", ".parquet") == 0


def test_of_two_writers_each_reads_the_pieces_of_the_other_when_it_merges() -> None:
    stream = Stream(processes=2)
    stream.add(16 * CHECKPOINT_ENTRIES)
    assert max(piece.rows for piece in stream.newest().pieces) >= 15 * CHECKPOINT_ENTRIES
    assert stream.log().load().state == stream.replayed()
