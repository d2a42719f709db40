"""A damaged footer of Parquet is refused. If PyArrow sees such a one unchecked, it ends this process."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import ContentType
from compactor.storage.location import parse_location
from compactor.tabular import TabularFile, measure, read_outline
from compactor.tabular.parquet_pages.page_format import MAGIC
from compactor.tabular.parquet_pages.thrift import (
    Items,
    Kind,
    Struct,
    binary,
    i32,
    i64,
    items,
    read_struct,
    struct_in,
    structs_in,
    structure,
    write_struct,
)

ROWS = 12
TABLE = pa.table(
    {
        "id": [None if row == 5 else row for row in range(ROWS)],
        "name": [f"name {row % 3}" for row in range(ROWS)],
        "four": pa.array([b"abcd"] * ROWS, pa.binary(4)),
        "is_paid": [row % 2 == 0 for row in range(ROWS)],
        "at": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * ROWS, pa.timestamp("us", "UTC")),
        "tags": [["a"] * (row % 4) for row in range(ROWS)],
        "nested": [{"a": row, "b": [row / 3, None]} for row in range(ROWS)],
    }
)
OPTIONS: list[dict[str, object]] = [
    {},
    {"row_group_size": 5, "data_page_version": "2.0", "compression": "zstd"},
    {"write_page_index": True, "use_dictionary": False},
    {"store_schema": False, "use_deprecated_int96_timestamps": True},
]


def written(**options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, **options)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def footer_start(body: bytes) -> int:
    return len(body) - 8 - int(struct.unpack("<I", body[-8:-4])[0])


def read_as_appended(path: Path, body: bytes) -> None:
    """What `append` and the planner of a compaction read of a registered file, which both refuse what is damaged."""
    path.write_bytes(body)
    location, file = parse_location(str(path.parent)), TabularFile(f"file://{path}", ContentType.PARQUET)
    try:
        measure(location, file)
    except (Corrupt, Invalid):
        with pytest.raises((Corrupt, Invalid)):
            read_outline(location, file)
        raise
    read_outline(location, file)


# -- damaged by hand

Damage = Callable[[Struct], object]


def row_group(footer: Struct) -> Struct:
    return structs_in(footer, 4)[0]


def chunk(footer: Struct, column: int) -> Struct:
    return structs_in(row_group(footer), 1)[column]


def of_chunk(column: int, change: Damage) -> Damage:
    return lambda footer: change(struct_in(chunk(footer, column), 3))


def of_bound(column: int, field: int, bound: bytes) -> Damage:
    return of_chunk(column, lambda metadata: struct_in(metadata, 12).update({field: binary(bound)}))


def one_chunk_more(footer: Struct) -> None:
    chunks = row_group(footer)[1].value
    assert isinstance(chunks, Items)
    row_group(footer)[1] = items(Kind.STRUCT, [*chunks.values, chunks.values[0]])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (of_chunk(0, lambda chunk: chunk.update({1: i32(99)})), "'id' has the type 99, and in the schema INT64"),
        (of_chunk(0, lambda chunk: chunk.update({4: i32(77)})), "'id' has an unknown compression"),
        (of_bound(0, 6, b"abc"), "'id' has a bound of less than 8 bytes in its statistics"),
        (of_bound(2, 5, b"a"), "'four' has a bound of less than 4 bytes"),
        (of_bound(3, 5, b""), "'is_paid' has a bound of less than 1 bytes"),
        (
            of_chunk(0, lambda chunk: chunk.update({16: structure({3: items(Kind.I64, [1, 2, 3])})})),
            "'id' has 3 levels in its statistics, and in the schema 2",
        ),
        (of_chunk(0, lambda chunk: chunk.update({16: structure({1: i64(5)})})), "'id' has a size of text"),
        (lambda footer: chunk(footer, 1).update({8: structure({})}), "'name' is encrypted"),
        (lambda footer: chunk(footer, 1).pop(3), "lacks the struct in field 3"),
        (one_chunk_more, "a row group has 9 columns, the schema 8"),
        (lambda footer: row_group(footer).update({3: i64(-5)}), "a row group has -5 rows"),
        (lambda footer: footer.update({3: i64(7)}), "its row groups have 12 rows, not 7"),
    ],
)
def test_a_footer_at_which_pyarrow_would_end_the_process_is_refused_by_name(
    tmp_path: Path, damage: Damage, reason: str
) -> None:
    body = written()
    footer, _ = read_struct(body[footer_start(body) : -8])
    damage(footer)
    changed = write_struct(footer)
    path = tmp_path / "damaged.parquet"
    with pytest.raises(Invalid, match=f"{path} cannot be read as parquet: .*{reason}"):
        read_as_appended(path, body[: footer_start(body)] + changed + struct.pack("<I", len(changed)) + MAGIC)


# -- damaged by chance


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "defaults")
def test_whatever_is_flipped_in_a_footer_it_is_read_or_refused(tmp_path: Path, options: dict[str, object]) -> None:
    sound = written(**options)
    read_as_appended(tmp_path / "sound.parquet", sound)
    chance = random.Random(len(sound))
    refused = 0
    for _ in range(150):
        body = bytearray(sound)
        for _ in range(chance.choice([1, 1, 1, 4])):
            body[chance.randrange(footer_start(sound), len(sound) - 8)] ^= 1 << chance.randrange(8)
        try:
            read_as_appended(tmp_path / "damaged.parquet", bytes(body))
        except (Invalid, Corrupt):
            refused += 1
    assert 50 < refused < 150
