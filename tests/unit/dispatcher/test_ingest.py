"""Files that announce themselves: each is in exactly one delta, and what cannot be taken in is told with its reason."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.actions import DeltasRetired
from compactor.catalog.joining import Arrival
from compactor.catalog.partition_split import Int64s, Partitioning
from compactor.changes.landing import LandedFile
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Denied, Invalid, Unavailable
from compactor.model.names import Operation
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from dispatcher.ingest.announcements import Announced, AnnouncedRows, parse_announcements
from dispatcher.ingest.ingest import Ingest, Ingested, IngestSettings, _append, _newest_of_each
from dispatcher.ingest.listing import (
    FIRST_LOOK_SECONDS,
    LOOK_SECONDS,
    NOTIFIED_SECONDS,
    URIS_BYTES_MAX,
    Listing,
    _documents,
)
from dispatcher.intake.queue import QueueMessage
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_store import MemoryStore

NOTIFICATION = {
    "eventVersion": "2.1",
    "eventSource": "aws:s3",
    "awsRegion": "eu-west-1",
    "eventTime": "2026-11-25T10:00:00.123Z",
    "eventName": "ObjectCreated:Put",
    "s3": {
        "s3SchemaVersion": "1.0",
        "bucket": {"name": "landing", "arn": "arn:aws:s3:::landing"},
        "object": {"key": "orders/day%3D1/a+b%2Bc.parquet", "size": 1024, "eTag": "0af", "sequencer": "0055aed6"},
    },
}
EVENT = {
    "version": "0",
    "source": "aws.s3",
    "detail-type": "Object Created",
    "detail": {
        "bucket": {"name": "landing"},
        "object": {"key": "orders/day=1/a b+c.parquet", "size": 1024, "etag": "0af", "sequencer": "0055AED6"},
    },
}
FILE = Announced("s3://landing/orders/day=1/a b+c.parquet", "0af", 1024, "0055AED6")


@pytest.mark.parametrize(
    "message",
    [
        {"Records": [NOTIFICATION]},
        {"Type": "Notification", "TopicArn": "arn:aws:sns:x", "Message": json.dumps({"Records": [NOTIFICATION]})},
        EVENT,
    ],
    ids=["S3, or SNS raw", "SNS", "EventBridge"],
)
def test_a_file_is_the_same_however_it_is_announced(message: dict[str, object]) -> None:
    assert parse_announcements(json.dumps(message)) == [FILE]


def test_what_is_no_new_file_announces_none() -> None:
    removed = {**NOTIFICATION, "eventName": "ObjectRemoved:Delete"}
    folder = {**NOTIFICATION, "s3": {"bucket": {"name": "b"}, "object": {"key": "orders/", "size": 0, "eTag": "x"}}}
    for message in (
        {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "landing"},
        {"Records": [removed, folder]},
        {**EVENT, "detail-type": "Object Deleted"},
    ):
        assert parse_announcements(json.dumps(message)) == []


def test_numbers_of_a_message_are_as_they_were_written() -> None:
    row = '{"id":1,"price":1234567890123456789.10,"in":[{"é":-1e-7},null,"1.50"],"whole":12345678901234567890123}'
    (found,) = parse_announcements('{"register": {"table": "SHOP.STOCK.V1", "rows": [' + row + "]}}")
    assert isinstance(found, AnnouncedRows)
    assert found.lines == row.encode() + b"\n"


@pytest.mark.parametrize(
    "body",
    [
        "no JSON",
        '{"register":{"table":"SHOP.STOCK.V1","rows":[{"v":NaN}]}}',
        "[]",
        "{}",
        '{"Records":[{}]}',
        '{"register":{}}',
        '{"register":{"files":["s3://b/k"],"rows":[{"id":1}]}}',
        '{"register":{"table":"SHOP.STOCK.V1","rows":[]}}',
        '{"register":{"table":"SHOP.STOCK.V1","rows":[1]}}',
        '{"register":{"table":"SHOP.STOCK.V1","rows":["' + "x" * 205_000 + '"]}}',
        '{"source":"aws.s3","detail-type":"Object Created"}',
        json.dumps({**EVENT, "detail": {"bucket": {"name": "b"}, "object": {"key": "k", "size": "big"}}}),
        json.dumps({**EVENT, "detail": {"bucket": {"name": "b"}, "object": {"key": 5, "size": 5}}}),
        json.dumps({**EVENT, "detail": {"bucket": {"name": "b"}, "object": {"key": "k", "sequencer": {"a": 1}}}}),
        '{"register":{"files":["s3://b/k",5]}}',
        '{"register":{"files":["s3://b/\\ud800"]}}',
        '{"register":{"table":"SHOP.STOCK.V1","rows":[{"id":1}],"id":"\\ud800"}}',
        "[" * 100_000,
    ],
    ids=lambda body: body[:40],
)
def test_another_message_is_refused(body: str) -> None:
    with pytest.raises(Invalid):
        parse_announcements(body)


class Landing:
    """A lake with a table of one feed and one of rows, and a queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.store = FaultyStore(open_store(parse_location(str(folder / "lake"))))
        self.lake = DeltaCatalog(self.store, self.clock)
        self.orders = self._table("SHOP.ORDERS.V1", "orders", {"changes": {"format": "ops", "column": "op"}})
        self.stock = self._table("SHOP.STOCK.V1", "stock", {})
        self.queue = MemoryQueue(self.clock, MemoryQueue(self.clock), deliveries_max=1_000)

    def _table(self, table_id: str, name: str, properties: dict[str, object]) -> Table:
        (self.folder / name).mkdir()
        landing = [f"file://{self.folder}/{name}/"]
        return self.lake.create_table(
            table_id, ["day"], primary_keys=["id"], properties={"landing": landing, **properties}
        )

    def ingest(self) -> Ingest:
        return Ingest(self.queue, DeltaCatalog(self.store, self.clock), IngestSettings(collect_seconds=0.0), self.clock)

    def take_all(self) -> Ingested:
        ingest, found = self.ingest(), []
        while (done := ingest.collect_once()).messages:
            found.append(done)
        return Ingested(*(sum(each) for each in zip(*(vars(one).values() for one in found), strict=True)))

    def land(self, name: str, *rows: dict[str, object], announced: int = 1) -> Path:
        file = self.folder / name
        pq.write_table(pa.Table.from_pylist(list(rows)), file)
        for _ in range(announced):
            self.announce(file)
        return file

    def send_rows(self, *rows: dict[str, object], table: str = "SHOP.STOCK.V1", **more: object) -> None:
        self.queue.send(json.dumps({"register": {"table": table, "rows": rows, **more}}))

    def reasons(self) -> str:
        return "\n".join(each.reasons or "" for each in self.queue.dead_letters().receive(10, 0, 10))

    def is_as_old_as(self, file: Path, seconds: float) -> None:
        """By the clock of the test."""
        at_seconds = self.clock.now_ms() / 1_000 - seconds
        os.utime(file, (at_seconds, at_seconds))

    def retire(self, table: Table, day: str, until_ms: int) -> None:
        """As the keeper does once a compaction has the deltas, and its time is over."""
        log, now_ms = table.stream({"day": day}).log, self.clock.now_ms()
        last = table.stream({"day": day}).load().state.sources[1].last_position
        log.append(
            lambda _: [DeltasRetired(stream_version=1, position=last or 0, at_ms=now_ms, ids_refused_until_ms=until_ms)]
        )

    def announce(self, *files: Path) -> None:
        self.queue.send(json.dumps({"register": {"files": [f"file://{file}" for file in files]}}))

    def rows(self, table: Table) -> list[tuple[object, object]]:
        found = table.scan(view="merged").to_table().to_pylist()
        return sorted((row["id"], row["v"]) for row in found)

    def deltas(self, table: Table) -> Counter[str]:
        """How many deltas each file is in, over all streams."""
        fresh = DeltaCatalog(self.store, self.clock).table(table.table_id)
        states = [fresh.stream(each).load().state for each in fresh.partitions()]
        return Counter(
            f"{delta_id} {delta.operation}"
            for state in states
            for source in state.sources.values()
            for delta in source.deltas
            for delta_id in delta.append_ids
        )


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path)


def test_files_of_a_collection_are_one_entry_of_each_stream(landing: Landing) -> None:
    for number in range(5):
        landing.land(f"stock/{number}.parquet", {"id": number, "day": "1", "v": number}, announced=2)
    assert landing.take_all().refused == 0
    assert landing.rows(landing.stock) == [(number, number) for number in range(5)]
    assert len(landing.deltas(landing.stock)) == 5
    assert len(list(landing.lake.table("SHOP.STOCK.V1").stream({"day": "1"}).log.entries())) == 1
    assert landing.queue.messages_left() == 0


def test_a_feed_s_changes_are_applied_and_not_its_rows(landing: Landing) -> None:
    landing.land("orders/1.parquet", {"op": "c", "id": 1, "day": "1", "v": 1}, {"op": "c", "id": 2, "day": "1", "v": 2})
    landing.take_all()
    landing.land("orders/2.parquet", {"op": "d", "id": 1, "day": "1", "v": None})
    landing.take_all()
    assert landing.rows(landing.orders) == [(2, 2)]


def test_what_cannot_be_taken_in_is_a_dead_letter_with_its_reason_and_the_others_go_on(landing: Landing) -> None:
    good = landing.land("orders/1.parquet", {"op": "c", "id": 1, "day": "1", "v": 1})
    landing.land("orders/2.parquet", {"op": "X", "id": 2, "day": "1", "v": 2})
    landing.land("orders/3.parquet", {"op": "c", "id": 3, "day": "1", "v": "text"})
    (landing.folder / "orders" / "4.parquet").write_bytes(b"no Parquet")
    landing.announce(landing.folder / "orders" / "4.parquet")
    landing.announce(landing.folder / "elsewhere.parquet")
    landing.announce(landing.folder / "orders" / "none.parquet")
    landing.queue.send("rubbish")
    done = landing.take_all()
    assert (done.messages, done.files, done.refused) == (7, 1, 6)
    assert landing.rows(landing.orders) == [(1, 1)]
    assert [each.partition("@")[0] for each in landing.deltas(landing.orders)] == [f"file://{good}"]
    reasons = landing.reasons()
    for reason in (
        "neither an upsert nor a delete",
        "cannot be read as parquet",
        "lands for no table",
        "does not exist",
    ):
        assert reason in reasons


def test_what_was_taken_in_does_not_come_again_although_no_dead_letter_can_be_written(landing: Landing) -> None:
    landing.queue = MemoryQueue(landing.clock)
    landing.land("orders/1.parquet", {"op": "c", "id": 1, "day": "1", "v": 1})
    landing.queue.send("rubbish")
    with pytest.raises(Invalid, match="dead-letter"):
        landing.ingest().collect_once()
    assert landing.queue.messages_left() == 1


class BreakingPartitions(Partitioning):
    """Has a defect, which rows with the id 1 show."""

    def split(self, rows: pa.Table, source_name: str) -> list[tuple[dict[str, str], Int64s]]:
        if 1 in rows["id"].to_pylist():
            raise RecursionError("too deep")
        return super().split(rows, source_name)


class BreakingTable(Table):
    @property
    def partitioning(self) -> Partitioning:
        return BreakingPartitions(self.partition_keys)


class BreakingLake(DeltaCatalog):
    def table(self, table_id: str) -> Table:
        table = super().table(table_id)
        table.__class__ = BreakingTable
        return table


def test_a_defect_that_a_file_shows_keeps_no_other_file_out(landing: Landing) -> None:
    for number in (1, 2):
        landing.land(f"stock/{number}.parquet", {"id": number, "day": "1", "v": number})
    lake = BreakingLake(landing.store, landing.clock)
    taken = Ingest(landing.queue, lake, IngestSettings(collect_seconds=0.0), landing.clock).collect_once()
    assert (taken.files, taken.refused) == (1, 1)
    assert landing.rows(landing.stock) == [(2, 2)]
    assert "by a defect of Lithify (RecursionError: too deep): report it" in landing.reasons()


def test_a_look_sets_aside_what_it_cannot_read_and_begins_anew_there(landing: Landing) -> None:
    landing.land("orders/a.parquet", {"op": "I", "id": 1, "day": "1", "v": 1})
    landing.land("stock/b.parquet", {"id": 2, "day": "1", "v": 2})
    assert landing.take_all().files == 2
    for name in ("orders/c.parquet", "stock/d.parquet"):
        landing.land(name, {"op": "I", "id": 3, "day": "1", "v": 3}, announced=0)
    (entry,) = (landing.folder / "lake").glob("**/SHOP.ORDERS.V1/streams/**/*.json")
    entry.write_bytes(b"damaged")
    tables = {"orders": landing.orders, "stock": landing.stock}
    folders = {f"file://{landing.folder}/{name}/": [table] for name, table in tables.items()}
    landing.clock.set_ms(4_000_000_000_000)
    lake = DeltaCatalog(landing.store, landing.clock)
    looked = Listing(landing.queue, lake, landing.clock).look_at_all({"ftp://nowhere/": [landing.stock], **folders}, {})
    assert looked.announced == 1
    assert [each.partition(":")[0] for each in looked.troubles] == ["ftp", "table SHOP.ORDERS.V1 cannot be read"]


def test_with_a_quarantine_a_file_s_other_changes_are_taken_in(landing: Landing) -> None:
    for table in (landing.orders, landing.stock):
        table.set_properties({"quarantine": f"file://{landing.folder}/refused/"})
    landing.land(
        "orders/1.parquet",
        {"op": "c", "id": 1, "day": "1", "v": 1},
        {"op": "X", "id": 2, "day": "1", "v": 2},
        announced=2,
    )
    landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1}, {"id": 2, "day": None, "v": 2})
    done = landing.take_all()
    assert (done.refused, done.files, done.rows, done.quarantined_rows) == (0, 2, 2, 2)
    assert landing.rows(landing.orders) == landing.rows(landing.stock) == [(1, 1)]
    found = [json.loads(file.read_text()) for file in sorted((landing.folder / "refused").rglob("*.jsonl"))]
    assert [(each["row"], each["change"]["id"]) for each in found] == [(2, 2), (2, 2)]
    assert landing.queue.messages_left() == 0


def test_a_folder_that_two_tables_name_is_taken_in_by_none(landing: Landing) -> None:
    landing.stock.set_properties({"landing": [f"file://{landing.folder}/orders/"]})
    landing.land("orders/1.parquet", {"op": "c", "id": 1, "day": "1", "v": 1})
    assert (done := landing.take_all()).refused == done.messages == 1
    (letter,) = landing.queue.dead_letters().receive(10, 0, 10)
    assert "lands for SHOP.ORDERS.V1, SHOP.STOCK.V1" in (letter.reasons or "")


def test_a_landing_that_is_no_folder_is_refused(landing: Landing) -> None:
    for wrong in ("orders/", "s3://landing/orders"):
        with pytest.raises(Invalid, match="write the URI of a folder"):
            landing.orders.set_properties({"landing": [wrong]})


def test_a_folder_with_the_lake_s_own_files_is_none_to_land_in(landing: Landing) -> None:
    for folder in (landing.folder, landing.folder / "lake", landing.folder / "lake" / "tables" / "SHOP.STOCK.V1"):
        with pytest.raises(Invalid, match="each that is written would land"):
            landing.stock.set_properties({"landing": [f"file://{folder}/"]})
    landing.stock.set_properties({"landing": [f"file://{landing.folder}/lake/landing/"]})


def test_tables_share_a_folder_by_the_ends_of_names_and_other_files_are_left_out(landing: Landing) -> None:
    shared = [f"file://{landing.folder}/shared/"]
    (landing.folder / "shared").mkdir()
    landing.stock.set_properties({"landing": shared, "landing_suffixes": ".parquet"})
    landing.orders.set_properties({"landing": shared, "landing_suffixes": ".rows,.csv.gz", "landing_format": "csv"})
    landing.land("shared/1.parquet", {"id": 1, "day": "1", "v": 1})
    for name, body in (("2.rows", "op,id,day,v\nc,2,1,2\n"), ("_SUCCESS", ""), ("3.rows.tmp", "half of a fi")):
        file = landing.folder / "shared" / name
        file.write_text(body)
        landing.announce(file)
    done = landing.take_all()
    assert (done.files, done.left_out, done.refused) == (2, 2, 0), landing.reasons()
    assert landing.rows(landing.stock) == [(1, 1)]
    assert landing.rows(landing.orders) == [(2, 2)]
    late = landing.folder / "shared" / "4.rows"
    late.write_text("op,id,day,v\nc,4,1,4\n")
    landing.clock.set_ms(4_000_000_000_000)
    assert landing.ingest().look_at_all().announced == 1
    assert landing.take_all().files == 1
    assert landing.rows(landing.orders) == [(2, 2), (4, 4)]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"landing": None, "landing_suffixes": ".csv"}, "landing_suffixes is of files that land: set landing"),
        ({"landing": None, "landing_format": "csv"}, "landing_format is of files that land: set landing"),
        ({"landing_suffixes": "*.csv"}, "write the end of a file's name"),
        ({"landing_suffixes": ".parquet", "landing_format": "csv"}, "files that end in .parquet are parquet"),
        ({"landing_suffixes": ".dat"}, "names no format: set landing_format"),
        ({"landing_suffixes": ".dat.gz", "landing_format": "orc"}, "only text is"),
        ({"changes": {"format": "debezium"}, "landing_format": "csv"}, "a feed of format debezium is JSON lines"),
    ],
)
def test_what_contradicts_the_names_of_files_that_land_is_refused(
    landing: Landing, properties: dict[str, object], reason: str
) -> None:
    with pytest.raises(Invalid, match=reason):
        landing.stock.set_properties(properties)


def test_while_many_messages_wait_no_more_are_in_hand_than_a_collection_has(tmp_path: Path) -> None:
    waiting = LongQueue(100_000)
    clock = ManualClock()
    lake = DeltaCatalog(FaultyStore(open_store(parse_location(str(tmp_path / "lake")))), clock)
    ingest = Ingest(waiting, lake, IngestSettings(collect_seconds=60.0, files_max=500), clock)
    for _ in range(3):
        assert ingest.collect_once().messages == 500
    assert waiting.in_hand_max == 500


class LongQueue(MemoryQueue):
    """Messages that are made when they are received; `in_hand_max`: the most that were received and not deleted."""

    def __init__(self, messages: int) -> None:
        super().__init__(ManualClock(), MemoryQueue(ManualClock()))
        self._left = messages
        self._counting = threading.Lock()
        self._in_hand = self.in_hand_max = 0

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> list[QueueMessage]:
        with self._counting:
            numbers = range(self._left, self._left - messages_max, -1)
            self._left -= messages_max
            self._in_hand += messages_max
            self.in_hand_max = max(self.in_hand_max, self._in_hand)
        body = json.dumps({"Records": [NOTIFICATION]})
        return [QueueMessage(str(number), str(number), body, 1) for number in numbers]

    def delete_all(self, messages: Sequence[QueueMessage]) -> None:
        self._in_hand -= len(messages)


def test_a_file_that_was_written_again_is_taken_in_again(landing: Landing) -> None:
    landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1})
    landing.take_all()
    landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 2}, {"id": 2, "day": "1", "v": 2}, announced=3)
    landing.take_all()
    assert landing.rows(landing.stock) == [(1, 2), (2, 2)]
    assert len(landing.deltas(landing.stock)) == 2


def test_of_two_versions_that_are_announced_together_the_later_one_by_its_sequencer_is_taken(landing: Landing) -> None:
    file = landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1}, announced=0)
    for sequencer in ("0055AED7", "0055aed6f0", "0055AED7", "0055AED6"):
        found = {"key": str(file).lstrip("/"), "size": 9, "sequencer": sequencer}
        landing.queue.send(json.dumps({**EVENT, "detail": {"bucket": {"name": "landing"}, "object": found}}))
    announced = [parse_announcements(body)[0] for body in landing.queue.bodies]
    assert all(isinstance(each, Announced) for each in announced)
    newest = _newest_of_each(announced)
    assert newest == [announced[0], announced[2]]


def test_an_older_version_that_another_service_has_read_before_is_superseded_when_it_comes_late(
    landing: Landing,
) -> None:
    def version(name: str, sequencer: str, *days: str) -> LandedFile:
        rows = {day: pa.table({"id": [day], "day": [day], "v": [name]}) for day in days}
        arrivals = [
            Arrival({"day": day}, each, Operation.UPSERT, f"s3://shop/1@{name}", name, sequencer)
            for day, each in rows.items()
        ]
        return LandedFile(f"s3://shop/1@{name}", arrivals, 0)

    old, new, older = version("old", "5", "1", "2"), version("new", "6", "2"), version("older", "4", "1", "2")
    done = _append(landing.stock, [(new, [])], Ingested())
    done = _append(landing.stock, [(old, [])], done)
    done = _append(landing.stock, [(older, [])], done)
    assert (done.files, done.superseded, done.refused) == (2, 1, 0)
    assert landing.rows(landing.stock) == [("1", "old"), ("2", "new")]


def _definition(landing: Landing, table_id: str) -> Path:
    return landing.folder / "lake" / "tables" / table_id / "log" / f"{1:020d}.json"


def _damage(landing: Landing, table_id: str, change: Callable[[dict[str, Any]], object]) -> None:
    file = _definition(landing, table_id)
    file.with_suffix(".good").write_bytes(file.read_bytes())
    entry = json.loads(file.read_bytes())
    change(entry)
    file.write_text(json.dumps(entry))


def _mend(landing: Landing, table_id: str) -> None:
    good = _definition(landing, table_id).with_suffix(".good")
    if good.exists():
        good.rename(_definition(landing, table_id))


def test_a_lake_that_is_away_leaves_the_messages(landing: Landing) -> None:
    landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1})
    landing.store.fail("put_if_absent", "SHOP.STOCK.V1", times=None)
    with pytest.raises(Unavailable):
        landing.ingest().collect_once()
    landing.store.heal()
    landing.clock.sleep(3_600.0)
    assert landing.take_all().files == 1
    assert landing.rows(landing.stock) == [(1, 1)]


def test_a_table_that_cannot_be_read_or_written_for_now_keeps_no_other_file_out(landing: Landing) -> None:
    """Its messages wait on the queue, and go to the dead letters at their last delivery, with the reason."""

    def is_denied() -> None:
        landing.store.fail("put_if_absent", "SHOP.ORDERS.V1/streams", times=None, error=Denied)

    def is_outdated() -> None:
        _damage(landing, "SHOP.ORDERS.V1", lambda entry: entry["actions"].append({"action": "of_a_newer_release"}))

    for number, begin in enumerate((is_denied, is_outdated), 1):
        begin()
        landing.land(f"orders/{number}.parquet", {"op": "c", "id": number, "day": "1", "v": number})
        landing.send_rows({"op": "c", "id": number, "day": "2", "v": number}, table="SHOP.ORDERS.V1")
        landing.land(f"stock/{number}.parquet", {"id": number, "day": "1", "v": number})
        done = landing.take_all()
        assert (done.files, done.waiting, done.refused) == (1, 2, 0)
        assert len(landing.rows(landing.stock)) == number
        landing.store.heal()
        _mend(landing, "SHOP.ORDERS.V1")
        landing.clock.sleep(3_600.0)
        done = landing.take_all()
        assert (done.files, done.waiting, done.refused) == (2, 0, 0)
    assert landing.rows(landing.orders) == [(1, 1), (1, 1), (2, 2), (2, 2)]
    is_denied()
    landing.queue = MemoryQueue(landing.clock, MemoryQueue(landing.clock), deliveries_max=2)
    landing.send_rows({"op": "c", "id": 3, "day": "2", "v": 3}, table="SHOP.ORDERS.V1")
    assert landing.take_all().waiting == 1
    landing.clock.sleep(3_600.0)
    assert landing.take_all().refused == 1
    assert "SHOP.ORDERS.V1/streams" in landing.reasons()


def test_while_a_table_is_damaged_what_may_land_for_it_is_refused_with_that_reason(landing: Landing) -> None:
    _damage(landing, "SHOP.ORDERS.V1", lambda entry: entry.clear())
    landing.land("orders/1.parquet", {"op": "c", "id": 1, "day": "1", "v": 1})
    landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1})
    done = landing.take_all()
    assert (done.files, done.waiting, done.refused) == (1, 0, 1)
    assert "may land for SHOP.ORDERS.V1, which cannot be read" in landing.reasons()
    assert "SHOP.ORDERS.V1 cannot be read" in str(landing.ingest().look_at_all().troubles)


def test_a_file_waits_for_a_table_that_can_be_read_later_though_another_is_damaged(landing: Landing) -> None:
    """It may be of either."""
    _damage(landing, "SHOP.ORDERS.V1", lambda entry: entry.clear())
    _damage(landing, "SHOP.STOCK.V1", lambda entry: entry["actions"].append({"action": "of_a_newer_release"}))
    landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1})
    done = landing.take_all()
    assert (done.waiting, done.refused) == (1, 0)
    _mend(landing, "SHOP.STOCK.V1")
    landing.clock.sleep(3_600.0)
    assert landing.take_all().files == 1


def test_a_quarantine_that_cannot_be_used_refuses_its_table_s_files_and_does_not_end_the_service() -> None:
    clock, table_id, said = ManualClock(), "SHOP.STOCK.V1", "file:///var/refused/"
    store = MemoryStore(clock, StoreLocation("s3://lakehouse/lake"))
    table = DeltaCatalog(store, clock).create_table(table_id, ["day"], primary_keys=["id"])
    with pytest.raises(Invalid, match="a folder of one machine"):
        table.set_properties({"quarantine": said})
    key = f"tables/{table_id}/log/{1:020d}.json"  # as before that was refused
    entry = json.loads(store.read(key) or b"")
    entry["actions"].append({"action": "table_properties_set", "properties": {"quarantine": said}})
    store.overwrite(key, json.dumps(entry).encode())
    queue = MemoryQueue(clock, MemoryQueue(clock), deliveries_max=5)
    queue.send(json.dumps({"register": {"table": table_id, "rows": [{"id": 1, "day": "1"}]}}))
    done = Ingest(queue, DeltaCatalog(store, clock), IngestSettings(collect_seconds=0.0), clock).collect_once()
    assert (done.messages, done.refused) == (1, 1)
    (refused,) = queue.dead_letters().receive(10, 0, 10)
    assert "a folder of one machine" in (refused.reasons or "")


def test_without_sort_keys_the_row_that_came_last_wins(landing: Landing) -> None:
    """By the time of S3's event, else of the message, whatever its name and S3's sequencer."""

    def event(name: str, time: str, sequencer: str) -> dict[str, object]:
        detail = {"bucket": {"name": "landing"}, "object": {"key": name, "size": 9, "sequencer": sequencer}}
        return {**EVENT, "time": time, "detail": detail}

    for number in (9, 10):
        landing.send_rows({"id": 1, "day": "1", "v": number}, id=f"till-{number}")
        landing.clock.sleep(0.001)
    landing.take_all()
    assert landing.rows(landing.stock) == [(1, 10)]
    late = event("a", "2026-11-29T10:00:01Z", "1")
    early = event("b", "2026-11-29T10:00:00Z", "2")
    files = [file for each in (late, early) for file in parse_announcements(json.dumps(each))]
    assert [each.uri for each in _newest_of_each(files) if isinstance(each, Announced)] == [
        "s3://landing/b",
        "s3://landing/a",
    ]


def test_files_that_were_there_before_are_announced_in_the_order_of_their_modification(landing: Landing) -> None:
    full_load = landing.land("stock/LOAD00000001.parquet", {"id": 1, "day": "1", "v": 1}, announced=0)
    change = landing.land("stock/20261121-093012345.parquet", {"id": 1, "day": "1", "v": 2}, announced=0)
    for file, age_seconds in ((full_load, 7_200.0), (change, 3_600.0)):
        landing.is_as_old_as(file, age_seconds)
    landing.ingest().look_at_all()
    landing.take_all()
    assert landing.rows(landing.stock) == [(1, 2)]


def test_documents_of_announced_files_are_bounded_in_bytes() -> None:
    uris = [f"s3://partners/{'ü' * 400}/{number}" for number in range(1_000)]
    documents = list(_documents(iter(uris)))
    assert [uri for each in documents for uri in each] == uris
    assert max(len(json.dumps(each, ensure_ascii=False).encode()) for each in documents) <= URIS_BYTES_MAX


def test_a_stop_at_any_write_leaves_each_file_in_exactly_one_delta(tmp_path: Path) -> None:
    def landed(name: str) -> Landing:
        (tmp_path / name).mkdir()
        found = Landing(tmp_path / name)
        found.orders.set_properties({"quarantine": f"file://{tmp_path}/{name}/refused/"})
        for number in range(3):
            day = str(number % 2)
            found.land(f"stock/{number}.parquet", {"id": number, "day": day, "v": number}, announced=2)
            orders: list[dict[str, object]] = [{"op": op, "id": number, "day": day, "v": number} for op in ("c", "X")]
            found.land(f"orders/{number}.parquet", *orders)
        return found

    unhindered = landed("unhindered")
    written = len(unhindered.store.points)
    unhindered.take_all()
    points = unhindered.store.points[written:]
    assert points
    for number, _ in enumerate(points):
        stopped = landed(str(number))
        stopped.store.stop_at(number)
        with pytest.raises(Stopped):
            stopped.take_all()
        stopped.store.heal()
        stopped.clock.sleep(3_600.0)
        stopped.take_all()
        for table in (stopped.stock, stopped.orders):
            assert stopped.rows(table) == [(each, each) for each in range(3)]
            assert set(stopped.deltas(table).values()) == {1}
        assert len(list((stopped.folder / "refused").rglob("*.jsonl"))) == 3


def test_files_that_were_there_before_are_announced_once_and_none_that_was_taken_back(landing: Landing) -> None:
    for number in range(3):
        landing.land(f"stock/{number}.parquet", {"id": number, "day": str(number), "v": number}, announced=0)
    landing.land("orders/1.parquet", {"op": "c", "id": 1, "day": "1", "v": 1}, announced=0)
    landing.announce(landing.folder / "stock" / "0.parquet")
    landing.take_all()
    (delta_id,) = (each.removesuffix(" upsert") for each in landing.deltas(landing.stock))
    landing.lake.table("SHOP.STOCK.V1").retract({"day": "0"}, delta_id)
    landing.clock.set_ms(4_000_000_000_000)
    assert landing.ingest().look_at_all().announced == 3
    landing.take_all()
    assert landing.rows(landing.stock) == [(1, 1), (2, 2)]
    assert landing.rows(landing.orders) == [(1, 1)]
    assert landing.ingest().look_at_all().announced == 0


def test_a_file_whose_notification_was_lost_is_found_an_hour_later(landing: Landing) -> None:
    ingest = landing.ingest()
    young = landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1}, announced=0)
    old = landing.land("stock/2.parquet", {"id": 2, "day": "1", "v": 2}, announced=0)
    landing.is_as_old_as(young, NOTIFIED_SECONDS - 1)
    landing.is_as_old_as(old, FIRST_LOOK_SECONDS + 1)
    assert ingest.look_for_lost().announced == 0  # one may be on its way, the other is for --backfill
    landing.clock.sleep(LOOK_SECONDS - 1)
    assert ingest.look_for_lost().announced == 0
    landing.clock.sleep(1.0)
    assert ingest.look_for_lost().announced == 1
    ingest.collect_once()
    assert landing.rows(landing.stock) == [(1, 1)]
    landing.clock.sleep(LOOK_SECONDS)
    assert ingest.look_for_lost().announced == 0


def test_a_file_that_was_compacted_and_retired_is_neither_taken_again_nor_refused(landing: Landing) -> None:
    file = landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1}, {"id": 2, "day": "2", "v": 2})
    landing.take_all()
    landing.clock.set_ms(4_000_000_000_000)
    landing.retire(landing.stock, "1", until_ms=5_000_000_000_000)
    landing.announce(file)
    assert landing.ingest().look_at_all().announced == 0
    assert (done := landing.take_all()).refused == 0, landing.reasons()
    assert done.files == 1
    assert landing.rows(landing.stock) == [(2, 2)]  # of what is not compacted here


def test_what_may_have_been_forgotten_is_not_announced_but_told(landing: Landing) -> None:
    landing.land("stock/1.parquet", {"id": 1, "day": "1", "v": 1})
    landing.take_all()
    landing.clock.set_ms(4_000_000_000_000)
    landing.retire(landing.stock, "1", until_ms=4_000_000_000_001)
    landing.land("stock/2.parquet", {"id": 2, "day": "1", "v": 2})
    landing.take_all()
    landing.clock.set_ms(4_100_000_000_000)
    landing.retire(landing.stock, "1", until_ms=5_000_000_000_000)
    new = landing.land("stock/3.parquet", {"id": 3, "day": "1", "v": 3}, announced=0)
    landing.is_as_old_as(new, 60.0)
    found = landing.ingest().look_at_all()
    assert (found.announced, found.forgotten) == (1, 1)


def test_rows_of_a_message_are_appended_once_however_often_it_comes(landing: Landing) -> None:
    for _ in range(3):
        landing.send_rows({"id": 1, "day": "1", "v": 1}, {"id": 2, "day": "2", "v": 2}, id="till-7-42")
    landing.send_rows({"id": 3, "day": "1", "v": 3})
    landing.send_rows({"op": "c", "id": 1, "day": "1", "v": 1}, table="SHOP.ORDERS.V1")
    assert landing.take_all().refused == 0
    assert landing.rows(landing.stock) == [(1, 1), (2, 2), (3, 3)]
    assert landing.rows(landing.orders) == [(1, 1)]
    assert landing.deltas(landing.stock)["till-7-42 upsert"] == 2  # one in each of two streams
    assert len(list(landing.lake.table("SHOP.STOCK.V1").stream({"day": "1"}).log.entries())) == 1


@pytest.mark.parametrize("refuses", [False, True])
def test_rows_of_a_message_without_a_column_that_they_need_are_refused_and_other_messages_go_on(
    landing: Landing, refuses: bool
) -> None:
    schema = pa.schema([("id", pa.int64()), ("line", pa.int64()), ("day", pa.string()), ("v", pa.int64())])
    properties = {"missing_columns": "refuse"} if refuses else {}
    table = landing.lake.create_table(
        "SHOP.LINES.V1", ["day"], schema, primary_keys=["id", "line"], properties=properties
    )
    landing.send_rows({"id": 1, "line": None, "day": "1", "v": None}, table=table.table_id)
    landing.send_rows({"line": 1, "day": "1", "v": 2}, {"line": 2, "day": "1", "v": 2}, table=table.table_id)
    landing.send_rows({"id": 3, "line": 1, "day": "1"}, table=table.table_id)
    assert landing.take_all().refused == 1 + refuses
    reasons = landing.reasons()
    assert "lacks primary key column 'id'" in reasons
    assert ("lacks columns that its stream has, 'v'" in reasons) == refuses
    rows = table.scan(view="merged").to_table().to_pylist()
    assert [(row["id"], row["v"]) for row in rows] == [(1, None)] + [(3, None)] * (not refuses)


def test_other_rows_with_an_id_that_was_used_are_refused(landing: Landing) -> None:
    for value in (1, 2):
        landing.send_rows({"id": 1, "day": "1", "v": value}, id="one")
    landing.send_rows({"id": 9, "day": "1", "v": 9}, table="SHOP.NOWHERE.V1")
    landing.send_rows({"id": 9, "v": 9})
    assert landing.take_all().refused == 3
    assert len(landing.rows(landing.stock)) == 1
    reasons = landing.reasons()
    for reason in ("'one' was already used", "SHOP.NOWHERE.V1", "has no column 'day'"):
        assert reason in reasons


def test_files_beyond_the_memory_of_a_collection_are_appended_in_parts(landing: Landing) -> None:
    for number in range(4):
        landing.land(f"stock/{number}.parquet", {"id": number, "day": "1", "v": number})
    settings = IngestSettings(collect_seconds=0.0, bytes_max=1)
    ingest = Ingest(landing.queue, DeltaCatalog(landing.store, landing.clock), settings, landing.clock)
    while ingest.collect_once().messages:
        pass
    assert len(landing.deltas(landing.stock)) == 4
    assert len(list(landing.lake.table("SHOP.STOCK.V1").stream({"day": "1"}).log.entries())) == 4
