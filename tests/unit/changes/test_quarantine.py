"""Changes that cannot be applied, in a file with their reasons, while the others are applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid, Unavailable
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("v", pa.int64()), ("__source_lsn", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog.open(tmp_path / "lake")


def feed_table(lake: DeltaCatalog, feed: object, name: str = "ORDERS") -> Table:
    return lake.create_table(
        f"SHOP.{name}.V1",
        ["day"],
        schema=SCHEMA,
        primary_keys=["id"],
        sort_keys=[("__source_lsn", "ascending")],
        properties={"changes": feed},
    )


def written(file: Path, *events: object) -> Path:
    file.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in events))
    return file


def envelope(lsn: int, op: str = "c", **row: object) -> dict[str, object]:
    before, after = (row, None) if op == "d" else (None, row or None)
    return {"before": before, "after": after, "op": op, "source": {"lsn": lsn}}


def quarantined(uri: str | None) -> list[dict[str, object]]:
    assert uri is not None
    return [json.loads(line) for line in Path(uri.removeprefix("file://")).read_text().splitlines()]


def rows(table: Table) -> list[tuple[object, object]]:
    return sorted((row["id"], row["v"]) for row in table.scan(view="merged").to_table().to_pylist())


def test_every_kind_of_refused_event_is_in_the_file_as_it_was_written_and_the_others_are_applied(
    lake: DeltaCatalog, tmp_path: Path
) -> None:
    table = feed_table(lake, "debezium")
    good = [envelope(1, id=1, day="1", v=1), envelope(9, id=2, day="1", v=2), envelope(10, op="d", id=3, day="1")]
    bad: Mapping[int, tuple[object, str]] = {
        1: (envelope(2, op="t"), "the source was truncated (op 't')"),
        2: ("no JSON", "it is not JSON"),
        3: (envelope(3, id=None, day="1", v=3), "the key column 'id' has no value"),
        4: ({"ddl": "alter table", "databaseName": "shop"}, "it is no change of a row (op None)"),
        5: ('{"before": null, "after": {"id": "x", "day": "1"}, "op": "c", "source": {"lsn": 4}}', "/after/id"),
        7: ({**envelope(5, op="d"), "before": None}, "it has no 'before'"),
        8: ([1], "it is no change event but list"),
        9: ('{"op": "c", "after": ' + "[" * 200 + "]" * 200 + "}", "nested deeper than 100"),
        11: (
            {**envelope(0, op="d", id=1, day="1"), "source": {"lsn": None}},
            "a delete has no value of '__source_lsn'",
        ),
    }
    events: list[object] = [good[0], *([None] * 11)]
    events[6], events[10] = good[1], good[2]
    for at, (event, _) in bad.items():
        events[at] = event
    file = written(tmp_path / "feed.json", *events)
    with pytest.raises(Invalid):
        table.append_changes([file])
    assert table.partitions() == []

    added = table.append_changes([file], delta_id="feed.json", quarantine=tmp_path / "refused")
    found = quarantined(added.quarantine_uri)
    assert added.quarantined_rows == len(found) == len(bad)
    assert [each["row"] for each in found] == [at + 1 for at in bad]
    assert {each["source"] for each in found} == {f"file://{file}"}
    for each, (event, reason) in zip(found, bad.values(), strict=True):
        as_written = json.loads(event) if isinstance(event, str) and event != "no JSON" else event
        assert each["change"] == as_written
        assert any(reason in told for told in each["reasons"]), (each, reason)  # type: ignore[attr-defined]
    assert [(each.operation, each.rows) for each in added] == [("upsert", 2), ("delete", 1)]
    assert rows(table) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("feed", "events", "reasons"),
    [
        (
            "maxwell",
            [
                {"type": "insert", "data": {"id": 1, "day": "1", "v": 1}, "lsn": 1},
                {"type": "table-drop", "table": "orders", "lsn": 2},
                {"type": "insert", "data": {"id": 2, "day": None, "v": 1}, "lsn": 3},
            ],
            {2: "it is no change of a row (type 'table-drop')", 3: "'day' has no value"},
        ),
        (
            "canal",
            [
                {"type": "INSERT", "data": [{"id": "1", "day": "1", "v": "1"}], "es": 1, "isDdl": False},
                {"type": "INSERT", "data": [{"id": "2", "day": "1", "v": "none"}], "es": 2, "isDdl": False},
                {"type": "INSERT", "data": [], "es": 3, "isDdl": False},
                {"type": "INSERT", "data": [{"id": 4, "day": "1", "v": "1"}], "es": 4, "isDdl": False},
                {"type": "INSERT", "data": {"id": "5"}, "es": 5, "isDdl": False},
                {"type": "UPDATE", "data": [{"id": "1", "day": "1"}], "old": [{}, {}], "es": 6, "isDdl": False},
            ],
            {
                2: "column 'v' is declared as int64",
                3: "its data has no rows",
                4: "Column(/data/[]/id) changed from string to number",
                5: "Column(/data) changed from array to object",
                6: "its old has not as many rows as its data",
            },
        ),
    ],
)
def test_events_of_a_binlog_are_quarantined_too(
    lake: DeltaCatalog, tmp_path: Path, feed: str, events: list[object], reasons: dict[int, str]
) -> None:
    table = lake.create_table(
        "SHOP.ORDERS.V1", ["day"], schema=SCHEMA, primary_keys=["id"], properties={"changes": feed}
    )
    added = table.append_changes([written(tmp_path / "feed.json", *events)], quarantine=tmp_path / "refused")
    found = quarantined(added.quarantine_uri)
    assert {each["row"] for each in found} == reasons.keys()
    for each in found:
        assert reasons[int(str(each["row"]))] in str(each["reasons"])
        assert each["change"] == events[int(str(each["row"])) - 1]
    assert rows(table) == [(1, 1)]


def test_of_events_that_no_line_divides_only_those_that_cannot_be_read_are_quarantined(
    lake: DeltaCatalog, tmp_path: Path
) -> None:
    table = feed_table(lake, "debezium")
    events = [json.dumps(envelope(at, id=at, day="a}{b" if at == 5 else "day", v=at)).encode() for at in range(1, 9)]
    events[1] = events[1].replace(b'"day"', b'"d\xe9j\xe0"')
    events[3] = b'{"op": "c", "before": }'
    events[5] = b'{"op":' * 100_000 + b"1" + b"}" * 100_000
    events[6] += b" "
    events[7] = events[7][:-1]
    (tmp_path / "feed.json").write_bytes(b"".join(events[:5]) + b"\n" + b"".join(events[5:]))
    added = table.append_changes([tmp_path / "feed.json"], quarantine=tmp_path / "refused")
    found = quarantined(added.quarantine_uri)
    assert [each["row"] for each in found] == [2, 4, 6, 8]
    assert [each["change"] for each in found] == [events[at].decode(errors="replace") for at in (1, 3, 5, 7)]
    assert rows(table) == [(1, 1), (3, 3), (5, 5), (7, 7)]


@pytest.mark.parametrize(
    ("feed", "event"),
    [
        ("debezium", '{"op": "c", "before": null, "after": {"id": 1, "day": "1"}, "source": {"file": "a"}}'),
        ("maxwell", '{"type": "insert", "data": {"id": 1, "day": "1"}, "database": "a"}'),
        ("canal", '{"type": "INSERT", "data": [{"id": "1", "day": "1"}], "es": 1, "isDdl": false, "database": "a"}'),
    ],
)
@pytest.mark.parametrize("what", [b"caf\xe9", b"\xed\xa0\x80"], ids=["latin-1", "half a surrogate pair"])
def test_an_event_that_is_not_utf_8_is_quarantined_and_named(
    lake: DeltaCatalog, tmp_path: Path, feed: str, event: str, what: bytes
) -> None:
    table = lake.create_table(
        "SHOP.ORDERS.V1", ["day"], schema=SCHEMA, primary_keys=["id"], properties={"changes": feed}
    )
    damaged = event.encode().replace(b'"a"', b'"' + what + b'"')
    (tmp_path / "feed.json").write_bytes(b"\n".join([event.encode(), damaged, event.encode(), b""]))
    with pytest.raises(Invalid, match=r"feed\.json, row 2: it is not UTF-8"):
        table.append_changes([tmp_path / "feed.json"])
    added = table.append_changes([tmp_path / "feed.json"], quarantine=tmp_path / "refused")
    (found,) = quarantined(added.quarantine_uri)
    assert found["change"] == damaged.decode(errors="replace")
    assert rows(table) == [(1, None)]


def test_rows_keep_the_numbers_that_they_have_in_their_file(lake: DeltaCatalog, tmp_path: Path) -> None:
    table = feed_table(lake, {"format": "ops", "column": "op"})
    file = tmp_path / "feed.parquet"
    pq.write_table(
        pa.table(
            {
                "op": ["c", "x", "c", None, "d", "c"],
                "id": [1, 2, None, 4, 5, 6],
                "day": ["1", "1", "1", "1", None, "1"],
                "v": [1, 2, 3, 4, 5, 6],
                "__source_lsn": [1, 2, 3, 4, 5, 6],
            }
        ),
        file,
    )
    added = table.append_changes([file], quarantine=tmp_path / "refused")
    assert [(each["row"], each["change"]["id"]) for each in quarantined(added.quarantine_uri)] == [  # type: ignore[index]
        (2, 2),
        (3, None),
        (4, 4),
        (5, 5),
    ]
    assert rows(table) == [(1, 1), (6, 6)]


def test_values_of_dms_that_are_not_of_their_type_are_quarantined_as_they_were_written(
    lake: DeltaCatalog, tmp_path: Path
) -> None:
    table = lake.create_table(
        "SHOP.ORDERS.V1", ["day"], schema=SCHEMA, primary_keys=["id"], properties={"changes": "dms"}
    )
    file = tmp_path / "20261125-1000.csv"
    file.write_bytes(b"Op,id,day,v\nI,1,1,1\nU,one,1,2\nX,3,1,3\nI,4,1,four\nI,5,1,5\nI,6,\xe9,6\n")
    added = table.append_changes([file], quarantine=tmp_path / "refused")
    assert [(each["row"], each["change"]) for each in quarantined(added.quarantine_uri)] == [
        (2, {"Op": "U", "id": "one", "day": "1", "v": "2"}),
        (3, {"Op": "X", "id": "3", "day": "1", "v": "3"}),
        (4, {"Op": "I", "id": "4", "day": "1", "v": "four"}),
        (6, {"Op": "I", "id": "6", "day": "\ufffd", "v": "6"}),
    ]
    assert rows(table) == [(1, 1), (5, 5)]


def test_a_batch_without_a_change_that_can_be_applied_is_only_quarantined(lake: DeltaCatalog, tmp_path: Path) -> None:
    table = feed_table(lake, "debezium")
    file = written(tmp_path / "feed.json", envelope(1, op="t"))
    added = table.append_changes([file], quarantine=tmp_path / "refused")
    assert (len(added), added.quarantined_rows, table.partitions()) == (0, 1, [])


def test_a_feed_that_is_not_the_table_s_is_refused_whole(lake: DeltaCatalog, tmp_path: Path) -> None:
    """Nothing of it is quarantined: with a mended feed all of it can be applied."""
    table = lake.create_table(
        "SHOP.ORDERS.V1",
        primary_keys=["id"],
        sort_keys=[("__source_scn", "ascending")],
        properties={"changes": "debezium"},
    )
    file = written(tmp_path / "feed.json", envelope(1, id=1))
    with pytest.raises(Invalid, match=r"have no source\.scn"):
        table.append_changes([file], quarantine=tmp_path / "refused")
    parquet = tmp_path / "feed.parquet"
    pq.write_table(pa.table({"op": ["c"], "after": [{"id": 1}]}), parquet)
    with pytest.raises(Invalid, match=r"feed.parquet is parquet, and a feed of format debezium is JSON lines"):
        table.append_changes([parquet], quarantine=tmp_path / "refused")
    assert not list((tmp_path / "refused").rglob("*.jsonl"))


def test_the_same_batch_again_writes_no_second_file_and_another_one_replaces_none(
    lake: DeltaCatalog, tmp_path: Path
) -> None:
    table = feed_table(lake, "debezium")
    file = written(tmp_path / "feed.json", envelope(1, id=1, day="1"), envelope(2, op="t"))
    first = table.append_changes([file], delta_id="feed", quarantine=tmp_path / "refused")
    assert table.append_changes([file], delta_id="feed", quarantine=tmp_path / "refused") == first
    written(file, envelope(1, id=1, day="1"), envelope(2, op="t"), envelope(3, op="m"))
    second = table.append_changes([file], delta_id="feed", quarantine=tmp_path / "refused")
    assert second.deltas == first.deltas
    assert len(quarantined(first.quarantine_uri)) == 1
    assert len(quarantined(second.quarantine_uri)) == 2


def test_nothing_is_appended_before_what_is_refused_is_durable(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(open_store(parse_location(str(tmp_path / "lake"))))
    table = feed_table(DeltaCatalog(store, clock), "debezium")
    file = written(tmp_path / "feed.json", envelope(1, id=1, day="1"), envelope(2, op="t"))
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, so no folder can be made here")
    with pytest.raises(Unavailable):
        table.append_changes([file], delta_id="feed", quarantine=blocked / "refused")
    assert table.partitions() == []

    store.stop_at(0)
    with pytest.raises(Stopped):
        table.append_changes([file], delta_id="feed", quarantine=tmp_path / "refused")
    assert len(list((tmp_path / "refused").rglob("*.jsonl"))) == 1
    store.heal()
    assert table.append_changes([file], delta_id="feed", quarantine=tmp_path / "refused").quarantined_rows == 1
    assert len(list((tmp_path / "refused").rglob("*.jsonl"))) == 1


def test_each_table_of_a_feed_has_a_file_of_its_own(lake: DeltaCatalog, tmp_path: Path) -> None:
    tables = {name.lower(): feed_table(lake, "debezium", name).table_id for name in ("ORDERS", "STOCK")}
    told: list[tuple[str, str, dict[str, object]]] = [
        ("orders", "c", {"id": 1, "day": "1", "v": 1}),
        ("stock", "t", {}),
        ("stock", "c", {"id": 1, "day": "1", "v": 2}),
        ("orders", "c", {"id": None, "day": "1", "v": 3}),
    ]
    events = [
        {**envelope(at, op, **row), "source": {"lsn": at, "table": name}} for at, (name, op, row) in enumerate(told, 1)
    ]
    added = lake.append_changes(
        [written(tmp_path / "feed.json", *events)], "debezium", "source.table", tables, "feed", tmp_path / "refused"
    )
    assert {table_id: each.quarantined_rows for table_id, each in added.items()} == dict.fromkeys(tables.values(), 1)
    assert len({each.quarantine_uri for each in added.values()}) == 2
    assert rows(lake.table("SHOP.STOCK.V1")) == [(1, 2)]


def test_the_property_names_the_folder_and_where_files_land_it_may_not_be(lake: DeltaCatalog, tmp_path: Path) -> None:
    table = feed_table(lake, "debezium")
    for wrong, reason in (
        ("refused/", "write the URI of a folder"),
        ("file:///landing/refused", "write the URI of a folder"),
        ("file:///landing/refused/", "where files land"),
    ):
        with pytest.raises(Invalid, match=reason):
            table.set_properties({"landing": ["file:///landing/"], "quarantine": wrong})
    table.set_properties({"quarantine": f"file://{tmp_path}/refused/"})
    added = table.append_changes([written(tmp_path / "feed.json", envelope(1, op="t"))], delta_id="feed")
    assert added.quarantine_uri is not None
    assert added.quarantine_uri.startswith(f"file://{tmp_path}/refused/SHOP.ORDERS.V1/feed-")
