"""A change feed, however it is written, cut into files and delivered, makes the table of the database it comes from."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.api import compact
from compactor.lake import DeltaCatalog, Table
from tests.effort import examples

TABLE = "SHOP.ORDERS.V1"
Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """`before`, `after`: None: there was, or is, no row. `number`: ascending in the order of the database."""

    number: int
    before: Row | None
    after: Row | None

    @property
    def letter(self) -> str:
        return "c" if self.before is None else "d" if self.after is None else "u"


steps = st.lists(
    st.tuples(
        st.integers(0, 5), st.sampled_from(["north", "south"]), st.one_of(st.none(), st.integers(0, 9)), st.booleans()
    ),
    min_size=1,
    max_size=25,
)


def history(asked: Sequence[tuple[int, str, int | None, bool]]) -> tuple[list[Change], list[Row]]:
    """The changes that a database makes of what it is asked for, and its rows in the end."""
    changes: list[Change] = []
    with closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        database.execute("create table orders (id integer primary key, region text not null, v integer)")
        for number, (key, region, v, deletes) in enumerate(asked, 1):
            found = database.execute("select * from orders where id = ?", (key,)).fetchone()
            before = None if found is None else dict(found)
            if deletes:
                database.execute("delete from orders where id = ?", (key,))
                after = None
            else:
                database.execute("insert or replace into orders values (?, ?, ?)", (key, region, v))
                after = {"id": key, "region": region, "v": v}
            if before is not None or after is not None:
                changes.append(Change(number, before, after))
        rows = [dict(row) for row in database.execute("select * from orders order by id")]
    return changes, rows


# ------------------------------------------------------------------------------------------------- how feeds write it


def envelopes(changes: Sequence[Change], file: Path) -> list[Path]:
    lines = [
        json.dumps({"before": each.before, "after": each.after, "op": each.letter, "source": {"lsn": each.number}})
        for each in changes
    ]
    return [_written(file.with_suffix(".json"), with_tombstones(changes, lines))]


def with_tombstones(changes: Sequence[Change], lines: Sequence[str]) -> list[str]:
    return [
        line for each, of_it in zip(changes, lines, strict=True) for line in ([of_it] + ["null"] * (each.after is None))
    ]


def envelopes_with_schema(changes: Sequence[Change], file: Path) -> list[Path]:
    row = [("id", "int64", False), ("region", "string", False), ("v", "int64", True)]
    fields = [{"field": name, "type": kind, "optional": optional} for name, kind, optional in row]
    schema = {
        "type": "struct",
        "fields": [
            {"field": "before", "type": "struct", "optional": True, "fields": fields},
            {"field": "after", "type": "struct", "optional": True, "fields": fields},
            {"field": "source", "type": "struct", "fields": [{"field": "lsn", "type": "int64"}]},
            {"field": "op", "type": "string"},
        ],
    }
    payloads = (
        {"before": each.before, "after": each.after, "source": {"lsn": each.number}, "op": each.letter}
        for each in changes
    )
    return [_written(file.with_suffix(".json"), [json.dumps({"schema": schema, "payload": each}) for each in payloads])]


def flattened(changes: Sequence[Change], file: Path) -> list[Path]:
    """Without images before: a move is a delete and an insert, as of a changed key."""
    lines = []
    for before, after, number in _without_moves(changes):
        row = {**(after or before or {}), "__source_lsn": number, "__op": "d" if after is None else "u"}
        lines.append(json.dumps({**row, "__deleted": "true" if after is None else "false"}))
    return [_written(file.with_suffix(".json"), lines)]


def parquet_of_dms(changes: Sequence[Change], file: Path) -> list[Path]:
    rows = [
        {"Op": "D" if after is None else "U", **(after or before or {}), "__source_lsn": number}
        for before, after, number in _without_moves(changes)
    ]
    pq.write_table(pa.Table.from_pylist(rows, COLUMNS_OF_DMS), file.with_suffix(".parquet"))
    return [file.with_suffix(".parquet")]


def csv_of_dms(changes: Sequence[Change], file: Path) -> list[Path]:
    lines = []
    for before, after, number in _without_moves(changes):
        row = after or before or {}
        v = "NULL" if row["v"] is None else row["v"]
        lines.append(f"{'D' if after is None else 'U'},{row['id']},{row['region']},{v},{number}")
    return [_written(file.with_suffix(".csv"), lines)]


def rows_with_operations(changes: Sequence[Change], file: Path) -> list[Path]:
    """Of an update the row before it, from which alone it can be told that it has moved; a changed key is a delete."""
    rows = []
    for each in changes:
        is_update = each.before is not None and each.after is not None and each.before["id"] == each.after["id"]
        for row, what in ((each.before, "UPDATE_PREIMAGE" if is_update else "delete"), (each.after, "Insert")):
            if row is not None:
                rows.append({**row, "__source_lsn": each.number, "what": what})
    pq.write_table(pa.Table.from_pylist(rows, COLUMNS_OF_OPS), file.with_suffix(".parquet"))
    return [file.with_suffix(".parquet")]


def events_of_maxwell(changes: Sequence[Change], file: Path) -> list[Path]:
    lines = []
    for each in changes:
        now, was = each.after or each.before or {}, each.before or {}
        event = {"database": "shop", "table": "orders", "xid": each.number, "commit": True, "data": now}
        if each.letter == "u":
            event["old"] = {name: was[name] for name in now if now[name] != was[name]}
        lines.append(json.dumps({**event, "type": {"c": "insert", "u": "update", "d": "delete"}[each.letter]}))
    return [_written(file.with_suffix(".json"), lines)]


def messages_of_canal(changes: Sequence[Change], file: Path) -> list[Path]:
    lines = []
    for each in changes:
        now, was = each.after or each.before or {}, each.before or {}
        old = {name: _text(was[name]) for name in now if each.letter == "u" and now[name] != was[name]}
        message = {"database": "shop", "table": "orders", "id": each.number, "isDdl": False}
        message |= {"data": [{name: _text(value) for name, value in now.items()}], "old": [old] if old else None}
        lines.append(json.dumps({**message, "type": {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}[each.letter]}))
    return [_written(file.with_suffix(".json"), lines)]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


COLUMNS = [("id", pa.int64()), ("region", pa.string()), ("v", pa.int64()), ("__source_lsn", pa.int64())]
COLUMNS_OF_DMS = pa.schema([("Op", pa.string()), *COLUMNS])
COLUMNS_OF_OPS = pa.schema([*COLUMNS, ("what", pa.string())])


def _without_moves(changes: Sequence[Change]) -> list[tuple[Row | None, Row | None, int]]:
    found: list[tuple[Row | None, Row | None, int]] = []
    for each in changes:
        if each.before is not None and each.after is not None and each.before["region"] != each.after["region"]:
            found.append((each.before, None, each.number))
        found.append((each.before, each.after, each.number))
    return found


def _written(file: Path, lines: Sequence[str]) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


FEEDS: dict[str, tuple[str | dict[str, object], Callable[[Sequence[Change], Path], list[Path]]]] = {
    "envelopes": ("debezium", envelopes),
    "envelopes with schema": ("debezium", envelopes_with_schema),
    "flattened": ("debezium", flattened),
    "Parquet of DMS": ("dms", parquet_of_dms),
    "CSV of DMS": ("dms", csv_of_dms),
    "Maxwell": ({"format": "maxwell", "columns": {"__source_xid": "__source_lsn"}}, events_of_maxwell),
    "Canal": ({"format": "canal", "columns": {"__source_id": "__source_lsn"}}, messages_of_canal),
    "rows with operations": ({"format": "ops", "column": "what"}, rows_with_operations),
}


@pytest.mark.parametrize("feed", FEEDS)
@examples(0.3)
@given(
    asked=steps,
    cuts=st.lists(st.integers(1, 24), max_size=3),
    deliveries=st.lists(st.integers(0, 3), max_size=8),
    is_ordered=st.booleans(),
)
def test_the_table_is_that_of_the_database(
    feed: str, asked: list[tuple[int, str, int | None, bool]], cuts: list[int], deliveries: list[int], is_ordered: bool
) -> None:
    """`is_ordered`: by the feed's own order; then files come in any order and again. Else they come once, in order."""
    changes, rows = history(asked)
    if not changes:
        return
    bounds = sorted({0, len(changes), *(cut for cut in cuts if cut < len(changes))})
    pieces = [changes[first:last] for first, last in pairwise(bounds)]
    written_as, write = FEEDS[feed]
    with TemporaryDirectory() as folder:
        lake = DeltaCatalog.open(Path(folder) / "lake")
        table = created(lake, is_ordered=is_ordered, changes=written_as)
        files = [write(piece, Path(folder) / f"{number}") for number, piece in enumerate(pieces)]
        order = list(range(len(files)))
        if is_ordered:
            order = [each % len(files) for each in deliveries] + order
        for number in order:
            table.append_changes(files[number], delta_id=f"file {number}")
        assert _rows(table) == rows
        compact(TABLE, delta_catalog_client=lake)
        assert _rows(table, view="compacted") == rows


@pytest.mark.parametrize("feed", ["Maxwell", "Canal"])
@examples(0.3)
@given(asked=steps, cut=st.integers(0, 24))
def test_rows_without_a_partition_move_into_the_default_one_and_out_of_it(
    feed: str, asked: list[tuple[int, str, int | None, bool]], cut: int
) -> None:
    """Updates name what has changed, also if it was null before, or is null now."""

    def without_south(row: Row | None) -> Row | None:
        return row and {**row, "region": None if row["region"] == "south" else row["region"]}

    told, in_the_end = history(asked)
    changes = [Change(each.number, without_south(each.before), without_south(each.after)) for each in told]
    written_as, write = FEEDS[feed]
    with TemporaryDirectory() as folder:
        lake = DeltaCatalog.open(Path(folder) / "lake")
        table = created(lake, changes=written_as, default_partition="unknown")
        for number, piece in enumerate((changes[:cut], changes[cut:])):
            if piece:
                table.append_changes(write(piece, Path(folder) / f"{number}"))
        assert _rows(table) == [without_south(row) for row in in_the_end]


REFUSED: dict[str, Row] = {
    "envelopes": {"before": None, "after": None, "op": "t", "source": {"lsn": 5}},
    "envelopes with schema": {"ddl": "alter table orders", "op": None, "before": None, "source": {"lsn": 5}},
    "flattened": {"id": None, "region": "north", "v": 1, "__source_lsn": 5, "__op": "u", "__deleted": "false"},
    "Maxwell": {"type": "table-alter", "database": "shop", "table": "orders", "xid": 5, "xoffset": 5},
    "Canal": {"type": "ALTER", "isDdl": True, "data": None, "id": 5},
}


@pytest.mark.parametrize("feed", REFUSED)
@examples(0.25)
@given(asked=steps, places=st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_with_a_quarantine_the_table_is_that_of_the_feed_without_what_is_refused(
    feed: str, asked: list[tuple[int, str, int | None, bool]], places: list[int]
) -> None:
    changes, rows = history(asked)
    written_as, write = FEEDS[feed]
    if not changes:
        return
    with TemporaryDirectory() as folder:
        lake = DeltaCatalog.open(Path(folder) / "lake")
        table = created(lake, changes=written_as)
        (file,) = write(changes, Path(folder) / "feed")
        lines = file.read_text().splitlines()
        for place in places:
            lines.insert(place, json.dumps(REFUSED[feed]))
        _written(file, lines)
        added = table.append_changes([file], quarantine=Path(folder) / "refused")
        assert _rows(table) == rows
        assert added.quarantine_uri is not None
        aside = [json.loads(line) for line in Path(added.quarantine_uri[7:]).read_text().splitlines()]
        assert [each["change"] for each in aside] == [REFUSED[feed]] * len(places)
        refused = json.dumps(REFUSED[feed])
        assert [each["row"] for each in aside] == [at for at, line in enumerate(lines, 1) if line == refused]


def created(lake: DeltaCatalog, table_id: str = TABLE, *, is_ordered: bool = True, **properties: object) -> Table:
    return lake.create_table(
        table_id,
        ["region"],
        schema=pa.schema(COLUMNS),
        primary_keys=["id"],
        sort_keys=[("__source_lsn", "ascending")] if is_ordered else None,
        properties=properties,
    )


def _rows(table: Any, view: str = "merged") -> list[Row]:  # noqa: ANN401
    found = table.scan(view=view).to_table().select(["id", "region", "v"]).to_pylist()
    return sorted(found, key=lambda row: row["id"])


def envelopes_without_images(changes: Sequence[Change], file: Path) -> list[Path]:
    """As PostgreSQL's default replica identity has them: updates say nothing of before, deletes only the key."""
    lines = []
    for each in changes:
        before = {"id": each.before["id"]} if each.before is not None and each.after is None else None
        payload = {"before": before, "after": each.after, "source": {"lsn": each.number}, "op": each.letter}
        lines.append(json.dumps(payload))
    return [_written(file.with_suffix(".json"), lines)]


@examples(0.5)
@given(asked=steps, cuts=st.lists(st.integers(1, 24), max_size=3), again=st.booleans(), compacts=st.integers(0, 3))
def test_a_global_key_has_one_row_though_no_change_says_where_it_was(
    asked: list[tuple[int, str, int | None, bool]], cuts: list[int], again: bool, compacts: int
) -> None:
    """Files come in order, maybe all of them again; a compaction comes after one of them."""
    changes, rows = history(asked)
    if not changes:
        return
    bounds = sorted({0, len(changes), *(cut for cut in cuts if cut < len(changes))})
    with TemporaryDirectory() as folder:
        lake = DeltaCatalog.open(Path(folder) / "lake")
        table = created(lake)
        files = [
            envelopes_without_images(changes[first:last], Path(folder) / f"{number}")
            for number, (first, last) in enumerate(pairwise(bounds))
        ]
        for number, file in enumerate(files * (1 + again)):
            delta_id = file[0].name
            table.append_changes(file, "debezium", keys_are_global=True, delta_id=delta_id)
            if number == compacts:
                compact(TABLE, delta_catalog_client=lake)
        assert _rows(table) == rows
        compact(TABLE, delta_catalog_client=lake)
        assert _rows(table, view="compacted") == rows


@pytest.mark.parametrize("feed", ["envelopes", "Maxwell", "rows with operations"])
@examples(0.25)
@given(histories=st.lists(steps, min_size=2, max_size=3), cut=st.integers(1, 40), again=st.booleans())
def test_the_tables_of_one_feed_are_those_of_the_database(
    feed: str, histories: list[list[tuple[int, str, int | None, bool]]], cut: int, again: bool
) -> None:
    """The changes of the tables take turns, in two files, which come in order; and again."""
    told = [history(asked) for asked in histories]
    written_as, write = FEEDS[feed]
    table_of, named = NAMES_OF_TABLES[feed]
    with TemporaryDirectory() as folder:
        lines: list[str] = []
        for turn in range(max(len(changes) for changes, _ in told)):
            for number, (changes, _) in enumerate(told):
                if turn < len(changes):
                    (file,) = write([changes[turn]], Path(folder) / "one")
                    lines += (json.dumps(named(event, f"t{number}")) for event in _events(file))
        files = [Path(folder) / "a.json", Path(folder) / "b.json"]
        for file, part in zip(files, (lines[:cut], lines[cut:]), strict=True):
            _written(file, part)
        lake = DeltaCatalog.open(Path(folder) / "lake")
        tables = {f"shop.t{number}": f"SHOP.T{number}.V1" for number in range(len(told))}
        for table_id in tables.values():
            created(lake, table_id)
        for file in files * (1 + again):
            lake.append_changes([file], written_as, table_of, tables, delta_id=file.name)
        for (_, rows), table_id in zip(told, tables.values(), strict=True):
            assert _rows(lake.table(table_id)) == rows


def _events(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
        return rows
    return [json.loads(line) for line in file.read_text().splitlines() if line != "null"]


NAMES_OF_TABLES: dict[str, tuple[str, Callable[[dict[str, Any], str], dict[str, Any]]]] = {
    "envelopes": (
        "source.schema.source.table",
        lambda event, name: {**event, "source": {**event["source"], "schema": "shop", "table": name}},
    ),
    "Maxwell": ("database.table", lambda event, name: {**event, "table": name}),
    "rows with operations": ("owner.name", lambda row, name: {**row, "owner": "shop", "name": name}),
}
