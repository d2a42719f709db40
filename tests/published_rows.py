"""Published tables with rows of every kind, and the comparison of what another engine reads with a scan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from tests.builders import TABLE_ID

PARTITIONS = ({"region": "eu/west ü", "day": "1"}, {"region": "US", "day": "a b%"})


def rows_of_every_kind(ids: list[int], turn: int) -> pa.Table:
    """Columns of most types that can be published, with nulls; later turns have a wider key and one more column."""
    count = len(ids)
    columns = {
        "id": pa.array(ids, pa.int32() if turn < 2 else pa.int64()),
        "turn": pa.array([turn] * count, pa.int8()),
        "text": pa.array([None if key % 7 == 0 else f"x{key}é" for key in ids]),
        "at": pa.array([key * 1_000 + turn for key in ids], pa.timestamp("ms", "UTC")),
        "local": pa.array([key * 1_000 for key in ids], pa.timestamp("ns")),
        "great": pa.array([2**64 - 1 - key for key in ids], pa.uint64()),
        "small": pa.array([key % 200 for key in ids], pa.uint8()),
        "half": pa.array([key / 2 for key in ids], pa.float16()),
        "real": pa.array([float("nan") if key % 5 == 0 else key / 3 for key in ids]),
        "coded": pa.array([f"c{key % 3}" for key in ids]).dictionary_encode(),
        "list": pa.array([[key, None] for key in ids], pa.list_(pa.uint16())),
        "pair": pa.array([[key, key] for key in ids], pa.list_(pa.int32(), 2)),
        "struct": pa.array(
            [None if key % 3 == 0 else {"a": key % 99, "b": None} for key in ids],
            pa.struct({"a": pa.uint16(), "b": pa.string()}),
        ),
        "map": pa.array([[("k", key)] for key in ids], pa.map_(pa.string(), pa.int32())),
        "nothing": pa.nulls(count),
        "time": pa.array([key % 86_400 for key in ids], pa.time32("s")),
        "bytes": pa.array([b"\x00\xff", b""] * count, pa.binary()).slice(0, count),
        "fixed": pa.array([b"abc"] * count, pa.binary(3)),
        "price": pa.array([Decimal(key) / 4 for key in ids], pa.decimal128(25, 2)),
        "truth": pa.array([None if key % 4 == 0 else key % 2 == 0 for key in ids]),
        "day_of": pa.array(ids, pa.int32()).cast(pa.date32()),
        "date64": pa.array([key * 86_400_000 for key in ids], pa.date64()),
    }
    if turn > 0:
        columns["more"] = pa.array([1.5] * count)
    return pa.table(columns)


def append_round(table: Table, partition: Mapping[str, str], chance: random.Random, turn: int) -> None:
    """Some rows, of which some are updates, and some deletes. Neighbours are deleted too, so that vectors have runs."""
    neighbours = range(1_000 + 100 * turn, 1_060 + 100 * turn)
    ids = [*chance.sample(range(300), chance.randint(20, 120)), *neighbours]
    table.append(partition, rows_of_every_kind(ids, turn))
    kept = [*chance.sample(range(300), 15), *(key - 100 for key in neighbours[5:45])]
    table.append(partition, pa.table({"id": pa.array(kept, pa.int32())}), operation="delete")


def published_lake(folder: Path, publish: str = "delta") -> tuple[DeltaCatalog, Table]:
    lake = DeltaCatalog.open(folder)
    return lake, lake.create_table(TABLE_ID, ["region", "day"], properties={"publish": publish})


def compact_all(lake: DeltaCatalog, max_dead_row_share: float = 0.9) -> None:
    """Small files, most of which keep their dead rows."""
    compact(
        TABLE_ID, {"id"}, delta_catalog_client=lake, max_dead_row_share=max_dead_row_share, rows_per_compacted_file=50
    )


def differences(scanned: pa.Table, read: pa.Table, left_out: frozenset[str] = frozenset()) -> list[str]:
    """What an engine reads otherwise than a scan: whole rows, all columns, partition columns included."""
    expected = [name for name in scanned.schema.names if name not in left_out]
    found = [f"column {name} is missing" for name in expected if name not in read.schema.names]
    found += [f"column {name} is not in the scan" for name in read.schema.names if name not in expected]
    if found:
        return found
    one, other = _rows(scanned, expected), _rows(read, expected)
    found += [f"only in the scan: {row}" for row in list((one - other).elements())[:2]]
    return found + [f"only in the engine: {row}" for row in list((other - one).elements())[:2]]


def _rows(table: pa.Table, columns: list[str]) -> Counter[str]:
    """Instants are compared in UTC, whatever zone a column shows them in."""
    for position, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            in_utc = table.column(position).cast(pa.timestamp(field.type.unit, "UTC"))
            table = table.set_column(position, field.name, in_utc)
    return Counter(repr([row[name] for name in columns]) for row in table.select(columns).to_pylist())
