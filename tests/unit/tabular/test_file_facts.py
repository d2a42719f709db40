"""What the log says of a data file, so that a reader need not ask: where its footer is, its row groups, its columns."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.delta_files import data_file
from compactor.model.errors import Corrupt
from compactor.model.names import ContentType
from compactor.schemas.unify import fingerprint_schema
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile, TabularWriter, check_written, measure, read_schema
from tests.arrow_types import KEY_TYPES

ROWS = pa.table({"id": range(10_000), "name": [f"name {n}" for n in range(10_000)]})


def write(folder: Path, rows: pa.Table, content_type: ContentType, *, row_groups: bool = False) -> TabularFile:
    file = TabularFile(f"file://{folder}/rows.{content_type.file_suffix}", content_type)
    with TabularWriter.open(
        StoreLocation(f"file://{folder}"), file.uri, content_type, rows.schema, None, row_groups
    ) as writer:
        writer.write(rows)
    return file


@pytest.mark.parametrize("row_groups", [False, True], ids=["by Arrow", "by row groups"])
def test_the_footer_is_where_its_writer_and_a_measure_say(tmp_path: Path, row_groups: bool) -> None:
    location = StoreLocation(f"file://{tmp_path}")
    uri = f"file://{tmp_path}/rows.parquet"
    with TabularWriter.open(location, uri, ContentType.PARQUET, ROWS.schema, None, row_groups) as writer:
        writer.write(ROWS)
    written = writer.close()
    check_written(location, TabularFile(uri, ContentType.PARQUET), writer.footer)
    measured = measure(location, TabularFile(uri, ContentType.PARQUET))
    body = (tmp_path / "rows.parquet").read_bytes()
    for found in (written, measured):
        assert found.footer is not None
        end = found.footer.offset + found.footer.size_bytes
        assert body[end:] == struct.pack("<I", found.footer.size_bytes) + b"PAR1"
        metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + body[found.footer.offset :]))
        assert [group.rows for group in found.row_groups] == [
            metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)
        ]
        assert sum(group.size_bytes for group in found.row_groups) == found.footer.offset - len(b"PAR1")


def test_a_file_with_another_footer_than_was_written_is_corrupt(tmp_path: Path) -> None:
    location, uri = StoreLocation(f"file://{tmp_path}"), f"file://{tmp_path}/rows.parquet"
    with TabularWriter.open(location, uri, ContentType.PARQUET, ROWS.schema) as writer:
        writer.write(ROWS)
    pq.write_table(ROWS.slice(1), tmp_path / "rows.parquet")
    with pytest.raises(Corrupt, match="another footer"):
        check_written(location, TabularFile(uri, ContentType.PARQUET), writer.footer)


def test_row_groups_of_a_registered_file_are_recorded(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "rows.parquet", row_group_size=3_000)
    measured = measure(
        StoreLocation(f"file://{tmp_path}"), TabularFile(f"file://{tmp_path}/rows.parquet", ContentType.PARQUET)
    )
    assert [group.rows for group in measured.row_groups] == [3_000, 3_000, 3_000, 1_000]


@pytest.mark.parametrize("content_type", [ContentType.PARQUET, ContentType.FEATHER])
@pytest.mark.parametrize("arrow_type", sorted({each.arrow_type for each in KEY_TYPES}, key=str), ids=str)
def test_files_of_one_fingerprint_are_read_with_one_schema(
    tmp_path: Path, arrow_type: pa.DataType, content_type: ContentType
) -> None:
    """A written file and the same file registered: their footers say the same, or their fingerprints differ."""
    location = StoreLocation(f"file://{tmp_path}")
    rows = pa.table({"key": pa.nulls(3, arrow_type), "other": [1, 2, 3]})
    file = write(tmp_path, rows, content_type)
    with TabularWriter.open(location, file.uri + ".again", content_type, rows.schema) as writer:
        writer.write(rows)
    written, registered = writer.close(), measure(location, file)
    again = TabularFile(file.uri + ".again", content_type)
    if fingerprint_schema(written.schema) == fingerprint_schema(registered.schema):
        assert read_schema(location, again).equals(read_schema(location, file))


def test_columns_of_another_type_name_order_or_nullability_have_another_fingerprint() -> None:
    schemas = [
        pa.schema({"a": pa.int64(), "b": pa.string()}),
        pa.schema({"a": pa.int32(), "b": pa.string()}),
        pa.schema({"a": pa.int64(), "c": pa.string()}),
        pa.schema({"b": pa.string(), "a": pa.int64()}),
        pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())]),
        pa.schema({"a": pa.timestamp("us"), "b": pa.string()}),
        pa.schema({"a": pa.timestamp("us", "UTC"), "b": pa.string()}),
    ]
    assert len({fingerprint_schema(schema) for schema in schemas}) == len(schemas)
    assert fingerprint_schema(schemas[0].with_metadata({"rows": "7"})) == fingerprint_schema(schemas[0])


def test_text_has_no_fingerprint_since_each_file_has_types_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    file = TabularFile(f"file://{tmp_path}/rows.csv", ContentType.CSV)
    measured = measure(StoreLocation(f"file://{tmp_path}"), file)
    recorded = data_file(1, "rows.csv", ContentType.CSV, measured, ())
    assert (recorded.schema_fingerprint, recorded.footer, recorded.row_groups) == (None, None, ())
