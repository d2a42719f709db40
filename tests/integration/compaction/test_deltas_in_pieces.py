"""Deltas of text and of ORC: large ones are read in pieces by several tasks, and nothing of a row is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from compactor import DeltaCatalog, Table, compact
from compactor.engine.in_process import InProcessEngine
from compactor.maintenance.verify import verify
from compactor.tabular import text
from tests.properties.small_tasks import few_rows_fit, files_are_cut

ORDERS = "ACME.ORDERS.V1"
TEXTS = {
    "csv": "id,note\n{}".format,
    "json": lambda rows: "\n".join(json.dumps({"id": int(i), "note": note}) for i, note in map(fields, rows.split())),
}


def fields(line: str) -> list[str]:
    return line.split(",")


@pytest.mark.parametrize("suffix", [*TEXTS, "orc"])
def test_pieces_of_a_file_give_its_rows(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    lake = DeltaCatalog.open(tmp_path / "lake")
    table = lake.create_table(ORDERS)
    with files_are_cut(), few_rows_fit():
        for number in range(2):
            rows = "\n".join(f"{(7 * row) % 23},{number}-{row}" for row in range(40))
            path = tmp_path / f"{number}.{suffix}"
            if suffix == "orc":
                write_orc(path, rows)
            else:
                path.write_text(TEXTS[suffix](rows))
            assert len(table.append({}, [path]).files[0].row_groups) > 3
        engine = InProcessEngine(tasks_at_once=3)
        compact(ORDERS, {"id"}, delta_catalog_client=lake, engine=engine, hash_bucket_count=3)
    assert verify(table.stream({})).problems == ()
    assert rows_of(table) == {(7 * row) % 23: f"1-{row}" for row in range(40)}


def write_orc(path: Path, rows: str) -> None:
    ids, notes = zip(*map(fields, rows.split()), strict=True)
    with orc.ORCWriter(path, stripe_size=1, batch_size=8) as writer:
        writer.write(pa.table({"id": pa.array(map(int, ids), pa.int64()), "note": notes}))


def rows_of(table: Table) -> dict[int, str]:
    return {row["id"]: row["note"] for row in table.scan().to_table().to_pylist()}


def test_a_field_of_a_struct_that_the_schema_lacks_is_kept_where_it_may_grow(tmp_path: Path) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    place = pa.struct([("city", pa.string()), ("zip", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("to", place), ("stops", pa.list_(place))])
    table = lake.create_table(ORDERS, schema=schema, properties={"schema_growth": "allow"})
    row = {"id": 1, "to": {"city": "Bonn", "zip": "5", "floor": 3}, "stops": [{"city": None, "zip": "6", "at": 1}]}
    (tmp_path / "rows.json").write_text(json.dumps(row))
    table.append({}, [tmp_path / "rows.json"])
    compact(ORDERS, {"id"}, delta_catalog_client=lake)
    assert table.scan().to_table().to_pylist() == [row]
