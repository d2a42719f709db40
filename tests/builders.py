"""What the tests of the compactor are made with: a lake in a folder, deltas from plain rows, and ways to look inside.

Looking inside is done with PyArrow alone where it checks the compactor: the same files, other code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from compactor import DeltaCatalog
from compactor.catalog.snapshot import CompactedStream
from compactor.index.keys import IndexFilePath
from compactor.lake import Table
from compactor.maintenance.verify import verify
from compactor.model.files import DataFile, DeletionVector, IndexFile, IndexPointers
from compactor.planning.session_planner import pin_sessions
from compactor.planning.spec import JobRunSpec, SessionSpec
from compactor.planning.stream_figures import StreamFigures
from compactor.planning.table_figures import read_figures
from compactor.schemas.unify import parse_schema
from compactor.tabular import TabularFile, read_table
from tests.arrow_types import KEY_TYPES, Raw, plain_digest

TABLE_ID = "ACME.ORDERS.V1"
NO_PARTITION: Mapping[str, str] = {}
TOMBSTONE_FILE_NUMBER = 0


@dataclass(frozen=True)
class IndexRow:
    """One row of the primary key index, as its file has it. `run` is the index version that wrote it."""

    run: int
    hash_bucket: int
    digest: bytes
    file_number: int
    row_index: int
    sort_values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class CompactedSide:
    """What the compacted side of a partition stream holds, and where."""

    lake: DeltaCatalog
    table: Table
    partition: Mapping[str, str]

    @classmethod
    def of(
        cls, lake: DeltaCatalog, table_id: str = TABLE_ID, partition: Mapping[str, str] = NO_PARTITION
    ) -> CompactedSide:
        return cls(lake, lake.table(table_id), partition)

    @property
    def stream(self) -> CompactedStream:
        compacted = self.table.stream(self.partition).load().state.compacted
        assert compacted is not None, f"{self.table.table_id} {self.partition} has not been compacted"
        return compacted

    @property
    def entry_number(self) -> int:
        return self.table.stream(self.partition).load().entry_number

    @property
    def files(self) -> list[DataFile]:
        return [self.stream.files[number] for number in sorted(self.stream.files)]

    def path_of(self, file: DataFile | IndexFile | IndexPointers | DeletionVector) -> Path:
        return Path(self.table.stream(self.partition).uri_of(file.path).removeprefix("file://"))

    def read(self, file: DataFile) -> pa.Table:
        """One compacted file's rows."""
        schema = parse_schema(self.stream.last_round.compacted_schema)
        return read_table(
            self.lake.location, TabularFile(f"file://{self.path_of(file)}", file.content_type), schema=schema
        )

    def rows(self) -> pa.Table:
        """All live rows, file after file."""
        return self.table.scan(self.partition).to_table()

    def dead_rows(self, vector: DeletionVector) -> list[int]:
        with pa.memory_map(str(self.path_of(vector))) as source:
            rows: list[int] = pa.ipc.open_file(source).read_all().column("row_index").to_pylist()
        assert len(rows) == vector.rows
        return rows

    def index_rows(self) -> list[IndexRow]:
        """All rows of all index files, as they lie in them."""
        return [row for file in self.stream.index_files for row in self.index_rows_of(file)]

    def index_rows_of(self, file: IndexFile) -> list[IndexRow]:
        path = IndexFilePath.parse(file.path)
        with pa.memory_map(str(self.path_of(file))) as source:
            table = pa.ipc.open_file(source).read_all()
        assert table.num_rows == file.rows
        if file.pointers is not None:
            with pa.memory_map(str(self.path_of(file.pointers))) as source:
                pointers = pa.ipc.open_file(source).read_all()
            assert (pointers.num_rows, pointers.column_names) == (file.rows, ["file_number", "row_index"])
            table = table.set_column(1, "file_number", _plain(pointers["file_number"], 1))
            table = table.set_column(2, "row_index", _plain(pointers["row_index"], 0))
        else:
            table = table.set_column(1, "file_number", _plain(table["file_number"], 1))
            table = table.set_column(2, "row_index", _plain(table["row_index"], 0))
        return [
            IndexRow(
                run=path.index_version,
                hash_bucket=file.hash_bucket,
                digest=row.pop("digest"),
                file_number=row.pop("file_number"),
                row_index=row.pop("row_index"),
                sort_values={name.removeprefix("sort:"): value for name, value in row.items()},
            )
            for row in table.to_pylist()
        ]


def _plain(column: pa.ChunkedArray, added: int) -> pa.ChunkedArray:
    """Pointers as whole numbers, however they lie in the file (FORMAT.md, "Primary key index files")."""
    if not pa.types.is_fixed_size_binary(column.type):
        return column
    return pa.chunked_array([[int.from_bytes(raw, "little") - added for raw in column.to_pylist()]], pa.int64())


def audit(side: CompactedSide) -> None:
    """Keys are unique, each has one index row, in the right bucket, and its pointer leads to the key's live row.

    Checked here row by row with hashlib, and by Lithify's own audit, which must agree.
    """
    stream = side.stream
    assert verify(side.table.stream(side.partition)).problems == ()
    tables = {file.file_number: side.read(file) for file in side.files}
    assert {number: table.num_rows for number, table in tables.items()} == {
        file.file_number: file.rows for file in side.files
    }
    dead = {vector.file_number: set(side.dead_rows(vector)) for vector in stream.deletion_vectors}
    live = [
        (digest, (number, row))
        for number, table in tables.items()
        for row, digest in enumerate(key_digests(table, stream.primary_keys))
        if row not in dead.get(number, ())
    ]
    where = dict(live)
    assert len(where) == len(live) == stream.rows, "a key has more than one row"
    newest: dict[bytes, IndexRow] = {}
    for row in sorted(side.index_rows(), key=lambda row: row.run):
        assert row.hash_bucket == int.from_bytes(row.digest, "big") % stream.hash_bucket_count
        assert row.digest not in newest or newest[row.digest].run < row.run, "a run has a key twice"
        newest[row.digest] = row
    pointers = {
        digest: (row.file_number, row.row_index)
        for digest, row in newest.items()
        if row.file_number > TOMBSTONE_FILE_NUMBER
    }
    assert pointers == where
    for file in stream.index_files:
        digests = [row.digest for row in side.index_rows_of(file)]
        assert digests == sorted(digests)


def key_digests(table: pa.Table, primary_keys: Sequence[str]) -> list[bytes]:
    """The digest of every row's key, by hashlib."""
    frames = []
    for name in sorted(primary_keys):
        column = table.column(name)
        kind = next(each for each in KEY_TYPES if _same_kind(each.arrow_type, column.type))
        frames.append([None if value is None else kind.canonical(value) for value in raw_values(column)])
    return [plain_digest(row) for row in zip(*frames, strict=True)]


def _same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_dictionary(one) != pa.types.is_dictionary(other):
        return False
    if pa.types.is_dictionary(one):
        return bool(one.value_type == other.value_type)
    if pa.types.is_decimal(one) or pa.types.is_fixed_size_binary(one):
        return bool(one.id == other.id)
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return bool(one.unit == other.unit)
    return bool(one == other)


def raw_values(column: pa.ChunkedArray) -> list[Raw | None]:
    """The inverse of tests.arrow_types.raw_array."""
    values: list[Raw | None] = []
    for chunk in column.chunks:
        if pa.types.is_temporal(chunk.type):
            chunk = chunk.view(pa.int32() if chunk.type.bit_width == 32 else pa.int64())
        values.extend(chunk.to_pylist())
    return values


# ------------------------------------------------------------------------------------------------------ comparing rows


def multiset(rows: pa.Table | Sequence[Mapping[str, object]], columns: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Whole rows with how often each occurs. 0.0 and -0.0, 1.5 and Decimal(1.5) differ; a missing column is null."""
    plain = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return Counter(tuple(_spell(row.get(column)) for column in columns) for row in plain)


def _spell(value: object) -> str:
    if isinstance(value, Decimal):
        return f"Decimal({value})"
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat()
    return repr(value)


def run_of(lake: DeltaCatalog, table_id: str = TABLE_ID, **fields: object) -> JobRunSpec:
    """A job run of a table whose key is `id`, into the same table, unless `fields` differ."""
    defaults = {"job_run_id": "run-1", "primary_keys": ("id",), "destination_compacted_table_id": table_id}
    return JobRunSpec(source_table_id=table_id, lake=lake.location, **{**defaults, **fields})  # type: ignore[arg-type]


def pinned_session(lake: DeltaCatalog, table_id: str = TABLE_ID, **fields: object) -> SessionSpec:
    """The only session of `run_of`."""
    (pinned,) = pin_sessions(run_of(lake, table_id, **fields), lake)
    return pinned.spec


def figures_of_stream(table: Table, partition: Mapping[str, str] = NO_PARTITION) -> StreamFigures:
    """What waits in a partition stream, and what is compacted."""
    (figures,) = read_figures(table, [partition])
    return figures
