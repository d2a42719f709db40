"""The log has the checksum of each file that was written here, and who reads a file whole compares it."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.keys import StreamFolder
from compactor.index.deletion_vectors import read_dead_rows, write_dead_rows
from compactor.index.keys import DeletionVectorPath
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation
from compactor.storage.ranges import RangeReader
from compactor.tabular import TabularFile, TabularWriter, check_bytes, formats, read_batches, read_table
from compactor.tabular.remote_file import open_tail
from tests.fakes.memory_ranges import MemoryRanges

TABLE = pa.table({"id": list(range(1_000)), "note": [f"note {number}" for number in range(1_000)]})
WRITTEN = [ContentType.PARQUET, ContentType.FEATHER, ContentType.ORC, ContentType.CSV, ContentType.TSV]


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    return StoreLocation(f"file://{tmp_path}")


def written(location: StoreLocation, content_type: ContentType) -> TabularFile:
    uri = f"{location.root_uri}/file"
    with TabularWriter.open(location, uri, content_type, TABLE.schema) as writer:
        writer.write(TABLE)
        measured = writer.close()
    return TabularFile(uri, content_type, measured.size_bytes, crc32=measured.crc32)


def path_of(file: TabularFile) -> Path:
    return Path(file.uri.removeprefix("file://"))


def damage(path: Path) -> None:
    """Changes one digit or bit in the middle."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


@pytest.mark.parametrize("content_type", WRITTEN)
def test_the_checksum_of_a_written_file_is_that_of_its_bytes(
    location: StoreLocation, content_type: ContentType
) -> None:
    file = written(location, content_type)
    assert file.crc32 == zlib.crc32(path_of(file).read_bytes())
    check_bytes(location, file)
    assert read_table(location, file, schema=TABLE.schema).equals(TABLE)
    assert pa.Table.from_batches(read_batches(location, file, schema=TABLE.schema)).equals(TABLE)


@pytest.mark.parametrize("content_type", WRITTEN)
def test_one_changed_bit_is_found_by_who_compares_all_bytes(location: StoreLocation, content_type: ContentType) -> None:
    file = written(location, content_type)
    damage(path_of(file))
    with pytest.raises(Corrupt, match=r"/file is damaged: its CRC-32 is .*, but the log says"):
        check_bytes(location, file)


@pytest.mark.parametrize("content_type", [each for each in WRITTEN if each is not ContentType.PARQUET])
def test_one_changed_bit_is_found_by_who_reads_the_file_whole(
    location: StoreLocation, content_type: ContentType
) -> None:
    file = written(location, content_type)
    damage(path_of(file))
    for read in (read_table, lambda *given, **named: list(read_batches(*given, **named))):
        with pytest.raises(Corrupt, match=r"/file is damaged: its CRC-32 is .*, but the log says"):
            read(location, file, schema=TABLE.schema)


@pytest.mark.parametrize("content_type", WRITTEN)
def test_a_file_without_a_checksum_in_the_log_is_not_compared(
    location: StoreLocation, content_type: ContentType
) -> None:
    file = written(location, content_type)
    check_bytes(location, TabularFile(file.uri, content_type, file.size_bytes))
    assert read_table(location, TabularFile(file.uri, content_type), schema=TABLE.schema).equals(TABLE)


def test_a_remote_file_that_one_request_brings_whole_is_compared() -> None:
    body = b"a small file"
    reader = RangeReader(MemoryRanges({"s3://lake/x": body}))
    assert open_tail(reader, "s3://lake/x", len(body), crc32=zlib.crc32(body)).data == body
    with pytest.raises(Corrupt, match="s3://lake/x is damaged"):
        open_tail(reader, "s3://lake/x", len(body), crc32=1)


def test_a_remote_file_with_another_etag_is_corrupt_unless_it_was_only_an_end_that_was_kept() -> None:
    objects = MemoryRanges({"s3://lake/x": b"first"})
    reader = RangeReader(objects)
    first = open_tail(reader, "s3://lake/x", 5).version
    objects.objects["s3://lake/x"] = b"other"
    other = objects.read_tail("s3://lake/x", 5).version
    assert open_tail(reader, "s3://lake/x", 5, etag=other).data.tobytes() == b"other"
    what = rf"s3://lake/x was changed or replaced .*: its ETag is {other}, but .*{first}; retract delta 'd7'"
    with pytest.raises(Corrupt, match=what):
        open_tail(reader, "s3://lake/x", 5, etag=first, delta_id="d7")


def test_a_deletion_vector_of_which_one_bit_has_changed_is_corrupt_and_named(location: StoreLocation) -> None:
    place = DeletionVectorPath(StreamFolder("ACME.SUMS.V1", ()), "c" * 32, 1, "a" * 16)
    vector = write_dead_rows(location, place, np.arange(0, 50_000, 7))
    path = Path(location.root_uri.removeprefix("file://")) / vector.path
    assert vector.crc32 == zlib.crc32(path.read_bytes())
    assert read_dead_rows(location, vector).tolist() == list(range(0, 50_000, 7))
    before = vector.model_copy(update={"crc32": None})
    assert len(read_dead_rows(location, before)) == vector.rows
    damage(path)
    with pytest.raises(Corrupt, match=rf"{vector.path} is damaged: its CRC-32 is"):
        read_dead_rows(location, vector)


def test_a_damaged_footer_that_the_store_answered_with_once_does_not_stay_in_the_process(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": np.random.default_rng(1).integers(0, 2**60, 200_000)})
    pq.write_table(rows, path_of(TabularFile(f"{location.root_uri}/file", ContentType.PARQUET)))
    body = path_of(TabularFile(f"{location.root_uri}/file", ContentType.PARQUET)).read_bytes()
    objects = MemoryRanges({"s3://lake/x": body[:-20] + bytes(20)})
    reader = RangeReader(objects)
    monkeypatch.setattr(formats, "range_reader", lambda _: reader)
    file = TabularFile("s3://lake/x", ContentType.PARQUET, len(body))
    with pytest.raises(Invalid, match="s3://lake/x cannot be read as parquet"):
        read_table(location, file)
    objects.objects["s3://lake/x"] = body
    assert read_table(location, file).equals(rows)
