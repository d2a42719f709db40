"""The pieces of a scan, read in several threads, are the plain rows: filtered, without dead ones, with all columns."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor.catalog.keys import StreamFolder
from compactor.index.deletion_vectors import write_dead_rows
from compactor.index.keys import DeletionVectorPath
from compactor.model.errors import Corrupt
from compactor.model.files import DataFile, RowGroupSize
from compactor.model.names import ContentType
from compactor.reading.ordered_batches import batches_in_order
from compactor.reading.pieces import ReadColumns, ScanFile, ScanPiece, plan_pieces, readers_of
from compactor.storage import opening, ranges
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.ranges import RangeReader, Span
from compactor.tabular import TabularFile, TabularWriter, measure
from tests.fakes.memory_ranges import MemoryRanges

THREADS = 3
VECTOR = DeletionVectorPath(StreamFolder("ACME.T.V1", ()), "c" * 32, 1, "a" * 16)


def scan_file(path: Path, content_type: ContentType = ContentType.PARQUET) -> ScanFile:
    """A file that is there, as the log would have it."""
    uri = f"file://{path}"
    measured = measure(parse_location(str(path.parent)), TabularFile(uri, content_type))
    file = DataFile(
        file_number=1,
        path=uri,
        content_type=content_type,
        rows=measured.rows,
        size_bytes=measured.size_bytes,
        columns=dict(measured.columns),
        row_groups=measured.row_groups,
    )
    return ScanFile({}, uri, file)


def read(
    location: StoreLocation,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    row_filter: pc.Expression | None,
    filtered_by: Sequence[str],
    threads: int = THREADS,
) -> pa.Table:
    filtered = pa.schema([schema.field(name) for name in filtered_by])
    pieces, _ = plan_pieces(location, files, ReadColumns(schema, row_filter, filtered), threads)
    batches = list(batches_in_order(readers_of(pieces), threads))
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, schema)


# -- against the plain rows

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("x", pa.float64()), ("day", pa.string())])
STORED = [pa.schema([("id", pa.int32()), ("s", pa.string())]), pa.schema([("id", pa.int64()), ("x", pa.float64())])]
"""Files of an older schema; of another one. No file has the partition's column."""


@st.composite
def stored_files(draw: st.DrawFn) -> list[tuple[pa.Table, ContentType, int, set[int], str]]:
    """For each: rows, type, rows of a row group, rows that are not shown, and how the log says that."""
    files = []
    for _ in range(draw(st.integers(1, 4))):
        schema, count = draw(st.sampled_from(STORED)), draw(st.integers(1, 12))
        values = {"id": st.integers(0, 5), "s": st.sampled_from("abc"), "x": st.sampled_from([0.5, float("nan")])}
        columns = {
            name: draw(st.lists(st.none() | values[name], min_size=count, max_size=count)) for name in schema.names
        }
        hidden = draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
        content_type = draw(st.sampled_from([ContentType.PARQUET, ContentType.PARQUET, ContentType.FEATHER]))
        how = draw(st.sampled_from(["dead", "kept"]))
        files.append((pa.table(columns, schema), content_type, draw(st.integers(1, 5)), hidden, how))
    return files


FILTERS = [
    (None, []),
    (pc.field("id") == 3, ["id"]),
    ((pc.field("id") > 2) | pc.field("id").is_null(), ["id"]),
    (~(pc.field("x") < 5), ["x"]),
    ((pc.field("s") == "a") & (pc.field("id") < 4), ["s", "id"]),
    (pc.field("day") == "monday", ["day"]),
    ((pc.field("day") == "monday") | (pc.field("id") == 1), ["day", "id"]),
]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stored_files(),
    st.sampled_from(FILTERS),
    st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True),
    st.sampled_from([1, THREADS]),
)
def test_a_scan_is_the_plain_rows_filtered(
    tmp_path: Path,
    stored: list[tuple[pa.Table, ContentType, int, set[int], str]],
    row_filter: tuple[pc.Expression | None, list[str]],
    names: list[str],
    threads: int,
) -> None:
    folder = tmp_path / uuid4().hex
    folder.mkdir()
    location = parse_location(str(folder))
    files, expected = [], []
    for number, (rows, content_type, group_rows, hidden, how) in enumerate(stored):
        path, day = folder / f"{number}.{content_type}", ["monday", "tuesday"][number % 2]
        if content_type is ContentType.PARQUET:
            pq.write_table(rows, path, row_group_size=group_rows)
        else:
            with TabularWriter.open(location, f"file://{path}", content_type, rows.schema) as writer:
                writer.write(rows)
                writer.close()
        shown = np.array([row for row in range(rows.num_rows) if row not in hidden])
        scanned = replace(scan_file(path, content_type), constants={"day": pa.scalar(day)})
        if how == "kept":
            files.append(replace(scanned, kept=shown))
        elif hidden:
            vector = write_dead_rows(location, replace(VECTOR, file_number=number + 1), np.array(sorted(hidden)))
            files.append(replace(scanned, dead=vector))
        else:
            files.append(scanned)
        whole = [
            rows[field.name].cast(field.type)
            if field.name in rows.schema.names
            else pa.repeat(day, rows.num_rows)
            if field.name == "day"
            else pa.nulls(rows.num_rows, field.type)
            for field in SCHEMA
        ]
        expected.append(pa.table(whole, schema=SCHEMA).take(shown))
    condition, filtered_by = row_filter
    plain = pa.concat_tables(expected)
    plain = plain if condition is None else plain.filter(condition)
    schema = pa.schema([SCHEMA.field(name) for name in names])
    wanted = ReadColumns(schema, condition, pa.schema([SCHEMA.field(name) for name in filtered_by or names[:1]]))
    pieces, _ = plan_pieces(location, files, wanted, threads)
    found = pa.Table.from_batches(list(batches_in_order(readers_of(pieces), threads)), schema)
    assert str(found.to_pylist()) == str(plain.select(names).to_pylist())  # NaN differs from itself


# -- no more than is needed


def test_of_a_row_group_without_a_match_only_the_columns_of_the_filter_are_read(tmp_path: Path) -> None:
    """Other columns are damaged there."""
    path = tmp_path / "data.parquet"
    rows = pa.table({"id": [1, 9, 5, 5, 1, 9], "other": [1, 2, 3, 4, 5, 6]})
    pq.write_table(rows, path, row_group_size=2, compression="none", use_dictionary=False)
    file = scan_file(path)
    body = bytearray(path.read_bytes())
    for group in (0, 2):
        chunk = pq.read_metadata(path).row_group(group).column(1)
        body[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = (
            b"\xff" * chunk.total_compressed_size
        )
    path.write_bytes(body)
    location = parse_location(str(tmp_path))
    condition = pc.field("id").isin([5])  # within the bounds of every row group
    assert read(location, [file], rows.schema, condition, ["id"])["other"].to_pylist() == [3, 4]
    with pytest.raises(Corrupt, match=r"data\.parquet"):
        read(location, [file], rows.schema, pc.field("id") < 5, ["id"])


def test_row_groups_without_a_row_that_is_kept_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"id": range(4)}), path, row_group_size=1)
    location = parse_location(str(tmp_path))
    file = replace(scan_file(path), kept=np.array([2]))
    schema = pa.schema([("id", pa.int64())])
    path.write_bytes(b"\xff" * 20 + path.read_bytes()[20:])
    assert read(location, [file], schema, None, ["id"])["id"].to_pylist() == [2]
    columns = ReadColumns(schema, None, schema)
    assert plan_pieces(location, [replace(file, kept=np.array([], np.int64))], columns, 1) == ([], 1)


@pytest.mark.parametrize(
    ("row_groups_of_files", "threads"),
    [
        ([[3_600]], 1),
        ([[3_600], [40], [40], [40]], 1),  # a table that is kept: a large file and what arrived last
        ([[3_600], [500], [500]], 1),
        ([[3_600], [512], [512]], THREADS),
        ([[2_000], [2_000]], THREADS),
        ([[3_000, 900]], 1),  # one piece
        ([[4_096, 1_000]], 1),
        ([[4_096, 1_024]], THREADS),
        ([[4_096, 1_024], []], THREADS),
        ([], 1),
    ],
)
def test_threads_read_where_much_lies_beside_the_largest_piece(
    row_groups_of_files: list[list[int]], threads: int
) -> None:
    """Sizes in KiB."""

    def planned(folder: str) -> int:
        files = [
            ScanFile(
                {},
                f"{folder}/{number}.parquet",
                DataFile(
                    file_number=number,
                    path=f"{number}.parquet",
                    content_type=ContentType.PARQUET,
                    rows=len(row_groups),
                    size_bytes=sum(row_groups) * 1024,
                    row_groups=tuple(RowGroupSize(rows=1, size_bytes=size * 1024) for size in row_groups),
                ),
            )
            for number, row_groups in enumerate(row_groups_of_files, 1)
        ]
        return plan_pieces(parse_location(folder), files, ReadColumns(SCHEMA, None, SCHEMA), THREADS)[1]

    assert planned("/lake") == threads
    assert planned("s3://lake") == THREADS  # requests wait side by side


def test_a_file_with_other_rows_than_the_log_says_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"id": range(4)}), path)
    file = scan_file(path)
    schema = pa.schema([("id", pa.int64())])
    other = replace(file, file=file.file.model_copy(update={"rows": 3}))
    with pytest.raises(Corrupt, match="holds 4 rows, but the log says 3"):
        read(parse_location(str(tmp_path)), [other], schema, None, ["id"])


# -- remote files


BYTES_AHEAD = 300_000
REMOTE = "s3://lake/data.parquet"


@dataclass
class RemoteScan:
    """Of one file, from which more than `BYTES_AHEAD` is read but for its end."""

    objects: MemoryRanges
    reader: RangeReader
    piece: ScanPiece

    def finish_requests(self) -> None:
        """Waits until every thread that prepares reads has ended what it began before."""
        all_here = threading.Barrier(ranges._OPENERS)

        def meet() -> None:
            all_here.wait()

        wait([self.reader.soon(meet) for _ in range(ranges._OPENERS)])


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> RemoteScan:
    rows = pa.table({"id": np.random.default_rng(1).integers(0, 2**62, 100_000)})
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=30_000, compression="none", use_dictionary=False)
    objects = MemoryRanges({REMOTE: sink.getvalue()})
    reader = RangeReader(objects)
    reader.give_room(BYTES_AHEAD)
    monkeypatch.setattr(opening, "_range_reader", lambda *_: reader)
    size_bytes = len(objects.objects[REMOTE])
    file = DataFile(
        file_number=1, path=REMOTE, content_type=ContentType.PARQUET, rows=rows.num_rows, size_bytes=size_bytes
    )
    columns = ReadColumns(rows.schema, None, rows.schema)
    (piece,), _ = plan_pieces(parse_location("s3://lake"), [ScanFile({}, REMOTE, file)], columns, THREADS)
    return RemoteScan(objects, reader, piece)


def test_what_a_closed_scan_was_about_to_request_keeps_no_room_from_the_next_one(remote: RemoteScan) -> None:
    asked, answers = threading.Event(), threading.Event()

    def stall(_: str) -> None:
        asked.set()
        assert answers.wait(60)

    remote.objects.fail = stall
    remote.piece.begin()
    assert asked.wait(60)
    remote.piece.forget()  # while the footer is requested, which says what else is to be
    answers.set()
    remote.finish_requests()
    assert remote.reader.begin("s3://lake/other", [Span(0, BYTES_AHEAD)])


def test_a_thread_that_is_late_requests_nothing_for_a_closed_scan(remote: RemoteScan) -> None:
    remote.piece.forget()
    remote.piece.begin()
    remote.finish_requests()
    assert remote.objects.requests == []
