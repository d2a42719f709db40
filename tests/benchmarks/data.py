"""Tables and deltas in the shape of TPC-H's orders, and what must survive them. The same numbers on every machine.

A row's *place* in the table is its age: places ascend in time, so the last places are the recent rows. Keys are a
scrambled image of the places, so rows are in no order of their keys. A delta updates some places and adds new ones;
a few of its updates are late, older than the row they meet, and must lose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEY, SORT = "o_orderkey", "last_updated"
FIRST_UPDATE_US = 1_700_000_000_000_000
"""When the first row of a table was updated, in microseconds since 1970."""

_LATE_SHARE = 0.05
_CLUSTER = 2
"""Clustered updates fall on the last so many times as many rows as there are updates."""
_CLERKS, _TEXT_BYTES = 1_000, 8_000_000
_LETTERS, _WORDS = "etaoinsrhldcumfpgwybv", 4_000

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """A table: how many rows, and how long their comments are, from and to (exclusive) so many bytes.

    readable  comments are made of words, and compress about as TPC-H's do; or of random letters, and hardly compress
    """

    name: str
    rows: int
    rows_per_file: int
    comment_bytes: tuple[int, int]
    readable: bool

    def times(self, factor: float) -> Shape:
        """The same with another number of rows in files of the same size."""
        return replace(self, rows=int(self.rows * factor))

    def scaled(self, factor: float) -> Shape:
        """The same in small: as many files, each with fewer rows."""
        return replace(self.times(factor), rows_per_file=int(self.rows_per_file * factor))


NARROW = Shape("narrow", 4_000_000, 250_000, (19, 79), readable=True)
WIDE = Shape("wide", 800_000, 50_000, (900, 1_000), readable=False)


@dataclass(frozen=True)
class Change:
    """A delta over a table. Updates are clustered in the recent rows, or uniform over all of them."""

    rows: int
    clustered: bool = False
    update_share: float = 0.8

    @property
    def spread(self) -> str:
        return "clustered" if self.clustered else "uniform"


@dataclass(frozen=True)
class Files:
    """What was written."""

    paths: tuple[str, ...]
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Survivors:
    """What is known of the rows that survive: how many, and the sum of their times after `FIRST_UPDATE_US`."""

    rows: int
    time_sum: int


def write_table(folder: Path, shape: Shape) -> Files:
    """The table, unless an earlier call has written it."""
    cuts = np.array_split(np.arange(shape.rows), _file_count(shape.rows, shape))
    here = folder / f"{shape.name}-{shape.rows}"
    return _write(here, shape, [(places, _table_times(places)) for places in cuts])


def write_large_files(folder: Path, shape: Shape, rows_per_file: int, rows_per_group: int) -> Files:
    """The table in a few files of large row groups, as other writers leave them; the smaller files are removed."""
    small = write_table(folder, shape)
    at_once, paths = max(rows_per_group // shape.rows_per_file, 1), list[str]()
    groups = [small.paths[start : start + at_once] for start in range(0, len(small.paths), at_once)]
    groups_per_file = max(rows_per_file // rows_per_group, 1)
    for first in range(0, len(groups), groups_per_file):
        paths.append(str(folder / f"{shape.name}-{shape.rows}-large-{len(paths):03}.parquet"))
        with pq.ParquetWriter(paths[-1], pq.read_schema(small.paths[0]), compression="snappy") as writer:
            for group in groups[first : first + groups_per_file]:
                writer.write_table(pa.concat_tables(map(pq.read_table, group)), row_group_size=rows_per_group)
                for path in group:
                    Path(path).unlink()
    return Files(tuple(paths), small.rows, sum(Path(path).stat().st_size for path in paths))


def write_delta(folder: Path, shape: Shape, change: Change) -> Files:
    """A delta over that table, unless an earlier call has written it."""
    places, times = delta_rows(shape, change)
    files = _file_count(change.rows, shape)
    name = f"{shape.name}-{shape.rows}-delta-{change.rows}-{change.spread}"
    return _write(
        folder / name, shape, list(zip(np.array_split(places, files), np.array_split(times, files), strict=True))
    )


def delta_rows(shape: Shape, change: Change) -> tuple[Int64s, Int64s]:
    """Places and times of a delta's rows. No two rows of a key have the same time."""
    random = np.random.default_rng([shape.rows, change.rows, change.clustered])
    updates = int(change.rows * change.update_share)
    oldest = max(shape.rows - _CLUSTER * updates, 0) if change.clustered else 0
    updated = random.integers(oldest, shape.rows, updates)
    added = np.arange(shape.rows, shape.rows + change.rows - updates)
    places = random.permutation(np.concatenate([updated, added]))
    ticks = np.arange(change.rows)
    late = (random.random(change.rows) < _LATE_SHARE) & (places < shape.rows)
    newest = _table_times(np.array([shape.rows]))[0]
    return places, np.where(late, _table_times(places) - 1 - ticks, newest + ticks)


def survivors(shape: Shape, change: Change | None) -> Survivors:
    """The latest row of every key."""
    times = _table_times(np.arange(shape.rows))
    if change is not None:
        places, changed = delta_rows(shape, change)
        times = np.concatenate([times, np.full(places.max() + 1 - shape.rows, np.iinfo(np.int64).min)])
        np.maximum.at(times, places, changed)
    return Survivors(len(times), _sum(times))


def survivors_by_position(shape: Shape, change: Change) -> Survivors:
    """The last row of every key in the order in which rows arrived, whatever their times."""
    places, changed = delta_rows(shape, change)
    times = np.zeros(places.max() + 1, np.int64)
    times[: shape.rows] = _table_times(np.arange(shape.rows))
    times[places] = changed
    return Survivors(len(times), _sum(times))


def all_rows(shape: Shape, change: Change) -> Survivors:
    """Every row of table and delta: what a copy holds."""
    times = np.concatenate([_table_times(np.arange(shape.rows)), delta_rows(shape, change)[1]])
    return Survivors(len(times), _sum(times))


def _sum(times: Int64s) -> int:
    """Of the times after the first update; that of 256 million rows is no int64."""
    return sum(int((part - FIRST_UPDATE_US).sum()) for part in np.array_split(times, 1_000))


def _table_times(places: Int64s) -> Int64s:
    return FIRST_UPDATE_US + places * 2_000


def _file_count(rows: int, shape: Shape) -> int:
    """At least two, so that two cores have something to do."""
    return max(-(-rows // shape.rows_per_file), 2)


def _write(folder: Path, shape: Shape, files: list[tuple[Int64s, Int64s]]) -> Files:
    paths = [folder / f"{number:03}.parquet" for number in range(len(files))]
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir(parents=True)
        for path, (places, times) in zip(paths, files, strict=True):
            pq.write_table(_rows(shape, places, times), unfinished / path.name, compression="snappy")
        unfinished.rename(folder)
    return Files(
        tuple(str(path) for path in paths),
        sum(len(places) for places, _ in files),
        sum(path.stat().st_size for path in paths),
    )


def _rows(shape: Shape, places: Int64s, times: Int64s) -> pa.Table:
    random = np.random.default_rng([int(places[0]), int(times[0]), len(places)])
    count = len(places)

    def any_of(values: list[str]) -> pa.Array:
        return pa.array(values).take(pa.array(random.integers(0, len(values), count)))

    cents = pa.array(random.integers(85_000, 60_000_000, count)).cast(pa.decimal128(19, 0))
    return pa.table(
        {
            KEY: _scramble(places),
            "o_custkey": random.integers(1, max(shape.rows // 10, 2), count),
            "o_orderstatus": any_of(["F", "O", "P"]),
            "o_totalprice": pc.multiply(cents, pa.scalar("0.01", pa.string()).cast(pa.decimal128(3, 2))).cast(
                pa.decimal128(15, 2)
            ),
            "o_orderdate": pa.array(random.integers(8_035, 10_440, count).astype(np.int32)).cast(pa.date32()),
            "o_orderpriority": any_of(["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]),
            "o_clerk": any_of([f"Clerk#{number:09}" for number in range(1, _CLERKS + 1)]),
            "o_shippriority": np.zeros(count, np.int32),
            "o_comment": _comments(shape, random, count),
            SORT: pa.array(times, pa.timestamp("us")),
        }
    )


def _scramble(places: Int64s) -> Int64s:
    """A one-to-one image of [0, 2^32) in itself, without an order (the finalizer of a well known 32-bit hash)."""
    mixed = places.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return mixed.astype(np.int64)


def _comments(shape: Shape, random: np.random.Generator, count: int) -> pa.Array:
    """Cut out of one long text, as TPC-H's generator does."""
    text = _text(shape.readable)
    lengths = random.integers(*shape.comment_bytes, count, dtype=np.int32)
    starts = random.integers(0, len(text) - shape.comment_bytes[1], count, dtype=np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    letters = text[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1], dtype=np.int32)]
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))


@cache
def _text(readable: bool) -> npt.NDArray[np.uint8]:
    random = np.random.default_rng(_TEXT_BYTES)
    if not readable:
        return random.integers(ord("0"), ord("z"), _TEXT_BYTES, dtype=np.uint8)
    words = ["".join(random.choice(list(_LETTERS), random.integers(2, 13))) for _ in range(_WORDS)]
    return np.frombuffer(" ".join(random.choice(words, _TEXT_BYTES // 7)).encode()[:_TEXT_BYTES], np.uint8)
